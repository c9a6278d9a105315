"""The interface of all loggers, their names, and what they share."""

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from operator import methodcaller
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from catalog.errors import closest

LOGGERS = {
    "csv": "algorithms.loggers.csv:CsvLogger",
    "jsonl": "algorithms.loggers.jsonl:JsonlLogger",
    "mlflow": "algorithms.loggers.mlflow:MlflowLogger",
    "tensorboard": "algorithms.loggers.tensorboard:TensorBoardLogger",
    "wandb": "algorithms.loggers.wandb:WandbLogger",
}
"""Name → module and name of its class."""

DEFAULT_LOGGERS = ("jsonl", "tensorboard")
"""Those of a run that has a folder and asks for no others."""

STEPS = "env_runners/num_env_steps_sampled_lifetime"
"""The metric that counts a run's env steps."""


@dataclass(frozen=True)
class LoggedRun:
    """What a logger knows of its run.

    Attributes:
        name: Algorithm and env, ``PPO on CartPole-v1``.
        folder: ``run_dir``; None if the run writes no files.
        env_steps: Env steps at which it begins: 0, or more for a run that goes on from a checkpoint. What was logged
            of later steps, by a run that was then cut off, is not part of it.
        seed: The run's seed.
        config: All settings as JSON values.
    """

    name: str
    folder: Path | None
    env_steps: int
    seed: int
    config: Mapping[str, Any]


class Logger(ABC):
    """Writes or sends the results of a run. Made at the run's first iteration, closed at its end.

    Override points:
        ``log``: takes one iteration's result.
        ``close``: when there will be no more.
        ``needs_folder``: whether it writes into ``run.folder``, which then is a folder that exists.

    Args:
        run: What it logs.

    Raises:
        ValueError: If it needs a folder and the run has none.
        OSError: If it cannot write.
        ImportError: If it needs a package that is not installed; says how to install it.
    """

    needs_folder: bool = False

    def __init__(self, run: LoggedRun) -> None:
        if self.needs_folder and run.folder is None:
            raise _no_folder(type(self))
        self.run = run

    @abstractmethod
    def log(self, values: Mapping[str, Any], env_steps: int) -> None:
        """Take one iteration's result.

        Args:
            values: The result by path, ``env_runners/episode_return_mean``: numbers (NaN and infinities are None) and,
                from callbacks, whatever else can be written as JSON.
            env_steps: Env steps sampled so far.
        """

    def close(self) -> None:
        """Write what is left; nothing is logged afterwards."""


LoggerFactory: TypeAlias = Callable[[LoggedRun], Logger]
"""A class derived from :class:`Logger`, or any function that makes one."""


class LoggerGroup:
    """The loggers of a run: made, called and closed together.

    Args:
        chosen: Names of :data:`LOGGERS`, classes, or functions that make one; None takes :data:`DEFAULT_LOGGERS` if
            the run has a folder, and else none.
        run: What they log.

    Raises:
        ValueError: If there is no logger of a name, or one needs a folder and the run has none.
        OSError, ImportError: See :class:`Logger`; other errors are those of the logger.
    """

    def __init__(self, chosen: Sequence[str | LoggerFactory] | None, run: LoggedRun) -> None:
        if chosen is None:
            chosen = DEFAULT_LOGGERS if run.folder is not None else ()
        self._loggers: list[Logger] = []
        try:
            for one in chosen:
                made = _factory(one)(run)
                if not isinstance(made, Logger):
                    raise TypeError(
                        f"loggers: {one!r}: expected a Logger, got {type(made).__name__}. Return one of a class "
                        "derived from algorithms.loggers.Logger."
                    )
                self._loggers.append(made)
        except BaseException:
            with suppress(RuntimeError):  # the first error is the one to raise
                self.close()
            raise

    def log(self, values: Mapping[str, Any], env_steps: int) -> None:
        """See :meth:`Logger.log`; if one fails, the others still log.

        Raises:
            RuntimeError: If one fails; names it, and has the error as its cause.
        """
        self._call_each("log", values, env_steps)

    def close(self) -> None:
        """See :meth:`Logger.close`; if one fails, the others are still closed.

        Raises:
            RuntimeError: If one fails; names it, and has the error as its cause.
        """
        try:
            self._call_each("close")
        finally:
            self._loggers = []

    def _call_each(self, method: str, *arguments: Any) -> None:
        failed: list[tuple[Logger, Exception]] = []
        for logger in self._loggers:
            try:
                methodcaller(method, *arguments)(logger)
            except Exception as error:
                failed.append((logger, error))
        for logger, error in failed:
            raise RuntimeError(
                f"logger {type(logger).__name__}.{method}(): expected no error, got {type(error).__name__}: {error}. "
                "Correct the cause, or leave this logger out: .reporting(loggers=[...])."
            ) from error


def check_loggers(chosen: Sequence[str | LoggerFactory] | None, run_dir: str | None) -> None:
    """Raise ``ValueError`` if :class:`LoggerGroup` would, as far as names and classes show before the run, or for a
    name that is there twice."""
    chosen = [*(chosen or ())]
    for one in chosen:
        if isinstance(one, str) and chosen.count(one) > 1:
            raise ValueError(f"loggers: expected each name once, got {chosen!r}. Leave the second one out.")
        if needs_folder(one) and run_dir is None:
            raise _no_folder(one)


def needs_folder(one: str | LoggerFactory) -> bool:
    """Check whether a name or class is that of a logger that writes into ``run_dir``."""
    factory = _factory(one)
    return isinstance(factory, type) and issubclass(factory, Logger) and factory.needs_folder


def _factory(one: str | LoggerFactory) -> LoggerFactory:
    if not isinstance(one, str):
        return one
    if one not in LOGGERS:
        raise ValueError(
            f"loggers: expected one of {', '.join(LOGGERS)}, got {one!r}. Name one of these, or "
            f"pass a class derived from algorithms.loggers.Logger.{closest(one, LOGGERS)}"
        )
    module, _, name = LOGGERS[one].partition(":")
    return vars(import_module(module))[name]


def _no_folder(one: object) -> ValueError:
    return ValueError(f"loggers: {one!r}: expected a run_dir, got None. Set one: .reporting(run_dir='runs/mine').")


# --- what loggers share -----------------------------------------------------------------------------------------------


def flatten(result: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a nested result by path, ``env_runners/episode_return_mean``, as plain values."""
    for key, value in result.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", _plain(value)


def _plain(value: Any) -> Any:
    """Turn tensors and arrays into numbers or lists, and NaN and infinities, which JSON lacks, into None."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def numbers_of(values: Mapping[str, Any]) -> dict[str, int | float]:
    """Those of ``values`` that are numbers; True is 1."""
    return {name: +value for name, value in values.items() if isinstance(value, int | float)}


def replace_file(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically."""
    staged = path.with_name(f".{path.name}-new")
    staged.write_text(text, encoding="utf-8", newline="")
    os.replace(staged, path)


@contextmanager
def needed_package(name: str, remedy: str) -> Iterator[None]:
    """Explain an ``ImportError`` inside: ``name`` is missing or broken, and ``remedy`` says what to install."""
    try:
        yield
    except ImportError as error:
        raise ImportError(f"loggers: {name!r}: expected the package {name}, got {error}. {remedy}") from error


class ServiceRun:
    """The id of this run at a service, kept in the run's folder for when it goes on from a checkpoint.

    Args:
        run: The run here.
        service: The service's name.
    """

    def __init__(self, run: LoggedRun, service: str) -> None:
        self._path = None if run.folder is None else run.folder / f"{service}_run_id"
        self.known: str | None = None
        """The id to go on with; None begins a new one."""
        if self._path is not None and run.env_steps and self._path.exists():
            self.known = self._path.read_text(encoding="utf-8").strip()

    def keep(self, run_id: str) -> None:
        """Remember the id."""
        if self._path is not None:
            self._path.write_text(f"{run_id}\n", encoding="utf-8")
