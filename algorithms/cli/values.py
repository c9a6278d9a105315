"""From the text after a flag to a value: numbers, words, JSON, and names in modules of the user's."""

from __future__ import annotations

import collections.abc
import importlib
import importlib.util
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import gymnasium as gym

from algorithms.cli.exits import UsageError
from algorithms.settings.checks import is_schedule
from algorithms.settings.encoding import encode
from catalog.errors import closest, explain_error

_THOUSANDS = {"k": 1000, "m": 1_000_000}
_CONTAINERS = (list, tuple, dict)


class ValueReader:
    """Reads the values of one flag.

    Args:
        flag: As errors name it.
        hint: The annotation that a value has to fit, as far as it can be typed; whether it does is checked later.

    Attributes:
        several: Whether the flag takes any number of texts, one per item.
        metavar: How the help shows what to type.
    """

    def __init__(self, flag: str, hint: Any) -> None:
        self.flag = flag
        parts = list(_parts(hint))
        self._optional = NoneType in parts
        parts = [part for part in parts if part is not NoneType]
        self._item = _item_of(parts[0]) if len(parts) == 1 else None
        self.several = self._item is not None
        shown = [*_parts(self._item)] if self.several else parts
        words = ["NUMBER", "JSON"] if is_schedule(hint) else list(dict.fromkeys(w for p in shown for w in _words(p)))
        self._parts = shown
        self.metavar = "|".join([*words, *(["None"] if self._optional else [])])

    def read(self, texts: Sequence[str]) -> Any:
        """The value that was typed.

        Raises:
            UsageError: If it cannot be understood; names the flag.
        """
        if self._optional and list(texts) == ["None"]:
            return None
        if not self.several:
            return self._read_one(texts[0])
        if len(texts) == 1 and texts[0].startswith("["):
            return self._read_json(texts[0])
        return [self._read_one(text) for text in texts]

    def write(self, value: Any) -> list[str]:
        """``value`` as the help shows it."""
        if self.several and isinstance(value, list | tuple):
            return [_text(item) for item in value]
        return [_text(value)]

    def _read_one(self, text: str) -> Any:
        for part in self._parts:
            try:
                return _read_as(part, text)
            except ValueError:
                continue
        for part in self._parts:
            if _is_import(part) and ":" in text:
                return imported(self.flag, text)
        if "JSON" in self.metavar and (text[:1] in ("[", "{") or str not in self._parts):
            return self._read_json(text)
        if str in self._parts:
            return text
        raise self._unreadable(text)

    def _read_json(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError:
            raise self._unreadable(text) from None

    def _unreadable(self, text: str) -> UsageError:
        kinds = " or ".join(_EXPLAINED.get(word, repr(word)) for word in self.metavar.split("|"))
        words = [word for word in self.metavar.split("|") if word not in _EXPLAINED]
        remedy = "Text with spaces, brackets or quotes goes in 'single quotes'." if "JSON" in self.metavar else ""
        remedy = f"{remedy}{closest(text, words)}".strip() or "Type one of these."
        return UsageError(explain_error(self.flag, expected=kinds, got=repr(text), remedy=remedy))


_EXPLAINED = {
    "INT": "a whole number such as 4, 1e6 or 200k",
    "FLOAT": "a number",
    "NUMBER": "a number",
    "TEXT": "text",
    "MODULE:NAME": "a path such as my_module:Name",
    "JSON": "JSON",
    "None": "None",
}
"""Metavar → the same in words; every other word stands for itself."""

_KINDS_OF_CONTAINERS = (*_CONTAINERS, collections.abc.Mapping, collections.abc.Sequence)


def is_typeable(hint: Any) -> bool:
    """Whether any value that fits ``hint``, besides None, can be typed in a shell."""
    return any(part is not NoneType and bool(_words(part)) for part in _parts(hint))


def imported(where: str, path: str) -> Any:
    """What ``my_module:name`` or ``my_package.module:Class.method`` leads to.

    Args:
        where: What asks, as errors name it.
        path: Module, colon, name.

    Raises:
        UsageError: If it leads nowhere; names the closest.
    """
    module_name, _, qualname = path.partition(":")
    found = _module(where, module_name)
    for name in qualname.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            remedy = f"Name one of its classes or functions.{closest(name, dir(found))}"
            expected = f"something that {module_name} has"
            raise UsageError(explain_error(where, expected=expected, got=repr(path), remedy=remedy)) from None
    return found


def environment(text: str) -> Any:
    """The env that ENV names: an id stays text, ``my_module:name`` becomes the class or factory of that name.

    Gymnasium writes ``my_module:MyEnv-v0`` for an id that the module registers when it is imported. A name that could
    be either is the id, if it is registered then.

    Raises:
        UsageError: If there is no such class or factory, or the module cannot be imported.
    """
    module_name, colon, name = text.partition(":")
    if not colon:
        _refuse_dotted(text)
        return text
    if module_name.endswith(".py"):
        right = f"{module_name.removesuffix('.py').strip('./').replace('/', '.')}:{name}"
        expected, remedy = "a module's name before the colon", f"Write {right}."
        raise UsageError(explain_error("ENV", expected=expected, got=repr(module_name), remedy=remedy))
    _module("ENV", module_name)
    is_name = all(part.isidentifier() for part in name.split("."))
    return imported("ENV", text) if is_name and name not in gym.registry else text


def _refuse_dotted(text: str) -> None:
    """Raise ``UsageError`` for ``my_module.name``, where there is such a module and no id of this name."""
    module_name, dot, name = text.rpartition(".")
    if not dot or not all(part.isidentifier() for part in text.split(".")) or text in gym.registry:
        return
    if importlib.util.find_spec(module_name.partition(".")[0]) is not None:
        path = f"{module_name}:{name}" if name != "py" else f"{module_name}:NAME"
        remedy = f"Did you mean {path}?"
        raise UsageError(
            explain_error("ENV", expected="an id, or a module and a name with a colon", got=repr(text), remedy=remedy)
        )


def whole_number(text: str) -> int:
    """An int as people type it: ``200000``, ``200_000``, ``2e5``, ``200k``, ``1.5M``.

    Raises:
        ValueError: If it is none.
    """
    body, factor = (text[:-1], _THOUSANDS[text[-1].lower()]) if text[-1:].lower() in _THOUSANDS else (text, 1)
    try:
        number = Decimal(body) * factor
    except ArithmeticError:
        raise ValueError(text) from None
    if not number.is_finite() or abs(number) > 10**18 or number != int(number):
        raise ValueError(text)
    return int(number)


def _module(where: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception as error:  # whatever the user's module raises
        got = f"{name!r}, which raises {type(error).__name__}: {error}"
        remedy = "Correct the name, or what the module does; it is looked for in the current folder, too."
        raise UsageError(explain_error(where, expected="a module to import", got=got, remedy=remedy)) from error


def _parts(hint: Any) -> Iterator[Any]:
    if get_origin(hint) in (Union, UnionType):
        for arg in get_args(hint):
            yield from _parts(arg)
    else:
        yield NoneType if hint is None else hint


def _item_of(hint: Any) -> Any:
    """The annotation of the items of a plain list; None for every other one."""
    items = get_args(hint)
    if get_origin(hint) not in (list, tuple, collections.abc.Sequence) or items[1:] not in ((), (Ellipsis,)):
        return None
    plain = all(part in (int, float, str) or _is_import(part) for part in _parts(items[0]))
    return items[0] if plain else None


def _is_import(hint: Any) -> bool:
    return hint is type or get_origin(hint) in (type, collections.abc.Callable)


def _words(hint: Any) -> list[str]:
    """How the help shows what a part of an annotation takes; nothing for what cannot be typed."""
    if get_origin(hint) is Literal:
        return [arg for arg in get_args(hint) if isinstance(arg, str)]
    if _is_import(hint):
        return ["MODULE:NAME"]
    if (get_origin(hint) or hint) in _KINDS_OF_CONTAINERS:
        return ["JSON"]
    return {int: ["INT"], float: ["FLOAT"], str: ["TEXT"], bool: ["True", "False"]}.get(hint, [])


def _read_as(hint: Any, text: str) -> Any:
    """``text`` as a number or a word of ``hint``; raises ValueError where it is none."""
    if hint is int:
        return whole_number(text)
    if hint is float:
        return float(text)
    if hint is bool:
        return ("False", "True").index(text.capitalize()) == 1
    if get_origin(hint) is Literal and text in get_args(hint):
        return text
    raise ValueError(text)


def _text(value: Any) -> str:
    """A value as it is typed."""
    plain = value if isinstance(value, str) else encode(value)
    if isinstance(plain, dict) and "__import__" in plain:
        return plain["__import__"]
    return json.dumps(plain) if isinstance(plain, list | dict) else str(plain)
