"""The interface of loggers, their names, and helpers that several of them use."""

from __future__ import annotations

import logging
import math
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from catalog.hooks import Hooks
from catalog_rl import unknown

LOGGERS = {
    "csv": "algorithms.loggers.csv:CsvLogger",
    "jsonl": "algorithms.loggers.jsonl:JsonlLogger",
    "mlflow": "algorithms.loggers.mlflow:MlflowLogger",
    "tensorboard": "algorithms.loggers.tensorboard:TensorBoardLogger",
    "wandb": "algorithms.loggers.wandb:WandbLogger",
}
"""Name of a logger → its module and class."""

DEFAULT_LOGGERS = ("jsonl", "tensorboard")
"""Loggers of a run that has a ``run_dir`` and does not set ``loggers``."""

STEPS = "env_runners/num_env_steps_sampled_lifetime"
"""Path of the metric that counts the env steps of the whole run."""
SECONDS = "time_total_s"
"""Path of the metric that counts the seconds of the whole run."""
CLOCK = "clock"
"""Path of the run's clock, in rows of a run that has taken updates from data."""

MOST_FAILED_IN_A_ROW = 3
"""Number of results in a row that a logger may fail to log before the run ends with an error."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoggedRun:
    """Describes a run to its loggers.

    Attributes:
        name: Algorithm and env, such as ``PPO on CartPole-v1``.
        folder: The run's ``run_dir``. None if the run writes no files.
        env_steps: The clock at which the run begins: 0, or more if it resumes from a checkpoint. A logger drops the
            results that an interrupted run logged after that. The clock of a run that learns from data counts its
            updates from them, too; see :attr:`algorithms.Algorithm.clock`.
        seed: The run's seed.
        config: All settings as JSON values.
        seconds: Seconds that the run had taken at ``env_steps``. An evaluation at the end of an interrupted run may
            have logged a result later, at the same step.
        unlogged: Results, by path, that are logged again because a logger could not log them before the checkpoint. A
            logger that did drops them.
    """

    name: str
    folder: Path | None
    env_steps: int
    seed: int
    config: Mapping[str, Any]
    seconds: float = math.inf
    unlogged: Sequence[Mapping[str, Any]] = ()

    def includes(self, row: Mapping[str, Any]) -> bool:
        """Return whether the run had logged ``row``, a result by path, when it was saved."""
        clock, seconds = _time_of(row)
        return (
            clock <= self.env_steps and seconds <= self.seconds and (clock, seconds) not in map(_time_of, self.unlogged)
        )


class Logger(Hooks, ABC):
    """Writes or sends the results of a run. It is built in the run's first iteration and closed at its end.

    Override points:
        ``log``: Write one iteration's result.
        ``close``: Write what is buffered, after the last result.
        ``needs_folder``: Class attribute, True if the logger writes into ``run.folder``, which then exists.

    Args:
        run: The run to log.

    Raises:
        ValueError: If the logger needs a folder and the run has none.
        OSError: If the logger cannot write.
        ImportError: If a package it needs is not installed. The message says how to install it.
    """

    needs_folder: bool = False

    def __init__(self, run: LoggedRun) -> None:
        if self.needs_folder and run.folder is None:
            raise _no_folder(type(self))
        self.run = run

    @abstractmethod
    def log(self, values: Mapping[str, Any], env_steps: int) -> None:
        """Write one iteration's result.

        Args:
            values: The result by path, such as ``env_runners/episode_return_mean``. Values are numbers, or None for NaN
                and infinities; values from callbacks may be anything that JSON can hold.
            env_steps: The run's clock, see :attr:`algorithms.Algorithm.clock`: env steps sampled so far, and updates
                taken from data.
        """

    def close(self) -> None:
        """Write buffered results, and release resources. No result follows."""


LoggerFactory: TypeAlias = Callable[[LoggedRun], Logger]
"""A class derived from :class:`Logger`, or any function that returns a logger."""


class LoggerFailed(RuntimeError):
    """Raised if a logger fails. The message names it, and its error is the cause."""


class LoggerGroup:
    """Builds, calls and closes the loggers of a run.

    Args:
        chosen: Names in :data:`LOGGERS`, classes, or functions that return a logger. None means :data:`DEFAULT_LOGGERS`
            if the run has a folder, else no loggers.
        run: The run to log.

    Raises:
        ValueError: If a name is unknown, or a logger needs a folder and the run has none.
        TypeError: If a function does not return a logger.
        OSError, ImportError: As :class:`Logger`. A logger may raise other errors.

    Attributes:
        num_failed: Number of results that could not be logged, summed over the loggers.
    """

    def __init__(self, chosen: Sequence[str | LoggerFactory] | None, run: LoggedRun) -> None:
        if chosen is None:
            chosen = DEFAULT_LOGGERS if run.folder is not None else ()
        self._loggers: list[Logger] = []
        self.num_failed = 0
        self._failed_in_a_row: Counter[int] = Counter()  # by the logger's position
        try:
            for name_or_factory in chosen:
                made = _factory(name_or_factory)(run)
                if not isinstance(made, Logger):
                    raise TypeError(
                        f"loggers: {name_or_factory!r}: expected a Logger, got {type(made).__name__}. "
                        "Return an instance of a class derived from algorithms.loggers.Logger."
                    )
                self._loggers.append(made)
        except BaseException:
            with suppress(RuntimeError):  # the first error is the one to raise
                self.close()
            raise

    def log(self, values: Mapping[str, Any], env_steps: int) -> None:
        """Call :meth:`Logger.log` of all loggers, even if one of them fails. Count failures and log a warning.

        Raises:
            LoggerFailed: If one fails for the :data:`MOST_FAILED_IN_A_ROW`-th time in a row. Raised after all calls.
        """
        failed = self._call_each("log", values, env_steps)
        self.num_failed += len(failed)
        self._failed_in_a_row = Counter({at: self._failed_in_a_row[at] + 1 for at in failed})
        for at, error in failed.items():
            if self._failed_in_a_row[at] >= MOST_FAILED_IN_A_ROW:
                raise error
            logger.warning("A result was not logged. %s", error)

    def close(self) -> None:
        """Close all loggers, even if one of them fails.

        Raises:
            LoggerFailed: If a logger fails.
        """
        try:
            failed = self._call_each("close")
        finally:
            self._loggers = []
        for error in failed.values():
            raise error

    def _call_each(self, method: str, *arguments: Any) -> dict[int, LoggerFailed]:
        """Call ``method`` of all loggers. Return the errors of those that failed, by their positions."""
        failed: dict[int, LoggerFailed] = {}
        for at, logger in enumerate(self._loggers):
            try:
                getattr(logger, method)(*arguments)
            except Exception as error:
                failed[at] = LoggerFailed(
                    f"logger {type(logger).__name__}.{method}(): expected no error, got {type(error).__name__}: "
                    f"{error}. Fix the cause, or leave this logger out: .reporting(loggers=[...])."
                )
                failed[at].__cause__ = error
        return failed


def check_loggers(chosen: Sequence[str | LoggerFactory] | None, run_dir: str | None) -> None:
    """Check ``chosen``, the setting ``loggers``, before a run starts.

    Raises:
        ValueError: If a name is unknown or given twice, or a logger needs a ``run_dir`` and the run has none.
    """
    chosen = [*(chosen or ())]
    for choice in chosen:
        if isinstance(choice, str) and chosen.count(choice) > 1:
            raise ValueError(f"loggers: expected each name once, got {chosen!r}. Leave the second one out.")
        if needs_folder(choice) and run_dir is None:
            raise _no_folder(choice)


def needs_folder(choice: str | LoggerFactory) -> bool:
    """Return whether ``choice``, the name or class of a logger, writes into ``run_dir``. Return False for a function,
    since the logger that it returns is not known before the run begins.

    Raises:
        ValueError: If the name is unknown.
    """
    factory = _factory(choice)
    return isinstance(factory, type) and issubclass(factory, Logger) and factory.needs_folder


def _factory(choice: str | LoggerFactory) -> LoggerFactory:
    if not isinstance(choice, str):
        return choice
    if choice not in LOGGERS:
        remedy = "Use one of these names, or pass a class derived from algorithms.loggers.Logger."
        raise unknown("loggers", "names", LOGGERS, choice, remedy)
    return resolve_name(LOGGERS[choice])


def _no_folder(choice: object) -> ValueError:
    return ValueError(f"loggers: {choice!r}: expected a run_dir, got None. Set one: .reporting(run_dir='runs/mine').")


# --- what loggers share -----------------------------------------------------------------------------------------------


def clock_of(row: Mapping[str, Any]) -> Any:
    """Return the run's clock in ``row``, a result by path: a number, or from a table its text."""
    return row.get(CLOCK) or row.get(STEPS) or 0


def is_result(row: Any) -> bool:
    """Return whether ``row``, read from a file, can be a result by path: a dict whose clock and seconds are numbers."""
    return isinstance(row, dict) and all(
        isinstance(row.get(name) or 0, int | float) for name in (CLOCK, STEPS, SECONDS)
    )


def _time_of(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the clock and the seconds of ``row``, a result by path. No two results of a run have both in common."""
    return float(clock_of(row)), float(row.get(SECONDS) or 0)


def flatten(result: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and value of each leaf of a nested result; a path is like ``env_runners/episode_return_mean``."""
    for key, value in result.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", _plain(value)


def _plain(value: Any) -> Any:
    """Replace tensors and arrays with numbers or lists, and NaN and infinities, which JSON lacks, with None."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def numbers_of(values: Mapping[str, Any]) -> dict[str, int | float]:
    """Return the entries of ``values`` that are numbers, with True as 1 and False as 0."""
    return {name: +value for name, value in values.items() if isinstance(value, int | float)}


def replace_file(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically."""
    staged = path.with_name(f".{path.name}-new")
    with _writing(path):
        staged.write_text(text, encoding="utf-8", newline="")
        os.replace(staged, path)


def append_whole(path: Path, data: bytes) -> None:
    """Append ``data`` to the file ``path``: all of it or, if that fails, nothing, so that no later row joins half a
    row."""
    with _writing(path), open(path, "ab", buffering=0) as file:
        end = file.tell()
        try:
            written = 0
            while written < len(data):  # a write may be short, as on a disk that is almost full
                written += file.write(data[written:])
        except BaseException:
            file.truncate(end)
            raise


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Replace an ``OSError`` raised inside the block, as on a full disk, with one that names ``path`` and a remedy."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{str(path)!r}: expected a file to write to, got {error.strerror or error}. Free disk space or get "
            "permission there, or choose another folder."
        ) from error


@contextmanager
def needed_package(where: str, name: str, remedy: str) -> Iterator[None]:
    """Replace an ``ImportError`` raised inside the block with an ``ImportError`` that begins with ``where``, names the
    package ``name``, and ends with ``remedy``."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"{where}: expected the package {name}, got {error}. {remedy}") from error


class ServiceRun:
    """Stores the id that a logging service gave to a run, in the run's folder, so that a resumed run keeps this id.

    Args:
        run: The run that is logged.
        service: The service's name. The id is in the file ``<service>_run_id``.

    Attributes:
        known: The id with which to continue. None if the service must create a new run.
    """

    def __init__(self, run: LoggedRun, service: str) -> None:
        self._path = None if run.folder is None else run.folder / f"{service}_run_id"
        self.known: str | None = None
        if self._path is not None and run.env_steps and self._path.exists():
            self.known = self._path.read_text(encoding="utf-8").strip()

    def keep(self, run_id: str) -> None:
        """Write the id to the run's folder. Do nothing if the run has no folder."""
        if self._path is not None:
            self._path.write_text(f"{run_id}\n", encoding="utf-8")
