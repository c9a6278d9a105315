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
from collections.abc import Mapping
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

from algorithms.loggers import LoggedRun, LoggerGroup
from algorithms.loggers.base import flatten
from algorithms.loggers.jsonl import read_rows
from algorithms.plotting import draw_run
from catalog.errors import explain_error

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm


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
            remedy = "Choose another; this one ended before its first checkpoint."
            if self.checkpoint.exists():
                remedy = f"Choose another, or go on with it by Algorithm.from_checkpoint({str(self.checkpoint)!r})."
            raise self._taken("a folder without a run in it", "one with an earlier run", remedy)

    def refuse_another(self, algorithm: str, seed: int) -> None:
        """Raise ``FileExistsError`` if run.json tells of a run of another algorithm or seed, whose log would be cut."""
        if text := self.about.read_text(encoding="utf-8"):
            about = json.loads(text)
            told, asked = f"one of {about['algorithm']} with seed {about['seed']}", f"{algorithm} with seed {seed}"
            if told != f"one of {asked}":
                raise self._taken(f"a folder without a run in it, or with one of {asked}", told, "Choose another.")

    def _taken(self, expected: str, got: str, remedy: str) -> FileExistsError:
        where = f"run_dir {str(self.path)!r}"
        return FileExistsError(explain_error(where, expected=expected, got=got, remedy=remedy))

    def rows(self) -> list[dict[str, Any]]:
        """What progress.jsonl holds, one flat dict per iteration; nothing if there is none."""
        return read_rows(self.progress) if self.progress.exists() else []

    def write_learning_curve(self, title: str, target_return: float | None = None) -> None:
        """Draw learning_curve.png from progress.jsonl, if there is one.

        Args:
            title: What ran.
            target_return: A return to mark; None marks none.
        """
        if rows := self.rows():
            draw_run(rows, self.learning_curve, title, target_return)


class RunReport:
    """Writes what a run tells and keeps: its log, and in its folder the checkpoints asked for.

    Args:
        algorithm: The run.

    Raises:
        OSError: If ``run_dir`` cannot be written to, or holds another run.
        ImportError: If a logger, or filming, needs a package that is not installed.
        RuntimeError: If films are asked for and the env cannot be rendered.
    """

    def __init__(self, algorithm: Algorithm) -> None:
        config, self._algorithm = algorithm.config, algorithm
        if config.evaluation_num_videos:
            from algorithms.films import check_filming  # films are named as run folders are

            check_filming(config.for_evaluation())
        self.folder: RunFolder | None = None
        if config.run_dir is not None:
            self.folder = RunFolder(config.run_dir, env_steps=algorithm.env_steps)
            self.folder.refuse_another(type(algorithm).__name__, algorithm.run_seed)
        self._best = self._best_so_far()
        self._checkpoint_of: int | None = None  # the iteration after which it was written
        run = LoggedRun(
            name=run_name(algorithm),
            folder=None if self.folder is None else self.folder.path,
            env_steps=algorithm.env_steps,
            seed=algorithm.run_seed,
            config=config.to_dict(),
        )
        self._loggers = LoggerGroup(config.loggers, run)
        if self.folder is not None:
            about = {"algorithm": type(algorithm).__name__, "name": run.name, "seed": run.seed, "config": run.config}
            try:
                self.folder.about.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
            except OSError:
                self._loggers.close()
                raise

    def _best_so_far(self) -> float:
        """The mean return that the next best checkpoint has to beat; a folder without one takes any."""
        best = self._algorithm.metrics.best_evaluation
        return -math.inf if best is None or self.folder is None or not self.folder.best_checkpoint.exists() else best

    def write(self, result: Mapping[str, Any]) -> None:
        """Log one iteration's result, and write the checkpoints that are due after it.

        Raises:
            RuntimeError: If a logger fails; names it.
        """
        self._loggers.log(dict(flatten(result)), self._algorithm.env_steps)
        if self.folder is None:
            return
        algorithm, interval = self._algorithm, self._algorithm.config.checkpoint_interval
        if self._is_best(result):
            algorithm.save(self.folder.best_checkpoint)
        if interval is not None and algorithm.metrics.iterations % interval == 0:
            self.write_checkpoint()

    def write_checkpoint(self) -> Path:
        """The folder's checkpoint as of the last iteration; written, unless it was already."""
        assert self.folder is not None
        if self._checkpoint_of != self._algorithm.metrics.iterations:
            self._algorithm.save(self.folder.checkpoint)
            self._checkpoint_of = self._algorithm.metrics.iterations
        return self.folder.checkpoint.absolute()

    def _is_best(self, result: Mapping[str, Any]) -> bool:
        """Whether it holds the best evaluation so far, of several equal ones the first; NaN never is."""
        if "evaluation" not in result or not self._algorithm.config.keep_best_checkpoint:
            return False
        mean = result["evaluation"]["env_runners"]["episode_return_mean"]
        is_best = mean > self._best
        self._best = mean if is_best else self._best
        return is_best

    def close(self) -> None:
        """Write what is left.

        Raises:
            RuntimeError: If a logger fails; names it.
        """
        self._loggers.close()


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
