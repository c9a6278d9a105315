"""The runner of several agents next to that of one: equal rows, streams and counts."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest
import torch

from algorithms.ppo.module import PPOCatalog, PPOModule
from rlmodule import EnvRunner, MultiRLModule, RLModule
from rlmodule.agents.multi_agent_env import MultiAgentEnv
from rlmodule.agents.policy_map import PolicyMap
from rlmodule.agents.runner import AgentRunner
from rlmodule.testing.data import differences
from tests.parametric_envs import ParametricCartPole
from tests.rlmodule.agents.envs import OneAgent
from tests.rlmodule.toys import (
    Forgetful,
    NestedCounter,
    NoNets,
    Scripted,
    SeesPast,
    Settings,
    counters_one_by_one,
)

FRAGMENTS = (7, 1, 16, 40)
TIMES = ("env_step", "forward", "bookkeeping")


def module_for(
    observation_space: gym.Space, action_space: gym.Space, module_class: type[RLModule] = PPOModule, **model: Any
) -> RLModule:
    own = module_class is not PPOModule
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return module_class(
            observation_space=observation_space,
            action_space=action_space,
            model_config={**({} if own else {"fcnet_hiddens": [8]}), **model},
            catalog_class=NoNets if own else PPOCatalog,
        )


def single_runner(make: Callable[..., gym.Env], module: Callable[..., RLModule], **kwargs: Any) -> EnvRunner:
    runner = EnvRunner(Settings(env=make, records_episode_infos=True), run_seed=1, **kwargs)
    runner.set_module(module(runner.observation_space, runner.action_space))
    return runner


def agent_runner(
    make: Callable[..., MultiAgentEnv], module: Callable[..., RLModule], num_envs: int = 3, **kwargs: Any
) -> AgentRunner:
    settings = Settings(env=make, records_episode_infos=True, num_envs_per_env_runner=num_envs)
    runner = AgentRunner(settings, run_seed=1, **kwargs)
    agent = runner.agents[0]
    modules = MultiRLModule({"shared": module(runner.observation_spaces[agent], runner.action_spaces[agent])})
    runner.set_modules(modules, PolicyMap(runner.agents, ["shared"]))
    return runner


LSTM = {"use_lstm": True, "max_seq_len": 4}
CASES: dict[str, tuple[Callable[[], Callable[..., gym.Env]], dict[str, Any]]] = {
    "mlp": (lambda: lambda _: gym.make("CartPole-v1", max_episode_steps=25), {}),
    "lstm": (lambda: lambda _: gym.make("CartPole-v1", max_episode_steps=9), LSTM),
    "past": (lambda: lambda _: gym.make("Pendulum-v1", max_episode_steps=9), {"module_class": Forgetful}),
    "gru, past": (
        lambda: lambda _: gym.make("CartPole-v1", max_episode_steps=9),
        {"module_class": SeesPast, **LSTM},
    ),
    "masks": (lambda: lambda _: ParametricCartPole(), {}),
    "box": (lambda: lambda _: gym.make("Pendulum-v1", max_episode_steps=20), {}),
    "nested": (lambda: counters_one_by_one(NestedCounter), {"module_class": Scripted}),
}


@pytest.mark.parametrize("case", CASES)
def test_one_agent_is_sampled_as_in_an_env_of_one(case: str) -> None:
    """All columns, observations after them, states and statistics are equal bit for bit, over several fragments."""
    make, model = CASES[case]

    def module(*of: gym.Space) -> RLModule:
        return module_for(*of, **model)

    of_one, of_many = make(), make()
    alone, agents = single_runner(of_one, module), agent_runner(lambda config: OneAgent(of_many(config), "a"), module)
    ended = 0
    for steps in FRAGMENTS:
        expected, rollout = alone.sample(steps, policy_version=5), agents.sample(steps, policy_version=5)
        stats = {name: value for name, value in expected.stats.items() if name not in TIMES}
        ended += len(stats["episode_returns"])
        if "episode_infos" in stats:
            stats["episode_infos"] = [{"a": info} for info in stats["episode_infos"]]
        own = rollout.stats
        assert not differences(stats, {name: own[name] for name in stats})
        assert own["agent_returns"].get("a", []) == pytest.approx(stats["episode_returns"].tolist())
        assert own["agent_lengths"].get("a", []) == stats["episode_lengths"].tolist()
        assert rollout.num_env_steps == expected.num_env_steps == own["module_steps"]["shared"]
        expected.stats = {}
        assert not differences(vars(expected), vars(rollout.modules["shared"]))
        assert rollout.slots["shared"].tolist() == [[env, 0] for env in range(3)]
    assert ended > 3
    assert alone.step_counter.count == agents.step_counter.count == 3 * sum(FRAGMENTS)
