"""Settings, and the configs that consist of them.

A setting is declared once, as a field with type, default, range and one sentence in the class of a section. A config
derives from its sections and gives each section a name. A method of that name sets the settings of the section.
Everything else follows from the fields: signatures and docstrings of these methods, checks, copies, JSON and the
command line. Type checkers and editors read the same fields::

    class PPOTraining(EpisodeTraining):
        "PPO's arithmetic."

        clip_param: float = setting(0.2, "How far the probability ratio may leave 1.", gt=0)


    class PPOConfig(PPOTraining, EpisodeLearnerConfig):
        training = Section(PPOTraining)
        gamma = 0.98  # another default for an inherited setting; type, range and sentence stay
"""

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
from catalog_rl import closest, remedy_for

Parameters = ParamSpec("Parameters")
Config = TypeVar("Config", bound="Settings")
_ANY = Bounds()


@dataclass(frozen=True)
class Setting:
    """The declaration of one setting of one class.

    Attributes:
        name: Name of the setting.
        hint: Annotation of the setting, with the names in it resolved to types.
        section: Name of the section method that sets the setting; empty in a class without sections.
        positional: Whether the section method also accepts the setting by position.
        doc: One sentence: meaning, unit, and what None stands for.
        part: What a model setting shapes: "encoder", "head" or "module".
        bounds: Range of the value, or of all numbers in the value.
        for_new_runs: Whether the setting acts on new runs only: it decides the initial value of something that a
            checkpoint holds, so a run that continues from one has the saved value.
        default: Value in a new config.
    """

    name: str
    hint: Any
    section: str
    positional: bool
    doc: str = ""
    part: str = "module"
    bounds: Bounds = _ANY
    for_new_runs: bool = False
    default: Any = dataclasses.field(default=None, compare=False)

    def check(self, value: Any, where: str) -> Any:
        """Return ``value`` converted to the annotation, or raise, as :func:`check_value` does. ``where`` names the
        setting in error messages."""
        if value is self.default:  # checked when the setting was declared
            return mutable_copy(value)
        if (space := _search_space_in(value)) is not None:
            raise TypeError(
                f"{where}: expected a value, got the search space {space!r}. Pass it next to the config: "
                f"algorithms.ray_tune.tuner(config, {{{self.name!r}: ...}}, num_env_steps=...)."
            )
        return check_value(where, value, self.hint, self.bounds, self.doc)


def _search_space_in(value: Any) -> Any:
    """Return the first search space of Ray Tune in ``value``, at any depth; None if there is none."""
    if type(value).__module__.startswith("ray.tune.search") or (
        isinstance(value, dict) and [*value] == ["grid_search"]
    ):
        return value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return next((space for space in map(_search_space_in, parts) if space is not None), None)


def setting(default: Any, doc: str, *, part: str = "module", for_new_runs: bool = False, **bounds: float) -> Any:
    """Declare a setting as a field of a :class:`Settings` class: ``name: float = setting(1.0, "…", ge=0)``.

    Args:
        default: Value in a new config; each config gets its own copy of a list or dict.
        doc: One sentence: meaning, unit, and what None stands for.
        part: What a model setting shapes: "encoder", "head" or "module".
        for_new_runs: Whether it acts on new runs only; see :class:`Setting`.
        **bounds: Range of the value, of all numbers in a list, or of the values of a schedule, by the attributes of
            :class:`Bounds`.
    """
    metadata = {"doc": doc, "part": part, "for_new_runs": for_new_runs, "bounds": Bounds(**bounds)}
    if isinstance(default, list | dict):
        return dataclasses.field(default_factory=lambda: mutable_copy(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


# Without field_specifiers, type checkers take any `= setting(...)` for a default, whatever its arguments.
@dataclass_transform(kw_only_default=True)
class Settings:
    """Base class of sections and configs: every subclass is a dataclass, and each field is a setting.

    ``config.name = value`` and section methods such as ``config.training(lr=1e-3)`` check name, type and range
    immediately. A plain value in the body of a subclass replaces the default of an inherited setting.

    Raises:
        TypeError: For an unknown name passed by keyword, or a value of the wrong type.
        AttributeError: For an unknown attribute, or any change of a frozen config.
        ValueError: For a number out of range or not finite.
    """

    # Name of the object in error messages; if empty, they use the name of its class.
    _where: ClassVar[str] = ""

    _frozen: ClassVar[bool] = False  # set on the instance when it is frozen

    def __init_subclass__(cls, *, kw_only: bool = True) -> None:
        super().__init_subclass__()
        cls.__doc__ = inspect.getdoc(cls)  # dataclass() would replace an inherited docstring
        dataclass(init=False, repr=False, kw_only=kw_only)(cls)

    def __init__(self, **values: Any) -> None:
        defaults = {name: item.default for name, item in settings_of(type(self)).items()}
        self._set(defaults | values, self._where or f"{type(self).__name__}()")
        self.__post_init__()

    def __post_init__(self) -> None:
        """Raise if settings contradict each other. ``__init__`` calls this last. By default it checks nothing."""

    @classmethod
    def from_earlier(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return settings from a file of an earlier version, by their names in this one. By default, names have not
        changed."""
        return values

    def __repr__(self) -> str:
        """Show the settings that differ from their defaults."""
        known = settings_of(type(self))
        changed = {name: value for name, value in vars(self).items() if name in known and value != known[name].default}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in changed.items())})"

    def __setattr__(self, name: str, value: Any) -> None:
        known = settings_of(type(self))
        where = f"{type(self).__name__}.{name}"
        self._refuse_if_frozen(where)
        if name not in known:
            raise AttributeError(
                f"{where}: expected a setting, got {name!r}. Set only attributes it has.{closest(name, known)}"
            )
        object.__setattr__(self, name, known[name].check(value, where))

    if not TYPE_CHECKING:  # type checkers must report unknown attributes

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
        """Raise ``TypeError`` for a name in ``names`` that is not a setting or, if ``section`` is given, not a setting
        of that section. ``where`` begins the error message."""
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
    """Descriptor of a config class: ``training = Section(PPOTraining)`` makes the method ``training()`` of the config.

    The method sets the settings of the section ``PPOTraining`` that are passed to it, and returns the config. Its
    docstring begins with the first line of the docstring of ``PPOTraining``.
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
    """Return the section classes of a config class by the names of the section methods."""
    members = [(name, value) for base in reversed(cls.__mro__) for name, value in vars(base).items()]
    return {name: value.settings for name, value in members if isinstance(value, Section)}


def section_docs(cls: type[Settings]) -> dict[str, str]:
    """Return the first line of the docstring of each section class, by the name of the section method."""
    return {name: str(section.__doc__).splitlines()[0] for name, section in sections_of(cls).items()}


@functools.cache
def settings_of(cls: type[Settings]) -> dict[str, Setting]:
    """Return every setting of a class by name, section by section, inherited settings first.

    Raises:
        TypeError: If a config has settings that are in none of its sections, or sections that it does not derive from,
            or if a default is of the wrong type.
        ValueError: If a default is out of range.
    """
    declared: dict[str, Field[Any]] = {}
    defaults: dict[str, Any] = {}
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        known = {item.name: item for item in fields(base)} if "__dataclass_fields__" in vars(base) else {}
        annotated = {name: hint for name, hint in inspect.get_annotations(base).items() if name in known}
        for name in annotated:
            if known[name].metadata or name not in declared:  # a plain new default keeps the declaration
                declared[name] = known[name]
            # not `is MISSING`: a class that came from another process has a copy of that
            if callable(make := known[name].default_factory):
                defaults[name] = make()
        # Resolve only the fields: Python 3.10 does not accept KW_ONLY, another annotation of the class, as a type.
        annotated = get_type_hints(SimpleNamespace(__annotations__=annotated), vars(sys.modules[base.__module__]))
        for name, hint in annotated.items():
            base.__annotations__[name] = hint  # another process, to which a script's class is sent, lacks its names
        hints |= annotated
        defaults |= {name: vars(base)[name] for name in declared if name in vars(base)}
    section_of = {name: section for section, group in sections_of(cls).items() for name in settings_of(group)}
    if section_of and (lost := section_of.keys() ^ declared.keys()):
        raise TypeError(
            f"{cls.__name__}: expected settings of classes that it derives from and names as sections, got "
            f"{', '.join(sorted(lost))} of only one of both. Write class Mine(MyTraining, {cls.__name__}) with "
            "training = Section(MyTraining) in its body."
        )
    found = {}
    for name in section_of or declared:
        field = declared[name]
        item = Setting(name, hints[name], section_of.get(name, ""), not field.kw_only, **field.metadata)
        default = check_value(f"{cls.__name__}.{name}", defaults.get(name, MISSING), item.hint, item.bounds, item.doc)
        found[name] = dataclasses.replace(item, default=default)
    return found


@functools.cache
def _section_method(cls: type[Settings], section: str) -> Callable[..., Any]:
    """Return the method of the config class ``cls`` that sets ``section``. Its signature and docstring have the
    defaults of ``cls``."""
    items = [item for item in settings_of(cls).values() if item.section == section]
    positional = [item.name for item in items if item.positional]

    def method(self: Settings, *args: Any, **values: Any) -> Settings:
        where = f"{type(self).__name__}.{section}()"
        given = dict(zip(positional, args, strict=False))
        if len(args) > len(positional) or given.keys() & values.keys():
            expected = f"{' and '.join(positional) or 'nothing'} by position, and all else by keyword, each once"
            got = f"{len(args)} by position and {', '.join(values) or 'nothing'} by keyword"
            remedy = f"Write {section}({', '.join([f'{name}=...' for name in positional] or ['name=...'])})."
            raise TypeError(f"{where}: expected {expected}, got {got}. {remedy}")
        return self._set(given | values, where, section)

    # what help(), inspect and editors show
    method.__name__ = section
    method.__qualname__ = f"{cls.__qualname__}.{section}"
    method.__module__ = cls.__module__
    method.__doc__ = _section_doc(section_docs(cls)[section], items)
    vars(method)["__signature__"] = _section_signature(items)
    return method


def _section_signature(items: Iterable[Setting]) -> inspect.Signature:
    """Return the signature of the method that sets the settings ``items``."""
    parameters = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    for item in sorted(items, key=lambda item: not item.positional):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if item.positional else inspect.Parameter.KEYWORD_ONLY
        parameters.append(inspect.Parameter(item.name, kind, default=item.default, annotation=item.hint))
    return inspect.Signature(parameters, return_annotation="Self")


def _section_doc(purpose: str, items: Iterable[Setting]) -> str:
    lines = [f"{purpose} A setting left out keeps its value; returns the config.", "", "Args:"]
    for item in items:
        facts = ", ".join(filter(None, (type_text(item.hint), str(item.bounds), f"default {item.default!r}")))
        text = f"{item.name} ({facts}): {item.doc}"
        lines += textwrap.wrap(text, 112, initial_indent=" " * 4, subsequent_indent=" " * 8, break_long_words=False)
    return "\n".join(lines)
