"""Checks on single values that envs return: observations, rewards, flags and infos, and finite numbers.

An array passes if it has exactly the shape of the space, a dtype that NumPy casts to that of the space by the rule
"same_kind", and values within the bounds. The rule is that of Gymnasium's vector envs: a float32 Box accepts float64
and int64, but an integer Box accepts no float. Floats may exceed the bounds by a rounding error. NaN and infinity pass,
because `check_finite` finds them in whole fragments of collected data.
"""

import functools
import logging
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import tree
from gymnasium import spaces
from torch import Tensor

from catalog.spaces import ArraySpace

logger = logging.getLogger("rlmodule.envs.make")

# Number of steps of an env in which floats beyond their bounds are an error. Later, they may be due to the policy: some
# policies fly LunarLander beyond its bounds.
_STRICT = 20
_strayed: set[str] = set()  # what was warned of
_ROUNDING = 1e-5  # relative tolerance: float32 arithmetic may leave [-1, 1] by a few units in the last place

# tuples, built once: a union in the call of isinstance would be built each time, which doubles its cost
_ARRAY_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
_NUMBERS = (float, int, np.floating, np.integer, np.bool_)
BOOLS = (bool, np.bool_)
LARGEST = float(np.finfo(np.float64).max)

SEVERAL_AGENTS = "An env of several agents needs .multi_agent(policies='shared'), or 'own' for a policy per agent."

Where: TypeAlias = Callable[[tuple[int, ...]], str]
"""Returns the env and step of the entry at an index, as ``env 3, step 57``. The index ``()`` is the whole array."""


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
    elif isinstance(space, spaces.Dict | spaces.Tuple):
        _check_parts(space, value, where, path, steps)
    elif not space.contains(value):  # Text, Graph, Sequence, OneOf and custom spaces
        raise _not_in_space(where, path, f"a member of {space}", describe(value))


def _check_parts(space: spaces.Dict | spaces.Tuple, value: Any, where: Where, path: str, steps: int) -> None:
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or value.keys() != space.spaces.keys():
            got = f"one with keys {[*value]}" if isinstance(value, Mapping) else describe(value)
            raise _not_in_space(where, path, f"a dict with keys {[*space.spaces]}", got)
        for key, inner in space.spaces.items():
            check_member(inner, value[key], where, f"{path}[{key!r}]", steps)
    else:
        if not isinstance(value, tuple | list) or len(value) != len(space.spaces):
            raise _not_in_space(where, path, f"a tuple of {len(space.spaces)} parts", describe(value))
        for position, inner in enumerate(space.spaces):
            check_member(inner, value[position], where, f"{path}[{position}]", steps)


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
    low, high = _bounds_of(space)
    if not np.count_nonzero((array < low) | (array > high)):  # nearly all arrays pass here; rounding takes longer
        return
    least, most = low, high
    if np.dtype(space.dtype).kind == "f":
        least, most = np.asarray(low, np.float64), np.asarray(high, np.float64)
        least, most = least - _ROUNDING * (1 + np.abs(least)), most + _ROUNDING * (1 + np.abs(most))
        with np.errstate(all="ignore"):  # too large a float64 becomes inf, as when it is stored
            array = array.astype(space.dtype, copy=False)
    outside = ((array < least) | (array > most)) & np.isfinite(array)
    if outside.any():
        _refuse_outside(array, outside, (low, high), space, where, path, steps)


def _bounds_of(space: ArraySpace) -> tuple[Any, Any]:
    """Return the smallest and the largest valid number of each entry of a member of ``space``, as numbers or arrays."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    counts = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return space.start, space.start + counts - 1


def _refuse_outside(
    array: np.ndarray,
    outside: np.ndarray,
    bounds: tuple[Any, Any],
    space: ArraySpace,
    where: Where,
    path: str,
    steps: int,
) -> None:
    """Raise ValueError for the first value of ``array`` that is ``outside`` the ``bounds`` of ``space``.

    But if ``space`` has floats, and the env has made more than 20 ``steps``, log it instead, once for each leaf, which
    is known by its ``space`` and ``path``.
    """
    index = tuple(int(i) for i in np.argwhere(outside)[0])
    least, most = (np.broadcast_to(bound, array.shape)[index] for bound in bounds)
    value = f"{array[index]}{f' at index {index}' if index else ''}"
    if np.dtype(space.dtype).kind != "f" or steps <= _STRICT:
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
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        check_flag(flag, where, name)
    check_info(where, info)
    return number


def real_number(reward: Any, where: str) -> Any:
    """Return a reward as a number. An array or tensor must have exactly one entry.

    Raises:
        TypeError: If ``reward`` is not one real number.
        ValueError: If it is an int too large to store as a float64.
    """
    number = reward.item() if isinstance(reward, np.ndarray | Tensor) and np.prod(reward.shape) == 1 else reward
    if not isinstance(number, _NUMBERS):
        remedy = SEVERAL_AGENTS if isinstance(reward, dict) else "Return float(reward)."
        raise TypeError(f"{where}: expected one real number, got {describe(reward)}. {remedy}")
    if isinstance(number, int) and abs(number) > LARGEST:  # NumPy cannot store it
        raise ValueError(
            f"{where}: expected one real number, at most {LARGEST:.1e}, got {describe(reward)}. Scale the reward down."
        )
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
    space: spaces.Space | None = None,
) -> None:
    """Raise ValueError with the env, step and leaf of the first number in rows of collected data that is NaN, infinite
    or could not be stored, if any.

    Args:
        values: Tree of arrays or CPU tensors: columns ``[T, N, ...]``, or with `places` ``[K, ...]``.
        name: Name of the values, for the error text.
        first_step: Number of the env step that returned row 0; 0 stands for the reset.
        first_env_index: Index of the env in column 0.
        places: Row and column ``[K, 2]`` of each of the ``K`` values.
        space: Space of the values if they are observations.
    """
    for path, array, wrong in wrong_numbers(values, space):
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        row, env, *inner = index if places is None else (*places[index[0]], *index[1:])
        where = f"env {first_env_index + env}, step {first_step + row}, {name}"
        raise _not_finite(where + "".join(f"[{key!r}]" for key in path), array[index], inner)


def wrong_numbers(values: Any, space: spaces.Space | None) -> Iterator[tuple[Any, np.ndarray, np.ndarray]]:
    """Yield the path, the array and the places of the wrong numbers of each leaf of ``values`` that has any. In floats,
    NaN and infinities are wrong. Where ``space`` has uint64, which is stored as int64, negative numbers are."""
    leaves = [((), values)] if isinstance(values, np.ndarray) else tree.flatten_with_path(values)
    for path, leaf in leaves:
        array = to_array(leaf)
        if array.dtype.kind == "f":
            finite = np.isfinite(array)
            if np.count_nonzero(finite) < array.size:
                yield path, array, ~finite
        elif space is not None and array.dtype == np.int64:
            in_env: Any = functools.reduce(operator.getitem, path, space)  # type: ignore[arg-type]
            if in_env.dtype == np.uint64 and np.count_nonzero(negative := array < 0):
                yield path, array, negative


def _not_finite(where: str, number: Any, index: list[Any]) -> ValueError:
    at = f" at index {tuple(index)}" if index else ""
    if isinstance(number, np.integer):
        return ValueError(
            f"{where}: expected at most 2**63 - 1, since uint64 is stored as int64, got {number.view(np.uint64)}{at}. "
            "Return such numbers as float64, or split them into two of uint32."
        )
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
