"""Draw tree.png: what the catalog decides, from spaces to the environment. Run it as ``python docs/pictures/tree.py``.

Top to bottom: which net reads which observation, what stands behind it, and how an action comes out.
"""

from pathlib import Path

from loop import CATALOG, GREY, LEARNER, MODULE, RUNNER, SLATE, arrow, label
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

OBSERVATIONS = [
    ("Box, rank 0, 1\nMultiBinary", "MLP"),
    ("Discrete\nMultiDiscrete", "one-hot or embedding\n→ MLP"),
    ("Box, rank 2", "flatten → MLP, image → CNN\nor sequence → GRU"),
    ("Box, rank 3, 4", "CNN by size, listed,\nnature or impala"),
    ("Dict, Tuple", "an encoder per part, fused\nor one vector → MLP"),
]
ACTIONS = [
    ("Discrete", "Categorical", "add start"),
    ("MultiDiscrete\nBox of integers", "MultiCategorical", "add start, low"),
    ("MultiBinary", "Bernoulli", "as it is"),
    ("Box of floats", "DiagGaussian\nor SquashedGaussian", "stretch, clip"),
    ("Dict, Tuple", "MultiDistribution,\nof the parts", "each part"),
]
COLUMNS = [1.05 + 1.98 * i for i in range(5)]
WIDTH = 1.82


def cell(axes: Axes, x: float, y: float, colour: str, text: str, width: float = WIDTH, height: float = 0.56) -> None:
    """A filled box with one or two lines, its centre at (x, y)."""
    corner = x - width / 2, y - height / 2
    axes.add_patch(FancyBboxPatch(corner, width, height, "round,pad=0,rounding_size=0.1", fc=colour, ec="none"))
    axes.text(x, y, text, color="white", size=8.2, ha="center", va="center", linespacing=1.25)


def row_name(axes: Axes, y: float, text: str) -> None:
    """What a row is, above it at the left."""
    axes.text(0.14, y, text, color=GREY, size=8.5, ha="left", va="center", style="italic")


def draw(path: Path) -> None:
    """Write the picture to ``path``."""
    figure = Figure(figsize=(10, 7.2))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10), ylim=(0, 7.2))
    axes.axis("off")
    middle, wide = 5.01, 9.74

    row_name(axes, 7.0, "observation space: every part of a Dict or Tuple goes through this row again")
    for x, (space, net) in zip(COLUMNS, OBSERVATIONS, strict=True):
        cell(axes, x, 6.58, SLATE, space)
        cell(axes, x, 5.72, CATALOG, net)
        arrow(axes, (x, 6.32), (x, 5.98))
        arrow(axes, (x, 5.46), (x, 5.12))
    cell(
        axes,
        middle,
        4.86,
        MODULE,
        "use_lstm, use_gru, use_attention: a memory, which may see previous action and reward",
        wide,
        0.44,
    )
    arrow(axes, (middle, 4.66), (middle, 4.3))
    label(axes, middle + 1.5, 4.48, "latent: one for all functions, or one each")
    heads = [(1.9, "policy head"), (middle, "value head"), (8.12, "further heads (functions)")]
    for x, head in heads:
        cell(axes, x, 4.06, LEARNER, head, 2.9, 0.4)
    arrow(axes, (1.9, 3.88), (1.9, 3.52))
    label(axes, 3.0, 3.7, "logits, means, …")
    cell(axes, middle, 3.28, MODULE, "action_mask: what is forbidden gets no probability", wide, 0.44)

    row_name(axes, 2.88, "action space: the distribution, and the way to the environment")
    for x, (space, distribution, converter) in zip(COLUMNS, ACTIONS, strict=True):
        cell(axes, x, 2.46, SLATE, space)
        cell(axes, x, 1.6, CATALOG, distribution)
        cell(axes, x, 0.8, RUNNER, converter, height=0.44)
        arrow(axes, (x, 2.2), (x, 1.86))
        arrow(axes, (x, 1.34), (x, 1.0))
        arrow(axes, (x, 0.6), (x, 0.32))
    label(axes, middle, 0.16, "env.step: an action of the space")
    figure.savefig(path, dpi=160, transparent=True, metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".png"))
