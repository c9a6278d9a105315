"""Draw the pictures of the pages about machines and tests. Run it as ``python docs/pictures/machines.py``.

gpu.png, feature-matrix.png and zoo.png show what stands in the tables of their pages and in the films of ``zoo/``.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from drawing import (
    CATALOG,
    GREY,
    HERE,
    LEARNER,
    MODULE,
    RUNNER,
    SLATE,
    WRONG,
    arrow,
    bar,
    canvas,
    draw_all,
    heading,
    note,
    panel,
    save,
)
from PIL import Image

DOCS = HERE.parent


def table_of(page: str, first: str) -> list[list[str]]:
    """The rows of the table in ``page`` whose head begins with ``first``, without marks of links and footnotes."""
    text = (DOCS / page).read_text(encoding="utf-8")
    lines = text[text.index(f"\n| {first}") + 1 :].partition("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in lines]
    return [
        [re.sub(r"\[\^\w+\]|\[([^\]]*)\]\([^)]*\)|\*\*", r"\1", cell) for cell in row]
        for row in cells
        if row[1][:2] != "--"
    ]


def cluster(path: Path) -> None:
    """Which processes are on which of two machines, and who may come in."""
    axes = canvas(9, 4.1)
    panel(axes, 0.1, 2.05, 8.8, 3.9, "")
    note(axes, 4.5, 3.82, "one trusted zone: a firewall or VPN around it, RAY_AUTH_MODE=token inside")
    for left, name, start in (
        (0.35, "machine 1: 10.0.0.1", "ray start --head"),
        (4.75, "machine 2", "ray start --address=10.0.0.1:6379"),
    ):
        panel(axes, left, 1.95, 3.9, 3.3, "")
        heading(axes, left + 0.15, 3.38, name)
        axes.text(left + 0.15, 3.1, start, color=GREY, size=8.5, va="center", family="monospace")
    panel(axes, 0.5, 2.35, 3.6, 0.8, CATALOG, "your script, with RAY_ADDRESS\ntrain(), evaluations, all files", size=9)
    for left in (0.5, 4.9):
        panel(axes, left, 1.25, 1.7, 0.6, RUNNER, "env runner")
        panel(axes, left + 1.9, 1.25, 1.7, 0.6, LEARNER, "learner")
    panel(axes, 4.9, 2.35, 3.6, 0.8, MODULE, "no shared disk is needed;\nthe same Python and packages are", size=9)
    arrow(axes, (1.35, 1.95), (1.35, 1.55))
    arrow(axes, (3.25, 1.95), (3.25, 1.55))
    arrow(axes, (4.1, 2.15), (5.1, 1.55))
    arrow(axes, (3.3, 0.93), (7.6, 0.93), bend=0.15)
    arrow(axes, (7.6, 0.93), (3.3, 0.93), bend=-0.15)
    note(axes, 5.45, 0.44, "gradients")
    note(axes, 4.5, 2.35, "work")
    save(axes, path)


def gpu(path: Path) -> None:
    """The table of docs/gpu.md: rows per second, on a log scale."""
    head, *rows = table_of("gpu.md", "| 84")
    axes = canvas(9, 4.7)
    titles = [
        "images, CNN\nminibatches of 256",
        "vectors, 8 envs\nminibatches of 64",
        "vectors, 4,096 envs\nminibatches of 8,192",
    ]
    assert len(head) == 1 + len(titles)
    shown = [row for row in rows if not row[0].startswith(("GPU, bfloat16", "a bare", "the bare"))]
    low, high, width = 3.5, 7.0, 2.1
    for column, title in enumerate(titles):
        left = 2.3 + 2.25 * column
        note(axes, left + width / 2, 4.4, title)
        for i, row in enumerate(shown):
            y = 3.8 - 0.62 * i
            if column == 0:
                note(axes, 2.2, y, row[0], "right")
            if not (text := row[column + 1]):
                continue
            share = (np.log10(float(text.replace(",", ""))) - low) / (high - low)
            colour = SLATE if row[0].startswith("CPU") else RUNNER if "graphs" in row[0] else MODULE
            bar(axes, left, y - 0.22, max(share, 0.02) * width, 0.44, colour)
            inside = share > 0.42
            x = left + share * width + (-0.06 if inside else 0.06)
            axes.text(
                x, y, text, color="white" if inside else GREY, size=9, ha="right" if inside else "left", va="center"
            )
    note(
        axes,
        2.3,
        0.2,
        "rows per second of PPO's learner, on a log scale: an NVIDIA H200, and 16 cores of a Xeon",
        "left",
    )
    save(axes, path)


def reliability(path: Path) -> None:
    """Two runners of which one is killed: what each does, and what is counted."""
    axes = canvas(9, 3.3)
    for y, name in ((2.6, "runner 0"), (1.9, "runner 1"), (1.1, "training")):
        note(axes, 0.85, y, name, "right")
    for i in range(8):
        panel(axes, 0.95 + 0.98 * i, 2.6, 0.92, 0.44, RUNNER, "fragment", size=8.5)
    for i in (0, 1, 6, 7):
        panel(axes, 0.95 + 0.98 * i, 1.9, 0.92, 0.44, RUNNER, "fragment", size=8.5)
    panel(axes, 2.91, 1.9, 0.45, 0.44, WRONG, "kill", size=8.5)
    panel(axes, 3.42, 1.9, 3.35, 0.44, "", "a new process in 2.4–3.6 s", size=9)
    for i in range(8):
        both = i in (0, 1, 6, 7)
        panel(axes, 0.95 + 0.98 * i, 1.1, 0.92, 0.44 if both else 0.3, LEARNER, "0 + 1" if both else "0", size=8.5)
    arrow(axes, (3.13, 1.65), (3.13, 0.55))
    note(axes, 3.13, 0.4, "num_env_steps_lost_by_cause: runner_died, exactly counted", "left")
    arrow(axes, (0.95, 3.1), (8.8, 3.1))
    note(axes, 0.85, 3.1, "time", "right")
    save(axes, path)


def tested(path: Path) -> None:
    """How a test finds numbers that leak: the same update with NaN in all places that belong to no step."""
    axes = canvas(9, 3.7)
    episode = "▸...■ ▸..‖   "
    for y, name, fill in ((2.95, "an update", "0"), (1.75, "the same, spoilt", "NaN")):
        heading(axes, 0.1, y + 0.45, name)
        colour = MODULE
        for t, sign in enumerate(episode):
            left = 0.1 + 0.44 * t
            if sign == " ":
                panel(axes, left, y, 0.4, 0.44, WRONG if fill == "NaN" else GREY, fill, size=8)
                continue
            colour = RUNNER if t > 4 else MODULE
            panel(axes, left, y, 0.4, 0.44, colour, sign.strip("."), size=10)
        arrow(axes, (5.85, y), (6.35, y))
        panel(axes, 6.35, y, 2.5, 0.6, LEARNER, "gradients, weights,\nstatistics, metrics", size=9)
    arrow(axes, (7.2, 2.65), (7.2, 2.05))
    arrow(axes, (7.2, 2.05), (7.2, 2.65))
    note(axes, 8.15, 2.35, "equal, to 1e-10\nof the largest")
    note(
        axes,
        0.1,
        1.15,
        "padding, rows that only reset, observations after an end, memories of an earlier episode",
        "left",
    )
    panel(
        axes,
        0.1,
        0.5,
        8.75,
        0.62,
        SLATE,
        "for each algorithm, with LSTM, GRU, attention, n-step windows, priorities, atoms, …",
        size=9,
    )
    save(axes, path)


SHOTS = {
    "ppo-cartpole": "CartPole-v1",
    "a2c-acrobot": "Acrobot-v1",
    "td3-pendulum": "Pendulum-v1",
    "dqn-mountaincar": "MountainCar-v0",
    "qr-dqn-lunarlander": "LunarLander-v3",
    "ppo-simple-spread": "simple_spread_v3",
    "ppo-taxi": "Taxi",
    "ppo-mountaincar-continuous": "MountainCarContinuous-v0",
}
"""Policy of the zoo → the env that its film shows."""


def zoo(path: Path) -> None:
    """A frame from the middle of each film."""
    axes = canvas(9, 5.0)
    for i, (name, env) in enumerate(SHOTS.items()):
        left, bottom = 0.1 + 2.24 * (i % 4), 3.0 - 2.45 * (i // 4)
        film: Any = Image.open(HERE.parents[1] / "zoo" / name / "episode.gif")
        with film:
            film.seek(film.n_frames // 2)
            frame = np.asarray(film.convert("RGB"))
        tall, wide = frame.shape[:2]
        scale = min(2.08 / wide, 1.55 / tall)
        middle, top = left + 1.04, bottom + 1.85
        axes.imshow(
            frame,
            extent=(middle - wide * scale / 2, middle + wide * scale / 2, top - tall * scale, top),
            aspect="auto",
            interpolation="antialiased",
        )
        panel(axes, left, bottom + 0.08, 2.08, 0.36, MODULE, name, size=8)
        note(axes, middle, bottom - 0.22, env)
    axes.set(xlim=(0, 9), ylim=(0, 5.0))
    save(axes, path)


def feature_matrix(path: Path) -> None:
    """The table of algorithms of docs/feature-matrix.md."""
    head, *rows = table_of("feature-matrix.md", " | [Discrete]")
    axes = canvas(9, 4.45)
    for j, name in enumerate(head[1:]):
        axes.text(1.33 + 0.71 * j, 3.35, name, color=GREY, size=9.5, rotation=38, ha="left", va="bottom")
    for i, (algo, *cells) in enumerate(rows):
        y = 3.1 - 0.4 * i
        heading(axes, 0.95, y, algo, "right")
        for j, cell in enumerate(cells):
            panel(axes, 1.1 + 0.71 * j, y, 0.65, 0.34, RUNNER if cell == "✓" else WRONG, cell, size=10)
    save(axes, path)


def data(path: Path) -> None:
    """How arrays become episodes, and what follows each end."""
    axes = canvas(9, 3.9)
    heading(axes, 0.1, 3.65, "arrays, a row per step, end to end")
    ends = {5: "■", 9: "‖", 14: "■"}
    for y, name in ((3.15, "observations"), (2.75, "actions"), (2.35, "rewards"), (1.95, "ends")):
        note(axes, 1.25, y, name, "right")
        episode = 0
        for t in range(15):
            sign = ends.get(t, "") if name == "ends" else ""
            panel(axes, 1.35 + 0.5 * t, y, 0.46, 0.34, (MODULE, RUNNER, CATALOG)[episode], sign)
            episode += t in ends
    for x, text in (
        (3.95, "■ terminals: nothing follows,\nso its future is worth 0"),
        (6.45, "‖ timeouts: the next\nobservation's value counts"),
    ):
        note(axes, x, 1.45, text)
    note(axes, 0.1, 1.45, "Dataset.from_arrays,\nfrom_table, from_hdf5, load", "left")
    users = [
        (0.1, LEARNER, "BC, MARWIL", "make its actions likely"),
        (2.35, LEARNER, "IQL", "learns what they are worth"),
        (4.6, LEARNER, "DQN, SAC, TD3, DDPG", "data_share of each batch"),
        (6.85, SLATE, "filter, best, describe", "choose, look"),
    ]
    for left, colour, name, what in users:
        arrow(axes, (left + 1.02, 1.15), (left + 1.02, 0.85))
        panel(axes, left, 0.5, 2.05, 0.66, colour, f"{name}\n{what}", size=9)
    save(axes, path)


PICTURES = {
    "cluster": cluster,
    "gpu": gpu,
    "reliability": reliability,
    "tested": tested,
    "zoo": zoo,
    "feature-matrix": feature_matrix,
    "data": data,
}

if __name__ == "__main__":
    draw_all(PICTURES)
