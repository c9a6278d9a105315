"""Callbacks: user code that a run calls at certain events, as functions or as one class.

::

    config.callbacks(on_train_result=lambda algorithm, result: print(result["training_iteration"]))

    class Watch(Callbacks):
        def on_episode_end(self, *, algorithm, episode):
            algorithm.metrics.log_value("success", episode.info["is_success"])

    config.callbacks(Watch)

A run passes all arguments by keyword, and refuses a return value other than None. Events without a callback cost
nothing.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnasium.vector import VectorEnv

from catalog_rl import closest, remedy_for
from rlmodule.data.rollout import Rollout

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm
    from algorithms.config import AlgorithmConfig
    from rlmodule.agents.episode import MultiAgentEpisode
    from rlmodule.agents.guard import AgentEnvGuard
    from rlmodule.modules.rl_module import RLModule


@dataclass(frozen=True)
class FinishedEpisode:
    """A finished episode, as ``on_episode_end`` receives it.

    Attributes:
        episode_return: Sum of the rewards.
        length: Number of steps.
        env_index: Index of the environment that played it, among all of the run or of the evaluation.
        info: The ``info`` of the last step.
        in_evaluation: Whether it belongs to an evaluation.
        multi_agent: In a multi-agent env, the same episode with its agents, their returns and their policies.
            ``info`` then has the infos by agent. None in a single-agent env.
    """

    episode_return: float
    length: int
    env_index: int
    info: dict[str, Any]
    in_evaluation: bool
    multi_agent: MultiAgentEpisode | None = None


def finished_episodes(rollout: Rollout, *, in_evaluation: bool) -> list[FinishedEpisode]:
    """Return the episodes that ended in ``rollout``, in order of time. Their ``info`` is empty if the runner did not
    record it."""
    stats = rollout.stats
    returns, lengths = stats["episode_returns"].tolist(), stats["episode_lengths"].tolist()
    envs = (stats["episode_slots"] + rollout.first_env_index).tolist()
    infos = stats.get("episode_infos", [{}] * len(returns))
    of_agents = stats.get("multi_agent_episodes", [None] * len(returns))
    in_each = [in_evaluation] * len(returns)
    return [*map(FinishedEpisode, returns, lengths, envs, infos, in_each, of_agents)]


def drop_rows_of(rollouts: Sequence[Any], modules: Collection[tuple[str, RLModule]]) -> None:
    """Remove the rows of ``modules``, by id, from rollouts of several agents."""
    for module_id, _ in modules:
        for rollout in rollouts:
            rollout.modules.pop(module_id, None)


class Callbacks:
    """Base class for callbacks: override the events you need. Each run makes one instance, without arguments.

    Raises:
        TypeError: When a subclass is defined, if the name of a method begins with ``on_`` but is not a callback, or if
            the method does not accept the arguments of its callback.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in dir(cls):  # not vars(cls), as a mixin may define callbacks too
            word = name.lstrip("_")  # SB3's are called _on_step
            if word.startswith("on_") and word not in CALLBACKS and (word == name or remedy_for("setting", word)):
                remedy = f"Call it something else, if it is a method of your own.{closest(name, CALLBACKS)}"
                remedy = remedy_for("setting", word) or remedy
                raise TypeError(f"{cls.__qualname__}: expected one of {', '.join(CALLBACKS)}, got {name}. {remedy}")
            if name in CALLBACKS and overrides(cls, name):
                check_callback(name, getattr(object.__new__(cls), name))

    def on_environment_created(self, *, env: VectorEnv[Any, Any, Any] | AgentEnvGuard, in_evaluation: bool) -> None:
        """Handle a new vector env, or in a multi-agent run each new env, for training or evaluation. The algorithm is
        not passed, because it may not be built yet. In a single-agent run, this is not called for an env within a
        vector env that replaces one that raised."""

    def on_sample_end(self, *, algorithm: Algorithm, rollout: Rollout) -> None:
        """Handle a rollout that was sampled for training, before the learners use it. Do not change the rollout."""

    def on_episode_end(self, *, algorithm: Algorithm, episode: FinishedEpisode) -> None:
        """Handle the end of an episode, in training or evaluation. Called when the rollout in which it ended is
        complete."""

    def on_evaluate_end(self, *, algorithm: Algorithm, evaluation: dict[str, Any]) -> None:
        """Handle the end of an evaluation. Entries that you add to ``evaluation`` are reported with it."""

    def on_train_result(self, *, algorithm: Algorithm, result: dict[str, Any]) -> None:
        """Handle the end of an iteration. Entries that you add to ``result`` are logged, and ``train()`` returns it."""

    def on_checkpoint(self, *, algorithm: Algorithm, path: Path) -> None:
        """Handle a checkpoint that ``save()``, ``learn()`` or a new best evaluation has written to ``path``."""


CALLBACKS = tuple(name for name in vars(Callbacks) if name.startswith("on_"))
"""The names of all callbacks."""

CALLBACK_SETTINGS = ("callbacks_class", *CALLBACKS)
"""Names of the settings of the section ``callbacks``. A run can train without them."""


def overrides(callbacks_class: type[Callbacks] | None, name: str) -> bool:
    """Return whether ``callbacks_class`` overrides the callback ``name``; False for None. No instance is made."""
    return callbacks_class is not None and getattr(callbacks_class, name) is not getattr(Callbacks, name)


class CallbackCaller:
    """Makes the instance of a config's ``callbacks_class``, and calls all callbacks of the config.

    Args:
        config: The settings with the callbacks.

    Attributes:
        listeners: The callbacks of each event by its name, each with the setting that added it.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        made_of = config.callbacks_class or Callbacks
        signature = inspect.signature(made_of)
        try:
            signature.bind()
        except TypeError as error:
            raise TypeError(
                f"callbacks_class {made_of.__qualname__}: expected a class that can be called without arguments, since "
                f"each run makes one instance, got {signature}. Give each argument a default, or pass methods of your "
                "own instance: .callbacks(on_train_result=mine.on_train_result)."
            ) from error
        made = made_of()
        if assigned := [name for name in CALLBACKS if name in vars(made)]:
            raise TypeError(
                f"{type(made).__qualname__}: expected callbacks that are methods, got {', '.join(assigned)} "
                f"assigned in __init__. Write def {assigned[0]}(self, *, ...) in the class."
            )
        self.listeners: dict[str, list[tuple[str, Callable[..., Any]]]] = {name: [] for name in CALLBACKS}
        self.add(made, "callbacks_class")
        for name in CALLBACKS:
            if (function := getattr(config, name)) is not None:
                self.listeners[name].append((name, function))

    def add(self, callbacks: Callbacks, setting: str) -> None:
        """Also call the methods of ``callbacks`` from now on. Errors name ``setting`` as the setting that added
        them."""
        for name in CALLBACKS:
            if overrides(type(callbacks), name):
                self.listeners[name].append((setting, getattr(callbacks, name)))

    def call(self, name: str, **arguments: Any) -> None:
        """Call the callbacks of the event ``name``, first the method of ``callbacks_class``.

        Raises:
            RuntimeError: If a callback raises; names the callback, and has its error as the cause.
            TypeError: If a callback returns something; names the callback.
        """
        _call_all(name, self.listeners[name], arguments)

    def show_rollouts(self, algorithm: Algorithm, rollouts: Sequence[Any]) -> None:
        """Call ``on_sample_end`` for each rollout, and ``on_episode_end`` for each episode that ended in it. Then drop
        the data of policies that callbacks have removed or replaced.

        If a callback raises, these rollouts do not reach the replay buffer. The envs then start new episodes, so that
        the buffer does not join the next rollouts to rollouts before the lost ones.

        Raises:
            RuntimeError: See :meth:`call`.
        """
        before = {*algorithm.learner_group.module.items()}
        try:
            for rollout in rollouts:
                self.call("on_sample_end", algorithm=algorithm, rollout=rollout)
                if self.listeners["on_episode_end"]:
                    for episode in finished_episodes(rollout, in_evaluation=False):
                        self.call("on_episode_end", algorithm=algorithm, episode=episode)
        except BaseException:
            with suppress(Exception):  # the error of the callback is the one to raise
                algorithm.env_runner_group.reset()
            raise
        drop_rows_of(rollouts, before.difference(algorithm.learner_group.module.items()))

    def show_result(self, algorithm: Algorithm, result: dict[str, Any]) -> None:
        """Call ``on_train_result`` with ``result``.

        Raises:
            RuntimeError: See :meth:`call`.
            ValueError: If a callback removes the section ``env_runners``.
        """
        self.call("on_train_result", algorithm=algorithm, result=result)
        if "env_runners" not in result:
            raise ValueError(
                "result after on_train_result: expected the section env_runners, got "
                f"{', '.join(result)}. Add to the result, and leave what is there."
            )

    def on_env(self, *, in_evaluation: bool) -> Callable[[VectorEnv], None] | None:
        """Return the function that env runners call with a new vector env, or None if ``on_environment_created`` has no
        callback.

        Env runners in other processes call a pickled copy."""
        listeners = self.listeners["on_environment_created"]
        if not listeners:
            return None
        return lambda env: _call_all("on_environment_created", listeners, {"env": env, "in_evaluation": in_evaluation})


class CallbackError(RuntimeError):
    """Raised if a callback raises. The text names the callback."""


def _call_all(name: str, listeners: list[tuple[str, Callable[..., Any]]], arguments: Mapping[str, Any]) -> None:
    for setting, listener in listeners:
        try:
            returned = listener(**arguments)
        except CallbackError:  # this callback led to another one, which raised
            raise
        except Exception as error:
            where = f"callback {name} ({_described(listener)})"
            got = f"{type(error).__name__}: {error}".rstrip(".")
            raise CallbackError(
                f"{where}: expected no error, got {got}. Correct it, or leave it out: .callbacks({setting}=None)."
            ) from error
        if returned is not None:  # in other libraries, False ends the training
            where, got = f"callback {name} ({_described(listener)})", textwrap.shorten(repr(returned), 80)
            raise TypeError(
                f"{where}: expected one that returns None, got {got}. Return nothing. To end learn(), call "
                "algorithm.stop_learning()."
            )


def check_callback(name: str, listener: Callable[..., Any]) -> None:
    """Check that ``listener`` accepts the arguments of the callback ``name``.

    Raises:
        TypeError: If ``listener`` does not accept them, or is an ``async def``.
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
    raise TypeError(f"callback {name}: expected {expected}, got {got}. Use these parameter names.")


def _described(listener: Callable[..., Any]) -> str:
    """Return the name, file and line of a function as text, for errors."""
    function = inspect.unwrap(listener)
    function = function.__func__ if inspect.ismethod(function) else function
    if not inspect.isfunction(function):
        return repr(listener)
    code = function.__code__
    return f"{function.__module__}.{function.__qualname__}, {Path(code.co_filename).name}:{code.co_firstlineno}"
