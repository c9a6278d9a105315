"""Names from other libraries, by the place where users type them, and what to write in this library instead.

``migration.txt`` is the only list of such names. Each line of it has the names that share a remedy, a colon, and the
remedy.
"""

from __future__ import annotations

from pathlib import Path


def _read(table: str) -> dict[str, dict[str, str]]:
    """Parse a text like ``migration.txt`` into the remedies by ``[place]`` and then by name from another library."""
    read: dict[str, dict[str, str]] = {}
    for part in table.strip().split("\n\n"):
        place, *lines = part.splitlines()
        rows = read[place.strip("[]")] = {}
        for line in lines:
            words, remedy = line.split(": ", 1)
            rows |= dict.fromkeys(words.split(), remedy)
    return read


# The remedies by place and then by word. For a hook of another library, the place is the name of the class that users
# derive from here, which does not have that hook.
REMEDIES = _read(Path(__file__).with_suffix(".txt").read_text(encoding="utf-8"))


def remedy_for(place: str, word: object) -> str:
    """Return what to write instead of ``word`` at ``place``, which is a heading of ``migration.txt`` such as "flag";
    empty if unknown."""
    return REMEDIES.get(place, {}).get(str(word), "")


def remedy_for_algorithm(name: str) -> str:
    """Return what to use instead of an algorithm of another library, such as ``A2C`` or ``apex_dqn``; empty if
    unknown."""
    return remedy_for("algorithm name", name.lower().replace("-", "").replace("_", ""))
