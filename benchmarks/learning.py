"""Measure how well PPO learns with its default settings, and put the table into `docs/learning.md`.

    python -m benchmarks.learning [--envs CartPole-v1 Pendulum-v1] [--seeds 5] [--workers 2] [--write]

Each run is a process of its own with one torch thread: it trains for as long as the next batch still fits into the
budget of env steps, then plays 20 greedy episodes. An env's figure is the median over its seeds of the mean return of
these 20. Beside it stands the mean return of the last 100 training episodes, which explore.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.run import BEGIN, END, ROOT, machine

DOC = ROOT / "docs" / "learning.md"
HEADER = ("env", "budget", "figure", "all seeds", "training window", "floor", "reached")


@dataclass(frozen=True)
class Goal:
    """What the defaults must reach on an env: a mean return within a number of env steps."""

    env_id: str
    budget: int
    floor: float


GOALS = {
    goal.env_id: goal
    for goal in (
        Goal("CartPole-v1", 100_000, 475),
        Goal("Acrobot-v1", 300_000, -90),
        Goal("Pendulum-v1", 300_000, -200),
        Goal("LunarLander-v3", 1_000_000, 180),
        Goal("HalfCheetah-v5", 500_000, 1500),
    )
}


@dataclass(frozen=True)
class Run:
    """What one run came to; `figure` is the mean return of the greedy episodes at its end."""

    env_id: str
    seed: int
    env_steps: int
    figure: float
    window: float
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.env_id} seed {self.seed}: {self.figure:,.1f} greedy, {self.window:,.1f} in training, "
            f"{self.env_steps:,} steps in {self.seconds:,.0f} s"
        )


@dataclass(frozen=True)
class Row:
    """All runs on one env."""

    goal: Goal
    runs: list[Run]

    @property
    def figure(self) -> float:
        """Median over the seeds."""
        return median(run.figure for run in self.runs)

    @property
    def reached(self) -> bool:
        """Whether the figure is at least the floor."""
        return self.figure >= self.goal.floor

    def cells(self) -> tuple[str, ...]:
        """The line as text, in the order of `HEADER`."""
        return (
            self.goal.env_id,
            f"{self.goal.budget:,}",
            f"{self.figure:,.0f}",
            ", ".join(f"{run.figure:,.0f}" for run in self.runs),
            ", ".join(f"{run.window:,.0f}" for run in self.runs),
            f"≥ {self.goal.floor:,.0f}",
            "yes" if self.reached else "no",
        )


def train(env_id: str, budget: int, seed: int, report: Callable[[int, float], None] = lambda steps, mean: None) -> Run:
    """Train PPO with its defaults on `env_id` and play 20 greedy episodes, in this process.

    Args:
        env_id: A Gymnasium id.
        budget: Env steps; the last batch is the last that fits.
        seed: Of the run.
        report: Called after each iteration with env steps so far and the mean return in training.
    """
    from algorithms.ppo import PPOConfig  # here, so that the parent of many runs stays small

    config = PPOConfig().environment(env_id).debugging(seed=seed)
    if budget < config.train_batch_size_per_learner:
        raise ValueError(f"budget: expected at least one batch of {config.train_batch_size_per_learner}, got {budget}")
    window = seconds = 0.0
    with config.build() as algorithm:
        while algorithm.env_steps + config.train_batch_size_per_learner <= budget:
            result = algorithm.train()
            window, seconds = result["env_runners"]["episode_return_mean"], result["time_total_s"]
            report(algorithm.env_steps, window)
        figure = algorithm.evaluate()["env_runners"]["episode_return_mean"]
    return Run(env_id, seed, algorithm.env_steps, round(figure, 2), round(window, 2), round(seconds, 1))


def train_apart(
    env_id: str, budget: int, seed: int, report: Callable[[int, float], None] = lambda steps, mean: None
) -> Run:
    """The same as `train`, in a process of its own with one thread.

    Raises:
        RuntimeError: If the process fails; with the end of what it wrote.
    """
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy"}
    env["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"
    command = [sys.executable, "-m", "benchmarks.learning", "--one", env_id, str(budget), str(seed)]
    last = ""
    # MuJoCo leaves a log where it runs
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(
            command, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                last = line
                if line.startswith("["):
                    report(*json.loads(line))
        if process.returncode != 0:
            errors.seek(0)
            tail = "\n".join(errors.read().strip().splitlines()[-15:])
            raise RuntimeError(f"{env_id}, seed {seed} failed with exit status {process.returncode}:\n{tail}")
    return Run(**json.loads(last))


def measure(goals: list[Goal], seeds: int, workers: int, console: Console) -> list[Row]:
    """Run every goal on every seed, `workers` at a time, the longest first; prints each run as it finishes."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    jobs = [(goal, seed) for goal in sorted(goals, key=lambda goal: -goal.budget) for seed in range(seeds)]
    runs: list[Run] = []
    with (
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
        ThreadPoolExecutor(workers) as pool,
    ):
        total = progress.add_task("env steps", total=sum(goal.budget for goal, _ in jobs))
        done: dict[TaskID, int] = {}

        def run(goal: Goal, seed: int) -> Run:
            task = progress.add_task(f"{goal.env_id} seed {seed}", total=goal.budget)

            def report(steps: int, mean: float) -> None:
                done[task] = steps
                progress.update(
                    task, completed=steps, description=f"{goal.env_id} seed {seed}: {mean:,.0f} in training"
                )
                progress.update(total, completed=sum(done.copy().values()))

            try:
                return train_apart(goal.env_id, goal.budget, seed, report)
            finally:
                progress.remove_task(task)

        futures = [pool.submit(run, goal, seed) for goal, seed in jobs]
        try:
            for future in as_completed(futures):
                runs.append(future.result())
                console.print(str(runs[-1]), highlight=False)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    runs.sort(key=lambda run: run.seed)
    return [Row(goal, [run for run in runs if run.env_id == goal.env_id]) for goal in goals]


def markdown(rows: list[Row]) -> str:
    """The table for the page."""
    lines = [HEADER, ("---",) * len(HEADER), *(row.cells() for row in rows)]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    seeds = len(rows[0].runs)
    return f"{table}\n\nMedians of {seeds} seeds, `python -m benchmarks.learning --seeds {seeds}`. {machine()}."


def write(text: str, page: Path = DOC) -> None:
    """Replace what stands between the markers in `page`."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{page} has no {BEGIN} … {END} to write the table between")
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def _one(env_id: str, budget: int, seed: int) -> None:
    """A run as a process: one line of JSON per iteration, and what it came to at last."""

    def report(steps: int, mean: float) -> None:
        print(json.dumps([steps, mean]), flush=True)

    print(json.dumps(asdict(train(env_id, budget, seed, report))), flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--envs", nargs="+", choices=list(GOALS), default=list(GOALS), help="default: all")
    parser.add_argument("--seeds", type=int, default=5, help="runs on each env (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="put the table into docs/learning.md")
    parser.add_argument("--one", nargs=3, metavar=("ENV", "BUDGET", "SEED"), help="one run in this process, as JSON")
    args = parser.parse_args()
    if args.one:
        _one(args.one[0], int(args.one[1]), int(args.one[2]))
        return
    if args.seeds < 1 or args.workers < 1 or (args.write and (args.seeds < 5 or set(args.envs) != set(GOALS))):
        parser.error("--seeds and --workers must be at least 1; --write takes all envs and at least 5 seeds")
    console = Console()
    rows = measure([GOALS[name] for name in args.envs], args.seeds, args.workers, console)
    if console.is_terminal:
        table = Table(*HEADER, box=box.SIMPLE)
        for row in rows:
            table.add_row(*row.cells(), style=None if row.reached else "bold")
        console.print(table)
    else:
        print(markdown(rows))
    if args.write:
        write(markdown(rows))
        console.print(f"written to {DOC}", highlight=False)


if __name__ == "__main__":
    main()
