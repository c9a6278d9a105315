"""RemoteEnvRunnerGroup: env runners in other processes, on Ray."""

from __future__ import annotations

import functools
import glob
import math
import os
import socket
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any
from uuid import uuid4

from rlmodule.data.rollout import Rollout
from rlmodule.distributed.failures import Failure, WorkerFailed
from rlmodule.distributed.interrupts import uninterrupted
from rlmodule.distributed.processes import SHARED_FOLDER, file_prefix
from rlmodule.distributed.ray_workers import Answer, RayWorkers, wait_for_any
from rlmodule.distributed.resources import room_remedy
from rlmodule.distributed.restarts import RestartPolicy
from rlmodule.distributed.serialization import check_portable
from rlmodule.envs.make import check_alike, spec_to_send
from rlmodule.envs.shared_counter import SharedCounter
from rlmodule.groups.env_runner_group import EnvRunnerGroup, Spec, State, runner_class_for
from rlmodule.groups.runner_actor import ModuleFailed, PolicyChanges, RunnerActor, Weights
from rlmodule.modules.rl_module import MultiRLModule, RLModule
from rlmodule.modules.spec import MultiRLModuleSpec
from rlmodule.sampling.env_runner import EnvRunner, OnEnv
from rlmodule.sampling.random_streams import last_incarnation
from rlmodule.settings import RunnerSettings


@dataclass
class _Known:
    """The state of a runner in another process, as this process knows it.

    Attributes:
        incarnation: Number of times the runner was restarted.
        counter: The counter of its env steps; None if the runner is on another machine.
        accounted: Number of its env steps that are in rollouts or were counted as lost.
        most: Largest number of env steps that each of its unanswered calls can take.
        unanswered: Number of its calls for a rollout that were not answered yet.
        sending: Number of the sending from which it has its weights; 0 before its first call.
        modules: For a multi-agent env, its modules by id. Each comes with the version of its weights if it is not
            trained, otherwise with 0.
        policies: The arguments of :meth:`EnvRunnerGroup.set_policies` that it last received.
    """

    incarnation: int
    counter: SharedCounter | None
    accounted: int = 0
    most: int = 0
    unanswered: int = 0
    sending: int = 0
    modules: dict[str, tuple[RLModule, int]] = field(default_factory=dict)
    policies: PolicyChanges | None = None

    def take_lost(self) -> int:
        """Return the number of env steps lost since the last call; call this for each failure. If the runner is on
        another machine, return an upper bound, which is 0 if it failed without a call, such as while it was built."""
        if self.counter is None:
            return self.most if self.unanswered > 0 else 0
        lost, self.accounted = self.counter.count - self.accounted, self.counter.count
        return lost


MOMENT_S = 1.0
"""Seconds to wait after a failure, to notice other processes that fail at the same time."""


class RemoteEnvRunnerGroup(EnvRunnerGroup):
    """Env runners in other processes, which receive the weights whenever the weights have changed.

    A runner that fails is restarted while the other runners continue, if the settings of ``fault_tolerance`` allow it.

    Args:
        settings, run_seed, role, on_env: See :meth:`EnvRunnerGroup.create`.

    Attributes:
        workers: The runner processes.
        seconds_sending: Total seconds in which weights were packed and passed to Ray.
        seconds_idle: Total seconds for which runners waited for the next call, summed over the runners.
    """

    def __init__(
        self, settings: RunnerSettings, *, run_seed: int, role: str = "env", on_env: OnEnv | None = None
    ) -> None:
        super().__init__(settings)
        self.seconds_sending = self.seconds_idle = 0.0
        max_restarts = settings.max_restarts_in_a_row if settings.restart_failed_env_runners else 0
        self._restarts = RestartPolicy(max_restarts, may_lose=settings.ignore_env_runner_failures)
        self._lost_for_good: WorkerFailed | None = None
        self._spec: Spec | None = None
        self._policies: PolicyChanges | None = None
        self._num_sendings = 0  # how often the weights were packed, since they had changed
        self._shared: Any = None  # the last sending
        self._asked: tuple[int, bool, int] | None = None  # the arguments of ask() until its rollouts are taken
        # the runners; those that were asked for a rollout least recently come first, if there is not enough for all
        self._order = [*range(settings.num_env_runners)]
        self._enough = 0  # number of rollouts that the last call of has() or take() asked for; 0 for all
        self._counter_prefix = os.path.join(SHARED_FOLDER, f"{file_prefix()}{uuid4().hex}")
        self._known: dict[int, _Known] = {}
        with ExitStack() as undo:
            undo.callback(self._remove_counters)  # some runners may have been built
            self.workers = self._start_processes(run_seed, role, on_env)
            undo.callback(self.workers.stop)
            found = self._call_all("get_spaces")
            self.observation_space, self.action_space = found[0]
            for worker, spaces in found.items():
                check_alike(f"env runner {worker}, spaces", spaces, "env runner 0", found[0])
            undo.pop_all()

    def _start_processes(self, run_seed: int, role: str, on_env: OnEnv | None) -> RayWorkers:
        """Start the runner processes. The arguments are those of :meth:`create`. Raise TypeError if a setting cannot be
        pickled."""
        settings, settings_sent = self._settings, self._settings.for_runners()
        env_spec = None if settings.env is None or settings.is_multi_agent else spec_to_send(settings.env)
        sent = {"env": settings.env, "env_config": settings.env_config, "on_environment_created": on_env}
        sent[f"what is registered as env {settings.env!r}"] = env_spec
        if settings.is_multi_agent:
            sent["policy_mapping_fn"] = settings_sent.policy_mapping_fn
            sent["policies_to_train"] = settings_sent.is_trained
        for name, value in sent.items():
            check_portable(f"num_env_runners={settings.num_env_runners}, {name}", value)
        make = functools.partial(runner_class_for(settings), settings_sent, run_seed=run_seed, role=role, on_env=on_env)
        prefix, host = self._counter_prefix, socket.gethostname()
        return RayWorkers(
            "env runner",
            settings.num_env_runners,
            functools.partial(RunnerActor, make, settings.num_envs_per_env_runner, env_spec, prefix, host),
            num_cpus=settings.num_cpus_per_env_runner,
            timeout_s=settings.env_step_timeout_s,
            restarts=self._restarts,
            accounts=self.accounts,
        )

    def _known_of(self, worker: int) -> _Known:
        """Return the state of the current incarnation of a runner. If the incarnation is new, attach its step
        counter."""
        incarnation, known = self.workers.incarnation(worker), self._known.get(worker)
        if known is None or known.incarnation != incarnation:
            counter = SharedCounter.attach(f"{self._counter_prefix}-{worker}-{incarnation}")
            self._known[worker] = known = _Known(incarnation, counter)
        return known

    def _act_with(self, spec: Spec) -> None:
        self._spec = spec  # sent with the first rollout of each process, which builds the module from it
        self._first_modules = dict(self.module.items()) if isinstance(self.module, MultiRLModule) else {}

    def _follow(self, spec: MultiRLModuleSpec, trained: Collection[str], mapping_fn: Callable[..., str] | None) -> None:
        check_portable(f"num_env_runners={self._settings.num_env_runners}, policy_mapping_fn", mapping_fn)
        self._policies = PolicyChanges(spec, trained, mapping_fn)

    def _news_for(self, known: _Known) -> PolicyChanges | None:
        """Return the changes to the modules of a multi-agent env that a runner has not received yet, or None if it has
        received all."""
        now = self._policies
        if now is None:
            return None
        if known.policies is None:
            known.modules = {name: (module, -1) for name, module in self._first_modules.items()}
        modules: dict[str, tuple[RLModule, int]] = {}
        specs, states = {}, {}
        for name, module in self.module.items():
            version = 0
            if name not in now.trained:
                # Weights of trained modules are sent with each rollout. Those of others are sent when they change, as
                # the version counters of their tensors show.
                version = sum(x._version for x in module.state_dict().values())
                if known.modules.get(name) != (module, version):
                    states[name] = module.get_state()
            if name not in known.modules or known.modules[name][0] is not module:
                specs[name] = now.spec.rl_module_specs[name]
            modules[name] = module, version
        removed = [name for name in known.modules if name not in modules or name in specs]
        known.modules = modules
        if known.policies is now and not states:
            return None
        known.policies = now
        return replace(now, spec=MultiRLModuleSpec(specs), removed=removed, states=states)

    @property
    def local_runner(self) -> EnvRunner:
        raise RuntimeError(
            f"EnvRunnerGroup.local_runner: expected a runner in this process, got {self._settings.num_env_runners} "
            "runners in other processes. Set num_env_runners=0, for example to debug an env."
        )

    @property
    def processes(self) -> list[RayWorkers]:
        return [self.workers]

    # --- sampling -----------------------------------------------------------------------------------------------------

    def sample(self, num_steps: int, *, explore: bool = True, policy_version: int = 0) -> list[Rollout]:
        try:
            self.ask(num_steps, explore=explore, policy_version=policy_version)
            return self.take()
        except BaseException as error:
            if self.held or isinstance(error, Exception):  # else they are on their way: the next call takes them
                self._drop_asked()
            raise

    def ask(self, num_steps: int, *, explore: bool = True, policy_version: int = 0, in_flight: int = 1) -> None:
        self._raise_if_lost()
        with uninterrupted():  # Ctrl-C raises at the end, once every env step is counted
            self._pack_weights(policy_version)
            self._asked = num_steps, explore, in_flight
            for _ in range(in_flight):  # each call brings one answer of a runner
                self._hold_answers(timeout=0.0)
            self._top_up()

    def _pack_weights(self, policy_version: int) -> None:
        """Pack the weights for the runners, if they or their version have changed since the last call."""
        if not self._weights_changed(policy_version):
            return
        start = perf_counter()
        sent = self.module
        if self._policies is not None:  # modules that only act are sent once
            sent = MultiRLModule({name: sent[name] for name in self._policies.trained})
        self._num_sendings += 1
        self._shared = self.workers.share(Weights(self._num_sendings, policy_version, sent.get_state()))
        self.seconds_sending += perf_counter() - start

    def post_weights(self, policy_version: int) -> None:
        with uninterrupted():
            self._pack_weights(policy_version)
            start = perf_counter()
            for worker, known in self._known.items():
                # A runner that is idle, or that does not have all modules yet, gets the weights with its next call.
                has_modules = known.sending and known.policies is self._policies
                if has_modules and known.sending < self._num_sendings and self.workers.in_flight(worker):
                    known.sending = self._num_sendings
                    self.workers.post(worker, self._shared)
            self.seconds_sending += perf_counter() - start

    @property
    def is_asked(self) -> bool:
        return self._asked is not None or bool(self.held)

    def has(self, count: int) -> bool:
        self._raise_if_lost()
        self._enough = count
        with uninterrupted():
            self._hold_answers(timeout=0.0)  # those that arrived during other calls
            if len(self.held) < count:
                self._top_up()
        return len(self.held) >= count

    def take(self, count: int | None = None) -> list[Rollout]:
        if count is not None:
            while not self.has(count):
                wait_for_any(self.workers)
            return self._release(count)
        self._raise_if_lost()
        self._enough = 0
        with uninterrupted():
            self.finish()
            # Runners are asked again only if none of them returned a rollout. Runners that are restarted meanwhile are
            # asked then too.
            while not self.held:
                self._top_up()
                self._hold_answers()
                self.finish()
        self._asked = None
        return self._release(None)

    def finish(self) -> None:
        if self._asked is None:
            return
        with uninterrupted():
            self._hold_answers(timeout=0.0)  # those that arrived during other calls
            while any(map(self.workers.in_flight, range(self.workers.size))):
                self._hold_answers()

    def _raise_if_lost(self) -> None:
        """Raise if a runner failed for good, and the settings do not allow the run to continue."""
        if self._lost_for_good is not None:
            raise self._lost_for_good

    def _drop_asked(self) -> None:
        """Forget what was asked for. If rollouts have arrived, let every runner begin new episodes, and count the steps
        of these rollouts and of those on their way as lost."""
        self._asked = None
        if not self.held:
            return
        if self._lost_for_good is None:  # if it is set, no rollout will follow
            with suppress(Exception):  # the error that is being raised is more important
                self.reset()
                self._hold_answers(timeout=0.0)  # which arrived before those of reset()
        self.num_env_steps_lost["not_learned"] += sum(rollout.num_env_steps for rollout in self.held)
        self.held = []

    def _hold_answers(self, timeout: float | None = None) -> None:
        """Wait for answers of runners, at most ``timeout`` seconds if that is given. Hold their rollouts, and restart
        the runners that failed."""
        answers = iter(self.workers.collect(timeout))
        try:
            for answer in answers:
                if (rollout := self._rollout_of(answer)) is not None:
                    self.held.append(rollout)
        finally:
            self.workers.keep(answers)  # answers after one for which an error is raised

    def _top_up(self) -> None:
        """Ask each runner that is up for as many rollouts as :meth:`ask` said. But if :meth:`take` is called with a
        count, no more are held or on their way together than it takes, and one per runner: with more of them, the
        weights that acted would be older."""
        assert self._asked is not None
        num_steps, explore, in_flight = self._asked
        size = self.workers.size
        on_their_way = len(self.held) + sum(map(self.workers.in_flight, self._order))
        most = max(self._enough, size) + size if self._enough else math.inf
        budget = most - on_their_way
        for worker in [*self._order] * in_flight:  # one each, and then another one
            busy = self.workers.in_flight(worker)
            if budget <= 0 or busy >= in_flight or not self.workers.is_up(worker):
                continue
            # A call that changes the policies comes behind no other, which would act with weights posted meanwhile.
            if not busy or self._known_of(worker).policies is self._policies:
                self._ask(worker, num_steps, explore)
                budget -= 1

    def _ask(self, worker: int, num_steps: int, explore: bool) -> None:
        """Ask a runner for a rollout. If it does not have the current weights yet, send the weights with the call."""
        self._order.remove(worker)
        self._order.append(worker)
        known = self._known_of(worker)
        known.most = num_steps * self._settings.num_envs_per_env_runner
        known.unanswered += 1
        shared = None if known.sending == self._num_sendings else self._shared
        spec = None if known.sending else self._spec
        known.sending = self._num_sendings
        start = perf_counter()
        news = self._news_for(known)
        self.workers.submit(worker, "sample", num_steps, explore, spec, news, shared=shared)
        self.seconds_sending += 0.0 if shared is None else perf_counter() - start

    def _rollout_of(self, answer: Answer) -> Rollout | None:
        """Return the rollout in ``answer``, or None if the call failed. Account for the env steps in both cases."""
        # _known_of() would forget a failed incarnation that was restarted already, and the steps it lost. It is needed
        # for the answer to a call before the first rollout, whose caller was interrupted.
        known = self._known.get(answer.worker) or self._known_of(answer.worker)
        if answer.failure is not None:
            if steps := known.take_lost():
                self.num_env_steps_lost[f"runner_{answer.failure.kind}"] += steps
            known.unanswered -= 1
            known.sending = min(known.sending, 1)  # a later sending may have been in a call that was not executed
            self._replace(answer.worker, answer.failure)
            return None
        if not isinstance(rollout := answer.value, runner_class_for(self._settings).rollout_class):
            return None  # the answer to another method, whose caller was interrupted
        lost: Mapping[str, int] = rollout.stats.get("num_env_steps_lost", {})
        self.num_env_steps_lost.update(lost)
        known.accounted += rollout.num_env_steps + sum(lost.values())
        known.unanswered -= 1
        self.seconds_idle += rollout.stats.get("env_runner_waited_s", 0.0)
        return rollout

    def _replace(self, worker: int, failure: Failure) -> None:
        """Continue after a failure if the settings allow it. If the runner raised, restart it.

        :class:`RayWorkers` itself restarts a worker whose process died or hung.

        Raises:
            WorkerFailed: If the settings do not allow the run to continue.
        """
        name, restarts = f"env runner {worker}", self._restarts
        if failure.type == ModuleFailed.__name__:
            remedy = "Fix the module or its catalog: num_env_runners=0 debugs them here."
            self._lost_for_good = WorkerFailed(name, failure, remedy)
            raise self._lost_for_good
        if failure.kind == "raised" and self.workers.is_up(worker):
            if not (
                restarts.max_in_a_row or restarts.may_lose
            ):  # as in this process: the runner still works, and the caller may sample again
                raise WorkerFailed(name, failure, f"{self._cure_of(failure)}num_env_runners=0 debugs it here.")
            failure = self.workers.restart_later(worker, failure)
        if not failure.final or restarts.goes_on_without_failed(self._num_left()):
            return
        self.workers.wait_until_up(timeout=MOMENT_S)  # other runners may fail at the same time
        num_left = self._num_left()
        remedy = "Let runners restart, .fault_tolerance(restart_failed_env_runners=True)"
        if restarts.max_in_a_row:
            remedy = f"It failed {restarts.max_in_a_row + 1} times in a row"
        remedy += f"; {num_left} of {self.workers.size} env runners are left. {self._cure_of(failure)}"
        if num_left:
            remedy += "To continue without it: .fault_tolerance(ignore_env_runner_failures=True). "
        remedy += "num_env_runners=0 debugs it here; from_checkpoint(path) continues from the last checkpoint."
        self._lost_for_good = WorkerFailed(name, failure, remedy)
        raise self._lost_for_good

    def _num_left(self) -> int:
        return sum(not self.workers.is_gone(worker) for worker in range(self.workers.size))

    def _cure_of(self, failure: Failure) -> str:
        """Return sentences about settings that may help after ``failure``, or an empty string."""
        if failure.kind == "unplaced":
            return f"{room_remedy('env runner')} "
        if failure.kind == "hung":
            return "If a step or a reset may take that long, raise .env_runners(env_step_timeout_s=...). "
        if failure.kind == "raised" and not self._settings.restart_failed_sub_environments:
            return "Fix the env, or restart it alone: .fault_tolerance(restart_failed_sub_environments=True). "
        return ""

    # --- the rest -----------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        self._call_all("reset")

    def recycle(self) -> None:
        """Do nothing: a worker overwrites a rollout as soon as it has sent it."""

    def report(self) -> dict[str, Any]:
        return self._lost_steps() | {
            "num_healthy_env_runners": self.num_healthy,
            "num_env_runner_restarts_lifetime": self.accounts.num_restarts,
            "num_weight_bytes_sent_lifetime": self.accounts.num_bytes_shared,
            "waited_for_env_runners_s": self.workers.seconds_waited,
            "sending_weights_s": self.seconds_sending,
            "env_runners_waited_s": self.seconds_idle,
        }

    @property
    def num_healthy(self) -> int:
        """Number of runners that can be called."""
        return sum(self.workers.is_up(i) for i in range(self.workers.size))

    def get_state(self) -> State:
        self.finish()
        known, num_envs = self._call_all("get_state"), self._settings.num_envs_per_env_runner
        state: State = {}
        for worker in range(self.workers.size):
            # A runner that is gone has lost its state. The next incarnation must not repeat its random streams.
            gone = {"incarnation": self.workers.incarnation(worker) + 1}
            envs = range(worker * num_envs, (worker + 1) * num_envs)
            state |= known.get(worker) or {str(env): gone for env in envs}
        return self._with_the_rest(state)

    def set_state(self, state: State) -> None:
        self.workers.wait_until_up()
        parts = self._split(state, self.workers.size)
        for worker, part in enumerate(parts):
            last = last_incarnation(part.values())
            self._known_of(worker).incarnation = self.workers.raise_incarnation(worker, last)
            if self.workers.is_gone(worker):
                self.workers.restart(worker)
        self._call_all("set_state", {worker: (part,) for worker, part in enumerate(parts)})
        self._lost_for_good = self._asked = None
        self.held = []
        # Each runner answers in order, so all earlier calls have been answered by now.
        for answer in self.workers.collect(0.0):
            if answer.failure is not None and self.workers.is_gone(answer.worker):
                self._replace(answer.worker, answer.failure)
        for known in self._known.values():
            known.unanswered = 0
            known.take_lost()  # the restored state replaces what was sampled so far, so its steps are not lost steps

    def _call_all(self, method: str, args: Mapping[int, tuple[Any, ...]] | None = None) -> dict[int, Any]:
        """Call a method of the runners in ``args``, except runners that are gone. If a runner dies and is restarted,
        call it again.

        Args:
            method: Name of the method.
            args: The arguments for each runner, by its index; None calls all runners without arguments.

        Returns:
            The values that the method returned, by index of the runner.

        Raises:
            WorkerFailed: If a runner raises, or fails for good; see :meth:`sample`.
        """
        values: dict[int, Any] = {}
        args = dict.fromkeys(range(self.workers.size), ()) if args is None else args
        while True:
            self.workers.wait_until_up()
            missing = {i: args[i] for i in args if i not in values and not self.workers.is_gone(i)}
            if not missing:
                return values
            for answer in self.workers.call(method, missing):
                if answer.failure is None:
                    values[answer.worker] = answer.value
                elif answer.failure.kind == "raised":
                    remedy = f"See the traceback below: {method}() raises."
                    raise WorkerFailed(f"env runner {answer.worker}", answer.failure, remedy)
                else:
                    self._replace(answer.worker, answer.failure)

    def stop(self) -> None:
        self.workers.stop()
        self._remove_counters()

    def _remove_counters(self) -> None:
        """Remove the files of step counters that this process has not attached. Attaching a counter also removes its
        file."""
        for path in glob.glob(f"{self._counter_prefix}-*"):
            os.unlink(path)
