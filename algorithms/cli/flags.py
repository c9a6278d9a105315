"""From settings to flags, and from flags to a config: no flag of a setting is written twice."""

from __future__ import annotations

import collections.abc
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, make_dataclass
from functools import partial
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from algorithms.checks import check_value, is_schedule
from algorithms.config import AlgorithmConfig
from algorithms.registry import config_class
from algorithms.settings import Setting, settings_of
from catalog import DefaultModelConfig
from catalog.errors import closest, explain_error

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

NEW_RUN_DIR = "runs/<algo>-<env>-<time>"
"""Default of ``--run-dir``: a folder of this name, made anew."""

_NOT_FLAGS = ("env", "model_config")  # the argument ENV, and the group of flags "model"

Flags = TypeVar("Flags", bound="DataclassInstance")


class UsageError(ValueError):
    """The command line cannot be understood."""


class HelpWanted(Exception):
    """The overview of all commands is to be shown."""


def parse(base: type[Flags], prog: str, args: Sequence[str]) -> Flags:
    """``args`` as a ``base``, a dataclass.

    Raises:
        UsageError: If a flag is unknown; names the closest.
        SystemExit: From tyro, after it has shown the help or what is wrong with a value.
    """
    return tyro.cli(base, args=_checked_flags(args, [item.name for item in dataclasses.fields(base)], prog), prog=prog)


def parse_settings(
    base: type[Flags], prog: str, args: Sequence[str], defaults: AlgorithmConfig, known: Mapping[str, Setting]
) -> Flags:
    """``args`` as a ``base`` that also has one attribute per section of settings, and one called ``model``.

    Args:
        base: A dataclass of the flags that are no settings.
        prog: What precedes ``args``, as the help shows it.
        args: The command line.
        defaults: What is not given is as here.
        known: The settings that are flags.

    Raises:
        UsageError: If a flag is unknown; names the closest.
        SystemExit: From tyro, after it has shown the help or what is wrong with a value.
    """
    groups: dict[str, list[tuple[str, Any, Any]]] = {}
    for name, item in known.items():
        if name not in _NOT_FLAGS and (hint := flag_type(item.hint)) is not None:
            default = NEW_RUN_DIR if name == "run_dir" else vars(defaults)[name]
            doc = f"{item.doc} ({item.bounds})" if str(item.bounds) else item.doc
            groups.setdefault(item.section, []).append(_flag(name, hint, default, doc))
    model, hints = defaults.model_config_class.from_any(defaults.model_config), get_type_hints(DefaultModelConfig)
    for item in dataclasses.fields(DefaultModelConfig):  # what an algorithm adds is among its own settings
        hint = flag_type(hints[item.name])
        groups.setdefault("model", []).append(_flag(item.name, hint, vars(model)[item.name], item.metadata["doc"]))
    members = []
    for section, items in groups.items():
        group = make_dataclass(section, items)
        group.__doc__ = _section_docs(type(defaults)).get(section, "Settings of the default networks.")
        members.append((section, tyro.conf.OmitArgPrefixes[group], field(default_factory=group)))
    whole = make_dataclass(base.__name__, members, bases=(base,), kw_only=True)
    whole.__doc__ = base.__doc__
    names = [item.name for item in dataclasses.fields(base)] + [name for items in groups.values() for name, *_ in items]
    return tyro.cli(whole, args=_checked_flags(args, names, prog), prog=prog)


def flag_type(hint: Any) -> Any:
    """The part of an annotation that can be typed in a shell (no classes or functions); None where there is none."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kept = [part for arg in args if (part := flag_type(arg)) is not None]
        return Union[tuple(kept)] if any(part is not NoneType for part in kept) else None  # noqa: UP007
    containers = (list, tuple, dict, collections.abc.Mapping, collections.abc.Sequence)
    if origin in containers:
        inner = [arg for arg in args if arg not in (Any, Ellipsis)]
        return hint if all(flag_type(arg) is not None for arg in inner) else None
    return hint if origin is Literal or hint in (int, float, bool, str, NoneType, *containers) else None


def _flag(name: str, hint: Any, default: Any, doc: str) -> tuple[str, Any, Any]:
    """A field for ``make_dataclass``: ``--kebab-name``, read by tyro or, if it holds lists or dicts, by us."""
    marks: list[Any] = [tyro.conf.arg(name=kebab(name), help=doc)]
    items = get_args(hint)
    if get_origin(hint) in (list, tuple) and items[0] in (int, float, str) and items[1:] in ((), (Ellipsis,)):
        marks.append(_spec("*", f"[{items[0].__name__.upper()} ...]|JSON", partial(_read_list, items[0])))
    elif _holds_containers(hint):
        words, kind = _words(hint), "NUMBER" if is_schedule(hint) else ""
        metavar = "|".join([*filter(None, [kind, *words]), "JSON"])
        marks.append(_spec(1, metavar, lambda texts: _read_json(texts[0], words)))
    return name, Annotated[(hint, *marks)], field(default_factory=lambda: default)


def _spec(nargs: Literal["*", 1], metavar: str, read: Callable[[list[str]], Any]) -> PrimitiveConstructorSpec[Any]:
    def write(value: Any) -> list[str]:
        return [str(item) for item in value] if nargs == "*" else [json.dumps(value)]

    return PrimitiveConstructorSpec(
        nargs=nargs, metavar=metavar, instance_from_str=read, is_instance=lambda value: True, str_from_instance=write
    )


def _holds_containers(hint: Any) -> bool:
    if get_origin(hint) in (Union, UnionType):
        return any(_holds_containers(arg) for arg in get_args(hint))
    kind = get_origin(hint) or hint
    return isinstance(kind, type) and issubclass(kind, collections.abc.Collection) and kind is not str


def _read_list(kind: Callable[[str], Any], texts: list[str]) -> Any:
    if len(texts) == 1 and texts[0].startswith("["):
        return _read_json(texts[0])
    return [kind(text) for text in texts]


def _words(hint: Any) -> list[str]:
    """The plain words a flag takes besides JSON: those of a Literal; NAME stands for any."""
    if get_origin(hint) in (Union, UnionType):
        return [word for arg in get_args(hint) for word in _words(arg)]
    if get_origin(hint) is Literal:
        return [arg for arg in get_args(hint) if isinstance(arg, str)]
    return ["NAME"] if hint is str else []


def _read_json(text: str, words: Sequence[str] = ()) -> Any:
    if text == "None":
        return None
    if text in words:
        return text
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return float(text)  # ".5" is a number to everyone but JSON
    except ValueError:
        if "NAME" in words:
            return text
        words = [f"{word!r}" for word in words if word != "NAME"]
        raise ValueError(f"{text!r} is neither {', '.join([*words, 'a number'])} nor JSON") from None


def kebab(name: str) -> str:
    """A setting's name as a flag has it, without the dashes before it."""
    return name.strip("_").replace("_", "-")


def _section_docs(algo: type[AlgorithmConfig]) -> dict[str, str]:
    found: dict[str, str] = {}
    for base in reversed(algo.__mro__):
        found |= vars(base).get("section_docs", {})
    return found


def _checked_flags(args: Sequence[str], names: Iterable[str], prog: str) -> list[str]:
    """``args`` with each flag in its one spelling, also where it was written like the setting (``--num_epochs``).

    Raises:
        UsageError: For a flag that there is not; names the closest.
    """
    flags = {f"--{kebab(name)}" for name in names} | {"--help"}
    spelt = []
    for arg in args:
        flag, equals, value = arg.partition("=")
        if flag.startswith("--"):
            flag = f"--{kebab(flag.strip('-'))}"
            if flag not in flags and flag.replace("--no-", "--", 1) not in flags:
                near = [name for name in flags if name.startswith(flag)] or flags
                remedy = f"{prog} --help lists them.{closest(flag, near)}"
                raise UsageError(explain_error(prog, expected="one of its flags", got=repr(arg), remedy=remedy))
            arg = f"{flag}{equals}{value}"
        spelt.append(arg)
    return spelt


def leading(args: Sequence[str], command: str, what: str) -> str:
    """The first argument, on which the flags depend."""
    if args and not args[0].startswith("-"):
        return args[0]
    if args and args[0] in ("-h", "--help"):
        raise HelpWanted
    got, remedy = repr(args[0]) if args else "nothing", "rlmodule --help shows how."
    raise UsageError(explain_error(f"rlmodule {command}", expected=f"{what} first", got=got, remedy=remedy))


def value_of(flag: str, args: Sequence[str]) -> str | None:
    """The value of a flag that has to be known before the others; None if it is not there."""
    for arg, following in itertools.zip_longest(args, args[1:], fillvalue=""):
        if arg == flag:
            return following
        if arg.startswith(f"{flag}="):
            return arg.removeprefix(f"{flag}=")
    return None


def algorithm_config(name: str) -> type[AlgorithmConfig]:
    """The config class of the algorithm ``name``.

    Raises:
        UsageError: If there is none; names the closest.
    """
    try:
        return config_class(name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def config_from(defaults: AlgorithmConfig, flags: Any) -> AlgorithmConfig:
    """``defaults`` with what the flags of :func:`parse_settings` change.

    Raises:
        TypeError, ValueError: If a value does not fit its setting; names the flag.
    """
    known, config = settings_of(type(defaults)), defaults.copy()
    for section, group in vars(flags).items():
        if section == "model" or not dataclasses.is_dataclass(group):
            continue
        for name, value in vars(group).items():
            item = known[name]
            config.update({name: check_value(f"--{kebab(name)}", value, item.hint, item.bounds, item.doc)})
    base = config.model_config_class.from_any(config.model_config)
    given = vars(vars(flags)["model"])
    changed = {name: value for name, value in given.items() if value != vars(base)[name]}
    return config.update({"model_config": dataclasses.replace(base, **changed)}) if changed else config
