"""Measure the learning curves of docs/pictures/learned.py: three seeds of each run, on one thread.

Run it in the root as ``python docs/pictures/curves/measure.py ppo``, or with the names of other files here. It trains
the runs of a file and writes their evaluations, each of 20 greedy episodes, to ``docs/pictures/curves/ppo.json``.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(ROOT))

from algorithms.a2c import A2CConfig  # noqa: E402
from algorithms.dqn import DQNConfig  # noqa: E402
from algorithms.ppo import PPOConfig  # noqa: E402

SEEDS = 1, 2, 3
BitFlip = runpy.run_path(str(ROOT / "examples" / "hindsight" / "bit_flip.py"))["BitFlip"]
RETURN, LENGTH = "episode_return_mean", "episode_len_mean"


def bit_flip(her_ratio: float) -> Any:
    """The run of examples/hindsight/train.py."""
    config = DQNConfig().environment(BitFlip, env_config={"num_bits": 15})
    config.training(lr=1e-3, gamma=0.98, n_step=1).replay(her_ratio=her_ratio)
    return config.rl_module(model_config={"flatten_observations": True})


def positions(model_config: dict[str, Any]) -> Any:
    """The run of examples/catalog/memory.py."""
    config = PPOConfig().environment("benchmarks.stateless:StatelessCartPole-v0")
    config.training(lr=1e-3, train_batch_size_per_learner=1024, minibatch_size=128, num_epochs=8)
    return config.rl_module(model_config=model_config)


RUNS: dict[str, tuple[int, int, Callable[[], dict[str, Any]]]] = {
    "ppo": (50_000, 1, lambda: {"PPO": PPOConfig(env="CartPole-v1")}),
    "a2c": (200_000, 2_000, lambda: {"A2C": A2CConfig(env="CartPole-v1")}),
    "dqn": (50_000, 2_000, lambda: {"DQN": DQNConfig(env="CartPole-v1")}),
    "hindsight": (
        15_000,
        1_000,
        lambda: {"her_ratio=0.8": bit_flip(0.8), "her_ratio=0": bit_flip(0.0)},
    ),
    "recurrent": (
        40_000,
        1_000,
        lambda: {"use_lstm=True": positions({"use_lstm": True}), "no memory": positions({})},
    ),
}
"""Name of a file → the env steps of its runs, those between two evaluations, and the configs by label."""


def points_of(config: Any, length: int, pace: int, seed: int) -> list[list[float]]:
    """Train a run and return its evaluations: ``[env steps, return]`` each."""
    points: list[list[float]] = []
    config = config.copy().debugging(seed=seed).learners(torch_num_threads=1)
    with config.build() as algo:
        while algo.env_steps < length:
            algo.learn(num_env_steps=min(pace, length - algo.env_steps))
            found = algo.evaluate(num_episodes=20)["env_runners"]
            value = found[RETURN] + found[LENGTH] if config.env is BitFlip else found[RETURN]
            points.append([algo.env_steps, round(float(value), 2)])
    return points


def measure(name: str) -> None:
    """Write the file ``name``."""
    length, pace, configs = RUNS[name]
    curves = {label: [points_of(config, length, pace, seed) for seed in SEEDS] for label, config in configs().items()}
    text = json.dumps(curves, separators=(",", ":"))
    (HERE / f"{name}.json").write_text(text.replace("]],[[", "]],\n[[") + "\n", encoding="utf-8")


if __name__ == "__main__":
    for one in sys.argv[1:]:
        measure(one)
