"""Turn settings into flags, and the flags of a command line into a config."""

import argparse
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import isabstract
from typing import Any, NoReturn, TypeVar, get_args

from algorithms.cli.exits import UsageError, kebab, on_flags
from algorithms.cli.values import imported, item_of, read
from algorithms.config import AlgorithmConfig
from algorithms.registry import ALGORITHMS, config_class, register_algorithm
from catalog.catalog import Catalog
from catalog.checks import type_text
from catalog.model_config import DefaultModelConfig
from catalog.settings import Setting, Settings, section_docs, setting, settings_of
from catalog_rl import closest, remedy_for
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.spec import RLModuleSpec

_NO_FLAGS = ("env", "model_config", "rl_module_spec")  # the argument ENV, the section "model", and SpecFlags


class CommandFlags(Settings):
    """Base class for the flags of a command that are not settings of a config. The command's help begins with the
    docstring of the derived class."""

    debug: bool = setting(False, "Show the traceback of an error.")


class SpecFlags(Settings):
    """The fields of ``rl_module_spec`` that have flags."""

    catalog_class: type[Catalog] | None = setting(
        None, "The catalog that chooses the networks; None takes that of the algorithm, from which yours must derive."
    )
    module_class: type[RLModule] | None = setting(
        None, "The module to build; None takes that of the algorithm, from which yours must derive."
    )


Flags = TypeVar("Flags", bound=CommandFlags)


@dataclass(frozen=True)
class Section:
    """A group of flags in the help, with a sentence about their purpose."""

    doc: str
    settings: list[Setting]


def parse(
    flags_class: type[Flags],
    prog: str,
    arguments: str,
    args: Sequence[str],
    *,
    count: range = range(1, 2),
    settings: Mapping[str, Section] | None = None,
) -> tuple[Flags, list[str], dict[str, Any]]:
    """Parse a command line. If it asks for help, print the help and exit.

    Args:
        flags_class: Class of the command's own flags.
        prog: The command in help and errors: ``rlmodule evaluate``.
        arguments: Its positional arguments in help and errors: ``CKPT``.
        args: The command line after the command.
        count: Allowed numbers of positional arguments.
        settings: Settings of a config that are also flags, by section.

    Returns:
        The command's own flags, the positional arguments, and the values of the settings that were typed, by name.

    Raises:
        UsageError: If a flag is unknown, typed twice, or has a wrong value, or the number of arguments is wrong.
        SystemExit: With code 0, after printing the help.
    """
    sections = {"command": _section_of(flags_class), **(settings or {})}
    for index, word in enumerate(args):
        if word in ("-h", "--help"):
            topic = args[index + 1] if index + 1 < len(args) else "command"
            _show_help(prog, arguments, sections, kebab(topic.strip("-")))
    typed, positional = _parse_words(args, sections)
    # argparse says neither which flags it does not know nor which are like it.
    for word in positional:
        if word.startswith("--"):
            flag = word.partition("=")[0]
            hint = hint_for(flag, [_flag_of(item) for section in sections.values() for item in section.settings])
            raise UsageError(f"{prog}: expected one of its flags, got {flag!r}. {prog} --help lists them.{hint}")
    if len(positional) not in count:
        got = " ".join(positional) or "nothing"
        raise UsageError(
            f"{prog}: expected {arguments}, got {got}. {prog} --help lists all flags; a flag that is true or false "
            "takes no value: --x or --no-x."
        )
    of_the_command = {name: typed.pop(name) for name in settings_of(flags_class) if name in typed}
    return flags_class(**of_the_command), positional, typed


def parse_early(flags_class: type[Flags], args: Sequence[str]) -> Flags:
    """Parse only the command's own flags, and ignore other words. Used before the algorithm is known, which decides
    what other flags exist."""
    typed, _ = _parse_words(args, {"command": _section_of(flags_class)})
    return flags_class(**typed)


def _section_of(flags_class: type[CommandFlags]) -> Section:
    return Section(flags_class.__doc__ or "", [*settings_of(flags_class).values()])


def settings_in(defaults: AlgorithmConfig, known: Mapping[str, Setting]) -> dict[str, Section]:
    """Return the settings in ``known`` that can be flags, by section, and the model settings as section ``model``.
    Their defaults are the values in ``defaults``."""
    docs = section_docs(type(defaults))
    sections: dict[str, Section] = {}
    for name, item in known.items():
        if name not in _NO_FLAGS:
            section = sections.setdefault(item.section, Section(docs[item.section], []))
            section.settings.append(replace(item, default=vars(defaults)[name]))
    if "rl_module_spec" in known:
        sections["rl_module"] = Section(docs["rl_module"], [*settings_of(SpecFlags).values()])
    model = defaults.model_config_class.from_any(defaults.model_config)
    # only the common ones: what an algorithm adds to the model settings is a setting of its config
    nets = [replace(item, default=vars(model)[item.name]) for item in settings_of(DefaultModelConfig).values()]
    sections["model"] = Section("Settings of the default networks.", nets)
    return sections


def changed_settings(typed: Mapping[str, Any], config: AlgorithmConfig) -> dict[str, Any]:
    """Return the settings of ``config`` that ``typed`` changes, with their new values, by name. Flags of the networks
    change parts of ``model_config`` and ``rl_module_spec``; the other parts keep their values in ``config``.

    Raises:
        TypeError, ValueError: If a value does not fit its setting.
    """
    known = settings_of(type(config))
    changed: dict[str, Any] = {}
    spec: dict[str, Any] = {}
    model: dict[str, Any] = {}
    for name, value in typed.items():
        if name in known:
            changed[name] = value
        elif name in settings_of(SpecFlags):
            spec[name] = value
        else:
            model[name] = value
    if spec:
        changed["rl_module_spec"] = replace(config.rl_module_spec or RLModuleSpec(), **spec)
    if model:
        base = config.model_config_class.from_any(config.model_config)
        changed["model_config"] = replace(base, **model)
    return changed


def _flag_of(item: Setting) -> str:
    return f"--{kebab(item.name)}"


def _is_switch(item: Setting) -> bool:
    return bool in (item.hint, *get_args(item.hint))


def _parser(prog: str, arguments: str, sections: Mapping[str, Section]) -> argparse.ArgumentParser:
    """Return the parser of the flags in ``sections``, with a group for each section. By the name of each setting that
    was typed, its result has a list of what was typed: of a setting that is true or false a bool, else a list of words.
    ``prog`` and ``arguments`` are those of :func:`parse`."""
    parser = argparse.ArgumentParser(
        usage=f"{prog} {arguments} [flags]",
        argument_default=argparse.SUPPRESS,
        add_help=False,
        allow_abbrev=False,
        exit_on_error=False,
    )
    # Before Python 3.14, argparse takes -1 for a number, but -1e3 for an unknown flag.
    parser._negative_number_matcher = re.compile(r"-\.?\d")
    for section_name, section in sections.items():
        group = parser.add_argument_group(f"{kebab(section_name)} options", section.doc)
        for item in section.settings:
            flag, name, about = _flag_of(item), item.name, _help_text(item)
            # "append" keeps all that is typed, where argparse would otherwise keep the last.
            if _is_switch(item):
                group.add_argument(flag, dest=name, action="append_const", const=True, help=about)
                group.add_argument(f"--no-{kebab(name)}", dest=name, action="append_const", const=False)
            else:
                list_item = item_of(item.hint)
                words, hint = (1, item.hint) if list_item is None else ("*", list_item)
                group.add_argument(flag, dest=name, action="append", nargs=words, metavar=type_text(hint), help=about)
    return parser


def _help_text(item: Setting) -> str:
    default = item.default
    if item_of(item.hint) is not None and isinstance(default, list | tuple):
        default = " ".join(map(str, default))
    bounds = f" ({item.bounds})" if str(item.bounds) else ""
    return f"{item.doc}{bounds} (default: {default})".replace("%", "%%")  # argparse formats it with %


def _parse_words(args: Sequence[str], sections: Mapping[str, Section]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the flags in ``args``, by name of the setting, and the words that belong to no flag. Raise
    ``UsageError`` if a flag is typed twice, lacks its value, or has a wrong value."""
    words: list[str] = []
    for word in args:
        if word.startswith("--"):  # --num_epochs is --num-epochs; the value after = stays
            flag, equals, value = word.partition("=")
            word = f"{flag.replace('_', '-')}{equals}{value}"
        words.append(word)
    try:
        typed, others = _parser("", "", sections).parse_known_args(words)
    except argparse.ArgumentError as error:
        flag = error.argument_name
        if error.message.startswith("ignored"):
            raise UsageError(f"{flag}: expected no value, got one. Leave the value out: --x or --no-x.") from None
        raise UsageError(f"{flag}: expected a value, got none. Type one after {flag}.") from None
    values: dict[str, Any] = {}
    for section in sections.values():
        for item in section.settings:
            if item.name in typed:
                values[item.name] = _value_of(item, vars(typed)[item.name])
    return values, [word for word in others if word != "--"]  # which ends a list: --loggers csv -- CartPole-v1


def _value_of(item: Setting, typed: Sequence[Any]) -> Any:
    """Return the value of a setting from what :func:`_parser` found."""
    flag = _flag_of(item)
    if len(typed) > 1:
        raise UsageError(f"{flag}: expected once, got it again. Type all its words after one.")
    if _is_switch(item):
        return typed[0]
    value = read(flag, item.hint, typed[0])
    try:
        return item.check(value, flag)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None


def _show_help(prog: str, arguments: str, sections: Mapping[str, Section], topic: str) -> NoReturn:
    """Print the help about ``topic`` and exit.

    Args:
        prog: The command.
        arguments: See :func:`parse`.
        sections: All flags by section, the command's own first.
        topic: The name of a section or a flag, ``command`` for the command's own flags, or ``all``.

    Raises:
        UsageError: If ``topic`` is unknown; suggests the closest.
        SystemExit: With code 0.
    """
    topics = ["all"]
    shown: dict[str, Section] = {}
    for name, section in sections.items():
        topics += [kebab(name), *(kebab(item.name) for item in section.settings)]
        chosen = [item for item in section.settings if topic in ("all", kebab(name), kebab(item.name))]
        if chosen:
            shown[name] = Section(section.doc, chosen)
    settings = {kebab(name): section for name, section in sections.items() if name != "command"}
    if not shown:
        raise UsageError(
            f"{prog} --help: expected a setting, all or a section: {', '.join(settings)}, got {topic!r}. "
            f"Choose one.{closest(topic, topics)}"
        )
    _parser(prog, arguments, shown).print_help()
    if settings and topic == "command":
        # The flags of all settings fill many screens when explained, so this page only names them.
        print(
            f"\nSettings are flags, too. `{prog} --help SECTION` explains a section,\n"
            "`--help SETTING` one of them, `--help all` everything.\n"
        )
        for title, section in settings.items():
            print(f"  {title}: {section.doc}")
            names = " ".join(map(_flag_of, section.settings))
            print(textwrap.fill(names, 100, initial_indent=" " * 8, subsequent_indent=" " * 8, break_on_hyphens=False))
    raise SystemExit(0)


# --- flags of other libraries -------------------------------------------------------------------------------


def hint_for(flag: str, known: Collection[str]) -> str:
    """Return a hint about what to type instead of an unknown flag, such as `` Use --minibatch-size.`` or
    `` Did you mean '--lr'?``, or an empty string.

    Args:
        flag: The flag as it was typed, with its dashes.
        known: The flags of the command.
    """
    name = flag.strip("-").replace("-", "_")
    hint = remedy_for("flag", name) or on_flags(remedy_for("setting", name))
    named = re.findall(r"--[a-z][a-z-]*", hint)
    if {*named} & {*known} if named else hint and "--num-env-steps" in known:
        return f" {hint}"
    # compare without the dashes, which would make all flags similar
    return closest(flag.strip("-"), [word.strip("-") for word in known]).replace("'", "'--", 1)


# --- algorithms -------------------------------------------------------------------------------------------------------


def algorithm_config(name: str) -> type[AlgorithmConfig]:
    """Return the config class of the algorithm ``name``. If ``name`` is an import path such as ``my_module:MyConfig``,
    import that config class, register it, and return it.

    Raises:
        UsageError: If no such algorithm or config class exists; suggests the closest name.
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


def is_config_class(thing: object) -> bool:
    """Return whether ``thing`` is the config class of an algorithm, and not an abstract base class."""
    return isinstance(thing, type) and issubclass(thing, AlgorithmConfig) and not isabstract(thing)


def register_own(config: type[AlgorithmConfig]) -> None:
    """Register a user's config class as an algorithm, named like the class without ``Config``. Do nothing if it is
    already registered."""
    if config not in ALGORITHMS.values():
        register_algorithm(config.__name__.removesuffix("Config"), config)
