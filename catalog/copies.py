"""Deep copies of settings: mutable ones, and read-only ones for frozen configs."""

import copy
import dataclasses
from typing import Any, NoReturn


def mutable_copy(value: Any, list_type: type[list[Any]] = list, dict_type: type[dict[Any, Any]] = dict) -> Any:
    """Return a copy of ``value`` in which every list, dict, tuple and dataclass is copied too.

    The copy shares all other objects with ``value``, such as classes, functions and spaces, so that a config returns
    the same env factory that it was given.

    Args:
        value: Any setting.
        list_type: Class of the copied lists.
        dict_type: Class of the copied dicts.
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
            # object's __setattr__, since a frozen dataclass refuses assignments
            object.__setattr__(copied, field.name, mutable_copy(getattr(value, field.name), list_type, dict_type))
        return copied
    return value


def frozen_copy(value: Any) -> Any:
    """Return a copy of ``value`` as :func:`mutable_copy` does, but with read-only lists and dicts."""
    return mutable_copy(value, FrozenList, FrozenDict)


def _refuse(self: object, *args: object, **kwargs: object) -> NoReturn:
    raise TypeError(
        f"{self!r} of a frozen config: expected no change, got an attempt to change it. Change "
        "config.copy() instead: the copy is not frozen."
    )


class FrozenList(list[Any]):
    """A list that raises ``TypeError`` on any change. It equals a plain list with the same items, and
    ``copy.deepcopy`` returns a plain list."""

    append = extend = insert = pop = remove = clear = sort = reverse = _refuse
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> list[Any]:
        return copy.deepcopy(list(self), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenList, (list(self),)


class FrozenDict(dict[Any, Any]):
    """A dict that raises ``TypeError`` on any change. It equals a plain dict with the same items, and
    ``copy.deepcopy`` returns a plain dict."""

    pop = popitem = setdefault = update = clear = _refuse
    __setitem__ = __delitem__ = __ior__ = _refuse

    def __deepcopy__(self, memo: dict[int, Any]) -> dict[Any, Any]:
        return copy.deepcopy(dict(self), memo)

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self),)
