"""Hints for error messages. The form of a message is ``where: expected …, got …. Remedy.``"""

from collections.abc import Iterable
from difflib import get_close_matches


def closest(name: str, known: Iterable[str]) -> str:
    """Return a hint such as `` Did you mean 'lr'?`` with the name in ``known`` closest to ``name``; empty if none is
    close."""
    name, known = str(name), list(known)
    longer = [other for other in known if len(name) > 2 and other.startswith(name)]
    matches = longer or get_close_matches(name, known, n=1, cutoff=0.6)
    return f" Did you mean {matches[0]!r}?" if matches else ""
