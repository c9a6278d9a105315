"""Guards, which wrap envs and check the values that they return, so that an error names the env and step where a bad
value first occurs.

`EnvGuard` wraps every single env that `make_vector_env` makes and checks its raw values. `VectorGuard` checks the
batched arrays of ready vector envs, whose sub-envs cannot be wrapped. Both check observations in the first 100 calls
and then in every 100th. They check the types of rewards, flags and infos in all calls, which takes little time.
"""

import copy
import functools
import logging
import re
import traceback
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tree
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array
from torch import Tensor

from rlmodule.envs.shared_counter import SharedCounter
from rlmodule.envs.values import BOOLS, Where, check_info, check_member, check_outcome, describe, to_array

logger = logging.getLogger("rlmodule.envs.make")

_FULL_CHECKS = 100  # number of calls at the start whose observations are all checked
_CHECK_EVERY = 100  # one in this many later calls is checked
MOST_ACTIONS = 100_000
"""Largest number of actions of an episode that are kept, to repeat the episode when its run is resumed."""

PLAIN = (float, int, np.float64, np.float32)

# limits on error texts, which are sent to other processes and logged
_LONGEST_MESSAGE, _LONGEST_LINE, _MOST_LINES = 1000, 300, 60

# how Python words a call of a method that lacks the argument
_UNEXPECTED_BY_RESET = re.compile(r"(\S*\breset)\(\) got an unexpected keyword argument '(?:seed|options)'")


class EnvError(RuntimeError):
    """Raised if an env raises or its process ends.

    The text has the type, message and traceback of the original error. An EnvError can be sent to other processes even
    if the original error cannot. It can also be constructed from another EnvError, as async vector envs do when they
    re-raise an error.

    Attributes:
        place: Where the error occurred: ``env``, its index in the run; ``call``, ``"step()"`` or ``"reset()"``;
            ``step``, the number of steps of the env; ``action``, None in a reset; ``seed``, the last seed passed to
            ``reset``. If the process of the env ended, it has only ``env`` and ``seed``.
    """

    def __init__(self, text: "str | EnvError", place: Mapping[str, Any] | None = None) -> None:
        super().__init__(str(text))
        self.place: dict[str, Any] = dict(text.place if isinstance(text, EnvError) else place or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return EnvError, (str(self), self.place)


def reset_remedy(message: str) -> str:
    """Return what to append to the ``message`` of a TypeError to say how to correct a ``reset`` of the old gym's API,
    which has no arguments ``seed`` or ``options``. Return an empty text for other messages."""
    unexpected = _UNEXPECTED_BY_RESET.match(message)
    return f". Define {unexpected[1]}(self, *, seed=None, options=None), as gymnasium.Env does" if unexpected else ""


def is_due(call: int) -> bool:
    """Return whether to check call number `call`, counted from 1: each of the first 100 calls, then every 100th."""
    return call <= _FULL_CHECKS or call % _CHECK_EVERY == 0


class Guard:
    """Base class of the guards, each of which wraps one single-agent or multi-agent env. It turns the env's errors into
    :class:`EnvError`, chooses the seed of each episode, continues saved episodes, and closes the env."""

    env: Any
    env_index: int | None
    _steps: int
    _seed: int | None = None
    _first_seed: int | None = None
    _episode = 0  # since the reset with that seed

    def _set_seed(self, seed: int | None) -> None:
        """Set the seed of the next episode: ``seed``, or if it is None, one derived from the last seed passed."""
        self._episode += 1
        if seed is not None:
            self._first_seed, self._episode = seed, 0
        self._seed = self._episode_seed()

    def _episode_seed(self) -> int | None:
        if self._first_seed is None or not self._episode:
            return self._first_seed
        # faster than SeedSequence(first_seed, spawn_key=(episode,)), which has the same entropy
        words = [*(int(self._first_seed) >> shift & 0xFFFFFFFF for shift in (0, 32, 64, 96)), self._episode]
        return int(np.random.SeedSequence(np.array(words, np.uint32)).generate_state(1)[0] >> 1)

    def continue_episode(self, episodes: Mapping[int, Mapping[str, Any]], restarts: bool = False) -> tuple[Any, bool]:
        """Bring the env to the state in which an episode was saved: with ``set_episode_state(state)`` if the env has
        this method, otherwise by repeating the actions from the episode's seed. Repeated steps are not counted.

        The observation must then equal the saved observation bit for bit. If it differs, or if the env raises, a
        warning is logged and a new episode begins. Possible causes are randomness that does not derive from the env's
        seed, a new version of the env, and an episode of more than :data:`MOST_ACTIONS` steps.

        Args:
            episodes: By index of the env in the run: either a dict with only a ``seed``, with which a new episode
                begins, or the result of ``get_open_episode()`` with the leaves of the last observation as ``obs``.
            restarts: Whether the caller replaces an env that raises; if so, no episode begins in such an env.

        Returns:
            The observation, and whether the saved episode continues.

        Raises:
            EnvError: If the env raises in a reset, or with ``restarts``, before the saved episode continues.
        """
        episode = episodes[self.env_index or 0]
        obs, _ = self.reset(seed=episode["seed"])
        if "obs" not in episode:
            return obs, False
        try:
            self._episode = episode["number"]
            self._seed = self._episode_seed()
            obs = self._repeat(episode)
            leaves = zip(tree.flatten(obs), map(to_array, episode["obs"]), strict=True)
            if all(to_array(leaf).astype(saved.dtype).tobytes() == saved.tobytes() for leaf, saved in leaves):
                return obs, True
            found = "another observation"
        except (Exception, SystemExit) as error:
            if restarts:
                raise self._env_error(error, "reset()", "while its saved episode was repeated") from error
            found = f"{type(error).__name__}: {error}"
        logger.warning(
            "env %s: expected its open episode to continue after the run was resumed, got %s. The episode is cut, and "
            "a new one begins. Draw all random numbers of the env from the seed of reset(), or give it the methods "
            "get_episode_state() and set_episode_state(state).", self.env_index, found,
        )  # fmt: skip
        return self.reset()[0], False

    @abstractmethod
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Reset the env. Check the results, and return them."""

    @abstractmethod
    def _repeat(self, episode: Mapping[str, Any]) -> Any:
        """Bring the env to the state in which ``episode`` was saved. Return the last observation."""

    def close(self) -> None:
        """Close the env. Log an error instead of raising it, so that the other envs are also closed."""
        try:
            self.env.close()
        except Exception:
            logger.warning("env %s: close() raised", self.env_index, exc_info=True)

    def _env_error(self, error: Exception | SystemExit, call: str, when: str, action: Any = None) -> EnvError:
        # from traceback, since str(error) may raise
        message = traceback.format_exception_only(error)[0].partition(": ")[2].strip()[:_LONGEST_MESSAGE]
        lines = "".join(traceback.format_exception(error)).splitlines()[-_MOST_LINES:]
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = {"env": self.env_index, "call": call, "step": self._steps, "action": _plain(action), "seed": self._seed}
        cause = f"last seed {self._seed}" + (f", action {place['action']}" if call == "step()" else "")
        cause += reset_remedy(message)
        return EnvError(
            f"env {self.env_index} raised {type(error).__name__} {when}: {message or '(no message)'} "
            f"({frame.filename}:{frame.lineno}); {cause}\n\n" + "\n".join(line[:_LONGEST_LINE] for line in lines),
            place,
        )


class EnvGuard(Guard, gym.Wrapper):
    """Checks the values that one single-agent env returns. Errors name the env and the step.

    Errors of the env itself, including ``sys.exit()``, are raised again as EnvError. ``step_counter`` counts every call
    of the env's ``step`` before it is made.

    Two values are corrected, because Gymnasium's vector envs could not handle them: a reward that is an array with one
    entry becomes a number, and the last observation of an episode is copied, since the next reset may overwrite it.

    Raises:
        TypeError, ValueError: From ``reset`` and ``step``, if a value violates the API or is outside its space.
        EnvError: From ``reset`` and ``step``, if the env raises.
    """

    def __init__(self, env: gym.Env, env_index: int | None = None, step_counter: SharedCounter | None = None) -> None:
        """Wrap ``env``, which has the index ``env_index`` in the run."""
        super().__init__(env)
        # not `index`: Gymnasium's get_attr and set_attr find a wrapper's attribute before that of the env
        self.env_index = env_index
        self._count = (step_counter or SharedCounter()).cell
        self._actions: deque[Any] = deque(maxlen=MOST_ACTIONS)  # in this episode
        self._steps = self._resets = 0
        self._last_step: Any = None
        self._last_reset: Any = None

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env. Check the observation if a check is due, and the other results in every step."""
        self._steps = step = self._steps + 1
        self._count[0] += 1
        self._actions.append(own(action))
        try:
            result = self.env.step(action)
        except (Exception, SystemExit) as error:
            raise self._env_error(error, "step()", f"at its step {step}", action) from error
        self._last_step, self._last_reset = result, None
        try:
            obs, reward, terminated, truncated, info = result
        except (TypeError, ValueError) as error:
            self._last_step = None
            raise self._wrong_result(result) from error
        # most steps return these types, and need no further check
        if not (
            type(terminated) in BOOLS and type(truncated) in BOOLS and type(reward) in PLAIN and type(info) is dict
        ):
            reward = check_outcome(f"env {self.env_index}, step {step}", *result[1:])
        if is_due(step):
            self._check_obs(obs, f"env {self.env_index}, step {step}")
        if terminated or truncated:
            obs = own(obs)
        return obs, reward, terminated, truncated, info

    def _wrong_result(self, result: Any) -> ValueError:
        return ValueError(
            f"env {self.env_index}, step {self._steps}, step(): expected a tuple (obs, reward, terminated, "
            f"truncated, info), got {describe(result)}. If it is of the old gym's API, split done into "
            "terminated (the task ended) and truncated (a time limit, say, cut it off)."
        )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env. Check the observation if a check is due, and the info in every reset.

        A reset without a seed gets a seed that derives from the last one passed, so that any episode can be repeated.
        """
        self._resets += 1
        where = f"env {self.env_index}, reset after step {self._steps}"
        self._set_seed(seed)
        self._actions.clear()
        try:
            result = self.env.reset(seed=self._seed, options=options)
        except (Exception, SystemExit) as error:
            raise self._env_error(error, "reset()", f"in reset() after its step {self._steps}") from error
        if not isinstance(result, tuple) or len(result) != 2:
            remedy = "Return obs, {} from reset(); see gymnasium.Env.reset."
            raise TypeError(f"{where}, reset(): expected a tuple (obs, info), got {describe(result)}. {remedy}")
        self._last_reset = result[0], where
        if type(result[1]) is not dict:
            check_info(where, result[1])
        if is_due(self._resets):
            self._check_obs(*self._last_reset)
        if self._resets == 1 and self.env_index == 0 and not may_have_mask(self.env.observation_space):
            self._look_for_mask(result[1])
        return result

    def get_open_episode(self) -> dict[str, Any]:
        """Return what :meth:`continue_episode` needs to continue the current episode, except the observation.

        Returns:
            A dict with ``seed``, the last seed passed to :meth:`reset`, and ``number``, the number of resets without a
            seed since then. Both determine the seed of the episode. ``env_state`` is the result of the env's
            ``get_episode_state()``, a tree of tensors (returned as arrays) and JSON values. ``elapsed`` then has the
            number of steps so far that each ``TimeLimit`` around the env has counted. If the env has no such method,
            the dict has ``actions`` instead: arrays ``[t, ...]``, one for each leaf of an action, with the actions so
            far in the episode, at most the last :data:`MOST_ACTIONS`.
        """
        episode: dict[str, Any] = {"seed": self._first_seed, "number": self._episode}
        if self.env.has_wrapper_attr("get_episode_state"):
            episode["elapsed"] = [limit._elapsed_steps for limit in self._time_limits()]
            return episode | {"env_state": to_send(self.env.get_wrapper_attr("get_episode_state")())}
        return episode | {"actions": to_send(leaves_along(self._actions))}

    def _repeat(self, episode: Mapping[str, Any]) -> Any:
        obs, _ = self.env.reset(seed=self._seed)
        if "env_state" in episode:
            for limit, elapsed in zip(self._time_limits(), episode.get("elapsed", ()), strict=True):
                limit._elapsed_steps = elapsed
            return self.env.get_wrapper_attr("set_episode_state")(received(episode["env_state"]))
        for action in restored(self.env.action_space, episode["actions"]):
            self._actions.append(action)
            obs, *_ = self.env.step(own(action))
        return obs

    def _time_limits(self) -> Iterator[gym.wrappers.TimeLimit]:
        """Yield the time limits among the wrappers of the env, the outermost first."""
        env = self.env
        while isinstance(env, gym.Wrapper):
            if isinstance(env, gym.wrappers.TimeLimit):
                yield env
            env = env.env

    def _look_for_mask(self, info: Mapping[str, Any]) -> None:
        """Log a warning if the env returns an action mask where nothing reads it: in ``info``, or from a method
        ``action_masks()`` as for Stable-Baselines3."""
        if "action_mask" in info:
            warn_of_mask(type(self.env.unwrapped).__name__, "info['action_mask']")
        elif self.env.has_wrapper_attr("action_masks"):
            first = "return it in info['action_mask'] of reset() and step(), and "
            warn_of_mask(type(self.env.unwrapped).__name__, "action_masks()", first)

    def check_last(self) -> None:
        """Check the last results of the env even if no check was due. Call it after code that used these results
        failed. Raise as ``reset`` and ``step`` do."""
        if self._last_step is not None:
            obs, *outcome = self._last_step
            self._check_obs(obs, where := f"env {self.env_index}, step {self._steps}")
            check_outcome(where, *outcome)
        if self._last_reset is not None:
            self._check_obs(*self._last_reset)

    def _check_obs(self, obs: Any, where: str) -> None:
        check_member(self.env.observation_space, obs, lambda _: where, steps=self._steps)


def may_have_mask(space: spaces.Space) -> bool:
    """Return whether ``space`` is a Dict with a field whose name says that it is a mask."""
    return isinstance(space, spaces.Dict) and any("mask" in str(key) for key in space)


@functools.cache  # a process makes an env several times
def warn_of_mask(env_name: str, found: str, first: str = "", wrapper: str = "rlmodule.ActionMaskFromInfo") -> None:
    """Log a warning that nothing reads the action mask that an env returns in ``found``, and name the ``wrapper`` that
    does, after what is to be done ``first``."""
    text = "%s: nothing reads the mask in %s, so every action may be taken. To forbid actions, %swrap the env in %s."
    logger.warning(text, env_name, found, first, wrapper)


def own(value: Any) -> Any:
    """Copy an observation or action, since the env may change the original later."""
    if isinstance(value, np.ndarray):
        return value.copy()
    return value if isinstance(value, np.number) else copy.deepcopy(value)  # a NumPy number cannot change


def leaves_along(actions: Iterable[Any]) -> list[Tensor]:
    """Stack ``t`` actions along a new first dimension, and return the leaves ``[t, ...]``. Return an empty list if
    ``t`` is 0."""
    return [torch.as_tensor(np.stack(leaf)) for leaf in zip(*map(tree.flatten, actions), strict=True)]


def restored(space: spaces.Space, leaves: Sequence[Tensor]) -> Iterator[Any]:
    """Undo :func:`leaves_along`: yield the ``t`` actions of ``space``, one by one, from their leaves ``[t, ...]``."""
    like = create_empty_array(space)
    return (tree.unflatten_as(like, leaf) for leaf in zip(*map(np.asarray, leaves), strict=True))


def to_send(values: Any) -> Any:
    """Replace the tensors in a tree with arrays. multiprocessing would send tensors through sockets, which fail if the
    temporary folder has a long path."""
    return tree.map_structure(lambda x: x.numpy() if isinstance(x, Tensor) else x, values)


def received(values: Any) -> Any:
    """Return a copy of the tree ``values`` in which each array is a tensor on the same memory."""
    return tree.map_structure(lambda x: torch.from_numpy(x) if isinstance(x, np.ndarray) else x, values)


def _plain(action: Any) -> Any:
    """Convert an action to numbers, lists and dicts. Replace large arrays with a description."""
    if isinstance(action, dict):  # by agent: tree sorts keys, which may be numbers and strings
        return {key: _plain(part) for key, part in action.items()}
    return tree.map_structure(lambda x: np.asarray(x).tolist() if np.size(x) <= _LONGEST_LINE else describe(x), action)


class VectorGuard:
    """Checks the batched arrays of a ready vector env, whose sub-envs cannot be wrapped.

    Args:
        vector_env: The vector env; observations must be members of its batched ``observation_space``.
        first_env_index: Index of the vector env's first env in the run.
    """

    def __init__(self, vector_env: gym.vector.VectorEnv, first_env_index: int = 0) -> None:
        self._space = vector_env.observation_space
        self._num_envs, self._first = vector_env.num_envs, first_env_index
        self._last_step: Any = None
        self._dtypes: tuple[Any, Any, Any] | None = None  # dtypes of the last checked rewards and flags
        self._steps = self._resets = 0

    def check_step(self, obs: Any, rewards: Any, terminateds: Any, truncateds: Any, info: Any) -> None:
        """Check the results of one vector step: `info` always, and the other results if a check is due or a dtype has
        changed. The leaves of `obs` are ``[N, ...]``, rewards and flags ``[N]``, all of NumPy or torch.

        Raises:
            TypeError, ValueError: If a value is wrong; names the step, the leaf and, for an observation outside the
                bounds, the env.
        """
        self._steps += 1
        self._last_step = obs, rewards, terminateds, truncateds
        check_info(f"vector env, step {self._steps}", info)
        try:
            dtypes = rewards.dtype, terminateds.dtype, truncateds.dtype
        except AttributeError:  # a list, say: the check below raises and names it
            dtypes = None
        if dtypes != self._dtypes or is_due(self._steps):
            self.check_last()
        self._dtypes = dtypes

    def check_last(self) -> None:
        """Check the results of the last vector step even if no check was due. Raise as `check_step` does."""
        if self._last_step is None:
            return
        obs, rewards, terminateds, truncateds = self._last_step
        check_member(self._space, obs, self._where(when := f"step {self._steps}"), steps=self._steps)
        flags = ("terminateds", terminateds, "b", "bools"), ("truncateds", truncateds, "b", "bools")
        for name, values, kinds, what in (("rewards", rewards, "biuf", "real numbers"), *flags):
            is_array = isinstance(values, np.ndarray | Tensor) and values.shape == (self._num_envs,)
            if not is_array or to_array(values).dtype.kind not in kinds:
                raise TypeError(
                    f"vector env, {when}, {name}: expected an array of {what} of shape ({self._num_envs},), "
                    f"got {describe(values)}. Correct what the vector env returns."
                )

    def check_reset(self, obs: Any, info: Any) -> None:
        """Check the results of a reset: `info` always, `obs` if a check is due. Raise as `check_step` does."""
        self._resets += 1
        check_info(f"vector env, reset after step {self._steps}", info)
        if is_due(self._resets):
            check_member(self._space, obs, self._where(f"reset after step {self._steps}"), steps=self._steps)

    def _where(self, when: str) -> Where:
        return lambda index: f"env {self._first + index[0]}, {when}" if index else f"vector env, {when}"
