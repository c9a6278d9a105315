"""Fifteen bits to flip, without hindsight and with it: DQN finds every goal, once it learns from those that it missed.

Run it as ``python examples/hindsight/train.py``, or with ``--num-bits 8``, which takes seconds.
"""

from argparse import ArgumentParser

from bit_flip import BitFlip

from algorithms.dqn import DQNConfig

parser = ArgumentParser(description=__doc__)
parser.add_argument("--num-bits", type=int, default=15)
parser.add_argument("--seed", type=int, default=1)
args = parser.parse_args()

config = (
    DQNConfig()
    .environment(BitFlip, env_config={"num_bits": args.num_bits})
    .training(lr=1e-3, gamma=0.98, n_step=1)
    .rl_module(model_config={"flatten_observations": True})  # one net sees bits and goal together
    .evaluation(evaluation_duration=100)
    .debugging(seed=args.seed)
)
for ratio in (0.0, 0.8):
    with config.copy().replay(her_ratio=ratio).build() as algo:
        algo.learn(num_env_steps=20_000, progress=True)
        result = algo.evaluate()["env_runners"]
    # each step costs 1, but for the one that reaches the goal
    reached = result["episode_return_mean"] + result["episode_len_mean"]
    print(f"her_ratio={ratio}: {reached:.0%} of the goals are reached")
