"""Callbacks: code of the user's that a run calls as it goes, as functions or as one class.

::

    config.callbacks(on_train_result=lambda algorithm, result: print(result["training_iteration"]))

    class Watch(Callbacks):
        def on_episode_end(self, *, algorithm, episode):
            algorithm.metrics.log_value("success", episode.info["is_success"])

    config.callbacks(Watch)

All arguments go by keyword, and what is returned is ignored. What is not listened to costs nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnasium.vector import VectorEnv

from catalog.errors import closest
from catalog.migration import remedy_for
from rlmodule.data.rollout import Rollout

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm
    from algorithms.config import AlgorithmConfig


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


def finished_episodes(rollout: Rollout, *, in_evaluation: bool) -> list[FinishedEpisode]:
    """The episodes that ended in ``rollout``, in order of time; with ``info`` if its runner recorded it."""
    stats = rollout.stats
    returns, lengths, slots = (stats[name].tolist() for name in ("episode_returns", "episode_lengths", "episode_slots"))
    infos = stats.get("episode_infos", [{}] * len(returns))
    return [
        FinishedEpisode(episode_return, length, slot, info, in_evaluation)
        for episode_return, length, slot, info in zip(returns, lengths, slots, infos, strict=True)
    ]


class Callbacks:
    """What a run calls as it goes; override what is of interest. One object is made for each run, without arguments.

    Raises:
        TypeError: When a subclass is defined, if a method's name begins with ``on_`` and is none of these, or it cannot
            be called with the arguments of its callback.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in dir(cls):  # which has the methods of a mixin too
            if name.startswith("on_") and name not in CALLBACKS:
                remedy = f"Call it something else, if it is a method of your own.{closest(name, CALLBACKS)}"
                remedy = remedy_for("setting", name) or remedy
                raise TypeError(f"{cls.__qualname__}: expected one of {', '.join(CALLBACKS)}, got {name}. {remedy}")
            if name in CALLBACKS and overrides(cls, name):
                check_callback(name, getattr(object.__new__(cls), name))

    def on_environment_created(self, *, env: VectorEnv[Any, Any, Any], in_evaluation: bool) -> None:
        """A vector of environments was made, for training or to evaluate in; the algorithm is not complete yet."""

    def on_sample_end(self, *, algorithm: Algorithm, rollout: Rollout) -> None:
        """A rollout was sampled for training, and is not learned from yet; what it holds must not be changed."""

    def on_episode_end(self, *, algorithm: Algorithm, episode: FinishedEpisode) -> None:
        """An episode ended, in training or in an evaluation; called once its rollout is complete."""

    def on_evaluate_end(self, *, algorithm: Algorithm, evaluation: dict[str, Any]) -> None:
        """An evaluation is over; what is added to ``evaluation`` is reported with it."""

    def on_train_result(self, *, algorithm: Algorithm, result: dict[str, Any]) -> None:
        """An iteration is over; what is added to ``result`` is returned by ``train()`` and logged."""

    def on_checkpoint(self, *, algorithm: Algorithm, path: Path) -> None:
        """A checkpoint was written, and is complete at ``path``."""


CALLBACKS = tuple(name for name in vars(Callbacks) if name.startswith("on_"))
"""The names of all callbacks."""

CALLBACK_SETTINGS = ("callbacks_class", *CALLBACKS)
"""Settings of the section ``callbacks``; a run does the same work if all of them are None."""


def overrides(callbacks_class: type[Callbacks] | None, name: str) -> bool:
    """Whether a class has a callback ``name`` of its own; makes no object of it."""
    return callbacks_class is not None and getattr(callbacks_class, name) is not getattr(Callbacks, name)


class CallbackCaller:
    """Calls what listens.

    Args:
        config: Whose callbacks to call; makes an object of its ``callbacks_class``.

    Attributes:
        listen_to_rollouts: Whether any of them wants rollouts, or the episodes that ended in them.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        made = None if config.callbacks_class is None else config.callbacks_class()
        if assigned := [name for name in CALLBACKS if made is not None and name in vars(made)]:
            raise TypeError(
                f"{type(made).__qualname__}: expected callbacks that are methods, got {', '.join(assigned)} "
                f"assigned in __init__. Write def {assigned[0]}(self, *, ...) in the class."
            )
        self._listeners: dict[str, list[tuple[str, Callable[..., Any]]]] = {}
        for name in CALLBACKS:
            own = [("callbacks_class", getattr(made, name))] if overrides(config.callbacks_class, name) else []
            function = getattr(config, name)
            self._listeners[name] = own + ([] if function is None else [(name, function)])
        self.listen_to_rollouts = self.listens("on_sample_end") or self.listens("on_episode_end")

    def listens(self, name: str) -> bool:
        """Whether anything is to be called."""
        return bool(self._listeners[name])

    def call(self, name: str, **arguments: Any) -> None:
        """Call all that listens to ``name``, the class first.

        Raises:
            RuntimeError: If one raises; names it, and has the error as its cause.
        """
        _call_all(name, self._listeners[name], arguments)

    def show_rollouts(self, algorithm: Algorithm, rollouts: Sequence[Rollout]) -> None:
        """Call ``on_sample_end`` and ``on_episode_end``. If one raises, new episodes start: the rollouts are lost to a
        replay, which must not take the next ones for their continuation.

        Raises:
            RuntimeError: See :meth:`call`.
        """
        try:
            for rollout in rollouts:
                self.call("on_sample_end", algorithm=algorithm, rollout=rollout)
                if self.listens("on_episode_end"):
                    for episode in finished_episodes(rollout, in_evaluation=False):
                        self.call("on_episode_end", algorithm=algorithm, episode=episode)
        except BaseException:
            with suppress(Exception):  # the first error is the one to raise
                algorithm.env_runner_group.reset()
            raise

    def show_result(self, algorithm: Algorithm, result: dict[str, Any]) -> None:
        """Call ``on_train_result`` with ``result``, which also gets what was logged so far.

        Raises:
            RuntimeError: See :meth:`call`.
            ValueError: If a section is gone that the run needs.
        """
        result |= algorithm.metrics.logged_means()
        self.call("on_train_result", algorithm=algorithm, result=result)
        if "env_runners" not in result:
            raise ValueError(
                "result after on_train_result: expected the section env_runners, got "
                f"{', '.join(result)}. Add to the result, and leave what is there."
            )

    def on_env(self, *, in_evaluation: bool) -> Callable[[VectorEnv[Any, Any, Any]], None] | None:
        """Return what a runner, maybe in another process, calls with its vector env: it calls a copy of what listens.
        None if nothing does."""
        listeners = self._listeners["on_environment_created"]
        call = partial(_call_all, "on_environment_created", listeners)
        return (lambda env: call({"env": env, "in_evaluation": in_evaluation})) if listeners else None


def _call_all(name: str, listeners: list[tuple[str, Callable[..., Any]]], arguments: Mapping[str, Any]) -> None:
    for setting, listener in listeners:
        try:
            listener(**arguments)
        except Exception as error:
            where, got = f"callback {name} ({_described(listener)})", f"{type(error).__name__}: {error}".rstrip(".")
            raise RuntimeError(
                f"{where}: expected no error, got {got}. Correct it, or leave it out: .callbacks({setting}=None)."
            ) from error


def check_callback(name: str, listener: Callable[..., Any]) -> None:
    """Check that ``listener`` can be called with the arguments of the callback ``name``.

    Raises:
        TypeError: If it cannot; names both.
    """
    _, *names = inspect.signature(vars(Callbacks)[name]).parameters
    try:
        inspect.signature(listener).bind(**dict.fromkeys(names))
        if not inspect.iscoroutinefunction(listener):
            return
        got = f"{_described(listener)}: an async def"
    except ValueError:  # some built-ins have no signature
        return
    except TypeError as error:
        got = f"{_described(listener)}: {error}"
    expected = f"a def that takes {', '.join(names)} by keyword"
    raise TypeError(f"callback {name}: expected {expected}, got {got}. Name them so.")


def _described(listener: Callable[..., Any]) -> str:
    """Name and place of a function, as an error tells them."""
    function = inspect.unwrap(listener)
    function = function.__func__ if inspect.ismethod(function) else function
    if not inspect.isfunction(function):
        return repr(listener)
    code = function.__code__
    return f"{function.__module__}.{function.__qualname__}, {Path(code.co_filename).name}:{code.co_firstlineno}"
