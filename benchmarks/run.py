"""Measure our speed next to the same work without a framework, in one run on one machine.

    python -m benchmarks.run [--jobs cartpole cheetah lstm dqn sac-pendulum sac-pendulum-1 sac-cheetah sac-cheetah-1
                             pong learners workers replay sampling catalog import] [--repeats 5] [--write]

Each pair runs in fresh processes and in turn (ours, theirs, ours, theirs, …), so that a slow minute of the machine hits
both; what takes less than a second takes turns in one process. A row's ratio is the median of the ratios of neighbours;
its figures are medians too. `--write` keeps the figures of the jobs that were run in `results.json`, and puts the table
of all that is kept there into `benchmarks/README.md`, and some of it into the README. This process stays small (see
`benchmarks.jobs.peak_mb`): only the children load torch.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.tables import ROOT, SPEED, digest, typed

README = ROOT / "benchmarks" / "README.md"
SUMMARY_PAGE = ROOT / "docs" / "why.md"
KEPT = ROOT / "benchmarks" / "results.json"
HEADER = ("row", "ours", "other", "ratio (least – most)", "floor", "reached")
ALLOWED_MS = 50.0  # for building, whatever the spaces
ALLOWED_GB = 8.0  # for a replay of a million Atari transitions
ALLOWED_SYNC_MS = 30.0  # until eight runners have the weights of a million parameters
ALLOWED_DRIVER_MS = 5.0  # per iteration with two runners, beyond what these take

# Prints how long the statement takes in a process that has loaded nothing but what Python itself needs.
TIME_IMPORT = "import json, time; t = time.perf_counter(); {}; print(json.dumps({{'s': time.perf_counter() - t}}))"

# The rows of replay: name, measurement and key of `benchmarks.replay`, and the floors by the other side's key there.
REPLAY = (
    ("adding steps", "adding", "ours", {"bare": 0.1, "sb3": 0.96}),
    ("adding rollouts of 64", "adding", "ours_rollouts", {"bare": 2.0, "sb3": 0.96}),
    ("uniform batches", "sampling", "ours", {"bare": 0.8, "sb3": 1.0}),
    ("prioritized batches", "prioritized", "ours", {"bare": 0.15, "sb3": 0.4}),
)
OTHERS = {"bare": "a bare ring", "sb3": "Stable-Baselines3"}

Report = Callable[[str], None]


@dataclass(frozen=True)
class Training:
    """How a job of `benchmarks.jobs` is called here, the scripts of both sides, env steps per run and the floor."""

    name: str
    ours: str
    other: str
    steps: int
    floor: float


TRAININGS = {
    "cartpole": Training("PPO CartPole", "ours_ppo", "bare_ppo", 60_000, 0.9),
    "cheetah": Training("PPO HalfCheetah", "ours_ppo", "bare_ppo", 30_000, 0.9),
    "lstm": Training("PPO LSTM CartPole", "ours_ppo", "bare_lstm", 60_000, 0.7),
    "dqn": Training("DQN CartPole", "ours_dqn", "bare_dqn", 30_000, 0.9),
    "sac-pendulum": Training("SAC Pendulum", "ours_sac", "bare_sac", 4_000, 0.95),
    "sac-pendulum-1": Training("SAC Pendulum, 1 env", "ours_sac", "bare_sac", 4_000, 0.95),
    "sac-cheetah": Training("SAC HalfCheetah", "ours_sac", "bare_sac", 4_000, 0.95),
    "sac-cheetah-1": Training("SAC HalfCheetah, 1 env", "ours_sac", "bare_sac", 4_000, 0.95),
    "td3-pendulum": Training("TD3 Pendulum", "ours_td3", "bare_td3", 4_000, 0.95),
    "td3-pendulum-1": Training("TD3 Pendulum, 1 env", "ours_td3", "bare_td3", 4_000, 0.95),
    "td3-cheetah": Training("TD3 HalfCheetah", "ours_td3", "bare_td3", 4_000, 0.95),
    "td3-cheetah-1": Training("TD3 HalfCheetah, 1 env", "ours_td3", "bare_td3", 4_000, 0.95),
    "pong": Training("PPO Pong", "ours_ppo", "bare_pong", 6_000, 0.9),
    "carts": Training("PPO, 4,096 CartPoles in one tensor", "ours_tensors", "bare_tensors", 700_000, 0.97),
}


@dataclass(frozen=True)
class Row:
    """One line of the table: paired measurements, and the floor for their ratio, ours over theirs, if there is one."""

    name: str
    unit: str
    ours: list[float]
    theirs: list[float]
    floor: float | None
    more_is_better: bool

    @property
    def ratios(self) -> list[float]:
        """Ours over theirs, pair by pair."""
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]

    @property
    def reached(self) -> bool:
        """Whether the median ratio is on the right side of the floor."""
        ratio = median(self.ratios)
        if self.floor is None:
            return True
        return ratio >= self.floor if self.more_is_better else ratio <= self.floor

    def cells(self) -> tuple[str, ...]:
        """The line as text, in the order of `HEADER`."""
        least, middle, most = min(self.ratios), median(self.ratios), max(self.ratios)
        digits = {"s": ".3f", "ms": ",.2f", "GB": ",.2f"}.get(self.unit, ",.0f")
        return (
            self.name,
            f"{median(self.ours):{digits}} {self.unit}",
            f"{median(self.theirs):{digits}} {self.unit}",
            f"{middle:.2f} ({least:.2f} – {most:.2f})",
            *self._verdict(),
        )

    def _verdict(self) -> tuple[str, str]:
        if self.floor is None:
            return "–", "–"
        return f"{'≥' if self.more_is_better else '≤'} {self.floor:.2f}", "yes" if self.reached else "no"


def child(*args: str, python: str = sys.executable) -> dict[str, Any]:
    """Run `python *args` apart from here and read the object in JSON that it prints last.

    Ray may print lines of its own after it.
    """
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SDL_VIDEODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    env["RAY_ADDRESS"] = "local"  # a Ray of its own, whichever may run on this machine
    env["RAY_worker_niceness"] = "0"  # RLlib's workers get as much of the cores as ours
    with tempfile.TemporaryDirectory() as folder:  # MuJoCo leaves a log where it runs
        done = subprocess.run(
            [python, *args],
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        tail = "\n".join(done.stderr.strip().splitlines()[-15:])
        raise SystemExit(f"`python {' '.join(args)}` failed with exit status {done.returncode}:\n{tail}")
    return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])


def training_rows(job: str, repeats: int, report: Report) -> list[Row]:
    """Steps per second of one job, and for CartPole the peak memory of the process."""
    here = TRAININGS[job]
    ours: list[dict[str, Any]] = []
    bare: list[dict[str, Any]] = []
    for _ in range(repeats):
        for results, script in ((ours, here.ours), (bare, here.other)):
            results.append(child("-m", f"benchmarks.{script}", job, str(here.steps)))
            report(f"{job}: {script} {results[-1]['steps_per_s']:,.0f} steps/s")

    def column(results: list[dict[str, Any]], key: str) -> list[float]:
        return [result[key] for result in results]

    rows = [Row(here.name, "steps/s", column(ours, "steps_per_s"), column(bare, "steps_per_s"), here.floor, True)]
    if job == "cartpole":
        memory = column(ours, "peak_mb"), column(bare, "peak_mb")
        rows.append(Row(f"{here.name}, peak memory", "MB", *memory, 1.3, False))
    return rows


def rllib_python() -> str | None:
    """A Python that has RLlib: what RLLIB_PYTHON names, or else this one; None if that has not."""
    python = os.environ.get("RLLIB_PYTHON", sys.executable)
    found = subprocess.run([python, "-c", "import ray.rllib.algorithms.ppo"], capture_output=True, check=False)
    return python if found.returncode == 0 else None


def learner_rows(repeats: int, report: Report) -> list[Row]:
    """Steps per second of PPO CartPole with two learners, one in the same process, and RLlib with two."""
    sides = {"two": ("ours_ppo", "learners", sys.executable), "one": ("ours_ppo", "cartpole", sys.executable)}
    if (python := rllib_python()) is not None:
        sides["rllib"] = "peers.rllib", "learners", python
    speeds: dict[str, list[float]] = {side: [] for side in sides}
    for _ in range(repeats):
        for side, (script, job, python) in sides.items():
            result = child("-m", f"benchmarks.{script}", job, str(TRAININGS["cartpole"].steps), python=python)
            speeds[side].append(result["steps_per_s"])
            report(f"learners: {script} {job} {result['steps_per_s']:,.0f} steps/s")
    rows = [Row("PPO CartPole, 2 learners, one process", "steps/s", speeds["two"], speeds["one"], None, True)]
    if "rllib" in speeds:
        rows.append(Row("PPO CartPole, 2 learners, RLlib", "steps/s", speeds["two"], speeds["rllib"], 3.0, True))
    return rows


def worker_rows(repeats: int, report: Report) -> list[Row]:
    """What env runners in processes of their own gain and cost; see `benchmarks.workers`."""
    runs: dict[str, list[dict[str, float]]] = {"sampling": [], "syncing": [], "driver": []}
    for _ in range(repeats):
        for what, results in runs.items():
            results.append(child("-m", "benchmarks.workers", what))
            report(f"workers: {what} {results[-1]}")
    ray, local = ([result[key] for result in runs["sampling"]] for key in ("ray", "local"))
    synced = [result["sync_ms"] for result in runs["syncing"]]
    driven = [result["driver_ms"] for result in runs["driver"]]
    return [
        Row("workers: sampling HalfCheetah", "steps/s", ray, local, 1.6, True),
        Row("workers: weights to eight runners", "ms", synced, [ALLOWED_SYNC_MS] * repeats, 1.0, False),
        Row("workers: the driver's part", "ms", driven, [ALLOWED_DRIVER_MS] * repeats, 1.0, False),
    ]


def sampling_rows(repeats: int, report: Report) -> list[Row]:
    """What a vector step of the env runner costs over the env's step and the net's forward pass on the same arrays."""
    runner: list[float] = []
    alone: list[float] = []
    for _ in range(repeats):
        result = child("-m", "benchmarks.sampling")
        runner.append(result["runner_us"])
        alone.append(result["alone_us"])
        report(f"sampling: {runner[-1]:.0f} µs over {alone[-1]:.0f} µs")
    return [Row("sampling: vector step", "µs", runner, alone, 1.15, False)]


def replay_rows(repeats: int, report: Report) -> list[Row]:
    """How fast a replay takes and gives transitions, also next to Stable-Baselines3 where that can be imported."""
    runs: dict[str, list[dict[str, float]]] = {}
    for _ in range(repeats):
        for what in ("adding", "sampling", "prioritized", "training", "memory"):
            runs.setdefault(what, []).append(child("-m", "benchmarks.replay", what))
            report(f"replay: {what}")

    def column(what: str, key: str) -> list[float]:
        return [result[key] for result in runs[what]]

    rows = []
    for name, what, key, floors in REPLAY:
        for other, floor in floors.items():
            if other in runs[what][0]:
                numbers = column(what, key), column(what, other)
                rows.append(Row(f"replay: {name}, {OTHERS[other]}", "/s", *numbers, floor, True))
    prioritized, uniform = column("training", "prioritized_ms"), column("training", "uniform_ms")
    rows.append(Row("replay: prioritized training step", "ms", prioritized, uniform, 1.6, False))
    rows.append(
        Row("replay: a million of Atari", "GB", column("memory", "atari_gb"), [ALLOWED_GB] * repeats, 1.0, False)
    )
    return rows


def catalog_rows(repeats: int, report: Report) -> list[Row]:
    """What building, reading observations inside the net and masking actions cost; see `benchmarks.catalog`."""
    runs: dict[str, list[dict[str, Any]]] = {"building": [], "reading": [], "masking": []}
    for _ in range(repeats):
        for what, results in runs.items():
            results.append(child("-m", "benchmarks.catalog", what))
            report(f"catalog: {what}")
    allowed = [ALLOWED_MS] * repeats
    rows = []
    for name, key in (("deciding", "tree_ms"), ("building", "module_ms")):
        slowest = [max(case[key] for case in result.values()) for result in runs["building"]]
        rows.append(Row(f"catalog: {name}", "ms", slowest, allowed, 1.0, False))
    for name in runs["reading"][0]:
        ours, plain = ([result[name][key] for result in runs["reading"]] for key in ("ours_ms", "plain_ms"))
        rows.append(Row(f"catalog: reading, {name}", "ms", ours, plain, 1.1, False))
    masked, plain = ([result[key] for result in runs["masking"]] for key in ("masked_us", "plain_us"))
    return [*rows, Row("catalog: masking", "µs", masked, plain, 1.3, False)]


def import_rows(repeats: int, report: Report) -> list[Row]:
    """How long our imports take, next to those of torch and gymnasium alone."""
    rows = []
    for statement, floor in (("import catalog", 1.15), ("from algorithms.ppo import PPOConfig", 1.3)):
        ours: list[float] = []
        theirs: list[float] = []
        for timed in (statement, "import torch, gymnasium"):  # once unseen: the first one reads the disk
            child("-c", TIME_IMPORT.format(timed))
        for _ in range(repeats):
            for results, timed in ((ours, statement), (theirs, "import torch, gymnasium")):
                results.append(child("-c", TIME_IMPORT.format(timed))["s"])
                report(f"{timed}: {results[-1]:.2f} s")
        rows.append(Row(f"`{statement}`", "s", ours, theirs, floor, False))
    return rows


ROWS: dict[str, tuple[Callable[[int, Report], list[Row]], int]] = {  # and how often each reports per repeat
    **{job: (partial(training_rows, job), 2) for job in TRAININGS},
    "learners": (learner_rows, 3),
    "workers": (worker_rows, 3),
    "replay": (replay_rows, 5),
    "sampling": (sampling_rows, 1),
    "catalog": (catalog_rows, 3),
    "import": (import_rows, 4),
}


def sources(job: str) -> tuple[str, ...]:
    """The files and folders that the figures of a job depend on."""
    if job == "import":
        return "algorithms/ppo", *SPEED
    if job in TRAININGS:
        scripts = TRAININGS[job].ours, TRAININGS[job].other
    else:
        scripts = ("ours_ppo", "peers/rllib") if job == "learners" else (job,)
    return *(f"benchmarks/{script}.py" for script in scripts), *SPEED


def kept() -> dict[str, Any]:
    """Job → its rows, and how and where they were measured."""
    return json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}


def machine() -> str:
    """What was measured where, in one line."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = names[0] if names else model
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "gymnasium", "numpy"))
    host = f"{os.cpu_count()} × {model}, {platform.system()}"
    return f"{date.today()}, {host}, Python {platform.python_version()}, {packages}"


SUMMARY = {
    "PPO CartPole": "PPO CartPole, 8 envs × 128 steps, steps/s",
    "PPO HalfCheetah": "PPO HalfCheetah, 8 envs × 256 steps, steps/s",
    "DQN CartPole": "DQN CartPole, 8 envs, an update per vector step, steps/s",
    "PPO Pong": "PPO Pong, 8 games × 128 steps of pixels, steps/s",
    "sampling: vector step": "time of a vector step of sampling, over env step and bare net (less is better)",
    "PPO CartPole, peak memory": "peak memory, PPO CartPole (less is better)",
}
"""What the front page shows, and how it calls it."""


MEDIANS = "Medians of {} alternating runs; a ratio is the median of those of neighbours."


def lines_of(cells: list[tuple[str, ...]]) -> str:
    """A table in Markdown, the first line of which is its head."""
    head, *rest = cells
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ("---",) * len(head), *rest))


def markdown(kept: dict[str, Any]) -> str:
    """The table for the README."""
    here = [kept[job] for job in ROWS if job in kept]
    repeats, reported = min(one["repeats"] for one in here), sorted({one["machine"] for one in here})
    table = lines_of([HEADER, *(row.cells() for row in rows_of(kept))])
    return f"{table}\n\n{MEDIANS.format(repeats)} {'; '.join(reported)}."


def summary(kept: dict[str, Any]) -> str:
    """The table for docs/why.md."""
    rows = {row.name: row for row in rows_of(kept)}
    ratios = [(reported, f"{median(rows[name].ratios):.2f} ×") for name, reported in SUMMARY.items() if name in rows]
    return lines_of([("", "ours over the bare loop"), *ratios])


def rows_of(kept: dict[str, Any]) -> list[Row]:
    """All rows that are kept, in order."""
    return [Row(**row) for job in ROWS if job in kept for row in kept[job]["rows"]]


def write(text: str, page: Path, name: str = "table") -> None:
    """Replace what stands between the markers called `name` in `page`.

    Raises:
        SystemExit: If it has none.
    """
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise SystemExit(f"{page} has no {begin} … {end} to write the table between")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", nargs="+", choices=list(ROWS), default=list(ROWS), help="default: all")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each side (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/README.md")
    args = parser.parse_args()
    if args.repeats < 1 or (args.write and args.repeats < 5):
        parser.error("--repeats must be at least 1; --write takes at least 5")
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    found: dict[str, Any] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=args.repeats * sum(ROWS[job][1] for job in args.jobs))

        def report(text: str) -> None:
            progress.update(task, advance=1, description=text)
            if not console.is_terminal:
                print(text, flush=True)

        for job in args.jobs:
            origin = {"command": typed(), "code": digest(sources(job))}  # of the code that the measurement begins with
            rows = [asdict(row) for row in ROWS[job][0](args.repeats, report)]
            found[job] = {"machine": machine(), **origin, "repeats": args.repeats, "rows": rows}
    if console.is_terminal:
        table = Table(*HEADER, box=box.SIMPLE)
        for row in rows_of(found):
            table.add_row(*row.cells(), style=None if row.reached else "bold")
        console.print(table)
        console.print(f"{MEDIANS.format(args.repeats)} {machine()}.", highlight=False)
    else:
        print(markdown(found))
    if args.write:
        found = kept() | found
        KEPT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        write(markdown(found), README)
        write(summary(found), SUMMARY_PAGE, "speed")
        console.print(f"written to {README} and {SUMMARY_PAGE}", highlight=False)


if __name__ == "__main__":
    main()
