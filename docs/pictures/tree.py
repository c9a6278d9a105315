"""Draw tree.png: what the catalog decides, from spaces to the environment. Run it as ``python docs/pictures/tree.py``.

Top to bottom: which net reads which observation, what stands behind it, and how an action comes out.
"""

from pathlib import Path

from drawing import CATALOG, GREY, LEARNER, MODULE, RUNNER, SLATE, arrow, note
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

OBSERVATIONS = {
    "Box, rank 0, 1\nMultiBinary": "MLP",
    "Discrete\nMultiDiscrete": "one-hot or embedding\n→ MLP",
    "Box, rank 2": "flatten → MLP, image → CNN\nor sequence → GRU",
    "Box, rank 3, 4": "CNN by size, listed,\nnature or impala",
    "Dict, Tuple": "an encoder per part, fused\nor one vector → MLP",
}
"""Spaces → their net."""
ACTIONS = {
    "Discrete": ("Categorical", "add start"),
    "MultiDiscrete\nBox of integers": ("MultiCategorical", "add start, low"),
    "MultiBinary": ("Bernoulli", "as it is"),
    "Box of floats": ("DiagGaussian, Beta,\nSquashedGaussian,\nDeterministicAction", "stretch, clip"),
    "Dict, Tuple": ("MultiDistribution,\nof the parts", "each part"),
}
"""Spaces → their distribution and converter."""
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
    """Write the picture to ``path``, and what it says into the file's description."""
    figure = Figure(figsize=(10, 8.4))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 10), ylim=(0, 8.4))
    axes.axis("off")
    middle, wide = 5.01, 9.74

    row_name(axes, 8.2, "observation space: every part of a Dict or Tuple goes through this row again; or custom_model")
    for x, (space, net) in zip(COLUMNS, OBSERVATIONS.items(), strict=True):
        cell(axes, x, 7.78, SLATE, space)
        cell(axes, x, 6.92, CATALOG, net)
        arrow(axes, (x, 7.52), (x, 7.18))
        arrow(axes, (x, 6.66), (x, 6.32))
    memory = "use_lstm, use_gru, use_attention: a memory, which may see previous action and reward"
    cell(axes, middle, 6.06, MODULE, memory, wide, 0.44)
    arrow(axes, (middle, 5.86), (middle, 5.5))
    note(axes, middle + 1.5, 5.68, "latent: one for all functions, or one each")
    heads = [(1.9, "policy head"), (middle, "value head"), (8.12, "further heads (functions)")]
    for x, head in heads:
        cell(axes, x, 5.26, LEARNER, head, 2.9, 0.4)
    arrow(axes, (1.9, 5.08), (1.9, 4.72))
    note(axes, 3.0, 4.9, "logits, means, …")
    bars = [
        "avail_actions: action embeddings, of which the observation has one for each action, make the logits",
        "autoregressive_actions: each part is chosen in sight of those before it (AutoregressiveDistribution)",
        "action_mask: what is forbidden gets no probability",
    ]
    for y, bar in zip((4.48, 3.98, 3.48), bars, strict=True):
        cell(axes, middle, y, MODULE, bar, wide, 0.44)

    row_name(axes, 3.04, "action space: the distribution, or custom_action_dist, and the way to the environment")
    for x, (space, (distribution, converter)) in zip(COLUMNS, ACTIONS.items(), strict=True):
        cell(axes, x, 2.62, SLATE, space)
        cell(axes, x, 1.76, CATALOG, distribution)
        cell(axes, x, 0.96, RUNNER, converter, height=0.44)
        arrow(axes, (x, 2.36), (x, 2.02))
        arrow(axes, (x, 1.5), (x, 1.16))
        arrow(axes, (x, 0.76), (x, 0.48))
    note(axes, middle, 0.3, "env.step: an action of the space")
    said = "\n".join(text.get_text() for text in axes.texts)
    figure.savefig(path, dpi=160, transparent=True, metadata={"Software": None, "Description": said})


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".png"))
