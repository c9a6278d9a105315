"""Build flags from settings and a config from flags: no flag of a setting is written by hand."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from argparse import SUPPRESS, Action, ArgumentError, ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isabstract
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_args, get_type_hints

from algorithms.cli.exits import UsageError
from algorithms.cli.hints import hint_for
from algorithms.cli.values import imported, item_of, read
from algorithms.config import AlgorithmConfig
from algorithms.registry import ALGORITHMS, config_class, register_algorithm
from catalog.checks import Bounds, check_value, type_text
from catalog.errors import closest
from catalog.model_config import DefaultModelConfig
from catalog.settings import Setting, section_docs, settings_of
from rlmodule.modules.spec import RLModuleSpec

if TYPE_CHECKING:
    from argparse import _ArgumentGroup

    from _typeshed import DataclassInstance

_NO_FLAGS = ("env", "model_config", "rl_module_spec")  # the argument ENV, the section "model", and SPEC_FLAGS

SPEC_FLAGS = {
    "catalog_class": "The catalog that chooses the networks; None takes the algorithm's own, from which yours derives.",
    "module_class": "The module that is built with it; None takes the algorithm's own, from which yours derives.",
}
"""Parts of ``rl_module_spec`` that are flags."""

Own = TypeVar("Own", bound="CommandFlags")


def flag(default: Any, doc: str, ge: float | None = None) -> Any:
    """Declare a flag of a command: a dataclass field with its sentence and least number."""
    return field(default=default, metadata={"doc": doc, "bounds": Bounds(ge=ge)})


@dataclass(kw_only=True)
class CommandFlags:
    """The flags of a command that are no settings. The docstring of a subclass is the help's first paragraph."""

    debug: bool = flag(False, "Show the traceback of an error.")


@dataclass(frozen=True)
class Flag:
    """A flag of a command, a setting or a model setting.

    Attributes:
        name: The attribute.
        hint: Its annotation.
        default: What the help shows.
        doc: One sentence.
        bounds: Range of its numbers; None if whoever reads the value checks it.
    """

    name: str
    hint: Any
    default: Any
    doc: str
    bounds: Bounds | None = None

    @property
    def typed(self) -> str:
        """The flag with its dashes."""
        return f"--{kebab(self.name)}"

    @property
    def is_switch(self) -> bool:
        """Whether the flag is a pair, ``--x`` and ``--no-x``."""
        return bool in (self.hint, *get_args(self.hint))

    def add_to(self, group: _ArgumentGroup) -> None:
        """Add the flag to those of a parser."""
        item, default = item_of(self.hint), self.default
        if item is not None and isinstance(default, list | tuple):
            default = " ".join(map(str, default))
        facts = f"({self.bounds}) (default: {default})" if self.bounds and str(self.bounds) else f"(default: {default})"
        group.add_argument(
            *([self.typed, f"--no-{kebab(self.name)}"] if self.is_switch else [self.typed]),
            action=_Once,
            of=self,
            nargs=0 if self.is_switch else 1 if item is None else "*",
            metavar=type_text(self.hint if item is None else item),
            help=f"{self.doc} {facts}".replace("%", "%%"),
        )

    def value_of(self, texts: Sequence[str]) -> Any:
        """Read what was typed after the flag.

        Raises:
            UsageError: If that is no value of this flag.
        """
        value = read(self.typed, self.hint, texts)
        try:
            return value if self.bounds is None else check_value(self.typed, value, self.hint, self.bounds, self.doc)
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from None


class _Once(Action):
    """Read the value of a flag, which is typed at most once."""

    def __init__(self, *, of: Flag, **described: Any) -> None:
        super().__init__(**{**described, "dest": of.name, "default": SUPPRESS})
        self._flag = of

    def __call__(self, parser: object, namespace: object, values: Any, option_string: str | None = None) -> None:
        flag = self._flag
        if flag.name in vars(namespace):
            raise UsageError(f"{flag.typed}: expected once, got it again. Type all its words after one.")
        setattr(namespace, flag.name, option_string == flag.typed if flag.is_switch else flag.value_of(values))


@dataclass(frozen=True)
class Section:
    """Flags that the help shows together, below a sentence on their purpose."""

    doc: str
    flags: list[Flag]


def parse(
    own: Own,
    prog: str,
    words: str,
    args: Sequence[str],
    *,
    least: int = 1,
    most: int = 1,
    settings: Mapping[str, Section] | None = None,
) -> tuple[Own, list[str], dict[str, Any]]:
    """Read a command line.

    Args:
        own: The defaults of the command's own flags.
        prog: What precedes ``args``, as the help shows it.
        words: Name of the words that belong to no flag, as the help shows it: ``CKPT``.
        args: The command line.
        least, most: How many of these words it takes.
        settings: Settings that are flags, too, by the name of their section.

    Returns:
        The command's own flags; its words; and the settings that were typed.

    Raises:
        UsageError: If a flag is unknown, typed twice or has no value that fits, or there are too few or many words.
        SystemExit: After the help.
    """
    sections = {"": Section(type(own).__doc__ or "", _flags_of(own, type(own))), **(settings or {})}
    if wanted := {"-h", "--help"} & {*args}:
        topic = next(iter(args[args.index(wanted.pop()) + 1 :]), "")
        _show_help(prog, words, sections, kebab(topic.strip("-")))
    typed, others = _found(args, sections)
    if unknown := [word.partition("=")[0] for word in others if word.startswith("--")]:
        hint = hint_for(unknown[0], [flag.typed for section in sections.values() for flag in section.flags])
        raise UsageError(f"{prog}: expected one of its flags, got {unknown[0]!r}. {prog} --help lists them.{hint}")
    if not least <= len(others) <= most:
        raise UsageError(
            f"{prog}: expected {words}, got {' '.join(others) or 'nothing'}. {prog} --help shows what there is; a flag "
            "that is true or false takes no value: --x or --no-x."
        )
    ours = {item.name: typed.pop(item.name) for item in dataclasses.fields(own) if item.name in typed}
    return dataclasses.replace(own, **ours), others, typed


def parse_early(own: Own, args: Sequence[str]) -> Own:
    """Read the command's own flags alone, before it is known which settings there are."""
    return dataclasses.replace(own, **_found(args, {"": Section("", _flags_of(own, type(own)))})[0])


def settings_in(defaults: AlgorithmConfig, known: Mapping[str, Setting]) -> dict[str, Section]:
    """Return the settings in ``known`` that can be typed, by section; those of the networks are section ``model``."""
    docs = section_docs(type(defaults))
    sections: dict[str, Section] = {}
    for name, item in known.items():
        if name not in _NO_FLAGS:
            section = sections.setdefault(item.section, Section(docs[item.section], []))
            section.flags.append(Flag(name, item.hint, vars(defaults)[name], item.doc, item.bounds))
    if "rl_module_spec" in known:
        hints = get_type_hints(RLModuleSpec)
        parts = [Flag(name, hints[name], None, doc) for name, doc in SPEC_FLAGS.items()]
        sections["rl_module"] = Section(docs["rl_module"], parts)
    model = defaults.model_config_class.from_any(defaults.model_config)
    # what an algorithm adds to the model settings is among its own
    sections["model"] = Section("Settings of the default networks.", _flags_of(model, DefaultModelConfig))
    return sections


def apply(typed: Mapping[str, Any], config: AlgorithmConfig) -> AlgorithmConfig:
    """Return a copy of ``config`` with what was typed.

    Raises:
        TypeError, ValueError: If a value does not fit its setting.
    """
    known = settings_of(type(config))
    changed = config.copy().update({name: value for name, value in typed.items() if name in known})
    if spec := {name: typed[name] for name in SPEC_FLAGS if name in typed}:
        changed.update({"rl_module_spec": dataclasses.replace(changed.rl_module_spec or RLModuleSpec(), **spec)})
    if model := {name: value for name, value in typed.items() if name not in known and name not in SPEC_FLAGS}:
        base = changed.model_config_class.from_any(changed.model_config)
        changed.update({"model_config": dataclasses.replace(base, **model)})
    return changed


def kebab(name: str) -> str:
    """Return the flag of a setting, without the dashes before it."""
    return name.strip("_").replace("_", "-")


def _flags_of(owner: DataclassInstance, cls: type[DataclassInstance]) -> list[Flag]:
    """Return the fields of ``cls`` as flags, with the values of ``owner`` as defaults."""
    hints = get_type_hints(cls)
    return [
        Flag(item.name, hints[item.name], vars(owner)[item.name], item.metadata["doc"], item.metadata.get("bounds"))
        for item in dataclasses.fields(cls)
    ]


def _parser(sections: Mapping[str, Section], usage: str = "") -> ArgumentParser:
    parser = ArgumentParser(usage=usage, add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, section in sections.items():
        group = parser.add_argument_group(f"{kebab(name)} options".strip(), section.doc)
        for flag in section.flags:
            flag.add_to(group)
    return parser


def _found(args: Sequence[str], sections: Mapping[str, Section]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the flags that were typed, by name, and the words that belong to no flag."""
    parts = [arg.partition("=") if arg.startswith("--") else ("", "", arg) for arg in args]
    spelled = [f"{head.replace('_', '-')}{equals}{rest}" for head, equals, rest in parts]
    # argparse takes -1e3 for a flag, unless there is a space in it
    spelled = [f" {word}" if re.match(r"-[\d.]", word) else word for word in spelled]
    try:
        found, others = _parser(sections).parse_known_args(spelled)
    except ArgumentError as error:
        flag = str(error.argument_name).partition("/")
        if flag[1]:  # --x/--no-x
            raise UsageError(f"{flag[0]}: expected no value, got one. It takes no value: --x or --no-x.") from None
        raise UsageError(f"{flag[0]}: expected a value, got none. Type one after {flag[0]}.") from None
    return vars(found), others


def _show_help(prog: str, words: str, sections: Mapping[str, Section], topic: str) -> NoReturn:
    """Print the help about ``topic`` and exit.

    Args:
        prog: The command.
        words: See :func:`parse`.
        sections: All flags; those of section ``""`` are the command's own.
        topic: A section, a flag, ``all`` or, if empty, the command's own flags.

    Raises:
        UsageError: If there is no such topic; names the closest.
        SystemExit: With code 0.
    """
    about = dict[str, Section]()
    for name, section in sections.items():
        if chosen := [flag for flag in section.flags if topic in ("all", kebab(name), kebab(flag.name))]:
            about[name] = Section(section.doc, chosen)
    titles = [kebab(name) for name in sections if name]
    if not about:
        names = ["all", *titles, *(kebab(flag.name) for section in sections.values() for flag in section.flags)]
        raise UsageError(
            f"{prog} --help: expected a setting, all or a section: {', '.join(titles)}, got {topic!r}. "
            f"Choose one.{closest(topic, names)}"
        )
    print(_parser(about, f"{prog} {words} [flags]").format_help())
    if titles and not topic:
        print(
            f"Settings are flags, too. `{prog} --help SECTION` explains a section,\n"
            "`--help SETTING` one of them, `--help all` everything.\n"
        )
        for title, section in zip(titles, [*sections.values()][1:], strict=True):
            print(f"  {title}: {section.doc}")
            names = " ".join(flag.typed for flag in section.flags)
            print(textwrap.fill(names, 100, initial_indent=" " * 8, subsequent_indent=" " * 8, break_on_hyphens=False))
    raise SystemExit(0)


# --- algorithms -------------------------------------------------------------------------------------------------------


def algorithm_config(name: str) -> type[AlgorithmConfig]:
    """Return the config class of the algorithm ``name``, or register and return the one at ``my_module:MyConfig``.

    Raises:
        UsageError: If there is none; names the closest.
    """
    if ":" in name:
        found = imported("ALGO", name)
        if not is_config_class(found):
            raise UsageError(
                f"ALGO: expected a class derived from AlgorithmConfig, got {name!r}. Name the config class of the "
                f"algorithm; if this is an env: rlmodule train ppo {name}."
            )
        register_own(found)
        return found
    try:
        return config_class(name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def is_config_class(thing: Any) -> bool:
    """Return whether ``thing`` is the config class of an algorithm."""
    return isinstance(thing, type) and issubclass(thing, AlgorithmConfig) and not isabstract(thing)


def register_own(config: type[AlgorithmConfig]) -> None:
    """Register ``config`` by its name without ``Config``, unless its module did."""
    if config not in ALGORITHMS.values():
        register_algorithm(config.__name__.removesuffix("Config"), config)
