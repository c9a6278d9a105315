"""The folder of a run: its log, its learning curve and its checkpoints.

::

    run.json              algorithm, env, seed, settings, and the goal of the last learn()
    progress.jsonl        one line per iteration, and one for an evaluation at the end: the result as flat JSON
    events.out.tfevents…  the same, for TensorBoard
    learning_curve.png    returns against env steps
    checkpoint/           the last checkpoint
    checkpoints/          earlier checkpoints by their clock (env steps), if keep_checkpoints is more than 1
    best_checkpoint/      the checkpoint of the best evaluation
    videos/               videos of evaluations
    .lock                 locked while a run trains in the folder
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from errno import ELOOP, ENOLCK, ENOSYS, ENOTSUP
from itertools import count
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from algorithms.loggers.base import (
    MOST_FAILED_IN_A_ROW,
    LoggedRun,
    LoggerFailed,
    LoggerGroup,
    clock_of,
    flatten,
    replace_file,
)
from algorithms.loggers.jsonl import read_rows
from algorithms.registry import name_of
from algorithms.run.checkpoint_writer import CheckpointWriter
from algorithms.run.goal import Goal
from algorithms.run.metrics import evaluation_return
from algorithms.run.plotting import draw_run
from algorithms.run.saved_settings import read_about
from algorithms.run.text import path_text
from catalog_rl import printable
from rlmodule.checkpoint import KIND
from rlmodule.sealed_folder import DamagedFolder, StrPath, read_manifest

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from filelock import BaseFileLock

    from algorithms.algorithm import Algorithm
    from algorithms.run.callbacks import CallbackCaller


def lock_folder(folder: Path) -> BaseFileLock:
    """Lock ``folder`` for the run that writes to it, by a kernel lock on its file ``.lock``.

    The lock ends when it is released or garbage collected, or when the process dies. A file system without locks is
    used unlocked.

    Raises:
        BlockingIOError: If another run, also of this process, holds the lock.
        OSError: If the folder cannot be written to.
    """
    from filelock import FileLock, Timeout

    path = folder / ".lock"
    lock = FileLock(path, timeout=0, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except Timeout:
        holder = path.read_text()
        how = "call stop() on the algorithm of this process" if holder == str(os.getpid()) else "wait for its end"
        raise BlockingIOError(
            f"run_dir {path_text(folder)!r}: expected a folder in which no run is training, got one where a run is "
            f"training (process {holder or 'unknown'}). Choose another, or {how}."
        ) from None
    except OSError as error:
        if error.errno not in (ENOLCK, ENOSYS, ENOTSUP):
            raise
    with suppress(OSError):  # Windows refuses writes to a locked file
        path.write_text(str(os.getpid()))
    return lock


def not_written(folder: Path, error: OSError) -> OSError:
    """Return the error for a ``run_dir`` that cannot be written to because of ``error``."""
    return OSError(
        f"run_dir {path_text(folder)!r}: expected a folder to write to, got {error.strerror or error}. Choose another "
        "run_dir, or free disk space or get permission there."
    )


class RunFolder:
    """The folder of a run, locked until :meth:`release`.

    A run that continues (from its checkpoint, or by a second ``learn``) appends to the files of the folder. The folder
    of a run that failed in its first iteration may be reused.

    Args:
        path: The folder; created if it does not exist.
        clock: The run's clock, see :attr:`algorithms.Algorithm.clock`; 0 for a run that is new in this folder.
        run: Algorithm and seed of the run, as in ``PPO with seed 1``.
        begins_again: Whether the same run may begin again in its folder if it ended before its first checkpoint. Then
            run.json is removed, and loggers drop the rows of that run.

    Attributes:
        has_begun_again: Whether such a run was there.

    Raises:
        OSError: If the folder cannot be created or written to, or holds a link to a file.
        FileExistsError: If the folder holds another run.
        BlockingIOError: If a run is training in the folder.
    """

    def __init__(self, path: StrPath, *, clock: int, run: str = "", begins_again: bool = False) -> None:
        self.path = Path(path)
        self.progress = self.path / "progress.jsonl"
        self.learning_curve = self.path / "learning_curve.png"
        self.checkpoint = self.path / "checkpoint"
        self.best_checkpoint = self.path / "best_checkpoint"
        self.about = self.path / "run.json"
        try:
            self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self._found = {*self.path.iterdir()}
            for found in self._found:
                # Somebody else may have made the folder, to have a file outside it overwritten.
                if found.is_symlink() and not found.is_dir():
                    raise OSError(ELOOP, f"one in which {printable(found.name)} is a link to a file")
            self._lock = lock_folder(self.path)
        except BlockingIOError:
            raise
        except OSError as error:
            raise not_written(self.path, error) from error
        about, saved = read_about(self.path), self.checkpoint.exists()
        there = "an earlier one" if about is None else f"{about['algorithm']} with seed {about['seed']}"
        # a run that failed in its first iteration leaves nothing to keep: an empty log, and no checkpoint
        failed = self.progress.exists() and not self.progress.stat().st_size and not self.best_checkpoint.exists()
        begun = saved or (self.about.exists() and self.about.stat().st_size and not failed)
        self.has_begun_again = bool(begins_again and begun and not saved and there.upper() == run.upper())
        if self.has_begun_again:
            self.about.unlink()
            begun = False
        got = how = ""
        if begun if clock == 0 else about is not None and there.upper() != run.upper():
            got, how = there, "; to train there again, delete the folder: that run ended before its first checkpoint"
            if saved:
                how = f"; continue it with Algorithm.from_checkpoint({path_text(self.checkpoint)!r})"
        elif seeds := [found.parent.name for found in sorted(self.path.glob("seed-*/run.json"))]:
            got = f"the runs of several seeds ({', '.join(seeds)})"
        elif (self.path / "study.json").exists():
            got = "the trials of a study"
        if got:
            self.release()
            raise FileExistsError(
                f"run_dir {path_text(self.path)!r}: expected a folder without another run, got {got}. Choose "
                f"another{how}."
            )

    def release(self) -> None:
        """Unlock the folder."""
        self._lock.release()

    def undo(self) -> None:
        """Undo the constructor, for a run that cannot start: remove the files written since and the folders that the
        constructor created, and unlock."""
        for path in {*self.path.iterdir()} - self._found:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.release()
        with suppress(OSError):  # another process has written there
            for folder in self._made:
                folder.rmdir()

    def write_learning_curve(self, title: str, target_return: float | None = None) -> None:
        """Draw learning_curve.png from progress.jsonl. Do nothing if progress.jsonl has no rows.

        Args:
            title: Title of the picture.
            target_return: A return to mark; None marks none.
        """
        if rows := read_rows(self.progress):
            draw_run(rows, self.learning_curve, title, target_return)


class RunReport:
    """Writes the log of a run and its checkpoints.

    Args:
        algorithm: The algorithm that trains.
        callbacks: The callbacks of the run.

    Raises:
        OSError: If ``run_dir`` cannot be written to, holds another run, or a run is training in it.
        ImportError: If a logger or a video needs a package that is not installed.
        RuntimeError: If videos are set and the env cannot be rendered.
    """

    def __init__(self, algorithm: Algorithm, callbacks: CallbackCaller) -> None:
        config, self._algorithm = algorithm.config, algorithm
        if algorithm.lost_run_dir:
            logger.warning("%s", algorithm.lost_run_dir)
        if config.evaluation_num_videos:
            from algorithms.run.video import check_recording  # videos are named as run folders are

            check_recording(config.for_evaluation())
        run = LoggedRun(
            name=run_name(algorithm),
            folder=None if config.run_dir is None else Path(config.run_dir),
            env_steps=algorithm.clock,
            seed=algorithm.run_seed,
            config=config.to_dict(),
            seconds=algorithm.metrics.seconds,
            unlogged=algorithm.metrics.unlogged,
        )
        self._about: dict[str, Any] = {
            "algorithm": name_of(config),
            "name": run.name,
            "seed": run.seed,
            "config": run.config,
        }
        self.folder: RunFolder | None = None
        self._best = -math.inf
        with ExitStack() as undone:
            if run.folder is not None:
                which = f"{self._about['algorithm']} with seed {run.seed}"
                clock = 0 if algorithm.changes_run_dir else run.env_steps
                self.folder = RunFolder(run.folder, clock=clock, run=which)
                undone.callback(self.folder.undo)
                self._best = best_return_in(self.folder.best_checkpoint)
            self._loggers = LoggerGroup(config.loggers, run)
            if self.folder is not None:
                undone.callback(self._loggers.close)
                earlier = read_about(self.folder.path)
                if run.env_steps and earlier is not None and "goal" in earlier:  # a resumed run keeps its goal
                    self._about["goal"] = earlier["goal"]
                self._write_about()
            for row in run.unlogged:
                self._loggers.log(row, clock_of(row))
            undone.pop_all()
        # Whether `checkpoint/` was written for the last row of the log.
        self._checkpoint_is_last = False
        self._writer, self._callbacks = CheckpointWriter(algorithm, config.keep_checkpoints), callbacks
        self._in_background = False

    def _write_about(self) -> None:
        assert self.folder is not None
        replace_file(self.folder.about, json.dumps(self._about, indent=1) + "\n")

    def keep_goal(self, goal: Goal) -> None:
        """Write ``goal`` to run.json. Do nothing if the run writes no files."""
        if self.folder is not None:
            self._about["goal"] = goal.to_dict()
            self._write_about()

    @contextmanager
    def writing_in_background(self) -> Iterator[None]:
        """Within the block, let :meth:`write` return while its checkpoints are still being written. Wait for them at
        the end of the block."""
        self._in_background = True
        try:
            yield
        finally:
            self._in_background = False
            self._finish()

    def write(self, result: dict[str, Any]) -> None:
        """Log the result of an iteration, or of the evaluation at the end, and write the checkpoints that are due.

        Among equal evaluations, the last counts as the best. If checkpoints or logs failed, add
        ``num_checkpoints_failed`` and ``num_logs_failed`` to ``result``. A row has the failures before it.

        Raises:
            OSError, ValueError: If several checkpoints in a row could not be written (see :class:`CheckpointWriter`).
            LoggerFailed: If a logger fails several times in a row; names it. The checkpoints are then written.
        """
        self._add_failures(result)
        failed, num_failed, metrics = None, self._loggers.num_failed, self._algorithm.metrics
        row = dict(flatten(result))
        try:
            # before the checkpoints: if the run is killed in between, it resumes before this row, and logs it again
            self._loggers.log(row, metrics.clock)
        except LoggerFailed as error:
            failed = error
        # A file gets the rows that it could not write with the next one: until then, the checkpoints hold them.
        if self._loggers.num_failed == num_failed:
            metrics.unlogged = ()
        else:
            as_json = json.loads(json.dumps(row, default=str))  # callbacks may have added anything
            metrics.unlogged = (*metrics.unlogged, as_json)[-MOST_FAILED_IN_A_ROW:]
        self._write_checkpoints(evaluation_return(result))
        self._add_failures(result)
        if failed is not None:
            raise failed

    def _add_failures(self, result: dict[str, Any]) -> None:
        for name, number in (("checkpoints", self._writer.num_failed), ("logs", self._loggers.num_failed)):
            if number:
                result[f"num_{name}_failed"] = number

    def _write_checkpoints(self, mean: float | None) -> None:
        """Write the checkpoints that are due after an iteration; ``mean`` is the return of its evaluation, if any."""
        algorithm, interval = self._algorithm, self._algorithm.config.checkpoint_interval
        if self.folder is not None:
            is_best = algorithm.config.keep_best_checkpoint and mean is not None and mean >= self._best  # not for NaN
            is_due = interval is not None and algorithm.metrics.iterations % interval == 0
            if is_best or is_due:
                self._finish()
                best = self.folder.best_checkpoint if is_best else None
                self._writer.start(self.folder.checkpoint if is_due else None, best)
                self._best = self._best if mean is None or best is None else mean
            self._checkpoint_is_last = is_due
            # a callback is called at once, so that runs on one seed are equal whatever it does
            if not self._in_background or self._callbacks.listeners["on_checkpoint"]:
                self._finish()

    def _finish(self, **most_failed: int) -> None:
        """Wait for the checkpoints that are being written, and call ``on_checkpoint`` for each that is complete.
        ``most_failed`` goes to :meth:`CheckpointWriter.finish`."""
        for path, is_written in self._writer.finish(**most_failed):
            if is_written:
                self._callbacks.call("on_checkpoint", algorithm=self._algorithm, path=path.absolute())
            elif path.name == "best_checkpoint":
                self._best = best_return_in(path)
            else:
                self._checkpoint_is_last = False

    def write_checkpoint(self) -> Path:
        """Write ``checkpoint/``, unless it was written after the last iteration, and return its path.

        Raises:
            OSError, ValueError: If it cannot be written, or a weight is NaN or infinite.
        """
        assert self.folder is not None
        self._finish()
        if not self._checkpoint_is_last:
            self._writer.start(self.folder.checkpoint, None)
            self._finish(most_failed=1)
            self._checkpoint_is_last = True
        return self.folder.checkpoint.absolute()

    def close(self) -> None:
        """Wait for the checkpoints that are being written, close the loggers, and unlock the folder.

        Raises:
            LoggerFailed: If a logger fails; names it.
        """
        with ExitStack() as closed:
            if self.folder is not None:
                closed.callback(self.folder.release)
            closed.callback(self._loggers.close)
            self._finish()


def best_return_in(checkpoint: Path) -> float:
    """Return the mean return of the last evaluation before a checkpoint was written; ``-inf`` if it cannot be read."""
    try:
        mean = read_manifest(checkpoint, KIND)["about"]["last_evaluation"]
    except (DamagedFolder, KeyError, TypeError):
        return -math.inf
    return mean if isinstance(mean, float) else -math.inf


def run_name(algorithm: Algorithm) -> str:
    """Return the algorithm and env as text: ``PPO on CartPole-v1``, or ``BC on data`` without an env."""
    return printable(f"{type(algorithm).__name__} on {env_name(algorithm.config.env)}")


def env_name(env: Any) -> str:
    """Return the name of an env: its id, the name of its class or function, or the class name of any other factory.
    None is ``data``, from which a run without an env learns."""
    if isinstance(env, str):
        return env
    if env is None:
        return "data"
    return env.__name__ if isinstance(env, type | FunctionType) else type(env).__name__


def new_run_dir(algorithm: str, env: Any, below: StrPath = "") -> Path:
    """Create and return the folder ``runs/<algorithm>-<env>-<time>`` in the folder ``below``. If it exists already,
    append a number to the name.

    Raises:
        OSError: If the folder cannot be created.
    """
    # replace characters with a meaning in paths or shells, as in ALE/Pong-v5 or my_envs:MyEnv-v0
    env_part = re.sub(r"[^\w.-]+", "-", env_name(env)).strip("-.")
    base = path = Path(below, "runs") / f"{algorithm.lower()}-{env_part}-{time.strftime('%Y%m%d-%H%M%S')}"
    for number in count(2):
        try:
            path.mkdir(parents=True)
            break
        except FileExistsError:
            path = base.with_name(f"{base.name}-{number}")
    return path
