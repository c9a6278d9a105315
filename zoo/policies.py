"""The commands that train the policies of the zoo, by the names of their folders."""

import shlex

COMMANDS = {
    "ppo-cartpole": "train ppo CartPole-v1",
    "a2c-acrobot": "train a2c Acrobot-v1",
    "bc-cartpole": "train bc CartPole-v1 --data runs/zoo/ppo-cartpole-episodes --num-updates 5000",
    "ppo-taxi": "train ppo zoo.envs:taxi --num-env-steps 300_000 --fcnet-hiddens 32",
    "td3-pendulum": "train td3 Pendulum-v1",
    "ppo-halfcheetah": "train ppo HalfCheetah-v5 --num-env-steps 500_000",
    "ppo-lstm-cart-positions": (
        "train ppo zoo.envs:cart_positions --num-env-steps 400_000 --use-lstm --lstm-cell-size 32 --max-seq-len 16 "
        "--num-envs-per-env-runner 32 --train-batch-size-per-learner 4096 --minibatch-size 1024 --num-epochs 8 "
        "--lr 1e-3"
    ),
    "dqn-mountaincar": "train dqn MountainCar-v0 --evaluation-interval 5",
    "ppo-simple-spread": "train ppo mpe2.simple_spread_v3 --num-env-steps 504_000",
    "ppo-mountaincar-continuous": "train ppo MountainCarContinuous-v0",
    "tqc-pendulum": "train sac Pendulum-v1 --num-quantiles 25 --num-critics 2 --drop-quantiles 2",
    "qr-dqn-lunarlander": (
        "train dqn LunarLander-v3 --num-env-steps 150_000 --num-quantiles 50 --fcnet-hiddens 64 64 "
        "--lr '[[0, 5e-4], [150000, 0]]' --evaluation-interval 15"
    ),
}
"""Name of a policy → the arguments of ``rlmodule`` that train it, without its seed, threads and run folder."""

DATA = {"bc-cartpole": "record runs/zoo/ppo-cartpole runs/zoo/ppo-cartpole-episodes --episodes 20"}
"""Name of a policy → the arguments of ``rlmodule`` that record the data which it learns from."""

FLAGS = "--seed 1 --torch-num-threads 1 --checkpoint-interval 20"
"""Flags of each training."""

SEED_OF_EPISODES, EPISODES = 1000, 100
"""Seed and number of the episodes of the score."""

ALLOW = "zoo.envs"
"""The module that checkpoints with an env of the zoo import."""


def env_of(name: str) -> str:
    """Return the env of a policy."""
    return shlex.split(COMMANDS[name])[2]


def evaluate_command(name: str) -> str:
    """Return the arguments of ``rlmodule`` that play episodes with a policy."""
    allow = f" --allow {ALLOW}" if ALLOW in env_of(name) else ""
    return f"evaluate zoo/{name} --seed {SEED_OF_EPISODES}{allow}"
