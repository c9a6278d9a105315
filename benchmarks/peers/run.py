"""Measure our speed and that of other libraries doing the same jobs, in one run on one machine.

    python -m benchmarks.peers.run [--jobs cartpole cheetah lstm dqn pong learners agents-shared agents-own agents-100
                                           sac-pendulum sac-cheetah td3-pendulum td3-cheetah carts replay-adding
                                           replay-uniform replay-prioritized import]
                                   [--peers sb3 rllib tianshou torchrl cleanrl rsl_rl] [--repeats 5] [--write]

Each peer lives in a virtual environment of its own under `.peers/`, made here from the pinned versions in
`requirements/`; one that cannot be installed, or that fails in a job, is reported and left out. Ours, the bare loop and
all peers run in turn, each time in a fresh process, so that a slow minute of the machine hits all. A ratio is the
median of the ratios of neighbours. `--write` keeps the figures of the jobs that were run in `results.json`, and puts
the table of all that is kept there into `benchmarks/README.md` and the picture into `docs/pictures`.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.run import README, TIME_IMPORT, child, machine, write
from benchmarks.tables import AGENTS, ROOT, SPEED, digest, typed

HOMES = ROOT / ".peers"
KEPT = Path(__file__).with_name("results.json")
PICTURE = ROOT / "docs" / "pictures" / "peers.png"
IN_A_ROW = 3  # panels of the picture
OURS, BARE = "ours", "bare"


@dataclass(frozen=True)
class Peer:
    """A library: what it is called, its script and what importing its PPO takes; None if nobody imports it."""

    name: str
    imports: str | None
    marks: tuple[str, ...]  # the versions to tell, as in its requirements


PEERS = {
    "sb3": Peer("SB3", "from stable_baselines3 import PPO", ("stable-baselines3", "sb3-contrib")),
    "rllib": Peer("RLlib", "from ray.rllib.algorithms.ppo import PPOConfig", ("ray",)),
    "tianshou": Peer("Tianshou", "from tianshou.algorithm import PPO", ("tianshou",)),
    "torchrl": Peer("TorchRL", "from torchrl.objectives import ClipPPOLoss", ("torchrl",)),
    "cleanrl": Peer("CleanRL's loop", None, ()),
    "rsl_rl": Peer("rsl_rl", None, ("rsl-rl-lib",)),
}


@dataclass(frozen=True)
class Contest:
    """A job, env steps per run and side, and the floors for the ratios of ours over theirs, by side.

    Slow sides take fewer steps: enough for some seconds after the warm-up. Jobs of buffers take so many seconds.
    """

    title: str
    steps: dict[str, int]
    ours: str = "ours_ppo"
    bare: str | None = "bare_ppo"
    floors: dict[str, float] = field(default_factory=dict)
    replay: str | None = None  # what `peers.replay` measures, if this is a job of buffers
    result: str = "steps_per_s"  # which of the figures that a run prints


def _steps(ours: int, **others: int) -> dict[str, int]:
    return {OURS: ours, **others}


def _replay(title: str, what: str, sides: str, **floors: float) -> Contest:
    return Contest(title, dict.fromkeys(sides.split(), 0), floors=floors, replay=what, result="per_s")


CONTESTS = {
    "cartpole": Contest(
        "PPO CartPole",
        _steps(60_000, bare=60_000, sb3=30_000, rllib=14_000, tianshou=14_000, torchrl=8_000, cleanrl=30_000),
        floors={BARE: 0.9, "rllib": 4.0, "sb3": 1.8},
    ),
    "cheetah": Contest(
        "PPO HalfCheetah",
        _steps(30_000, bare=30_000, sb3=20_000, rllib=14_000, tianshou=14_000, torchrl=10_000, cleanrl=20_000),
        floors={BARE: 0.9, "rllib": 2.0, "sb3": 1.1},
    ),
    "lstm": Contest(
        "PPO LSTM CartPole",
        _steps(60_000, bare=60_000, sb3=8_000, rllib=12_000),
        bare="bare_lstm",
        floors={BARE: 0.7, "rllib": 3.5},
    ),
    "dqn": Contest(
        "DQN CartPole",
        _steps(30_000, bare=30_000, sb3=20_000, rllib=4_000, tianshou=8_000, torchrl=6_000, cleanrl=20_000),
        ours="ours_dqn",
        bare="bare_dqn",
        floors={BARE: 0.9, "rllib": 20.0, "sb3": 1.15},
    ),
    "pong": Contest(
        "PPO Pong, pixels",
        _steps(5_000, bare=5_000, sb3=5_000, rllib=5_000),
        bare="bare_pong",
        floors={"sb3": 1.3, "rllib": 1.3},
    ),
    # per second of CPU time
    "carts": Contest(
        "PPO, 4,096 CartPoles in one tensor",
        _steps(700_000, bare=700_000, rsl_rl=700_000),
        ours="ours_tensors",
        bare="bare_tensors",
        floors={BARE: 0.97, "rsl_rl": 1.0},
    ),
    "learners": Contest(
        "PPO CartPole, 2 learners",
        _steps(60_000, rllib=20_000),
        bare=None,
        floors={"rllib": 3.0},
    ),
    # as many steps of both: the better the agents are, the more of them act in an env step
    "agents-shared": Contest(
        "PPO CartPole, 4 agents, one module",
        _steps(30_000, rllib=30_000),
        bare=None,
        floors={"rllib": 5.0},
    ),
    "agents-own": Contest(
        "PPO CartPole, 4 agents, 4 modules",
        _steps(30_000, rllib=30_000),
        bare=None,
        floors={"rllib": 5.0},
    ),
    "agents-100": Contest(
        "PPO CartPole, 100 agents, one module",
        _steps(3_000, rllib=3_000),
        bare=None,
    ),
    **{
        f"{algorithm}{mode}": Contest(
            f"{algorithm.upper()} CartPole, 1 runner{where}",
            _steps(200_000, rllib=30_000),
            ours="ours_stream",
            bare=None,
            floors={"rllib": 3.0},
        )
        for algorithm in ("impala", "appo")
        for mode, where in (("", ""), ("-learner", ", 1 learner"))
    },
    **{
        f"{algo}-{env}": Contest(
            f"{algo.upper()} {name}",
            _steps(4_000, bare=4_000, sb3=4_000),
            ours=f"ours_{algo}",
            bare=f"bare_{algo}",
            floors={BARE: 0.95, "sb3": 1.15},
        )
        for algo in ("sac", "td3")
        for env, name in (("pendulum", "Pendulum"), ("cheetah", "HalfCheetah"))
    },
    "replay-adding": _replay("replay: transitions added", "adding", "ours bare sb3 rllib tianshou torchrl", sb3=1.0),
    "replay-uniform": _replay("replay: batches", "uniform", "ours bare sb3 rllib tianshou torchrl", sb3=1.0),
    "replay-prioritized": _replay("replay: prioritized batches", "prioritized", "ours rllib tianshou torchrl"),
    "import": Contest(
        "import of PPO, s",
        dict.fromkeys([OURS, *(p for p in PEERS if PEERS[p].imports)], 0),
        bare=None,
        result="s",
    ),
}

Figures = dict[str, list[float]]
"""Side → one figure per repeat: steps per second, or seconds of an import."""


def python_of(peer: str, console: Console) -> str | None:
    """The interpreter of a peer's environment, which is made if there is none; None if that fails, after saying why."""
    home = HOMES / peer
    python, wanted = home / "bin" / "python", Path(__file__).parent / "requirements" / f"{peer}.txt"
    stamp = home / ".installed"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted.read_text(encoding="utf-8"):
        return str(python)
    console.print(f"{PEERS[peer].name}: making {home}", highlight=False)
    for command in (
        [sys.executable, "-m", "venv", str(home)],
        [str(python), "-m", "pip", "install", "-r", str(wanted)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            tail = "\n".join(done.stderr.strip().splitlines()[-5:])
            console.print(
                f"{PEERS[peer].name} is left out, since `{' '.join(command)}` failed:\n{tail}", highlight=False
            )
            return None
    stamp.write_text(wanted.read_text(encoding="utf-8"), encoding="utf-8")
    return str(python)


def sides_of(job: str, pythons: dict[str, str]) -> Iterator[tuple[str, str, list[str]]]:
    """Each side of a job: what it is called, its interpreter, and the arguments of one run."""
    contest = CONTESTS[job]
    for side, steps in contest.steps.items():
        if side not in (OURS, BARE, *pythons):
            continue
        python = pythons.get(side, sys.executable)
        if job == "import":
            imports = "from algorithms.ppo import PPOConfig" if side == OURS else PEERS[side].imports
            assert imports is not None
            yield side, python, ["-c", TIME_IMPORT.format(imports)]
            continue
        if contest.replay is not None:
            yield side, python, ["-m", "benchmarks.peers.replay", side, contest.replay]
            continue
        own = {OURS: contest.ours, BARE: contest.bare}
        script = f"benchmarks.{own.get(side, f'peers.{side}')}"
        yield side, python, ["-m", script, job, str(steps)]


def sources(job: str) -> tuple[str, ...]:
    """The files and folders that the figures of a job depend on, with the versions of the peers."""
    contest = CONTESTS[job]
    peers = [side for side in contest.steps if side in PEERS]
    scripts = [contest.ours, *([contest.bare] if contest.bare else []), *(f"peers/{peer}" for peer in peers)]
    if contest.replay is not None:
        scripts = ["peers/replay"]
    code = ["algorithms/ppo"] if job == "import" else [f"benchmarks/{script}.py" for script in scripts]
    pinned = [f"benchmarks/peers/requirements/{peer}.txt" for peer in peers]
    return *code, *pinned, *SPEED, *(AGENTS if job.startswith("agents") else ())


def kept() -> dict[str, Any]:
    """Job → its figures, and how and where they were measured."""
    return json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}


def measure(job: str, pythons: dict[str, str], repeats: int, report: Any) -> Figures:
    """All sides of a job in turn; one that fails is reported, and left out from then on."""
    figures: Figures = {}
    sides = [*sides_of(job, pythons)]
    for _ in range(repeats):
        for side, python, args in list(sides):
            try:
                result = child(*args, python=python)
            except SystemExit as error:
                if side in (OURS, BARE):
                    raise
                sides = [one for one in sides if one[0] != side]
                figures.pop(side, None)
                report(f"{job}: {side} is left out. {error}")
                continue
            figures.setdefault(side, []).append(result[CONTESTS[job].result])
            report(f"{job}: {side} {figures[side][-1]:,.2f}")
    return figures


def versions() -> str:
    """What the peers are, in one line."""
    reported = []
    for peer, it in PEERS.items():
        pinned = (Path(__file__).parent / "requirements" / f"{peer}.txt").read_text(encoding="utf-8")
        for mark in it.marks:
            found = re.search(rf"^{re.escape(mark)}(?:\[.*\])?==(\S+)$", pinned, re.MULTILINE)
            reported.append(f"{mark} {found[1] if found else '?'}")
    return ", ".join(reported)


def ratio(ours: list[float], theirs: list[float], job: str) -> float:
    """How many times as fast as theirs ours is: the median over neighbours."""
    pairs = zip(ours, theirs, strict=True)
    return median(b / a if job == "import" else a / b for a, b in pairs)


def table(kept: dict[str, Any]) -> str:
    """What is kept, as the table for the README."""
    sides = [OURS, BARE, *PEERS]
    names = ["ours", "bare loop", *(peer.name for peer in PEERS.values())]
    lines = ["| job | " + " | ".join(names) + " | floors |", "| --- " * (len(names) + 2) + "|"]
    for job, contest in CONTESTS.items():
        if job not in kept:
            continue
        figures: Figures = kept[job]["figures"]
        cells = []
        for side in sides:
            if side not in figures:
                cells.append("–")
                continue
            middle = median(figures[side])
            text = f"{middle:.2f}" if job == "import" else f"{middle:,.0f}"
            compared = side != OURS and OURS in figures
            cells.append(text + (f" ({ratio(figures[OURS], figures[side], job):.2f} ×)" if compared else ""))
        reached = []
        for side, floor in contest.floors.items():
            if side in figures:
                name = "bare" if side == BARE else PEERS[side].name
                verdict = "not measured yet"
                if OURS in figures:
                    verdict = "yes" if ratio(figures[OURS], figures[side], job) >= floor else "no"
                reached.append(f"{name} {floor:g}: {verdict}")
        lines.append(f"| {contest.title} | " + " | ".join(cells) + f" | {'; '.join(reached) or '–'} |")
    reported = sorted({kept[job]["machine"] for job in CONTESTS if job in kept})
    repeats = min(len(of) for job in CONTESTS if job in kept for of in kept[job]["figures"].values())
    return "\n".join(lines) + (
        f"\n\nPer second: env steps, or what a row counts; an import in seconds. Medians of at least {repeats} "
        f"alternating runs; in brackets how many times as fast ours is, the median of neighbours. "
        f"{'; '.join(reported)}. Peers: {versions()}."
    )


def draw(kept: dict[str, Any]) -> None:
    """The speed of each library as a fraction of ours, as bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    jobs = [job for job in CONTESTS if job in kept and OURS in kept[job]["figures"] and job != "import"]
    if not jobs:
        return
    rows = -(-len(jobs) // IN_A_ROW)
    fig, axes = plt.subplots(rows, IN_A_ROW, figsize=(2.4 * IN_A_ROW, 2.0 * rows), sharex=True, squeeze=False)
    for axis in axes.flat[len(jobs) :]:
        axis.axis("off")
    for axis, job in zip(axes.flat, jobs, strict=False):
        figures: Figures = kept[job]["figures"]
        sides = [side for side in (OURS, *PEERS) if side in figures]
        heights = [1 / ratio(figures[OURS], figures[side], job) for side in sides]
        names = ["ours" if s == OURS else PEERS[s].name for s in sides]
        colors = ["#1f77b4" if s == OURS else "#ff9f4a" for s in sides]
        bars = axis.barh(names[::-1], heights[::-1], color=colors[::-1])
        axis.bar_label(bars, [f"{height:.2f}" for height in heights[::-1]], fontsize=7, padding=2)
        axis.set_title(textwrap.fill(CONTESTS[job].title, 24), fontsize=9)
        axis.tick_params(labelsize=7)
        axis.set_xlim(0, 1.45)
        axis.set_ylim(len(sides) - 6.5, len(sides) - 0.5)  # so that all bars are as thick
        axis.spines[["top", "right"]].set_visible(False)
    fig.supxlabel("speed, as a fraction of ours", fontsize=8)
    fig.tight_layout()
    fig.savefig(PICTURE, dpi=150)
    plt.close(fig)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", nargs="+", choices=list(CONTESTS), default=list(CONTESTS), help="default: all")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), default=list(PEERS), help="default: all")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each side (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="keep the figures, and write the table and the picture")
    args = parser.parse_args()
    sides = {side for job in args.jobs for side in CONTESTS[job].steps}
    if args.repeats < 1 or (args.write and (args.repeats < 5 or not sides & set(PEERS) <= set(args.peers))):
        parser.error("--repeats must be at least 1; --write takes all peers of the jobs and at least 5 repeats")
    console = Console()
    pythons = {peer: python for peer in args.peers if (python := python_of(peer, console)) is not None}
    found = kept()
    os.environ.setdefault("PYTHONWARNINGS", "ignore")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        total = args.repeats * sum(len([*sides_of(job, pythons)]) for job in args.jobs)
        task = progress.add_task("starting", total=total)

        def report(text: str) -> None:
            progress.update(task, advance=1, description=text.splitlines()[0])
            if not console.is_terminal or "left out" in text:
                console.print(text, highlight=False, markup=False, soft_wrap=True)

        for job in args.jobs:
            origin = {"command": typed(), "code": digest(sources(job))}  # of the code that the measurement begins with
            found[job] = {"machine": machine(), **origin, "figures": measure(job, pythons, args.repeats, report)}
            if args.write:
                KEPT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    console.print(table(found), highlight=False, markup=False, soft_wrap=True)
    if args.write:
        write(table(found), README, "peers")
        draw(found)
        console.print(f"written to {README} and {PICTURE}", highlight=False)


if __name__ == "__main__":
    main()
