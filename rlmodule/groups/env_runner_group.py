"""EnvRunnerGroup: the env runners of a run, in this process or in other processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import Space

from catalog.activations import without_initialisers
from rlmodule.data.rollout import Rollout
from rlmodule.distributed.restarts import WorkerAccounts
from rlmodule.modules.rl_module import MultiRLModule, RLModule
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec
from rlmodule.sampling.env_runner import EnvRunner, OnEnv
from rlmodule.settings import RunnerSettings

if TYPE_CHECKING:
    from rlmodule.distributed.ray_workers import RayWorkers

Spec = RLModuleSpec | MultiRLModuleSpec
State = dict[str, dict[str, Any]]
"""Maps the global index of each env, as text, to the state of the env."""


def runner_class_for(settings: RunnerSettings) -> Any:
    """Return the class of the env runners: :class:`EnvRunner`, or :class:`AgentRunner` for multi-agent envs."""
    if not settings.is_multi_agent:
        return EnvRunner
    from rlmodule.agents.runner import AgentRunner

    return AgentRunner


class EnvRunnerGroup(ABC):
    """The env runners of a run. :meth:`create` builds the group for the settings: a :class:`LocalEnvRunnerGroup` with
    one runner, in this process, or a :class:`RemoteEnvRunnerGroup` with runners in other processes.

    Env ``i`` of runner ``k`` has the global index ``k * num_envs_per_env_runner + i``. The random streams of an env
    depend on its global index alone.

    Args:
        settings: The settings of the env and of its runners.

    Attributes:
        observation_space, action_space: Spaces of one env. For a multi-agent env, dicts of spaces by agent.
        module: The module that acts with the learner's weights, or for a multi-agent env, all such modules; set by
            :meth:`build_modules`.
        accounts: What the runners have cost the run: lost env steps, restarts, and bytes of weights sent.
        held: Rollouts that :meth:`ask` asked for, and that have arrived and were not taken.
    """

    observation_space: Space
    action_space: Space
    module: Any

    def __init__(self, settings: RunnerSettings) -> None:
        self._settings = settings
        self.accounts = WorkerAccounts()
        self.held: list[Any] = []
        self._at_rest: State = {}  # states of envs that no runner of this group has
        self._version: tuple[int, ...] = ()

    @staticmethod
    def create(
        settings: RunnerSettings, *, run_seed: int, role: str = "env", on_env: OnEnv | None = None
    ) -> EnvRunnerGroup:
        """Build the env runners of a run: one in this process if ``settings.num_env_runners`` is 0, otherwise that many
        in other processes.

        Args:
            settings: The settings of the env and of its runners.
            run_seed: Seed of the run.
            role: Role of the random streams: ``"env"`` or ``"evaluation_env"``.
            on_env: Called with every new vector env, in the process of its runner. If the call raises, the env is
                closed.

        Raises:
            WorkerFailed: If a runner in another process cannot be built.
        """
        if settings.num_env_runners:
            from rlmodule.groups.remote_env_runner_group import RemoteEnvRunnerGroup

            return RemoteEnvRunnerGroup(settings, run_seed=run_seed, role=role, on_env=on_env)
        return LocalEnvRunnerGroup(settings, run_seed=run_seed, role=role, on_env=on_env)

    def build_modules(self, spec: Spec, learner_module: RLModule | MultiRLModule) -> None:
        """Build the modules that ``spec`` describes with the weights of ``learner_module``, and let the runners act
        with them."""
        with without_initialisers():
            self.module = spec.build(inference_only=True)
        self.module.share_tensors_of(learner_module)
        self._tensors = [*self.module.parameters(), *self.module.buffers()]
        self._act_with(spec)

    @abstractmethod
    def _act_with(self, spec: Spec) -> None:
        """Let the runners act with the modules in :attr:`module`, which ``spec`` describes."""

    def set_policies(
        self,
        spec: MultiRLModuleSpec,
        learner_modules: MultiRLModule,
        trained: Collection[str],
        mapping_fn: Callable[..., str] | None = None,
    ) -> None:
        """Let the runners of multi-agent envs act with the modules that ``spec`` describes, from the next rollout on:
        add the new ones, remove those not in ``spec``, and leave the other modules and open episodes unchanged.

        Args:
            spec: Describes all modules.
            learner_modules: The learner's modules, whose weights the new modules share.
            trained: Ids of the modules that are trained.
            mapping_fn: Replaces the function that maps agents to modules; None keeps it.
        """
        for module_id in [*self.module]:
            if module_id not in spec.rl_module_specs:
                self.module.remove(module_id)
        for module_id, module_spec in spec.rl_module_specs.items():
            if module_id not in self.module:
                with torch.random.fork_rng(devices=[]):
                    self.module.add(module_id, module_spec.build(inference_only=True))
                self.module[module_id].share_tensors_of(learner_modules[module_id])
        self._tensors = [x for name in trained for x in self.module[name].state_dict().values()]
        self._follow(spec, trained, mapping_fn)

    @abstractmethod
    def _follow(self, spec: MultiRLModuleSpec, trained: Collection[str], mapping_fn: Callable[..., str] | None) -> None:
        """Let the runners act with the modules that :attr:`module` has now. The arguments are those of
        :meth:`set_policies`."""

    def _weights_changed(self, policy_version: int) -> bool:
        """Return whether the weights or ``policy_version`` have changed since the last call."""
        before = self._version
        self._version = policy_version, sum(x._version for x in self._tensors)  # torch counts changes in place there
        return self._version != before

    @property
    @abstractmethod
    def local_runner(self) -> EnvRunner:
        """The runner in this process, with the current weights.

        Raises:
            RuntimeError: If the runners are in other processes.
        """

    @property
    def processes(self) -> list[RayWorkers]:
        """The runner processes, for :func:`wait_for_any`: a list of one, or empty without runners in other
        processes."""
        return []

    @abstractmethod
    def sample(self, num_steps: int, *, explore: bool = True, policy_version: int = 0) -> list[Rollout]:
        """Return a rollout of ``num_steps`` rows from each runner, in order of the envs; see :meth:`EnvRunner.sample`.

        A runner that fails and restarts returns no rollout. If no runner returns one, all are asked again. If the call
        raises after rollouts have arrived, the steps of all count as lost, and all envs start new episodes.

        Raises:
            WorkerFailed: If a runner in another process fails, and the settings do not let the run continue without it.
        """

    @abstractmethod
    def ask(self, num_steps: int, *, explore: bool = True, policy_version: int = 0, in_flight: int = 1) -> None:
        """Let each runner begin rollouts with the current weights, for :meth:`take`.

        Runners in other processes sample while the caller goes on. The runner in this process samples one rollout at
        once, unless the group holds one; if it raises, :meth:`take` raises its error.

        Args:
            num_steps, explore, policy_version: See :meth:`sample`.
            in_flight: Number of rollouts, 1 or 2, that each runner in another process has to sample. With 2, it does
                not wait for the next call when it has finished the first. If rollouts are not taken, runners stop:
                no more are held or on their way together than the last call of :meth:`has` or :meth:`take` asked
                for, but at least one per runner, and another one per runner.
        """

    @property
    @abstractmethod
    def is_asked(self) -> bool:
        """Whether :meth:`take` will return what :meth:`ask` asked for, or what the group held when it was saved."""

    @abstractmethod
    def has(self, count: int) -> bool:
        """Hold the rollouts that have arrived, let runners go on as :meth:`ask` said, and return whether :meth:`take`
        returns ``count`` rollouts without waiting.

        Raises:
            WorkerFailed: See :meth:`sample`.
        """

    @abstractmethod
    def take(self, count: int | None = None) -> list[Rollout]:
        """Wait for rollouts, and return them in order of the envs. If the wait is interrupted, the next call returns
        those that have arrived, too.

        Args:
            count: Number of rollouts. The first that arrive are returned, and runners go on as :meth:`ask` said: it
                need not be called again. None waits for all that :meth:`ask` asked for.

        Raises:
            WorkerFailed: See :meth:`sample`.
        """

    def _release(self, count: int | None) -> list[Rollout]:
        """Return the first ``count`` rollouts that are held, or all if that is None, in order of the envs."""
        count = len(self.held) if count is None else count
        taken, self.held = self.held[:count], self.held[count:]
        return sorted(taken, key=lambda rollout: rollout.first_env_index)  # they arrive in any order

    @abstractmethod
    def post_weights(self, policy_version: int) -> None:
        """Send the current weights, as version ``policy_version``, to the runners. Each acts with them from the next
        rollout that it begins, even if :meth:`ask` already asked for that rollout."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until no runner is sampling, and keep the rollouts in :attr:`held`.

        Raises:
            WorkerFailed: See :meth:`sample`.
        """

    @abstractmethod
    def reset(self) -> None:
        """Let every runner begin new episodes with its next rollout."""

    @abstractmethod
    def recycle(self) -> None:
        """Let the next rollouts overwrite the last ones, which are not read any more, unless the last ones were not
        taken yet. Short rollouts then take a tenth less time, because their memory stays in the caches, and its views
        are kept."""

    @property
    def num_envs(self) -> int:
        """Number of envs of all runners."""
        return self._settings.num_envs

    @property
    def num_envs_per_runner(self) -> int:
        """Number of envs of each runner."""
        return self._settings.num_envs_per_env_runner

    @abstractmethod
    def report(self) -> dict[str, Any]:
        """Return the runners' entries in the ``workers`` section of a result: lost env steps and, of runners in other
        processes, their restarts and the cost of sending weights. It is empty if no step could be lost in this one."""

    @property
    def num_env_steps_lost(self) -> Counter[str]:
        """Number of env steps that were taken but are in no rollout, by cause."""
        return self.accounts.num_env_steps_lost

    def get_counters(self) -> dict[str, Any]:
        """Return the counters of the whole run: lost env steps, restarts of runners, and bytes of weights sent."""
        return {
            "num_env_steps_lost": dict(self.num_env_steps_lost),
            "num_env_runner_restarts": self.accounts.num_restarts,
            "num_weight_bytes_sent": self.accounts.num_bytes_shared,
        }

    def set_counters(self, counters: Mapping[str, Any]) -> None:
        """Restore the counters that :meth:`get_counters` returned."""
        self.num_env_steps_lost.clear()
        self.num_env_steps_lost.update(counters["num_env_steps_lost"])
        self.accounts.num_restarts = counters["num_env_runner_restarts"]
        self.accounts.num_bytes_shared = counters["num_weight_bytes_sent"]

    @abstractmethod
    def get_state(self) -> State:
        """Return the state of each env that the run has or ever had, by the global index of the env.

        Wait for runners that restart.
        """

    @abstractmethod
    def set_state(self, state: State) -> None:
        """Restore the state that :meth:`get_state` returned, even with a different number of runners or envs.

        Each env continues its random streams, and an env without a state begins new ones. States of envs that no runner
        has are kept, and :meth:`get_state` returns them. Rollouts that runners have begun are dropped.
        """

    def _split(self, state: State, num_runners: int) -> list[State]:
        """Return each runner's part of ``state``, and keep the rest.

        The rest consists of the states of envs that no runner has, and of the generators of envs that are not the first
        env of their runner. A runner uses only the generator of its first env.
        """
        self._at_rest, parts = {}, [State() for _ in range(num_runners)]
        for env, env_state in state.items():
            runner, slot = divmod(int(env), self._settings.num_envs_per_env_runner)
            if runner >= num_runners:
                self._at_rest[env] = dict(env_state)
                continue
            parts[runner][env] = dict(env_state)
            if slot and "generator" in env_state:
                self._at_rest[env] = {"generator": env_state["generator"]}
        return parts

    def _with_the_rest(self, state: State) -> State:
        """Return the ``state`` of the runners, joined with the rest that :meth:`_split` kept."""
        return self._at_rest | {env: self._at_rest.get(env, {}) | dict(env_state) for env, env_state in state.items()}

    def _lost_steps(self) -> dict[str, Any]:
        """Return the result entries ``num_env_steps_lost_lifetime`` and, if any env step was lost,
        ``num_env_steps_lost_by_cause``."""
        lost = self.num_env_steps_lost
        total = {"num_env_steps_lost_lifetime": sum(lost.values())}
        return total | {"num_env_steps_lost_by_cause": dict(lost)} if lost else total

    @abstractmethod
    def stop(self) -> None:
        """Close all envs, and end the runner processes."""


class LocalEnvRunnerGroup(EnvRunnerGroup):
    """One env runner, in this process. It acts with the learner's own tensors or, if it acts on a different device,
    with copies.

    Args:
        settings, run_seed, role, on_env: See :meth:`EnvRunnerGroup.create`.
    """

    def __init__(
        self, settings: RunnerSettings, *, run_seed: int, role: str = "env", on_env: OnEnv | None = None
    ) -> None:
        super().__init__(settings)
        self._runner = runner_class_for(settings)(settings, run_seed=run_seed, role=role, on_env=on_env)
        self._asked: tuple[int, bool] | None = None  # the arguments of ask()
        self._policy_version = 0  # of the weights, when they were asked for or posted
        self._failure: Exception | None = None  # what the runner raised, for take()
        self._has_copies = False  # whether the runner acts with copies of the modules
        self.observation_space, self.action_space = self._runner.observation_space, self._runner.action_space
        self.accounts.num_env_steps_lost = self._runner.num_env_steps_lost

    def _act_with(self, spec: Spec) -> None:
        self._has_copies = self._runner.device != self._tensors[0].device
        copies = spec.build(inference_only=True).to(self._runner.device) if self._has_copies else self.module
        self._runner.set_module(copies)

    def _follow(self, spec: MultiRLModuleSpec, trained: Collection[str], mapping_fn: Callable[..., str] | None) -> None:
        self._runner.set_policies(trained, mapping_fn)

    @property
    def local_runner(self) -> EnvRunner:
        if self._has_copies:
            self._runner.module.set_state(self.module.get_state())
        return self._runner

    def sample(self, num_steps: int, *, explore: bool = True, policy_version: int = 0) -> list[Rollout]:
        if self._has_copies and self._weights_changed(policy_version):
            self._runner.module.set_state(self.module.get_state())
        rollout = self._runner.sample(num_steps, explore=explore, policy_version=policy_version)
        self.accounts.num_env_steps_lost.update(rollout.stats.get("num_env_steps_lost", {}))
        return [rollout]

    def ask(self, num_steps: int, *, explore: bool = True, policy_version: int = 0, in_flight: int = 1) -> None:
        self._asked, self._policy_version = (num_steps, explore), policy_version
        try:
            self._sample_until_held(1)
        except Exception as error:
            self._failure = error

    def _sample_until_held(self, count: int) -> None:
        """Sample as :meth:`ask` said until the group holds ``count`` rollouts."""
        while len(self.held) < count:
            assert self._asked is not None
            num_steps, explore = self._asked
            self.held += self.sample(num_steps, explore=explore, policy_version=self._policy_version)

    @property
    def is_asked(self) -> bool:
        return bool(self.held) or self._failure is not None

    def has(self, count: int) -> bool:
        if (failure := self._failure) is not None:
            self._failure = None
            raise failure
        self._sample_until_held(count)
        return True

    def take(self, count: int | None = None) -> list[Rollout]:
        self.has(count or 0)
        return self._release(count)

    def post_weights(self, policy_version: int) -> None:
        self._policy_version = policy_version  # the next rollout reads the weights themselves

    def finish(self) -> None:
        """Do nothing: the runner samples when it is asked."""

    def reset(self) -> None:
        self._runner.reset()

    def recycle(self) -> None:
        if not self.held:
            self._runner.recycle()

    def report(self) -> dict[str, Any]:
        can_lose = self.num_env_steps_lost or self._settings.restart_failed_sub_environments
        return self._lost_steps() if can_lose else {}

    def get_state(self) -> State:
        return self._with_the_rest(self._runner.get_state())

    def set_state(self, state: State) -> None:
        self.held, self._failure = [], None
        (part,) = self._split(state, 1)
        self._runner.set_state(part)

    def stop(self) -> None:
        self._runner.stop()
