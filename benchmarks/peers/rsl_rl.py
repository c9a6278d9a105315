"""The carts of `benchmarks.ours_tensors`, trained by rsl_rl.

    python -m benchmarks.peers.rsl_rl carts 500000    # of an environment with requirements/rsl_rl.txt

Steps per second are env steps per second of CPU time. rsl_rl sees no final observations: where a
time limit ends an episode, the value of the last step's observation stands in.
"""

import contextlib
import io
from typing import Any

import torch
from rsl_rl.env import VecEnv  # pyright: ignore[reportMissingImports]
from rsl_rl.runners import OnPolicyRunner  # pyright: ignore[reportMissingImports]
from tensordict import TensorDict  # pyright: ignore[reportMissingImports]

from benchmarks.jobs import TENSOR_JOBS, TensorJob, main
from benchmarks.tensor_envs import Carts, timed


class CartsOfRsl(VecEnv):
    """The carts as rsl_rl expects them."""

    def __init__(self, num_envs: int, seed: int) -> None:
        self.carts = Carts(num_envs)
        self.num_envs, self.num_actions, self.max_episode_length = num_envs, 1, self.carts.length
        self.device, self.cfg = "cpu", {}
        self.obs, _ = self.carts.reset(seed=seed)

    @property
    def episode_length_buf(self) -> torch.Tensor:
        """Steps so far of each episode."""
        return self.carts.age

    def get_observations(self) -> TensorDict:
        """The latest observations."""
        return TensorDict({"policy": self.obs}, batch_size=[self.num_envs])

    def step(self, actions: torch.Tensor) -> Any:
        """One step of all carts."""
        self.obs, rewards, terminated, truncated, _ = self.carts.step(actions)
        return self.get_observations(), rewards, terminated | truncated, {"time_outs": truncated}


def train(job: TensorJob, total_steps: int, seed: int) -> dict[str, Any]:
    """The same as `ours_tensors.train`."""
    torch.set_num_threads(1)
    net = {
        "class_name": "MLPModel",
        "hidden_dims": list(job.hiddens),
        "activation": "elu",
        "obs_normalization": False,
    }
    algorithm = {
        "class_name": "PPO",
        "num_learning_epochs": job.num_epochs,
        "num_mini_batches": job.batch_size // job.minibatch_size,
        "clip_param": job.clip_param,
        "gamma": job.gamma,
        "lam": job.lambda_,
        "value_loss_coef": job.vf_loss_coeff,
        "entropy_coef": job.entropy_coeff,
        "learning_rate": job.lr,
        "max_grad_norm": job.grad_clip,
        "schedule": "fixed",
        "use_clipped_value_loss": False,
    }
    gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0, "std_type": "scalar"}
    settings = {
        "seed": seed,
        "num_steps_per_env": job.fragment,
        "save_interval": 10**9,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "multi_gpu": None,
        "check_for_nan": True,
        "logger": "tensorboard",
        "actor": {**net, "distribution_cfg": gaussian},
        "critic": net,
        "algorithm": algorithm,
    }
    torch.manual_seed(seed)
    env = CartsOfRsl(job.num_envs, seed)
    with contextlib.redirect_stdout(io.StringIO()):
        runner = OnPolicyRunner(env, settings, None, "cpu")

        def iteration() -> float:
            runner.learn(1)
            return env.carts.mean_return()

        return timed(job, total_steps, iteration)


if __name__ == "__main__":
    main(train, __doc__, TENSOR_JOBS)
