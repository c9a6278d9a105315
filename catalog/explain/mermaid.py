"""What the catalog explains as a flowchart in the language of Mermaid (https://mermaid.js.org/syntax/flowchart.html)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_ENTITIES = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;", "\\": "#92;"}


class Line(NamedTuple):
    """A line of an outline.

    Attributes:
        depth: How far in it stands.
        label: What it is about; may be empty.
        text: What it says of that; may be empty.
    """

    depth: int
    label: str
    text: str = ""


def flowchart(lines: Sequence[Line]) -> str:
    """A box for each of ``lines``, with an arrow from the line it belongs to, the last one above that stands further
    out."""
    drawn, above = ["flowchart LR"], list[tuple[int, int]]()
    for number, line in enumerate(lines):
        while above and above[-1][0] >= line.depth:
            above.pop()
        words = "<br/>".join(escaped(part) for part in (line.label, line.text) if part)
        drawn.append(f'    n{number}["{words}"]')
        if above:
            drawn.append(f"    n{above[-1][1]} --> n{number}")
        above.append((line.depth, number))
    return "\n".join(drawn)


def escaped(text: str) -> str:
    """``text`` for a label in quotes: on one line, and with nothing that would end it or be read as markup."""
    return " ".join(text.split()).translate(str.maketrans(_ENTITIES))
