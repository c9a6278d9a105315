"""What a vector step of the env runner costs over what cannot be left out of one.

    python -m benchmarks.sampling

Cannot be left out: the envs' own step, here of a plain `SyncVectorEnv`, and the policy net's forward pass, here of a
bare `nn.Sequential`. Both are given the very actions and observations of the rollout that the runner just collected:
the plain envs have the same seeds, so they go through the same episodes, which is checked. The rest of a vector step is
ours: the module around the net, action noise, guards against faulty envs, storage, log-probabilities, statistics.
"""

import json
import time
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from benchmarks.bare_ppo import mlp
from benchmarks.jobs import JOBS
from benchmarks.ours_ppo import config
from rlmodule.sampling.env_runner import EnvRunner
from rlmodule.seeding import int_seed

ROUNDS = 40
WARM_UP = 5
MOST_EPISODES = 2000


class Seeded(gym.Wrapper):
    """An env whose episodes have the seeds that an env runner would give them."""

    def __init__(self, env_id: str) -> None:
        super().__init__(gym.make(env_id))
        self._seeds: Iterator[int] = iter(())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            keys = (np.random.SeedSequence(seed, spawn_key=(episode,)) for episode in range(1, MOST_EPISODES))
            self._seeds = iter([seed, *(int(key.generate_state(1)[0] >> 1) for key in keys)])
        return self.env.reset(seed=next(self._seeds), options=options)


def sampling_ratio(job_name: str = "cartpole") -> dict[str, float]:
    """Time fragments of the runner and their replays in turn.

    Returns:
        Medians over the fragments, per vector step in µs: `runner_us` and `alone_us`; and their `ratio`.
    """
    torch.set_num_threads(1)
    job = JOBS[job_name]
    settings = config(job, seed=0)
    with settings.build() as algorithm:
        runner = EnvRunner(settings, run_seed=0)
        runner.set_module(algorithm.get_module("default_policy"))
        seeds: list[int | None] = [int_seed(0, "env", index, 0) for index in range(job.num_envs)]
        env = SyncVectorEnv([partial(Seeded, job.env_id)] * job.num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        env.reset(seed=seeds)
        space = env.single_action_space
        num_out = int(space.n) if isinstance(space, gym.spaces.Discrete) else int(np.prod(space.shape or ()))
        net = mlp(int(np.prod(env.single_observation_space.shape or ())), num_out)
        ours, alone = [], []
        for _ in range(WARM_UP + ROUNDS):
            started = time.perf_counter()
            rollout = runner.sample(job.fragment)
            ours.append(time.perf_counter() - started)
            obs, actions = rollout.columns["obs"], rollout.columns["actions"].numpy()
            after = None
            started = time.perf_counter()
            with torch.inference_mode():
                for t in range(job.fragment):
                    net(obs[t])
                    after = env.step(actions[t])[0]
            alone.append(time.perf_counter() - started)
            if not np.array_equal(np.asarray(after, np.float32), rollout.last_obs.numpy()):
                raise RuntimeError("the replay went through other episodes than the runner")
        runner.stop()
        env.close()
    runner_us, alone_us = (median(times[WARM_UP:]) / job.fragment * 1e6 for times in (ours, alone))
    return {"runner_us": round(runner_us, 1), "alone_us": round(alone_us, 1), "ratio": round(runner_us / alone_us, 3)}


if __name__ == "__main__":
    print(json.dumps(sampling_ratio()))
