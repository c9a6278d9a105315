"""Several agents whose runner is killed while it samples: every step is in a rollout or counted as lost."""

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from algorithms.ppo import PPOConfig
from rlmodule.agents.multi_agent_env import MultiAgentEnv
from tests.fault_envs import FaultEnv, num_step_calls, seeds_of_lives
from tests.waiting import wait_for

pytestmark = [pytest.mark.usefixtures("ray_started"), pytest.mark.faults]


class Turns(MultiAgentEnv):
    """A :class:`FaultEnv` that "left" and "right" step in turns; the other one waits. Both end with it."""

    def __init__(self, folder: str, **settings: Any) -> None:
        self.possible_agents, self.env = ["left", "right"], FaultEnv(folder, **settings)
        self.observation_spaces = dict.fromkeys(self.possible_agents, self.env.observation_space)
        self.action_spaces = dict.fromkeys(self.possible_agents, self.env.action_space)
        self.acts, self.waits = 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, _ = self.env.reset(seed=seed)
        return {self.possible_agents[self.acts]: obs}, {}

    def step(self, actions: dict[str, Any]) -> Any:
        ((agent, action),) = actions.items()
        obs, reward, ended, _, _ = self.env.step(action)
        self.acts = 1 - self.acts
        other = self.possible_agents[self.acts]
        seen = [agent, *([other] if self.waits else [])] if ended else [other]  # the other may not be in play yet
        self.waits = not ended
        return dict.fromkeys(seen, obs), {agent: reward}, {"__all__": ended}, {}, {}


def make_env(config: Mapping[str, Any]) -> Turns:
    return Turns(**config)


def test_runners_that_are_killed_lose_no_count_and_two_learners_go_on(tmp_path: Path) -> None:
    run = PPOConfig(env=make_env, seed=1, policies="own", train_batch_size_per_learner=64, minibatch_size=32)
    run.environment(env_config={"folder": str(tmp_path), "pause": 0.001}).rl_module(model_config={"fcnet_hiddens": [8]})
    run.env_runners(num_env_runners=2, num_envs_per_env_runner=2, num_cpus_per_env_runner=0.5)
    run.learners(num_learners=2, num_cpus_per_learner=0.5)
    with run.build() as algo:
        runners: Any = algo.env_runner_group
        races = 3
        for victim in range(races):
            wait_for(lambda: runners.num_healthy == 2 or algo.train() is None)
            pid, before = runners.workers.pids()[victim % 2], num_step_calls(tmp_path)

            def kill(pid: int = pid, before: int = before) -> None:
                wait_for(lambda: num_step_calls(tmp_path) > before + 8)
                os.kill(pid, signal.SIGKILL)

            killer = threading.Thread(target=kill)
            killer.start()
            result = algo.train()
            killer.join()
            assert {*result["learners"]} <= {"left", "right"}
        wait_for(lambda: runners.num_healthy == 2 or algo.train() is None)
        result = algo.train()
        calls = num_step_calls(tmp_path)
    played, lost = result["env_runners"], result["workers"]["num_env_steps_lost_lifetime"]
    steps, rows = played["num_env_steps_sampled_lifetime"], played["num_agent_steps_sampled_lifetime"]
    assert lost > 0
    assert 0 <= steps + lost - calls <= races  # a killed process may have counted a step that it did not make
    # one agent acts in each step; the row of the one that waits is open, also in the two envs of each killed runner
    assert 0 <= steps - sum(rows.values()) <= 4 + 2 * races
    seeds = [seed for life in seeds_of_lives(tmp_path) for seed in life]
    assert len({*seeds}) == len(seeds)
