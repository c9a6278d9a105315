"""Convert settings to JSON and back, without loss and without pickle.

A value that JSON cannot represent is written as a JSON object with a reserved key::

    {"__import__": "module:qualname"}                       a class or function
    {"__dataclass__": "module:qualname", "fields": {...}}   an instance of a dataclass
    {"__space__": "Box", ...}                               a Gymnasium space
    {"__tuple__": [...]}, {"__items__": [[key, value]]}     a tuple; a dict with keys that are not plain strings
    {"__float__": "inf"}                                    an infinite or NaN float
    {"__pass_again__": "my_script.<lambda>"}                an object that cannot be restored from the file
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pkgutil import resolve_name
from types import BuiltinFunctionType, FunctionType
from typing import Any, get_args, get_origin, get_type_hints

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from catalog.checks import union_members
from catalog.distributions.base import Distribution
from catalog.model_config import DefaultModelConfig
from catalog.settings import Settings
from catalog_rl import PACKAGES
from rlmodule.env_names import imports_unknown_code


def encode(value: Any) -> Any:
    """Convert ``value`` to values that ``json.dumps`` accepts, in the forms that the docstring of this Python module
    lists."""
    if isinstance(value, np.generic):
        value = value.item()
    # Exact types only: a subclass, such as an IntEnum, may hold more than its JSON form.
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"__float__": repr(value)}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if type(value) is tuple:
        return {"__tuple__": [encode(item) for item in value]}
    if isinstance(value, dict):
        # a key that begins with __ would read as one of the reserved keys
        if all(type(key) is str and not key.startswith("__") for key in value):
            return {key: encode(item) for key, item in value.items()}
        return {"__items__": [[encode(key), encode(item)] for key, item in value.items()]}
    if type(value) in _SPACES.values():
        return _encode_space(value)
    if (path := import_path(value)) is not None:
        return {"__import__": path}
    path = import_path(type(value))
    if path is not None and is_dataclass(value) and not isinstance(value, type):
        names = [item.name for item in fields(value) if item.init]
        given = value.given() if isinstance(value, DefaultModelConfig) else names
        return {"__dataclass__": path, "fields": {name: encode(getattr(value, name)) for name in given}}
    named = value if isinstance(value, _CODE) else type(value)
    kind = "" if named is value else "an instance of "
    return {"__pass_again__": f"{kind}{named.__module__}.{named.__qualname__}"}


class NotReadable(ValueError):
    """Raised for a saved config that names objects which cannot be restored from the file alone.

    Attributes:
        modules: Names of the Python modules that the user would have to allow, each with the settings that name it.
    """

    def __init__(self, message: str, modules: Mapping[str, Sequence[str]]) -> None:
        super().__init__(message)
        self.modules = modules


@dataclass(frozen=True)
class _Place:
    """The place of a value in a config, with the annotation that the value must fit.

    Attributes:
        setting: Name of the config's setting that contains the value.
        path: The setting and the keys that lead from it to the value, joined by dots, for error messages.
        name: Name of the innermost setting that contains the value: a setting of the config or of the networks.
        hint: The annotation that the value must fit.
        below: Annotations by dict key. A nested value under one of these keys, at any depth, must fit that annotation.
    """

    setting: str
    path: str
    name: str
    hint: Any
    below: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The members of ``hint`` if it is a union, else ``hint`` alone."""
        return union_members(self.hint)

    @property
    def bases(self) -> list[type]:
        """The classes ``C`` that ``hint`` contains as ``type[C]``. A class fits if it is a subclass of one of these
        classes."""
        named = [get_args(kind)[0] for kind in self.kinds if get_origin(kind) is type]
        return [object if base is Any else get_origin(base) or base for base in named]

    def item(self, key: Any = None) -> _Place:
        """Return the place of an item of this value: the entry ``key`` if the value is a dict, or any item if the value
        is a list and ``key`` is None."""
        path = self.path if key is None else f"{self.path}.{key}"
        # custom_action_dist maps parts of the action space to distributions: a part may be called like a setting
        if isinstance(key, str) and key in self.below and self.name != "custom_action_dist":
            return replace(self, path=path, name=key, hint=self.below[key])
        of = (list,) if key is None else (dict, Mapping)
        inner = (get_args(kind)[-1] for kind in self.kinds if get_origin(kind) in of)
        return replace(self, path=path, hint=next(inner, Any))


@dataclass(frozen=True)
class _Refused:
    """A value of a file that must not be used.

    Attributes:
        place: Where it is.
        text: The import path or file path, or a description of an object that was not saved.
        expected: What is expected in its place, for error messages.
        allow: What the caller would have to allow; None for an object that was not saved.
    """

    place: _Place
    text: str
    expected: str
    allow: str | None

    @classmethod
    def import_of(cls, path: str, place: _Place) -> _Refused:
        """Return the refusal of an import path ``module:name`` that is not allowed."""
        return cls(place, path, "an import path that you allow", _module_in(path))


class Decoder:
    """Decodes values that :func:`encode` wrote. Every text of a file that this library would import, call or open goes
    through it.

    A file must not run arbitrary code, so the annotation of each setting limits which classes and functions the file
    may name there. For example, a setting of type ``type[Learner]`` accepts this library's learners. A learner class
    from another package must also be listed in ``allow``. A class that is not a learner is never accepted.

    An env may be named by its registered id. Any other text would import what it names, so it needs ``allow``. Settings
    of such an env may not contain paths that are not in ``allow``, because the env might open them.

    Args:
        where: Name of the config in error messages.
        allow: Import paths (``"my_package"``, ``"my_module:MyCatalog"``) that the file may name, with everything inside
            them, and paths of files that an env may open. None trusts the file and allows every path.
    """

    def __init__(self, where: str, allow: Sequence[str] | None) -> None:
        self._where = where
        self._allow = (allow,) if isinstance(allow, str) else allow
        self._refused: list[_Refused] = []
        # Paths in the settings of the env, and whether an env that the caller did not allow would open them.
        self._paths_for_env: list[_Refused] = []
        self._env_is_of_file = False

    def read(self, data: Any, setting: str, hint: Any = Any) -> Any:
        """Decode the value of ``setting``, whose annotation is ``hint``.

        An object that is not allowed or was not saved is None in the result. Call :meth:`refuse_missing` before using
        the result.

        Raises:
            ValueError: If ``data`` contains an unknown or malformed form, or an allowed import path that does not exist
                or leads to a value that does not fit ``hint``.
        """
        return self._read(data, _Place(setting, setting, setting, hint))

    @property
    def modules_to_allow(self) -> dict[str, list[str]]:
        """The Python modules, and the paths of files, that the data read so far names although they are not allowed,
        each with the settings that name it."""
        settings: dict[str, list[str]] = {}
        for refused in self._missing:
            if refused.allow is not None:
                names = settings.setdefault(refused.allow, [])
                names += [] if refused.place.setting in names else [refused.place.setting]
        return settings

    @property
    def names_another_script(self) -> bool:
        """Whether the data read so far names code of a script other than the running one, which nobody can import."""
        return any(refused.allow is not None and _is_of_another_script(refused.text) for refused in self._missing)

    @property
    def _missing(self) -> list[_Refused]:
        """Everything read so far that must not be used."""
        return self._refused + (self._paths_for_env if self._env_is_of_file else [])

    def refuse_missing(self) -> None:
        """Raise :class:`NotReadable` if any object read so far could not be restored. The error names all such
        objects."""
        missing = self._missing
        if not missing:
            return
        expected = " or ".join(dict.fromkeys(refused.expected for refused in missing))
        paths = " and ".join(refused.place.path for refused in missing)
        got = " and ".join(repr(refused.text) for refused in missing)
        names = dict.fromkeys(refused.place.setting for refused in missing)
        remedy = f"ass it again by keyword ({', '.join(f'{name}=...' for name in names)})."
        modules = self.modules_to_allow
        gone = self.names_another_script
        if allow := [module for module in modules if not (gone and module == "__main__")]:
            remedy = f"If you trust it, pass allow={allow}, or p{remedy}"
        else:
            remedy = f"It was defined in another script: p{remedy}" if gone else f"P{remedy}"
        if optional := [f"{name}=None" for name in names if name.startswith(("on_", "callbacks_"))]:
            remedy += f" To do without callbacks: {', '.join(optional)}."
        raise NotReadable(f"{self._where}.{paths}: expected {expected}, got {got}. {remedy}", modules)

    def _read(self, data: Any, place: _Place) -> Any:
        if DefaultModelConfig in place.kinds:
            # Model settings may also be a plain dict, which names no dataclass. The hints apply at any depth, as
            # leaf_overrides and functions hold such dicts in turn.
            place = replace(place, below=_hints_of(DefaultModelConfig))
        match data:
            case list():
                return [self._read(item, place.item()) for item in data]
            case str():
                return self._text(data, place)
            case {"__tuple__": list(items)}:
                return tuple(self._read(item, place.item()) for item in items)
            case {"__items__": list(pairs)} if all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
                keys = [self._read(key, replace(place, name="", hint=Any)) for key, _ in pairs]
                items = [(key, self._read(item, place.item(key))) for key, (_, item) in zip(keys, pairs, strict=True)]
                return self._build(lambda: dict(items), place, data)
            case {"__float__": str(text)}:
                return self._build(lambda: float(text), place, data)
            case {"__import__": str(path)}:
                return self._object(path, place, place.bases)
            case {"__dataclass__": str(path), "fields": dict(values)}:
                return self._dataclass(path, values, place)
            case {"__space__": str(name), **rest} if name in _SPACES:
                parts = {key: self._read(item, replace(place, hint=Any)) for key, item in rest.items()}
                return self._build(lambda: _decode_space(_SPACES[name], parts), place, data)
            # Note it and go on, so that one error names all that is missing.
            case {"__pass_again__": what}:
                self._refused.append(_Refused(place, str(what), "the object itself, which could not be saved", None))
            # After all known forms: a form of a later version, or a malformed one, must not pass as a plain dict.
            case dict() if any(key.startswith("__") for key in data):
                raise self._unreadable(place, "a form that this version knows", repr(data))
            case dict():
                return {key: self._read(item, place.item(key)) for key, item in data.items()}
            case _:
                return data
        return None

    def _text(self, text: str, place: _Place) -> str:
        """Return ``text``. If it names something to import (a net, a distribution, an env) or to open that is not
        allowed, note it as refused."""
        if self._allow is None:
            return text
        is_allowed = self._is_allowed(text)
        if place.name in ("custom_model", "custom_action_dist") and ("." in text or ":" in text):
            self._object(text if ":" in text else ":".join(text.rpartition(".")[::2]), place, place.bases)
        elif place.name == "env":
            self._env_is_of_file = not is_allowed
            if not is_allowed and imports_unknown_code(text):
                self._refused.append(_Refused.import_of(text, place))
        elif place.setting in ("env_config", "evaluation_env_config") and not is_allowed and _is_file_path(text):
            self._paths_for_env.append(_Refused(place, text, "a file path that you allow", text))
        return text

    def _dataclass(self, path: str, data: Mapping[str, Any], place: _Place) -> Any:
        bases = [kind for kind in place.kinds if isinstance(kind, type) and is_dataclass(kind)]
        cls = self._object(path, place, bases)
        if cls is not None and not (isinstance(cls, type) and is_dataclass(cls)):
            raise self._unreadable(place, "the path of a dataclass", repr(path))
        hints = place.below or {name: hint for base in bases for name, hint in _hints_of(base).items()}
        values = {
            name: self._read(value, replace(place, path=f"{place.path}.{name}", name=name, hint=hints.get(name, Any)))
            for name, value in data.items()
        }
        if cls is None or self._refused:  # nothing is built from a file of which a part is refused
            return None
        if issubclass(cls, Settings):
            values = cls.from_earlier(values)
        try:
            return cls(**values)
        except TypeError as error:
            raise self._unreadable(place, f"the fields of {cls.__name__}", str(error)) from error

    def _object(self, path: str, place: _Place, bases: Sequence[type]) -> Any:
        """Import and return the class or function at ``path``. If the path is not allowed, note it as missing and
        return None.

        ``bases`` are the classes that the annotation of ``place`` asks for, if any; a class must derive from one of
        them. Raise ValueError if the path leads to nothing, or to an object that does not fit the annotation.
        """
        is_allowed = self._is_allowed(path) and not _is_of_another_script(path)
        found = None
        fitting: list[type] = []
        if is_allowed or _is_ours(path) or path.startswith(_ACTIVATIONS):
            found = self._imported(path, place)
            fitting = [base for base in bases if isinstance(found, type) and issubclass(found, base)]
        # A setting for any class, such as an env, must not let a file name an arbitrary class of this library.
        if not is_allowed and not any(_is_ours(base.__module__) == _is_ours(path) for base in fitting):
            self._refused.append(_Refused.import_of(path, place))
            return None
        is_open = any(kind in (Any, type) or get_origin(kind) is Callable for kind in place.kinds)
        if not fitting and (not is_open or (bases and isinstance(found, type))):
            names = " or ".join(base.__name__ for base in bases)
            raise self._unreadable(place, f"a class derived from {names}" if names else "no class", repr(path))
        return found

    def _imported(self, path: str, place: _Place) -> Any:
        top = path.partition(":")[0].partition(".")[0]
        try:
            found = resolve_name(path)
        except (ImportError, AttributeError, ValueError) as error:
            unreadable = self._unreadable(place, "an import path that leads somewhere", f"{path!r} ({error})")
            if isinstance(error, ModuleNotFoundError) and error.name == top:
                there = f"Or run from the folder that {top}.py is in, or set PYTHONPATH to that."
                unreadable = ValueError(f"{unreadable} {there}")
            raise unreadable from error
        # An allowed module must not give access to everything that it imports.
        if import_path(found) != path:
            raise self._unreadable(place, "the path of a class or function, where it is defined", repr(path))
        return found

    def _is_allowed(self, path: str) -> bool:
        prefixes = self._allow
        return prefixes is None or any(
            path == prefix or path.startswith((f"{prefix}.", f"{prefix}:")) for prefix in prefixes
        )

    def _build(self, build: Callable[[], Any], place: _Place, data: Any) -> Any:
        """Return ``build()``, which decodes ``data``. If it raises, raise a ValueError that names ``place`` and shows
        ``data``."""
        try:
            return build()
        except Exception as error:
            got = f"{data!r} ({type(error).__name__}: {error})"
            raise self._unreadable(place, "data that this version can read", got) from error

    def _unreadable(self, place: _Place, expected: str, got: str) -> ValueError:
        return ValueError(
            f"{self._where}.{place.path}: expected {expected}, got {got}. Pass the value again by "
            f"keyword ({place.setting}=...)."
        )


def _module_in(path: str) -> str:
    """Return the module of an import path ``module:name``."""
    return path.partition(":")[0]


def _is_file_path(text: str) -> bool:
    """Return whether an env could take ``text`` for a path that leads out of its own folder, or for a URL."""
    return "/" in text or "\\" in text or text.startswith("~")


_ACTIVATIONS = "torch.nn.modules.activation:"
_CODE = (type, FunctionType, BuiltinFunctionType)


def _is_ours(path: str) -> bool:
    return path.partition(":")[0].partition(".")[0] in PACKAGES


def _is_of_another_script(path: str) -> bool:
    """Return whether ``path`` names an object that was defined in a script other than the running one. Such an object
    cannot be imported."""
    module, _, qualname = path.partition(":")
    here = vars(sys.modules["__main__"]).get(qualname.partition(".")[0])
    return module == "__main__" and not (isinstance(here, _CODE) and here.__module__ == module)


@functools.cache
def _hints_of(cls: type) -> Mapping[str, Any]:
    """Return the annotations of a dataclass's fields, by field name."""
    dist = str | type[Distribution]  # DefaultModelConfig cannot import Distribution, so its own annotation is wider
    narrower = {"custom_action_dist": dist | Mapping[str, dist] | None} if cls is DefaultModelConfig else {}
    return get_type_hints(cls) | narrower


def import_path(thing: Any) -> str | None:
    """Return ``module:qualname`` of a class or function. Return None for any other object, and if the path does not
    lead back to ``thing``, as for a lambda."""
    if not isinstance(thing, _CODE):
        return None
    found: Any = sys.modules.get(str(thing.__module__))
    for name in thing.__qualname__.split("."):
        found = getattr(found, name, None)
    return f"{thing.__module__}:{thing.__qualname__}" if found is thing else None


MOST_NUMBERS = 2**25
"""Most numbers of a Box that a file may describe."""

# Space classes that are saved as their constructor arguments, by name. Subclasses are excluded, because they may have
# additional state.
_SPACES: dict[str, type[gym.Space]] = {
    cls.__name__: cls
    for cls in (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Dict, spaces.Tuple)
}


def _arguments_of(cls: type[gym.Space]) -> list[str]:
    """Return the names of a space's constructor arguments except seeds. They are also the names of its attributes."""
    return [name for name in inspect.signature(cls).parameters if name not in ("seed", "spaces_kwargs")]


def _encode_space(space: gym.Space) -> dict[str, Any]:
    """Encode a space as its class name and constructor arguments. Arrays become nested lists, except that a bound of a
    Box that is the same for every element becomes one number."""
    parts: dict[str, Any] = {}
    for name in _arguments_of(type(space)):
        value = getattr(space, name)
        if name == "dtype":
            value = str(value)
        elif isinstance(value, np.ndarray):
            is_one_bound = name in ("low", "high") and value.size > 0 and bool((value == value.flat[0]).all())
            value = value.flat[0] if is_one_bound else value.tolist()
        elif isinstance(value, Mapping):  # pairs, because Gymnasium sorts the keys of a plain dict
            value = [list(pair) for pair in value.items()]
        elif isinstance(value, tuple):
            value = list(value)
        parts[name] = encode(value)
    return {"__space__": type(space).__name__, **parts}


def _decode_space(cls: Any, data: Mapping[str, Any]) -> gym.Space:
    # Gymnasium adds arguments, which files of its earlier releases do not have
    parts = {name: data[name] for name in _arguments_of(cls) if name in data}
    if "dtype" in parts:
        parts["dtype"] = np.dtype(parts["dtype"]).type
    if cls is spaces.Box:
        if math.prod(parts["shape"]) > MOST_NUMBERS:
            raise ValueError(f"expected at most {MOST_NUMBERS:,} numbers")
        for end in ("low", "high"):
            parts[end] = np.broadcast_to(np.array(parts[end], parts["dtype"]), parts["shape"])
    if cls is spaces.Dict:
        parts["spaces"] = [(key, inner) for key, inner in parts["spaces"]]
    return cls(**parts)
