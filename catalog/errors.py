"""How every error of this project reads: where, what was expected, what came, what to do."""

from collections.abc import Iterable
from difflib import get_close_matches


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
