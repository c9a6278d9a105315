"""The folder of a run: what it told while it ran, what it looked like, and the checkpoints to go on from.

::

    run.json              what ran: algorithm, env, seed, settings
    progress.jsonl        one line per iteration: its result as flat JSON
    events.out.tfevents…  the same for TensorBoard
    learning_curve.png    returns against env steps
    checkpoint/           what Algorithm.save wrote last
    best_checkpoint/      the same, of the best evaluation
    videos/               of evaluations
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

from algorithms.loggers import LoggedRun, Logger, make_loggers
from algorithms.loggers.jsonl import STEPS, read_rows
from catalog.errors import explain_error

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm

TRAINING_RETURN = "env_runners/episode_return_mean"
EVALUATION_RETURN = "evaluation/env_runners/episode_return_mean"


class RunFolder:
    """Where a run writes.

    A run that goes on (from its checkpoint, or by a second ``learn``) appends to what is there.

    Args:
        path: The folder; made if there is none.
        env_steps: Env steps the algorithm has sampled so far; 0 is a new run.

    Raises:
        OSError: If the folder cannot be made or written to.
        FileExistsError: If it holds another run and this one is new.
    """

    def __init__(self, path: str | os.PathLike[str], *, env_steps: int) -> None:
        self.path = Path(path)
        self.progress = self.path / "progress.jsonl"
        self.learning_curve = self.path / "learning_curve.png"
        self.checkpoint = self.path / "checkpoint"
        self.best_checkpoint = self.path / "best_checkpoint"
        self.about = self.path / "run.json"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.about.touch()
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        if env_steps == 0 and (self.about.stat().st_size or self.checkpoint.exists()):
            remedy = f"Choose another, or go on with it by Algorithm.from_checkpoint({str(self.checkpoint)!r})."
            expected, got = "a folder without a run in it", "one with an earlier run"
            raise FileExistsError(explain_error(f"run_dir {str(path)!r}", expected=expected, got=got, remedy=remedy))

    def rows(self) -> list[dict[str, Any]]:
        """What progress.jsonl holds, one flat dict per iteration; nothing if there is none."""
        return read_rows(self.progress) if self.progress.exists() else []

    def write_learning_curve(self, title: str, target_return: float | None = None) -> None:
        """Draw learning_curve.png from progress.jsonl, if there is one.

        Args:
            title: What ran.
            target_return: A return to mark; None marks none.
        """
        # drawn without pyplot, which would choose a backend for the user's own figures
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter

        rows = self.rows()
        if not rows:
            return
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.subplots()
        for key, style, label in (
            (TRAINING_RETURN, "-", "training, recent episodes"),
            (EVALUATION_RETURN, "o--", "evaluation"),
        ):
            points = [(row[STEPS], row[key]) for row in rows if row.get(key) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), style, label=label, markersize=4)
        if target_return is not None:
            axes.axhline(target_return, color="grey", linestyle=":", label=f"target {target_return:g}")
        if axes.lines:
            axes.legend(loc="best", frameon=False)
        axes.set(title=title, xlabel="env steps", ylabel="mean episode return")
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(self.learning_curve, dpi=120)


class RunReport:
    """Writes what a run tells and keeps: its log, and in its folder the checkpoints asked for.

    Args:
        algorithm: The run.

    Raises:
        OSError: If ``run_dir`` cannot be written to, or holds another run.
        ImportError: If a logger needs a package that is not installed.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        config, self._algorithm = algorithm.config, algorithm
        self.folder: RunFolder | None = None
        if config.run_dir is not None:
            self.folder = RunFolder(config.run_dir, env_steps=algorithm.env_steps)
        run = LoggedRun(
            name=run_name(algorithm),
            folder=None if self.folder is None else self.folder.path,
            env_steps=algorithm.env_steps,
            seed=algorithm.run_seed,
            config=config.to_dict(),
        )
        self._loggers: list[Logger] = make_loggers(config.loggers, run)
        if self.folder is not None:
            about = {"algorithm": type(algorithm).__name__, "name": run.name, "seed": run.seed, "config": run.config}
            self.folder.about.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")

    def write(self, result: Mapping[str, Any]) -> None:
        """Log one iteration's result, and write the checkpoints that are due after it."""
        values = dict(flatten(result))
        for logger in self._loggers:
            logger.log(values, self._algorithm.env_steps)
        if self.folder is None:
            return
        algorithm, interval = self._algorithm, self._algorithm.config.checkpoint_interval
        if self._is_best(result):
            algorithm.save(self.folder.best_checkpoint)
        if interval is not None and result["training_iteration"] % interval == 0:
            algorithm.save(self.folder.checkpoint)

    def _is_best(self, result: Mapping[str, Any]) -> bool:
        assert self.folder is not None
        if "evaluation" not in result or not self._algorithm.config.keep_best_checkpoint:
            return False
        mean, best = result["evaluation"]["env_runners"]["episode_return_mean"], self._algorithm.metrics.best_evaluation
        return mean == best or (not math.isnan(mean) and not self.folder.best_checkpoint.exists())

    def close(self) -> None:
        """Write what is left."""
        for logger in self._loggers:
            logger.close()


def flatten(result: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a nested result by path, ``env_runners/episode_return_mean``; NaN and infinities become None."""
    for key, value in result.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}/")
        else:
            plain = value.item() if isinstance(value, np.generic) else value
            lost = isinstance(plain, float) and not math.isfinite(plain)
            yield f"{prefix}{key}", None if lost else plain


def run_name(algorithm: Algorithm) -> str:
    """Algorithm and env, as a reader names them: ``PPO on CartPole-v1``."""
    return f"{type(algorithm).__name__} on {env_name(algorithm.config.env)}"


def env_name(env: Any) -> str:
    """An id as it is, a class or function by its name, any other factory by its class."""
    if isinstance(env, str):
        return env
    return env.__name__ if isinstance(env, type | FunctionType) else type(env).__name__


def new_run_dir(algorithm: str, env: Any) -> Path:
    """Make the folder ``runs/<algorithm>-<env>-<time>`` for a run; no two get the same, even if they start at once.

    Raises:
        OSError: If it cannot be made.
    """
    # what has a meaning in paths or shells, as in ALE/Pong-v5 or my_envs:MyEnv-v0, becomes a dash
    env_part = re.sub(r"[^\w.-]+", "-", env_name(env)).strip("-.")
    base = path = Path("runs") / f"{algorithm.lower()}-{env_part}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
            path = base.with_name(f"{base.name}-{number}")
        except OSError as error:
            raise _cannot_write(path, error) from error


def _cannot_write(path: Path, error: OSError) -> OSError:
    remedy = "Choose another run_dir, or None to write nothing."
    expected, got = "a folder to write to", error.strerror or str(error)
    return OSError(explain_error(f"run_dir {str(path)!r}", expected=expected, got=got, remedy=remedy))
