"""Build flags from settings and a config from flags: no flag of a setting is written by hand."""

import dataclasses
import re
import textwrap
from argparse import SUPPRESS, Action, ArgumentError, ArgumentParser
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from inspect import isabstract
from typing import Any, NoReturn, TypeVar, get_args

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
    """The flags of a command that no config has. The docstring of a subclass is the help's first paragraph."""

    debug: bool = setting(False, "Show the traceback of an error.")


class SpecFlags(Settings):
    """Parts of ``rl_module_spec`` that are flags."""

    catalog_class: type[Catalog] | None = setting(
        None, "The catalog that chooses the networks; None takes the algorithm's own, from which yours derives."
    )
    module_class: type[RLModule] | None = setting(
        None, "The module that is built with it; None takes the algorithm's own, from which yours derives."
    )


Own = TypeVar("Own", bound=CommandFlags)


@dataclass(frozen=True)
class Section:
    """Settings that the help shows together as flags, below a sentence on their purpose."""

    doc: str
    settings: list[Setting]


class _Once(Action):
    """Reads the value of the setting in ``const``, whose flag is typed at most once."""

    const: Setting

    def __call__(self, parser: object, namespace: object, values: Any, option_string: str | None = None) -> None:
        typed = self.option_strings[0]
        if self.dest in vars(namespace):
            raise UsageError(f"{typed}: expected once, got it again. Type all its words after one.")
        value = option_string == typed if self.nargs == 0 else read(typed, self.const.hint, values)
        try:
            setattr(namespace, self.dest, self.const.check(value, typed))
        except (TypeError, ValueError) as error:
            raise UsageError(str(error)) from None


def parse(
    own: type[Own],
    prog: str,
    words: str,
    args: Sequence[str],
    *,
    count: range = range(1, 2),
    settings: Mapping[str, Section] | None = None,
) -> tuple[Own, list[str], dict[str, Any]]:
    """Read a command line.

    Args:
        own: The command's own flags.
        prog: What precedes ``args``, as the help shows it.
        words: Name of the words that belong to no flag, as the help shows it: ``CKPT``.
        args: The command line.
        count: How many of these words it takes.
        settings: Settings that are flags, too, by the name of their section.

    Returns:
        The command's own flags; its words; and the settings that were typed.

    Raises:
        UsageError: If a flag is unknown, typed twice or has no value that fits, or there are too few or many words.
        SystemExit: After the help.
    """
    sections = {"": _own_section(own), **(settings or {})}
    if wanted := {"-h", "--help"} & {*args}:
        topic = next(iter(args[args.index(wanted.pop()) + 1 :]), "")
        _show_help(prog, words, sections, kebab(topic.strip("-")))
    typed, others = _found(args, sections)
    if unknown := [word.partition("=")[0] for word in others if word.startswith("--")]:
        hint = hint_for(unknown[0], [_typed(item) for section in sections.values() for item in section.settings])
        raise UsageError(f"{prog}: expected one of its flags, got {unknown[0]!r}. {prog} --help lists them.{hint}")
    if len(others) not in count:
        raise UsageError(
            f"{prog}: expected {words}, got {' '.join(others) or 'nothing'}. {prog} --help shows what there is; a flag "
            "that is true or false takes no value: --x or --no-x."
        )
    ours = {name: typed.pop(name) for name in settings_of(own) if name in typed}
    return own(**ours), others, typed


def parse_early(own: type[Own], args: Sequence[str]) -> Own:
    """Read the command's own flags alone, before it is known which settings there are."""
    return own(**_found(args, {"": _own_section(own)})[0])


def _own_section(own: type[CommandFlags]) -> Section:
    return Section(own.__doc__ or "", [*settings_of(own).values()])


def settings_in(defaults: AlgorithmConfig, known: Mapping[str, Setting]) -> dict[str, Section]:
    """Return the settings in ``known`` that can be typed, by section; those of the networks are section ``model``."""
    docs = section_docs(type(defaults))
    sections: dict[str, Section] = {}
    for name, item in known.items():
        if name not in _NO_FLAGS:
            section = sections.setdefault(item.section, Section(docs[item.section], []))
            section.settings.append(dataclasses.replace(item, default=vars(defaults)[name]))
    if "rl_module_spec" in known:
        sections["rl_module"] = Section(docs["rl_module"], [*settings_of(SpecFlags).values()])
    model = defaults.model_config_class.from_any(defaults.model_config)
    # what an algorithm adds to the model settings is among its own
    nets = [
        dataclasses.replace(item, default=vars(model)[item.name]) for item in settings_of(DefaultModelConfig).values()
    ]
    sections["model"] = Section("Settings of the default networks.", nets)
    return sections


def apply(typed: Mapping[str, Any], config: AlgorithmConfig) -> AlgorithmConfig:
    """Return a copy of ``config`` with what was typed.

    Raises:
        TypeError, ValueError: If a value does not fit its setting.
    """
    known, parts = settings_of(type(config)), settings_of(SpecFlags)
    changed = config.copy().update({name: value for name, value in typed.items() if name in known})
    if spec := {name: value for name, value in typed.items() if name in parts}:
        changed.update({"rl_module_spec": dataclasses.replace(changed.rl_module_spec or RLModuleSpec(), **spec)})
    if model := {name: value for name, value in typed.items() if name not in known and name not in parts}:
        base = changed.model_config_class.from_any(changed.model_config)
        changed.update({"model_config": dataclasses.replace(base, **model)})
    return changed


def kebab(name: str) -> str:
    """Return the flag of a setting, without the dashes before it."""
    return name.strip("_").replace("_", "-")


def _typed(item: Setting) -> str:
    return f"--{kebab(item.name)}"


def _parser(sections: Mapping[str, Section], usage: str = "") -> ArgumentParser:
    parser = ArgumentParser(usage=usage, add_help=False, allow_abbrev=False, exit_on_error=False)
    parser._negative_number_matcher = re.compile(r"-\.?\d")  # as from Python 3.13 on: -1e3 is no flag
    for name, section in sections.items():
        group = parser.add_argument_group(f"{kebab(name)} options".strip(), section.doc)
        for item in section.settings:
            inner, default = item_of(item.hint), item.default
            is_switch = bool in (item.hint, *get_args(item.hint))
            if inner is not None and isinstance(default, list | tuple):
                default = " ".join(map(str, default))
            facts = [f"({item.bounds})"] if str(item.bounds) else []
            group.add_argument(
                *([_typed(item), f"--no-{kebab(item.name)}"] if is_switch else [_typed(item)]),
                action=_Once,
                dest=item.name,
                const=item,
                default=SUPPRESS,
                nargs=0 if is_switch else 1 if inner is None else "*",
                metavar=type_text(item.hint if inner is None else inner),
                help=" ".join([item.doc, *facts, f"(default: {default})"]).replace("%", "%%"),
            )
    return parser


def _found(args: Sequence[str], sections: Mapping[str, Section]) -> tuple[dict[str, Any], list[str]]:
    """Return the values of the flags that were typed, by name, and the words that belong to no flag."""
    parts = [arg.partition("=") if arg.startswith("--") else ("", "", arg) for arg in args]
    spelled = [f"{head.replace('_', '-')}{equals}{rest}" for head, equals, rest in parts]
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
        if chosen := [item for item in section.settings if topic in ("all", kebab(name), kebab(item.name))]:
            about[name] = Section(section.doc, chosen)
    titles = [kebab(name) for name in sections if name]
    if not about:
        names = ["all", *titles, *(kebab(item.name) for section in sections.values() for item in section.settings)]
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
            names = " ".join(map(_typed, section.settings))
            print(textwrap.fill(names, 100, initial_indent=" " * 8, subsequent_indent=" " * 8, break_on_hyphens=False))
    raise SystemExit(0)


# --- flags as other libraries call them -------------------------------------------------------------------------------


def hint_for(flag: str, known: Collection[str]) -> str:
    """What to type instead of ``flag``, if that is known: `` Use --minibatch-size.``, `` Did you mean '--lr'?``.

    Args:
        flag: As it was typed, with its dashes.
        known: The flags there are.
    """
    name = flag.strip("-").replace("-", "_")
    hint = remedy_for("flag", name) or _on_flags(remedy_for("setting", name))
    named = re.findall(r"--[a-z][a-z-]*", hint)
    if {*named} & {*known} if named else hint and "--num-env-steps" in known:
        return f" {hint}"
    # without the dashes, which would make all flags alike
    return closest(flag.strip("-"), [other.strip("-") for other in known]).replace("'", "'--", 1)


def _on_flags(hint: str) -> str:
    """A hint on Python as one on flags: ``.training(lr=...)`` becomes ``--lr``."""

    def flags(call: re.Match[str]) -> str:
        names = re.findall(r"(\w+)=", call[1])
        return " and ".join(f"--{kebab(name)}" for name in names)

    text = re.sub(r"\.\w+\(((?:\w+=[^()]*)+)\)", flags, hint)
    return re.sub(r"\b(\w+)=\.\.\.", lambda setting: f"--{kebab(setting[1])}", text)


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
