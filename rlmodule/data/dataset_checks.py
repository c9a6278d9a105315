"""Checks of data sets: each column is compared with its space once, whole, and an error names the row and episode."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space, spaces
from torch import Tensor

from catalog.base import Tree
from catalog.distributions.categorical import choice_counts
from catalog.spaces import ArraySpace, space_parts
from rlmodule.data.rollout import bounds_of

logger = logging.getLogger(__name__)

MASK = "action_mask"
"""The field of a Dict observation that says which choices are allowed."""
REWARD_SPACE = spaces.Box(-np.inf, np.inf, (), np.float32)

_ROUNDING = 1e-5  # of a bound and of 1, as for the observations of an env


class Rows(NamedTuple):
    """The rows of a column, for error messages.

    Attributes:
        where: The call, with which the messages begin.
        offsets: First row of each episode, and the number of rows, int64 ``[E + 1]``.
        are_steps: Whether rows are steps; if not, each is an episode.
        are_within: Whether floats beyond the bounds of a space are an error, and not just logged.
    """

    where: str
    offsets: np.ndarray
    are_steps: bool = True
    are_within: bool = True

    @property
    def num(self) -> int:
        """Number of rows."""
        return int(self.offsets[-1]) if self.are_steps else len(self.offsets) - 1

    def wrong(self, name: str, row: int, expected: str, got: object, remedy: str) -> ValueError:
        """Return the error for ``row`` of the column ``name``."""
        place = f"episode {row}"
        if self.are_steps:
            episode = int(np.searchsorted(self.offsets, row, side="right")) - 1
            place = f"row {row} (episode {episode}, step {row - self.offsets[episode]})"
        return misfit(self.where, f"{name}, {place}", expected, got, remedy)


def misfit(where: str, name: str, expected: str, got: object, remedy: str) -> ValueError:
    """Return the error for the column or argument ``name``."""
    return ValueError(f"{where}: {name}: expected {expected}, got {got}. {remedy}")


def as_array(where: str, name: str, value: Any) -> np.ndarray:
    """Return ``value`` as a writable array, which shares its memory if it can.

    Raises:
        ValueError: If ``value`` does not form an array of numbers.
    """
    try:
        array = value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
    except ValueError as error:  # entries of different shapes
        raise misfit(where, name, "one array", f"what forms none ({error})", "Give all rows the same shape.") from error
    if array.dtype.kind not in "fiub":
        raise misfit(where, name, "numbers", f"dtype {array.dtype}", "Convert them to numbers first.")
    return array if array.flags.writeable else array.copy()


def as_flags(where: str, name: str, value: Any, num: int) -> np.ndarray:
    """Return ``value``, bools or numbers 0 and 1, as bools ``[num]``.

    Raises:
        ValueError: If it has another shape or other numbers.
    """
    array = as_array(where, name, value)
    if array.shape != (num,):
        raise misfit(where, name, f"shape {(num,)}", array.shape, "Give one bool per row.")
    flags = array != 0
    if (strange := np.flatnonzero(array != flags)).size:
        row = strange[0]
        raise misfit(where, f"{name}, row {row}", "True, False, 1 or 0", array[row], "Give one bool per row.")
    return flags


def as_offsets(where: str, value: Any, num: int) -> np.ndarray:
    """Return ``value`` as the int64 offsets ``[E + 1]`` of episodes that fill ``num`` rows.

    Raises:
        ValueError: If they do not begin with 0, end with ``num`` and increase in between.
    """
    array = as_array(where, "offsets", value)
    remedy = "Put the steps of each episode together, one episode after another."
    if array.dtype.kind not in "iu" or array.ndim != 1 or len(array) < 2:
        got = f"{array.dtype} of shape {array.shape}"
        raise misfit(where, "offsets", "integers of shape [E + 1], for one episode or more", got, remedy)
    if array[0] != 0 or array[-1] != num:
        raise misfit(where, "offsets", f"0 first and {num} last", f"{array[0]} and {array[-1]}", remedy)
    offsets = array.astype(np.int64)
    # compared, since the difference of numbers far outside would overflow
    if (empty := np.flatnonzero(offsets[1:] <= offsets[:-1])).size:
        episode = empty[0]
        got = f"rows {offsets[episode]} to {offsets[episode + 1]}"
        raise misfit(where, f"offsets, episode {episode}", "at least one step", got, remedy)
    return offsets


def space_for(where: str, name: str, space: Space | None, value: Tree) -> Space:
    """Return ``space``, or the unbounded Box of the floats in ``value`` if it is None.

    Raises:
        ValueError: If no space is given for other values, or ``space`` is not a space.
    """
    keyword = "action_space" if name == "actions" else "observation_space"
    if isinstance(space, Space):
        return space
    if space is not None:
        raise misfit(where, keyword, "a Gymnasium space", repr(space), "Pass env.observation_space or the like.")
    if isinstance(value, Mapping | tuple):
        raise misfit(where, keyword, f"a space, since {name} is nested", "none", f"Pass {keyword}=.")
    array = as_array(where, name, value)
    if array.dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, array.shape[1:], np.float32)
    number = int(array.max(initial=0)) + 1
    example = f"Discrete({number})" if array.ndim == 1 else f"Box(0, {number - 1}, {array.shape[1:]}, np.{array.dtype})"
    remedy = f"Integers may be choices or amounts: pass {keyword}=, such as gymnasium.spaces.{example}."
    raise misfit(where, keyword, f"a space, since {name} has dtype {array.dtype}", "none", remedy)


def fitted(space: Space, value: Tree, rows: Rows, name: str) -> Tree:
    """Return a column as arrays ``[rows, ...]`` in the structure and dtypes of ``space``. Arrays that have the dtype
    are not copied.

    Raises:
        ValueError: If the column has another structure, length, shape or kind of dtype, or a number that is NaN,
            infinite or outside the space. Unless ``rows.are_within``, a float outside the space is logged instead.
    """
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return _fitted_array(space, value, rows, name)
    parts = space_parts(space)
    if isinstance(space, spaces.Dict):
        fits = isinstance(value, Mapping) and value.keys() == parts.keys()
        expected = f"a dict with the keys {[*parts]}"
    else:
        fits = isinstance(value, tuple | list) and len(value) == len(parts)
        expected = f"a tuple of {len(parts)} arrays"
    if not fits:
        got = f"a dict with the keys {[*value]}" if isinstance(value, Mapping) else f"a {type(value).__name__}"
        raise misfit(rows.where, name, expected, got, f"Nest the arrays as {space} does.")
    result = {key: fitted(part, value[key], rows, f"{name}[{key!r}]") for key, part in parts.items()}
    return result if isinstance(space, spaces.Dict) else tuple(result.values())


def _fitted_array(space: Space, value: Any, rows: Rows, name: str) -> np.ndarray:
    if not isinstance(space, ArraySpace) or np.dtype(space.dtype).kind not in "fiub":
        raise misfit(rows.where, name, "a space of arrays", space, "Turn it into arrays with an environment wrapper.")
    array = as_array(rows.where, name, value)
    dtype = np.dtype(space.dtype)
    has_floats = dtype.kind == "f"
    shape = (rows.num, *(space.shape or ()))
    if array.shape != shape or array.dtype.kind not in ("fiu" if has_floats else "iub"):
        got = f"{array.dtype} of shape {array.shape}"
        remedy = f"Give one entry of {space} per {'reward' if rows.are_steps else 'episode'}."
        raise misfit(rows.where, name, f"{dtype} of shape {shape}", got, remedy)
    low, high = least, most = bounds_of(space)
    if has_floats:
        with np.errstate(over="ignore"):  # a number beyond the dtype becomes infinite, which is refused below
            array = array.astype(dtype, copy=False)
        low, high = np.asarray(low, np.float64), np.asarray(high, np.float64)
        least, most = low - _ROUNDING * (1 + np.abs(low)), high + _ROUNDING * (1 + np.abs(high))
    # The least and the greatest numbers decide for all rows; NaN is both.
    ends = array.min(axis=0), array.max(axis=0)
    if not np.isfinite(ends).all():
        row, _, got = _first_of(array, ~np.isfinite(array))
        raise rows.wrong(name, row, "finite numbers", got, "Look for a broken step, and leave out its episode.")
    if (ends[0] < least).any() or (ends[1] > most).any():
        row, index, got = _first_of(array, (array < least) | (array > most))
        low, high = (np.broadcast_to(bound, shape[1:])[index] for bound in (low, high))
        expected = f"numbers in [{low}, {high}]"
        if has_floats and not rows.are_within:
            remedy = "Such numbers are used as they are, as in a run whose env leaves its bounds."
            logger.warning("%s", rows.wrong(name, row, expected, got, remedy))
        else:
            remedy = "Pass the space that they come from, or clip them."
            raise rows.wrong(name, row, expected, got, remedy)
    return array.astype(dtype, copy=False)


def _first_of(array: np.ndarray, wrong: np.ndarray) -> tuple[int, tuple[int, ...], str]:
    """Return the row of the first number that is ``wrong``, its index in the row, and a text with both."""
    row, *inner = (int(i) for i in np.argwhere(wrong)[0])
    index = tuple(inner)
    return row, index, f"{array[(row, *index)]}{f' at index {index}' if index else ''}"


def check_mask(observation_space: Space, action_space: Space, observations: Tree, actions: Tree, rows: Rows) -> None:
    """Raise ValueError with the first row whose action is a choice that its :data:`MASK` forbids. A field of that name
    with another number of entries than the actions have choices is no mask."""
    if isinstance(observation_space, spaces.Dict) and MASK in observation_space.spaces:
        _check_part(observation_space[MASK], action_space, observations[MASK], actions, rows, "actions")


def _check_part(field: Space, space: Space, mask: Tree, actions: Tree, rows: Rows, name: str) -> None:
    if isinstance(field, spaces.Dict | spaces.Tuple) and type(field) is type(space):
        parts = space_parts(space)  # type: ignore[arg-type]
        for key, part in space_parts(field).items():
            if key in parts:
                _check_part(part, parts[key], mask[key], actions[key], rows, f"{name}[{key!r}]")
        return
    counts: list[int] = []
    choices: list[np.ndarray] = []
    for leaf, values in zip(leaves_of(space, None), leaves_of(space, actions), strict=True):
        if sizes := choice_counts(leaf):
            first = np.asarray(bounds_of(leaf)[0]).astype(np.int64)
            choices.append((values.astype(np.int64) - first).reshape(rows.num, -1))
            counts += sizes
    if not isinstance(mask, np.ndarray) or mask[0].size != sum(counts) or not counts:
        return
    # The mask has the entries of one part after those of another.
    entries = np.concatenate(choices, axis=1) + np.cumsum([0, *counts[:-1]])
    allowed = np.take_along_axis(mask.reshape(rows.num, -1), entries, axis=1) != 0
    if (forbidden := np.flatnonzero(~allowed.all(axis=1))).size:
        row = int(forbidden[0])
        got = f"{np.concatenate([part[row] for part in choices]).tolist()}, counted from 0"
        remedy = "Look whether masks and actions are of the same step."
        raise rows.wrong(name, row, f"choices that observations[{MASK!r}] allows", got, remedy)


def leaves_of(space: Space, value: Tree) -> list[Any]:
    """Return the leaves of ``value``, in the order of ``space``; if it is None, the spaces of the leaves."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return [space if value is None else value]
    parts = space_parts(space).items()
    return [leaf for key, part in parts for leaf in leaves_of(part, None if value is None else value[key])]
