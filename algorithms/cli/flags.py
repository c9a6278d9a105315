"""Build flags from settings and a config from flags: no flag of a setting is written by hand."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from inspect import isabstract
from itertools import zip_longest
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar, get_args, get_type_hints

import tyro
from tyro.constructors import PrimitiveConstructorSpec

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

    def field(self) -> tuple[str, Any, Any]:
        """Return the flag as a field for tyro: True or False for a switch, else the words that were typed."""
        item = item_of(self.hint)
        several = item is not None and isinstance(self.default, list | tuple)
        default = " ".join(map(str, self.default)) if several else self.default
        about = f"{self.doc} ({self.bounds})" if self.bounds and str(self.bounds) else self.doc
        mark = tyro.conf.arg(name=kebab(self.name), help=about, help_behavior_hint=f"(default: {default})")
        if self.is_switch:  # tyro makes a pair of flags only where the default is a bool
            return self.name, Annotated[bool, mark], bool(self.default)
        words = PrimitiveConstructorSpec[Any](
            nargs=1 if item is None else "*",
            metavar=type_text(self.hint) if item is None else f"[{type_text(item)} ...]",
            instance_from_str=lambda texts: texts,
            is_instance=lambda value: True,
            str_from_instance=lambda value: [str(value)],
        )
        return self.name, Annotated[Any, mark, words], None

    def value_of(self, typed: Any) -> Any:
        """Read what tyro found: True or False, or a list of words.

        Raises:
            UsageError: If that is no value of this flag.
        """
        value = typed if self.is_switch else read(self.typed, self.hint, typed)
        try:
            return value if self.bounds is None else check_value(self.typed, value, self.hint, self.bounds, self.doc)
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from None


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
    usage = f"{prog} {words} [flags]"
    if wanted := {"-h", "--help"} & {*args}:
        topic = next(iter(args[args.index(wanted.pop()) + 1 :]), "")
        _show_help(prog, usage, sections, kebab(topic.strip("-")))
    flags = {flag.typed: flag for section in sections.values() for flag in section.flags}
    found, others, spelled = _found(prog, args, sections)
    names = Counter(_flag_of(word, flags) for word in spelled if word.startswith("--"))
    if unknown := [name for name in names if name not in flags]:
        hint = hint_for(unknown[0], flags)
        raise UsageError(f"{prog}: expected one of its flags, got {unknown[0]!r}. {prog} --help lists them.{hint}")
    if twice := [name for name, count in names.items() if count > 1]:
        raise UsageError(f"{twice[0]}: expected once, got {names[twice[0]]} times. Type all its words after one.")
    if not least <= len(others) <= most:
        raise UsageError(
            f"{prog}: expected {words}, got {' '.join(others) or 'nothing'}. {prog} --help shows what there is; a flag "
            "that is true or false takes no value: --x or --no-x."
        )
    typed = {flags[name].name: flags[name].value_of(found[flags[name].name]) for name in names}
    ours = {item.name: typed.pop(item.name) for item in dataclasses.fields(own) if item.name in typed}
    return dataclasses.replace(own, **ours), others, typed


def parse_early(own: Own, args: Sequence[str]) -> Own:
    """Read the command's own flags alone, before it is known which settings there are."""
    flags = _flags_of(own, type(own))
    found, _, spelled = _found("rlmodule", args, {"": Section("", flags)})
    known = {flag.typed: flag for flag in flags}
    typed = {_flag_of(word, known) for word in spelled}
    return dataclasses.replace(own, **{f.name: f.value_of(found[f.name]) for f in flags if f.typed in typed})


def _flag_of(word: str, flags: Mapping[str, Flag]) -> str:
    """Return the flag in a word: ``--x`` for ``--no-x``, if that is a switch."""
    flag = word.partition("=")[0]
    positive = flag.replace("--no-", "--", 1)
    return positive if positive in flags and flags[positive].is_switch else flag


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


def _form(sections: Mapping[str, Section]) -> type[DataclassInstance]:
    """Return what tyro reads: a dataclass of the command's own flags, and of one more for each section."""
    members: list[Any] = []
    for name, section in sections.items():
        fields = [flag.field() for flag in section.flags]
        if name:
            group = make_dataclass(name, fields)
            group.__doc__ = section.doc
            members.append((name, tyro.conf.OmitArgPrefixes[group], field(default_factory=group)))
        else:
            members = fields
    form = make_dataclass("Flags", members)
    form.__doc__ = sections[""].doc if "" in sections else "Settings are flags, too."
    return form


def _found(
    prog: str, args: Sequence[str], sections: Mapping[str, Section]
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return what tyro finds by the name of the flag, the words that belong to no flag, and ``args`` with dashes for
    underscores in flags."""
    parts = [arg.partition("=") if arg.startswith("--") else ("", "", arg) for arg in args]
    spelled = [f"{head.replace('_', '-')}{equals}{rest}" for head, equals, rest in parts]
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            form, others = tyro.cli(_form(sections), args=spelled, prog=prog, return_unknown_args=True, add_help=False)
    except SystemExit:
        raise _misused(prog, spelled, sections) from None
    found = dict(vars(form))
    for name in sections:
        found |= vars(found.pop(name)) if name else {}
    return found, others, spelled


def _misused(prog: str, spelled: Sequence[str], sections: Mapping[str, Section]) -> UsageError:
    """Return the error for a flag without a value."""
    flags = {flag.typed: flag for section in sections.values() for flag in section.flags}
    for word, following in zip_longest(spelled, spelled[1:], fillvalue="--"):
        if word in flags and not flags[word].is_switch and following.startswith("--"):
            return UsageError(f"{word}: expected a value, got none. Type one after {word}.")
    return UsageError(f"{prog}: expected flags with their values, got {' '.join(spelled)!r}. {prog} --help lists them.")


def _show_help(prog: str, usage: str, sections: Mapping[str, Section], topic: str) -> NoReturn:
    """Print the help about ``topic`` and exit.

    Args:
        prog: The command.
        usage: Its usage.
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
    with contextlib.suppress(SystemExit):
        tyro.cli(_form(about), args=["--help"], prog=usage)
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
