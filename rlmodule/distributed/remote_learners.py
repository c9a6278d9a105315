"""RemoteLearners: learners in processes of their own that step together and survive each other's failures."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from rlmodule.collective import CollectiveError
from rlmodule.distributed.interrupts import uninterrupted
from rlmodule.distributed.process_group import ProcessGroupCollective, Rendezvous
from rlmodule.distributed.workers import MAX_IN_FLIGHT, Answer, RestartPolicy, WorkerFailed
from rlmodule.learning.learner import Learner
from rlmodule.modules.spec import MultiRLModuleSpec
from rlmodule.seeding import int_seed
from rlmodule.settings import LearnerSettings

T = TypeVar("T")

State = dict[str, Any]
Reduce = Callable[[list[Any]], Any]
Steps = Generator[None, None, T]
"""What comes to a ``T`` in several steps: it stops where learners are to be waited for, and is gone on with later."""

MOST_TO_DO_AGAIN = 64
"""Single steps after which the state is asked for at the latest; what came since then is kept, to be done again."""

PATIENCE = 0.8
"""For how much of ``learner_timeout_s`` learners wait for each other."""

MOMENT_S = 0.02
"""Seconds that who does not wait gives learners that are made again: most that is asked of them lasts no longer."""

logger = logging.getLogger(__name__)


class RemoteLearners:
    """Learners in processes of their own, on Ray. All have the same state at any time.

    If one dies or hangs, all are made anew, with the state that was last handed over, and what they did since is done
    again: the same bits come of it.

    Args:
        settings: How many, with how much room, and what becomes of failures.
        learner_class, spec, run_seed: Of the learners.
        keep: Told the state of the learners whenever they hand it over.

    Attributes:
        workers: The processes.
        state: What was handed over last.
        num_env_steps_dropped: Rows that came while the learners had no room for them, or that they failed on.
        seconds_waited: For learners, in all.

    Raises:
        WorkerFailed: If one cannot be made.
    """

    def __init__(
        self,
        settings: LearnerSettings,
        learner_class: type[Learner],
        spec: MultiRLModuleSpec,
        *,
        run_seed: int,
        keep: Callable[[State], None],
    ) -> None:
        from rlmodule.distributed.ray_workers import RayWorkers

        self._settings, self._keep = settings, keep
        self.num_env_steps_dropped, self.seconds_waited = 0, 0.0
        self._policy = RestartPolicy(settings.restart_failed_learners, settings.max_restarts_in_a_row)
        self._restarts_in_a_row = 0
        self._modules_changed: list[_Task] = []  # since the learners were first made
        self._tasks: list[_Task] = []  # since the state was handed over, in order
        self._finished: list[_Task] = []  # updates that nobody waited for
        self._waits = True  # whether who called does
        self._recovery: Steps[None] | None = None  # what has to be gone through first, after a failure
        self._end: WorkerFailed | None = None
        self._ranks = range(settings.num_learners)
        self.workers = RayWorkers(
            "learner",
            settings.num_learners,
            functools.partial(_LearnerActor, learner_class, settings, spec, run_seed),
            num_cpus=settings.num_cpus_per_learner,
            num_gpus=settings.num_gpus_per_learner,
            num_threads=settings.torch_num_threads,
            timeout_s=settings.learner_timeout_s,
            policy=RestartPolicy(enabled=False),  # one alone cannot be made again: the others are ahead of it
        )
        try:
            _gone_through(self._connect())
            self.state: State = _gone_through(self._call("get_state", workers=[0]))[0]
        except BaseException as error:
            self.workers.stop()
            if isinstance(error, _Failed):
                raise _told(error.answer, "num_learners=0 debugs it in this process.") from None
            raise
        keep(self.state)

    def update(
        self,
        method: str,
        parts: Sequence[Any],
        kwargs: dict[str, Any],
        num_rows: int,
        reduce_fn: Reduce,
        async_update: bool = False,
    ) -> Any:
        """Let all learners update.

        Args:
            method: Of the learners.
            parts: The data of each.
            kwargs: The same for all.
            num_rows: Rows of data in all.
            reduce_fn: Makes one result of theirs.
            async_update: Do not wait, and drop the data if two updates are still to do. Learners that are being
                restarted continue with that at every call.

        Returns:
            The result, or with ``async_update`` a list of those of earlier updates, each once.

        Raises:
            WorkerFailed: If a learner raises, or they fail too often, in this update or an earlier one.
        """
        if not async_update:
            return reduce_fn(self._finish(self._add_update(method, parts, kwargs, num_rows)))
        self._advance(wait=False)
        if sum(not task.is_done for task in self._tasks) < MAX_IN_FLIGHT:
            self._add_update(method, parts, kwargs, num_rows).reduce_fn = reduce_fn
            self._advance(wait=False)
        else:
            self.num_env_steps_dropped += num_rows
        finished, self._finished = self._finished, []
        return [task.reduce_fn(task.results) for task in finished if task.reduce_fn is not None]

    def call(self, method: str, *args: Any) -> Any:
        """What the first learner's ``method`` returns after all did the same; then they hand over their state.

        Raises:
            WorkerFailed: If a learner raises, or they fail too often.
        """
        task = _Task(method, [args] * self.workers.size, hands_over=True)
        self._add(task)
        value = self._finish(task)[0]
        if method in ("add_module", "remove_module"):
            self._modules_changed.append(task)
        return value

    def get_state(self) -> State:
        """The state of the learners, after all that was asked for. If they failed for good, what they handed over last.

        Raises:
            WorkerFailed: If they fail too often.
        """
        self._finish(None)
        if not self._tasks:
            return self.state
        task = _Task("get_state", [()] * self.workers.size)
        self._add(task)
        state = self._finish(task)[0]
        self._tasks.remove(task)  # which changed nothing
        return state

    @property
    def has_handed_over(self) -> bool:
        """Whether :attr:`state` is what all updates that were asked for came to."""
        return not self._tasks

    def stop(self) -> None:
        """End the processes."""
        self.workers.stop()

    # --- what is to be done -------------------------------------------------------------------------------------------

    def _add_update(self, method: str, parts: Sequence[Any], kwargs: dict[str, Any], num_rows: int) -> _Task:
        # single steps are summarized in the end, which hands over, too
        hands_over = method != "step_on_batch" or len(self._tasks) + 1 >= MOST_TO_DO_AGAIN
        task = _Task(method, [(part,) for part in parts], kwargs, hands_over, num_rows)
        self._add(task)
        return task

    def _add(self, task: _Task) -> None:
        if self._end is not None:
            raise self._end
        self._tasks.append(task)

    def _finish(self, task: _Task | None) -> list[Any]:
        """Wait until ``task`` is done, or all are; what each learner returned."""
        while not task.is_done if task else not all(other.is_done for other in self._tasks):
            self._advance(wait=True)
        return [] if task is None else task.results

    def _advance(self, wait: bool) -> None:
        """Hand out what is to be done, and take what is done; in the end, as if there had been no accident.

        Raises:
            WorkerFailed: If a learner raised, or they failed too often.
        """
        if self._end is not None:
            raise self._end
        self._waits = wait
        with uninterrupted():  # what was handed out, and what came of it, is noted with it
            failures = self._go_on() if self._recovery is not None else self._take_answers()
            while failures:
                self._forget_answers()
                self._recovery = self._recover(failures)
                failures = self._go_on()
            if self._recovery is None:
                self._hand_out()

    def _take_answers(self) -> list[Answer]:
        """Hand out, and take; returns the failures."""
        self._hand_out()
        answers = self._collect()
        for answer in answers:
            if answer.failure is None:
                self._take(answer)
        return [answer for answer in answers if answer.failure is not None]

    def _collect(self) -> list[Answer]:
        start = time.perf_counter()
        patience_s = MOMENT_S if self._recovery is not None else 0.0
        answers = self.workers.collect(None if self._waits else patience_s)
        self.seconds_waited += time.perf_counter() - start
        return answers

    def _hand_out(self) -> None:
        for task in self._tasks:
            if task.is_out:
                continue
            if any(self.workers.in_flight(rank) >= MAX_IN_FLIGHT for rank in self._ranks):
                return
            try:
                for rank, args in enumerate(task.args):
                    hands_over = task.hands_over and rank == 0
                    task.tickets[self.workers.submit(rank, "do", task.method, args, task.kwargs, hands_over)] = rank
            except BaseException:  # such as for what cannot be sent
                self._tasks.remove(task)
                if task.tickets:  # then the learners no longer stand at the same place
                    self._forget_answers()
                    self._recovery = self._make_again()
                raise
            task.is_out = True

    def _take(self, answer: Answer) -> None:
        task = next(task for task in self._tasks if answer.ticket in task.tickets)
        task.answers[task.tickets[answer.ticket]] = answer.value
        if len(task.answers) < self.workers.size:
            return
        if not task.is_done:
            self._restarts_in_a_row = 0  # which what is done again does not prove
            task.is_done, task.results = True, [task.answers[rank][0] for rank in self._ranks]
            if task.reduce_fn is not None:
                self._finished.append(task)
        if task.hands_over:
            self.state = task.answers[0][1]
            self._tasks = self._tasks[self._tasks.index(task) + 1 :]
            self._keep(self.state)
        task.answers = {}

    # --- failures -----------------------------------------------------------------------------------------------------

    def _go_on(self) -> list[Answer]:
        """Go on with the recovery; returns what failed in it."""
        recovery, self._recovery = self._recovery, self._make_again()  # so it begins anew if it is interrupted here
        assert recovery is not None
        try:
            next(recovery)
        except StopIteration:
            self._recovery = None
        except _Failed as error:
            return [error.answer]
        else:
            self._recovery = recovery
        return []

    def _recover(self, failures: list[Answer]) -> Steps[None]:
        """Find the cause, and make the learners again if that can help.

        Raises:
            WorkerFailed: If not: a learner's code raised, or it happens again and again.
        """
        delay = self._judge((yield from self._cause(failures)))
        yield from self._make_again(delay)

    def _cause(self, failed: list[Answer]) -> Steps[Answer]:
        """The failure that others follow from: learners that lost a peer raise, too."""
        while True:
            told = {answer.worker for answer in failed}
            causes = [answer for answer in failed if not _is_lost_peer(answer)]
            if causes or not any(self.workers.in_flight(rank) for rank in self._ranks if rank not in told):
                return (causes or failed)[0]
            # whoever is stuck is given up there
            failed = failed + [answer for answer in self._collect() if answer.failure is not None]
            yield

    def _judge(self, answer: Answer) -> float:
        """After how many seconds to make the learners again.

        Raises:
            WorkerFailed: If that cannot help.
        """
        failure = answer.failure
        assert failure is not None
        if failure.kind == "raised" and not _is_lost_peer(answer):
            self._drop_undone()
            raise _told(answer, "num_learners=0 debugs it in this process.")
        self._restarts_in_a_row += 1
        delay = self._policy.delay_after(self._restarts_in_a_row)
        if delay is None:
            remedy = "Load the last checkpoint: from_checkpoint(path)."
            if failure.kind == "hung":
                remedy = f"If a step may take that long, raise .learners(learner_timeout_s=...). {remedy}"
            if not self._policy.enabled:
                remedy = f"Let learners be replaced: .fault_tolerance(restart_failed_learners=True). {remedy}"
            self._end = _told(answer, remedy)
            self._drop_undone()
            self._tasks = []  # what came of them went with the learners: the state is what was handed over
            raise self._end
        logger.warning("all learners are made again, and go on from where they were")
        return delay

    def _forget_answers(self) -> None:
        """Have all done again that the learners did since they handed over their state."""
        for task in self._tasks:
            task.is_out, task.tickets, task.answers = False, {}, {}

    def _drop_undone(self) -> None:
        self.num_env_steps_dropped += sum(task.num_rows for task in self._tasks if not task.is_done)
        self._tasks = [task for task in self._tasks if task.is_done]

    def _make_again(self, delay: float = 0.0) -> Steps[None]:
        """Put the learners to where they were when they handed over their state."""
        for rank in self._ranks:
            self.workers.restart(rank, delay=delay)
        while not all(self.workers.is_up(rank) for rank in self._ranks):
            self._values(self._collect())
            yield
        yield from self._connect()
        for task in self._modules_changed:
            yield from self._call("do", task.method, task.args[0], {}, False)
        yield from self._call("set_state", shared=self.workers.share(self.state))

    def _connect(self) -> Steps[None]:
        """Let the learners find each other."""
        if self.workers.size > 1:
            place = (yield from self._call("serve", self.workers.address, workers=[0]))[0]
            # who waits for a stuck one shall say so before it counts as stuck itself
            timeout_s = PATIENCE * self._settings.learner_timeout_s
            yield from self._call("connect", self.workers.size, *place, timeout_s)

    def _call(
        self, method: str, *args: Any, workers: Sequence[int] | None = None, shared: Any = None
    ) -> Steps[list[Any]]:
        """What the learners return. Who fails is not waited for."""
        called = self._ranks if workers is None else workers
        tickets = [self.workers.submit(rank, method, *args, shared=shared) for rank in called]
        found: dict[int, Any] = {}
        while True:
            answers = self._collect()
            found |= {answer.ticket: value for answer, value in zip(answers, self._values(answers), strict=True)}
            if len(found) == len(tickets):
                return [found[ticket] for ticket in tickets]
            yield

    def _values(self, answers: Sequence[Answer]) -> list[Any]:
        for answer in answers:
            if answer.failure is not None:
                raise _Failed(answer)
        return [answer.value for answer in answers]


def _gone_through(steps: Steps[T]) -> T:
    """What ``steps`` come to, waited for."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


class _Failed(Exception):
    """A learner did, and others wait in vain."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.answer = answer


def _told(answer: Answer, remedy: str) -> WorkerFailed:
    assert answer.failure is not None
    return WorkerFailed(f"learner {answer.worker}", answer.failure, remedy)


def _is_lost_peer(answer: Answer) -> bool:
    return answer.failure is not None and answer.failure.type == CollectiveError.__name__


@dataclass(eq=False)
class _Task:
    """Something that all learners do alike.

    Attributes:
        method: Of the learners.
        args: Those of each.
        kwargs: The same for all.
        hands_over: Whether the state is asked for with the result.
        num_rows: Rows of data.
        reduce_fn: What makes one result of theirs for who comes later; None if somebody waits.
        is_out: Whether the learners were asked, since they were last made.
        is_done: Whether it was done, maybe by learners that are no more; then it is done again only for the state.
        results: What each returned.
        tickets: Ranks by ticket.
        answers: Results, and maybe state, by rank.
    """

    method: str
    args: Sequence[tuple[Any, ...]]
    kwargs: dict[str, Any] = field(default_factory=dict)
    hands_over: bool = False
    num_rows: int = 0
    reduce_fn: Reduce | None = None
    is_out: bool = False
    is_done: bool = False
    results: list[Any] = field(default_factory=list)
    tickets: dict[int, int] = field(default_factory=dict)
    answers: dict[int, Any] = field(default_factory=dict)


class _LearnerActor:
    """A learner as it is in a process of its own.

    Args:
        learner_class, settings, spec, run_seed: Of the learner.
        rank: Which of the group's.
        incarnation: How often it was made before.
    """

    def __init__(
        self,
        learner_class: type[Learner],
        settings: LearnerSettings,
        spec: MultiRLModuleSpec,
        run_seed: int,
        rank: int,
        incarnation: int,
    ) -> None:
        self._rank = rank
        torch.manual_seed(int_seed(run_seed, "module"))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # orthogonal weights differ by the number of threads
        self.learner = learner_class(settings, spec, run_seed=run_seed)
        torch.set_num_threads(threads)

    @property
    def progress(self) -> int:
        return self.learner.progress

    def serve(self, host: str) -> tuple[str, int]:
        """Open the place where the learners find each other; the first of them does."""
        self._place = Rendezvous(host)
        return self._place.host, self._place.port

    def connect(self, size: int, host: str, port: int, timeout_s: float) -> None:
        """Train together with the others from now on."""
        learner = self.learner
        learner.connect(
            ProcessGroupCollective(self._rank, size, host, port, timeout_s=timeout_s, device=learner.device)
        )

    def do(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], hands_over: bool) -> tuple[Any, Any]:
        """What the learner's ``method`` returns, and maybe the state after it."""
        result = getattr(self.learner, method)(*args, **kwargs)
        return result, self.learner.get_state() if hands_over else None

    def get_state(self) -> State:
        return self.learner.get_state()

    def set_state(self, state: State) -> None:
        self.learner.set_state(state)

    def stop(self) -> None:
        self.learner.collective.close()
