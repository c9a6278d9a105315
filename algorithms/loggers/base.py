"""The interface of all loggers, and which there are."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from catalog.errors import closest, explain_error

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
    """Takes the results of a run somewhere. Made at the run's first iteration, closed at its end.

    Override points:
        ``log``: takes one iteration's result.
        ``close``: when there will be no more.
        ``needs_folder``: whether it writes into ``run.folder``, which then is a folder that exists.

    Args:
        run: What it logs.

    Raises:
        OSError: If it cannot write.
        ImportError: If it needs a package that is not installed; says how to install it.
    """

    needs_folder: bool = False

    def __init__(self, run: LoggedRun) -> None:
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


def make_loggers(chosen: Sequence[str | Callable[[LoggedRun], Logger]] | None, run: LoggedRun) -> list[Logger]:
    """The loggers of a run.

    Args:
        chosen: Names of :data:`LOGGERS`, classes, or functions that make one; None takes :data:`DEFAULT_LOGGERS` if
            the run has a folder, and else none.
        run: What they log.

    Raises:
        ValueError: If there is no logger of a name, or one needs a folder and the run has none.
        TypeError: If a function makes something else.
        OSError, ImportError: See :class:`Logger`.
    """
    if chosen is None:
        chosen = DEFAULT_LOGGERS if run.folder is not None else ()
    made: list[Logger] = []
    try:
        for one in chosen:
            made.append(_make(one, run))
    except BaseException:
        for logger in made:
            logger.close()
        raise
    return made


def check_loggers(chosen: Sequence[str | Callable[[LoggedRun], Logger]] | None, run_dir: str | None) -> None:
    """Raise ``ValueError`` if :func:`make_loggers` would, as far as can be told before the run."""
    for one in chosen or ():
        factory = _factory(one)
        if run_dir is None and inspect.isclass(factory) and issubclass(factory, Logger) and factory.needs_folder:
            raise _no_folder(factory)


def _factory(one: str | Callable[[LoggedRun], Logger]) -> Callable[[LoggedRun], Logger]:
    if not isinstance(one, str):
        return one
    if one not in LOGGERS:
        remedy = f"Name one of these, or pass a class derived from algorithms.loggers.Logger.{closest(one, LOGGERS)}"
        raise ValueError(
            explain_error("loggers", expected=f"one of {', '.join(LOGGERS)}", got=repr(one), remedy=remedy)
        )
    module, _, name = LOGGERS[one].partition(":")
    return vars(import_module(module))[name]


def _make(one: str | Callable[[LoggedRun], Logger], run: LoggedRun) -> Logger:
    factory = _factory(one)
    if inspect.isclass(factory) and issubclass(factory, Logger) and factory.needs_folder and run.folder is None:
        raise _no_folder(factory)
    made = factory(run)
    if not isinstance(made, Logger):
        remedy = "Return one of a class derived from algorithms.loggers.Logger."
        raise TypeError(explain_error(f"loggers: {one!r}", expected="a Logger", got=type(made).__name__, remedy=remedy))
    return made


def _no_folder(factory: type[Logger]) -> ValueError:
    remedy = "Set one: .reporting(run_dir='runs/mine')."
    return ValueError(explain_error(f"loggers: {factory.__name__}", expected="a run_dir", got="None", remedy=remedy))
