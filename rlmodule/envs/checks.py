"""Guards, which wrap envs and check the values that they return, so that an error names the env and step where a bad
value first occurs.

`EnvGuard` wraps every single env that `make_vector_env` makes and checks its raw values. `VectorGuard` checks the
batched arrays of ready vector envs, whose sub-envs cannot be wrapped. Both check observations in the first 100 calls
and then in every 100th. They check the types of rewards, flags and infos in all calls, which takes little time.

An array passes if it has exactly the shape of the space, a dtype that NumPy casts to that of the space by the rule
"same_kind", and values within the bounds. The rule is that of Gymnasium's vector envs: a float32 Box accepts float64
and int64, but an integer Box accepts no float. Floats may exceed the bounds by a rounding error. NaN and infinity pass,
because `check_finite` finds them in whole fragments of collected data.
"""

import copy
import functools
import logging
import traceback
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import torch
import tree
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array
from torch import Tensor

from catalog.spaces import ArraySpace, space_parts
from rlmodule.data.rollout import bounds_of, entry_of, stacked
from rlmodule.envs.shared_counter import SharedCounter

logger = logging.getLogger("rlmodule.envs.make")

_FULL_CHECKS = 100  # number of calls at the start whose observations are all checked
_CHECK_EVERY = 100  # one in this many later calls is checked
MOST_ACTIONS = 100_000
"""Largest number of actions of an episode that are kept, to repeat the episode when its run is resumed."""

PLAIN = (float, int, np.float64, np.float32)

# limits on error texts, which are sent to other processes and logged
_LONGEST_MESSAGE, _LONGEST_LINE, _MOST_LINES = 1000, 300, 60

# Number of steps of an env in which floats beyond their bounds are an error. Later, they may be due to the policy: some
# policies fly LunarLander beyond its bounds.
_STRICT = 20
_strayed: set[str] = set()  # what was warned of
_ROUNDING = 1e-5  # relative tolerance: float32 arithmetic may leave [-1, 1] by a few units in the last place

# tuples, built once: a union in the call of isinstance would be built each time, which doubles its cost
_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_NUMBERS = (float, int, np.floating, np.integer, np.bool_)
BOOLS = (bool, np.bool_)

SEVERAL_AGENTS = "An env of several agents needs .multi_agent(policies='shared'), or 'own' for a policy per agent."

Where: TypeAlias = Callable[[tuple[int, ...]], str]
"""Returns the env and step of the entry at an index, as ``env 3, step 57``. The index ``()`` is the whole array."""


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


def is_due(call: int) -> bool:
    """Return whether to check call number `call`, counted from 1: each of the first 100 calls, then every 100th."""
    return call <= _FULL_CHECKS or call % _CHECK_EVERY == 0


class Guard:
    """Base class of the guards, each of which wraps one single-agent or multi-agent env. It turns the env's errors into
    :class:`EnvError`, chooses the seed of each episode, continues saved episodes, and closes the env."""

    _steps = _resets = 0
    _first_seed: int | None = None
    _episode = 0  # since the reset with that seed

    def __init__(self, env: Any, env_index: int | None, step_counter: SharedCounter | None) -> None:
        self.env: Any = env
        # not `index`: Gymnasium's get_attr and set_attr find a wrapper's attribute before that of the env
        self.env_index = env_index
        self._count = (step_counter or SharedCounter()).cell
        self._actions: deque[Any] = deque(maxlen=MOST_ACTIONS)  # in this episode

    def _begin_episode(self, seed: int | None, options: dict[str, Any] | None) -> Any:
        """Return what the env's ``reset`` returns. Its seed is ``seed``, or if that is None, one derived from the last
        seed passed."""
        self._resets += 1
        self._actions.clear()
        self._episode += 1
        if seed is not None:
            self._first_seed, self._episode = seed, 0
        try:
            return self.env.reset(seed=self.episode_seed, options=options)
        except (Exception, SystemExit) as error:
            raise self._env_error(error, "reset()", f"in reset() after its step {self._steps}") from error

    def _take_step(self, action: Any) -> Any:
        """Count a step, and return what the env's ``step`` returns."""
        self._steps += 1
        self._count[0] += 1
        try:
            return self.env.step(action)
        except (Exception, SystemExit) as error:
            raise self._env_error(error, "step()", f"at its step {self._steps}", action) from error

    @property
    def episode_seed(self) -> int | None:
        """The seed of the current episode."""
        if self._first_seed is None or not self._episode:
            return self._first_seed
        sequence = np.random.SeedSequence(int(self._first_seed), spawn_key=(self._episode,))
        return int(sequence.generate_state(1)[0] >> 1)

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
        seed = self.episode_seed
        place = {"env": self.env_index, "call": call, "step": self._steps, "action": _plain(action), "seed": seed}
        cause = f"last seed {seed}" + (f", action {place['action']}" if call == "step()" else "")
        if "reset() got an unexpected keyword argument 'seed'" in message:
            cause += ". Define reset(self, *, seed=None, options=None), as gymnasium.Env does"
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
        gym.Wrapper.__init__(self, env)
        Guard.__init__(self, env, env_index, step_counter)
        self._last_step: Any = None
        self._last_reset: Any = None

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env. Check the observation if a check is due, and the other results in every step."""
        self._actions.append(own(action))
        result = self._take_step(action)
        step = self._steps
        self._last_step, self._last_reset = result, None
        try:
            obs, reward, terminated, truncated, info = result
        except (TypeError, ValueError) as error:
            self._last_step = None
            raise ValueError(
                f"env {self.env_index}, step {step}, step(): expected a tuple (obs, reward, terminated, "
                f"truncated, info), got {describe(result)}. If it is of the old gym's API, split done into "
                "terminated (the task ended) and truncated (a time limit, say, cut it off)."
            ) from error
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

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env. Check the observation if a check is due, and the info in every reset.

        A reset without a seed gets a seed that derives from the last one passed, so that any episode can be repeated.
        """
        where = f"env {self.env_index}, reset after step {self._steps}"
        result = self._begin_episode(seed, options)
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
        obs, _ = self.env.reset(seed=self.episode_seed)
        if "env_state" in episode:
            for limit, elapsed in zip(self._time_limits(), episode.get("elapsed", ()), strict=True):
                limit._elapsed_steps = elapsed
            obs = self.env.get_wrapper_attr("set_episode_state")(received(episode["env_state"]))
        else:
            for action in restored(self.env.action_space, episode["actions"]):
                self._actions.append(action)
                obs, *_ = self.env.step(own(action))
        # the saved observation has arrays, also where the env returns lists
        return entry_of(stacked(self.env.observation_space, [obs]), 0)

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


# --- values -----------------------------------------------------------------------------------------------------------


def check_member(space: spaces.Space, value: Any, where: Where, path: str = "obs", steps: int = 0) -> None:
    """Raise ValueError with the first wrong leaf unless `value` is a member of `space`. But after 20 steps, only warn
    of floats beyond their bounds, once for each leaf.

    Args:
        space: A single or a batched observation space.
        value: The value that the env returned: arrays, tensors, numbers, or dicts and tuples of them.
        where: Returns the env and step for the error text, such as ``env 3, step 57``, from the index of the wrong
            entry in its array, or from ``()``, which stands for the whole array.
        path: Name of `value` in the error text; leaves are shown as ``obs['camera'][0]``.
        steps: Number of steps of the env so far.
    """
    if isinstance(space, _ARRAY_SPACES):  # first, since isinstance is slow for Dict and Tuple, abstract base classes
        _check_array(space, value, where, path, steps)
        return
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or value.keys() != space.spaces.keys():
            got = f"one with keys {[*value]}" if isinstance(value, Mapping) else describe(value)
            raise _not_in_space(where, path, f"a dict with keys {[*space.spaces]}", got)
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            raise _not_in_space(where, path, f"a tuple of {len(space.spaces)} parts", describe(value))
    else:
        if not space.contains(value):  # Text, Graph, Sequence, OneOf and custom spaces
            raise _not_in_space(where, path, f"a member of {space}", describe(value))
        return
    for key, part in space_parts(space).items():
        check_member(part, value[key], where, f"{path}[{key!r}]", steps)


def _not_in_space(where: Where, path: str, expected: str, got: str) -> ValueError:
    remedy = "Correct what the env returns, or its observation_space."
    return ValueError(f"{where(())}, {path}: expected {expected}, got {got}. {remedy}")


def _check_array(space: ArraySpace, value: Any, where: Where, path: str, steps: int) -> None:
    def wrong(got: str) -> ValueError:
        return _not_in_space(where, path, f"shape {space.shape} and dtype {space.dtype}", got)

    # observations are stored in NumPy arrays, which cannot hold a tensor that requires grad
    if isinstance(value, Tensor) and value.requires_grad:
        raise wrong("a tensor with a gradient (return obs.detach())")
    try:
        array = to_array(value)
    except (ValueError, TypeError) as error:  # ragged lists, tensors with a dtype that NumPy lacks
        raise wrong(f"{describe(value)}, which is no array ({error})") from error
    is_storable = array.dtype == space.dtype or np.can_cast(array.dtype, np.dtype(space.dtype), "same_kind")
    if array.shape != space.shape or not is_storable:
        raise wrong(describe(value))
    low, high = bounds_of(space)
    if np.count_nonzero((array < low) | (array > high)):  # rare; to allow for rounding takes longer
        _check_rounded(space, array, where, path, steps)


def _check_rounded(space: ArraySpace, array: np.ndarray, where: Where, path: str, steps: int) -> None:
    """Raise ValueError for the first number in ``array`` that is outside of the bounds of ``space`` by more than the
    error of rounding.

    But if ``space`` has floats, and the env has made more than 20 ``steps``, log it instead, once for each leaf, which
    is known by its ``space`` and ``path``.
    """
    low, high = least, most = bounds_of(space)
    has_floats = np.dtype(space.dtype).kind == "f"
    if has_floats:
        least, most = np.asarray(low, np.float64), np.asarray(high, np.float64)
        least, most = least - _ROUNDING * (1 + np.abs(least)), most + _ROUNDING * (1 + np.abs(most))
        with np.errstate(all="ignore"):  # too large a float64 becomes inf, as when it is stored
            array = array.astype(space.dtype, copy=False)
    outside = ((array < least) | (array > most)) & np.isfinite(array)
    if not outside.any():
        return
    index = tuple(int(i) for i in np.argwhere(outside)[0])
    least, most = (np.broadcast_to(bound, array.shape)[index] for bound in (low, high))
    value = f"{array[index]}{f' at index {index}' if index else ''}"
    if not has_floats or steps <= _STRICT:
        raise ValueError(
            f"{where(index)}, {path}: expected values in [{least}, {most}], got {value}. Widen the bounds of the "
            "observation_space, or clip the observation in the env."
        )
    if (known := f"{space} {path}") not in _strayed:
        _strayed.add(known)
        logger.warning(
            f"{where(index)}, {path}: {value} is outside of [{least}, {most}], the bounds that the env gives. The run "
            "continues and uses such values as they are. There is nothing to do, unless they are a mistake of your env."
        )


def check_outcome(where: str, reward: Any, terminated: Any, truncated: Any, info: Any) -> Any:
    """Raise unless the reward, the flags and the info of a step have the right types. Return the reward as a number."""
    number = real_number(reward, f"{where}, reward")
    check_flag(terminated, where, "terminated")
    check_flag(truncated, where, "truncated")
    check_info(where, info)
    return number


def real_number(reward: Any, where: str) -> Any:
    """Return a reward as a number. An array or tensor must have exactly one entry.

    Raises:
        TypeError: If ``reward`` is not one real number.
    """
    number = reward.item() if isinstance(reward, np.ndarray | Tensor) and np.prod(reward.shape) == 1 else reward
    if not isinstance(number, _NUMBERS):
        remedy = SEVERAL_AGENTS if isinstance(reward, dict) else "Return float(reward)."
        raise TypeError(f"{where}: expected one real number, got {describe(reward)}. {remedy}")
    return number


def check_flag(flag: Any, where: str, name: str) -> None:
    """Raise TypeError unless ``flag``, called ``name`` in the error text, is a Python or NumPy bool."""
    if not isinstance(flag, BOOLS):
        raise TypeError(f"{where}, {name}: expected a bool, got {describe(flag)}. Return bool({name}).")


def check_info(where: str, info: Any, name: str = "info") -> None:
    """Raise TypeError unless ``info``, called ``name`` in the error text, is a dict."""
    if not isinstance(info, dict):
        raise TypeError(f"{where}, {name}: expected a dict, got {describe(info)}. Return {{}} if it is empty.")


def check_finite(
    values: Any,
    name: str,
    first_step: int,
    first_env_index: int = 0,
    places: np.ndarray | None = None,
) -> None:
    """Raise ValueError with the env, step and leaf of the first number in rows of collected data that is NaN or
    infinite, if any.

    Args:
        values: Tree of arrays or CPU tensors: columns ``[T, N, ...]``, or with `places` ``[K, ...]``.
        name: Name of the values, for the error text.
        first_step: Number of the env step that returned row 0; 0 stands for the reset.
        first_env_index: Index of the env in column 0.
        places: Row and column ``[K, 2]`` of each of the ``K`` values.
    """
    for path, number, index in wrong_numbers(values):
        row, env, *inner = index if places is None else (*places[index[0]], *index[1:])
        raise not_finite(f"env {first_env_index + env}, step {first_step + row}, {name}{path}", number, inner)


def wrong_numbers(values: Any) -> Iterator[tuple[str, Any, tuple[int, ...]]]:
    """Yield the first NaN or infinity of each leaf of ``values`` that has any: the path of the leaf as text, the
    number, and its index."""
    leaves = [((), values)] if isinstance(values, np.ndarray) else tree.flatten_with_path(values)
    for path, leaf in leaves:
        array = to_array(leaf)
        if array.dtype.kind == "f" and np.count_nonzero(is_finite := np.isfinite(array)) < array.size:
            index = tuple(int(i) for i in np.argwhere(~is_finite)[0])
            yield "".join(f"[{key!r}]" for key in path), array[index], index


def not_finite(where: str, number: Any, index: Sequence[int]) -> ValueError:
    """Return the error for a wrong ``number`` of :func:`wrong_numbers`. ``where`` names the observation or reward, and
    ``index`` is the place of the number in it."""
    at = f" at index {tuple(index)}" if index else ""
    scale = ""
    if np.isinf(number):
        scale = f"Floats are stored as float32, which ends at {np.finfo(np.float32).max:.1e}: scale such numbers down. "
    return ValueError(
        f"{where}: expected finite numbers, got {number}{at}. {scale}Look for a division by zero or an unstable "
        "simulation in the env, or a broken action."
    )


def to_array(value: Any) -> np.ndarray:
    """Convert `value` to a NumPy array. NumPy arrays and CPU tensors are not copied."""
    if isinstance(value, np.ndarray):
        return value
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def describe(value: Any) -> str:
    """Describe a value in a few words: the shape and dtype of an array, the type and first characters of any other
    value."""
    if isinstance(value, np.ndarray | np.generic | Tensor):
        text = f"shape {tuple(value.shape)} and dtype {value.dtype}"
        return f"{text}: {value}" if value.ndim == 0 else text
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
