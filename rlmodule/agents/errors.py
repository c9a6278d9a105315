"""Errors about unknown names of agents and policies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from catalog.errors import closest


def unknown(where: str, what: str, known: Iterable[Any], got: Any, remedy: str) -> ValueError:
    """Return the ValueError for a name that is not in ``known``. Its text suggests the closest known name.

    Args:
        where: Where the name was found.
        what: Kind of the known names, in the plural, such as "agents".
        known: The known names.
        got: The unknown name.
        remedy: Sentence that says what to do.
    """
    names = list(known)
    return ValueError(
        f"{where}: expected one of the {what} {listed(names)}, got {got!r}. {remedy}{closest(got, map(str, names))}"
    )


def listed(names: Iterable[Any]) -> str:
    """Return ``names`` as a bracketed list, cut off after 200 characters."""
    text = ", ".join(map(repr, names))
    return f"[{text}]" if len(text) <= 200 else f"[{text[:200]}...]"
