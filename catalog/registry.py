"""Registries of encoders and distributions, so that a config can refer to one by name."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from torch import nn

from catalog_rl import closest

if TYPE_CHECKING:
    from catalog.distributions.base import Distribution

T = TypeVar("T", bound=Callable[..., Any])
R = TypeVar("R", bound=Callable[..., Any])


class Registry(Generic[T]):
    """Classes and functions by name.

    Args:
        what: Kind of the entries, for error messages: "model" or "distribution".
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._known: dict[str, T] = {}

    def register(self, name: str) -> Callable[[R], R]:
        """Return a decorator that registers a class or function as ``name``.

        Raises:
            ValueError: If another class or function is registered under that name.
            TypeError: If ``name`` is not a str.
        """
        if not isinstance(name, str):
            raise TypeError(
                f"register_{self.what}(): expected a name, got {name!r}. Write "
                f"@register_{self.what}('name') above the class."
            )

        def add(item: R) -> R:
            known = self._known.get(name, item)
            # running a notebook cell again defines the same class again
            if (known.__module__, known.__qualname__) != (item.__module__, item.__qualname__):
                raise ValueError(
                    f"register_{self.what}({name!r}): expected an unused name, got that of "
                    f"{known!r}. Choose another name."
                )
            self._known[name] = item  # type: ignore[assignment]  # R is a T, or find says so
            return item

        return add

    def find(self, given: T | str, where: str) -> T:
        """Return the class or function that ``given`` refers to.

        Args:
            given: The object itself, a registered name, or an import path ``module:Class`` or ``module.Class``.
            where: Name of the setting that has ``given``, for error messages.

        Raises:
            ValueError: If ``given`` refers to no class or function; for an unknown name, the message has the closest
                registered one.
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
        return found  # type: ignore[return-value]  # only that it is callable can be checked


models: Registry[Callable[..., nn.Module]] = Registry("model")
"""The registered encoders: classes or functions, called with an observation space and the keyword arguments in
``custom_model_config``."""
distributions: Registry[type[Distribution]] = Registry("distribution")
"""The registered action distributions, including the built-in ones."""


register_model = models.register
"""Return a decorator that registers an encoder, so that the setting ``custom_model`` can name it; see
:meth:`Registry.register`."""
register_distribution = distributions.register
"""Return a decorator that registers a :class:`Distribution` class, so that the setting ``custom_action_dist`` can name
it; see :meth:`Registry.register`."""
