"""What every config of an algorithm can do with its settings: copy, freeze, and be written to JSON and read back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from algorithms.settings.encoding import Decoder, encode
from catalog.copies import frozen_copy, mutable_copy
from catalog.model_config import DefaultModelConfig
from catalog.settings import Settings, settings_of

if TYPE_CHECKING:
    on_the_class = classmethod
else:

    class on_the_class(classmethod):
        """A class method that makes a new config, and so refuses to be called on one, which it would leave alone."""

        def __get__(self, instance: object, owner: type | None = None) -> Any:
            if instance is not None:
                called = f"{type(instance).__name__}.{self.__func__.__name__}"
                raise TypeError(f"{called}(): expected the class, got a config. Begin with it: config = {called}(...).")
            return super().__get__(instance, owner)


class SettingsBase(Settings):
    """What every config of an algorithm can do; its sections say what can be set.

    ``config.name = value`` and the section methods check name, type and range at once.

    Raises:
        TypeError: For an unknown name (by keyword) or a value of the wrong type.
        AttributeError: For an unknown attribute, or any change of a frozen config.
        ValueError: For a number out of range or not finite.
    """

    if not TYPE_CHECKING:  # for which the fields are the parameters

        def __init__(self, *args: Any, **values: Any) -> None:
            if args:
                name = type(self).__name__
                section = next(item.section for item in settings_of(type(self)).values() if item.positional)
                raise TypeError(
                    f"{name}(): expected settings by keyword, got {args[0]!r}. Write {name}().{section}({args[0]!r})."
                )
            super().__init__(**values)

    def update(self, values: Mapping[str, Any]) -> Self:
        """Set many settings of any section; all are checked before the first is set."""
        return self._set(values, f"{type(self).__name__}.update()")

    @classmethod
    def overrides(cls, **values: Any) -> dict[str, Any]:
        """``values`` as a dict for :meth:`update`, checked as if they were set."""
        return cls._checked(values, f"{cls.__name__}.overrides()")

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
        cls._refuse_unknown([*data, *objects], where)
        decoder, known = Decoder(cls.__name__, allow), settings_of(cls)
        read = {
            name: decoder.read(value, name, known[name].hint) for name, value in data.items() if name not in objects
        }
        decoder.refuse_missing()
        return cls()._set({**read, **objects}, where)

    def modules_to_allow(self) -> dict[str, list[str]]:
        """The modules that ``allow`` has to name where :meth:`from_dict` reads this config from a file, each with the
        settings that need it."""
        decoder, known = Decoder(type(self).__name__, ()), settings_of(type(self))
        for name, value in self.to_dict().items():
            decoder.read(value, name, known[name].hint)
        return decoder.modules_to_allow

    @classmethod
    def _remedy_for_unknown(cls, name: str, here: Iterable[str]) -> str:
        if name in settings_of(DefaultModelConfig) and name not in settings_of(cls):
            return f"It is a model setting: write .rl_module(model_config={{{name!r}: ...}})."
        return super()._remedy_for_unknown(name, here)
