"""How a config is made of settings.

A setting is written once, as a dataclass field with its section, default, type, range and sentence. From the fields
follow the section methods (``config.training(lr=...)``) with their signatures and texts, every check, copies, JSON and,
elsewhere, the command line and the stubs::

    @settings
    class PPOConfig(AlgorithmConfig):
        clip_param: float = setting(0.2, "training", "How far the probability ratio may leave 1.", gt=0)
        gamma = 0.98  # another default for an inherited setting; section, type, range and sentence stay
"""

from __future__ import annotations

import copy
import functools
import inspect
import textwrap
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_type_hints

from algorithms.settings.checks import Bounds, check_value, type_text
from algorithms.settings.encoding import Decoder, encode
from algorithms.settings.frozen import frozen_copy, mutable_copy
from catalog.errors import closest
from catalog.migration import remedy_for
from catalog.model_config import DefaultModelConfig

if TYPE_CHECKING:
    from typing_extensions import Self, dataclass_transform

    on_the_class = classmethod
else:

    class on_the_class(classmethod):
        """A class method that makes a new config, and so refuses to be called on one, which it would leave alone."""

        def __get__(self, instance: object, owner: type | None = None) -> Any:
            if instance is not None:
                raise TypeError(
                    f"{type(instance).__name__}.{self.__func__.__name__}(): expected the class, "
                    "got a config. Begin with it: config = "
                    f"{type(instance).__name__}.{self.__func__.__name__}(...)."
                )
            return super().__get__(instance, owner)

    def dataclass_transform(**_: object) -> Callable[[Any], Any]:
        """Nothing: only type checkers read it, and Python 3.10 does not have it in ``typing``."""
        return lambda decorator: decorator


@dataclass(frozen=True)
class Setting:
    """All that is known of one setting of one config class.

    Attributes:
        name: The attribute.
        section: The method that sets it.
        doc: One sentence: meaning, unit, and what None stands for.
        hint: The resolved annotation.
        bounds: Range of its number or numbers.
        positional: Whether the section method also takes it by position.
    """

    name: str
    section: str
    doc: str
    hint: Any
    bounds: Bounds
    positional: bool


def setting(
    default: Any,
    section: str,
    doc: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    positional: bool = False,
) -> Any:
    """A dataclass field that is a setting.

    Args:
        default: Value of a new config; a list or dict is copied for each.
        section: Name of the method that sets it.
        doc: One sentence: meaning, unit, and what None stands for.
        ge, gt, le, lt: Range of the number, of all numbers in a list, or of a schedule's values.
        positional: Whether the section method also takes it by position.
    """
    bounds = Bounds(ge=ge, gt=gt, le=le, lt=lt)
    metadata = {"section": section, "doc": doc, "bounds": bounds, "positional": positional}
    return _field(default, metadata)


def _field(default: Any, metadata: Mapping[str, Any]) -> Any:
    if isinstance(default, list | dict):
        return field(default_factory=functools.partial(copy.deepcopy, default), metadata=metadata)
    return field(default=default, metadata=metadata)


class SettingsBase:
    """What every config can do; its subclasses, decorated with :func:`settings`, say what can be set.

    ``config.name = value`` and the section methods check name, type and range at once.

    Raises:
        TypeError: For an unknown name (by keyword) or a value of the wrong type.
        AttributeError: For an unknown attribute, or any change of a frozen config.
        ValueError: For a number out of range or not finite.
    """

    section_docs: ClassVar[dict[str, str]] = {}
    """Section → its purpose, in a few words. A subclass lists only the sections it adds."""

    _frozen: ClassVar[bool] = False  # the instance's own, once frozen

    def __init__(self, *args: Any, **values: Any) -> None:
        if args:
            raise _by_position(type(self), args[0])
        for item in fields(self):  # type: ignore[arg-type]
            setattr(self, item.name, _default(item))
        self._set(values, f"{type(self).__name__}()", section=None)

    def __setattr__(self, name: str, value: Any) -> None:
        known = settings_of(type(self))
        where = f"{type(self).__name__}.{name}"
        self._refuse_if_frozen(where)
        if name not in known:
            raise AttributeError(
                f"{where}: expected a setting, got {name!r}. Set only attributes it has.{closest(name, known)}"
            )
        object.__setattr__(self, name, _checked(known[name], value, where))

    if not TYPE_CHECKING:  # which must keep on reporting unknown attributes

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            known = [*settings_of(type(self)), *(item.section for item in settings_of(type(self)).values())]
            remedy = remedy_for("setting", name) or f"help({type(self).__name__}) lists them.{closest(name, known)}"
            raise AttributeError(f"{type(self).__name__}.{name}: expected a setting or section, got {name!r}. {remedy}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(
            f"{type(self).__name__}.{name}: expected every setting to stay, got del. Set it to its default instead."
        )

    def update(self, values: Mapping[str, Any]) -> Self:
        """Set many settings of any section; all are checked before the first is set."""
        return self._set(values, f"{type(self).__name__}.update()", section=None)

    @classmethod
    def overrides(cls, **values: Any) -> dict[str, Any]:
        """``values`` as a dict for :meth:`update`, checked as if they were set."""
        return _check_all(cls, values, f"{cls.__name__}.overrides()", section=None)

    def copy(self) -> Self:
        """A deep copy that can be changed, also of a frozen config; :func:`mutable_copy` says what is shared."""
        made = object.__new__(type(self))  # an __init__ of a subclass may set what was changed since, or take nothing
        for name in settings_of(type(self)):
            object.__setattr__(made, name, mutable_copy(getattr(self, name)))
        return made

    def freeze(self) -> Self:
        """Refuse all later changes, also inside lists, dicts and dataclasses (which become copies); returns itself."""
        for name in settings_of(type(self)):
            object.__setattr__(self, name, frozen_copy(getattr(self, name)))
        object.__setattr__(self, "_frozen", True)
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as JSON values, which :meth:`from_dict` reads."""
        return {name: encode(getattr(self, name)) for name in settings_of(type(self))}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, allow: Sequence[str] | None = None, **objects: Any) -> Self:
        """The config that :meth:`to_dict` wrote; a setting that is missing keeps its default.

        Args:
            data: The dict.
            allow: Which import paths to follow besides those of this library's classes that fit the setting: module
                names or full paths, with everything below them. None trusts ``data`` and follows all of them.
            **objects: Settings to take from here instead, such as ``env=`` for one that was a lambda.

        Raises:
            TypeError: For unknown settings.
            ValueError: For import paths that are not allowed, or objects that have to be passed again; names all.
        """
        where = f"{cls.__name__}.from_dict()"
        refuse_unknown(cls, [*data, *objects], where, section=None)
        decoder, known = Decoder(cls.__name__, allow), settings_of(cls)
        read = {
            name: decoder.read(value, name, known[name].hint) for name, value in data.items() if name not in objects
        }
        decoder.refuse_missing()
        return cls()._set({**read, **objects}, where, section=None)

    def modules_to_allow(self) -> dict[str, list[str]]:
        """The modules that ``allow`` has to name where :meth:`from_dict` reads this config from a file, each with the
        settings that need it."""
        decoder, known = Decoder(type(self).__name__, ()), settings_of(type(self))
        for name, value in self.to_dict().items():
            decoder.read(value, name, known[name].hint)
        return decoder.modules_to_allow

    def _set(self, values: Mapping[str, Any], where: str, section: str | None) -> Self:
        self._refuse_if_frozen(where)
        for name, value in _check_all(type(self), values, where, section).items():
            object.__setattr__(self, name, value)
        return self

    def _refuse_if_frozen(self, where: str) -> None:
        if self._frozen:
            raise AttributeError(
                f"{where}: expected no change, got a frozen config. Change config.copy() instead: "
                "the copy is not frozen."
            )


@functools.cache
def settings_of(cls: type[SettingsBase]) -> dict[str, Setting]:
    """Every setting of a config class by name, inherited ones first.

    Raises:
        TypeError: If a subclass with settings lacks the decorator, which would leave them without effect.
    """
    known = {item.name: item for item in _fields(cls)}
    for base in cls.__mro__:
        if issubclass(base, SettingsBase) and "__dataclass_fields__" not in vars(base):
            lost = [name for name, value in vars(base).items() if isinstance(value, Field) or name in known]
            if lost:
                raise TypeError(
                    f"{base.__name__}: expected the decorator @settings, got none, but "
                    f"{', '.join(lost)} in its body. Write @settings above class {base.__name__}."
                )
    hints = get_type_hints(cls)
    return {name: Setting(name=name, hint=hints[name], **item.metadata) for name, item in known.items()}


def _by_position(cls: type[SettingsBase], value: Any) -> TypeError:
    remedy = f"Write {cls.__name__}(name=...)."
    for item in settings_of(cls).values():
        if item.positional:  # the first setting that any section method takes so: of algorithms, the env
            remedy = f"Write {cls.__name__}().{item.section}({value!r})."
            break
    return TypeError(f"{cls.__name__}(): expected settings by keyword, got {value!r}. {remedy}")


ConfigClass = TypeVar("ConfigClass", bound=type[SettingsBase])


# No field specifier is named: so checkers take `= setting(...)` for a default, whatever the order of its arguments.
@dataclass_transform(kw_only_default=True)
def settings(cls: ConfigClass) -> ConfigClass:
    """Make a config class of a class body: a dataclass by keyword, and one method for each section of its settings.

    A method of a section's name that is written by hand stays. An inherited setting that is assigned a plain value in
    the class body gets it as its new default.

    Raises:
        TypeError: If a field is no setting, or its section has no purpose in ``section_docs``.
    """
    _adopt_new_defaults(cls)
    dataclass(init=False, kw_only=True)(cls)
    purposes: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        purposes |= vars(base).get("section_docs", {})
    sections: dict[str, list[Field[Any]]] = {}
    for item in _fields(cls):
        where = f"{cls.__name__}.{item.name}"
        if "section" not in item.metadata:
            raise TypeError(
                f"{where}: expected a setting, got a bare field. Write it as name: type = "
                "setting(default, section, doc)."
            )
        section = item.metadata["section"]
        if section not in purposes or section in vars(SettingsBase):
            raise TypeError(
                f"{where}: expected a known section, got {section!r}. Correct it, or describe a "
                f"new one in {cls.__name__}.section_docs.{closest(section, purposes)}"
            )
        sections.setdefault(section, []).append(item)
    for section, items in sections.items():
        existing = inspect.getattr_static(cls, section, None)
        if existing is None or is_section_method(existing):
            setattr(cls, section, _section_method(cls, section, purposes[section], items))
    cls.__signature__ = inspect.Signature(_parameters(_fields(cls), positional=False))  # type: ignore[attr-defined]
    return cls


def _adopt_new_defaults(cls: type[SettingsBase]) -> None:
    inherited: dict[str, Field[Any]] = {}
    for base in reversed(cls.__mro__[1:]):
        if is_dataclass(base):
            inherited |= {item.name: item for item in fields(base)}
    annotations = inspect.get_annotations(cls)
    for name, value in list(vars(cls).items()):
        if name in inherited and not isinstance(value, Field):
            setattr(cls, name, _field(value, inherited[name].metadata))
            if name not in annotations:  # resolved, as the text may mean nothing in this module
                annotations[name] = next(
                    hints[name] for base in cls.__mro__[1:] if name in (hints := get_type_hints(base))
                )
    cls.__annotations__ = annotations


def _section_method(cls: type, section: str, purpose: str, items: Sequence[Field[Any]]) -> Callable[..., Any]:
    names = [item.name for item in items if item.metadata["positional"]]

    def method(self: SettingsBase, *args: Any, **values: Any) -> SettingsBase:
        where = f"{type(self).__name__}.{section}()"
        given = dict(zip(names, args, strict=False))
        if len(args) > len(names) or given.keys() & values.keys():
            expected = f"{' and '.join(names) or 'nothing'} by position, and all else by keyword, each once"
            got = f"{len(args)} by position and {', '.join(values) or 'nothing'} by keyword"
            remedy = f"Write {section}({', '.join([f'{name}=...' for name in names] or ['name=...'])})."
            raise TypeError(f"{where}: expected {expected}, got {got}. {remedy}")
        return self._set(given | values, where, section)

    method.__name__, method.__qualname__, method.__module__ = section, f"{cls.__qualname__}.{section}", cls.__module__
    method.__doc__ = _section_doc(purpose, items)
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    signature = inspect.Signature([this, *_parameters(items, positional=True)], return_annotation="Self")
    method.__signature__ = signature
    _GENERATED.add(method)
    return method


_GENERATED: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()


def is_section_method(method: Any) -> bool:
    """Whether :func:`settings` made this method from the fields of a section."""
    return inspect.isfunction(method) and method in _GENERATED


def _parameters(items: Sequence[Field[Any]], *, positional: bool) -> list[inspect.Parameter]:
    """As parameters, those by position first. Each shows the setting's default; one left out is not reset to it."""
    kinds = {True: inspect.Parameter.POSITIONAL_OR_KEYWORD, False: inspect.Parameter.KEYWORD_ONLY}
    made = [
        inspect.Parameter(
            item.name, kinds[positional and item.metadata["positional"]], default=_default(item), annotation=item.type
        )
        for item in items
    ]
    return sorted(made, key=lambda parameter: parameter.kind)


def _section_doc(purpose: str, items: Sequence[Field[Any]]) -> str:
    lines = [f"{purpose} A setting left out keeps its value; returns the config.", "", "Args:"]
    for item in items:
        kind = item.type if isinstance(item.type, str) else type_text(item.type)
        facts = ", ".join(filter(None, (kind, str(item.metadata["bounds"]), f"default {_default(item)!r}")))
        text = f"{item.name} ({facts}): {item.metadata['doc']}"
        lines += textwrap.wrap(text, 112, initial_indent=" " * 4, subsequent_indent=" " * 8, break_long_words=False)
    return "\n".join(lines)


def _fields(cls: type) -> tuple[Field[Any], ...]:
    return fields(cls)


def _default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _check_all(cls: type[SettingsBase], values: Mapping[str, Any], where: str, section: str | None) -> dict[str, Any]:
    refuse_unknown(cls, values, where, section)
    known = settings_of(cls)
    return {name: _checked(known[name], value, f"{where[:-1]}{name}=)") for name, value in values.items()}


def _checked(known: Setting, value: Any, where: str) -> Any:
    return check_value(where, value, known.hint, known.bounds, known.doc)


def refuse_unknown(
    cls: type[SettingsBase], names: Mapping[str, Any] | Sequence[str], where: str, section: str | None
) -> None:
    """Raise ``TypeError`` for a name that is no setting (of ``section``, unless that is None)."""
    known = settings_of(cls)
    here = [name for name, item in known.items() if section in (None, item.section)]
    for name in names:
        if name in here:
            continue
        if name in known:
            owner = known[name].section
            remedy = f"It belongs to another section: write .{owner}({name}=...)."
        elif name in DefaultModelConfig.__dataclass_fields__:
            remedy = f"It is a model setting: write .rl_module(model_config={{{name!r}: ...}})."
        else:
            hint = closest(name, here) or closest(name, known)
            remedy = f"Look up its name.{hint}" if hint else "help() of the method or class lists them."
            remedy = remedy_for("setting", name) or remedy
        expected = "a setting" if section is None else f"one of {', '.join(here)}"
        raise TypeError(f"{where}: expected {expected}, got the unknown name {name!r}. {remedy}")
