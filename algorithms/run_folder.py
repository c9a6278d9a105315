"""The folder of a run: what it told while it ran, what it looked like, and the checkpoint to go on from.

::

    progress.jsonl        one line per iteration: its result as flat JSON
    learning_curve.png    returns against env steps
    checkpoint/           what Algorithm.save wrote
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

from catalog.errors import explain_error

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm

STEPS = "env_runners/num_env_steps_sampled_lifetime"
TRAINING_RETURN = "env_runners/episode_return_mean"
EVALUATION_RETURN = "evaluation/env_runners/episode_return_mean"


class RunFolder:
    """Where a run writes.

    A run that goes on (from its checkpoint, or by a second ``learn``) appends to its own lines; lines of steps that
    its weights have not seen, written after the checkpoint, are dropped.

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
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.progress.touch()
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        if env_steps == 0 and (self.progress.stat().st_size or self.checkpoint.exists()):
            remedy = f"Choose another, or go on with it by Algorithm.from_checkpoint({str(self.checkpoint)!r})."
            expected, got = "a folder without a run in it", "one with an earlier run"
            raise FileExistsError(explain_error(f"run_dir {str(path)!r}", expected=expected, got=got, remedy=remedy))
        self._drop_rows_after(env_steps)

    def _drop_rows_after(self, env_steps: int) -> None:
        text = self.progress.read_text(encoding="utf-8")
        kept = "".join(f"{line}\n" for line, row in _parsed(text) if row[STEPS] <= env_steps)
        if kept != text:
            self.progress.write_text(kept, encoding="utf-8")

    def append(self, result: Mapping[str, Any]) -> None:
        """Add one iteration's result to progress.jsonl; it is on disk when this returns."""
        with open(self.progress, "a", encoding="utf-8") as file:
            file.write(json.dumps(dict(flatten(result)), default=str) + "\n")

    def rows(self) -> list[dict[str, Any]]:
        """What progress.jsonl holds, one flat dict per iteration; a line that was cut off is left out."""
        return [row for _, row in _parsed(self.progress.read_text(encoding="utf-8"))]

    def write_learning_curve(self, title: str, target_return: float | None = None) -> None:
        """Draw learning_curve.png from progress.jsonl.

        Args:
            title: What ran.
            target_return: A return to mark; None marks none.
        """
        # drawn without pyplot, which would choose a backend for the user's own figures
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter

        rows = self.rows()
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


def _parsed(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Lines of a progress.jsonl and what they say, but for one that a crash has cut off."""
    for line in text.splitlines():
        try:
            yield line, json.loads(line)
        except ValueError:
            continue
