"""Learning curves of ours beside Stable-Baselines3's at equal settings: speed is nothing where the score is another.

    python -m benchmarks.peers.scores [--jobs cartpole pendulum cheetah] [--seeds 5] [--workers 2] [--write]
    python -m benchmarks.peers.scores --one ours cartpole 0     # one run: one line of JSON

PPO with the same nets, batches, minibatches, epochs and coefficients on both sides, actions clipped to their bounds and
nothing standardised but advantages: theirs per minibatch, ours over the batch. A curve is the mean return of the last
100 training episodes after each iteration. Every run is a process of its own with one torch thread. The score of a run
is the mean of its curve over the second half of the budget; two sides are alike if the means of their scores differ by
no more than two standard errors (Welch's). `--write` puts the table into `benchmarks/README.md` and draws the picture.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.jobs import JOBS, Job
from benchmarks.peers.run import OURS, PEERS, python_of
from benchmarks.run import README, ROOT, child, machine, write

PICTURE = ROOT / "docs" / "pictures" / "scores.png"


@dataclass(frozen=True)
class Course:
    """A job to learn, and for how many env steps."""

    title: str
    job: Job
    budget: int


COURSES = {
    "cartpole": Course("CartPole-v1", replace(JOBS["cartpole"], lr=1e-3), 150_000),
    "pendulum": Course(
        "Pendulum-v1",
        replace(JOBS["cheetah"], env_id="Pendulum-v1", minibatch_size=64, lr=1e-3, gamma=0.9),
        200_000,
    ),
    "cheetah": Course("HalfCheetah-v5", JOBS["cheetah"], 400_000),
}

Curve = tuple[list[int], list[float]]
"""Env steps, and the mean return of the last 100 episodes then."""


def ours(course: Course, seed: int) -> Curve:
    """One run of ours."""
    from benchmarks.ours_ppo import config

    steps, returns = list[int](), list[float]()
    with config(course.job, seed).build() as algorithm:
        while algorithm.env_steps < course.budget:
            result = algorithm.train()
            told = result["env_runners"].get("episode_return_mean")
            if told is not None and not math.isnan(told):
                steps.append(algorithm.env_steps)
                returns.append(float(told))
    return steps, returns


def sb3(course: Course, seed: int) -> Curve:
    """One run of theirs."""
    from importlib import import_module

    import torch

    from benchmarks.peers.sb3 import ppo

    torch.set_num_threads(1)
    steps, returns = list[int](), list[float]()

    class Noted(import_module("stable_baselines3.common.callbacks").BaseCallback):
        def _on_rollout_end(self) -> None:
            if episodes := [float(episode["r"]) for episode in self.model.ep_info_buffer]:
                steps.append(self.num_timesteps)
                returns.append(mean(episodes))

        def _on_step(self) -> bool:
            return True

    ppo(course.job, seed).learn(course.budget, callback=Noted())
    return steps, returns


RUNS: dict[str, Callable[[Course, int], Curve]] = {OURS: ours, "sb3": sb3}
SIDES = tuple(RUNS)


def score(curve: Curve, budget: int) -> float:
    """The mean of a curve over the second half of the budget."""
    return mean(told for steps, told in zip(*curve, strict=True) if steps > budget / 2)


@dataclass(frozen=True)
class Verdict:
    """What the scores of two sides, one per seed each, say of their means."""

    ours: Sequence[float]
    theirs: Sequence[float]

    @property
    def difference(self) -> float:
        """How much better ours is."""
        return mean(self.ours) - mean(self.theirs)

    @property
    def standard_error(self) -> float:
        """Of the difference, where neither side's spread is known."""
        return math.sqrt(sum(stdev(scores) ** 2 / len(scores) for scores in (self.ours, self.theirs)))

    @property
    def alike(self) -> bool:
        """Whether the difference may be chance."""
        return abs(self.difference) <= 2 * self.standard_error


def table(curves: Mapping[str, Mapping[str, Sequence[Curve]]]) -> str:
    """The scores of all jobs, by side and seed."""
    lines = ["| env | env steps | ours | SB3 | difference | within noise |", "| --- | --- | --- | --- | --- | --- |"]
    for job, sides in curves.items():
        course = COURSES[job]
        scores = {side: [score(curve, course.budget) for curve in sides[side]] for side in SIDES}
        told = [f"{mean(of):,.0f} ± {stdev(of):,.0f}" for of in scores.values()]
        verdict = Verdict(scores[OURS], scores["sb3"])
        cells = [course.title, f"{course.budget:,}", *told]
        cells += [f"{verdict.difference:+,.0f} ± {verdict.standard_error:,.0f}", "yes" if verdict.alike else "no"]
        lines.append("| " + " | ".join(cells) + " |")
    seeds = min(len(of) for sides in curves.values() for of in sides.values())
    return "\n".join(lines) + (
        f"\n\nMean return over the second half of the steps: mean and standard deviation of {seeds} seeds; of the "
        f"difference the standard error. {machine()}."
    )


def draw(curves: Mapping[str, Mapping[str, Sequence[Curve]]], path: Path) -> None:
    """The curves: for each side the mean of its seeds, and between the least and the most of them."""
    import matplotlib

    matplotlib.use("Agg")
    import numpy as np
    from matplotlib import pyplot as plt

    fig, axes = plt.subplots(1, len(curves), figsize=(3.6 * len(curves), 2.9), squeeze=False)
    for axis, (job, sides) in zip(axes[0], curves.items(), strict=True):
        for side, color in zip(SIDES, ("#1f77b4", "#ff9f4a"), strict=True):
            begin = max(steps[0] for steps, _ in sides[side])
            at = np.linspace(begin, COURSES[job].budget, 100)
            returns = np.stack([np.interp(at, *curve) for curve in sides[side]])
            axis.fill_between(at, returns.min(0), returns.max(0), color=color, alpha=0.2, linewidth=0)
            axis.plot(at, returns.mean(0), color=color, label="ours" if side == OURS else PEERS[side].name)
        axis.set_title(COURSES[job].title, fontsize=9)
        axis.tick_params(labelsize=7)
        axis.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1000:g}k")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].legend(fontsize=8, frameon=False)
    axes[0, 0].set_ylabel("return of the last 100 episodes", fontsize=8)
    fig.supxlabel("env steps", fontsize=8)
    fig.tight_layout()
    fig.savefig(path, dpi=150)
    plt.close(fig)


def measure(jobs: Sequence[str], seeds: int, workers: int, python: str, report: Callable[[], None]) -> dict[str, Any]:
    """The curves of all runs, by job and side; `python` is that of their environment."""
    pythons = {OURS: sys.executable, "sb3": python}

    def run(job: str, side: str, seed: int) -> Curve:
        told = child("-m", "benchmarks.peers.scores", "--one", side, job, str(seed), python=pythons[side])
        report()
        return told["steps"], told["returns"]

    with ThreadPoolExecutor(workers) as pool:
        runs = {
            (job, side, seed): pool.submit(run, job, side, seed)
            for job in jobs
            for seed in range(seeds)
            for side in SIDES
        }
        return {
            job: {side: [runs[job, side, seed].result() for seed in range(seeds)] for side in SIDES} for job in jobs
        }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", nargs="+", choices=list(COURSES), default=list(COURSES), help="default: all")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each side (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="write the table and the picture")
    parser.add_argument("--one", nargs=3, metavar=("SIDE", "JOB", "SEED"), help="one run, for its own process")
    args = parser.parse_args()
    if args.one is not None:
        side, job, seed = args.one
        steps, returns = RUNS[side](COURSES[job], int(seed))
        print(json.dumps({"steps": steps, "returns": [round(told, 2) for told in returns]}))
        return
    if args.seeds < 2 or (args.write and (args.seeds < 5 or set(args.jobs) != set(COURSES))):
        parser.error("--seeds must be at least 2; --write takes all jobs and at least 5 seeds")
    console = Console()
    python = python_of("sb3", console)
    if python is None:
        raise SystemExit("without Stable-Baselines3 there is nothing to compare with")
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=2 * args.seeds * len(args.jobs))
        curves = measure(args.jobs, args.seeds, args.workers, python, lambda: progress.advance(task))
    console.print(table(curves), highlight=False, markup=False, soft_wrap=True)
    if args.write:
        write(table(curves), README, "scores")
        draw(curves, PICTURE)
        console.print(f"written to {README} and {PICTURE}", highlight=False)


if __name__ == "__main__":
    main()
