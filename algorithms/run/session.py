"""TrainingSession: the loop of ``Algorithm.learn``, which decides when to stop, what to show and what to save."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any

from algorithms.loggers.base import LoggerFailed
from algorithms.run.callbacks import CallbackError
from algorithms.run.goal import Goal
from algorithms.run.metrics import evaluation_return
from algorithms.run.progress import Show, display
from algorithms.run.run_folder import RunFolder, new_run_dir, run_name
from algorithms.run.text import duration_text, return_text
from algorithms.run.wrong_calls import already_stopped

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm


@dataclass
class TrainingSession:
    """Calls ``algorithm.train()`` until all steps are taken, the target is reached, or a signal or callback ends it.
    Sets ``algorithm.stopped_by`` to which of them it was.

    Args:
        algorithm: The algorithm to train.
        goal: When the run ends by itself.
        progress: Show progress; see :meth:`algorithms.Algorithm.learn`.
        evaluate_at_end: Evaluate after the last iteration, unless that iteration evaluated, a signal stopped the run,
            or no episode has ended. The result is logged as a separate row, and counts for the best checkpoint.
        resumes: Whether the algorithm may have reached this goal before it was saved. If it has, do not train, and do
            only what is left: the evaluation at the end.

    Attributes:
        amount: Steps to take from now on; less than 1 if all were taken before.
        reached: Whether the target return was reached.
        evaluation: The result of the evaluation in the last iteration or after it; None if neither took place.
        seconds: Wall time of the training, without the time to write files at its end.
        signal: The signal that ended the run early; None if no signal did.
        checkpoint: Path of the checkpoint that was saved at the end; None if none was saved.
    """

    algorithm: Algorithm
    goal: Goal
    progress: bool = False
    evaluate_at_end: bool = False
    resumes: bool = False

    def __post_init__(self) -> None:
        self.amount = self.goal.left(self.algorithm.metrics)
        self.seconds = 0.0
        self.evaluation: dict[str, Any] | None = None
        self.signal: signal.Signals | None = None
        self.checkpoint: Path | None = None

    def run(self) -> dict[str, Any]:
        """Train, save, and return the last iteration's result, or an empty dict if nothing was left to train. After a
        signal, return also; :meth:`raise_signal` then raises.

        Raises:
            OSError: If ``run_dir`` cannot be written to, holds another run, or a run is training in it.
            RuntimeError: If an iteration takes no step; or, after saving, if the evaluation at the end fails, or
                a logger several times in a row.
            KeyboardInterrupt: On the second Ctrl-C, at once and without saving.
        """
        algorithm = self.algorithm
        if algorithm.is_stopped:
            raise already_stopped(algorithm, "learn")
        report = algorithm.report  # opened before the first step, as it may raise
        report.keep_goal(self.goal)
        algorithm.budget = self.goal.budget
        algorithm.stopped_by = self.goal.stopped_by(algorithm) if self.resumes else None
        result: dict[str, Any] = {}
        with stop_requests(self._on_signal), report.writing_in_background():
            if algorithm.stopped_by is None:
                algorithm.metrics.learning_stopped = False
                try:
                    with display(self.amount, enabled=self.progress, waiting="first iteration …") as show:
                        result = self._train(show)
                except LoggerFailed:  # what was learned is worth more than its log
                    self._save(report.folder)
                    print(f"Saved {self.checkpoint}", file=sys.stderr, flush=True)
                    raise
                self._save(report.folder)
            elif report.folder is not None:
                report.folder.write_learning_curve(run_name(algorithm), self.goal.target_return)
            self._evaluate(result, report.folder)
            if self.signal is not None:
                name = "Ctrl-C" if self.signal is signal.SIGINT else self.signal.name
                algorithm.stopped_by = "signal"  # also if it came after the last iteration
                stopped = f"Stopped by {name} after {algorithm.metrics.clock_text}"
                with suppress(OSError):  # nobody reads it
                    print(f"{stopped}; saved {self.checkpoint}", file=sys.stderr, flush=True)
        return result

    def raise_signal(self) -> None:
        """Raise what belongs to the signal that ended the run: ``KeyboardInterrupt`` for Ctrl-C, ``SystemExit`` with
        code 143 for SIGTERM and 129 for SIGHUP. Do nothing if there was none."""
        if self.signal is signal.SIGINT:
            raise KeyboardInterrupt(f"saved {self.checkpoint}")
        if self.signal is not None:
            raise SystemExit(128 + self.signal)

    @property
    def is_done(self) -> bool:
        """Whether :meth:`run` would neither train nor evaluate."""
        is_over = self.resumes and self.goal.stopped_by(self.algorithm) is not None
        return is_over and not self._is_evaluation_due()

    @property
    def reached(self) -> bool:
        return self.goal.is_target_reached(self.algorithm)

    @property
    def taken(self) -> int:
        """The steps of ``amount`` that were taken so far."""
        return self.amount - self.goal.left(self.algorithm.metrics)

    def _train(self, show: Show) -> dict[str, Any]:
        algorithm, start = self.algorithm, perf_counter()
        workers_before = algorithm.env_runner_group.report()
        evaluation = math.nan
        evaluates = algorithm.config.evaluation_interval is not None
        while True:
            before, clock_before = self.taken, algorithm.clock
            try:
                result = algorithm.train()
            except CallbackError as error:
                # The signal may have ended what the callback prints to, such as a `tee`. The run is saved all the same.
                if self.signal is None or not isinstance(error.__cause__, OSError):
                    raise
                algorithm.stopped_by = "signal"
                return {}
            # A run of env steps may begin with updates from data.
            if self.taken == before and (self.goal.budget == "num_updates" or algorithm.clock == clock_before):
                raise self._no_step()
            evaluated, training = evaluation_return(result), result["env_runners"]["episode_return_mean"]
            evaluation = evaluation if evaluated is None else evaluated
            self.seconds = perf_counter() - start
            facts = self._facts(self.taken, training, evaluation if evaluates else None)
            show(self.taken, facts + self._waiting_text(workers_before))
            algorithm.stopped_by = "signal" if self.signal is not None else self.goal.stopped_by(algorithm)
            if algorithm.stopped_by is not None:
                return result | {"stopped_by": algorithm.stopped_by}

    def _facts(self, done: int, training: float, evaluation: float | None) -> str:
        metrics = self.algorithm.metrics
        if not done and metrics.updates:  # a run of env steps begins with updates from data
            return f"{metrics.updates:,} updates from data"
        rate = done / max(self.seconds, 1e-9)
        left = max(0, self.amount - done) / max(rate, 1e-9)
        unit = "updates" if self.goal.budget == "num_updates" else "steps"
        facts = [f"{done:,}/{self.amount:,} {unit}", f"{rate:,.0f}/s", f"return {return_text(training)}"]
        if evaluation is not None:
            facts.append(f"evaluation {return_text(evaluation)}")
        return "  ".join([*facts, f"{duration_text(left)} left"])

    def _waiting_text(self, before: Mapping[str, Any]) -> str:
        """Return who waits for whom, as the share of this session's time, if env runners are in other processes.
        ``before`` is what they reported when the session began."""
        num_runners, workers = self.algorithm.config.num_env_runners, self.algorithm.env_runner_group.report()
        if not num_runners:
            return ""
        driver, runners = (
            (workers[name] - before[name]) / self.seconds
            for name in ("waited_for_env_runners_s", "env_runners_waited_s")
        )
        # a runner that was idle before this session counts all of that wait with its next call
        runners = min(1.0, runners / num_runners)
        return f"  learner waits {driver:.0%}" if driver > runners else f"  runners wait {runners:.0%}"

    def _no_step(self) -> RuntimeError:
        """Return the error for an iteration that took no step that ``budget`` counts."""
        expected, remedy = "samples env steps", "Call self.sample()"
        if self.goal.budget == "num_updates":
            expected, remedy = "takes updates from data", "Add them to self.metrics.updates"
        return RuntimeError(
            f"{type(self.algorithm).__name__}.training_step(): expected an iteration that {expected}, since learn() "
            f"counts them, got none. {remedy} in it, or call train() in a loop of your own."
        )

    def _save(self, folder: RunFolder | None) -> None:
        """Write the checkpoint and, after it, the learning curve, which matters less. Without a run folder, do nothing
        unless a signal or an error ended the run. Then write a checkpoint to a new folder below ``runs/``."""
        algorithm = self.algorithm
        if folder is not None:
            self.checkpoint = algorithm.report.write_checkpoint()
            folder.write_learning_curve(run_name(algorithm), self.goal.target_return)
        elif self.signal is not None or algorithm.stopped_by is None:
            new = new_run_dir(type(algorithm).__name__, algorithm.config.env, algorithm.working_dir)
            self.checkpoint = algorithm.save(new / "checkpoint")

    def _evaluate(self, result: Mapping[str, Any], folder: RunFolder | None) -> None:
        """Set ``evaluation`` to that of the last iteration. If there was none and ``evaluate_at_end`` asks for one,
        evaluate now that the run is saved, because an evaluation may take long or fail."""
        self.evaluation = result.get("evaluation")
        metrics = self.algorithm.metrics
        if self.signal is not None or not self._is_evaluation_due():
            return
        with metrics.timed():
            self.evaluation = self.algorithm.evaluate(num_videos=0, progress=self.progress)
        row = {
            "training_iteration": metrics.iterations,
            "time_total_s": metrics.seconds,
            **metrics.clock_entry(),
            "env_runners": {"num_env_steps_sampled_lifetime": metrics.env_steps},
            "evaluation": self.evaluation,
        }
        metrics.note_evaluation(row)
        self.algorithm.report.write(row)
        if folder is not None:
            self._save(folder)

    def _is_evaluation_due(self) -> bool:
        metrics = self.algorithm.metrics
        is_evaluated = metrics.evaluated_at == metrics.iterations
        # Without an episode that ended, an evaluation might never end. A run from data can see none.
        may_end = metrics.episodes > 0 or (metrics.updates > 0 and self.algorithm.config.env is not None)
        return self.evaluate_at_end and not is_evaluated and may_end

    # --- signals ------------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A second SIGTERM changes nothing, as `timeout` may send two. To end at once, there is SIGKILL.
        if self.signal is not None and number == signal.SIGINT:
            self.algorithm.stopped_by = "signal"
            raise KeyboardInterrupt(f"saved {self.checkpoint}" if self.checkpoint is not None else "not saved")
        if self.signal is None:
            self.signal = signal.Signals(number)
            again = " Ctrl-C again stops at once, without saving." if number == signal.SIGINT else ""
            write_in_handler(f"\nFinishing this iteration, then saving.{again}\n")


def write_in_handler(text: str) -> None:
    """Write ``text`` to stderr in the handler of a signal, not by print(), which is not reentrant: the handler may
    interrupt one. Do nothing if stderr cannot be written to, as when Ctrl-C has ended the ``tee`` that it is piped to.
    """
    with suppress(OSError):
        os.write(2, text.encode())


@contextmanager
def stop_requests(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within the block, call ``handler`` on SIGINT, SIGTERM and SIGHUP, which a terminal that closes sends, except for
    a signal that the process ignores, as SIGHUP under nohup. Do nothing outside the main thread."""
    heard = [signal.SIGINT, signal.SIGTERM] if threading.current_thread() is threading.main_thread() else []
    if heard and sys.platform != "win32":
        heard.append(signal.SIGHUP)
    listening = [number for number in heard if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, handler) for number in listening}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier or signal.SIG_DFL)
