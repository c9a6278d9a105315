"""Draw workers.png: which process hands what to which. Run it as ``python docs/pictures/workers.py``.

The background is transparent and every text stands in a filled box or in a grey that white and dark pages both carry.
"""

from pathlib import Path

from drawing import LEARNER, RUNNER, SLATE, arrow, box, note
from matplotlib.figure import Figure


def draw(path: Path) -> None:
    """Write the picture to ``path``."""
    figure = Figure(figsize=(9, 3.9))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 9), ylim=(0, 3.9))
    axes.axis("off")

    text = "train(), evaluations,\ncallbacks, loggers,\nreplay, checkpoints,\na copy of the module"
    box(axes, 4.5, 1.95, 2.3, 2.1, SLATE, "your script", text)
    for row, index in ((2.85, 0), (1.05, 1)):
        box(axes, 1.15, row, 1.9, 1.1, RUNNER, f"env runner {index}", "its envs,\nthe acting module")
        box(axes, 7.85, row, 1.9, 1.1, LEARNER, f"learner {index}", "the module,\nloss, optimizer")
        away = 0.32 if index == 0 else -0.32
        arrow(axes, (2.1, row + 0.14), (3.35, 1.95 + away + 0.24))
        arrow(axes, (3.35, 1.95 + away - 0.04), (2.1, row - 0.14))
        arrow(axes, (5.65, 1.95 + away), (6.9, row))
    arrow(axes, (6.9, 3.25), (5.65, 2.85), bend=0.15)
    arrow(axes, (7.7, 2.3), (7.7, 1.6))
    arrow(axes, (8.0, 1.6), (8.0, 2.3))
    note(axes, 2.75, 3.35, "rollouts →")
    note(axes, 2.75, 0.55, "← weights")
    note(axes, 6.3, 0.7, "shards →")
    note(axes, 6.2, 3.45, "← weights, state")
    note(axes, 8.45, 1.95, "gradients")
    figure.savefig(path, dpi=160, transparent=True, metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".png"))
