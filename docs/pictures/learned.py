"""Draw the learning curves of the pages about algorithms. Run it as ``python docs/pictures/learned.py``.

``curves/*.json`` hold what is drawn: the evaluations of three seeds, each the mean of 20 greedy episodes. A line is the
mean of the seeds, its band their range. This measured them, in half an hour of CPU time::

    python docs/pictures/curves/measure.py ppo a2c dqn hindsight recurrent

"""

import json
from pathlib import Path
from typing import Literal

import numpy as np
from drawing import (
    CATALOG,
    GREY,
    HERE,
    MODULE,
    RUNNER,
    SLATE,
    arrow,
    canvas,
    draw_all,
    heading,
    note,
    panel,
    save,
)
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

Curve = tuple[np.ndarray, np.ndarray]
"""Steps ``[P]`` and returns ``[S, P]`` of ``S`` seeds."""

COLOURS = ["#37976f", "#c4672a", "#3c86bf"]
"""Of the curves: those of the boxes, lighter, since lines are thin."""
CARTPOLE = 0, 515


def read(name: str) -> dict[str, Curve]:
    """The curves of a file by label."""
    curves = json.loads((HERE / "curves" / f"{name}.json").read_text(encoding="utf-8"))["curves"]
    found: dict[str, Curve] = {}
    for label, seeds in curves.items():
        points = np.array(seeds)
        found[label] = points[0, :, 0], points[:, :, 1]
    return found


def inset(axes: Axes, left: float, bottom: float, width: float, height: float) -> Axes:
    """Axes for curves at a place of the picture, which is given in inches."""
    whole_width, whole_height = axes.get_xlim()[1], axes.get_ylim()[1]
    place = left / whole_width, bottom / whole_height, width / whole_width, height / whole_height
    figure = axes.get_figure(root=True)
    assert figure is not None
    return figure.add_axes(place)


def plot(
    axes: Axes,
    curves: dict[str, Curve],
    title: str,
    limits: tuple[float, float],
    x: str = "env steps",
    legend: Literal["lower right", "center right", "upper left"] = "lower right",
) -> None:
    """Draw curves, with a legend if there are several."""
    axes.set_facecolor("none")
    for colour, (label, (steps, returns)) in zip(COLOURS, curves.items(), strict=False):
        axes.fill_between(steps, returns.min(0), returns.max(0), color=colour, alpha=0.25, lw=0)
        axes.plot(steps, returns.mean(0), color=colour, lw=2.2, label=label)
    axes.set_title(title, color=GREY, size=10, loc="left", weight="bold")
    axes.set_xlabel(x, color=GREY, size=9)
    axes.set(ylim=limits, xlim=(0, max(steps[-1] for steps, _ in curves.values())))
    axes.tick_params(colors=GREY, labelsize=8.5)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.grid(color=GREY, alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    if len(curves) > 1:
        axes.legend(frameon=False, fontsize=9.5, labelcolor=GREY, loc=legend)


def curve(
    path: Path,
    curves: dict[str, Curve],
    title: str,
    limits: tuple[float, float],
    x: str = "env steps",
    legend: Literal["lower right", "upper left"] = "lower right",
) -> None:
    """A picture of curves alone."""
    axes = canvas(9, 3.5)
    title = f"{title}, mean return of three seeds and their range"
    plot(inset(axes, 0.75, 0.6, 7.85, 2.5), curves, title, limits, x, legend)
    save(axes, path)


def ppo(path: Path) -> None:
    """PPO on CartPole."""
    curve(path, read("ppo"), "PPO on CartPole-v1", CARTPOLE)


def a2c(path: Path) -> None:
    """A2C on CartPole, and PPO with as many steps as it was measured for."""
    curve(path, read("a2c") | read("ppo"), "A2C and PPO on CartPole-v1", CARTPOLE)


def dqn(path: Path) -> None:
    """DQN on CartPole."""
    curve(path, read("dqn"), "DQN on CartPole-v1", CARTPOLE)


def recurrent(path: Path) -> None:
    """PPO on a CartPole that shows positions alone, with an LSTM and without."""
    curve(path, read("recurrent"), "PPO on CartPole without velocities", CARTPOLE, legend="upper left")


def hindsight(path: Path) -> None:
    """How a step gets the goal of a later one, and what that does to the share of goals reached on bit-flip."""
    axes = canvas(9, 4.9)
    heading(axes, 0.1, 4.7, "an episode that missed its goal")
    for y, name in ((4.25, "achieved_goal"), (3.75, "desired_goal, reward"), (3.05, "in the batch")):
        note(axes, 1.75, y, name, "right")
    for t in range(7):
        left = 1.9 + 1.0 * t
        panel(axes, left, 4.25, 0.88, 0.36, MODULE, f"{'abcdefg'[t]} → {'bcdefgh'[t]}")
        panel(axes, left, 3.75, 0.88, 0.36, SLATE, "z,  -1")
    for t, new, reward in ((1, "e", -1), (3, "e", 0), (5, "h", -1)):
        left = 1.9 + 1.0 * t
        arrow(axes, (left + 0.44, 3.55), (left + 0.44, 3.25))
        panel(axes, left, 3.05, 0.88, 0.36, RUNNER if reward == 0 else CATALOG, f"{new},  {reward}")
    note(axes, 1.9, 2.68, "four draws in five get a goal that the episode achieved later, with its reward", "left")
    curves = {label: (steps, 100 * returns) for label, (steps, returns) in read("hindsight").items()}
    title = "bit-flip, 15 bits: % of goals reached, mean of three seeds and their range"
    plot(inset(axes, 0.75, 0.55, 7.85, 1.55), curves, title, (-4, 104), legend="center right")
    save(axes, path)


PICTURES = {
    "ppo": ppo,
    "a2c": a2c,
    "dqn": dqn,
    "recurrent": recurrent,
    "hindsight": hindsight,
}

if __name__ == "__main__":
    draw_all(PICTURES)
