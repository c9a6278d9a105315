"""Draw loop.png: who hands what to whom in one iteration. Run it as ``python docs/pictures/loop.py``.

The background is transparent and every text stands in a filled box or in a grey that white and dark pages both carry.
"""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

GREY, SLATE = "#7a8699", "#55606e"
CATALOG, MODULE, RUNNER, LEARNER = "#5b4b8a", "#2f6f9f", "#2e7d5b", "#a3541f"


def box(axes: Axes, x: float, y: float, width: float, height: float, colour: str, title: str, text: str) -> None:
    """A filled box with its centre at (x, y), a title and a line or two below it."""
    corner = x - width / 2, y - height / 2
    axes.add_patch(FancyBboxPatch(corner, width, height, "round,pad=0,rounding_size=0.12", fc=colour, ec="none"))
    lift = 0.13 * (text.count("\n") + 1)
    axes.text(x, y + lift, title, color="white", size=11, weight="bold", ha="center", va="center")
    axes.text(x, y + lift - 0.19, text, color="white", size=8.5, ha="center", va="top", linespacing=1.3)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], bend: float = 0.0) -> None:
    """An arrow from ``start`` to ``end``."""
    style = {"arrowstyle": "-|>,head_width=0.3,head_length=0.55", "connectionstyle": f"arc3,rad={bend}"}
    axes.annotate("", end, start, arrowprops={**style, "color": GREY, "lw": 1.8, "shrinkA": 3, "shrinkB": 3})


def label(axes: Axes, x: float, y: float, text: str) -> None:
    """A line or two beside an arrow."""
    axes.text(x, y, text, color=GREY, size=8.5, ha="center", va="center", linespacing=1.3)


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
    label(axes, 2.75, 3.55, "at build")
    label(axes, 4.88, 2.63, "builds")
    label(axes, 2.7, 1.95, "acts with")
    label(axes, 6.32, 1.97, "trains in place")
    label(axes, 2.5, 0.5, "sample")
    label(axes, 6.5, 0.5, "update")
    figure.savefig(path, dpi=160, transparent=True, metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".png"))
