"""RemoteLearnerGroup: learners in other processes, which take gradient steps together and are restarted together."""

import functools
import itertools
import logging
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from rlmodule.collective import CollectiveError
from rlmodule.data.columns import Batch
from rlmodule.data.sequences import num_rows
from rlmodule.distributed.failures import Failure, WorkerFailed
from rlmodule.distributed.interrupts import uninterrupted
from rlmodule.distributed.process_group import ProcessGroupCollective, Rendezvous
from rlmodule.distributed.ray_workers import MAX_IN_FLIGHT, Answer, RayWorkers
from rlmodule.distributed.restarts import RestartPolicy
from rlmodule.groups.learner_group import Kwargs, LearnerGroup, Reduce
from rlmodule.learning.batch_learner import BatchLearner
from rlmodule.learning.learner import Learner
from rlmodule.learning.reports import merge_metrics
from rlmodule.learning.sharding import num_in_batch, shard, shard_batch
from rlmodule.learning.update_data import ModuleData, check_batch, check_episodes, num_steps_in
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID
from rlmodule.modules.spec import MultiRLModuleSpec
from rlmodule.seeding import int_seed
from rlmodule.settings import LearnerSettings

State = dict[str, Any]

# Number of updates, and bytes of their data, after which the learners return their state. Until then, the data is kept,
# so that the updates can be repeated.
MAX_TO_REPEAT, MAX_BYTES_TO_REPEAT = 64, 2**28

# What learner 0 returns with a result: nothing, the part of its state that `LearnerGroup.module` needs, or all of it.
# With Adam, the state is three times as large as the weights.
Returned = Literal["nothing", "weights", "state"]

# Time for which learners wait for each other, as a fraction of `learner_timeout_s`.
COLLECTIVE_TIMEOUT = 0.8

# Seconds for which an asynchronous call waits for learners that restart. Most phases of a restart take less time.
MOMENT_S = 0.02

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class _Task:
    """A call of all learners, which can be repeated after a restart.

    Attributes:
        method: Name of the method; see :meth:`_LearnerActor.do`.
        args: The positional arguments of each learner, by rank.
        kwargs: The keyword arguments, the same for all learners.
        returned: What learner 0 returns with the result.
        num_rows: Number of rows to train on.
        num_bytes: Size of the arguments in bytes; 0 until they are submitted.
        reduce_fn: Turns the results of all learners into one result, for an asynchronous update; None if the caller
            waits.
        is_submitted: Whether the task was submitted to the learners since their last restart.
        answers: The answers since the last restart, by rank: the result, and what was returned with it or None.
        results: The results by rank; None until all learners have answered. After a restart, the task is repeated even
            if it has results, since the state of the learners depends on it.
    """

    method: str
    args: Sequence[tuple[Any, ...]]
    kwargs: Kwargs = field(default_factory=dict)
    returned: Returned = "nothing"
    num_rows: int = 0
    num_bytes: int = 0
    reduce_fn: Reduce | None = None
    is_submitted: bool = False
    answers: dict[int, Any] = field(default_factory=dict)
    results: list[Any] | None = None


class RemoteLearnerGroup(LearnerGroup):
    """Learners in other processes, on Ray.

    All learners have the same state, which learner 0 returns from time to time: asynchronous updates return only the
    weights, so that the others reach the runners soon. If a learner dies or hangs, all learners are restarted with the
    last state that was returned, and repeat the tasks since then. The results are the same to the bit.

    Args:
        settings, learner_class, spec, run_seed: See :meth:`LearnerGroup.create`.

    Attributes:
        workers: The learner processes.
    """

    def __init__(
        self, settings: LearnerSettings, learner_class: type[Learner], spec: MultiRLModuleSpec, *, run_seed: int
    ) -> None:
        super().__init__(learner_class)
        self.module, self._has_copies = spec.build(), True
        self._timeout_s = settings.learner_timeout_s
        self._restarts = RestartPolicy(settings.max_restarts_in_a_row if settings.restart_failed_learners else 0)
        self._removed: list[str] = []  # ids of modules in ``spec`` that were removed
        self._added: dict[str, tuple[Any, ...]] = {}  # the arguments of add_module() for each module that was added
        self._tasks: list[_Task] = []  # calls since the learners last returned their state, in order
        self._finished: list[tuple[Reduce, list[Any]]] = []  # asynchronous updates whose results are still to return
        self._failed: dict[int, Failure] = {}  # failures by rank, until the one that caused the others is found
        self._must_restart = False
        self._end: WorkerFailed | None = None
        self._ranks = range(settings.num_learners)
        self._state: State = {}  # the state that the learners returned last
        self._num_updates = 0  # that led to the weights in `module`, which may be newer than the state
        self.workers = RayWorkers(
            "learner",
            settings.num_learners,
            functools.partial(
                _LearnerActor,
                functools.partial(learner_class, settings, spec, run_seed=run_seed),
                int_seed(run_seed, "module"),
            ),
            num_cpus=settings.num_cpus_per_learner,
            num_gpus=settings.num_gpus_per_learner,
            num_threads=settings.torch_num_threads,
            timeout_s=settings.learner_timeout_s,
            # this class restarts them, all together: a new one alone would lack the others' state
            restarts=RestartPolicy(0),
            accounts=self.accounts,
        )
        self._begin_setup()
        try:
            self._call("get_state")  # the group keeps the state that comes with the result
        except BaseException:
            self.workers.stop()
            raise

    @property
    def learner(self) -> Learner:
        raise RuntimeError(
            "LearnerGroup.learner: expected a learner in this process, got learners in other processes. "
            "Set num_learners=0, for example to debug a loss."
        )

    @property
    def num_updates(self) -> int:
        return self._num_updates

    def update_from_episodes(
        self,
        episodes: ModuleData | Mapping[str, ModuleData],
        *,
        env_steps: int | None = None,
        module_id: str = DEFAULT_MODULE_ID,
        num_epochs: int | None = None,
        minibatch_size: int | None = None,
        async_update: bool = False,
        reduce_fn: Reduce | None = None,
    ) -> Any:
        kwargs = self._episode_kwargs(env_steps, module_id, num_epochs, minibatch_size)
        check_episodes(episodes, "LearnerGroup.update_from_episodes()", module_id)
        data: Any = episodes
        for learning_id in data if isinstance(data, Mapping) else [module_id]:
            self.module[learning_id]  # raises KeyError for an unknown id
        args = [(part,) for part in shard(data, self.workers.size)]
        returned = self._returned_by_update("weights" if async_update else "state")
        task = _Task("update_from_episodes", args, kwargs, returned, num_steps_in(data))
        return self._learn(task, async_update, reduce_fn)

    def _update(
        self, method: str, data: Any, kwargs: Kwargs, async_update: bool = False, reduce_fn: Reduce | None = None
    ) -> Any:
        self.module[kwargs["module_id"]]  # raises KeyError for an unknown id
        returned: Returned = "weights" if async_update else "state"
        if method == "step_on_batch":
            # a state as large as the networks is not returned after each single step: summarize_updates() returns it
            returned = "nothing"
            reduce_fn = functools.partial(_merged, data)
        else:
            check_batch(data, f"LearnerGroup.{method}()")
        args = [(part,) for part in shard_batch(data, self.workers.size)]
        kwargs = kwargs | {"num_in_batch": num_in_batch(data)}
        task = _Task(method, args, kwargs, self._returned_by_update(returned), num_rows(data))
        return self._learn(task, async_update, reduce_fn)

    def _returned_by_update(self, at_least: Returned) -> Returned:
        """Return what the next update returns: the state if too much data would be kept without it."""
        since = [*itertools.takewhile(lambda task: task.returned != "state", reversed(self._tasks))]
        too_much = sum(task.num_bytes for task in since) >= MAX_BYTES_TO_REPEAT
        return "state" if too_much or len(since) + 1 >= MAX_TO_REPEAT else at_least

    def _learn(self, task: _Task, async_update: bool, reduce_fn: Reduce | None) -> Any:
        """Let the learners do ``task``, an update, and return the result as the class documents."""
        reduce_fn = reduce_fn or operator.itemgetter(0)
        if not async_update:
            return reduce_fn(self._results_of(task))
        task.reduce_fn = reduce_fn
        self._tasks.append(task)  # if an earlier update has failed, this one is dropped, too
        self._advance(wait=False)
        if self.num_unfinished > MAX_IN_FLIGHT:
            self._tasks.remove(task)
            self.num_env_steps_dropped += task.num_rows
        finished, self._finished = self._finished, []
        return [reduce_results(results) for reduce_results, results in finished]

    @property
    def has_room(self) -> bool:
        self._advance(wait=False)
        return self.num_unfinished < MAX_IN_FLIGHT

    @property
    def num_unfinished(self) -> int:
        return sum(task.results is None for task in self._tasks)

    def wait_for_room(self) -> None:
        while not self.has_room:
            self._advance(wait=True)

    def _call(self, method: str, *args: Any) -> Any:
        value = self._results_of(_Task(method, [args] * self.workers.size, returned="state"))[0]
        if method == "add_module":
            self._added[args[0]] = args
        elif method == "remove_module" and self._added.pop(args[0], None) is None:
            self._removed.append(args[0])
        return value

    def get_state(self) -> State:
        while self.num_unfinished:
            self._advance(wait=True)
        if not self._tasks:
            # The caller may have changed the copy of the modules in this process, such as epsilon; those changes count.
            return self._state | {"module": self.module.get_state(), "num_updates": self.num_updates}
        task = _Task("get_state", [()] * self.workers.size)
        state = self._results_of(task)[0]
        self._tasks.remove(task)  # reading the state changed nothing, so a restart need not repeat it
        return state

    def report(self) -> dict[str, Any]:
        counters = {f"{name}_lifetime": count for name, count in self.get_counters().items()}
        return counters | {"waited_for_learners_s": self.workers.seconds_waited}

    def stop(self) -> None:
        self.workers.stop()

    @property
    def processes(self) -> list[RayWorkers]:
        return [self.workers]

    # --- tasks --------------------------------------------------------------------------------------------------------

    def _results_of(self, task: _Task) -> list[Any]:
        """Let all learners do ``task``, wait for them, and return their results by rank."""
        self._tasks.append(task)
        while task.results is None:
            self._advance(wait=True)
        return task.results

    def _advance(self, wait: bool) -> None:
        """Submit tasks and take answers once. If a learner has failed, restart all learners.

        Args:
            wait: Whether to wait for an answer.

        Raises:
            WorkerFailed: If a learner raised, or the learners failed too often.
        """
        if self._end is not None:
            self._drop_updates()
            raise self._end
        with uninterrupted():  # Ctrl-C must not separate a call or an answer from its record in the task
            if self._must_restart:
                self._restart()
            if not self._failed:
                self._submit_tasks()
            is_starting = self._setup_task is not None or bool(self._failed)
            answers = self.workers.collect(None if wait else MOMENT_S if is_starting else 0.0)
            for answer in answers:
                if answer.failure is None:
                    self._take(answer)
                else:
                    self._failed.setdefault(answer.worker, answer.failure)
            if self._failed:
                self._restart_if_cause_is_known()
            else:
                self._submit_tasks()

    def _submit_tasks(self) -> None:
        """Submit as many tasks as the learners can take. After a restart, the setup tasks come first, one at a time."""
        if not all(self.workers.is_up(rank) for rank in self._ranks):
            return
        if self._setup_task is not None and self._setup_task.results is not None:
            self._setup_task = next(self._setup, None)
        for task in self._tasks if self._setup_task is None else [self._setup_task]:
            if task.is_submitted:
                continue
            if any(self.workers.in_flight(rank) >= MAX_IN_FLIGHT for rank in self._ranks):
                return
            task.num_bytes = 0
            for rank, args in enumerate(task.args):
                returned = "nothing" if rank else task.returned
                try:
                    task.num_bytes += self.workers.submit(rank, "do", task.method, args, task.kwargs, returned)
                except BaseException:  # for example, an argument that cannot be pickled
                    self._tasks = [queued for queued in self._tasks if queued is not task]
                    self._must_restart = rank > 0  # if True, some learners have the task and others do not
                    raise
            task.is_submitted = True

    def _take(self, answer: Answer) -> None:
        """Record an answer in its task. If all learners have answered the task, finish it."""
        tasks = self._tasks if self._setup_task is None else [self._setup_task]
        # A learner answers in order, so the answer belongs to the first task that lacks one from it.
        task = next(task for task in tasks if answer.worker not in task.answers)
        task.answers[answer.worker] = answer.value
        if len(task.answers) < len(task.args):
            return
        state = task.answers[0][1]
        if task.results is None:
            task.results = [task.answers[rank][0] for rank in range(len(task.args))]
            if task is not self._setup_task:
                self._restarts.forgive()  # a task that was repeated would be no progress
            if task.reduce_fn is not None:
                self._finished.append((task.reduce_fn, task.results))
            if task.returned != "nothing":  # a repeated task has older weights than the module
                self._num_updates, weights = state["num_updates"], state["module"]
                self.module.set_state({name: saved for name, saved in weights.items() if name in self.module})
        if task.returned == "state":
            self._tasks = self._tasks[self._tasks.index(task) + 1 :]
            self._state = state  # for restarts
        else:
            task.answers = dict.fromkeys(task.answers, (None, None))  # free their memory

    # --- failures -----------------------------------------------------------------------------------------------------

    def _restart_if_cause_is_known(self) -> None:
        """Restart all learners once the failure that caused the other failures is known.

        Raises:
            WorkerFailed: If a restart does not help, because a learner's code raised or the learners failed too often.
        """
        # A learner that waits in vain for another one raises CollectiveError. The other one has then ended or hangs; it
        # may take longer until that is found.
        failed = self._failed
        causes = {rank: failure for rank, failure in failed.items() if failure.type != CollectiveError.__name__}
        if not causes and any(self.workers.in_flight(rank) for rank in self._ranks if rank not in failed):
            return
        rank, failure = next(iter((causes or failed).items()))
        if failure.kind == "raised" and causes:
            self._drop_updates()
            self._failed, self._must_restart = {}, True  # the learners may differ by an update
            raise WorkerFailed(f"learner {rank}", failure, "num_learners=0 debugs it in this process.")
        delay = self._restarts.delay_after_failure()
        if delay is not None:
            logger.warning("all learners restart and continue from where they were")
            self._restart(delay)
            return
        remedy = "Load the last checkpoint: from_checkpoint(path)."
        if failure.kind == "hung":
            remedy = f"If a step may take that long, raise .learners(learner_timeout_s=...). {remedy}"
        if not self._restarts.max_in_a_row:
            remedy = f"Let learners restart: .fault_tolerance(restart_failed_learners=True). {remedy}"
        self._end = WorkerFailed(f"learner {rank}", failure, remedy)
        self._drop_updates()
        self._tasks = []  # their changes of the state were lost with the learners
        raise self._end

    def _drop_updates(self) -> None:
        """Drop the updates that are not done, and add their rows to ``num_env_steps_dropped``."""
        self.num_env_steps_dropped += sum(task.num_rows for task in self._tasks if task.results is None)
        self._tasks = [task for task in self._tasks if task.results is not None]

    def _restart(self, delay: float = 0.0) -> None:
        """Begin to restart all learners after ``delay`` seconds. When they are up, they repeat all kept tasks."""
        for rank in self._ranks:
            self.workers.restart(rank, delay=delay)
        for task in self._tasks:
            task.is_submitted, task.answers = False, {}
        self._failed, self._must_restart = {}, False
        self._begin_setup()

    def _begin_setup(self) -> None:
        """Make the tasks of :meth:`_setup_tasks` precede all other tasks."""
        self._setup = self._setup_tasks()
        self._setup_task: _Task | None = _Task("start", [], results=[])  # done; the next follows once all are up

    def _setup_tasks(self) -> Iterator[_Task]:
        """Yield the tasks that connect new learners and restore the last state. The caller requests a task once the
        previous task is done."""
        size = self.workers.size
        if size > 1:
            serve = _Task("serve", [(self.workers.address,)])
            yield serve
            assert serve.results is not None
            # A learner that waits for a stuck one must raise before it counts as stuck itself.
            timeout_s = COLLECTIVE_TIMEOUT * self._timeout_s
            yield _Task("connect", [(size, *serve.results[0], timeout_s)] * size)
        for module_id in self._removed:
            yield _Task("remove_module", [(module_id,)] * size)
        for args in self._added.values():
            yield _Task("add_module", [args] * size)
        if self._state:
            yield _Task("set_state", [(self._state,)] * size)


class _LearnerActor:
    """The learner in another process, as a worker of :class:`RayWorkers`.

    Args:
        make: Builds the learner.
        seed: Seed of the initial weights.
        rank: Rank of the learner in the group.
        incarnation: Number of times the learner was restarted; not used.
    """

    def __init__(self, make: Callable[[], Learner], seed: int, rank: int, incarnation: int) -> None:
        self._rank = rank
        torch.manual_seed(seed)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # orthogonal initialization gives other bits with another number of threads
        self.learner = make()
        torch.set_num_threads(threads)

    @property
    def progress(self) -> int:
        return self.learner.progress

    def serve(self, host: str) -> tuple[str, int]:
        """Open a rendezvous for all learners at ``host``, an address of this machine. Return its address and port."""
        self._rendezvous = Rendezvous(host)
        return self._rendezvous.host, self._rendezvous.port

    def connect(self, size: int, host: str, port: int, timeout_s: float) -> None:
        """Connect the ``size`` learners at the address and port from :meth:`serve`, to train together from now on."""
        device = self.learner.device
        self.learner.connect(ProcessGroupCollective(self._rank, size, host, port, timeout_s=timeout_s, device=device))

    def do(self, method: str, args: tuple[Any, ...], kwargs: Kwargs, returned: Returned) -> tuple[Any, Any]:
        """Call :meth:`serve`, :meth:`connect` or a method of the learner, by its name. The argument ``num_in_batch`` is
        set as the attribute of a :class:`BatchLearner`.

        Returns:
            The result, and the learner's state after the call or the part of it to return, or None.
        """
        target, kwargs = self if method in ("serve", "connect") else self.learner, dict(kwargs)
        if isinstance(self.learner, BatchLearner):
            self.learner.num_in_batch = kwargs.pop("num_in_batch", None)
        result = getattr(target, method)(*args, **kwargs)
        if returned == "nothing":
            return result, None
        state = self.learner.get_state()
        return result, state if returned == "state" else {name: state[name] for name in ("module", "num_updates")}

    def stop(self) -> None:
        self.learner.collective.close()


def _merged(batch: Batch, results: list[Any]) -> Any:
    """Merge ``results``, the metrics by module id that each learner returned for its share of ``batch``, into those
    that one learner would return for the whole; see :func:`merge_metrics`."""
    return {module_id: merge_metrics([metrics[module_id] for metrics in results], batch) for module_id in results[0]}
