"""How configs are made of settings.

A setting is written once, as a field with type, default, range and sentence, in a class that is its section. A config
derives from its sections and names each: that is the method which sets it. From the fields follow the methods with
their signatures and texts, every check, copies, JSON and the command line; type checkers and editors read the same
fields::

    class PPOTraining(EpisodeTraining):
        "PPO's arithmetic."

        clip_param: float = setting(0.2, "How far the probability ratio may leave 1.", gt=0)


    class PPOConfig(PPOTraining, EpisodeLearnerConfig):
        training = Section(PPOTraining)
        gamma = 0.98  # another default for an inherited setting; type, range and sentence stay
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, TypeVar, get_type_hints, overload

from typing_extensions import ParamSpec, Self, dataclass_transform

from catalog.checks import Bounds, check_value, type_text
from catalog.copies import mutable_copy
from catalog.errors import closest
from catalog.migration import remedy_for

Parameters = ParamSpec("Parameters")
Config = TypeVar("Config", bound="Settings")


@dataclass(frozen=True)
class Setting:
    """All that is known of one setting of one class.

    Attributes:
        name: The attribute.
        hint: The resolved annotation.
        section: The method that sets it; empty for a class without sections.
        doc: One sentence: meaning, unit, and what None stands for.
        part: What it shapes, if it is a model setting: encoders, heads or the whole module.
        bounds: Range of its number or numbers.
        positional: Whether the section method also takes it by position.
        default: Value of a new config.
    """

    name: str
    hint: Any
    section: str
    doc: str
    part: str
    bounds: Bounds
    positional: bool
    default: Any = dataclasses.field(compare=False)

    def check(self, value: Any, where: str) -> Any:
        """``value`` in the form of the annotation; see :func:`check_value`."""
        if value is self.default:  # which was checked
            return mutable_copy(value)
        return check_value(where, value, self.hint, self.bounds, self.doc)


def setting(default: Any, doc: str, *, part: str = "module", **bounds: float) -> Any:
    """A field of a class of settings.

    Args:
        default: Value of a new config; a list or dict is copied for each.
        doc: One sentence: meaning, unit, and what None stands for.
        part: What it shapes, if it is a model setting: encoders, heads or the whole module.
        **bounds: Range of the number, of all numbers in a list, or of a schedule's values, as in :class:`Bounds`.
    """
    metadata = {"doc": doc, "part": part, "bounds": Bounds(**bounds)}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: mutable_copy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


# No field specifier is named: so checkers take `= setting(...)` for a default, whatever the order of its arguments.
@dataclass_transform(kw_only_default=True)
class Settings:
    """Base class of sections and configs: every subclass is a dataclass of which each field is a setting.

    ``config.name = value`` and the section methods check name, type and range at once. A plain value in the body of a
    subclass is the new default of an inherited setting.

    Raises:
        TypeError: For an unknown name (by keyword) or a value of the wrong type.
        AttributeError: For an unknown attribute, or any change of a frozen config.
        ValueError: For a number out of range or not finite.
    """

    _where: ClassVar[str] = ""
    """What errors call it, if not by the name of its class."""

    _frozen: ClassVar[bool] = False  # the instance's own, once frozen

    def __init_subclass__(cls, *, kw_only: bool = True) -> None:
        super().__init_subclass__()
        cls.__doc__ = inspect.getdoc(cls)  # inherited; a dataclass would get its signature
        dataclass(init=False, kw_only=kw_only)(cls)

    def __init__(self, **values: Any) -> None:
        defaults = {name: item.default for name, item in settings_of(type(self)).items()}
        self._set(defaults | values, self._where or f"{type(self).__name__}()")
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check what must hold between settings at any time; called last by ``__init__``."""

    def __setattr__(self, name: str, value: Any) -> None:
        known = settings_of(type(self))
        where = f"{type(self).__name__}.{name}"
        self._refuse_if_frozen(where)
        if name not in known:
            raise AttributeError(
                f"{where}: expected a setting, got {name!r}. Set only attributes it has.{closest(name, known)}"
            )
        object.__setattr__(self, name, known[name].check(value, where))

    if not TYPE_CHECKING:  # which must keep on reporting unknown attributes

        def __getattr__(self, name: str) -> Any:
            cls = type(self)
            if name.startswith("__"):
                raise AttributeError(name)
            known = [*settings_of(cls), *sections_of(cls)]
            remedy = remedy_for("setting", name) or f"help({cls.__name__}) lists them.{closest(name, known)}"
            raise AttributeError(f"{cls.__name__}.{name}: expected a setting or section, got {name!r}. {remedy}")

    def _set(self, values: Mapping[str, Any], where: str, section: str | None = None) -> Self:
        self._refuse_if_frozen(where)
        for name, value in self._checked(values, where, section).items():
            object.__setattr__(self, name, value)
        return self

    @classmethod
    def _checked(cls, values: Mapping[str, Any], where: str, section: str | None = None) -> dict[str, Any]:
        cls._refuse_unknown(values, where, section)
        known, of = settings_of(cls), f"{where[:-1]}%s=)" if where.endswith(")") else f"{where}.%s"
        return {name: known[name].check(value, of % name) for name, value in values.items()}

    @classmethod
    def _refuse_unknown(cls, names: Iterable[str], where: str, section: str | None = None) -> None:
        """Raise ``TypeError`` for a name that is no setting (of ``section``, unless that is None)."""
        known = settings_of(cls)
        here = [name for name, item in known.items() if section in (None, item.section)]
        for name in names:
            if name not in here:
                expected = "a setting" if section is None else f"one of {', '.join(here)}"
                remedy = cls._remedy_for_unknown(name, here)
                raise TypeError(f"{where}: expected {expected}, got the unknown name {name!r}. {remedy}")

    @classmethod
    def _remedy_for_unknown(cls, name: str, here: Iterable[str]) -> str:
        known = settings_of(cls)
        if name in known:
            return f"It belongs to another section: write .{known[name].section}({name}=...)."
        hint = closest(name, here) or closest(name, known)
        remedy = f"Look up its name.{hint}" if hint else "help() of the method or class lists them."
        return remedy_for("setting", name) or remedy

    def _refuse_if_frozen(self, where: str) -> None:
        if self._frozen:
            raise AttributeError(
                f"{where}: expected no change, got a frozen config. Change config.copy() instead: "
                "the copy is not frozen."
            )


class Section(Generic[Parameters]):
    """A method of a config that sets the settings of one section: ``training = Section(PPOTraining)``.

    Its purpose is the sentence that the docstring of the section's class begins with.
    """

    def __init__(self, settings: Callable[Parameters, Settings]) -> None:
        self.settings: Any = settings

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, config: None, owner: type[Config]) -> Callable[Concatenate[Config, Parameters], Config]: ...
    @overload
    def __get__(self, config: Config, owner: type[Config]) -> Callable[Parameters, Config]: ...
    def __get__(self, config: Any, owner: Any) -> Any:
        method = _section_method(owner, self._name)
        return method if config is None else method.__get__(config)


def sections_of(cls: type[Settings]) -> dict[str, type[Settings]]:
    """The sections of a config class, by the name of their method."""
    members = [(name, value) for base in reversed(cls.__mro__) for name, value in vars(base).items()]
    return {name: value.settings for name, value in members if isinstance(value, Section)}


def section_docs(cls: type[Settings]) -> dict[str, str]:
    """The purposes of a config's sections: the sentences that their docstrings begin with."""
    return {name: str(section.__doc__).splitlines()[0] for name, section in sections_of(cls).items()}


@functools.cache
def settings_of(cls: type[Settings]) -> dict[str, Setting]:
    """Every setting of a class by name, section by section, and inherited ones first.

    Raises:
        TypeError: If a config has settings that are in none of its sections, or the other way round.
        TypeError, ValueError: If a default does not fit its setting.
    """
    declared: dict[str, Field[Any]] = {}
    defaults: dict[str, Any] = {}
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        known = {item.name: item for item in fields(base)} if "__dataclass_fields__" in vars(base) else {}
        own = {name: hint for name, hint in inspect.get_annotations(base).items() if name in known}
        for name in own:
            if known[name].metadata or name not in declared:  # another default leaves a setting what it is
                declared[name] = known[name]
            if (make := known[name].default_factory) is not MISSING:
                defaults[name] = make()
        # Not of the class: KW_ONLY, which may stand there too, is no type for Python 3.10.
        hints |= get_type_hints(SimpleNamespace(__annotations__=own), vars(sys.modules[base.__module__]))
        defaults |= {name: vars(base)[name] for name in declared if name in vars(base)}
    section_of = {name: section for section, group in sections_of(cls).items() for name in settings_of(group)}
    if section_of and (lost := section_of.keys() ^ declared.keys()):
        raise TypeError(
            f"{cls.__name__}: expected settings of classes that it derives from and names as sections, got "
            f"{', '.join(sorted(lost))} of only one of both. Write class Mine(MyTraining, {cls.__name__}) with "
            "training = Section(MyTraining) in its body."
        )
    unsaid = {"doc": "", "part": "module", "bounds": Bounds()}
    found = {}
    for name in section_of or declared:
        said = declared[name].metadata or unsaid
        found[name] = Setting(
            name,
            hints[name],
            section_of.get(name, ""),
            positional=not declared[name].kw_only,
            default=check_value(
                f"{cls.__name__}.{name}", defaults.get(name, MISSING), hints[name], said["bounds"], said["doc"]
            ),
            **said,
        )
    return found


@functools.cache
def _section_method(cls: type[Settings], section: str) -> Callable[..., Any]:
    """The function that stands for a section of a config class, with its defaults in signature and text."""
    items = [item for item in settings_of(cls).values() if item.section == section]
    names = [item.name for item in items if item.positional]

    def method(self: Settings, *args: Any, **values: Any) -> Settings:
        where = f"{type(self).__name__}.{section}()"
        given = dict(zip(names, args, strict=False))
        if len(args) > len(names) or given.keys() & values.keys():
            expected = f"{' and '.join(names) or 'nothing'} by position, and all else by keyword, each once"
            got = f"{len(args)} by position and {', '.join(values) or 'nothing'} by keyword"
            remedy = f"Write {section}({', '.join([f'{name}=...' for name in names] or ['name=...'])})."
            raise TypeError(f"{where}: expected {expected}, got {got}. {remedy}")
        return self._set(given | values, where, section)

    method.__name__, method.__qualname__, method.__module__ = section, f"{cls.__qualname__}.{section}", cls.__module__
    method.__doc__ = _section_doc(section_docs(cls)[section], items)
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for item in sorted(items, key=lambda item: not item.positional):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if item.positional else inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(item.name, kind, default=item.default, annotation=item.hint))
    vars(method)["__signature__"] = inspect.Signature(parameters, return_annotation="Self")
    return method


def _section_doc(purpose: str, items: Iterable[Setting]) -> str:
    lines = [f"{purpose} A setting left out keeps its value; returns the config.", "", "Args:"]
    for item in items:
        facts = ", ".join(filter(None, (type_text(item.hint), str(item.bounds), f"default {item.default!r}")))
        text = f"{item.name} ({facts}): {item.doc}"
        lines += textwrap.wrap(text, 112, initial_indent=" " * 4, subsequent_indent=" " * 8, break_long_words=False)
    return "\n".join(lines)
