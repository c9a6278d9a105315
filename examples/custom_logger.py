"""Log results to a place of your own: here a database, which is then asked for the best iteration.

Run it as ``python examples/custom_logger.py``.
"""

import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from algorithms.loggers import LoggedRun, Logger
from algorithms.ppo import PPOConfig


class SqliteLogger(Logger):
    """A row per number in the table ``metrics`` of run_dir/metrics.db."""

    needs_folder = True

    def __init__(self, run: LoggedRun) -> None:
        super().__init__(run)
        assert run.folder is not None  # since needs_folder
        self.database = sqlite3.connect(run.folder / "metrics.db")
        self.database.execute("CREATE TABLE IF NOT EXISTS metrics (env_steps INTEGER, name TEXT, value REAL)")
        # a resumed run: what came after its checkpoint is about to come again
        self.database.execute("DELETE FROM metrics WHERE env_steps > ?", [run.env_steps])

    def log(self, values: Mapping[str, Any], env_steps: int) -> None:
        # NaN comes as None; besides numbers there may be what callbacks added
        rows = [(env_steps, name, value) for name, value in values.items() if isinstance(value, int | float)]
        with self.database:
            self.database.executemany("INSERT INTO metrics VALUES (?, ?, ?)", rows)

    def close(self) -> None:
        self.database.close()


run_dir = Path("runs", f"custom-logger-{time.strftime('%Y%m%d-%H%M%S')}")
config = (
    PPOConfig()
    .environment("CartPole-v1")
    .evaluation(evaluation_interval=2)
    .reporting(run_dir=str(run_dir), loggers=["jsonl", SqliteLogger])
    .debugging(seed=1)
)

with config.build() as algo:
    algo.learn(num_env_steps=40_000, progress=True)

database = sqlite3.connect(run_dir / "metrics.db")
asked = "SELECT max(value), env_steps FROM metrics WHERE name = 'evaluation/env_runners/episode_return_mean'"
best, steps = database.execute(asked).fetchone()
database.close()
print(f"Best evaluation: return {best}, after {steps} env steps")
