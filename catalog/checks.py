"""Checks that the value of a setting fits its annotation and its range."""

import collections.abc
import contextlib
import itertools
import math
import numbers
import operator
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

Schedule: TypeAlias = float | list[list[float]]
"""A constant, or points ``[[0, value], [env_step, value], ...]``: the value is linear between two points and constant
after the last one."""

_POINTS = list[list[float]]

Size = int | tuple[int, int]
Filters = tuple[tuple[int, Size, Size] | tuple[int, Size, Size, Literal["same", "valid"]], ...]
"""One convolution per entry: channels, kernel size, stride and, optionally, padding. A kernel size or stride is a
number or (height, width)."""

# annotations that messages show in another form
_TEXTS = {
    Filters: "[[channels, kernel, stride], [channels, kernel, stride, 'same' | 'valid'], ...]",
    NoneType: "None",
    None: "None",
    Ellipsis: "...",
}

_RELATIONS = {"ge": (">=", operator.ge), "gt": (">", operator.gt), "le": ("<=", operator.le), "lt": ("<", operator.lt)}


@dataclass(frozen=True)
class Bounds:
    """The range of a number: ``>= ge``, ``> gt``, ``<= le`` and ``< lt``, each unless it is None."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None

    def __str__(self) -> str:
        return " and ".join(f"{_RELATIONS[name][0]} {end:g}" for name, end in vars(self).items() if end is not None)

    def __contains__(self, number: float) -> bool:
        return all(_RELATIONS[name][1](number, end) for name, end in vars(self).items() if end is not None)


def check_value(where: str, value: Any, hint: Any, bounds: Bounds, doc: str) -> Any:
    """Return ``value`` converted to the type that ``hint`` asks for, such as an int to float or a tuple to list.

    Args:
        where: Name of the setting in error messages.
        value: The value that the user gave.
        hint: The resolved annotation.
        bounds: Range of every number in ``value``. In a schedule it applies to the values, not to the env steps.
        doc: The sentence that describes the setting, repeated in the error.

    Raises:
        TypeError: If ``value`` does not fit ``hint``.
        ValueError: If a number is not finite or out of range, or if the points do not form a schedule.
    """
    try:
        fitted = _fit(value, hint)
    except _MisfitError:
        got = f"{value!r} ({type(value).__name__})"
        says_auto = isinstance(value, str) and value == "auto" and NoneType in union_members(hint)  # as in RLlib
        remedy = f"Use None: {doc}" if says_auto else _remedy(doc)
        raise TypeError(f"{where}: expected {_expected(hint, bounds)}, got {got}. {remedy}") from None
    if is_schedule(hint) and isinstance(fitted, list):
        _check_steps(where, fitted)
        checked = [point[1] for point in fitted]
    else:
        checked = list(_numbers(fitted))
    for number in checked:
        if (isinstance(number, float) and not math.isfinite(number)) or number not in bounds:
            problem = f"{number!r}" if number is fitted else f"{number!r} in {value!r}"
            raise ValueError(f"{where}: expected finite {_expected(hint, bounds)}, got {problem}. {_remedy(doc)}")
    return fitted


def _expected(hint: Any, bounds: Bounds) -> str:
    return ", ".join(filter(None, (type_text(hint), str(bounds))))


def _remedy(doc: str) -> str:
    return f"Give it a value that fits: {doc}" if doc else "Give it a value that fits."


def is_schedule(hint: Any) -> bool:
    """Return whether the annotation ``hint`` allows both a float and a list of points ``[env_step, value]``."""
    members = union_members(hint)
    return float in members and _POINTS in members


def union_members(hint: Any) -> tuple[Any, ...]:
    """Return the members of ``hint`` if it is a union, else ``hint`` alone."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def type_text(hint: Any) -> str:
    """Return the annotation ``hint`` as text for users, such as ``int | None`` or ``'sync' | 'async'``."""
    origin, args, members = get_origin(hint), get_args(hint), union_members(hint)
    if hint in _TEXTS:
        return _TEXTS[hint]
    if is_schedule(hint):
        rest = [type_text(member) for member in members if member not in (float, _POINTS)]
        return " | ".join(["float", "[[0, value], [env_step, value], ...]", *rest])
    if len(members) > 1:
        return " | ".join(map(type_text, members))
    if origin is Literal:
        return " | ".join(repr(arg) for arg in args)
    if origin is collections.abc.Callable:
        return "callable"
    if origin is not None:
        return f"{origin.__name__}[{', '.join(type_text(arg) for arg in args)}]"
    return hint.__name__ if isinstance(hint, type) else str(hint).removeprefix("typing.")


class _MisfitError(Exception):
    """Raised if a value does not fit its annotation. ``check_value`` turns it into the ``TypeError`` that users see."""


def _fit(value: Any, hint: Any) -> Any:
    """Return ``value`` converted to the annotation ``hint``, or raise :class:`_MisfitError`."""
    members = union_members(hint)
    if len(members) > 1:
        return _fit_union(value, members)
    origin, args = get_origin(hint) or hint, get_args(hint)
    # hints to which a value of another type may be converted
    if origin in (int, float):
        return _fit_number(value, origin)
    if origin in (list, tuple):
        return _fit_items(value, origin, args)
    if origin in (dict, collections.abc.Mapping) and isinstance(value, collections.abc.Mapping):
        key_hint, item_hint = args or (Any, Any)
        return {_fit(key, key_hint): _fit(item, item_hint) for key, item in value.items()}
    if origin is str and isinstance(value, os.PathLike):
        return os.fspath(value)
    # all other hints accept a value as it is, or not at all
    if not _is_instance(value, hint, origin, args):
        raise _MisfitError
    return value


def _is_instance(value: Any, hint: Any, origin: Any, args: tuple[Any, ...]) -> bool:
    """Return whether ``value`` is an instance of the annotation ``hint``, which consists of ``origin`` and ``args``."""
    if hint is Any:
        return True
    if origin is Literal:
        return any(type(value) is type(arg) and value == arg for arg in args)  # 1 is neither True nor 1.0
    if origin is type:
        return isinstance(value, type) and (args in ((), (Any,)) or issubclass(value, args))
    if origin is collections.abc.Callable:
        return callable(value)
    return isinstance(value, NoneType if hint is None else origin)


def _fit_union(value: Any, members: tuple[Any, ...]) -> Any:
    found = []
    for member in members:
        with contextlib.suppress(_MisfitError):
            found.append(_fit(value, member))
    if not found:
        raise _MisfitError
    # Prefer a member that keeps the type: `int | float` leaves 3 an int, `list | tuple` a tuple a tuple.
    return next((fitted for fitted in found if type(fitted) is type(value)), found[0])


def _fit_number(value: Any, hint: type) -> int | float:
    if isinstance(value, bool):
        raise _MisfitError
    if hint is int and isinstance(value, numbers.Integral):
        return int(value)
    if hint is float and isinstance(value, numbers.Real):
        try:
            return float(value)
        except OverflowError:
            return math.inf
    raise _MisfitError


def _fit_items(value: Any, kind: Any, args: tuple[Any, ...]) -> Any:
    if not isinstance(value, list | tuple):
        raise _MisfitError
    is_fixed = kind is tuple and args and args[-1] is not Ellipsis
    hints = args if is_fixed else (args[0] if args else Any,) * len(value)
    if len(value) != len(hints):
        raise _MisfitError
    return kind(map(_fit, value, hints))


def _numbers(value: Any) -> Iterator[float]:
    """Yield the numbers in the value of a setting, nested lists and tuples included. Skip dicts, because their contents
    belong to the user."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)


def _check_steps(where: str, points: Sequence[Sequence[float]]) -> None:
    steps = [point[0] for point in points if len(point) == 2]
    if len(points) < 2 or len(steps) != len(points):
        problem = "too few points" if len(points) < 2 else "a point that is not a pair"
    elif not all(math.isfinite(step) for step in steps):
        problem = "a step that is not finite"
    elif steps[0] != 0:
        problem = f"the first step {steps[0]:g}"
    elif any(later <= earlier for earlier, later in itertools.pairwise(steps)):
        problem = "steps that do not increase"
    else:
        return
    raise ValueError(
        f"{where}: expected a schedule [[0, value], [env_step, value], ...] with strictly "
        f"increasing steps, got {problem} in {points!r}. Start at env step 0 and give at least two "
        "points, or give one number."
    )
