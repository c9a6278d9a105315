"""Draw loop.png: who hands what to whom in one iteration. Run it as ``python docs/pictures/loop.py``.

The background is transparent and every text stands in a filled box or in a grey that white and dark pages both carry.
"""

from pathlib import Path

from drawing import CATALOG, LEARNER, MODULE, RUNNER, SLATE, arrow, box, note
from matplotlib.figure import Figure


def draw(path: Path) -> None:
    """Write the picture to ``path``."""
    figure = Figure(figsize=(9, 4.1))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 9), ylim=(0, 4.1))
    axes.axis("off")

    box(axes, 1.15, 3.35, 1.9, 0.9, SLATE, "spaces", "observations, actions,\nmodel settings")
    box(axes, 4.5, 3.35, 2.2, 0.9, CATALOG, "Catalog", "decision tree → encoder,\nheads, distribution")
    box(axes, 4.5, 1.9, 2.2, 0.9, MODULE, "RLModule", "one set of tensors,\nnormalisers inside")
    box(axes, 1.15, 1.25, 1.9, 1.1, RUNNER, "EnvRunner", "acts, steps a\nvector of envs")
    box(axes, 7.85, 1.25, 1.9, 1.1, LEARNER, "Learner", "values, advantages,\nloss, gradient steps")
    box(axes, 4.5, 0.5, 2.2, 0.7, SLATE, "Rollout", "columns [T, N, …]")

    arrow(axes, (2.1, 3.35), (3.4, 3.35))
    arrow(axes, (4.5, 2.9), (4.5, 2.35))
    arrow(axes, (3.4, 1.9), (2.1, 1.5))
    arrow(axes, (6.9, 1.5), (5.6, 1.9))
    arrow(axes, (2.1, 0.95), (3.4, 0.5))
    arrow(axes, (5.6, 0.5), (6.9, 0.95))
    note(axes, 2.75, 3.55, "at build")
    note(axes, 4.88, 2.63, "builds")
    note(axes, 2.7, 1.95, "acts with")
    note(axes, 6.32, 1.97, "trains in place")
    note(axes, 2.5, 0.5, "sample")
    note(axes, 6.5, 0.5, "update")
    figure.savefig(path, dpi=160, transparent=True, metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".png"))
