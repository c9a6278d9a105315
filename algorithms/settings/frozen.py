"""Read-only lists and dicts for frozen configs. They equal their mutable kin and are written to JSON like them."""

from __future__ import annotations

import copy
from typing import Any, NoReturn

from rlmodule.rebuilding import rebuilt


def frozen_copy(value: Any) -> Any:
    """``value`` with every list, dict and dataclass in it copied, and the lists and dicts read-only."""
    return rebuilt(value, FrozenList, FrozenDict)


def mutable_copy(value: Any) -> Any:
    """``value`` with every list, dict and dataclass in it copied, and the lists and dicts changeable.

    Other objects (classes, functions, spaces, what a callable object holds) are shared, so that an environment
    factory given to a config stays the very same one.
    """
    return rebuilt(value)


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError(
        f"{self!r} of a frozen config: expected no change, got an attempt to change it. Change "
        "config.copy() instead: the copy is not frozen."
    )


class FrozenList(list[Any]):
    """A list that cannot change; ``copy.deepcopy`` gives a plain list."""

    append = extend = insert = pop = remove = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return [copy.deepcopy(item, memo) for item in self]

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


class FrozenDict(dict[Any, Any]):
    """A dict that cannot change; ``copy.deepcopy`` gives a plain dict."""

    pop = popitem = setdefault = update = clear = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return {copy.deepcopy(key, memo): copy.deepcopy(item, memo) for key, item in self.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)
