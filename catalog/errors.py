"""Texts of error messages. The form of a message is ``where: expected …, got …. Remedy.``"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


def closest(name: str, known: Iterable[str]) -> str:
    """Return a hint such as `` Did you mean 'lr'?`` with the name in ``known`` closest to ``name``; empty if none is
    close."""
    name, known = str(name), list(known)
    longer = [other for other in known if len(name) > 2 and other.startswith(name)]
    matches = longer or get_close_matches(name, known, n=1, cutoff=0.6)
    return f" Did you mean {matches[0]!r}?" if matches else ""


def printable(text: str) -> str:
    """Return ``text``, which may come from a file, with each character that a terminal would act on replaced by its
    escape sequence, such as ``\\x1b``: control characters, line breaks and marks that change the direction."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


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
