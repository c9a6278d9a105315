"""From settings to flags, and from flags to a config: no flag of a setting is written twice."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, make_dataclass
from inspect import isabstract
from typing import TYPE_CHECKING, Annotated, Any, Generic, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from algorithms.cli.exits import UsageError
from algorithms.cli.hints import hint_for
from algorithms.cli.values import ValueReader, imported, is_typeable
from algorithms.config import AlgorithmConfig
from algorithms.registry import ALGORITHMS, config_class, register_algorithm
from algorithms.settings.checks import check_value
from algorithms.settings.fields import Setting, settings_of
from catalog.errors import closest, explain_error
from catalog.model_config import DefaultModelConfig
from rlmodule.modules.spec import RLModuleSpec

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_APART = ("env", "model_config", "rl_module_spec")  # the argument ENV, the flags of section "model", and SPEC_FLAGS

SPEC_FLAGS = {
    "catalog_class": "The catalog that chooses the networks; None takes the algorithm's own, from which yours derives.",
    "module_class": "The module that is built with it; None takes the algorithm's own, from which yours derives.",
}
"""Parts of ``rl_module_spec`` that are flags."""

_REPEATED = "--allow"  # what may be typed several times

Flags = TypeVar("Flags", bound="DataclassInstance")


@dataclass(frozen=True)
class Typed(Generic[Flags]):
    """A command line that was understood.

    Attributes:
        flags: Those of the command itself.
        settings: The settings that were typed, by name.
        model: The model settings that were typed.
        spec: The parts of ``rl_module_spec`` that were typed.
    """

    flags: Flags
    settings: dict[str, Any]
    model: dict[str, Any]
    spec: dict[str, Any]

    def applied_to(self, config: AlgorithmConfig) -> AlgorithmConfig:
        """A copy of ``config`` with all that was typed.

        Raises:
            TypeError, ValueError: If a value does not fit its setting; names the flag.
        """
        known, changed = settings_of(type(config)), config.copy()
        changed.update({name: checked_value(known[name], value) for name, value in self.settings.items()})
        if self.spec:
            spec = dataclasses.replace(changed.rl_module_spec or RLModuleSpec(), **self.spec)
            changed.update({"rl_module_spec": spec})
        if self.model:
            base = changed.model_config_class.from_any(changed.model_config)
            changed.update({"model_config": dataclasses.replace(base, **self.model)})
        return changed


def parse(base: type[Flags], prog: str, args: Sequence[str]) -> Flags:
    """``args`` as a ``base``, a dataclass.

    Raises:
        UsageError: If a flag or argument is unknown or missing, or a value cannot be read.
        SystemExit: From tyro, after it has shown the help.
    """
    return _parsed(_readable(base), prog, _checked(args, prog, _own_flags(base), _required(base)))


def parse_settings(
    base: type[Flags], prog: str, args: Sequence[str], defaults: AlgorithmConfig, known: Mapping[str, Setting]
) -> Typed[Flags]:
    """``args`` as a ``base`` and settings.

    Args:
        base: A dataclass of the flags that are no settings.
        prog: What precedes ``args``, as the help shows it.
        args: The command line.
        defaults: What the help shows as defaults.
        known: The settings that are flags.

    Raises:
        UsageError: If a flag or argument is unknown or missing, or a value cannot be read.
        SystemExit: After the help.
    """
    sections = _sections(defaults, known)
    if wanted := {"-h", "--help"} & {*args}:
        topic = next(iter(args[args.index(wanted.pop()) + 1 :]), "")
        _show_help(base, prog, defaults, sections, kebab(topic.strip("-")))
    known_flags = _own_flags(base) | {flag.name: flag.most for flags in sections.values() for flag in flags}
    args = _checked(args, prog, known_flags, _required(base))
    parsed = vars(_parsed(_with_sections(base, defaults, sections), prog, args))
    written = {_name_of(arg) for arg in args}
    typed = {
        section: {flag.name: vars(parsed[section])[flag.name] for flag in flags if kebab(flag.name) in written}
        for section, flags in sections.items()
    }
    model, spec = typed.pop("model"), {}
    settings = {name: value for group in typed.values() for name, value in group.items()}
    for name in SPEC_FLAGS:
        if name in settings:
            spec[name] = settings.pop(name)
    own = {item.name: parsed[item.name] for item in dataclasses.fields(base)}
    return Typed(base(**own), settings, model, spec)


def _parsed(whole: type[Flags], prog: str, args: Sequence[str]) -> Flags:
    found, unknown = tyro.cli(whole, args=args, prog=prog, return_unknown_args=True)
    if unknown:
        remedy = f"Leave it out; {prog} --help shows what there is."
        raise UsageError(explain_error(prog, expected="no further arguments", got=repr(unknown[0]), remedy=remedy))
    return found


def _name_of(arg: str) -> str:
    """The name that a flag sets, ``evaluation-explore`` for ``--no-evaluation-explore``; empty for what is no flag."""
    flag = arg.partition("=")[0]
    return flag[2:].removeprefix("no-") if flag.startswith("--") else ""


def checked_value(known: Setting, value: Any) -> Any:
    """A value that was typed for a setting.

    Raises:
        TypeError, ValueError: If it does not fit; names the flag.
    """
    return check_value(f"--{kebab(known.name)}", value, known.hint, known.bounds, known.doc)


# --- what tyro reads --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Flag:
    """``--kebab-name``, read by us, but for the pair of flags of a bool."""

    name: str
    hint: Any
    default: Any
    doc: str

    @property
    def most(self) -> float:
        return _most(self.hint)

    def field(self) -> tuple[str, Any, Any]:
        """As ``make_dataclass`` takes it."""
        mark, name = tyro.conf.arg(name=kebab(self.name), help=self.doc), self.name
        read = (bool, mark) if self.hint is bool else (Any, mark, _spec(ValueReader(f"--{kebab(name)}", self.hint)))
        return name, Annotated[read], dataclasses.field(default_factory=lambda: self.default)


_POSITIONAL = get_args(tyro.conf.Positional[str])[1]
_ArgConfig: Any = type(tyro.conf.arg())


def _most(hint: Any) -> float:
    """How many texts may follow a flag."""
    return 0 if hint is bool else math.inf if ValueReader("", hint).several else 1


def _hints(base: type[DataclassInstance], *, positional: bool) -> dict[str, tuple[Any, list[Any]]]:
    """Attribute → its annotation and the marks on it, of the positional arguments or of the flags."""
    found = {}
    for name, hint in get_type_hints(base, include_extras=True).items():
        plain, *marks = get_args(hint) if get_origin(hint) is Annotated else [hint]
        if (_POSITIONAL in marks) is positional:
            found[name] = plain, marks
    return found


def _own_flags(base: type[DataclassInstance]) -> dict[str, float]:
    """The flags of the command itself, and how many texts may follow each."""
    return {name: _most(hint) for name, (hint, _) in _hints(base, positional=False).items()}


def _required(base: type[DataclassInstance]) -> list[str]:
    """The positional arguments without a default, as the help calls them."""
    missing = dataclasses.MISSING
    defaults = {item.name: (item.default, item.default_factory) for item in dataclasses.fields(base)}
    return [
        next((str(mark.metavar) for mark in marks if isinstance(mark, _ArgConfig)), name.upper())
        for name, (_, marks) in _hints(base, positional=True).items()
        if defaults[name] == (missing, missing)
    ]


def _readable(base: type[Flags]) -> type[Flags]:
    """``base``, whose flags are read by us: numbers as people write them, and one line for what cannot be read."""
    items, fields = {item.name: item for item in dataclasses.fields(base)}, []
    for name, (hint, marks) in _hints(base, positional=False).items():
        if hint is not bool:
            item = items[name]
            default = dataclasses.field(default=item.default)
            if item.default_factory is not dataclasses.MISSING:
                default = dataclasses.field(default_factory=item.default_factory)
            fields.append((name, Annotated[(Any, *marks, _spec(ValueReader(f"--{kebab(name)}", hint)))], default))
    made = make_dataclass(base.__name__, fields, bases=(base,), kw_only=True)
    made.__doc__ = base.__doc__
    return made


def _sections(defaults: AlgorithmConfig, known: Mapping[str, Setting]) -> dict[str, list[_Flag]]:
    """The settings that can be typed, by section; those of the networks are section ``model``."""
    sections: dict[str, list[_Flag]] = {}
    for name, item in known.items():
        if name not in _APART and is_typeable(item.hint):
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


def _spec(reader: ValueReader) -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(
        nargs="*" if reader.several else 1,
        metavar=f"[{reader.metavar} ...]" if reader.several else reader.metavar,
        instance_from_str=reader.read,
        is_instance=lambda value: True,
        str_from_instance=reader.write,
    )


def _with_sections(base: type[Flags], defaults: AlgorithmConfig, sections: Mapping[str, list[_Flag]]) -> type[Flags]:
    """``_readable(base)`` with one more attribute per section: a dataclass of its settings."""
    members, docs = [], _section_docs(type(defaults))
    for section, flags in sections.items():
        group = make_dataclass(section, [flag.field() for flag in flags])
        group.__doc__ = docs[section]
        members.append((section, tyro.conf.OmitArgPrefixes[group], dataclasses.field(default_factory=group)))
    whole = make_dataclass(base.__name__, members, bases=(_readable(base),), kw_only=True)
    whole.__doc__ = base.__doc__
    return whole


# --- help -------------------------------------------------------------------------------------------------------------


def _show_help(
    base: type[Flags], prog: str, defaults: AlgorithmConfig, sections: Mapping[str, list[_Flag]], topic: str
) -> NoReturn:
    """Print the help about ``topic``; always exits.

    Args:
        base: A dataclass of the command's own flags.
        prog: The command, as the help shows it.
        defaults: Whose values are shown as defaults.
        sections: The settings.
        topic: A section, a setting, ``all`` or, if empty or one of them, the command's own flags.

    Raises:
        UsageError: If there is no such topic; names the closest.
        SystemExit: With code 0.
    """
    docs, own = _section_docs(type(defaults)), {kebab(name) for name in _own_flags(base)}
    topics = {kebab(section): (docs[section], flags) for section, flags in sections.items()}
    for section, flags in sections.items():
        topics |= {kebab(flag.name): (f"A setting of section {kebab(section)}.", [flag]) for flag in flags}
    if topic not in ("", "all", *own, *topics):
        expected = f"a setting, all or a section: {', '.join(map(kebab, sections))}"
        remedy = f"Choose one.{closest(topic, ['all', *topics])}"
        raise UsageError(explain_error(f"{prog} --help", expected=expected, got=repr(topic), remedy=remedy))
    if topic in topics:
        doc, flags = topics[topic]
        tyro.cli(make_dataclass(topic, [flag.field() for flag in flags]), args=["--help"], prog=prog, description=doc)
    if topic == "all":
        tyro.cli(_with_sections(base, defaults, sections), args=["--help"], prog=prog)
    try:
        tyro.cli(_readable(base), args=["--help"], prog=prog)
    except SystemExit:
        print(_overview_of(prog, defaults, sections))
        raise
    raise SystemExit(0)


def show_common_help(base: type[Flags], prog: str, algos: Mapping[str, Mapping[str, Setting]], topic: str) -> NoReturn:
    """Print the help where no algorithm is named: on the flags that all have, or on one that any has; always exits.

    Args:
        base: A dataclass of the command's own flags.
        prog: The command.
        algos: Name → the settings that are flags.
        topic: As ``--help`` takes it with an algorithm.

    Raises:
        UsageError: If no algorithm has the topic.
        SystemExit: With code 0.
    """
    common = set.intersection(*({*known} for known in algos.values()))
    choices = {name: {key: item for key, item in known.items() if key in common} for name, known in algos.items()}
    for name, known in [*list(choices.items())[-1:], *algos.items()]:
        defaults = config_class(name)()
        each = ", ".join(f"`{prog} {other.lower()} --help`" for other in algos)
        with suppress(UsageError):
            try:
                _show_help(base, f"{prog} ALGO", defaults, _sections(defaults, known), kebab(topic.strip("-")))
            except SystemExit:
                if known is choices[name]:
                    print("\n".join(textwrap.wrap(f"All algorithms have these. With their own: {each}.", _width())))
                raise
    expected, remedy = "a setting or a section", f"{prog} --help lists those that all algorithms have."
    raise UsageError(explain_error(f"{prog} --help", expected=expected, got=repr(topic), remedy=remedy))


def _width() -> int:
    return min(shutil.get_terminal_size().columns, 100)


def _overview_of(prog: str, defaults: AlgorithmConfig, sections: Mapping[str, list[_Flag]]) -> str:
    """The settings in brief: sections and names."""
    width, docs = _width(), _section_docs(type(defaults))
    wide = max(len(section) for section in sections) + 2
    about = (
        f"Settings are flags, too. `{prog} --help SECTION` explains a section, `--help SETTING` one of them, "
        "`--help all` everything."
    )
    lines = [*textwrap.wrap(about, width, break_on_hyphens=False), ""]
    for section, flags in sections.items():
        head = f"  {kebab(section):<{wide}}"
        lines += textwrap.wrap(f"{head}{docs[section]}", width, subsequent_indent=" " * len(head))
        lines += textwrap.wrap(
            " ".join(f"--{kebab(flag.name)}" for flag in flags),
            width,
            initial_indent=" " * len(head),
            subsequent_indent=" " * len(head),
            break_on_hyphens=False,
            break_long_words=False,
        )
    return "\n".join(lines)


def _section_docs(algo: type[AlgorithmConfig]) -> dict[str, str]:
    found = {"model": "Settings of the default networks."}
    for base in reversed(algo.__mro__):
        found |= vars(base).get("section_docs", {})
    return found


# --- arguments --------------------------------------------------------------------------------------------------------


def kebab(name: str) -> str:
    """A setting's name as a flag has it, without the dashes before it."""
    return name.strip("_").replace("_", "-")


def _checked(args: Sequence[str], prog: str, flags: Mapping[str, float], required: Sequence[str]) -> list[str]:
    """``args`` with each flag in its one spelling, also where it was written like the setting (``--num_epochs``).

    Args:
        args: The command line.
        prog: What precedes it, as errors name it.
        flags: Name → how many texts may follow it.
        required: The arguments that belong to no flag and have to be there.

    Raises:
        UsageError: For a flag that there is not, with the closest; for a missing value or argument.
    """
    known = {f"--{kebab(name)}": most for name, most in flags.items()}
    known |= {f"--no-{flag[2:]}": most for flag, most in known.items() if most == 0} | {"--help": 0}
    spelt, free, taken = list[str](), 0, 0.0  # the last: how many more texts the flag before takes
    for arg, following in itertools.zip_longest(args, args[1:], fillvalue="--"):
        flag, equals, value = arg.partition("=")
        if not flag.startswith("--"):
            free += taken == 0 and arg != "-h"
            taken = max(0.0, taken - 1)
            spelt.append(arg)
            continue
        flag = f"--{kebab(flag.strip('-'))}"
        if flag not in known:
            remedy = f"{prog} --help lists them.{hint_for(flag, known)}"
            raise UsageError(explain_error(prog, expected="one of its flags", got=repr(arg), remedy=remedy))
        taken = 0.0 if equals else known[flag]
        if taken == 1 and following.startswith("--"):
            raise _without_value(flag)
        spelt.append(f"{flag}{equals}{value}")
    if free < len(required) and not {"-h", "--help"} & {*args}:
        remedy = f"{prog} --help shows what there is."
        raise UsageError(explain_error(prog, expected=required[free], got="nothing", remedy=remedy))
    return _joined(spelt, _REPEATED)


def _without_value(flag: str) -> UsageError:
    return UsageError(explain_error(flag, expected="a value", got="none", remedy=f"Type one after {flag}."))


def _joined(args: Sequence[str], repeated: str) -> list[str]:
    """``args`` with one flag in place of several, whose texts become one, with commas."""
    rest, texts, following = list[str](), list[str](), False
    for arg in args:
        if following:
            texts.append(arg)
        elif arg.startswith(f"{repeated}="):
            texts.append(arg.removeprefix(f"{repeated}="))
        elif arg != repeated:
            rest.append(arg)
        following = arg == repeated and not following
    return [*rest, *([f"{repeated}={','.join(texts)}"] if texts else [])]


def leading(args: Sequence[str], command: str, what: str) -> str:
    """The first argument, on which the flags depend."""
    if args and not args[0].startswith("-"):
        return args[0]
    got, remedy = repr(args[0]) if args else "nothing", "rlmodule --help shows how."
    raise UsageError(explain_error(f"rlmodule {command}", expected=f"{what} first", got=got, remedy=remedy))


def value_of(flag: str, args: Sequence[str]) -> str | None:
    """The value of a flag that has to be known before the others; None if it is not there.

    Raises:
        UsageError: If the flag is there without a value.
    """
    for arg, following in itertools.zip_longest(args, args[1:], fillvalue="--"):
        if arg == flag:
            if following.startswith("--"):
                raise _without_value(flag)
            return following
        if arg.startswith(f"{flag}="):
            return arg.removeprefix(f"{flag}=")
    return None


def algorithm_config(name: str) -> type[AlgorithmConfig]:
    """The config class of the algorithm ``name``, or the one at ``my_module:MyConfig``, which is then registered.

    Raises:
        UsageError: If there is none; names the closest.
    """
    if ":" in name:
        found = imported("ALGO", name)
        if not is_config_class(found):
            expected, remedy = "a class derived from AlgorithmConfig", "Name the config class of the algorithm."
            raise UsageError(explain_error("ALGO", expected=expected, got=repr(name), remedy=remedy))
        register_own(found)
        return found
    if name.upper() not in ALGORITHMS:
        remedy = (
            f"Use a name from this list, or my_module:MyConfig for one of yours.{closest(name.upper(), ALGORITHMS)}"
        )
        expected = f"one of {', '.join(ALGORITHMS)}"
        raise UsageError(explain_error("algorithm", expected=expected, got=repr(name), remedy=remedy))
    return config_class(name)


def is_config_class(thing: Any) -> bool:
    """Whether ``thing`` is the config class of an algorithm."""
    return isinstance(thing, type) and issubclass(thing, AlgorithmConfig) and not isabstract(thing)


def register_own(config: type[AlgorithmConfig]) -> None:
    """Register ``config`` by its name without ``Config``, unless its module did."""
    if config not in ALGORITHMS.values():
        register_algorithm(config.__name__.removesuffix("Config"), config)
