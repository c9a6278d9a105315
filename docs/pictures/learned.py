"""Draw the learning curves of the pages about algorithms. Run it as ``python docs/pictures/learned.py``.

``curves/*.json`` hold what is drawn: the evaluations of three seeds, each the mean of 20 greedy episodes. A line is the
mean of the seeds, its band their range. This measured them, in ten minutes of CPU time::

    python docs/pictures/curves/measure.py ppo a2c dqn hindsight recurrent

The curve of SAC is that of ``python -m benchmarks.peers.scores --jobs sac-pendulum``, which is kept in
``benchmarks/peers/curves.jsonl``. The dots of td3.png, offline.png and learning.png stand in the tables of
docs/learning.md, each a seed.

"""

import json
from pathlib import Path
from typing import Literal

import numpy as np
from drawing import (
    CATALOG,
    GREY,
    HERE,
    LEARNER,
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

from benchmarks.learning import GOALS, stored

Curve = tuple[np.ndarray, np.ndarray]
"""Steps ``[P]`` and returns ``[S, P]`` of ``S`` seeds."""

COLOURS = ["#37976f", "#c4672a", "#3c86bf"]
"""Of the curves: those of the boxes, lighter, since lines are thin."""
CARTPOLE = 0, 515
ROOT = HERE.parents[1]


def read(name: str) -> dict[str, Curve]:
    """The curves of a file by label."""
    curves = json.loads((HERE / "curves" / f"{name}.json").read_text(encoding="utf-8"))
    found: dict[str, Curve] = {}
    for label, seeds in curves.items():
        points = np.array(seeds)
        found[label] = points[0, :, 0], points[:, :, 1]
    return found


def read_sac() -> Curve:
    """Our curves of SAC on Pendulum, next to Stable-Baselines3's; the last line of a seed counts."""
    found: dict[int, tuple[list[int], list[float]]] = {}
    for text in (ROOT / "benchmarks" / "peers" / "curves.jsonl").read_text(encoding="utf-8").splitlines():
        run = json.loads(text)
        job, *_, who, seed = run["of"]
        if who == "ours" and job["env_id"] == "Pendulum-v1":
            found[seed] = run["steps"], run["returns"]
    steps = next(iter(found.values()))[0]
    return np.array(steps), np.array([returns for _, returns in found.values()])


def cells_of(row: str) -> list[str]:
    """The cells of a row of a table."""
    return [cell.strip() for cell in row.strip("|").split("|")]


def seeds_of(section: str, env: str) -> tuple[list[float], str]:
    """The returns of all seeds at the end, and the budget, of an env in a table of docs/learning.md."""
    page = (HERE.parent / "learning.md").read_text(encoding="utf-8")
    head, *rows = page.partition(f"<!-- {section}: begin -->\n")[2].partition("<!--")[0].splitlines()
    (row,) = [row for row in rows if row.startswith(f"| {env} |")]
    named = dict(zip(cells_of(head), cells_of(row), strict=True))
    figures = named.get("at the end", named["all seeds"])  # without that column, all seeds are those at the end
    return [float(number.replace(",", "")) for number in figures.split(", ")], named["budget"]


def dots(axes: Axes, rows: dict[str, list[float]], title: str, limits: tuple[float, float]) -> None:
    """A row of dots for each name, a dot for each seed."""
    axes.set_facecolor("none")
    for i, (name, values) in enumerate(rows.items()):
        spread = 0.12 * (np.arange(len(values)) % 3 - 1)
        axes.scatter(values, i + spread, s=46, color=COLOURS[i % 3], alpha=0.8, lw=0)
        axes.text(limits[0] - 0.02 * (limits[1] - limits[0]), i, name, color=GREY, size=9, ha="right", va="center")
    axes.set_title(title, color=GREY, size=10, loc="left", weight="bold")
    axes.set(xlim=limits, ylim=(len(rows) - 0.5, -0.5), yticks=[])
    axes.tick_params(colors=GREY, labelsize=8.5)
    axes.grid(color=GREY, alpha=0.25, lw=0.6, axis="x")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GREY)


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


def sac(path: Path) -> None:
    """SAC on Pendulum, while it trains."""
    steps, returns = read_sac()
    axes = canvas(9, 3.5)
    title = f"SAC on Pendulum-v1, mean return while it trains, {len(returns)} seeds and their range"
    plot(inset(axes, 0.75, 0.6, 7.85, 2.5), {"SAC": (steps, returns)}, title, (-1500, 0))
    save(axes, path)


def read_pong() -> dict[str, Curve]:
    """The evaluations of the runs of PPO on Pong."""
    curves: dict[str, Curve] = {}
    for goal in GOALS["PPO-Pong"].values():
        (run,) = stored(goal)
        points = np.array(run.evaluations)
        curves[goal.part or "its preset"] = points[:, 0], points[:, 1][None]
    return curves


def pong(path: Path) -> None:
    """PPO on Pong, while it trains."""
    axes = canvas(9, 3.0)
    title = "PPO on Pong: mean return of ten greedy games, one run each"
    plot(inset(axes, 0.75, 0.6, 7.85, 2.0), read_pong(), title, (-22, 22), "agent steps")
    save(axes, path)


def td3(path: Path) -> None:
    """What TD3 adds to DDPG, and the returns of both."""
    axes = canvas(9, 4.9)
    heading(axes, 0.1, 4.7, "TD3, without what is brown: DDPG")
    panel(axes, 0.1, 3.65, 1.5, 0.8, SLATE, "batch\nof replay")
    arrow(axes, (1.6, 3.65), (2.05, 3.65))
    panel(axes, 2.05, 4.0, 2.05, 0.55, MODULE, "target policy: a'", size=9)
    panel(axes, 2.05, 3.3, 2.05, 0.55, LEARNER, "+ target_noise, clipped", size=9)
    arrow(axes, (4.1, 3.65), (4.5, 3.65))
    panel(axes, 4.5, 4.0, 1.95, 0.55, MODULE, "target critic Q(s', a')", size=9)
    panel(axes, 4.5, 3.3, 1.95, 0.55, LEARNER, "a second one: the least", size=9)
    arrow(axes, (6.45, 3.65), (6.85, 3.65))
    panel(axes, 6.85, 4.0, 2.05, 0.55, MODULE, "critics: a step in each", size=9)
    panel(axes, 6.85, 3.3, 2.05, 0.55, LEARNER, "policy: in every second", size=9)
    for x, text in ((3.07, "target_noise=0.2"), (5.47, "num_critics=2"), (7.87, "policy_delay=2")):
        note(axes, x, 2.85, text)
    runs = {name: seeds_of(name, "Pendulum-v1") for name in ("TD3", "DDPG")}
    (budget,) = {budget for _, budget in runs.values()}
    title = f"Pendulum-v1, mean return after {budget} env steps, a dot for each seed"
    dots(inset(axes, 0.9, 0.4, 7.7, 1.6), {name: values for name, (values, _) in runs.items()}, title, (-250, -100))
    save(axes, path)


def offline(path: Path) -> None:
    """What three losses make of one data set."""
    page = (HERE.parent / "learning.md").read_text(encoding="utf-8")
    first = page.index("| Pendulum, replay:")
    rows = [cells_of(row) for row in page[first:].splitlines()[:3]]
    mean = float(rows[0][0].rpartition(", ")[2])
    found = {row[1].partition("]")[0].strip("["): [float(number) for number in row[2].split(", ")] for row in rows}
    axes = canvas(9, 3.1)
    place = inset(axes, 0.9, 0.4, 7.7, 2.0)
    dots(place, found, "Pendulum from a replay of 10,000 steps: mean return, a dot for each seed", (-800, 0))
    place.plot([mean, mean], [-0.5, 2.5], color=GREY, lw=1.4, ls=(0, (4, 3)))
    place.text(mean + 8, 2.3, "mean of the data", color=GREY, size=9, va="center")
    save(axes, path)


def learning(path: Path) -> None:
    """Returns of all seeds on two envs, from the tables of the page."""
    axes = canvas(9, 4.9)
    shown = [
        ("CartPole-v1", ["PPO", "A2C", "IMPALA", "APPO", "DQN", "SAC"], (0.0, 520.0), 2.75, 1.75),
        ("Pendulum-v1", ["PPO", "APPO", "SAC", "TD3", "DDPG"], (-300.0, -80.0), 0.35, 1.5),
    ]
    for env, names, limits, bottom, height in shown:
        runs = {name: seeds_of(name, env) for name in names}
        rows = {f"{name}, {budget} steps": values for name, (values, budget) in runs.items()}
        dots(
            inset(axes, 1.75, bottom, 6.95, height),
            rows,
            f"{env}, mean return at the end, a dot for each of five seeds",
            limits,
        )
    save(axes, path)


PICTURES = {
    "ppo": ppo,
    "a2c": a2c,
    "dqn": dqn,
    "recurrent": recurrent,
    "sac": sac,
    "pong": pong,
    "td3": td3,
    "offline": offline,
    "learning": learning,
    "hindsight": hindsight,
}

if __name__ == "__main__":
    draw_all(PICTURES)
