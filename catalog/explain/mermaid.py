"""Flowcharts in the Mermaid language (https://mermaid.js.org/syntax/flowchart.html)."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_ENTITIES = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;", "\\": "#92;"}


class Line(NamedTuple):
    """A line of an outline.

    Attributes:
        depth: Level of indentation.
        label: Subject of the line; may be empty.
        text: Statement about the subject; may be empty.
    """

    depth: int
    label: str
    text: str = ""


def flowchart(lines: Sequence[Line]) -> str:
    """Return a flowchart with a box for each line, and an arrow from its parent, which is the last line above that has
    less depth."""
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


def joined(charts: Mapping[str, str]) -> str:
    """Return one flowchart that has each of ``charts`` in a frame with its name."""
    drawn = ["flowchart LR"]
    for number, (name, chart) in enumerate(charts.items()):
        inside = [re.sub(r"(?<=^    )n|(?<= --> )n(?=\d+$)", f"m{number}n", line) for line in chart.splitlines()[1:]]
        drawn += [f'    subgraph m{number}["{escaped(name)}"]', *inside, "    end"]
    return "\n".join(drawn)


def escaped(text: str) -> str:
    """Return ``text`` on one line, with quotes and markup as entities, so that it can be a quoted label."""
    return " ".join(text.split()).translate(str.maketrans(_ENTITIES))
