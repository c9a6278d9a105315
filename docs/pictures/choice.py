"""Draw choice.png: which algorithm fits which task. Run it as ``python docs/pictures/choice.py``.

The background is transparent and every text stands in a filled box or in a grey that white and dark pages both carry.
"""

from pathlib import Path

from drawing import CATALOG, LEARNER, MODULE, RUNNER, SLATE, arrow, box, note
from matplotlib.figure import Figure


def draw(path: Path) -> None:
    """Write the picture to ``path``."""
    figure = Figure(figsize=(9, 4.4))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 9), ylim=(0, 4.4))
    axes.axis("off")

    box(axes, 4.5, 3.95, 3.0, 0.7, SLATE, "Is a step of the env cheap?", "thousands per second")
    box(axes, 1.3, 2.85, 2.2, 0.75, MODULE, "PPO", "any actions, many envs")
    box(axes, 6.1, 2.85, 2.4, 0.75, SLATE, "What are the actions?", "the action space")
    box(axes, 3.6, 1.6, 1.9, 0.75, RUNNER, "DQN", "Discrete")
    box(axes, 6.1, 1.6, 1.9, 0.75, LEARNER, "SAC", "Box, or mixed")
    box(axes, 8.05, 1.6, 1.5, 0.75, LEARNER, "SAC as DroQ", "steps cost most")
    box(
        axes,
        4.5,
        0.45,
        8.6,
        0.7,
        CATALOG,
        "Settings, with each of them",
        "images · memory · masks · several agents · goals (not PPO)",
    )

    arrow(axes, (3.3, 3.6), (1.9, 3.22))
    arrow(axes, (5.4, 3.6), (5.9, 3.22))
    arrow(axes, (5.4, 2.48), (4.0, 1.98))
    arrow(axes, (6.1, 2.48), (6.1, 1.98))
    arrow(axes, (7.05, 1.6), (7.3, 1.6))
    note(axes, 2.3, 3.5, "yes")
    note(axes, 5.95, 3.42, "no")
    note(axes, 4.2, 2.3, "choices")
    note(axes, 6.55, 2.22, "numbers")
    figure.savefig(path, dpi=160, transparent=True, metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".png"))
