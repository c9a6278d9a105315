"""The jobs that are timed, and what every timed script prints. Nothing heavy is imported: the parent reads it too."""

import argparse
import json
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

WARM_UP = 2  # iterations before the clock starts


@dataclass(frozen=True)
class Job:
    """One PPO job: two separate nets of 2 × 64 tanh units; continuous actions have a free log standard deviation.

    With a `seq_len` there is one net of 2 × 64 tanh units, an LSTM of 64 cells after it, and both heads on that.
    """

    env_id: str
    num_envs: int
    fragment: int  # vector steps per iteration: a batch has num_envs × fragment rows
    num_epochs: int
    minibatch_size: int
    lr: float
    entropy_coeff: float
    vf_loss_coeff: float
    gamma: float = 0.99
    lambda_: float = 0.95
    clip_param: float = 0.2
    grad_clip: float = 0.5
    seq_len: int | None = None  # steps per training sequence; a minibatch has minibatch_size / seq_len of them
    num_learners: int = 0  # processes that share a batch, and each minibatch of it; 0 is this process
    num_threads: int = 1  # of torch; more do not pay for small nets
    num_agents: int = 1  # in each env, all of which act at each of its steps, which counts once
    shares_module: bool = True  # among the agents, or each has its own

    @property
    def is_atari(self) -> bool:
        """Whether observations are images, for the CNN of Mnih et al. 2015 under both heads."""
        return self.env_id.startswith("ALE/")

    @property
    def batch_size(self) -> int:
        """Env steps per iteration."""
        return self.num_envs * self.fragment


JOBS = {
    "cartpole": Job(
        "CartPole-v1", 8, 128, num_epochs=4, minibatch_size=256, lr=2.5e-4, entropy_coeff=0.01, vf_loss_coeff=0.5
    ),
    "cheetah": Job(
        "HalfCheetah-v5", 8, 256, num_epochs=10, minibatch_size=256, lr=3e-4, entropy_coeff=0.0, vf_loss_coeff=0.5
    ),
    # a small vf_loss_coeff: in the net that both share, errors of raw returns would drown the policy's gradient
    "lstm": Job(
        "CartPole-v1",
        8,
        128,
        num_epochs=4,
        minibatch_size=256,
        lr=1e-3,
        entropy_coeff=0.01,
        vf_loss_coeff=5e-4,
        seq_len=16,
    ),
}

# For ours_ppo and the peers; prepared as usual: frames skipped, grey, 84 × 84, four of them stacked.
PONG_JOBS = {
    "pong": Job(
        "ALE/Pong-v5",
        8,
        128,
        num_epochs=4,
        minibatch_size=256,
        lr=2.5e-4,
        entropy_coeff=0.01,
        vf_loss_coeff=0.5,
        clip_param=0.1,
        num_threads=2,
    )
}

# For ours_ppo and RLlib alone: the plain loops have one process.
SHARED_JOBS = {"learners": replace(JOBS["cartpole"], num_learners=2)}

# For ours_ppo and RLlib alone: the other libraries have no several agents in one env.
AGENTS_JOBS = {
    "agents-shared": replace(JOBS["cartpole"], num_agents=4),
    "agents-own": replace(JOBS["cartpole"], num_agents=4, shares_module=False),
    "agents-100": replace(JOBS["cartpole"], num_envs=1, fragment=256, num_agents=100),
}


@dataclass(frozen=True)
class DQNJob:
    """One DQN job: a net of 2 × 64 ReLU units, one update per vector step. Steps are env steps over all envs."""

    env_id: str
    num_envs: int
    batch_size: int  # transitions per update
    capacity: int  # transitions that are kept, a multiple of num_envs
    learning_starts: int
    warm_up: int  # steps before the clock starts, a multiple of num_envs
    target_update_freq: int  # steps after which the target net is copied; the next vector step that reaches them does
    explore_steps: int  # over which epsilon falls from 1 to final_epsilon
    lr: float
    num_threads: int = 1
    final_epsilon: float = 0.05
    gamma: float = 0.99
    grad_clip: float = 10.0


DQN_JOBS = {
    "dqn": DQNJob(
        "CartPole-v1",
        8,
        batch_size=128,
        capacity=50_000,
        learning_starts=1000,
        warm_up=2000,
        target_update_freq=500,
        explore_steps=10_000,
        lr=5e-4,
    )
}


@dataclass(frozen=True)
class SACJob:
    """One SAC job: policy and two critics of 2 × 256 ReLU units, one update per env step, as published."""

    env_id: str
    num_envs: int
    batch_size: int = 256
    capacity: int = 50_000
    learning_starts: int = 512
    warm_up: int = 1024  # steps before the clock starts, a multiple of num_envs
    lr: float = 3e-4
    gamma: float = 0.99
    tau: float = 0.005
    num_threads: int = 1


SAC_JOBS = {
    "sac-pendulum": SACJob("Pendulum-v1", 8),
    "sac-pendulum-1": SACJob("Pendulum-v1", 1),
    "sac-cheetah": SACJob("HalfCheetah-v5", 8),
    "sac-cheetah-1": SACJob("HalfCheetah-v5", 1),
}


@dataclass(frozen=True)
class TD3Job(SACJob):
    """One TD3 job: nets and updates as in SAC's."""

    policy_delay: int = 2
    target_noise: float = 0.2
    target_noise_clip: float = 0.5
    exploration_noise: float = 0.1


TD3_JOBS = {
    "td3-pendulum": TD3Job("Pendulum-v1", 8),
    "td3-pendulum-1": TD3Job("Pendulum-v1", 1),
    "td3-cheetah": TD3Job("HalfCheetah-v5", 8),
    "td3-cheetah-1": TD3Job("HalfCheetah-v5", 1),
}


@dataclass(frozen=True)
class StreamJob:
    """One IMPALA or APPO job: two separate nets of 2 × 64 tanh units, one gradient step per batch, and env runners in
    other processes that do not wait."""

    algorithm: str
    env_id: str = "CartPole-v1"
    num_runners: int = 1
    num_envs: int = 8  # of each runner
    fragment: int = 32  # vector steps per rollout
    batch_size: int = 512
    lr: float = 5e-4
    entropy_coeff: float = 0.01
    vf_loss_coeff: float = 0.5
    gamma: float = 0.99
    grad_clip: float = 40.0
    clip_param: float = 0.4
    num_threads: int = 1
    num_learners: int = 0  # 1 puts the learner into another process


STREAM_JOBS = {
    f"{algorithm}{mode}": StreamJob(algorithm, num_learners=num_learners)
    for algorithm in ("impala", "appo")
    for mode, num_learners in (("", 0), ("-learner", 1))
}
"""For ours_stream and RLlib alone: the others have no such runners, or none for their own algorithms."""


@dataclass(frozen=True)
class TensorJob(Job):
    """One PPO job on envs in one tensor, with two separate nets of ELU units."""

    hiddens: tuple[int, ...] = (128, 128, 128)


TENSOR_JOBS = {
    "carts": TensorJob(
        "tensors of CartPole",
        4096,
        24,
        num_epochs=5,
        minibatch_size=4096 * 24 // 4,
        lr=1e-3,
        entropy_coeff=0.005,
        vf_loss_coeff=1.0,
        grad_clip=1.0,
    )
}

AnyJob = TypeVar("AnyJob", bound=Job | DQNJob | SACJob | StreamJob)


def peak_mb() -> float:
    """The largest resident memory this process ever had, in MB (Linux hands on the parent's, so keep parents small)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def main(train: Callable[[AnyJob, int, int], Mapping[str, Any]], doc: str | None, jobs: Mapping[str, AnyJob]) -> None:
    """The command line of a timed script: run one of `jobs` and print a line of JSON, with the peak memory added."""
    parser = argparse.ArgumentParser(description=(doc or "").split("\n")[0])
    parser.add_argument("job", choices=sorted(jobs))
    parser.add_argument(
        "total_steps", nargs="?", type=int, default=60_000, help="env steps in all (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    result = train(jobs[args.job], args.total_steps, args.seed)
    print(json.dumps({**result, "peak_mb": round(peak_mb(), 1)}))
