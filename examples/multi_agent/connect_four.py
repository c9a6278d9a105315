"""Connect four of PettingZoo against past selves: one policy in a league, its moves masked, then against random moves.

In 80 % of the league's games the policy that learns has both seats. In the others an earlier version of it has one,
preferably one that is hard to beat. ``--shared`` trains without. ``--against DIR`` also plays against a checkpoint.

Run it as ``python examples/multi_agent/connect_four.py``.
"""

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import pettingzoo

from algorithms import League
from algorithms.ppo import PPOConfig
from rlmodule.modules.policy import Policy

parser = argparse.ArgumentParser()
parser.add_argument("--num-env-steps", type=int)
parser.add_argument("--shared", action="store_true")
parser.add_argument("--against")
parser.add_argument("--save")
options, rng = parser.parse_args(namespace=argparse.Namespace(num_env_steps=40_000)), np.random.default_rng(1)


def play(players: dict[str, Callable[[Any], Any]]) -> dict[str, float]:
    """The rewards of a game whose first four moves are random: greedy players would always play the same one."""
    env: Any = pettingzoo.make("aec", "classic/connect_four-v3")
    env.reset(seed=int(rng.integers(2**31)))
    while not any(env.terminations.values()):
        obs = env.observe(env.agent_selection)
        env.step((players[env.agent_selection] if obs["observation"].sum() >= 4 else at_random)(obs))
    return env.rewards


def at_random(obs: Any) -> int:
    return int(rng.choice(np.flatnonzero(obs["action_mask"])))


def greedy(policy: Policy) -> Callable[[Any], Any]:
    return lambda obs: policy.act(obs)[0]


league = None if options.shared else League(every=5, max_snapshots=15, self_play=0.8, newest=0.0)
config = PPOConfig.preset("classic/connect_four-v3").multi_agent(league=league).debugging(seed=1)
opponents: dict[str, Callable[[Any], Any]] = {"random moves": at_random}
if path := options.against:
    opponents[path] = greedy(Policy.load(path, module_id="default_policy"))
with config.build() as algo:
    algo.learn(num_env_steps=options.num_env_steps, progress=True)
    me = greedy(algo.policies["default_policy"])
    for name, other in opponents.items():
        for seat, against in (("player_0", "player_1"), ("player_1", "player_0")):
            wins = np.mean([play({seat: me, against: other})[seat] == 1 for _ in range(50)])
            print(f"{seat} against {name}: {wins:.0%} won")
    if options.save:
        algo.save(options.save)
