"""Encoders and distributions by name, so that a config can say which one without holding it."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch import nn

from catalog.errors import closest

if TYPE_CHECKING:
    from catalog.distributions.base import Distribution

T = TypeVar("T", bound=Callable[..., Any])
R = TypeVar("R", bound=Callable[..., Any])


class Registry(Generic[T]):
    """Classes and functions by name.

    Args:
        what: What they are, for messages: "model", "distribution".
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._known: dict[str, T] = {}

    def register(self, name: str) -> Callable[[R], R]:
        """Decorator: make a class or function known as ``name``.

        Raises:
            ValueError: If another one, defined under another name, has that name.
            TypeError: If ``name`` is no text.
        """
        if not isinstance(name, str):
            raise TypeError(
                f"register_{self.what}(): expected a name, got {name!r}. Write "
                f"@register_{self.what}('name') above the class."
            )

        def add(item: R) -> R:
            known = self._known.get(name, item)
            # the same one may come again from a cell of a notebook
            if (known.__module__, known.__qualname__) != (item.__module__, item.__qualname__):
                raise ValueError(
                    f"register_{self.what}({name!r}): expected a name that is free, got that of "
                    f"{known!r}. Choose another name."
                )
            self._known[name] = item  # type: ignore[assignment]  # R is a T, or find says so
            return item

        return add

    def find(self, given: T | str, where: str) -> T:
        """Return the class or function that ``given`` means.

        Args:
            given: The object itself, a registered name, or an import path ``module:Class`` or ``module.Class``.
            where: The setting it comes from, for messages.

        Raises:
            ValueError: If there is none; names the closest registered name.
        """
        found, got, hint = given, repr(given), ""
        if isinstance(given, str):
            found = self._known.get(given)
            if found is None and "." not in given and ":" not in given:
                got, hint = f"the unknown name {given!r}", closest(given, self._known)
            elif found is None:
                try:
                    found = resolve_name(given)
                    got = f"{given!r}, which is {found!r}"
                except (ImportError, AttributeError, ValueError) as error:
                    got = f"{given!r}, which says: {error}"
        if not callable(found) or isinstance(found, nn.Module):
            known = ", ".join(sorted(self._known)) or "none so far"
            raise ValueError(
                f"{where}: expected a class or function, an import path 'module:Class', or a registered {self.what} "
                f"({known}), got {got}. Register it with @register_{self.what}('name'), or pass the class itself.{hint}"
            )
        return found  # type: ignore[return-value]  # callable is all that can be known of it


models: Registry[Callable[..., nn.Module]] = Registry("model")
"""Encoders by name: classes or functions called with an observation space and the keywords of the settings."""
distributions: Registry[type[Distribution]] = Registry("distribution")
"""Action distributions by name; the built-in ones are there."""


def register_model(name: str) -> Callable[[R], R]:
    """Decorator: make an encoder known as ``name``, for the setting ``custom_model``.

    Raises:
        ValueError: If another one has that name.
    """
    return models.register(name)


def register_distribution(name: str) -> Callable[[R], R]:
    """Decorator: make a :class:`Distribution` class known as ``name``, for the setting ``custom_action_dist``.

    Raises:
        ValueError: If another one has that name.
    """
    return distributions.register(name)
