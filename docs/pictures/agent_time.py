"""Draw agent_time.png: what agents do in the steps of an env, and the rows that a policy learns from.

Run it as ``python docs/pictures/agent_time.py``. The lower half is computed from the upper one.
"""

from pathlib import Path

from drawing import CATALOG, GREY, MODULE, RUNNER, arrow, cell, note
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rollout import START, TERMINATED

OBSERVES, WAITS, GONE, ENDS = "o", ".", " ", "e"
AGENTS = {
    "always acts": "ooooooooooo",
    "acts in turns": "o.o.o.o.o.o",
    "ends, returns": "ooe  oooe  ",
}
"""What each agent does: it observes and acts, waits for its turn, has not started or has ended, or ends."""

LEFT, STEP = 1.75, 0.74
ABOVE, BELOW = [4.75, 4.1, 3.45], [2.2, 1.5, 0.8]


def rows_of(does: str) -> list[list[int]]:
    """The steps of the env that each row of an agent covers: from its action to its next observation or its end."""
    rows: list[list[int]] = []
    is_open = False
    for t, sign in enumerate(does):
        if sign == OBSERVES:
            rows.append([t])
        elif sign == WAITS and is_open:
            rows[-1].append(t)
        is_open = sign in (OBSERVES, WAITS)
    return rows


def episodes_of(does: str) -> list[int]:
    """The number of the episode that each row of an agent belongs to."""
    return [does[: row[0]].count(ENDS) for row in rows_of(does)]


def x_of(t: float) -> float:
    """The middle of the cell at time ``t``."""
    return LEFT + STEP * (t + 0.5)


def name_of(axes: Axes, y: float, name: str) -> None:
    """The name of a row of cells, at its left."""
    axes.text(LEFT - 0.15, y, name, color=GREY, size=9, ha="right", va="center")


def draw(path: Path) -> None:
    """Write the picture to ``path``."""
    figure = Figure(figsize=(10.4, 5.6))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10.4), ylim=(0, 5.6))
    axes.axis("off")
    steps = len(AGENTS["always acts"])

    note(axes, LEFT, 5.33, "steps of the env", "left")
    arrow(axes, (LEFT + 1.3, 5.33), (x_of(steps - 0.5), 5.33))
    for y, (name, does) in zip(ABOVE, AGENTS.items(), strict=True):
        name_of(axes, y, name)
        for t, sign in enumerate(does):
            colour = (MODULE, RUNNER)[does[:t].count(ENDS) % 2]
            if sign == OBSERVES:
                cell(axes, x_of(t), y, colour, "acts", 0.6)
            elif sign == ENDS:
                cell(axes, x_of(t), y, CATALOG, "ends", 0.6)
            elif sign == WAITS:
                cell(axes, x_of(t), y, "", "", 0.6)

    note(axes, LEFT, 2.75, "rows: each agent's own steps, without gaps", "left")
    arrow(axes, (LEFT + 3.3, 2.75), (x_of(steps - 0.5), 2.75))
    for y, (name, does) in zip(BELOW, AGENTS.items(), strict=True):
        name_of(axes, y, name)
        rows, episodes = rows_of(does), episodes_of(does)
        num_complete = len(rows) - (does[-1] != GONE and name != "always acts")
        for i in range(steps):
            if i >= num_complete:
                cell(axes, x_of(i), y, "", "", 0.6)
                continue
            cell(axes, x_of(i), y, (MODULE, RUNNER)[episodes[i] % 2], "+".join(f"r{t}" for t in rows[i]), 0.62)
            starts = i == 0 or episodes[i - 1] != episodes[i]
            ends = does[rows[i][-1] + 1 :][:1] == ENDS
            note(axes, x_of(i), y - 0.34, f"{START if starts else ''}{TERMINATED if ends else ''}")
        if num_complete < len(rows):
            note(axes, x_of(num_complete), y, "open")
    note(
        axes,
        LEFT,
        0.15,
        f"{START} starts    {TERMINATED} ends    dashed: waits; not valid    open: complete in the next rollout",
        "left",
    )
    figure.savefig(path, dpi=160, transparent=True, metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".png"))
