"""Checks of what environments hand back, so that a bad value is named where it arises and not twenty frames later.

`EnvGuard` sits around every sub-env we make and sees its raw values. `VectorGuard` does the same on the batched
arrays of vector envs whose sub-envs are out of reach. Both check observations in the first 100 calls and then in 1 of
100. The types of rewards, flags and infos cost next to nothing, and are checked in all. `check_finite` looks at whole
fragments of collected data, since NaN may come at any step.

What passes, for arrays: the shape of the space exactly; any dtype that NumPy casts to that of the space by the rule
"same_kind" (float64 or int64 for a float32 Box, but no float for an integer Box), because that is what Gymnasium's
vector envs store; values inside the bounds, for floats up to rounding. NaN and infinity are left to `check_finite`.
"""

import copy
import logging
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces

from catalog.migration import remedy_for
from rlmodule.envs.shared_counter import SharedCounter

logger = logging.getLogger("rlmodule.envs.make")

_FULL_CHECKS = 100  # Observations of this many calls are all checked,
_CHECK_EVERY = 100  # and of one in this many after that.
_ROUNDING = 1e-5  # Relative; float32 arithmetic may leave [-1, 1] by a few units in the last place and is no mistake.

_ArraySpace: TypeAlias = spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary
# Tuples, made once: a union written in the call to isinstance is built anew each time, which doubles its cost.
_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_NOTHING = object()  # for None, which an env may return
_NUMBERS = (float, int, np.floating, np.integer, np.bool_)
_BOOLS = (bool, np.bool_)
_PLAIN = (float, np.float64, np.float32)
_LARGEST = float(np.finfo(np.float64).max)

_SPACE_REMEDY = "Correct what the env returns, or its observation_space."

# Of what an env raised: it may be of any length, and has to be sent, logged and read.
_LONGEST_MESSAGE, _LONGEST_LINE, _MOST_LINES = 1000, 300, 60


class EnvError(RuntimeError):
    """An env raised, or the process that it was in ended.

    Its text has the type, message and traceback of the original. It can be sent to other processes whatever the
    original was, and be made of another one, which is how async vector envs pass errors on.

    Attributes:
        place: Where, in numbers and text: ``env``, its index in the run; ``call``, which is ``"step()"`` or
            ``"reset()"``; ``step``, the env's own count; ``action``, None in a reset; ``seed`` of the last reset that
            was given one. Of an env whose process ended, ``env`` and ``seed`` alone.
    """

    def __init__(self, text: "str | EnvError", place: Mapping[str, Any] | None = None) -> None:
        super().__init__(str(text))
        self.place: dict[str, Any] = dict(text.place if isinstance(text, EnvError) else place or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return EnvError, (str(self), self.place)


class Fault(NamedTuple):
    """One broken rule: the class of the error to raise, and the parts of its message."""

    error: type[Exception]
    path: str
    expected: str
    got: str
    remedy: str
    entry: tuple[int, ...] = ()
    """Index of the offending entry of its array; empty if the array as a whole is at fault."""

    def at(self, where: str) -> Exception:
        """The error to raise; `where` says which env and step, e.g. ``env 3, step 57``."""
        return self.error(f"{where}, {self.path}: expected {self.expected}, got {self.got}. {self.remedy}")


def find_fault(space: spaces.Space[Any], value: Any, path: str = "obs") -> Fault | None:
    """The first way in which `value` is no member of `space`, or None.

    Walks by the structure of the space: a Dict space keeps its own order of keys, which is not that of a sorted tree.

    Args:
        space: A single or a batched observation space.
        value: What the env returned for it: arrays, tensors, numbers, or dicts and tuples of them.
        path: Name of `value` in messages; leaves are shown as ``obs['camera'][0]``.
    """
    if isinstance(space, _ARRAY_SPACES):  # First: Dict and Tuple are abstract base classes too, which are slow to ask.
        return _array_fault(space, value, path)
    if isinstance(space, spaces.Dict):
        return _dict_fault(space, value, path)
    if isinstance(space, spaces.Tuple):
        return _tuple_fault(space, value, path)
    # Text, Graph, Sequence, OneOf and users' own spaces: only the space itself can tell.
    if space.contains(value):
        return None
    return Fault(ValueError, path, f"a member of {space}", _describe(value), _SPACE_REMEDY)


def _dict_fault(space: spaces.Dict, value: Any, path: str) -> Fault | None:
    if not isinstance(value, Mapping):
        return Fault(TypeError, path, f"a dict with keys {list(space.spaces)}", _describe(value), _SPACE_REMEDY)
    missing = [key for key in space.spaces if key not in value]
    extra = [key for key in value if key not in space.spaces]
    if missing or extra:
        parts = [f"{what} {keys}" for what, keys in (("without", missing), ("with also", extra)) if keys]
        got = f"a dict {' and '.join(parts)}"
        return Fault(ValueError, path, f"a dict with keys {list(space.spaces)}", got, _SPACE_REMEDY)
    for key, inner in space.spaces.items():
        if fault := find_fault(inner, value[key], f"{path}[{key!r}]"):
            return fault
    return None


def _tuple_fault(space: spaces.Tuple, value: Any, path: str) -> Fault | None:
    if not isinstance(value, tuple | list):
        return Fault(TypeError, path, f"a tuple of {len(space.spaces)} parts", _describe(value), _SPACE_REMEDY)
    if len(value) != len(space.spaces):
        got = f"a {type(value).__name__} of {len(value)}"
        return Fault(ValueError, path, f"a tuple of {len(space.spaces)} parts", got, _SPACE_REMEDY)
    for position, inner in enumerate(space.spaces):
        if fault := find_fault(inner, value[position], f"{path}[{position}]"):
            return fault
    return None


def _array_fault(space: _ArraySpace, value: Any, path: str) -> Fault | None:
    try:
        array = to_array(value)
    except (ValueError, TypeError) as error:  # Ragged lists, tensors NumPy has no dtype for.
        expected, got = f"an array of shape {space.shape}", f"{_describe(value)}, which is none ({error})"
        return Fault(TypeError, path, expected, got, _SPACE_REMEDY)
    if array.dtype != space.dtype and not np.can_cast(array.dtype, np.dtype(space.dtype), "same_kind"):
        remedy = f"Return it as {space.dtype}, or give the observation_space the dtype of the values."
        return Fault(TypeError, path, f"shape {space.shape} and dtype {space.dtype}", _describe(value), remedy)
    if array.shape != space.shape:
        expected = f"shape {space.shape} and dtype {space.dtype}"
        return Fault(ValueError, path, expected, _describe(value), _SPACE_REMEDY)
    return _bounds_fault(space, array, path)


def _bounds_fault(space: _ArraySpace, array: np.ndarray, path: str) -> Fault | None:
    low, high = _bounds(space)
    if array.dtype != space.dtype and np.dtype(space.dtype).kind == "f":
        with np.errstate(all="ignore"):  # A float64 too large becomes inf here as it does when it is stored.
            array = array.astype(space.dtype, copy=False)
    outside = (array < low) | (array > high)
    if not outside.any():  # NaN compares as inside, so it ends here.
        return None
    if array.dtype.kind == "f":
        low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
        slack_low, slack_high = _ROUNDING * (1 + np.abs(low)), _ROUNDING * (1 + np.abs(high))
        outside = ((array < low - slack_low) | (array > high + slack_high)) & np.isfinite(array)
        if not outside.any():
            return None
    index = tuple(int(i) for i in np.argwhere(outside)[0])
    least, most = np.broadcast_to(low, array.shape)[index], np.broadcast_to(high, array.shape)[index]
    got = f"{array[index]}{f' at index {index}' if index else ''}"
    remedy = "Widen the bounds of the observation_space, or clip the observation in the env."
    return Fault(ValueError, path, f"values in [{least}, {most}]", got, remedy, index)


def _bounds(space: _ArraySpace) -> tuple[Any, Any]:
    """Lowest and highest value of each entry, both inclusive; arrays or numbers."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return 0, 1


def _obs_fault(space: spaces.Space[Any], obs: Any) -> Fault | None:
    """The first broken rule in an observation of a single env."""
    if fault := find_fault(space, obs):
        return fault
    # NumPy, in whose arrays observations of single envs are stored, takes no tensor that is part of a graph.
    for path, leaf in _leaves(obs, "obs"):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            got, remedy = "one that requires a gradient", "Return obs.detach()."
            return Fault(TypeError, path, "a tensor without gradient", got, remedy)
    return None


def _reward_fault(reward: Any) -> Fault | None:
    if isinstance(reward, _NUMBERS):
        if not isinstance(reward, int) or abs(reward) <= _LARGEST:
            return None
        expected = f"one real number, at most {_LARGEST:.1e}"
        return Fault(ValueError, "reward", expected, _describe(reward), "Scale the reward down.")
    # Lists and strings are ruled out by name: NumPy would make arrays of them.
    if not isinstance(reward, str | bytes | list | tuple | dict | complex):
        array = to_array(reward)
        if array.size == 1 and array.dtype.kind in "biuf":
            return None
    error = ValueError if isinstance(reward, np.ndarray) and reward.dtype.kind in "biuf" else TypeError
    remedy = "Return float(reward) from step()."
    if isinstance(reward, dict):
        remedy = remedy_for("setting", "multi_agent")
    return Fault(error, "reward", "one real number", _describe(reward), remedy)


def _flag_fault(flag: Any, name: str) -> Fault | None:
    if isinstance(flag, _BOOLS):
        return None
    return Fault(TypeError, name, "a bool", _describe(flag), f"Return bool({name}) from step().")


def _info_fault(info: Any) -> Fault | None:
    if isinstance(info, dict):
        return None
    return Fault(TypeError, "info", "a dict", _describe(info), "Return {} if there is nothing to tell.")


def _step_fault(space: spaces.Space[Any], result: Any) -> Fault | None:
    """The first broken rule in what ``step()`` of a single env returned."""
    expected = "a tuple (obs, reward, terminated, truncated, info)"
    if not isinstance(result, tuple):
        return Fault(TypeError, "step()", expected, _describe(result), "See gymnasium.Env.step.")
    if len(result) != 5:
        remedy = "See gymnasium.Env.step."
        if len(result) == 4:
            remedy = (
                "This is the API of the old gym: split done into terminated (the task ended) and truncated (a time "
                "limit, say, cut it off)."
            )
        return Fault(ValueError, "step()", expected, f"a tuple of {len(result)}", remedy)
    return _obs_fault(space, result[0]) or _outcome_fault(*result[1:])


def _outcome_fault(reward: Any, terminated: Any, truncated: Any, info: Any) -> Fault | None:
    """The first broken rule in what a single env returned besides the observation."""
    return (
        _reward_fault(reward)
        or _flag_fault(terminated, "terminated")
        or _flag_fault(truncated, "truncated")
        or _info_fault(info)
    )


def _reset_fault(result: Any) -> Fault | None:
    """The first broken rule in what ``reset()`` of a single env returned, except in the observation."""
    if not isinstance(result, tuple) or len(result) != 2:
        remedy = "Return obs, {} from reset(); see gymnasium.Env.reset."
        got = f"a tuple of {len(result)}" if isinstance(result, tuple) else _describe(result)
        return Fault(TypeError, "reset()", "a tuple (obs, info)", got, remedy)
    return _info_fault(result[1])


def is_due(call: int) -> bool:
    """Whether the `call`-th call, counted from 1, is one to check."""
    return call <= _FULL_CHECKS or call % _CHECK_EVERY == 0


class EnvGuard(gym.Wrapper[Any, Any, Any, Any]):
    """Checks what one env returns, and says which env and step it was that went wrong.

    Errors raised by the env itself, ``sys.exit()`` among them, come out as EnvError, chained. Every call of the env's
    ``step`` is counted before it is made.

    Two things are mended rather than reported, because Gymnasium's vector envs would trip over them: a reward that is
    an array of one entry becomes a float, and the last observation of an episode is a copy, as the next reset may write
    into the same memory.

    Attributes:
        gradients_off: Where the env first switched torch's gradients off, e.g. ``env 3, step 57``. It looks in resets
            and in steps whose observation is checked.

    Raises:
        TypeError, ValueError: From ``reset`` and ``step``, if a value breaks the API or is no member of its space.
        EnvError: From ``reset`` and ``step``, if those of the env raise.
    """

    def __init__(
        self, env: gym.Env[Any, Any], env_index: int | None = None, step_counter: SharedCounter | None = None
    ) -> None:
        """Wrap ``env``, whose index in the run may be set later; ``step_counter`` counts its steps."""
        super().__init__(env)
        for name in ("observation_space", "action_space"):
            # A default, as gym.Env only declares these: an env that forgot one does not have the attribute.
            space = getattr(env, name, None)
            if not isinstance(space, spaces.Space):
                raise TypeError(
                    f"{type(env.unwrapped).__name__}.{name}: expected a gymnasium Space, got "
                    f"{space!r}. Set it in the env's __init__."
                )
        # Not `index`: gymnasium's get_attr and set_attr find a wrapper's attribute before the env's own.
        self.env_index = env_index
        self._count = (step_counter or SharedCounter()).cell
        self._seed: int | None = None
        self._steps = 0
        self._resets = 0
        self._next_check = 1
        self._last_step: Any = _NOTHING
        self._last_reset: Any = _NOTHING
        self._steps_before_reset = -1
        self.gradients_off: str | None = None

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env, and check what it returns: the observation if that is due, the rest always."""
        self._steps = step = self._steps + 1
        self._count[0] += 1
        due = step >= self._next_check
        had_gradients = due and torch.is_grad_enabled()
        try:
            result = self.env.step(action)
        except (Exception, SystemExit) as error:
            raise self._env_error(error, "step()", f"at its step {step}", action) from error
        self._last_step = result
        try:
            obs, reward, terminated, truncated, info = result
        except (TypeError, ValueError) as error:
            raise self.last_error() or error from error
        # what most steps return; all else costs more to check
        if not (
            type(terminated) in _BOOLS
            and type(truncated) in _BOOLS
            and (type(reward) in _PLAIN or (type(reward) is int and abs(reward) <= _LARGEST))
            and type(info) is dict
        ):
            if fault := _step_fault(self.env.observation_space, result) if due else _outcome_fault(*result[1:]):
                raise fault.at(f"env {self.env_index}, step {step}")
            reward = reward if isinstance(reward, _NUMBERS) else float(to_array(reward).reshape(()))
        if due:
            self._check_obs(obs, f"env {self.env_index}, step {step}", had_gradients)
            if step >= _FULL_CHECKS:
                self._next_check = step - step % _CHECK_EVERY + _CHECK_EVERY
        if terminated or truncated:
            obs = obs.copy() if type(obs) is np.ndarray else copy.deepcopy(obs)
        return obs, reward, terminated, truncated, info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the env, and check what it returns: the observation if that is due, the rest always."""
        self._resets += 1
        if seed is not None:
            self._seed = seed
        due = is_due(self._resets)
        had_gradients = due and torch.is_grad_enabled()
        try:
            result = self.env.reset(seed=seed, options=options)
        except (Exception, SystemExit) as error:
            raise self._env_error(error, "reset()", f"in reset() after its step {self._steps}") from error
        self._last_reset, self._steps_before_reset = result, self._steps
        if not (type(result) is tuple and len(result) == 2 and type(result[1]) is dict) and (
            fault := _reset_fault(result)
        ):
            raise fault.at(f"env {self.env_index}, reset after step {self._steps}")
        if due:
            self._check_obs(result[0], f"env {self.env_index}, reset after step {self._steps}", had_gradients)
        return result

    def last_error(self) -> Exception | None:
        """What is wrong with what the env returned last, as ``reset`` and ``step`` would raise it if a check had been
        due; for whoever chokes on it."""
        space, steps = self.env.observation_space, self._steps
        if self._last_step is not _NOTHING and (fault := _step_fault(space, self._last_step)):
            return fault.at(f"env {self.env_index}, step {steps}")
        if self._steps_before_reset == steps:
            fault = _reset_fault(self._last_reset) or _obs_fault(space, self._last_reset[0])
            return fault and fault.at(f"env {self.env_index}, reset after step {steps}")
        return None

    def _check_obs(self, obs: Any, where: str, had_gradients: bool) -> None:
        if fault := _obs_fault(self.env.observation_space, obs):
            raise fault.at(where)
        if had_gradients and self.gradients_off is None and not torch.is_grad_enabled():
            self.gradients_off = where

    def close(self) -> None:
        """Close the env; an error is logged, so that the envs beside it are closed too."""
        try:
            self.env.close()
        except Exception:
            logger.warning("env %s: close() raised", self.env_index, exc_info=True)

    def _env_error(self, error: Exception | SystemExit, call: str, when: str, action: Any = None) -> EnvError:
        frames = traceback.extract_tb(error.__traceback__)
        line = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        place = {"env": self.env_index, "call": call, "step": self._steps, "action": _plain(action), "seed": self._seed}
        told = f"last seed {self._seed}" + (f", action {place['action']}" if call == "step()" else "")
        return EnvError(
            f"env {self.env_index} raised {type(error).__name__} {when}: {_message(error)}{line}; {told}\n\n"
            f"{_traceback_text(error)}",
            place,
        )


def _message(error: BaseException) -> str:
    try:
        message = str(error) or "(no message)"
    except Exception:  # an exception of its own class need not have a proper text
        message = "(no message: its __str__ raises)"
    return (
        message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}... ({len(message)} characters)"
    )


def _traceback_text(error: BaseException) -> str:
    lines = "".join(traceback.format_exception(error)).splitlines()[-_MOST_LINES:]
    return "\n".join(line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}..." for line in lines)


def _plain(action: Any) -> Any:
    """An action in numbers, lists and dicts; one of many numbers, or of another kind, as text."""
    if isinstance(action, Mapping):
        return {str(key): _plain(part) for key, part in action.items()}
    if isinstance(action, tuple | list):
        return [_plain(part) for part in action]
    if isinstance(action, np.ndarray | np.generic) and action.dtype.kind in "biuf" and action.size <= _LONGEST_LINE:
        return action.tolist()
    return action if action is None or isinstance(action, int | float) else _describe(action)


class VectorGuard:
    """Checks what a ready vector env returns, as batched arrays, where its sub-envs cannot be wrapped.

    Args:
        vector_env: Its batched ``observation_space`` says what observations must be.
        first_env_index: Index of its first env in the run.
    """

    def __init__(self, vector_env: gym.vector.VectorEnv[Any, Any, Any], first_env_index: int = 0) -> None:
        self._space = vector_env.observation_space
        self._num_envs, self._first = vector_env.num_envs, first_env_index
        self._last_step: tuple[Any, Any, Any, Any] | None = None
        self._dtypes: tuple[Any, Any, Any] | None = None  # of rewards and flags that were right
        self._steps = 0
        self._resets = 0

    def check_step(self, obs: Any, rewards: Any, terminateds: Any, truncateds: Any, info: Any) -> None:
        """Check one vector step: `info` always, the rest if that is due. `obs` is ``[N, ...]`` by leaf, the others
        ``[N]``, of NumPy or torch.

        Raises:
            TypeError, ValueError: Naming the first env at fault, the step, and the leaf.
        """
        self._steps += 1
        self._last_step = obs, rewards, terminateds, truncateds
        if fault := _info_fault(info):
            raise fault.at(self._where(fault, f"step {self._steps}"))
        try:
            dtypes = rewards.dtype, terminateds.dtype, truncateds.dtype
        except AttributeError:  # of a list, say, which the check names
            dtypes = None
        if (dtypes != self._dtypes or is_due(self._steps)) and (error := self.last_error()):
            raise error
        self._dtypes = dtypes

    def last_error(self) -> Exception | None:
        """What is wrong with the last vector step, as `check_step` would raise it if a check had been due."""
        if self._last_step is None:
            return None
        obs, rewards, terminateds, truncateds = self._last_step
        fault = (
            find_fault(self._space, obs)
            or self._vector_fault(rewards, "rewards", "biuf", "real numbers")
            or self._vector_fault(terminateds, "terminateds", "b", "bools")
            or self._vector_fault(truncateds, "truncateds", "b", "bools")
        )
        return fault and fault.at(self._where(fault, f"step {self._steps}"))

    def check_reset(self, obs: Any, info: Any) -> None:
        """Check what a reset returned: `info` always, `obs` if that is due. Raises as `check_step` does."""
        self._resets += 1
        if fault := _info_fault(info) or (find_fault(self._space, obs) if is_due(self._resets) else None):
            raise fault.at(self._where(fault, f"reset after step {self._steps}"))

    def _vector_fault(self, values: Any, name: str, kinds: str, what: str) -> Fault | None:
        expected, remedy = f"an array of {what} of shape ({self._num_envs},)", "Correct what the vector env returns."
        if not isinstance(values, np.ndarray | torch.Tensor) or to_array(values).dtype.kind not in kinds:
            return Fault(TypeError, name, expected, _describe(values), remedy)
        if values.shape != (self._num_envs,):
            return Fault(ValueError, name, expected, _describe(values), remedy)
        return None

    def _where(self, fault: Fault, when: str) -> str:
        return f"env {self._first + fault.entry[0]}, {when}" if fault.entry else f"vector env, {when}"


def check_finite(obs_columns: Any, rewards: Any, first_step: int, first_env_index: int = 0) -> None:
    """Check a fragment of collected data for NaN and infinity, at about the cost of reading it once.

    Args:
        obs_columns: Tree (dicts, tuples, lists) of arrays or CPU tensors ``[T or T + 1, N, ...]``.
        rewards: ``[T, N]``.
        first_step: Number of steps before the fragment. Row ``t`` of ``obs_columns`` came out of step
            ``first_step + t`` (0: the reset), row ``t`` of ``rewards`` out of the one after.
        first_env_index: Index of the env in slot 0.

    Raises:
        ValueError: Naming the env, the step and the leaf of the first entry that is not finite.
    """
    leaves = [("obs", obs_columns)] if isinstance(obs_columns, np.ndarray) else [*_leaves(obs_columns, "obs")]
    for path, leaf in [*leaves, ("reward", rewards)]:
        array = to_array(leaf)
        if (index := _first_not_finite(array)) is not None:
            row, env, *inner = index
            where = f"env {first_env_index + env}, step {first_step + row + (path == 'reward')}, {path}"
            raise _not_finite(where, array[index], inner)


def check_finals_finite(finals: Any, places: np.ndarray, first_step: int, first_env_index: int = 0) -> None:
    """Check the true final observations of a fragment, which stand apart from its columns, as `check_finite` does.

    Args:
        finals: Tree of arrays or CPU tensors ``[K, ...]``.
        places: Row and slot of the ``K`` steps that they came out of ``[K, 2]``.
        first_step: Number of steps before the fragment.
        first_env_index: Index of the env in slot 0.

    Raises:
        ValueError: Naming the env, the step and the leaf of the first entry that is not finite.
    """
    for path, leaf in _leaves(finals, "obs"):
        array = to_array(leaf)
        if (index := _first_not_finite(array)) is not None:
            row, env = places[index[0]]
            raise _not_finite(
                f"env {first_env_index + env}, step {first_step + row + 1}, {path}", array[index], index[1:]
            )


def _first_not_finite(array: np.ndarray) -> tuple[int, ...] | None:
    """Index of the first number that is NaN or infinite."""
    if array.dtype.kind != "f" or np.count_nonzero(finite := np.isfinite(array)) == array.size:
        return None
    return tuple(int(i) for i in np.argwhere(~finite)[0])


def _not_finite(where: str, number: Any, inner: Sequence[int]) -> ValueError:
    """What to raise for a `number` at index `inner` of what one env gave in one step."""
    got = f"{number}{f' at index {tuple(inner)}' if inner else ''}"
    return ValueError(
        f"{where}: expected finite numbers, got {got}. Look for a division by zero or an unstable "
        "simulation in the env, or a broken action."
    )


def to_array(value: Any) -> np.ndarray:
    """`value` as a NumPy array, from the device if need be; no copy if it is one or a CPU tensor."""
    if isinstance(value, np.ndarray):
        return value
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)


def _leaves(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Path and value of every leaf, in the order of the tree itself."""
    if isinstance(tree, Mapping):
        for key, inner in tree.items():
            yield from _leaves(inner, f"{path}[{key!r}]")
    elif isinstance(tree, tuple | list):
        for position, inner in enumerate(tree):
            yield from _leaves(inner, f"{path}[{position}]")
    else:
        yield path, tree


def _describe(value: Any) -> str:
    """What came, in few words: shape and dtype of arrays, type and start of anything else."""
    if isinstance(value, np.ndarray | np.generic | torch.Tensor):
        text = f"shape {tuple(value.shape)} and dtype {value.dtype}"
        return f"{text}: {value}" if value.ndim == 0 else text
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
