"""Compare a league with one shared policy on connect four: both train for as many env steps, then play.

    python -m benchmarks.connect_four [--seeds 3] [--num-env-steps 1_000_000] [--games 400] [--workers 2]

For each seed, PPO trains twice with the preset: in a league, and with one policy for both seats. The greedy policy of
the league then plays half of the games in each seat, against random moves and against the shared policy. The first four
moves of the games against the shared policy are random, since greedy players would always play the same game. It prints
a line for each seed, and whether the goals are met: 95 % of the games won against random moves, 55 % against the shared
policy (draws count half there).
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from algorithms import League
from algorithms.ppo import PPOConfig
from benchmarks.run import ROOT
from rlmodule.modules.policy import Policy

ENV = "classic/connect_four-v3"
LEAGUE = League(every=5, max_snapshots=15, self_play=0.8, newest=0.0)
KINDS = ("league", "shared")
RANDOM_MOVES = 4

Player = Callable[[Any], int]


def train(kind: str, seed: int, num_env_steps: int, folder: Path) -> None:
    """Train for `num_env_steps`, in a league or with a shared policy, and write the checkpoint."""
    config = PPOConfig.preset(ENV).debugging(seed=seed)
    if kind == "league":
        config.multi_agent(league=LEAGUE)
    with config.build() as algo:
        algo.learn(num_env_steps=num_env_steps)
        algo.save(folder)


def train_apart(kind: str, seed: int, num_env_steps: int, folder: Path) -> None:
    """The same as `train`, in a process of its own with one thread."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.connect_four",
        "--one",
        kind,
        str(seed),
        str(num_env_steps),
        str(folder),
    ]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, env=env, check=True, stdin=subprocess.DEVNULL)


def score(
    player: Player, other: Player, rng: np.random.Generator, num_games: int, random_moves: int = 0
) -> tuple[float, float]:
    """The shares of games that `player` wins and draws, half of them in each seat, after so many random moves."""
    import pettingzoo

    results = list[float]()
    for game in range(num_games):
        seat = f"player_{game % 2}"
        env: Any = pettingzoo.make("aec", ENV)
        env.reset(seed=int(rng.integers(2**31)))
        while not any(env.terminations.values()):
            obs, is_mine = env.observe(env.agent_selection), env.agent_selection == seat
            if obs["observation"].sum() < random_moves:
                env.step(at_random(rng)(obs))
            else:
                env.step((player if is_mine else other)(obs))
        results.append(env.rewards[seat])
    return fmean(one == 1 for one in results), fmean(one == 0 for one in results)


def at_random(rng: np.random.Generator) -> Player:
    """A player that draws its moves."""
    return lambda obs: int(rng.choice(np.flatnonzero(obs["action_mask"])))


def greedy(folder: Path) -> Player:
    """The policy of a checkpoint, which takes the most likely moves."""
    policy: Any = Policy.load(folder, module_id="default_policy")
    return lambda obs: policy.act(obs)[0]


def main() -> None:
    """Train, play and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--num-env-steps", type=int, default=1_000_000)
    parser.add_argument("--games", type=int, default=400)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="for the checkpoints; those that are there are not trained again")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        kind, seed, steps, folder = options.one
        train(kind, int(seed), int(steps), Path(folder))
        return
    with tempfile.TemporaryDirectory() as temporary:
        parent = options.folder or Path(temporary)
        folders = {(kind, seed): parent / f"{kind}-{seed}" for seed in range(options.seeds) for kind in KINDS}
        with ThreadPoolExecutor(options.workers) as pool:
            jobs = [(one, folder) for one, folder in folders.items() if not folder.exists()]
            futures = [pool.submit(train_apart, kind, seed, options.num_env_steps, to) for (kind, seed), to in jobs]
            for future in futures:
                future.result()
        against_random, against_shared = list[float](), list[float]()
        for seed in range(options.seeds):
            rng, league = np.random.default_rng(seed), greedy(folders["league", seed])
            shared = greedy(folders["shared", seed])
            against_random.append(score(league, at_random(rng), rng, options.games)[0])
            wins, draws = score(league, shared, rng, options.games, RANDOM_MOVES)
            against_shared.append(wins + draws / 2)
            baseline = score(shared, at_random(rng), rng, options.games)[0]
            print(
                f"seed {seed}: the league wins {against_random[-1]:.1%} against random moves (shared: {baseline:.1%}), "
                f"{wins:.1%} against shared, and draws {draws:.1%}",
                flush=True,
            )
    for name, scores, goal in (("random", against_random, 0.95), ("shared", against_shared, 0.55)):
        print(f"against {name}: {fmean(scores):.1%}, goal {goal:.0%}: {'met' if fmean(scores) >= goal else 'not met'}")


if __name__ == "__main__":
    main()
