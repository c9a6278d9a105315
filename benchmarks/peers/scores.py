"""Learning curves of ours next to Stable-Baselines3's at equal settings: speed is nothing where the score is another.

    python -m benchmarks.peers.scores [--jobs cartpole pendulum cheetah] [--seeds 5] [--workers 2] [--write]
    python -m benchmarks.peers.scores --jobs sac-pendulum sac-cheetah --write
    python -m benchmarks.peers.scores --one ours cartpole 0     # one run: one line of JSON

PPO with the same nets, batches, minibatches, epochs and coefficients on both sides, actions clipped to their bounds and
nothing standardised but advantages: theirs per minibatch, ours over the batch. SAC with the published settings on both
sides. A curve is the mean return of the last 100 training episodes after each iteration. Every run is a process of its
own with one torch thread. The score of a run is the mean of its curve over the second half of the budget; two sides are
alike if the means of their scores differ by no more than two standard errors (Welch's). `--write` puts the tables whose
jobs are all chosen into `benchmarks/README.md` and draws their pictures.

Each run that ends is added to `benchmarks/peers/curves.jsonl`, and is not repeated. `--stale` makes those runs again
that were made with other code than today's or before digests of it were kept, as `python -m benchmarks.tables` lists
them. The last line of a run counts.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.jobs import JOBS, SAC_JOBS, Job, SACJob
from benchmarks.peers.run import OURS, PEERS, python_of
from benchmarks.run import README, child, machine, write
from benchmarks.tables import COMPUTING, FEWEST_FOR_INTERVAL, ROOT, SAMPLING, digest, typed

RUNS_KEPT = ROOT / "benchmarks" / "peers" / "curves.jsonl"
"""Every run that has ended, a line of JSON each: what it depends on, its curve, and where it ran."""


@dataclass(frozen=True)
class Course:
    """A job to learn, for how many env steps, and with how many seeds at most."""

    title: str
    job: Job | SACJob
    budget: int
    most_seeds: int = 5


COURSES = {
    "cartpole": Course("CartPole-v1", replace(JOBS["cartpole"], lr=1e-3), 150_000),
    "pendulum": Course(
        "Pendulum-v1",
        replace(JOBS["cheetah"], env_id="Pendulum-v1", minibatch_size=64, lr=1e-3, gamma=0.9),
        200_000,
    ),
    "cheetah": Course("HalfCheetah-v5", JOBS["cheetah"], 400_000),
    "sac-pendulum": Course("Pendulum-v1", replace(SAC_JOBS["sac-pendulum-1"], capacity=1_000_000), 20_000),
    "sac-cheetah": Course(
        "HalfCheetah-v5",
        replace(SAC_JOBS["sac-cheetah-1"], capacity=1_000_000, learning_starts=10_000),
        100_000,
        most_seeds=2,
    ),
}
TABLES = {"scores": ("cartpole", "pendulum", "cheetah"), "scores-sac": ("sac-pendulum", "sac-cheetah")}
"""Table and picture → its jobs."""
POINT = 500
"""Env steps between two points of a curve, at least."""

Curve = tuple[list[int], list[float]]
"""Env steps, and the mean return of the last 100 episodes then."""


def ours(course: Course, seed: int) -> Curve:
    """One run of ours."""
    from benchmarks import ours_ppo, ours_sac

    steps, returns, job = list[int](), list[float](), course.job
    config = ours_sac.config(job, seed) if isinstance(job, SACJob) else ours_ppo.config(job, seed)
    with config.build() as algorithm:
        while algorithm.env_steps < course.budget:
            result = algorithm.train()
            reported = result["env_runners"].get("episode_return_mean")
            if reported is not None and not math.isnan(reported):
                steps.append(algorithm.env_steps)
                returns.append(float(reported))
    return steps, returns


def sb3(course: Course, seed: int) -> Curve:
    """One run of theirs."""
    from importlib import import_module

    import torch

    from benchmarks.peers.sb3 import ppo, sac_or_td3

    torch.set_num_threads(1)
    job = course.job
    steps, returns = list[int](), list[float]()

    class Noted(import_module("stable_baselines3.common.callbacks").BaseCallback):
        def _on_rollout_end(self) -> None:
            if self.num_timesteps - (steps or [0])[-1] < POINT:  # SAC's rollouts are a step each
                return
            if episodes := [float(episode["r"]) for episode in self.model.ep_info_buffer]:
                steps.append(self.num_timesteps)
                returns.append(mean(episodes))

        def _on_step(self) -> bool:
            return True

    model = sac_or_td3(job, seed) if isinstance(job, SACJob) else ppo(job, seed)
    model.learn(course.budget, callback=Noted())
    return steps, returns


RUNS: dict[str, Callable[[Course, int], Curve]] = {OURS: ours, "sb3": sb3}
SIDES = tuple(RUNS)


def score(curve: Curve, budget: int) -> float:
    """The mean of a curve over the second half of the budget."""
    return mean(reported for steps, reported in zip(*curve, strict=True) if steps > budget / 2)


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


def table(curves: Mapping[str, Mapping[str, Sequence[Curve]]], where: str) -> str:
    """The scores of all jobs, by side and seed, and `where` they ran."""
    lines = ["| env | env steps | ours | SB3 | difference | within noise |", "| --- | --- | --- | --- | --- | --- |"]
    for job, sides in curves.items():
        course = COURSES[job]
        scores = {side: [score(curve, course.budget) for curve in sides[side]] for side in SIDES}
        verdict = Verdict(scores[OURS], scores["sb3"])
        if min(map(len, scores.values())) < FEWEST_FOR_INTERVAL:
            reported = [", ".join(f"{found:,.0f}" for found in of) for of in scores.values()]
            compared = [f"{verdict.difference:+,.0f}", "–"]
        else:
            reported = [f"{mean(of):,.0f} ± {stdev(of):,.0f}" for of in scores.values()]
            compared = [f"{verdict.difference:+,.0f} ± {verdict.standard_error:,.0f}", "yes" if verdict.alike else "no"]
        cells = [course.title, f"{course.budget:,}", *reported, *compared]
        lines.append("| " + " | ".join(cells) + " |")
    seeds = sorted({len(of) for sides in curves.values() for of in sides.values()})
    few = f", of fewer than {FEWEST_FOR_INTERVAL} each one" if seeds[0] < FEWEST_FOR_INTERVAL else ""
    return "\n".join(lines) + (
        f"\n\nMean return over the second half of the steps: mean and standard deviation of "
        f"{' or '.join(map(str, seeds))} seeds{few}; of the difference the standard error. {where}."
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


def _key(job: str, side: str, seed: int) -> str:
    """All that a run depends on, as text."""
    course = COURSES[job]
    return json.dumps([asdict(course.job), course.budget, side, seed])


def sources(job: str) -> tuple[str, ...]:
    """The files and folders that the curves of a job depend on, with the versions of the other side."""
    ours = "ours_sac" if isinstance(COURSES[job].job, SACJob) else "ours_ppo"
    theirs = "benchmarks/peers/sb3.py", "benchmarks/peers/requirements/sb3.txt"
    return f"benchmarks/{ours}.py", *theirs, *COMPUTING, *SAMPLING


def kept() -> dict[str, dict[str, Any]]:
    """The runs that have ended, by key."""
    lines = RUNS_KEPT.read_text(encoding="utf-8").splitlines() if RUNS_KEPT.exists() else []
    return {json.dumps(run.pop("of")): run for run in map(json.loads, lines)}


def measure(
    jobs: Sequence[str], seeds: int, workers: int, python: str, report: Callable[[], None], stale: bool = False
) -> dict[str, dict[str, list[Curve]]]:
    """The curves of all runs, by job and side, of which those that are kept are not repeated; `python` is that of their
    environment. `stale` repeats those of other code than today's."""
    pythons, known = {OURS: sys.executable, "sb3": python}, kept()

    def run(job: str, side: str, seed: int) -> Curve:
        key, code = _key(job, side, seed), digest(sources(job))
        if key not in known or (stale and known[key].get("code") != code):
            reported = child("-m", "benchmarks.peers.scores", "--one", side, job, str(seed), python=pythons[side])
            known[key] = reported | {"machine": machine(), "command": typed(), "code": code}
            with RUNS_KEPT.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"of": json.loads(key), **known[key]}) + "\n")
        report()
        return known[key]["steps"], known[key]["returns"]

    with ThreadPoolExecutor(workers) as pool:
        runs = {
            job: {
                side: [pool.submit(run, job, side, seed) for seed in range(min(seeds, COURSES[job].most_seeds))]
                for side in SIDES
            }
            for job in jobs
        }
        return {job: {side: [one.result() for one in of] for side, of in sides.items()} for job, sides in runs.items()}


def machines(jobs: Sequence[str]) -> str:
    """Where the kept runs of some jobs ran."""
    return "; ".join(sorted({run["machine"] for job in jobs for run in kept_of(job)}))


def kept_of(job: str) -> list[dict[str, Any]]:
    """The runs of a job that have ended."""
    keys = {_key(job, side, seed) for side in SIDES for seed in range(COURSES[job].most_seeds)}
    return [run for key, run in kept().items() if key in keys]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", nargs="+", choices=list(COURSES), default=list(COURSES), help="default: all")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each side (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time (default: %(default)s)")
    parser.add_argument("--stale", action="store_true", help="make again what other code than today's made")
    parser.add_argument("--write", action="store_true", help="write the table and the picture")
    parser.add_argument("--one", nargs=3, metavar=("SIDE", "JOB", "SEED"), help="one run, for its own process")
    args = parser.parse_args()
    if args.one is not None:
        side, job, seed = args.one
        steps, returns = RUNS[side](COURSES[job], int(seed))
        print(json.dumps({"steps": steps, "returns": [round(reported, 2) for reported in returns]}))
        return
    tables = {name: jobs for name, jobs in TABLES.items() if set(jobs) <= set(args.jobs)}
    if args.seeds < 2 or (args.write and (args.seeds < 5 or not tables)):
        parser.error("--seeds must be at least 2; --write takes all jobs of a table and at least 5 seeds")
    console = Console()
    python = python_of("sb3", console)
    if python is None:
        raise SystemExit("without Stable-Baselines3 there is nothing to compare with")
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=2 * sum(min(args.seeds, COURSES[job].most_seeds) for job in args.jobs))
        curves = measure(args.jobs, args.seeds, args.workers, python, lambda: progress.advance(task), args.stale)
    console.print(table(curves, machines(args.jobs)), highlight=False, markup=False, soft_wrap=True)
    for name, jobs in tables.items() if args.write else ():
        chosen, picture = {job: curves[job] for job in jobs}, ROOT / "docs" / "pictures" / f"{name}.png"
        write(table(chosen, machines(jobs)), README, name)
        draw(chosen, picture)
        console.print(f"written to {README} and {picture}", highlight=False)


if __name__ == "__main__":
    main()
