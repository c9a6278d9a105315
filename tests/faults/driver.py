"""A training with an env runner in another process, whose envs have processes of their own, to end from outside.

``python driver.py FOLDER``: writes ``pids.json`` once it is on its way, and ``result.json`` when it has ended.
"""

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from algorithms import Algorithm
from algorithms.ppo import PPOConfig


def children(pid: int) -> list[int]:
    """Processes that ``pid`` started and that are there yet, and theirs."""
    files = Path("/proc", str(pid), "task").glob("*/children")
    found = [int(child) for file in files for child in file.read_text().split()]
    return found + [further for child in found for further in children(child)]


def main(folder: Path) -> None:
    def on_train_result(algorithm: Algorithm, result: dict[str, Any]) -> None:
        (runner,) = algorithm.env_runner_group.workers.pids()  # type: ignore[attr-defined]
        new = folder / "pids.new"
        new.write_text(json.dumps({"runner": runner, "envs": children(runner)}))
        new.rename(folder / "pids.json")
        (folder / "result.json").write_text(json.dumps(result["workers"] | {"runner": runner}))

    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=1, num_envs_per_env_runner=2, gym_env_vectorize_mode="async")
        .training(train_batch_size_per_learner=400, minibatch_size=100, num_epochs=1)
        .reporting(run_dir=str(folder / "run"))
        .callbacks(on_train_result=on_train_result)
        .debugging(seed=1)
    )
    with config.build() as algorithm, suppress(KeyboardInterrupt):  # learn() raises it once it has saved
        algorithm.learn(num_env_steps=int(sys.argv[2]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
