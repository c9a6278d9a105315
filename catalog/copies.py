"""Copies of settings at every depth of lists, dicts and dataclasses, read-only ones for frozen configs."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, NoReturn


def mutable_copy(value: Any, list_type: type[list[Any]] = list, dict_type: type[dict[Any, Any]] = dict) -> Any:
    """``value`` with every list, dict and dataclass in it copied, to lists and dicts of the types given.

    Other objects (classes, functions, spaces, what a callable object holds) are shared, so that an environment
    factory given to a config stays the very same one.
    """
    if isinstance(value, list):
        return list_type([mutable_copy(item, list_type, dict_type) for item in value])
    if isinstance(value, dict):
        return dict_type({key: mutable_copy(item, list_type, dict_type) for key, item in value.items()})
    if type(value) is tuple:
        return tuple(mutable_copy(item, list_type, dict_type) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        copied = copy.copy(value)
        for field in dataclasses.fields(value):
            # Past the dataclass's own __setattr__, which refuses when it is frozen.
            object.__setattr__(copied, field.name, mutable_copy(getattr(value, field.name), list_type, dict_type))
        return copied
    return value


def frozen_copy(value: Any) -> Any:
    """``value`` with every list, dict and dataclass in it copied, and the lists and dicts read-only."""
    return mutable_copy(value, FrozenList, FrozenDict)


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError(
        f"{self!r} of a frozen config: expected no change, got an attempt to change it. Change "
        "config.copy() instead: the copy is not frozen."
    )


class FrozenList(list[Any]):
    """A list that cannot change; it equals a plain one, and ``copy.deepcopy`` gives a plain one."""

    append = extend = insert = pop = remove = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return copy.deepcopy(list(self), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


class FrozenDict(dict[Any, Any]):
    """A dict that cannot change; it equals a plain one, and ``copy.deepcopy`` gives a plain one."""

    pop = popitem = setdefault = update = clear = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return copy.deepcopy(dict(self), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)
