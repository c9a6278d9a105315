"""TrainingSession: what ``Algorithm.learn`` does around ``train()``: when to stop, what to show, what to save."""

from __future__ import annotations

import math
import numbers
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from types import FrameType
from typing import TYPE_CHECKING, Any

from algorithms.run.metrics import evaluation_return
from algorithms.run.progress import Show, display, return_text
from algorithms.run.run_folder import RunFolder, new_run_dir, run_name
from algorithms.run.signals import stop_requests
from algorithms.run.wrong_calls import already_stopped

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm


class TrainingSession:
    """Calls ``algorithm.train()`` until the steps are sampled, the target is reached, or a signal or callback stops it.

    Args:
        algorithm: What to train.
        num_env_steps: Steps to sample from now on, over all envs.
        target_return: See :meth:`algorithms.Algorithm.learn`.
        progress: Show a live display on a terminal, else a plain line now and then, on stderr.
        evaluate_at_end: Whether to evaluate once more if the last iteration did not, no signal stopped the run, and
            episodes end. It is logged as a row of its own, and may be the best.

    Attributes:
        reached: Whether ``target_return`` was reached.
        evaluation: That of the last iteration, or the one at the end; None if there is none.
        seconds: Wall time of the training, without what is written at its end.
        stopped_by: The signal that ended the run early; None if none did.
        folder: What was written to; None before :meth:`run`, and where ``run_dir`` is None.
        checkpoint: The checkpoint that was saved, if any.

    Raises:
        ValueError: If ``num_env_steps`` is no int >= 1, or ``target_return`` no finite number.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        num_env_steps: int,
        target_return: float | None = None,
        progress: bool = False,
        evaluate_at_end: bool = False,
    ) -> None:
        _check_number("num_env_steps", num_env_steps, "an int >= 1", numbers.Integral, "200_000", least=1)
        if target_return is not None:
            _check_number("target_return", target_return, "a finite number or None", numbers.Real, "475")
        self.algorithm = algorithm
        self.num_env_steps = int(num_env_steps)
        self.target_return = target_return
        self.progress = progress
        self.evaluate_at_end = evaluate_at_end
        self.reached = False
        self.evaluation: dict[str, Any] | None = None
        self.seconds = 0.0
        self.stopped_by: signal.Signals | None = None
        self.folder: RunFolder | None = None
        self.checkpoint: Path | None = None

    def run(self) -> dict[str, Any]:
        """Train, save, and return the last iteration's result.

        Raises:
            OSError: If ``run_dir`` cannot be written to, holds another run, or a run is training in it.
            RuntimeError: If an iteration samples no env step, or, after saving, if an evaluation at the end fails.
            KeyboardInterrupt: At once on the second Ctrl-C; nothing more is saved.
            SystemExit: With code 143, after saving, if a SIGTERM ended the run.
        """
        if self.algorithm.is_stopped:
            raise already_stopped(self.algorithm, "learn")
        self.folder = self.algorithm.report.folder
        self.algorithm.learning_stopped = False
        waiting = "first iteration …"
        with stop_requests(self._on_signal):
            with display(self.num_env_steps, enabled=self.progress, waiting=waiting) as show:
                result = self._train(show)
            self._save()
            self._evaluate(result)
            self._tell()
        if self.stopped_by is signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        return result

    def _train(self, show: Show) -> dict[str, Any]:
        first_step, start = self.algorithm.env_steps, perf_counter()
        evaluation = math.nan
        while True:
            before = self.algorithm.env_steps
            result = self.algorithm.train()
            if self.algorithm.env_steps == before:
                raise RuntimeError(
                    f"{type(self.algorithm).__name__}.training_step(): expected an iteration that "
                    "samples env steps, since learn() counts them, got none. Call self.sample() "
                    "in it, or call train() in a loop of your own."
                )
            evaluated = evaluation_return(result)
            evaluation = evaluation if evaluated is None else evaluated
            done = self.algorithm.env_steps - first_step
            training = result["env_runners"]["episode_return_mean"]
            self.seconds = perf_counter() - start
            show(done, self._facts(done, training, evaluation))
            self.reached = self._is_target(result)
            if self.reached or self._is_stopped() or done >= self.num_env_steps:
                return result

    def _is_stopped(self) -> bool:
        return self.stopped_by is not None or self.algorithm.learning_stopped

    def _is_target(self, result: dict[str, Any]) -> bool:
        if self.target_return is None:
            return False
        if self.algorithm.config.evaluation_interval is None:
            return result["env_runners"]["episode_return_mean"] >= self.target_return
        evaluated = evaluation_return(result)
        return evaluated is not None and evaluated >= self.target_return

    def _facts(self, done: int, training: float, evaluation: float) -> str:
        rate = done / max(self.seconds, 1e-9)
        left = max(0, self.num_env_steps - done) / max(rate, 1e-9)
        facts = [f"{done:,}/{self.num_env_steps:,} steps", f"{rate:,.0f}/s", f"return {return_text(training)}"]
        if self.algorithm.config.evaluation_interval is not None:
            facts.append(f"evaluation {return_text(evaluation)}")
        return "  ".join([*facts, f"{_duration(left)} left"])

    def _save(self) -> None:
        """Write what stays of the run; the checkpoint first, which must not be lost."""
        folder = self.folder
        if folder is not None:
            self.checkpoint = self.algorithm.report.write_checkpoint()
            folder.write_learning_curve(run_name(self.algorithm), self.target_return)
        elif self.stopped_by is not None:
            new = new_run_dir(type(self.algorithm).__name__, self.algorithm.config.env)
            self.checkpoint = self.algorithm.save(new / "checkpoint")

    def _evaluate(self, result: Mapping[str, Any]) -> None:
        """Find the evaluation of the run's end, or make it. The run is saved by then: it may take long, or fail."""
        self.evaluation = result.get("evaluation")
        ended = result["env_runners"]["num_episodes_lifetime"]  # else an evaluation might wait for an end forever
        if not self.evaluate_at_end or self.evaluation is not None or self.stopped_by is not None or not ended:
            return
        metrics = self.algorithm.metrics
        with metrics.timed():
            self.evaluation = self.algorithm.evaluate(num_videos=0, progress=self.progress)
        row = {
            "training_iteration": metrics.iterations,
            "time_total_s": metrics.seconds,
            "env_runners": {"num_env_steps_sampled_lifetime": metrics.env_steps},
            "evaluation": self.evaluation,
        }
        metrics.note_evaluation(row)
        self.algorithm.report.write(row)
        if self.folder is not None:
            self._save()

    def _tell(self) -> None:
        """Say what came of a signal."""
        if self.stopped_by is not None:
            name = "Ctrl-C" if self.stopped_by is signal.SIGINT else self.stopped_by.name
            told = f"Stopped by {name} after {self.algorithm.env_steps:,} env steps"
            print(f"{told}; saved {self.checkpoint}", file=sys.stderr, flush=True)

    # --- signals ------------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A second SIGTERM changes nothing: `timeout` and the like send it twice, and whoever will not wait has SIGKILL.
        if self.stopped_by is not None and number == signal.SIGINT:
            raise KeyboardInterrupt(f"saved {self.checkpoint}" if self.checkpoint is not None else "not saved")
        if self.stopped_by is None:
            self.stopped_by = signal.Signals(number)
            again = " Ctrl-C again stops at once, without saving." if number == signal.SIGINT else ""
            # not print(): the handler may run in the middle of another one
            os.write(2, f"\nFinishing this iteration, then saving.{again}\n".encode())


def _check_number(name: str, value: object, expected: str, kind: type, example: str, least: float = -math.inf) -> None:
    # bool is an int to Python, but never a number of steps or a return
    if isinstance(value, bool) or not isinstance(value, kind) or not least <= value < math.inf:  # type: ignore[operator]
        raise ValueError(f"learn({name}=): expected {expected}, got {value!r}. Pass {name}={example}, for example.")


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
