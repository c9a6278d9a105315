"""Draw scale.png: sampling with more runners, and sending weights.

``scale.json`` holds what is drawn: ``python -m benchmarks.scale --write`` measures it and draws. To draw alone:
``PYTHONPATH=. python docs/pictures/scale.py``.
"""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from algorithms.run.plotting import COLOURS
from benchmarks.scale import FRAGMENT, NODE, SIZES, SLEEP_S, carried_on, model_of

RESULTS = Path(__file__).with_suffix(".json")
PAPER = (1, 2, 4, 8, 16, 32, 64, 125, 250, 500, 1000)


def draw(path: Path) -> None:
    """Write the picture to ``path``."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    found = model_of(results)
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(PAPER, [number / SLEEP_S for number in PAPER], ":", color="#7a8699", label="ideal")
    fetched: dict[str, Any] = {"per_gatherer": NODE, "keeps_rows": False}
    ways = ("as it is", {}), (f"gathered per {NODE}, learners fetch", fetched), ("a stream", {"waits": False})
    for colour, (name, way) in zip(COLOURS, ways, strict=False):
        left.plot(PAPER, [carried_on(found, n, **way) for n in PAPER], "--", color=colour, label=f"{name}, on paper")
    for name, colour, marker in (("runners", COLOURS[0], "o"), ("stream", COLOURS[2], "s")):
        numbers = [one["runners"] for one in results[name]]
        speeds = [one["runners"] * FRAGMENT / one["wall_s"] for one in results[name]]
        label = "measured" if name == "runners" else "a stream, measured"
        left.plot(numbers, speeds, marker, color=colour, label=label, zorder=3)
    left.set(title=f"sampling, {SLEEP_S * 1e3:g} ms per env step", xlabel="runners", ylabel="env steps per second")
    for colour, one in zip(COLOURS, results["weights"], strict=False):
        label = f"weights to {one['runners']:.0f} runner{'s' if one['runners'] > 1 else ''}"
        right.plot(SIZES, [one[f"ms {size}"] for size in SIZES], "o-", color=colour, label=label)
    sums = [results["learners"][f"ms {size}"] for size in SIZES]
    right.plot(SIZES, sums, "s--", color=COLOURS[4], label="sum of two learners' gradients")
    right.set(title="per sending, per gradient step", xlabel="parameters", ylabel="ms")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="lower right" if axes is left else "upper left")
    right.set_ylim(top=3000)  # room for the legend
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    draw(Path(__file__).with_suffix(".png"))
