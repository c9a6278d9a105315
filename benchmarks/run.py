"""Measure our speed beside the same work without a framework, in one run on one machine.

    python -m benchmarks.run [--jobs cartpole cheetah lstm sampling catalog import] [--repeats 5] [--write]

Each pair runs in fresh processes and in turn (ours, theirs, ours, theirs, …), so that a slow minute of the machine hits
both; what takes less than a second takes turns in one process. A row's ratio is the median of the ratios of neighbours;
its figures are medians too. `--write` puts the table into `benchmarks/README.md`. This process stays small (see
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
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "benchmarks" / "README.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
HEADER = ("row", "ours", "other", "ratio (least – most)", "floor", "reached")
ALLOWED_MS = 50.0  # for building, whatever the spaces

# Prints how long the statement takes in a process that has loaded nothing but what Python itself needs.
TIME_IMPORT = "import json, time; t = time.perf_counter(); {}; print(json.dumps({{'s': time.perf_counter() - t}}))"

Report = Callable[[str], None]


@dataclass(frozen=True)
class PPOJob:
    """How a job of `benchmarks.jobs` is called here, the script of the other side, env steps per run and the floor."""

    name: str
    other: str
    steps: int
    floor: float


PPO_JOBS = {
    "cartpole": PPOJob("PPO CartPole", "bare_ppo", 60_000, 0.9),
    "cheetah": PPOJob("PPO HalfCheetah", "bare_ppo", 30_000, 0.9),
    "lstm": PPOJob("PPO LSTM CartPole", "bare_lstm", 60_000, 0.7),
}


@dataclass(frozen=True)
class Row:
    """One line of the table: paired measurements and the floor that their ratio, ours over theirs, must reach."""

    name: str
    unit: str
    ours: list[float]
    theirs: list[float]
    floor: float
    more_is_better: bool

    @property
    def ratios(self) -> list[float]:
        """Ours over theirs, pair by pair."""
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]

    @property
    def reached(self) -> bool:
        """Whether the median ratio is on the right side of the floor."""
        ratio = median(self.ratios)
        return ratio >= self.floor if self.more_is_better else ratio <= self.floor

    def cells(self) -> tuple[str, ...]:
        """The line as text, in the order of `HEADER`."""
        least, middle, most = min(self.ratios), median(self.ratios), max(self.ratios)
        digits = {"s": ".3f", "ms": ",.2f"}.get(self.unit, ",.0f")
        return (
            self.name,
            f"{median(self.ours):{digits}} {self.unit}",
            f"{median(self.theirs):{digits}} {self.unit}",
            f"{middle:.2f} ({least:.2f} – {most:.2f})",
            f"{'≥' if self.more_is_better else '≤'} {self.floor:.2f}",
            "yes" if self.reached else "no",
        )


def child(*args: str) -> dict[str, Any]:
    """Run `python *args` apart from here and read the JSON in the last line it prints."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "SDL_VIDEODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}
    with tempfile.TemporaryDirectory() as folder:  # MuJoCo leaves a log where it runs
        done = subprocess.run(
            [sys.executable, *args],
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
    return json.loads(done.stdout.strip().splitlines()[-1])


def ppo_rows(job: str, repeats: int, report: Report) -> list[Row]:
    """Steps per second of one PPO job, and for CartPole the peak memory of the process."""
    here = PPO_JOBS[job]
    ours: list[dict[str, Any]] = []
    bare: list[dict[str, Any]] = []
    for _ in range(repeats):
        for results, script in ((ours, "ours_ppo"), (bare, here.other)):
            results.append(child("-m", f"benchmarks.{script}", job, str(here.steps)))
            report(f"{job}: {script} {results[-1]['steps_per_s']:,.0f} steps/s")

    def column(results: list[dict[str, Any]], key: str) -> list[float]:
        return [result[key] for result in results]

    rows = [Row(here.name, "steps/s", column(ours, "steps_per_s"), column(bare, "steps_per_s"), here.floor, True)]
    if job == "cartpole":
        memory = column(ours, "peak_mb"), column(bare, "peak_mb")
        rows.append(Row(f"{here.name}, peak memory", "MB", *memory, 1.3, False))
    return rows


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
    """How long our imports take, beside those of torch and gymnasium alone."""
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
    "cartpole": (lambda repeats, report: ppo_rows("cartpole", repeats, report), 2),
    "cheetah": (lambda repeats, report: ppo_rows("cheetah", repeats, report), 2),
    "lstm": (lambda repeats, report: ppo_rows("lstm", repeats, report), 2),
    "sampling": (sampling_rows, 1),
    "catalog": (catalog_rows, 3),
    "import": (import_rows, 4),
}


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


def markdown(rows: list[Row], repeats: int) -> str:
    """The table for the README."""
    lines = [HEADER, ("---",) * len(HEADER), *(row.cells() for row in rows)]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return f"{table}\n\nMedians of {repeats} alternating runs. {machine()}."


def write(text: str) -> None:
    """Replace what stands between the markers in `benchmarks/README.md`."""
    before, begin, rest = README.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{README} has no {BEGIN} … {END} to write the table between")
    README.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", nargs="+", choices=list(ROWS), default=list(ROWS), help="default: all")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each side (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="put the table into benchmarks/README.md")
    args = parser.parse_args()
    if args.repeats < 1 or (args.write and (args.repeats < 5 or set(args.jobs) != set(ROWS))):
        parser.error("--repeats must be at least 1; --write takes all jobs and at least 5 repeats")
    console = Console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows: list[Row] = []
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=args.repeats * sum(ROWS[job][1] for job in args.jobs))

        def report(text: str) -> None:
            progress.update(task, advance=1, description=text)
            if not console.is_terminal:
                print(text, flush=True)

        for job in args.jobs:
            rows += ROWS[job][0](args.repeats, report)
    if console.is_terminal:
        table = Table(*HEADER, box=box.SIMPLE)
        for row in rows:
            table.add_row(*row.cells(), style=None if row.reached else "bold")
        console.print(table)
        console.print(f"Medians of {args.repeats} alternating runs. {machine()}.", highlight=False)
    else:
        print(markdown(rows, args.repeats))
    if args.write:
        write(markdown(rows, args.repeats))
        console.print(f"written to {README}", highlight=False)


if __name__ == "__main__":
    main()
