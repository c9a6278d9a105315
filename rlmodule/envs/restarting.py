"""RestartingEnv: replaces an env that raises, so that the other envs of a vector env continue. Restarts implements the
replacement, and made_in_tries() the first env."""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import gymnasium as gym

from rlmodule.envs.checks import EnvError, EnvGuard
from rlmodule.envs.subprocesses import close_in_time
from rlmodule.seeding import int_seed

T = TypeVar("T")

logger = logging.getLogger("rlmodule.envs.make")

TRIES = 3
"""The error is raised once this many envs in a row have failed before their first step."""

FAULT = "rlmodule.env_raised"
"""Key in the ``info`` of a step in which the env raised. Its value is the text of the error."""


def made_in_tries(make: Callable[[], T], tries: int) -> T:
    """Call ``make``, which makes a new env, and return the result. If it raises ``RuntimeError``, log a warning, wait
    0.1 s, later 0.4 s, and try again. The last of ``tries`` calls raises its error."""
    for failures in range(1, tries):
        try:
            return make()
        except RuntimeError as error:
            logger.warning("%s This was try %d of %d.", error, failures, tries)
            _wait(failures)
    return make()


def _wait(failures: int) -> None:
    """Sleep for 0.1 or 0.4 s after 1 or 2 failures in a row."""
    time.sleep(0.1 * 4 ** (failures - 1))


class Restarts:
    """Replaces a guarded env that has raised with a new one, at the next reset. The seed of the new env derives from
    that of the episode that failed, so that no episode is repeated.

    Args:
        guard: The first env, in its guard.
        make: Makes a new env, in a guard.

    Attributes:
        env: The current env, in its guard.
    """

    env: Any

    def __init__(self, guard: Any, make: Callable[[], Any]) -> None:
        self.env, self._make = guard, make
        self._failures = 0  # in a row
        self._has_stepped = self._failed = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the env. If it has failed, replace it with a new env first. Return the results of its ``reset``.

        Raises:
            EnvError: If :data:`TRIES` envs in a row fail before their first step.
        """
        while True:
            try:
                if self._failed:
                    new_seed = self._restart()
                    seed = new_seed if seed is None else seed
                return self.env.reset(seed=seed, options=options)
            except RuntimeError as error:  # from the env, or from making one; both texts name the cause
                self._note_failure(error)
                seed = None

    def step_or_error(self, action: Any) -> Any:
        """Return the results of the ``step`` of the env. If it raises :class:`EnvError`, return the error, and replace
        the env at the next reset.

        Raises:
            EnvError: If :data:`TRIES` envs in a row fail before their first step.
        """
        try:
            result = self.env.step(action)
        except EnvError as error:
            self._note_failure(error)
            return error
        self._has_stepped = True
        return result

    def continue_episode(self, episodes: Mapping[int, Mapping[str, Any]]) -> tuple[Any, bool]:
        """Return the result of the guard's :meth:`Guard.continue_episode`. If the env raises, log a warning, and begin
        a new episode in a new env.

        Raises:
            EnvError: If :data:`TRIES` envs in a row fail before their first step.
        """
        try:
            if self._failed:
                self._restart()
            return self.env.continue_episode(episodes, restarts=True)
        except RuntimeError as error:
            logger.warning("%s. It is restarted, and a new episode begins.", str(error).partition("\n\n")[0])
            self._note_failure(error)
        return self.reset()[0], False

    def _note_failure(self, error: RuntimeError) -> None:
        """Record that the env failed with ``error``.

        Raises:
            EnvError: If :data:`TRIES` envs in a row have failed before their first step.
        """
        self._failures = 0 if self._has_stepped else self._failures + 1
        self._failed, self._has_stepped = True, False
        if self._failures >= TRIES:
            index = self.env.env_index
            place = error.place if isinstance(error, EnvError) else {"env": index}
            raise EnvError(f"env {index} failed in {TRIES} tries, each with a new env: {error}", place) from error

    def _restart(self) -> int | None:
        """Replace the env, after 0, 0.1 or 0.4 s for 0, 1 or 2 failures in a row. Return the seed for the reset of the
        new env."""
        if self._failures:
            _wait(self._failures)
        close_in_time(self.env, f"env {self.env.env_index}")
        seed = self.env.episode_seed
        self.env, self._failed = self._make(), False
        return None if seed is None else int_seed(seed, "mended_env")


class RestartingEnv(Restarts, gym.Wrapper):
    """Replaces a guarded env with a new one when it raises.

    If the env raises in a step, ``step`` returns None as the observation, a reward of 0, ``truncated=True``, and an
    info with the text of the error under the key :data:`FAULT`. The next reset makes the new env. Errors that the guard
    itself raises are not caught, because a new env would return the same wrong values.

    Args:
        guard: The first env.
        make: Makes a new env, in a guard.

    Raises:
        EnvError: From ``reset`` and ``step``, if :data:`TRIES` envs in a row fail before their first step.
    """

    def __init__(self, guard: EnvGuard, make: Callable[[], EnvGuard]) -> None:
        gym.Wrapper.__init__(self, guard)
        Restarts.__init__(self, guard, make)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env. If the env raises, end its episode, as the class describes."""
        result = self.step_or_error(action)
        return (None, 0.0, False, True, {FAULT: str(result)}) if isinstance(result, EnvError) else result
