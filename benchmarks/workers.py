"""What env runners in processes of their own gain and cost.

    python -m benchmarks.workers sampling    # HalfCheetah's steps per second: two runners, and one in this process
    python -m benchmarks.workers syncing     # ms until eight runners have the weights of a module of a million
    python -m benchmarks.workers driver      # ms per iteration that are neither the envs' nor the runners'

Each prints one line of JSON, of medians. Ray is started for it on this machine.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from algorithms.ppo import PPOCatalog, PPOModule
from benchmarks.catalog import in_turn
from benchmarks.jobs import JOBS
from benchmarks.ours_ppo import config
from rlmodule import RLModule, RLModuleSpec, Rollout
from rlmodule.distributed.ray_workers import Answer, RayWorkers
from rlmodule.distributed.restarts import RestartPolicy, WorkerAccounts
from rlmodule.groups.env_runner_group import EnvRunnerGroup

LONG_FRAGMENT = 512  # vector steps
NUM_INPUTS = 64  # of the modules that are sent
SHARE_OF_CPU = 0.01  # that Ray sets aside for a worker: more of them than CPUs shall find room


class Instant(gym.Env[Any, Any]):
    """An env without a task. A step of it takes no time."""

    observation_space = spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self._seen = np.zeros(4, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return self._seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._seen, 0.0, False, False, {}


class Keeper:
    """A worker that has a module, and takes weights over as env runners do.

    Args:
        spec: Of the module.
        index, incarnation: Which worker; not of interest.
    """

    progress = 0

    def __init__(self, spec: RLModuleSpec, index: int, incarnation: int) -> None:
        self._module = spec.build(inference_only=True)

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Have these weights from now on."""
        self._module.set_state(weights)

    def stop(self) -> None:
        """Nothing is open."""


def worker_group(size: int, factory: Callable[[int, int], Any]) -> RayWorkers:
    """As many workers as asked for, which are not restarted."""
    return RayWorkers(
        "worker",
        size,
        factory,
        num_cpus=SHARE_OF_CPU,
        timeout_s=300.0,  # they start one after the other: 32 on two cores take minutes
        restarts=RestartPolicy(0),
        accounts=WorkerAccounts(),
    )


def values_of(workers: RayWorkers, method: str, args: Mapping[int, tuple[Any, ...]]) -> list[Any]:
    """Call ``method`` of the workers that ``args`` has arguments for, and return the values."""
    answers = workers.call(method, args)
    assert all(answer.failure is None for answer in answers), answers
    return [answer.value for answer in answers]


def spec_of_size(num_parameters: int) -> RLModuleSpec:
    """A module that acts by two layers of one width, of about so many parameters."""
    linear = NUM_INPUTS + 4  # per unit: its inputs, two biases, two outputs
    width = round((-linear + (linear**2 + 4 * num_parameters) ** 0.5) / 2)
    model = {"fcnet_hiddens": (width, width), "vf_share_layers": True, "normalize_observations": False}
    inputs = spaces.Box(-1.0, 1.0, (NUM_INPUTS,), np.float32)
    return RLModuleSpec(PPOModule, inputs, spaces.Discrete(2), model, PPOCatalog)


def send(workers: RayWorkers, module: RLModule) -> int:
    """Let all workers take the module's weights over, and wait until they have; returns the bytes of one copy."""
    shared, answers = workers.share(module.get_state()), list[Answer]()
    for worker in range(workers.size):
        workers.submit(worker, "take", shared=shared)
    while len(answers) < workers.size:
        answers += workers.collect()
    assert all(answer.failure is None for answer in answers), answers
    return shared.num_bytes


def all_of(group: EnvRunnerGroup, num_steps: int, policy_version: int = 0) -> list[Rollout]:
    """One rollout of each runner."""
    return list(group.sample(num_steps, policy_version=policy_version))


def seconds_reported(rollouts: list[Rollout]) -> list[float]:
    """What each runner says that its rollout took."""
    return [sum(rollout.stats[part] for part in ("env_step", "forward", "bookkeeping")) for rollout in rollouts]


def sampling(repeats: int = 10) -> dict[str, float]:
    """HalfCheetah's env steps per second in long fragments by runners of 8 envs each: `ray`, two of them, and `local`,
    the one of the same settings in this process."""
    job = JOBS["cheetah"]
    settings = config(job, seed=0)
    two = settings.copy().env_runners(num_env_runners=2, num_cpus_per_env_runner=SHARE_OF_CPU)
    two.training(train_batch_size_per_learner=2 * job.num_envs * job.fragment)
    with settings.build() as local, two.build() as remote:
        works = [partial(all_of, algorithm.env_runner_group, LONG_FRAGMENT) for algorithm in (remote, local)]
        ray_seconds, local_seconds = in_turn(2 + repeats, *works)
    steps = job.num_envs * LONG_FRAGMENT
    return {
        "ray": round(2 * steps / median(ray_seconds), 1),
        "local": round(steps / median(local_seconds), 1),
    }


def syncing(repeats: int = 20, num_parameters: int = 1_000_000, num_workers: int = 8) -> dict[str, float]:
    """`sync_ms` until all workers answer that they have the weights of a module, from the state dict on."""
    spec = spec_of_size(num_parameters)
    module = spec.build(inference_only=True)
    workers = worker_group(num_workers, partial(Keeper, spec))
    try:
        (seconds,) = in_turn(2 + repeats, partial(send, workers, module))
    finally:
        workers.stop()
    return {"sync_ms": round(median(seconds) * 1e3, 3)}


def driver(repeats: int = 100) -> dict[str, float]:
    """ms per iteration of 8 × 128 steps by two runners, new weights included, of envs that take no time: `driver_ms` of
    `sample()` beyond what the slower runner reports; `concat_ms` to put both rollouts side by side."""
    job = JOBS["cartpole"]
    settings = (
        config(job, seed=0)
        .environment(Instant)
        .env_runners(num_env_runners=2, num_envs_per_env_runner=job.num_envs // 2, num_cpus_per_env_runner=SHARE_OF_CPU)
    )
    beyond, joining = [], []
    with settings.build() as algorithm:
        for version in range(5 + repeats):
            started = time.perf_counter()
            rollouts = all_of(algorithm.env_runner_group, job.fragment, version)
            sampled = time.perf_counter()
            Rollout.concat(rollouts)
            joining.append(time.perf_counter() - sampled)
            beyond.append(sampled - started - max(seconds_reported(rollouts)))
    return {"driver_ms": round(median(beyond[5:]) * 1e3, 3), "concat_ms": round(median(joining[5:]) * 1e3, 3)}


MEASUREMENTS: dict[str, Callable[[], dict[str, float]]] = {"sampling": sampling, "syncing": syncing, "driver": driver}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=sorted(MEASUREMENTS))
    torch.set_num_threads(1)
    print(json.dumps(MEASUREMENTS[parser.parse_args().what]()))
