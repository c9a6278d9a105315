"""Build flags from settings and a config from flags: no flag of a setting is written by hand."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass
from inspect import isabstract
from itertools import takewhile, zip_longest
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar, get_args, get_type_hints

import tyro

from algorithms.cli.exits import UsageError
from algorithms.cli.hints import hint_for
from algorithms.cli.values import imported, item_of, reader
from algorithms.config import AlgorithmConfig
from algorithms.registry import ALGORITHMS, config_class, register_algorithm
from catalog.checks import check_value
from catalog.errors import closest
from catalog.model_config import DefaultModelConfig
from catalog.settings import Setting, section_docs, settings_of
from rlmodule.modules.spec import RLModuleSpec

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_APART = ("env", "model_config", "rl_module_spec")  # the argument ENV, the flags of section "model", and SPEC_FLAGS

SPEC_FLAGS = {
    "catalog_class": "The catalog that chooses the networks; None takes the algorithm's own, from which yours derives.",
    "module_class": "The module that is built with it; None takes the algorithm's own, from which yours derives.",
}
"""Parts of ``rl_module_spec`` that are flags."""

Flags = TypeVar("Flags", bound="DataclassInstance")


@dataclass(frozen=True)
class _Flag:
    """The flag of a setting."""

    name: str
    hint: Any
    default: Any
    doc: str

    def field(self) -> tuple[str, Any, Any]:
        """Return what ``make_dataclass`` takes."""
        several = item_of(self.hint) is not None and isinstance(self.default, list | tuple)
        shown = " ".join(map(str, self.default)) if several else self.default
        mark = tyro.conf.arg(name=kebab(self.name), help=self.doc, help_behavior_hint=f"(default: {shown})")
        if _is_switch(self.hint):  # tyro makes a pair of flags only where the default is a bool
            return self.name, Annotated[bool, mark], bool(self.default)
        read = reader(f"--{kebab(self.name)}", self.hint)
        return self.name, Annotated[Any, mark, read], dataclasses.field(default_factory=lambda: self.default)


@dataclass
class _NoFlags:
    """Settings are flags, too."""


def parse(base: type[Flags], prog: str, args: Sequence[str]) -> Flags:
    """Read ``args`` as a ``base``, a dataclass whose first field is the positional argument.

    Raises:
        UsageError: If a flag or argument is unknown or missing, or a value cannot be read.
        SystemExit: From tyro, after it has shown the help.
    """
    return _parsed(base, prog, args, {})[0]


def parse_settings(
    base: type[Flags], prog: str, args: Sequence[str], defaults: AlgorithmConfig, known: Mapping[str, Setting]
) -> tuple[Flags, dict[str, Any]]:
    """Read ``args`` as a ``base`` and settings.

    Args:
        base: A dataclass of the flags that are no settings.
        prog: What precedes ``args``, as the help shows it.
        args: The command line.
        defaults: What the help shows as defaults.
        known: The settings that are flags.

    Returns:
        The command's own flags; and the settings, parts of ``rl_module_spec`` and model settings that were typed.

    Raises:
        UsageError: If a flag or argument is unknown or missing, or a value cannot be read.
        SystemExit: After the help.
    """
    sections = _sections(defaults, known)
    if wanted := {"-h", "--help"} & {*args}:
        topic = next(iter(args[args.index(wanted.pop()) + 1 :]), "")
        docs = {"model": "Settings of the default networks.", **section_docs(type(defaults))}
        _show_help(base, prog, docs, sections, kebab(topic.strip("-")))
    found, typed = _parsed(base, prog, args, sections)
    values = {name: value for section in sections for name, value in vars(vars(found)[section]).items()}
    return found, {name: value for name, value in values.items() if name in typed}


def apply(typed: Mapping[str, Any], config: AlgorithmConfig) -> AlgorithmConfig:
    """Return a copy of ``config`` with what was typed.

    Raises:
        TypeError, ValueError: If a value does not fit its setting; names the flag.
    """
    changed, settings, rest = config.copy(), dict[str, Any](), dict(typed)
    for item in settings_of(type(config)).values():
        if item.name in rest:
            value, where = rest.pop(item.name), f"--{kebab(item.name)}"
            settings[item.name] = check_value(where, value, item.hint, item.bounds, item.doc)
    changed.update(settings)
    if spec := {name: rest.pop(name) for name in SPEC_FLAGS if name in rest}:
        changed.update({"rl_module_spec": dataclasses.replace(changed.rl_module_spec or RLModuleSpec(), **spec)})
    if rest:
        base = changed.model_config_class.from_any(changed.model_config)
        changed.update({"model_config": dataclasses.replace(base, **rest)})
    return changed


def kebab(name: str) -> str:
    """Return the flag of a setting, without the dashes before it."""
    return name.strip("_").replace("_", "-")


def words_after(flag: str, args: Sequence[str]) -> list[str]:
    """Return the words after a flag that has to be known before the others; none if it was not typed."""
    words = [word for arg in args for word in (arg.split("=", 1) if arg.startswith(f"{flag}=") else [arg])]
    following = words[words.index(flag) + 1 :] if flag in words else []
    return [*takewhile(lambda word: not word.startswith("--"), following)]


# --- what tyro reads --------------------------------------------------------------------------------------------------


def _is_switch(hint: Any) -> bool:
    """Return whether a flag is a pair, ``--x`` and ``--no-x``."""
    return bool in (hint, *get_args(hint))


def _sections(defaults: AlgorithmConfig, known: Mapping[str, Setting]) -> dict[str, list[_Flag]]:
    """Return the settings that can be typed, by section; those of the networks are section ``model``."""
    sections: dict[str, list[_Flag]] = {}
    for name, item in known.items():
        if name not in _APART:
            doc = f"{item.doc} ({item.bounds})" if str(item.bounds) else item.doc
            sections.setdefault(item.section, []).append(_Flag(name, item.hint, vars(defaults)[name], doc))
    if "rl_module_spec" in known:
        hints = get_type_hints(RLModuleSpec)
        sections["rl_module"] = [_Flag(name, hints[name], None, doc) for name, doc in SPEC_FLAGS.items()]
    model, hints = defaults.model_config_class.from_any(defaults.model_config), get_type_hints(DefaultModelConfig)
    sections["model"] = [  # what an algorithm adds is among its own settings
        _Flag(item.name, hints[item.name], vars(model)[item.name], item.metadata["doc"])
        for item in dataclasses.fields(DefaultModelConfig)
    ]
    return sections


def _with_sections(
    base: type[Flags], sections: Mapping[str, list[_Flag]], docs: Mapping[str, str] | None = None
) -> type[Flags]:
    """Return ``base`` with flags that we read, and one more attribute per section: a dataclass of its settings."""
    marked, hints = get_type_hints(base, include_extras=True), get_type_hints(base)
    members: list[Any] = [(name, Annotated[marked[name], reader(f"--{kebab(name)}", hints[name])]) for name in hints]
    for section, flags in sections.items():
        group = make_dataclass(section, [flag.field() for flag in flags])
        group.__doc__ = (docs or {}).get(section)
        members.append((section, tyro.conf.OmitArgPrefixes[group], dataclasses.field(default_factory=group)))
    whole = make_dataclass(base.__name__, members, bases=(base,), kw_only=True)
    whole.__doc__ = base.__doc__
    return whole


def _parsed(
    base: type[Flags], prog: str, args: Sequence[str], sections: Mapping[str, list[_Flag]]
) -> tuple[Flags, set[str]]:
    """Return ``args`` as a ``base`` with sections, and the names of the flags that were typed."""
    hints = get_type_hints(base) | {flag.name: flag.hint for flags in sections.values() for flag in flags}
    typed = _typed(prog, args, hints)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            found, unknown = tyro.cli(_with_sections(base, sections), args=args, prog=prog, return_unknown_args=True)
    except SystemExit as end:
        if not end.code:
            raise
        expected, got = f"{dataclasses.fields(base)[0].name.upper()} first", "nothing"  # all else is checked above
    else:
        if not unknown:
            return found, typed
        expected, got = "no further arguments", repr(unknown[0])
    raise UsageError(prog, expected=expected, got=got, remedy=f"{prog} --help shows what there is.")


def _typed(prog: str, args: Sequence[str], hints: Mapping[str, Any]) -> set[str]:
    """Return the names of the flags in ``args``.

    Raises:
        UsageError: For a flag that does not exist, with the closest; for a missing value or one too many.
    """
    known = {f"--{kebab(name)}": name for name in hints}
    known |= {f"--no-{kebab(name)}": name for name, hint in hints.items() if _is_switch(hint)}
    typed = set[str]()
    for arg, following in zip_longest(args, args[1:], fillvalue="--"):
        flag, equals, value = arg.partition("=")
        if not arg.startswith("--") or arg == "--help":
            continue
        flag = flag.replace("_", "-")
        if flag not in known:
            remedy = f"{prog} --help lists them.{hint_for(flag, known)}"
            raise UsageError(prog, expected="one of its flags", got=repr(arg), remedy=remedy)
        name, value = known[flag], value if equals else following
        if _is_switch(hints[name]):
            if equals or value.lower() in ("true", "false", "none"):
                remedy = f"Type --{kebab(name)} or --no-{kebab(name)}."
                raise UsageError(flag, expected="no value", got=repr(value), remedy=remedy)
        elif value.startswith("--") and item_of(hints[name]) is None:
            raise UsageError(flag, expected="a value", got="none", remedy=f"Type one after {flag}.")
        typed.add(name)
    return typed


# --- help -------------------------------------------------------------------------------------------------------------


def _show_help(
    base: type[Flags], prog: str, docs: Mapping[str, str], sections: Mapping[str, list[_Flag]], topic: str
) -> NoReturn:
    """Print the help about ``topic`` and exit.

    Args:
        base: A dataclass of the command's own flags.
        prog: The command, as the help shows it.
        docs: Section → its purpose.
        sections: The settings.
        topic: A section, a setting, ``all`` or, if empty or one of them, the command's own flags.

    Raises:
        UsageError: If there is no such topic; names the closest.
        SystemExit: With code 0.
    """
    about = dict[str, list[_Flag]]()
    for section, flags in sections.items():
        if chosen := [flag for flag in flags if topic in ("all", kebab(section), kebab(flag.name))]:
            about[section] = chosen
    own = topic in ("", "all", *map(kebab, get_type_hints(base)))
    if not own and not about:
        expected = f"a setting, all or a section: {', '.join(map(kebab, sections))}"
        names = ["all", *map(kebab, sections), *(kebab(flag.name) for flags in sections.values() for flag in flags)]
        remedy = f"Choose one.{closest(topic, names)}"
        raise UsageError(f"{prog} --help", expected=expected, got=repr(topic), remedy=remedy)
    try:
        tyro.cli(_with_sections(base if own else _NoFlags, about, docs), args=["--help"], prog=prog)
    finally:
        if own and not about:
            print(_overview(prog, docs, sections))
    raise SystemExit(0)


def _overview(prog: str, docs: Mapping[str, str], sections: Mapping[str, list[_Flag]]) -> str:
    """Return the names of all sections and settings."""
    width = min(shutil.get_terminal_size().columns, 100)
    wide = max(len(section) for section in sections) + 2
    lines = [
        f"Settings are flags, too. `{prog} --help SECTION` explains a section, `--help SETTING` one of them, "
        "`--help all` everything.",
        "",
    ]
    for section, flags in sections.items():
        names = " ".join(f"--{kebab(flag.name)}" for flag in flags)
        lines += [f"  {kebab(section):<{wide}}{docs[section]}", f"  {'':<{wide}}{names}"]
    wrap = textwrap.TextWrapper(width, break_on_hyphens=False, break_long_words=False)
    wrapped = list[str]()
    for line in lines:
        wrap.subsequent_indent = " " * (wide + 2) if line.startswith(" ") else ""
        wrapped += wrap.wrap(line) or [""]
    return "\n".join(wrapped)


# --- algorithms -------------------------------------------------------------------------------------------------------


def algorithm_config(name: str) -> type[AlgorithmConfig]:
    """Return the config class of the algorithm ``name``, or register and return the one at ``my_module:MyConfig``.

    Raises:
        UsageError: If there is none; names the closest.
    """
    if ":" in name:
        found = imported("ALGO", name)
        if not is_config_class(found):
            expected = "a class derived from AlgorithmConfig"
            remedy = f"Name the config class of the algorithm; if this is an env: rlmodule train ppo {name}."
            raise UsageError("ALGO", expected=expected, got=repr(name), remedy=remedy)
        register_own(found)
        return found
    if name.upper() not in ALGORITHMS:
        remedy = f"Name one first, or one of yours as my_module:MyConfig.{closest(name.upper(), ALGORITHMS)}"
        expected = f"one of {', '.join(ALGORITHMS)}"
        raise UsageError("algorithm", expected=expected, got=repr(name), remedy=remedy)
    return config_class(name)


def is_config_class(thing: Any) -> bool:
    """Return whether ``thing`` is the config class of an algorithm."""
    return isinstance(thing, type) and issubclass(thing, AlgorithmConfig) and not isabstract(thing)


def register_own(config: type[AlgorithmConfig]) -> None:
    """Register ``config`` by its name without ``Config``, unless its module did."""
    if config not in ALGORITHMS.values():
        register_algorithm(config.__name__.removesuffix("Config"), config)
