"""EnvRunnerGroup: the env runners of a run, in this process or each in one of its own."""

from __future__ import annotations

import functools
import glob
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import monotonic, perf_counter
from typing import Any
from uuid import uuid4

import gymnasium as gym
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv
from torch import Tensor

from catalog.errors import explain_error
from rlmodule.data.rollout import Rollout
from rlmodule.distributed.processes import file_prefix, remove_leftovers, this_machine
from rlmodule.distributed.resources import room_remedy
from rlmodule.distributed.workers import Answer, Failure, LocalWorkers, RestartPolicy, WorkerFailed, WorkerGroup
from rlmodule.envs.make import spec_to_send
from rlmodule.envs.shared_counter import SharedCounter
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.sampling.env_runner import EnvRunner
from rlmodule.sampling.random_streams import last_incarnation
from rlmodule.sampling.tensor_env_runner import TensorEnvRunner, make_env_runner
from rlmodule.settings import RunnerGroupSettings, RunnerSettings, subset

OnEnv = Callable[[VectorEnv[Any, Any, Any]], None]

MOMENT_S = 1.0
"""Seconds after which a runner that ended has been noticed, whatever else happens."""


class EnvRunnerGroup:
    """The env runners of a run.

    With ``num_env_runners=0`` there is one, in this process, which acts with the very tensors of the learner. Otherwise
    there are as many processes on Ray, to which the weights are sent when they changed. Env ``i`` of runner ``k`` is
    env ``k * num_envs_per_env_runner + i`` of the run wherever it is stepped, and so are its random streams.

    A runner that fails is made again while the others go on, as the settings of ``fault_tolerance`` say.

    Args:
        settings: Which env, how many, how vectorised.
        run_seed: Seed of the run.
        role: ``"env"`` or ``"evaluation_env"``.
        on_env: Told of every vector env once it is made, in the process that has it; if it raises, that is closed.

    Attributes:
        observation_space, action_space: Of one env.
        module: What acts, with the weights of the learner's module; there is none before :meth:`build_modules`.
        num_env_steps_lost: By cause: steps that envs made, of which no rollout tells.
        seconds_waited: For runners, in all.
        seconds_sending: Of weights to runners, in all: to pack them and to hand them to Ray.
    """

    module: RLModule

    def __init__(
        self, settings: RunnerGroupSettings, *, run_seed: int, role: str = "env", on_env: OnEnv | None = None
    ) -> None:
        self._settings = settings
        self.num_env_steps_lost: Counter[str] = Counter()
        self.seconds_waited = self.seconds_sending = 0.0
        self._step_counts: dict[int, _StepsOfRunner] = {}
        self._lost_for_good: WorkerFailed | None = None
        self._counter_prefix: str | None = None
        self._at_rest: dict[str, dict[str, Any]] = {}  # by env, what was saved of it and no runner goes on with here
        self._since = object()  # another one after each state that was set
        self.workers: WorkerGroup
        if settings.num_env_runners == 0:
            runner = make_env_runner(settings, run_seed=run_seed, role=role, on_env=on_env)
            self.workers = LocalWorkers("env runner", [runner])
            self.observation_space, self.action_space = runner.observation_space, runner.action_space
        else:
            try:
                self.workers = self._start_processes(run_seed, role, on_env)
            except BaseException:
                self._remove_counters()  # of those that could be made
                raise
            for worker in range(self.workers.size):
                self._watch(worker)
            try:
                spaces = self.workers.values(self.workers.call("get_spaces", workers=[0]))
            except BaseException:
                self.stop()
                raise
            self.observation_space, self.action_space = spaces[0]
        self._spec: RLModuleSpec | None = None
        self._shared: Any = None
        self._version: tuple[int, ...] = ()
        self._held: dict[int, tuple[int, tuple[int, ...]]] = {}  # incarnation and version of the weights, by runner

    def _start_processes(self, run_seed: int, role: str, on_env: OnEnv | None) -> WorkerGroup:
        from rlmodule.distributed.ray_workers import RayWorkers
        from rlmodule.distributed.serialization import check_portable

        settings = self._settings
        env_spec = None if settings.env is None else spec_to_send(settings.env)
        travels = {"env": settings.env, "env_config": settings.env_config, "on_environment_created": on_env}
        travels[f"what is registered as env {settings.env!r}"] = env_spec
        for name, value in travels.items():
            check_portable(f"num_env_runners={settings.num_env_runners}, {name}", value)
        remove_leftovers(_memory_folder())
        self._counter_prefix = os.path.join(_memory_folder(), f"{file_prefix()}{uuid4().hex}")
        facts = subset(settings, RunnerSettings)
        return RayWorkers(
            "env runner",
            settings.num_env_runners,
            functools.partial(
                _RunnerActor, facts, env_spec, run_seed, role, on_env, self._counter_prefix, this_machine()
            ),
            num_cpus=settings.num_cpus_per_env_runner,
            timeout_s=settings.env_step_timeout_s,
            policy=RestartPolicy(settings.restart_failed_env_runners, settings.max_restarts_in_a_row),
        )

    def build_modules(self, spec: RLModuleSpec, learner_module: RLModule) -> None:
        """Let the runners act as ``learner_module`` does, of which ``spec`` is the spec."""
        self.module = spec.build(inference_only=True)
        self.module.share_tensors_of(learner_module)
        self._tensors = [*self.module.parameters(), *self.module.buffers()]
        self._spec = spec
        if self.workers.shares_memory:
            runner = self.local_runner
            is_here = runner.device == self._tensors[0].device
            # the same tensors, or copies beside the envs
            runner.set_module(self.module if is_here else spec.build(inference_only=True).to(runner.device))

    @property
    def local_runner(self) -> EnvRunner | TensorEnvRunner:
        """The runner in this process.

        Raises:
            RuntimeError: If there is none.
        """
        if not isinstance(self.workers, LocalWorkers):
            remedy = "Set num_env_runners=0 to have one here, for example to debug an env."
            where, got = "EnvRunnerGroup.local_runner", f"{self.workers.size} runners in processes of their own"
            raise RuntimeError(explain_error(where, expected="a runner in this process", got=got, remedy=remedy))
        return self.workers.workers[0]

    # --- sampling -----------------------------------------------------------------------------------------------------

    def sample(self, num_steps: int, *, explore: bool = True, policy_version: int = 0) -> Iterator[Rollout]:
        """Rollouts of ``num_steps`` rows, one per runner, as they are ready; none of a runner that fails meanwhile, but
        at least one in all.

        A state that is set meanwhile ends it.

        Raises:
            WorkerFailed: If a runner fails for good and that is not ignored, or all have.
            Exception: What the runner in this process raises.
        """
        if self.workers.shares_memory:
            if self.local_runner.module is not self.module and self._weights_changed(policy_version):
                self.local_runner.module.set_state(self.module.get_state())
            runner = self.local_runner
            lost_before = Counter(runner.num_env_steps_lost)
            try:
                rollout = runner.sample(num_steps, explore=explore, policy_version=policy_version)
            except BaseException:
                self.num_env_steps_lost += Counter(runner.num_env_steps_lost) - lost_before
                raise
            if lost := rollout.stats.get("num_env_steps_lost"):
                self.num_env_steps_lost.update(lost)
            yield rollout
            return
        if self._lost_for_good is not None:
            raise self._lost_for_good
        asked = delivered = False
        since = self._since
        if self._weights_changed(policy_version):
            start = perf_counter()
            self._shared = self.workers.share(self.module.get_state())
            self.seconds_sending += perf_counter() - start
        while True:
            start = perf_counter()
            # at first, take what is left of a call that failed, or was not taken to its end
            answers = iter(self.workers.collect(None if asked else 0.0))
            self.seconds_waited += perf_counter() - start
            try:
                for answer in answers:
                    if (rollout := self._rollout_of(answer)) is not None:
                        delivered = True
                        yield rollout
                        if since is not self._since:
                            return
            finally:
                if since is self._since:
                    self.workers.keep(answers)
            runners = range(self.workers.size)
            busy = any(self.workers.in_flight(i) for i in runners)
            if asked and delivered and not busy:
                return
            if not asked or not busy:
                for worker in runners:
                    if self.workers.is_up(worker) and not self.workers.in_flight(worker):
                        self._ask(worker, num_steps, explore, policy_version)
                asked = True

    def _ask(self, worker: int, num_steps: int, explore: bool, policy_version: int) -> None:
        incarnation, version = self.workers.incarnation(worker), self._version
        known_incarnation, known_version = self._held.get(worker, (-1, ()))
        is_new = known_incarnation != incarnation
        if is_new:
            self._watch(worker)
        self._step_counts[worker].most = num_steps * self._settings.num_envs_per_env_runner
        self._held[worker] = incarnation, version
        args = (num_steps, explore, policy_version, self._spec if is_new else None)
        shared = self._shared if is_new or known_version != version else None
        start = perf_counter()
        self.workers.submit(worker, "sample", *args, shared=shared)
        self.seconds_sending += 0.0 if shared is None else perf_counter() - start

    def _watch(self, worker: int) -> None:
        """Read the step counter of the runner that is there now."""
        incarnation, known = self.workers.incarnation(worker), self._step_counts.get(worker)
        if known is None or known.incarnation != incarnation:
            self._step_counts[worker] = _StepsOfRunner(f"{self._counter_prefix}-{worker}", incarnation)
            if known is not None:
                known.close()

    def _weights_changed(self, policy_version: int) -> bool:
        """Whether the weights are not those of the last call."""
        before = self._version
        self._version = policy_version, sum(x._version for x in self._tensors)  # as torch counts changes in place
        return self._version != before

    def _rollout_of(self, answer: Answer) -> Rollout | None:
        step_counter = self._step_counts[answer.worker]
        if answer.failure is not None:
            if steps := step_counter.take_lost():
                self.num_env_steps_lost[f"runner_{answer.failure.kind}"] += steps
            self._replace(answer.worker, answer.failure)
            return None
        if not isinstance(rollout := answer.value, Rollout):
            return None  # an answer to another call, whose caller was interrupted
        lost: Mapping[str, int] = rollout.stats.get("num_env_steps_lost", {})
        self.num_env_steps_lost.update(lost)
        step_counter.told += rollout.num_env_steps + sum(lost.values())
        return rollout

    def _replace(self, worker: int, failure: Failure) -> None:
        """Go on after a failure, if the settings say so; a worker that did not just raise is being replaced already."""
        settings = self._settings
        goes_on = settings.restart_failed_env_runners or settings.ignore_env_runner_failures
        if failure.type == ModuleFailed.__name__:
            remedy = "Mend the module or its catalog: num_env_runners=0 debugs them here."
            self._lost_for_good = WorkerFailed(f"env runner {worker}", failure, remedy)
            raise self._lost_for_good
        if failure.kind == "raised" and self.workers.is_up(worker):
            if not goes_on:  # as in this process: the runner itself is sound, and could begin new episodes
                remedy = f"{self._cure_of(failure, [])}num_env_runners=0 debugs it here."
                raise WorkerFailed(f"env runner {worker}", failure, remedy)
            failure = self.workers.restart_later(worker, failure)
        if not failure.final:
            return
        if settings.ignore_env_runner_failures and any(not self.workers.is_gone(i) for i in range(self.workers.size)):
            return
        others = self._left()
        remedy = "Let runners be replaced, .fault_tolerance(restart_failed_env_runners=True)"
        if settings.restart_failed_env_runners:
            remedy = f"It failed {settings.max_restarts_in_a_row + 1} times in a row"
        number = "1 other runner is" if len(others) == 1 else f"{len(others)} other runners are"
        left = f"; {number} left" if others else "; all env runners are lost"
        remedy += f"{left}. {self._cure_of(failure, others)}num_env_runners=0 debugs it here; "
        remedy += "from_checkpoint(path) goes on from the last checkpoint."
        self._lost_for_good = WorkerFailed(f"env runner {worker}", failure, remedy)
        raise self._lost_for_good

    def _left(self) -> list[int]:
        """The runners that are not gone, after a moment to notice those that ended together with another."""
        deadline, answers = monotonic() + MOMENT_S, list[Answer]()
        while any(map(self.workers.in_flight, range(self.workers.size))) and (left := deadline - monotonic()) > 0:
            answers += self.workers.collect(left)
        self.workers.keep(answers)
        return [i for i in range(self.workers.size) if not self.workers.is_gone(i)]

    def _cure_of(self, failure: Failure, others: Sequence[int]) -> str:
        """Which settings may help after ``failure``, in sentences."""
        if failure.kind == "unplaced":
            return f"{room_remedy('env runner')} "
        cure = ""
        if failure.kind == "hung":
            cure = "If a step or a reset may take that long, raise .env_runners(env_step_timeout_s=...). "
        if failure.kind == "raised" and not self._settings.restart_failed_sub_environments:
            cure = "Mend the env, or let only the one that raises be made anew: "
            cure += ".fault_tolerance(restart_failed_sub_environments=True). "
        if others:
            cure += "To do without the runner: .fault_tolerance(ignore_env_runner_failures=True). "
        return cure

    # --- the rest -----------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Let every runner begin new episodes with its next call."""
        self._call_all("reset", dict.fromkeys(range(self.workers.size), ()))

    @property
    def num_healthy(self) -> int:
        """Runners that can be called."""
        return sum(self.workers.is_up(i) for i in range(self.workers.size))

    def _envs_of(self, worker: int) -> range:
        num_envs = self._settings.num_envs_per_env_runner
        return range(worker * num_envs, (worker + 1) * num_envs)

    def get_state(self) -> dict[str, Any]:
        """By global index, the state of each env that there is or ever was in the run; waits for runners that are being
        made again."""
        told = self._call_all("get_state", dict.fromkeys(range(self.workers.size), ()))
        state = dict(self._at_rest)
        for worker in range(self.workers.size):
            # of one that is gone no more than that another must not repeat what it did
            gone = {str(env): {"incarnation": self.workers.incarnation(worker) + 1} for env in self._envs_of(worker)}
            state |= {env: self._at_rest.get(env, {}) | one for env, one in told.get(worker, gone).items()}
        return state

    def set_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore what :meth:`get_state` gave, also of another number of runners or envs: each env goes on with its own
        random streams, those that are new begin theirs, and what is known of others is kept for when they come back.
        Rollouts from before are not handed out any more.
        """
        workers = range(self.workers.size)
        parts = {i: {str(env): state[str(env)] for env in self._envs_of(i) if str(env) in state} for i in workers}
        self._at_rest = self._left_over(state)
        self.workers.wait_until_up()
        restarted = [] if self.workers.shares_memory else self._restart_as(parts)
        self._call_all("set_state", {worker: (part,) for worker, part in parts.items()})
        for worker in restarted:  # which has no weights, also if one of its number had some
            self._held.pop(worker, None)
            self._step_counts.pop(worker).close()
            self._watch(worker)
        self._since = object()
        self._lost_for_good = None
        # what was called before this has come by now, since each runner answers in order
        for answer in self.workers.collect(0.0):
            if answer.failure is not None and self.workers.is_gone(answer.worker):
                self._replace(answer.worker, answer.failure)
        for step_counter in self._step_counts.values():
            step_counter.take_lost()  # steps of what is not handed out, which nobody shall count later

    def _left_over(self, state: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """What no runner here goes on with: envs that there are no more, and generators of those that are not the first
        of a runner."""
        num_envs, left = self._settings.num_envs_per_env_runner, dict[str, dict[str, Any]]()
        for env, one in state.items():
            if int(env) >= self.workers.size * num_envs:
                left[env] = dict(one)
            elif int(env) % num_envs and "generator" in one:
                left[env] = {"generator": one["generator"]}
        return left

    def _restart_as(self, parts: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> list[int]:
        """Make those runners again that are gone, or of another incarnation than goes on with these envs."""
        restarts, restarted = self.workers.num_restarts, list[int]()
        for worker, part in parts.items():
            incarnation = last_incarnation(part.values())
            if incarnation != self.workers.incarnation(worker) or self.workers.is_gone(worker):
                self._remove_counters(str(worker))  # of which one may have the name that is needed now
                self.workers.restart(worker, incarnation)
                restarted.append(worker)
        self.workers.num_restarts = restarts  # which tells of accidents
        return restarted

    def _call_all(self, method: str, args: Mapping[int, tuple[Any, ...]]) -> dict[int, Any]:
        """Call the runners that ``args`` has arguments for, but those that are gone; who dies is called again once it
        is back. Returns what they return.

        Raises:
            WorkerFailed: If one raises, which it would do again; or is lost for good, as by :meth:`sample`.
        """
        values: dict[int, Any] = {}
        while True:
            self.workers.wait_until_up()
            called = [i for i in args if i not in values and not self.workers.is_gone(i)]
            if not called:
                return values
            for answer in self.workers.answers([self.workers.submit(i, method, *args[i]) for i in called]):
                if answer.failure is None:
                    values[answer.worker] = answer.value
                elif answer.failure.kind == "raised":
                    remedy = f"See the traceback below: {method}() raises."
                    raise WorkerFailed(f"env runner {answer.worker}", answer.failure, remedy)
                else:
                    self._replace(answer.worker, answer.failure)

    def stop(self) -> None:
        """Close all envs, and end the processes."""
        self.workers.stop()
        for step_counter in self._step_counts.values():
            step_counter.close()
        self._remove_counters()

    def _remove_counters(self, worker: str = "*") -> None:
        """Remove those of runners that were made and never looked at."""
        if self._counter_prefix is not None:
            for path in glob.glob(f"{self._counter_prefix}-{worker}-*"):
                os.unlink(path)


class ModuleFailed(RuntimeError):
    """The module that a runner acts with cannot be made there, or not with these weights; it would fail again."""


class _RunnerActor:
    """An env runner as it is in a process of its own: with weights that come by letter.

    Args:
        settings: Those of the runner.
        env_spec: Of the env, if it has an id, which may be registered in the driver alone.
        run_seed, role, on_env: See :class:`EnvRunner`.
        counter_prefix: Beginning of the path of its step counter.
        machine: Where the counter is read; on another machine it is in no file, since nobody would remove that.
        index: Which runner.
        incarnation: How often it was made before.
    """

    def __init__(
        self,
        settings: RunnerSettings,
        env_spec: EnvSpec | None,
        run_seed: int,
        role: str,
        on_env: OnEnv | None,
        counter_prefix: str,
        machine: str,
        index: int,
        incarnation: int,
    ) -> None:
        if env_spec is not None:
            gym.registry.setdefault(env_spec.id, env_spec)
        is_read = machine == this_machine()
        self._step_counter = (
            SharedCounter.create(f"{counter_prefix}-{index}-{incarnation}") if is_read else SharedCounter()
        )
        self._runner = make_env_runner(
            settings,
            run_seed=run_seed,
            first_env_index=index * settings.num_envs_per_env_runner,
            role=role,
            on_env=on_env,
            incarnation=incarnation,
            step_counter=self._step_counter,
        )

    @property
    def progress(self) -> int:
        return self._runner.progress

    def get_spaces(self) -> tuple[Any, Any]:
        return self._runner.observation_space, self._runner.action_space

    def sample(
        self,
        num_steps: int,
        explore: bool,
        policy_version: int,
        spec: RLModuleSpec | None,
        weights: Mapping[str, Tensor] | None = None,
    ) -> Rollout:
        """As :meth:`EnvRunner.sample`, after taking over ``weights``; ``spec`` comes with the first call."""
        try:
            if spec is not None:
                with torch.random.fork_rng(devices=[]):
                    self._runner.set_module(spec.build(inference_only=True).to(self._runner.device))
            if weights is not None:
                self._runner.module.set_state(weights)
        except Exception as error:
            raise ModuleFailed(f"{type(error).__name__}: {error}") from error
        return self._runner.sample(num_steps, explore=explore, policy_version=policy_version)

    def reset(self) -> None:
        self._runner.reset()

    def get_state(self) -> dict[str, Any]:
        return self._runner.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._runner.set_state(state)

    def stop(self) -> None:
        self._runner.stop()


class _StepsOfRunner:
    """What is known here of the steps of a runner elsewhere.

    Args:
        path: Of the step counters of this runner, without the incarnation.
        incarnation: Of the runner.

    Attributes:
        told: Steps that its rollouts accounted for.
        most: Steps that can be in flight.
    """

    def __init__(self, path: str, incarnation: int) -> None:
        self.incarnation, self.told, self.most = incarnation, 0, 0
        self._step_counter = SharedCounter.attach(f"{path}-{incarnation}")

    def take_lost(self) -> int:
        """Steps that it made and did not tell of, each once: exactly, or if it is on another machine, at most so
        many."""
        if self._step_counter is None:
            lost, self.most = self.most, 0
        else:
            lost, self.told = self._step_counter.count - self.told, self._step_counter.count
        return lost

    def close(self) -> None:
        if self._step_counter is not None:
            self._step_counter.close()


def _memory_folder() -> str:
    return "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
