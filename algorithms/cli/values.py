"""Convert the words after a flag to a value: a number, a string, JSON, or an object in a module."""

import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import gymnasium as gym

from algorithms.cli.exits import UsageError
from catalog.checks import type_text, union_members
from catalog_rl import closest

_LISTS = (list, tuple, Sequence)
_CONTAINERS = (*_LISTS, dict, Mapping)
_CODE = (type, Callable)
_UNDERSCORES = re.compile(r'("(?:\\.|[^"\\])*")|(?<=\d)_(?=\d)')  # as in 500_000; strings match too, and are kept


def read(flag: str, hint: Any, texts: Sequence[str]) -> Any:
    """Convert the words after a flag to a value.

    Args:
        flag: The flag, for errors.
        hint: Annotation of the value. The caller checks ranges and the items of JSON.
        texts: The words: one per item of a list, one for any other value.

    Raises:
        UsageError: If the words do not fit ``hint``.
    """
    item = item_of(hint)
    if [*texts] == ["None"] and NoneType in union_members(hint):
        return None
    if item is None or (len(texts) == 1 and len({*union_members(hint)} - {NoneType}) > 1):
        return _read_one(flag, hint, texts[0])
    return [_read_one(flag, item, text) for text in texts]


def item_of(hint: Any) -> Any:
    """Return the annotation of the items if ``hint`` allows a list that the command line takes as one word per item.
    Return None if it allows no list, or only lists of lists or dicts, which the command line takes as JSON."""
    for items in (get_args(part) for part in union_members(hint) if get_origin(part) in _LISTS):
        if items[1:] in ((), (Ellipsis,)) and not any(_kind(part) in _CONTAINERS for part in union_members(items[0])):
            return items[0]
    return None


def imported(where: str, path: str) -> Any:
    """Import the object ``my_module:name`` or ``my_package.module:Class.method``, or the module ``my_module``.

    Args:
        where: The flag or argument, for errors.
        path: The import path.

    Raises:
        UsageError: If the module cannot be imported, or has no such name; suggests the closest.
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
    """Return the env for the argument ENV: an id unchanged, or the class or factory ``my_module:name``.

    In Gymnasium, ``my_module:MyEnv-v0`` is an id that the module registers. If the module both registers an id and
    defines a class of this name, the id wins.

    Raises:
        UsageError: If the module cannot be imported, or has no such class or factory.
    """
    module_name, colon, name = text.partition(":")
    if not colon:
        return text
    imported("ENV", module_name)
    is_name = all(part.isidentifier() for part in name.split("."))
    return imported("ENV", text) if is_name and name not in gym.registry else text


def _kind(hint: Any) -> Any:
    return get_origin(hint) or hint


def _whole(text: str) -> int:
    """Return the whole number in ``text``, such as ``1000000``, ``1_000_000`` or ``1e6``. Raise ValueError if there is
    none."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def _read_one(flag: str, hint: Any, text: str) -> Any:
    parts = union_members(hint)
    choices = [word for part in parts if _kind(part) is Literal for word in get_args(part)]
    if text in choices:
        return text
    for part in parts:
        kind = _kind(part)
        with suppress(ValueError):
            if kind is int:
                return _whole(text)
            if kind is float:
                return float(text)
            if kind in _CODE and ":" in text:
                return imported(flag, text)
            if kind in _CONTAINERS:
                return json.loads(_UNDERSCORES.sub(lambda match: match[1] or "", text))
    if str in parts and not (text.startswith(("[", "{")) and {*parts} - {str, NoneType}):
        return text
    if item_of(hint) is str and re.fullmatch(r"\w+", text) and not choices:
        return [text]
    raise UsageError(
        f"{flag}: expected {type_text(hint)}, got {text!r}. Type all digits of a number, one word per item of a list, "
        "other lists and dicts as JSON in 'single quotes', and code as my_module:Name."
        f"{closest(text, choices)}"
    )
