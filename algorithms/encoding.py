"""Settings as JSON and back, without loss and without pickle.

Besides what JSON knows, a value is one object with one reserved key::

    {"__import__": "module:qualname"}                       a class or function
    {"__dataclass__": "module:qualname", "fields": {...}}   an instance of a dataclass
    {"__space__": "Box", ...}                               a Gymnasium space
    {"__tuple__": [...]}, {"__items__": [[key, value]]}     a tuple; a dict with keys that are not plain strings
    {"__float__": "inf"}                                    a float that JSON cannot write
    {"__pass_again__": "my_script.<lambda>"}                an object that only exists in the process that wrote it
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import gymnasium as gym
import numpy as np

from catalog.errors import explain_error
from catalog.model_config import DefaultModelConfig

OWN_PACKAGES = ("catalog", "rlmodule", "algorithms")
"""Packages whose import paths are resolved from any file, trusted or not."""


def encode(value: Any) -> Any:
    """``value`` as ``json.dumps`` takes it; see the module for the forms."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"__float__": repr(value)}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if type(value) is tuple:
        return {"__tuple__": [encode(item) for item in value]}
    if isinstance(value, dict):
        if all(type(key) is str and not key.startswith("__") for key in value):
            return {key: encode(item) for key, item in value.items()}
        return {"__items__": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, type | FunctionType | BuiltinFunctionType):
        path = _import_path(value)
        return {"__import__": path} if path is not None else _pass_again(value)
    if type(value) in _SPACES:
        return {"__space__": type(value).__name__, **_SPACES[type(value)][0](value)}
    if dataclasses.is_dataclass(value):
        path = _import_path(type(value))
        if path is not None:
            names = value.given() if isinstance(value, DefaultModelConfig) else [f.name for f in _init_fields(value)]
            fields = {name: encode(getattr(value, name)) for name in names}
            return {"__dataclass__": path, "fields": fields}
    return _pass_again(value)


def decode(data: Any, *, where: str, allow: Sequence[str] | None) -> Any:
    """The value that :func:`encode` wrote.

    Args:
        data: A JSON value.
        where: The setting, as errors name it.
        allow: None resolves every import path; a sequence only those in our packages or below these prefixes.

    Raises:
        ValueError: If an import path is not allowed or leads nowhere, a form is unknown, or the object was not written
            because it exists only in the process that wrote it.
    """

    def inner(item: Any) -> Any:
        return decode(item, where=where, allow=allow)

    if isinstance(data, list):
        return [inner(item) for item in data]
    if not isinstance(data, dict):
        return data
    match data:
        case {"__tuple__": list(items)}:
            return tuple(inner(item) for item in items)
        case {"__items__": list(pairs)} if all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            items = [(inner(key), inner(item)) for key, item in pairs]
            return _made(lambda: dict(items), where, data)
        case {"__float__": str(text)}:
            return _made(lambda: float(text), where, data)
        case {"__import__": str(path)}:
            return _resolve(path, where, allow)
        case {"__dataclass__": str(path), "fields": dict(fields)}:
            cls = _resolve(path, where, allow)
            if not isinstance(cls, type) or not dataclasses.is_dataclass(cls):
                raise _unreadable(where, "the path of a dataclass", repr(path))
            try:
                return cls(**{name: inner(item) for name, item in fields.items()})
            except TypeError as error:
                raise _unreadable(where, f"the fields of {cls.__name__}", str(error)) from error
        case {"__space__": str(name), **rest} if name in _SPACES_BY_NAME:
            parts = {key: inner(item) for key, item in rest.items()}
            return _made(lambda: _SPACES[_SPACES_BY_NAME[name]][1](parts), where, data)
        case {"__pass_again__": what}:
            raise ValueError(
                explain_error(
                    where,
                    expected="the object itself, which could not be written down",
                    got=f"only its description {what!r}",
                    remedy=f"Pass it again by keyword: {where.rsplit('.', 1)[-1]}=...",
                )
            )
    if any(key.startswith("__") for key in data):
        raise _unreadable(where, "a form this version knows", repr(data))
    return {key: inner(item) for key, item in data.items()}


def _made(make: Callable[[], Any], where: str, data: Any) -> Any:
    """What ``make`` makes of ``data``, which may be malformed in any way."""
    try:
        return make()
    except Exception as error:
        expected = "what a form of this version holds"
        raise _unreadable(where, expected, f"{data!r} ({type(error).__name__}: {error})") from error


def check_allowed(path: str, where: str, allow: Sequence[str] | None) -> None:
    """Raise ``ValueError`` unless ``path`` (``module:qualname``) may be imported; see :func:`decode`."""
    if allow is None:
        return
    allow = (allow,) if isinstance(allow, str) else allow
    if not _is_allowed(path, allow):
        module, setting = path.partition(":")[0], where.rsplit(".", 1)[-1]
        remedy = f"If you trust it, pass allow=[{module!r}], or pass the object again ({setting}=...)."
        if is_of_another_script(path):
            remedy = f"It was in a script, which this is not: pass it again ({setting}=...)."
        raise ValueError(
            explain_error(
                where,
                expected=f"an import path in {', '.join((*OWN_PACKAGES, *allow))}",
                got=repr(path),
                remedy=remedy,
            )
        )


def is_of_another_script(path: str) -> bool:
    """Whether ``path`` leads into a script other than the one that runs, from which nothing can be imported."""
    module, _, qualname = path.partition(":")
    return module == "__main__" and qualname.partition(".")[0] not in vars(sys.modules["__main__"])


def _is_allowed(path: str, allow: Sequence[str]) -> bool:
    return any(path == prefix or path.startswith((f"{prefix}.", f"{prefix}:")) for prefix in (*OWN_PACKAGES, *allow))


def modules_to_allow(settings: Mapping[str, Any], allow: Sequence[str] = ()) -> dict[str, list[str]]:
    """The modules that encoded settings need and that ``allow`` does not cover, each with the settings that name it.

    Args:
        settings: What :func:`encode` wrote, by name.
        allow: See :func:`decode`.
    """
    allow, found = (allow,) if isinstance(allow, str) else allow, dict[str, list[str]]()
    for name, value in settings.items():
        # Gymnasium imports what stands before the colon of an id such as "my_envs:MyEnv-v0"
        is_id = name == "env" and isinstance(value, str) and ":" in value
        for path in [value] if is_id else _paths_in(value):
            if not _is_allowed(path, allow):
                names = found.setdefault(path.partition(":")[0], [])
                names += [] if name in names else [name]
    return found


def check_all_allowed(settings: Mapping[str, Any], where: str, allow: Sequence[str] | None) -> None:
    """Raise ``ValueError`` if several modules would have to be allowed: so they are told together, not one by one."""
    refused = {} if allow is None else modules_to_allow(settings, allow)
    if len(refused) > 1:
        got = " and ".join(f"{module!r} ({', '.join(names)})" for module, names in refused.items())
        objects = ", ".join(f"{name}=..." for name in dict.fromkeys(itertools.chain(*refused.values())))
        remedy = f"If you trust them, pass allow={[*refused]}, or pass the objects again ({objects})."
        expected = f"import paths in {', '.join((*OWN_PACKAGES, *(allow or ())))}"
        raise ValueError(explain_error(where, expected=expected, got=got, remedy=remedy))


def _paths_in(value: Any) -> Iterator[str]:
    """The import paths in an encoded value, as ``module:qualname``."""
    if isinstance(value, list):
        for item in value:
            yield from _paths_in(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key in ("__import__", "__dataclass__") and isinstance(item, str):
                yield item
            else:
                yield from _paths_in(item)
                yield from _named_paths(key, item)


def _named_paths(key: str, value: Any) -> Iterator[str]:
    """The import paths that the model setting ``key`` holds as plain text."""
    named = value.values() if key == "custom_action_dist" and isinstance(value, dict) else [value]
    for text in named if key in ("custom_model", "custom_action_dist") else ():
        if isinstance(text, str) and ("." in text or ":" in text):
            yield text if ":" in text else ":".join(text.rpartition(".")[::2])


def check_named_imports(value: Any, where: str, allow: Sequence[str] | None) -> None:
    """Hold model settings in ``value``, which :func:`decode` gave, that are import paths in plain text to its rule.

    Raises:
        ValueError: If one of them may not be imported.
    """
    if allow is None:
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {item.name: getattr(value, item.name) for item in dataclasses.fields(value)}
    if isinstance(value, dict):
        for key, part in value.items():
            for path in _named_paths(key, part):
                _resolve(path, f"{where}.{key}", allow)
            check_named_imports(part, where, allow)
    elif isinstance(value, list | tuple):
        for part in value:
            check_named_imports(part, where, allow)


def _resolve(path: str, where: str, allow: Sequence[str] | None) -> Any:
    check_allowed(path, where, allow)
    module_name, _, qualname = path.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
        for name in qualname.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise _unreadable(where, "an import path that leads somewhere", f"{path!r} ({error})") from error
    # Only what is defined there: a name our modules merely import must not be a way out of them.
    if _import_path(found) != path:
        raise _unreadable(where, "the path of a class or function, where it is defined", repr(path))
    return found


def _import_path(thing: Any) -> str | None:
    """``module:qualname`` if it leads back to ``thing``, a class or function; None for lambdas, locals and the like."""
    if not isinstance(thing, type | FunctionType | BuiltinFunctionType):
        return None
    found: Any = sys.modules.get(str(thing.__module__))
    for name in thing.__qualname__.split("."):
        found = getattr(found, name, None)
    return f"{thing.__module__}:{thing.__qualname__}" if found is thing else None


def _init_fields(value: Any) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(value) if field.init]


def _pass_again(value: Any) -> dict[str, str]:
    named = value if isinstance(value, type | FunctionType | BuiltinFunctionType) else type(value)
    kind = "" if named is value else "an instance of "
    return {"__pass_again__": f"{kind}{named.__module__}.{named.__qualname__}"}


def _unreadable(where: str, expected: str, got: str) -> ValueError:
    setting = where.rsplit(".", 1)[-1]
    return ValueError(explain_error(where, expected=expected, got=got, remedy=f"Pass the value again ({setting}=...)."))


# Spaces: per class, how it is written (arrays as nested lists or, if uniform, as one number) and how it is made again.
# Subclasses are not in the table, as they may hold more.


def _encode_bound(bound: np.ndarray[Any, Any]) -> Any:
    uniform = bound.size > 0 and bool((bound == bound.flat[0]).all())
    return encode(bound.flat[0].item() if uniform else bound.tolist())


def _encode_box(space: gym.spaces.Box) -> dict[str, Any]:
    bounds = {"low": _encode_bound(space.low), "high": _encode_bound(space.high)}
    return {**bounds, "shape": list(space.shape), "dtype": str(space.dtype)}


def _decode_box(data: dict[str, Any]) -> gym.Space[Any]:
    dtype: Any = np.dtype(data["dtype"]).type
    low, high = (np.broadcast_to(np.array(data[end], dtype), data["shape"]) for end in ("low", "high"))
    return gym.spaces.Box(low, high, dtype=dtype)


def _encode_discrete(space: gym.spaces.Discrete) -> dict[str, Any]:
    return {"n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}


def _decode_discrete(data: dict[str, Any]) -> gym.Space[Any]:
    dtype: Any = np.dtype(data["dtype"]).type
    # A Gymnasium whose Discrete is always int64 does not know the keyword.
    extra = {} if dtype is np.int64 else {"dtype": dtype}
    return gym.spaces.Discrete(data["n"], start=data["start"], **extra)


def _encode_multi_discrete(space: gym.spaces.MultiDiscrete) -> dict[str, Any]:
    return {"nvec": space.nvec.tolist(), "start": space.start.tolist(), "dtype": str(space.dtype)}


def _decode_multi_discrete(data: dict[str, Any]) -> gym.Space[Any]:
    dtype: Any = np.dtype(data["dtype"]).type
    return gym.spaces.MultiDiscrete(np.array(data["nvec"], dtype), dtype=dtype, start=np.array(data["start"], dtype))


_Codec = tuple[Callable[[Any], dict[str, Any]], Callable[[dict[str, Any]], gym.Space[Any]]]
_SPACES: dict[type, _Codec] = {
    gym.spaces.Box: (_encode_box, _decode_box),
    gym.spaces.Discrete: (_encode_discrete, _decode_discrete),
    gym.spaces.MultiDiscrete: (_encode_multi_discrete, _decode_multi_discrete),
    gym.spaces.MultiBinary: (
        lambda space: {"n": encode(space.n if isinstance(space.n, int) else [int(n) for n in space.n])},
        lambda data: gym.spaces.MultiBinary(data["n"]),
    ),
    # Pairs, because Gymnasium sorts the keys of a plain dict.
    gym.spaces.Dict: (
        lambda space: {"spaces": [[encode(key), encode(inner)] for key, inner in space.spaces.items()]},
        lambda data: gym.spaces.Dict([(key, inner) for key, inner in data["spaces"]]),
    ),
    gym.spaces.Tuple: (
        lambda space: {"spaces": [encode(inner) for inner in space.spaces]},
        lambda data: gym.spaces.Tuple(data["spaces"]),
    ),
}
_SPACES_BY_NAME = {cls.__name__: cls for cls in _SPACES}
