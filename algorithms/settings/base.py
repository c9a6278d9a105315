"""Base class of algorithm configs: copy, freeze, and convert settings to JSON and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from catalog.copies import frozen_copy, mutable_copy
from catalog.model_config import DefaultModelConfig
from catalog.settings import Settings, settings_of
from catalog_rl import remedy_for
from rlmodule.encoding import Decoder, encode

if TYPE_CHECKING:
    on_the_class = classmethod
else:

    class on_the_class(classmethod):
        """A class method that returns a new config. Calling it on a config raises ``TypeError``, because the call would
        not change that config."""

        def __get__(self, instance: object, owner: type | None = None) -> Any:
            if instance is not None:
                called = f"{type(instance).__name__}.{self.__func__.__name__}"
                raise TypeError(f"{called}(): expected the class, got a config. Begin with it: config = {called}(...).")
            return super().__get__(instance, owner)


def with_values(parts: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings ``parts`` of a published method, with ``values`` added or in their place. A dict
    ``model_config`` replaces single settings of the nets."""
    nets, changed = parts.get("model_config", {}), values.get("model_config")
    merged = {**parts, **values}
    if isinstance(changed, Mapping):
        merged["model_config"] = {**nets, **changed}
    return merged


class SettingsBase(Settings):
    """Base class of algorithm configs.

    ``config.name = value`` and section methods such as ``config.training(lr=1e-3)`` check name, type and range at once.

    Raises:
        TypeError: If a keyword argument is unknown, or a value has the wrong type.
        AttributeError: If an attribute is unknown, or the config is frozen.
        ValueError: If a number is out of range or not finite.
    """

    if not TYPE_CHECKING:  # type checkers take the fields as parameters

        def __init__(self, *args: Any, **values: Any) -> None:
            if args:
                name = type(self).__name__
                section = next(item.section for item in settings_of(type(self)).values() if item.positional)
                envs = [arg for arg in args if not (isinstance(arg, str) and arg.endswith("Policy"))]  # as in SB3
                remedy = f"Write {name}().{section}({repr(envs[0]) if envs else '...'})."
                raise TypeError(f"{name}(): expected settings by keyword, got {args[0]!r}. {remedy}")
            super().__init__(**values)

    def __repr__(self) -> str:
        """Show the settings that differ from their defaults, and how to see all."""
        return f"{super().__repr__()}  # to_dict() has all {len(settings_of(type(self)))} settings"

    def update(self, values: Mapping[str, Any]) -> Self:
        """Set settings of any section by name, and return this config. If one is invalid, raise and set none of
        them."""
        return self._set(values, f"{type(self).__name__}.update()")

    @classmethod
    def overrides(cls, **values: Any) -> dict[str, Any]:
        """Check settings as an assignment would, raise if one is invalid, and return them as a dict for
        :meth:`update`."""
        return cls._checked(values, f"{cls.__name__}.overrides()")

    def copy(self) -> Self:
        """Return a deep copy that can be changed, even of a frozen config. See :func:`mutable_copy` for the objects
        that both configs share."""
        made = object.__new__(type(self))  # the __init__ of a subclass may take no arguments, or overwrite settings
        for name in settings_of(type(self)):
            vars(made)[name] = mutable_copy(getattr(self, name))  # already checked
        return made

    def freeze(self) -> Self:
        """Make this config immutable, and return it. Its lists, dicts and dataclasses are replaced with immutable
        copies."""
        for name in settings_of(type(self)):
            vars(self)[name] = frozen_copy(getattr(self, name))
        vars(self)["_frozen"] = True
        return self

    def to_dict(self) -> dict[str, Any]:
        """Return all settings by name as JSON values, for :meth:`from_dict`."""
        return {name: encode(getattr(self, name)) for name in settings_of(type(self))}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], /, *, allow: Sequence[str] | None = None, **objects: Any) -> Self:
        """Return the config that :meth:`to_dict` converted. A setting that is missing from ``data`` keeps its default.

        Args:
            data: A dict from :meth:`to_dict`.
            allow: Import paths that ``data`` may use in addition to this library's own classes: modules or full paths,
                with everything below them. None trusts ``data`` and imports everything that it names.
            **objects: Settings that replace settings in ``data``, such as ``env=`` for an env that was a lambda.

        Raises:
            TypeError: If a setting is unknown.
            ValueError: If ``data`` names import paths that are not allowed, or lacks objects that could not be saved;
                names all of them.
        """
        where = f"{cls.__name__}.from_dict()"
        data = cls.from_earlier(data)
        cls._refuse_unknown([*data, *objects], where)
        decoder, known = Decoder(cls.__name__, allow), settings_of(cls)
        hints = {name: known[name].hint for name in data} | cls._further_hints(data)
        read = {name: decoder.read(value, name, hints[name]) for name, value in data.items() if name not in objects}
        decoder.refuse_missing()
        return cls()._set({**read, **objects}, where)

    @classmethod
    def _further_hints(cls, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return type annotations by setting name, which :meth:`from_dict` uses for ``data`` in place of the declared
        annotations. Default: none."""
        return {}

    def modules_to_allow(self) -> dict[str, list[str]]:
        """Return the Python modules that :meth:`from_dict` needs in ``allow`` to read this config, each with the names
        of the settings that need it."""
        decoder, known = Decoder(type(self).__name__, ()), settings_of(type(self))
        for name, value in self.to_dict().items():
            decoder.read(value, name, known[name].hint)
        return decoder.modules_to_allow

    @classmethod
    def _remedy_for_unknown(cls, name: str, here: Iterable[str]) -> str:
        if name in settings_of(DefaultModelConfig) and name not in settings_of(cls):
            return f"It is a model setting: write .rl_module(model_config={{{name!r}: ...}})."
        if remedy := remedy_for("model setting", name):
            return f"{remedy} Model settings go into .rl_module(model_config={{...}})."
        return super()._remedy_for_unknown(name, here)
