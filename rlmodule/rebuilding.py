"""Copies of settings, at every depth of lists and dicts."""

import copy
import dataclasses
from typing import Any


def rebuilt(value: Any, list_type: type[list[Any]] = list, dict_type: type[dict[Any, Any]] = dict) -> Any:
    """``value`` with every list, dict and dataclass in it copied, to lists and dicts of the types given.

    Other objects (classes, functions, spaces, what a callable object holds) are shared.
    """
    if isinstance(value, list):
        return list_type([rebuilt(item, list_type, dict_type) for item in value])
    if isinstance(value, dict):
        return dict_type({key: rebuilt(item, list_type, dict_type) for key, item in value.items()})
    if type(value) is tuple:
        return tuple(rebuilt(item, list_type, dict_type) for item in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        copied = copy.copy(value)
        for field in dataclasses.fields(value):
            # Past the dataclass's own __setattr__, which refuses when it is frozen.
            object.__setattr__(copied, field.name, rebuilt(getattr(value, field.name), list_type, dict_type))
        return copied
    return value
