"""Turn settings into flags, and the flags of a command line into a config."""

import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, make_dataclass, replace
from inspect import isabstract
from itertools import zip_longest
from typing import Annotated, Any, NoReturn, TypeVar, get_args

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from algorithms.cli.exits import UsageError
from algorithms.cli.values import imported, item_of, read
from algorithms.config import AlgorithmConfig
from algorithms.registry import ALGORITHMS, config_class, register_algorithm
from catalog.catalog import Catalog
from catalog.checks import type_text
from catalog.errors import closest
from catalog.migration import remedy_for
from catalog.model_config import DefaultModelConfig
from catalog.settings import Setting, Settings, section_docs, setting, settings_of
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


Own = TypeVar("Own", bound=CommandFlags)


@dataclass(frozen=True)
class Section:
    """A group of flags in the help, with a sentence about their purpose."""

    doc: str
    settings: list[Setting]


def parse(
    own: type[Own],
    prog: str,
    words: str,
    args: Sequence[str],
    *,
    count: range = range(1, 2),
    settings: Mapping[str, Section] | None = None,
) -> tuple[Own, list[str], dict[str, Any]]:
    """Parse a command line. If it asks for help, print the help and exit.

    Args:
        own: Class of the command's own flags.
        prog: The command in help and errors: ``rlmodule evaluate``.
        words: Its positional arguments in help and errors: ``CKPT``.
        args: The command line after the command.
        count: Allowed numbers of positional arguments.
        settings: Settings of a config that are also flags, by section.

    Returns:
        The command's own flags, the positional arguments, and the values of the settings that were typed, by name.

    Raises:
        UsageError: If a flag is unknown, typed twice, or has a wrong value, or the number of arguments is wrong.
        SystemExit: With code 0, after printing the help.
    """
    sections = {"command": _own_section(own), **(settings or {})}
    if wanted := {"-h", "--help"} & {*args}:
        topic = next(iter(args[args.index(wanted.pop()) + 1 :]), "command")
        _show_help(prog, words, sections, kebab(topic.strip("-")))
    typed, others = _found(args, sections)
    if unknown := [word.partition("=")[0] for word in others if word.startswith("--")]:
        hint = hint_for(unknown[0], [_flag_of(item) for section in sections.values() for item in section.settings])
        raise UsageError(f"{prog}: expected one of its flags, got {unknown[0]!r}. {prog} --help lists them.{hint}")
    if len(others) not in count:
        raise UsageError(
            f"{prog}: expected {words}, got {' '.join(others) or 'nothing'}. {prog} --help lists all flags; a flag "
            "that is true or false takes no value: --x or --no-x."
        )
    ours = {name: typed.pop(name) for name in settings_of(own) if name in typed}
    return own(**ours), others, typed


def parse_early(own: type[Own], args: Sequence[str]) -> Own:
    """Parse only the command's own flags, and ignore other words. Used before the algorithm is known, which decides
    what other flags exist."""
    return own(**_found(args, {"command": _own_section(own)})[0])


def _own_section(own: type[CommandFlags]) -> Section:
    return Section(own.__doc__ or "", [*settings_of(own).values()])


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


def kebab(name: str) -> str:
    """Return the flag of the setting ``name`` without leading dashes, such as ``num-env-steps``."""
    return name.strip("_").replace("_", "-")


def _flag_of(item: Setting) -> str:
    return f"--{kebab(item.name)}"


def _is_switch(item: Setting) -> bool:
    return bool in (item.hint, *get_args(item.hint))


def _form(sections: Mapping[str, Section]) -> Any:
    """Build the dataclass that tyro fills in. It has a field for each section: a dataclass with a field for each
    setting."""
    groups: list[Any] = []
    for name, section in sections.items():
        group: Any = make_dataclass(name, [_field(item) for item in section.settings])
        group.__doc__ = section.doc
        groups.append((name, tyro.conf.OmitArgPrefixes[group], field(default_factory=group)))
    return make_dataclass("Flags", groups)


def _field(item: Setting) -> tuple[str, Any, Any]:
    """Return the name, annotation and default of the dataclass field from which tyro makes the flag of a setting."""
    inner, default = item_of(item.hint), item.default
    if inner is not None and isinstance(default, list | tuple):
        default = " ".join(map(str, default))
    about = f"{item.doc} ({item.bounds})" if str(item.bounds) else item.doc
    mark = tyro.conf.arg(name=kebab(item.name), help=about, help_behavior_hint=f"(default: {default})")
    if _is_switch(item):  # tyro adds --no-x only where the default is True or False
        return item.name, Annotated[bool, mark], bool(default)

    def value_of(texts: list[str]) -> Any:
        value = read(_flag_of(item), item.hint, texts)
        try:
            return item.check(value, _flag_of(item))
        except (TypeError, ValueError) as error:  # tyro would print the error in a box
            raise UsageError(str(error)) from None

    words = PrimitiveConstructorSpec[Any](
        nargs=1 if inner is None else "*",
        metavar=type_text(item.hint) if inner is None else f"[{type_text(inner)} ...]",
        instance_from_str=value_of,
        is_instance=lambda value: True,
        str_from_instance=lambda value: [str(value)],
    )
    return item.name, Annotated[Any, mark, words], None


def _found(args: Sequence[str], sections: Mapping[str, Section]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the flags in ``args``, by name of the setting, and the words that belong to no flag. Raise
    ``UsageError`` if a flag is typed twice, lacks its value, or has a wrong value."""
    parts = [arg.partition("=") if arg.startswith("--") else ("", "", arg) for arg in args]
    words = [f"{head.replace('_', '-')}{equals}{rest}" for head, equals, rest in parts]
    known = {_flag_of(item): item for section in sections.values() for item in section.settings}
    known |= {f"--no-{kebab(item.name)}": item for item in known.values() if _is_switch(item)}
    # tyro does not say which flags were typed, keeps the last value of a flag that is typed twice, and prints its own
    # message for a missing value. So look at the words first.
    typed: dict[str, Setting] = {}
    for word, following in zip_longest(words, words[1:], fillvalue="--"):
        if (item := known.get(word.partition("=")[0])) is None:
            continue
        flag = _flag_of(item)
        if item.name in typed:
            raise UsageError(f"{flag}: expected once, got it again. Type all its words after one.")
        takes_one = not _is_switch(item) and item_of(item.hint) is None
        if word == flag and takes_one and re.match(r"-[-a-zA-Z]", following):
            raise UsageError(f"{flag}: expected a value, got none. Type one after {flag}.")
        typed[item.name] = item
    form, others = tyro.cli(_form(sections), args=words, return_unknown_args=True, add_help=False)
    values = {name: value for group in vars(form).values() for name, value in vars(group).items()}
    return {name: values[name] for name in typed}, others


def _show_help(prog: str, words: str, sections: Mapping[str, Section], topic: str) -> NoReturn:
    """Print the help about ``topic`` and exit.

    Args:
        prog: The command.
        words: See :func:`parse`.
        sections: All flags by section, the command's own first.
        topic: The name of a section or a flag, ``command`` for the command's own flags, or ``all``.

    Raises:
        UsageError: If ``topic`` is unknown; suggests the closest.
        SystemExit: With code 0.
    """
    about = dict[str, Section]()
    for name, section in sections.items():
        if chosen := [item for item in section.settings if topic in ("all", kebab(name), kebab(item.name))]:
            about[name] = Section(section.doc, chosen)
    titles = [kebab(name) for name in [*sections][1:]]
    if not about:
        names = ["all", *titles, *(kebab(item.name) for section in sections.values() for item in section.settings)]
        raise UsageError(
            f"{prog} --help: expected a setting, all or a section: {', '.join(titles)}, got {topic!r}. "
            f"Choose one.{closest(topic, names)}"
        )
    with suppress(SystemExit):
        tyro.cli(_form(about), args=["--help"], prog=f"{prog} {words} [flags]")
    if titles and topic == "command":
        print(
            f"Settings are flags, too. `{prog} --help SECTION` explains a section,\n"
            "`--help SETTING` one of them, `--help all` everything.\n"
        )
        for title, section in zip(titles, [*sections.values()][1:], strict=True):
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
    hint = remedy_for("flag", name) or _on_flags(remedy_for("setting", name))
    named = re.findall(r"--[a-z][a-z-]*", hint)
    if {*named} & {*known} if named else hint and "--num-env-steps" in known:
        return f" {hint}"
    # compare without the dashes, which would make all flags similar
    return closest(flag.strip("-"), [other.strip("-") for other in known]).replace("'", "'--", 1)


def _on_flags(hint: str) -> str:
    """Rewrite a hint about Python code as a hint about flags: ``.training(lr=...)`` becomes ``--lr``."""

    def flags(call: re.Match[str]) -> str:
        return " and ".join(f"--{kebab(name)}" for name in re.findall(r"(\w+)=", call[1]))

    text = re.sub(r"\.\w+\(((?:\w+=[^()]*)+)\)", flags, hint)
    return re.sub(r"\b(\w+)=\.\.\.", lambda setting: f"--{kebab(setting[1])}", text)


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


def is_config_class(thing: Any) -> bool:
    """Return whether ``thing`` is the config class of an algorithm, and not an abstract base class."""
    return isinstance(thing, type) and issubclass(thing, AlgorithmConfig) and not isabstract(thing)


def register_own(config: type[AlgorithmConfig]) -> None:
    """Register a user's config class as an algorithm, named like the class without ``Config``. Do nothing if it is
    already registered."""
    if config not in ALGORITHMS.values():
        register_algorithm(config.__name__.removesuffix("Config"), config)
