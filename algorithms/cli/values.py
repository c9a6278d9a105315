"""Read what is typed after a flag: a number, a word, JSON, or a name in a module."""

import collections.abc
import importlib
import json
from collections.abc import Sequence
from contextlib import suppress
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import gymnasium as gym

from algorithms.cli.exits import UsageError
from catalog.checks import type_text, union_members
from catalog.errors import closest

_LISTS = (list, tuple, collections.abc.Sequence)
_CONTAINERS = (*_LISTS, dict, collections.abc.Mapping)
_CODE = (type, collections.abc.Callable)


def read(flag: str, hint: Any, texts: Sequence[str]) -> Any:
    """Read the value of a flag.

    Args:
        flag: The flag, as errors name it.
        hint: The annotation that the value has to fit. Ranges and the items of JSON are checked later.
        texts: What was typed: one word per item of a list, and one word for anything else.

    Raises:
        UsageError: If the value cannot be read.
    """
    item = item_of(hint)
    if [*texts] == ["None"] and NoneType in union_members(hint):
        return None
    return _read_one(flag, hint, texts[0]) if item is None else [_read_one(flag, item, text) for text in texts]


def item_of(hint: Any) -> Any:
    """Return the annotation of the items of a list that is typed as several words; None for anything else."""
    kind, *others = (part for part in union_members(hint) if part is not NoneType)
    items = get_args(kind)
    if others or get_origin(kind) not in _LISTS or items[1:] not in ((), (Ellipsis,)):
        return None
    return None if any(_kind(part) in _CONTAINERS for part in union_members(items[0])) else items[0]


def imported(where: str, path: str) -> Any:
    """Import what ``my_module:name`` or ``my_package.module:Class.method`` names.

    Args:
        where: What asks, as errors name it.
        path: Module, colon, name.

    Raises:
        UsageError: If there is no such thing; names the closest.
    """
    module_name, _, qualname = path.partition(":")
    try:
        found = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module raises
        raise UsageError(
            f"{where}: expected a module to import, got {module_name!r}, which raises {type(error).__name__}: {error}. "
            "Type my_module:name, without .py; modules in the current folder are found, too."
        ) from error
    for name in filter(None, qualname.split(".")):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise UsageError(
                f"{where}: expected something that {module_name} has, got {path!r}. "
                f"Name one of its classes or functions.{closest(name, dir(found))}"
            ) from None
    return found


def environment(text: str) -> Any:
    """Return the env that ENV names: an id as it is, the class or factory of ``my_module:name``.

    Gymnasium writes ``my_module:MyEnv-v0`` for an id that the module registers when it is imported. A name that could
    be either is the id, if it is registered then.

    Raises:
        UsageError: If there is no such class or factory, or the module cannot be imported.
    """
    module_name, colon, name = text.partition(":")
    if not colon:
        return text
    imported("ENV", module_name)
    is_name = all(part.isidentifier() for part in name.split("."))
    return imported("ENV", text) if is_name and name not in gym.registry else text


def _kind(hint: Any) -> Any:
    return get_origin(hint) or hint


def _read_one(flag: str, hint: Any, text: str) -> Any:
    parts = union_members(hint)
    for part in parts:
        with suppress(ValueError):
            if part in (int, float):
                return part(text)
            if _kind(part) is Literal and text in get_args(part):
                return text
            if _kind(part) in _CODE and ":" in text:
                return imported(flag, text)
            if _kind(part) in _CONTAINERS:
                return json.loads(text)
    if str in parts and not (text.startswith(("[", "{")) and {*parts} - {str, NoneType}):
        return text
    raise UsageError(
        f"{flag}: expected {type_text(hint)}, got {text!r}. Type all digits of a number, one word per item of a list, "
        "other lists and dicts as JSON in 'single quotes', and code as my_module:Name."
        f"{closest(text, [word for part in parts if _kind(part) is Literal for word in get_args(part)])}"
    )
