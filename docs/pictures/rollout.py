"""Draw rollout.png: the columns [T, N], and what stands beside them. Run it as ``python docs/pictures/rollout.py``.

Time runs to the right, a slot is a row. Episodes change colour where they change.
"""

from pathlib import Path

from drawing import CATALOG, GREY, LEARNER, MODULE, RUNNER, arrow, cell, note
from matplotlib.axes import Axes
from matplotlib.figure import Figure

START, TERMINATED, TRUNCATED = "▸", "■", "‖"
SLOTS = [
    "▸......‖▸...",
    "...■▸......■",
    ".‖▸........‖",
]
"""What happens in each slot; ``.`` is a step inside an episode."""

NEXT_STEP = "...■ ▸...‖ ▸"
"""The same of an env that resets in the step after an end; a blank is that step."""

LEFT, STEP, SEQUENCE = 1.75, 0.6, 4
ROWS = [4.2, 3.5, 2.8]


def x_of(t: float) -> float:
    """The middle of the cell at time ``t``."""
    return LEFT + STEP * (t + 0.5)


def slot(axes: Axes, y: float, happens: str, name: str, first: int = 0) -> None:
    """One row of cells, with its name at the left."""
    axes.text(LEFT - 0.15, y, name, color=GREY, size=9, ha="right", va="center")
    episode = first
    for t, sign in enumerate(happens):
        episode += sign == START
        cell(axes, x_of(t), y, "" if sign == " " else (MODULE, RUNNER)[episode % 2], sign.strip("."))


def legend(axes: Axes, y: float) -> None:
    """What the signs mean."""
    meanings = [
        (START, MODULE, "starts"),
        (TERMINATED, MODULE, "terminateds"),
        (TRUNCATED, MODULE, "truncateds"),
        ("", "", "not valid"),
    ]
    for x, (sign, colour, meaning) in zip((1.95, 3.55, 5.55, 7.5), meanings, strict=True):
        cell(axes, x, y, colour, sign, 0.34, 0.32)
        note(axes, x + 0.26, y, meaning, "left")


def draw(path: Path) -> None:
    """Write the picture to ``path``."""
    figure = Figure(figsize=(10.4, 5.6))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10.4), ylim=(0, 5.6))
    axes.axis("off")
    steps = len(SLOTS[0])
    end = LEFT + STEP * steps

    note(axes, LEFT, 5.38, "T steps", "left")
    arrow(axes, (LEFT + 0.55, 5.38), (end, 5.38))
    for begin in range(0, steps, SEQUENCE):
        x = LEFT + STEP * begin
        axes.plot([x, x], [1.7, 4.55], color=GREY, lw=1, ls=(0, (4, 3)))
        cell(axes, x, 1.53, LEARNER, f"state_in[{begin // SEQUENCE}]", 1.02, 0.34)
    for number, (y, happens) in enumerate(zip(ROWS, SLOTS, strict=True)):
        slot(axes, y, happens, f"slot {number}", number)
        cell(axes, end + 0.72, y, CATALOG, f"last_obs[{number}]", 1.06)

    for index, (t, n, y) in enumerate([(1, 2, 2.1), (7, 0, 4.92), (11, 2, 2.1)]):
        lift = 0.23 if y > ROWS[n] else -0.23
        cell(axes, x_of(t), y, CATALOG, f"final_obs[{index}]", 1.12, 0.34)
        arrow(axes, (x_of(t), ROWS[n] + lift), (x_of(t), y - 0.6 * lift))
    note(axes, 0.12, 1.53, "Recurrent nets:\nsequences of 4", "left")

    slot(axes, 0.8, NEXT_STEP, "Autoreset in\nthe next step")
    legend(axes, 0.22)
    figure.savefig(path, dpi=160, transparent=True, metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".png"))
