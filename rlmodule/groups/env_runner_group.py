"""EnvRunnerGroup: the env runners of a run, in this process or each in one of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from gymnasium import Space

from rlmodule.data.rollout import Rollout
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.sampling.env_runner import EnvRunner, OnEnv
from rlmodule.settings import RunnerSettings

State = dict[str, dict[str, Any]]
"""By global index, the state of each env, whichever runner has it."""


class EnvRunnerGroup:
    """The env runners of a run. :meth:`create` makes the group that the settings ask for.

    This class has one runner, in this process. It acts with the tensors of the learner themselves, or with copies on
    its own device. :class:`RemoteEnvRunnerGroup` has runners in processes of their own.

    Env ``i`` of runner ``k`` is env ``k * num_envs_per_env_runner + i`` of the run. Its random streams depend on that
    number alone.

    Args:
        settings, run_seed, role, on_env: See :meth:`create`.

    Raises:
        ValueError: If the settings ask for runners in other processes, which :meth:`create` makes.

    Attributes:
        observation_space, action_space: Of one env.
        module: What acts, with the weights of the learner's module; set by :meth:`build_modules`.
        num_env_steps_lost: By cause, steps that envs made and that are in no rollout.
    """

    observation_space: Space[Any]
    action_space: Space[Any]
    module: RLModule

    def __init__(
        self, settings: RunnerSettings, *, run_seed: int, role: str = "env", on_env: OnEnv | None = None
    ) -> None:
        self._settings = settings
        self.num_env_steps_lost: Counter[str] = Counter()
        self._at_rest: State = {}  # saved states of envs that no runner of this group has
        self._version: tuple[int, ...] = ()
        self._processes: Any = SimpleNamespace(num_restarts=0, num_bytes_shared=0)  # those of earlier parts of the run
        self._start(run_seed, role, on_env)

    def _start(self, run_seed: int, role: str, on_env: OnEnv | None) -> None:
        """Make the runners."""
        if self._settings.num_env_runners:
            raise ValueError(
                f"EnvRunnerGroup(): expected num_env_runners=0, got {self._settings.num_env_runners}. "
                "Call EnvRunnerGroup.create(), which makes the group that this asks for."
            )
        self._runner = EnvRunner(self._settings, run_seed=run_seed, role=role, on_env=on_env)
        self.observation_space, self.action_space = self._runner.observation_space, self._runner.action_space
        self.num_env_steps_lost = self._runner.num_env_steps_lost

    @staticmethod
    def create(
        settings: RunnerSettings, *, run_seed: int, role: str = "env", on_env: OnEnv | None = None
    ) -> EnvRunnerGroup:
        """Make the group that ``settings.num_env_runners`` asks for: 0 is one runner in this process.

        Args:
            settings: Which env, how many, how vectorised.
            run_seed: Seed of the run.
            role: ``"env"`` or ``"evaluation_env"``.
            on_env: Called with every vector env once it is made, in its process; if it raises, the env is closed.
        """
        if settings.num_env_runners:
            from rlmodule.groups.remote_env_runner_group import RemoteEnvRunnerGroup

            return RemoteEnvRunnerGroup(settings, run_seed=run_seed, role=role, on_env=on_env)
        return EnvRunnerGroup(settings, run_seed=run_seed, role=role, on_env=on_env)

    def build_modules(self, spec: RLModuleSpec, learner_module: RLModule) -> None:
        """Have the runners act with the weights of ``learner_module``, which ``spec`` describes."""
        self.module = spec.build(inference_only=True)
        self.module.share_tensors_of(learner_module)
        self._tensors = [*self.module.parameters(), *self.module.buffers()]
        self._act_with(spec)

    def _act_with(self, spec: RLModuleSpec) -> None:
        """Have the runners act with the weights of :attr:`module`."""
        self._has_copies = self._runner.device != self._tensors[0].device
        copies = spec.build(inference_only=True).to(self._runner.device) if self._has_copies else self.module
        self._runner.set_module(copies)

    def _weights_changed(self, policy_version: int) -> bool:
        """Whether the weights have changed since the last call."""
        before = self._version
        self._version = policy_version, sum(x._version for x in self._tensors)  # as torch counts changes in place
        return self._version != before

    @property
    def local_runner(self) -> EnvRunner:
        """The runner in this process.

        Raises:
            RuntimeError: If there is none.
        """
        return self._runner

    def sample(self, num_steps: int, *, explore: bool = True, policy_version: int = 0) -> list[Rollout]:
        """Sample a rollout of ``num_steps`` rows per runner; returns them in order of their envs. There is none of a
        runner that fails meanwhile, but at least one in all.

        If it raises, which includes what the runner in this process raises, the steps of rollouts that are ready are
        counted as lost, and new episodes start.

        Raises:
            WorkerFailed: If a runner in another process fails for good and that is not ignored, or all have.
        """
        if self._has_copies and self._weights_changed(policy_version):
            self._runner.module.set_state(self.module.get_state())
        rollout = self._runner.sample(num_steps, explore=explore, policy_version=policy_version)
        self.num_env_steps_lost.update(rollout.stats.get("num_env_steps_lost", {}))
        return [rollout]

    def reset(self) -> None:
        """Have every runner begin new episodes with its next call."""
        self._runner.reset()

    def report(self) -> dict[str, Any]:
        """The runners' part of a result's ``workers``; nothing where no process can fail and no step was lost."""
        can_lose = self.num_env_steps_lost or self._settings.restart_failed_sub_environments
        return self._lost_steps() if can_lose else {}

    def get_counters(self) -> dict[str, Any]:
        """Return what was counted in the whole run, in this process or in others."""
        return {
            "num_env_steps_lost": dict(self.num_env_steps_lost),
            "num_env_runner_restarts": self._processes.num_restarts,
            "num_weight_bytes_sent": self._processes.num_bytes_shared,
        }

    def set_counters(self, counters: Mapping[str, Any]) -> None:
        """Restore what :meth:`get_counters` gave."""
        self.num_env_steps_lost.clear()
        self.num_env_steps_lost.update(counters["num_env_steps_lost"])
        self._processes.num_restarts = counters["num_env_runner_restarts"]
        self._processes.num_bytes_shared = counters["num_weight_bytes_sent"]

    def get_state(self) -> State:
        """Return the state of each env that the run has or ever had, by global index; wait for runners that
        restart."""
        return self._with_the_rest(self._runner.get_state())

    def set_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore what :meth:`get_state` gave, even with another number of runners or envs: each env continues its own
        random streams, new ones begin theirs, and the states of others are kept for when they return. Rollouts from
        before are dropped."""
        self._keep_the_rest(state, 1)
        envs = map(str, range(self._settings.num_envs_per_env_runner))
        self._runner.set_state({env: dict(state[env]) for env in envs if env in state})

    def _keep_the_rest(self, state: Mapping[str, Mapping[str, Any]], num_runners: int) -> None:
        """Keep what none of ``num_runners`` continues: the states of envs that none has, and generators of envs that
        are not the first of a runner."""
        num_envs, self._at_rest = self._settings.num_envs_per_env_runner, {}
        for env, one in state.items():
            if int(env) >= num_runners * num_envs:
                self._at_rest[env] = dict(one)
            elif int(env) % num_envs and "generator" in one:
                self._at_rest[env] = {"generator": one["generator"]}

    def _with_the_rest(self, state: Mapping[str, Mapping[str, Any]]) -> State:
        """``state`` of the runners, and what :meth:`_keep_the_rest` kept."""
        return self._at_rest | {env: self._at_rest.get(env, {}) | dict(one) for env, one in state.items()}

    def _lost_steps(self) -> dict[str, Any]:
        """Steps that were lost, as :meth:`report` has them."""
        lost = self.num_env_steps_lost
        total = {"num_env_steps_lost_lifetime": sum(lost.values())}
        return total | {"num_env_steps_lost_by_cause": dict(lost)} if lost else total

    def stop(self) -> None:
        """Close all envs, and end the processes."""
        self._runner.stop()
