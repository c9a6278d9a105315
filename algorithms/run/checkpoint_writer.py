"""Write the checkpoints of a run while its training goes on."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from algorithms.run.checkpoints import NotFinite, checkpoint_content, history_of, prepare_content, saved_clock
from rlmodule.checkpoint import KIND, verify_checkpoint
from rlmodule.sealed_folder import DamagedFolder, read_folder

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm

MOST_FAILED_IN_A_ROW = 3
"""Number of failed checkpoints in a row after which the run ends with an error."""

logger = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes checkpoints in a thread, those of one call of :meth:`start` at a time.

    Tensors are copied first, so that training can go on. The tensors of a replay buffer may be too large to copy, so
    :meth:`start` returns only after they are written.

    Args:
        algorithm: The algorithm to save.
        keep: Number of newest checkpoints to keep. All but the last are in the folder ``checkpoints`` next to the last.

    Attributes:
        num_failed: Number of checkpoints that could not be written.
    """

    def __init__(self, algorithm: Algorithm, keep: int) -> None:
        self._algorithm, self._keep = algorithm, keep
        self._written: list[tuple[Path, Future[Any]]] = []
        self.num_failed = self._failed_in_a_row = 0

    def start(self, last: Path | None, best: Path | None) -> None:
        """Begin to write the checkpoint ``last`` and, without the replay buffer, the checkpoint ``best``. A path of
        None is not written. If a weight is NaN or infinite, write nothing; :meth:`finish` then reports the failure.

        Call :meth:`finish` first, to wait for the checkpoints of the previous call.
        """
        try:
            content = checkpoint_content(self._algorithm)
        except NotFinite as error:
            failed = Future[Any]()
            failed.set_exception(error)
            self._written = [(path, failed) for path in (last, best) if path is not None]
            return
        waits = last is not None and "replay" in content
        write_last = None if last is None else prepare_content(content, copy=not waits)
        jobs: list[tuple[Path, Callable[..., Any]]] = []
        if last is not None and write_last is not None:
            keeps = partial(_write_and_keep, write_last, self._algorithm.clock, self._keep)
            jobs.append((last, keeps if self._keep > 1 else write_last))
        if best is not None:
            content.pop("replay", None)
            # Without a replay buffer, both checkpoints are the same, and one copy of the tensors is enough.
            write_best = prepare_content(content, copy=True) if write_last is None or waits else write_last
            jobs.append((best, write_best))
        thread = ThreadPoolExecutor(1, "checkpoint writer")
        # The best one is written first. A run that is killed in between resumes from the last checkpoint before, and
        # evaluates again. The other way round, it would resume after the evaluation, without its best weights.
        best_first = [(path, thread.submit(write, path)) for path, write in reversed(jobs)]
        self._written = best_first[::-1]
        thread.shutdown(wait=waits)  # the thread ends once all is written

    def finish(self, *, most_failed: int = MOST_FAILED_IN_A_ROW) -> list[tuple[Path, bool]]:
        """Wait until the checkpoints are written. Return each path, and whether it was written. Log failures.

        Args:
            most_failed: Number of failures in a row after which to raise an error.

        Raises:
            OSError, NotFinite: If ``most_failed`` checkpoints in a row could not be written, or had weights that are
                NaN or infinite. An error of any other type is raised at the first failure.
        """
        done = [(path, written.exception()) for path, written in self._written]
        self._written = []
        for _, error in done:
            self._failed_in_a_row = 0 if error is None else self._failed_in_a_row + 1
            if error is None:
                continue
            self.num_failed += 1
            if self._failed_in_a_row >= most_failed or not isinstance(error, OSError | NotFinite):
                raise error
            logger.warning("A checkpoint was not written. %s", error)
        return [(path, error is None) for path, error in done]


def _write_and_keep(write: Callable[..., Path], clock: int, keep: int, path: Path) -> None:
    """Write a checkpoint to ``path``, and move the checkpoint that it replaces to the folder ``checkpoints``, unless
    both have the same ``clock``.

    Read the new checkpoint back. If it is undamaged, keep the newest ``keep - 1`` complete checkpoints in the folder
    ``checkpoints``, and delete all that are older. If fewer are complete, delete none.
    """
    aside = None
    if _is_complete(path):
        earlier = saved_clock(path)
        if earlier != clock:
            aside = path.with_name("checkpoints") / str(earlier)
            aside.parent.mkdir(exist_ok=True)
    write(path, aside)
    verify_checkpoint(path)
    history = history_of(path.parent)
    complete = [folder for folder in history if _is_complete(folder)]
    if len(complete) >= keep:
        oldest_kept = complete[keep - 2]
        for old in history[history.index(oldest_kept) + 1 :]:
            shutil.rmtree(old, ignore_errors=True)


def _is_complete(folder: Path) -> bool:
    """Return whether a checkpoint has all its files at full size, without reading their content."""
    with suppress(DamagedFolder):
        read_folder(folder, KIND, names=())
        return True
    return False
