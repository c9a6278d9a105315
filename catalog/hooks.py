"""Early errors for methods that are overridden or called in the style of another library. Each error says what to write
instead."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

from catalog_rl import closest, remedy_for

P = ParamSpec("P")
T = TypeVar("T")


class Hooks:
    """Base of classes whose methods users override. Defining a subclass checks the methods of the subclass.

    Warns of a method whose name is that of a hook but for one letter.

    Raises:
        TypeError: If a method of the subclass cannot be called like the method that it overrides, or if it has the name
            of a hook of another library.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, method in vars(cls).items():
            if name.startswith("__") or not isinstance(method, FunctionType | classmethod | staticmethod):
                continue
            overridden = next(
                (vars(base)[name] for base in cls.__mro__[1:] if issubclass(base, Hooks) and name in vars(base)), None
            )
            where = f"{cls.__qualname__}.{name}()"
            if isinstance(overridden, FunctionType | classmethod | staticmethod):
                check_signature(where, name, method, overridden)
            elif remedy := next(filter(None, (remedy_for(base.__name__, name) for base in cls.__mro__[1:])), ""):
                raise TypeError(f"{where}: expected a hook of this class, got one that nothing calls. {remedy}")
            elif overridden is None and (hook := _misspelt(name, cls)):
                text = f"{where}: expected the name of a hook, got one that nothing here calls. Did you mean {hook}()?"
                warnings.warn(text, stacklevel=2)


def _misspelt(name: str, cls: type) -> str:
    """Return the method name in a base of ``cls`` that has one letter more or less than ``name``; empty if none."""
    hooks = {hook for base in cls.__mro__[1:] if issubclass(base, Hooks) for hook in vars(base)}
    for hook in sorted(hook for hook in hooks if len(hook) > 8):  # short words are often near each other
        short, long = sorted((name, hook), key=len)
        if len(long) == len(short) + 1 and any(long[:i] + long[i + 1 :] == short for i in range(len(long))):
            return hook
    return ""


def definers(cls: type, hook: str) -> list[str]:
    """Return the names of those classes among ``cls`` and its bases that define the method ``hook``, ``cls`` first."""
    return [base.__name__ for base in cls.__mro__ if hook in vars(base)]


def overrider(item: object, hook: str) -> str:
    """Return the name of the method that overrides ``hook`` in the class of ``item``, such as
    ``"Mine.build_encoder()"``; empty if no class overrides it."""
    names = definers(type(item), hook)
    return f"{names[0]}.{hook}()" if len(names) > 1 else ""


def refuses_foreign(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate ``function`` to raise ``TypeError`` for a keyword argument that has a name from another library. The
    message says what to write instead."""

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if remedy := remedy_for("argument", name) or remedy_for("play", name):
                where = f"{function.__qualname__}()".replace(".__init__", "")
                raise TypeError(f"{where}: expected its documented arguments, got {name}=. {remedy}")
        return function(*args, **kwargs)

    return checked


def explain_unknown(owner: Any, name: str) -> Any:
    """Implement ``__getattr__`` of algorithms, policies and learners.

    Args:
        owner: The object without the attribute.
        name: Name of the attribute.

    Raises:
        AttributeError: Always. For an unknown attribute, such as ``algo.predict``, the message says what to use
            instead. If a property of that name raised an ``AttributeError``, this is the same error.
    """
    if name.startswith("_") or name in dir(owner):  # a property raised an AttributeError: raise that again
        return object.__getattribute__(owner, name)
    cls = type(owner)
    places = (*(base.__name__.lower() for base in cls.__mro__), "algorithm")
    remedy = next(filter(None, (remedy_for(place, name) for place in places)), "")
    if not remedy:
        public = [attribute for attribute in dir(owner) if not attribute.startswith("_")]
        remedy = f"help({cls.__name__}) lists them.{closest(name, public)}"
    raise AttributeError(f"{cls.__name__}.{name}: expected one of its methods or attributes, got {name!r}. {remedy}")


def check_signature(where: str, name: str, method: Any, overridden: Any, remedy: str = "") -> None:
    """Raise ``TypeError`` if ``method`` cannot be called with the arguments of the method it overrides.

    Args:
        where: The method with its class, for the error message.
        name: Name of the method.
        method: The method of the subclass.
        overridden: The method of the base class.
        remedy: Text to add at the end of the error message.
    """
    theirs, ours = _signature(method), _signature(overridden)
    by_name = [p.name for p in ours.parameters.values() if p.kind is p.KEYWORD_ONLY]
    by_position = [p for p in ours.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if isinstance(method, staticmethod) and not isinstance(overridden, staticmethod):
        by_position = by_position[1:]
    foreign = [name for name in theirs.parameters if name not in ours.parameters and remedy_for("argument", name)]
    on_class = isinstance(overridden, FunctionType) or not isinstance(method, FunctionType)
    try:
        theirs.bind(*by_position, **dict.fromkeys(by_name))
        fits = on_class and not foreign
    except TypeError:
        fits = False
    if not fits:
        hints = "".join(f" {word}: {remedy_for('argument', word)}" for word in foreign)
        raise TypeError(
            f"{where}: expected the arguments {ours}, got {_decorator(method)}def {name}{theirs}. "
            f"Write {_decorator(overridden)}def {name}{ours}.{hints}{remedy}"
        )


def check_constructor(cls: Any, base: Any, remedy: str = "") -> None:
    """Raise ``TypeError``, with ``remedy`` at the end, if the class ``cls`` cannot be constructed with the arguments of
    its base class ``base``, or if its constructor calls no other one."""
    where, method = f"{cls.__qualname__}.__init__()", cls.__init__
    check_signature(where, "__init__", method, base.__init__, remedy)
    if method is not base.__init__ and "__init__" not in inspect.unwrap(method).__code__.co_names:
        raise TypeError(
            f"{where}: expected one that calls super().__init__() with its arguments, got one without that call. Make "
            f"it the first line.{remedy}"
        )


def _signature(method: Any) -> inspect.Signature:
    """Return the signature of a method without annotations but with ``self`` or ``cls``."""
    signature = inspect.signature(method if isinstance(method, FunctionType) else method.__func__)
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return inspect.Signature(bare)


def _decorator(method: Any) -> str:
    return "" if isinstance(method, FunctionType) else f"@{type(method).__name__} "
