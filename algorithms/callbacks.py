"""Callbacks: code of the user's that a run calls as it goes, as functions or as one class.

::

    config.callbacks(on_train_result=lambda algorithm, result: print(result["training_iteration"]))

    class Watch(Callbacks):
        def on_episode_end(self, *, algorithm, episode):
            algorithm.metrics.log_value("success", episode.info["is_success"])

    config.callbacks(Watch)

All arguments go by keyword. What is not listened to costs nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnasium.vector import VectorEnv

from catalog.errors import closest, explain_error
from rlmodule.rollout import Rollout

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm


@dataclass(frozen=True)
class FinishedEpisode:
    """What ``on_episode_end`` is told.

    Attributes:
        episode_return: Sum of its rewards.
        length: Its steps.
        env_index: Which of the environments played it.
        info: The ``info`` of its last step.
        in_evaluation: Whether it belongs to an evaluation.
    """

    episode_return: float
    length: int
    env_index: int
    info: dict[str, Any]
    in_evaluation: bool


class Callbacks:
    """What a run calls as it goes; override what is of interest. One object is made for each run.

    Raises:
        TypeError: When a subclass is defined, if a method's name begins with ``on_`` and is none of these.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in vars(cls):
            if name.startswith("on_") and name not in CALLBACKS:
                remedy = f"Call it something else, if it is a method of your own.{closest(name, CALLBACKS)}"
                expected = f"one of {', '.join(CALLBACKS)}"
                raise TypeError(explain_error(cls.__name__, expected=expected, got=name, remedy=remedy))

    def on_environment_created(self, *, env: VectorEnv[Any, Any, Any], in_evaluation: bool) -> None:
        """A vector of environments was made, for training or to evaluate in."""

    def on_sample_end(self, *, algorithm: Algorithm, rollout: Rollout) -> None:
        """A rollout was sampled for training; what it holds must not be changed."""

    def on_episode_end(self, *, algorithm: Algorithm, episode: FinishedEpisode) -> None:
        """An episode ended, in training or in an evaluation; called once its rollout is complete."""

    def on_evaluate_end(self, *, algorithm: Algorithm, evaluation: dict[str, Any]) -> None:
        """An evaluation is over; what is added to ``evaluation`` is reported with it."""

    def on_train_result(self, *, algorithm: Algorithm, result: dict[str, Any]) -> None:
        """An iteration is over; what is added to ``result`` is returned by ``train()`` and logged."""

    def on_checkpoint(self, *, algorithm: Algorithm, path: Path) -> None:
        """A checkpoint is complete at ``path``."""


CALLBACKS = tuple(name for name in vars(Callbacks) if name.startswith("on_"))
"""The names of all callbacks."""


def parameters_of(name: str) -> tuple[str, ...]:
    """What the callback ``name`` is called with, by keyword."""
    return tuple(inspect.signature(vars(Callbacks)[name]).parameters)[1:]


class CallbackCaller:
    """Calls what listens.

    Args:
        callbacks_class: See :class:`Callbacks`; made here. None for none.
        functions: Callback name → function; those that are None do not listen.

    Raises:
        TypeError: If a function cannot be called with the arguments of its callback; names both.
    """

    def __init__(
        self, callbacks_class: type[Callbacks] | None, functions: dict[str, Callable[..., Any] | None]
    ) -> None:
        self._listeners: dict[str, list[Callable[..., Any]]] = {name: [] for name in CALLBACKS}
        made = None if callbacks_class is None else callbacks_class()
        for name, listeners in self._listeners.items():
            if made is not None and getattr(type(made), name) is not getattr(Callbacks, name):
                listeners.append(getattr(made, name))
            if (function := functions.get(name)) is not None:
                listeners.append(function)
            for listener in listeners:
                _check_signature(name, listener)

    def listens(self, name: str) -> bool:
        """Whether anything is to be called."""
        return bool(self._listeners[name])

    def call(self, name: str, **arguments: Any) -> None:
        """Call all that listens to ``name``, the class first.

        Raises:
            RuntimeError: If one raises; names it, and has the error as its cause.
        """
        for listener in self._listeners[name]:
            try:
                listener(**arguments)
            except Exception as error:
                where, got = f"callback {name} ({_described(listener)})", f"{type(error).__name__}: {error}"
                remedy = f"Correct it, or leave it out: .callbacks({name}=None)."
                raise RuntimeError(explain_error(where, expected="no error", got=got, remedy=remedy)) from error


def _check_signature(name: str, listener: Callable[..., Any]) -> None:
    names = parameters_of(name)
    try:
        signature = inspect.signature(listener)
    except ValueError:  # some built-ins do not tell
        return
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError:
        where = f"callback {name} ({_described(listener)})"
        expected, got = f"arguments by keyword: {', '.join(names)}", f"one that takes {signature}"
        remedy = f"Define it as def {name}({', '.join(names)})."
        raise TypeError(explain_error(where, expected=expected, got=got, remedy=remedy)) from None


def _described(listener: Callable[..., Any]) -> str:
    """Name and place of a function, as an error tells them."""
    function = inspect.unwrap(listener)
    function = function.__func__ if inspect.ismethod(function) else function
    if not inspect.isfunction(function):
        return repr(listener)
    code = function.__code__
    return f"{function.__module__}.{function.__qualname__}, {Path(code.co_filename).name}:{code.co_firstlineno}"
