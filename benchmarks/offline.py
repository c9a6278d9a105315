"""Scores of what is learned from data sets, and updates per second next to a bare loop of the same arithmetic.

    python -m benchmarks.offline            # scores, three seeds each
    python -m benchmarks.offline --speed    # updates per second, five alternating pairs
    python -m benchmarks.offline --speed --rllib /path/to/python    # and of RLlib's BC, in that environment

The data sets are made by runs with fixed seeds, which are not among those that learn from them. Each score is added to
`benchmarks/offline.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from torch import nn

from algorithms.bc import BCConfig
from algorithms.dqn import DQNConfig
from algorithms.marwil import MARWILConfig
from algorithms.recording import record
from algorithms.registry import name_of
from algorithms.sac import SACConfig
from benchmarks.run import child, machine
from benchmarks.tables import COMPUTING, ROOT, SAMPLING, digest, typed
from rlmodule import Dataset
from rlmodule.modules.apis import ExplorationAPI
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID

DATA_SEED = 100
EPISODES = 100
"""Episodes of each evaluation."""
SCORES = ROOT / "benchmarks" / "offline.jsonl"
"""Every score that was found, a line of JSON each."""


@dataclass(frozen=True)
class Data:
    """A data set, and what its numbers are measured by.

    Attributes:
        dataset: The episodes.
        random: Mean return of random actions.
        expert: Mean return of the policy that played, without what was random about it.
    """

    dataset: Dataset
    random: float
    expert: float

    def normalised(self, score: float) -> float:
        """Return a mean return in percent of the way from random to expert."""
        return 100 * (score - self.random) / (self.expert - self.random)


def cartpole(num_episodes: int, random_share: float) -> Data:
    """Return episodes of DQN's policy on CartPole, of whose actions a share is random."""
    with DQNConfig.preset("CartPole-v1").debugging(seed=DATA_SEED).build() as expert:
        expert.learn(num_env_steps=50_000, target_return=499.0)
        score = score_of(expert)
        module: Any = expert.get_module()
        assert isinstance(module, ExplorationAPI)
        module.set_exploration(random_share)
        dataset = record(expert, num_episodes=num_episodes, explore=True)[DEFAULT_MODULE_ID]
    return Data(dataset, random_score("CartPole-v1"), score)


def pendulum(num_episodes: int) -> Data:
    """Return episodes of SAC's policy on Pendulum."""
    with SACConfig(env="Pendulum-v1", seed=DATA_SEED).build() as expert:
        expert.learn(num_env_steps=15_000)
        score = score_of(expert)
        dataset = record(expert, num_episodes=num_episodes)[DEFAULT_MODULE_ID]
    return Data(dataset, random_score("Pendulum-v1"), score)


def random_score(env_id: str) -> float:
    """Return the mean return of 50 episodes of random actions."""
    env, returns = gym.make(env_id), list[float]()
    env.action_space.seed(DATA_SEED)
    for number in range(50):
        env.reset(seed=DATA_SEED + number)
        total, is_over = 0.0, False
        while not is_over:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, is_over = total + float(reward), terminated or truncated
        returns.append(total)
    return statistics.fmean(returns)


def score_of(algorithm: Any, num_episodes: int = EPISODES) -> float:
    """Return the mean return of an evaluation."""
    return algorithm.evaluate(num_episodes=num_episodes)["env_runners"]["episode_return_mean"]


def sources(config: Any) -> tuple[str, ...]:
    """The files and folders that a score depends on, next to its data."""
    return f"algorithms/{name_of(config).lower()}", "algorithms/run/evaluation.py", *COMPUTING, *SAMPLING


def kept(key: dict[str, Any]) -> dict[int, dict[str, Any]]:
    """Return the scores that were found for `key`, by seed; of each seed the last."""
    lines = SCORES.read_text(encoding="utf-8").splitlines() if SCORES.exists() else []
    return {score["seed"]: score for score in map(json.loads, lines) if key.items() <= score.items()}


def keep(score: dict[str, Any]) -> None:
    """Add a score to those that were found."""
    with SCORES.open("a", encoding="utf-8") as file:
        file.write(json.dumps(score | {"machine": machine(), "command": typed()}) + "\n")


ROWS: dict[str, tuple[Callable[[], Data], Any, dict[str, Any], int, str]] = {
    "BC, CartPole, 20 expert episodes": (lambda: cartpole(20, 0.0), BCConfig, {}, 5_000, ">= 490"),
    # few updates, since half of the actions are noise, which nets learn by heart in the end; the rewards of a whole
    # episode count, since a cart that drifts fails only after hundreds of steps
    "MARWIL, CartPole, 200 half-random episodes": (
        lambda: cartpole(200, 0.5),
        MARWILConfig,
        {"beta": 3.0, "gamma": 0.999},
        3_000,
        ">= 475",
    ),
    "BC, Pendulum, 50 expert episodes": (lambda: pendulum(50), BCConfig, {}, 20_000, ">= 95 %"),
}
"""Name → data, config, settings, updates and bar."""


def scores(seeds: int, only: str) -> None:
    """Print the table of scores."""
    print("| what learns | data: steps, mean return | expert | updates | scores | median | normalised | bar | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, (make, config, settings, num_updates, bar) in ROWS.items():
        if only not in name:
            continue
        begin, data, code = time.process_time(), make(), digest(sources(config()))
        found = []
        for seed in range(1, seeds + 1):
            made = config(env=data.dataset.env, data=data.dataset, seed=seed, **settings)
            with made.build() as algorithm:
                algorithm.learn(num_updates=num_updates)
                found.append(score_of(algorithm))
            run = {"data": name, "num_updates": num_updates, "settings": settings, "seed": seed, "score": found[-1]}
            keep(run | {"digest": data.dataset.digest, "code": code})
        median = statistics.median(found)
        each = ", ".join(f"{score:.0f}" for score in found)
        about = f"{data.dataset.num_steps:,}, {data.dataset.returns.mean():.0f}"
        print(
            f"| {name} | {about} | {data.expert:.0f} | {num_updates:,} | {each} | **{median:.0f}** | "
            f"{data.normalised(median):.0f} % | {bar} | {time.process_time() - begin:.0f} |",
            flush=True,
        )


# --- speed ------------------------------------------------------------------------------------------------------------


def bare_bc(dataset: Dataset, num_updates: int, batch_size: int = 256) -> float:
    """Clone the actions of a data set in a bare loop with the nets and settings of BC. Return the updates per
    second."""
    observations = torch.from_numpy(dataset.observations)
    actions = torch.from_numpy(dataset.actions)
    size = observations.shape[1]
    policy = nn.Sequential(nn.Linear(size, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4, fused=True)
    begin = time.perf_counter()
    for _ in range(num_updates):
        rows = torch.randint(len(observations), (batch_size,))
        logits = policy(observations[rows])
        loss = nn.functional.cross_entropy(logits, actions[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
    return num_updates / (time.perf_counter() - begin)


def own_bc(dataset: Dataset, num_updates: int) -> float:
    """Return the updates per second of BC."""
    with BCConfig(data=dataset, seed=1, torch_num_threads=1).build() as algorithm:
        algorithm.learn(num_updates=1000)
        begin = time.perf_counter()
        algorithm.learn(num_updates=num_updates)
        return num_updates / (time.perf_counter() - begin)


def write_table(dataset: Dataset, path: Path) -> None:
    """Write the steps of a data set as a Parquet file whose columns have RLlib's names."""
    ends = dataset.offsets[1:] - 1
    following = np.roll(dataset.observations, -1, axis=0)
    following[ends] = dataset.final_observations
    terminateds, truncateds = np.zeros((2, dataset.num_steps), bool)
    terminateds[ends], truncateds[ends] = dataset.terminated, ~dataset.terminated
    columns = {
        "eps_id": np.repeat(np.arange(dataset.num_episodes), dataset.lengths).astype(str),
        "obs": [*dataset.observations],
        "new_obs": [*following],
        "actions": [*dataset.actions],
        "rewards": dataset.rewards,
        "terminateds": terminateds,
        "truncateds": truncateds,
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def first_update(num_steps: int) -> float:
    """Return the CPU seconds from a folder of random steps to BC's first update: loading, checking, building and
    learning."""
    rng = np.random.default_rng(DATA_SEED)
    observations = rng.normal(size=(num_steps, 17)).astype(np.float32)
    dataset = Dataset.from_arrays(
        observations,
        rng.uniform(-1, 1, (num_steps, 6)).astype(np.float32),
        rng.normal(size=num_steps),
        terminals=np.zeros(num_steps, bool),
        timeouts=np.arange(num_steps) % 1000 == 999,
        next_observations=np.roll(observations, -1, axis=0),
        action_space=gym.spaces.Box(-1, 1, (6,)),
    )
    with tempfile.TemporaryDirectory() as folder:
        dataset.save(folder + "/data")
        begin = time.process_time()
        with BCConfig(data=folder + "/data", num_updates_per_iteration=1, torch_num_threads=1).build() as algorithm:
            algorithm.learn(num_updates=1)
            return time.process_time() - begin


def speed(pairs: int, rllib: str | None) -> None:
    """Print updates per second of BC, of the bare loop and of RLlib's BC, in alternating runs.

    Args:
        pairs: Number of runs of each.
        rllib: The interpreter of an environment that has RLlib; None leaves it out.
    """
    torch.set_num_threads(1)
    print(f"first update from a folder of 300,000 steps: {first_update(300_000):.2f} CPU seconds", flush=True)
    dataset = cartpole(20, 0.0).dataset
    ratios: dict[str, list[float]] = {"bare loop": [], "RLlib's BC": []}
    with tempfile.TemporaryDirectory() as folder:
        write_table(dataset, Path(folder) / "steps.parquet")
        for _ in range(pairs):
            rates = {"bare loop": bare_bc(dataset, 5000)}
            own = own_bc(dataset, 5000)
            if rllib is not None:
                figures = child("-m", "benchmarks.peers.rllib_offline", "bc", folder, "2000", python=rllib)
                rates["RLlib's BC"] = figures["updates_per_s"]
            for name, rate in rates.items():
                ratios[name].append(own / rate)
                print(f"BC {own:,.0f}/s, {name} {rate:,.0f}/s, ratio {own / rate:.2f}", flush=True)
    for name, found in ratios.items():
        if found:
            print(f"median ratio to the {name}: {statistics.median(found):.2f}")


def main() -> None:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of the name of a row")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--rllib", help="interpreter of an environment that has RLlib")
    args = parser.parse_args()
    if args.speed:
        speed(args.pairs, args.rllib)
    else:
        scores(args.seeds, args.only)


if __name__ == "__main__":
    main()
