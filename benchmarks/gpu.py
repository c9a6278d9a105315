"""How fast PPO's learner is on a GPU: as it stands, compiled, as CUDA graphs, in bfloat16, next to a bare loop.

    python -m benchmarks.gpu [--jobs atari mujoco wide] [--repeats 20] [--device cuda]

One update is timed: moving the rollout to the device, the value pass, advantages, and all epochs. The bare loop does
the same in plain PyTorch with the same nets, on the device but for the advantages, which it computes on the CPU. All
take turns in one process; figures are medians, and fractions those of neighbours. No environment is stepped. On a
machine without a GPU, `--device cpu` shows that it runs, and what compiling does there.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import torch
import tree
from gymnasium import Space, spaces
from torch import Tensor, nn

from algorithms.ppo import PPOConfig, PPOLearner
from benchmarks.bare_ppo import HALF_LOG_2PI, gae, mlp
from benchmarks.catalog import PlainImage
from benchmarks.run import machine
from rlmodule import Columns, RLModuleSpec, Rollout
from rlmodule.testing.data import random_rollout

WARM_UP = 3  # updates before the clock starts: compiling and capturing are over by then
HEADER = ("job", "learner", "rows/s", "of the bare loop (least – most)")


@dataclass(frozen=True)
class Job:
    """One update of PPO: what is observed and done, and how much of it."""

    observation_space: Space
    action_space: Space
    num_envs: int
    fragment: int
    minibatch_size: int
    model: dict[str, Any]
    num_epochs: int = 4
    lr: float = 2.5e-4
    entropy_coeff: float = 0.01
    vf_loss_coeff: float = 0.5
    clip_param: float = 0.2
    gamma: float = 0.99
    lambda_: float = 0.95
    grad_clip: float = 0.5

    @property
    def rows(self) -> int:
        """Env steps per update."""
        return self.num_envs * self.fragment


_VECTOR, _TORQUES = spaces.Box(-np.inf, np.inf, (17,), np.float32), spaces.Box(-1, 1, (6,), np.float32)
_IMAGE = spaces.Box(0, 255, (84, 84, 4), np.uint8)
_PLAIN: dict[str, Any] = {"normalize_observations": False, "normalize_values": False}
_TANH = {**_PLAIN, "fcnet_hiddens": (64, 64), "fcnet_activation": "tanh", "free_log_std": True}

JOBS = {
    "atari": Job(
        _IMAGE, spaces.Discrete(6), 8, 128, 256, {**_PLAIN, "conv_filters": "nature", "vf_share_layers": True}
    ),
    "mujoco": Job(_VECTOR, _TORQUES, 8, 256, 64, _TANH),
    "wide": Job(_VECTOR, _TORQUES, 4096, 16, 8192, _TANH),
}

BARE = "the bare loop"
LEARNERS: dict[str, dict[str, Any]] = {
    "as it stands": {},
    "compiled": {"torch_compile_learner": True},
    "CUDA graphs": {"torch_cuda_graphs": True},
    "compiled, CUDA graphs": {"torch_compile_learner": True, "torch_cuda_graphs": True},
    "bfloat16": {"torch_autocast": "bfloat16"},
    "bfloat16, compiled, CUDA graphs": {
        "torch_autocast": "bfloat16",
        "torch_compile_learner": True,
        "torch_cuda_graphs": True,
    },
}
"""What is measured, by settings of `learners`."""


class Bare:
    """The update as one loop over tensors.

    Args:
        job: What is learned.
        device: Where.
    """

    def __init__(self, job: Job, device: torch.device) -> None:
        self.job, self.device = job, device
        self.trunk: nn.Module = nn.Identity()
        self.log_std: nn.Parameter | None = None
        if isinstance(job.action_space, spaces.Discrete):
            self.trunk = PlainImage().to(device)
            self.pi, self.vf = (nn.Linear(512, n).to(device) for n in (int(job.action_space.n), 1))
        else:
            width, actions = (int(np.prod(space.shape or ())) for space in (job.observation_space, job.action_space))
            self.pi, self.vf = (mlp(width, n).to(device) for n in (actions, 1))
            self.log_std = nn.Parameter(torch.zeros(actions, device=device))
        parts = [*self.trunk.parameters(), *self.pi.parameters(), *self.vf.parameters()]
        self.parameters = parts if self.log_std is None else [*parts, self.log_std]
        self.optimizer = torch.optim.Adam(self.parameters, lr=job.lr, eps=1e-5, fused=True)

    def update(self, rollout: Rollout) -> None:
        """All epochs over one rollout without ends of episodes."""
        names = (Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP)
        columns = [rollout[name].to(self.device).flatten(0, 1) for name in names]
        advantages, targets = self.estimate(columns[0], rollout)
        columns += [advantages.to(self.device), targets.to(self.device)]
        for _ in range(self.job.num_epochs):
            for rows in torch.randperm(self.job.rows, device=self.device).split(self.job.minibatch_size):
                self.optimizer.zero_grad()
                self.loss(*(column[rows] for column in columns)).backward()
                nn.utils.clip_grad_norm_(self.parameters, self.job.grad_clip)
                self.optimizer.step()

    @torch.no_grad()
    def estimate(self, obs: Tensor, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Standardised advantages and value targets, `[B]` each, on the CPU."""
        rewards = rollout[Columns.REWARDS]
        every = torch.cat([obs, rollout.last_obs.to(self.device)])
        values = self.vf(self.trunk(every)).squeeze(-1).cpu().unflatten(0, (-1, rewards.shape[1]))
        found = gae(rewards, values[:-1], values[1:], torch.zeros_like(rewards), self.job.gamma, self.job.lambda_)
        advantages = (found - found.mean()) / (found.std(unbiased=False) + 1e-8)
        return advantages.flatten(), (found + values[:-1]).flatten()

    def loss(self, obs: Tensor, actions: Tensor, old_logp: Tensor, advantages: Tensor, targets: Tensor) -> Tensor:
        """What is minimised, of one minibatch."""
        job, latent = self.job, self.trunk(obs)
        out, values = self.pi(latent), self.vf(latent).squeeze(-1)
        if self.log_std is None:
            every = out.log_softmax(-1)
            logp, entropy = every.gather(-1, actions.unsqueeze(-1)).squeeze(-1), -(every.exp() * every).sum(-1).mean()
        else:
            z = (actions - out) / self.log_std.exp()
            logp = (-0.5 * z * z - self.log_std - HALF_LOG_2PI).sum(-1)
            entropy = (self.log_std + 0.5 + HALF_LOG_2PI).sum()
        ratio = (logp - old_logp).exp()
        clipped = ratio.clamp(1 - job.clip_param, 1 + job.clip_param)
        surrogate = torch.min(ratio * advantages, clipped * advantages).mean()
        return job.vf_loss_coeff * (values - targets).square().mean() - surrogate - job.entropy_coeff * entropy


def spec_of(job: Job, config: PPOConfig) -> RLModuleSpec:
    """Our module of the job."""
    return config.get_rl_module_spec(job.observation_space, job.action_space)


def learner(job: Job, device: torch.device, settings: dict[str, Any]) -> PPOLearner:
    """Our learner of the job, with these settings of `learners`."""
    config = (
        PPOConfig()
        .learners(num_gpus_per_learner=int(device.type == "cuda"), **settings)
        .training(
            lr=job.lr,
            gamma=job.gamma,
            lambda_=job.lambda_,
            clip_param=job.clip_param,
            minibatch_size=job.minibatch_size,
            num_epochs=job.num_epochs,
            entropy_coeff=job.entropy_coeff,
            vf_loss_coeff=job.vf_loss_coeff,
            grad_clip=job.grad_clip,
        )
        .rl_module(model_config=job.model)
    )
    return PPOLearner(config, spec_of(job, config).as_multi(), run_seed=0)


def rollout_of(job: Job) -> Rollout:
    """Random observations and rewards on which a module of the job acted; no episode ends."""
    module = spec_of(job, PPOConfig().rl_module(model_config=job.model)).build()
    made = random_rollout(module, job.fragment, job.num_envs)
    nothing = torch.zeros_like(made.valid)
    columns = {Columns.VALID: ~nothing, Columns.TERMINATEDS: nothing, Columns.TRUNCATEDS: nothing}
    finals = tree.map_structure(lambda x: x[:0], made.final_obs)
    return replace(made, columns=made.columns | columns, final_index=made.final_index[:0], final_obs=finals)


def measure(job: Job, learners: Sequence[str], device: torch.device, repeats: int) -> dict[str, list[float]]:
    """Rows per second of `repeats` updates of the bare loop and of each of `learners`, in turns."""
    torch.manual_seed(0)
    rollout, bare = rollout_of(job), Bare(job, device)
    updates: dict[str, Callable[[], object]] = {BARE: lambda: bare.update(rollout)}
    for name in learners:
        ours = learner(job, device, LEARNERS[name])
        updates[name] = lambda ours=ours: ours.update_from_episodes(rollout, env_steps=0)
    speeds: dict[str, list[float]] = {name: [] for name in updates}
    for _ in range(WARM_UP + repeats):
        for name, update in updates.items():
            speeds[name].append(job.rows / timed(update, device))
    return {name: values[WARM_UP:] for name, values in speeds.items()}


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Seconds until all of `work` is done, also on the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def table(speeds: dict[str, dict[str, list[float]]]) -> str:
    """The speeds of each job as Markdown."""
    lines: list[tuple[str, ...]] = [HEADER, ("---",) * len(HEADER)]
    for job, of_job in speeds.items():
        for name, values in of_job.items():
            shares = [mine / bare for mine, bare in zip(values, of_job[BARE], strict=True)]
            share = f"{median(shares):.2f} ({min(shares):.2f} – {max(shares):.2f})"
            lines.append((job, name, f"{median(values):,.0f}", "" if name == BARE else share))
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS), help="default: all")
    parser.add_argument("--repeats", type=int, default=20, help="updates of each (default: %(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    args = parser.parse_args()
    if args.repeats < 1:
        parser.error("--repeats must be at least 1")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; --device cpu runs the same on the CPU")
    device = torch.device(args.device, 0) if args.device == "cuda" else torch.device("cpu")
    learners = [name for name in LEARNERS if args.device == "cuda" or "CUDA" not in name]
    speeds = {}
    for name in args.jobs:
        speeds[name] = measure(JOBS[name], learners, device, args.repeats)
        print(f"{name}: {median(speeds[name][BARE]):,.0f} rows/s of the bare loop", flush=True)
    print(table(speeds))
    where = f"{torch.cuda.get_device_name(device)}; " if args.device == "cuda" else ""
    print(f"\nMedians of {args.repeats} updates each, in turns. {where}{machine()}.")


if __name__ == "__main__":
    main()
