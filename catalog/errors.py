"""How every error of this project reads: where, what was expected, what came, what to do."""

import functools
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def explain_error(where: str, *, expected: str, got: object, remedy: str) -> str:
    """Text of an error in the project's one form.

    Args:
        where: The setting, call or path into a space at which the mistake was found.
        expected: What would have been right.
        got: What came; shown with ``str``, so pass ``repr(x)`` where quotes help.
        remedy: What the reader should do next, as one sentence.
    """
    return f"{where}: expected {expected}, got {got}. {remedy}"


def closest(name: str, known: Iterable[str]) -> str:
    """A hint `` Did you mean 'lr'?`` for a misspelt name, or an empty string if nothing is near."""
    name, known = str(name), list(known)
    longer = [other for other in known if len(name) > 2 and other.startswith(name)]
    matches = longer or get_close_matches(name, known, n=1, cutoff=0.6)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def refuses(hints: Mapping[str, str]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorator: a keyword in ``hints`` (name → what to write instead) raises a TypeError that says so."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            for name in kwargs.keys() & hints.keys():
                where = f"{function.__qualname__}()".replace(".__init__", "")
                raise TypeError(
                    explain_error(where, expected="its documented arguments", got=f"{name}=", remedy=hints[name])
                )
            return function(*args, **kwargs)

        return checked

    return decorate
