"""Rewards that are divided by the running deviation of discounted returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from algorithms.dqn import DQNConfig
from algorithms.replay.reward_scale import RewardScale
from algorithms.sac import SACConfig
from algorithms.td3 import TD3Config
from rlmodule import Columns, Episode, Rollout
from rlmodule.testing.data import clone, differences, random_rollout
from tests.rlmodule.agents.envs import CartPoles


def divisor(scale: RewardScale) -> float:
    one = torch.ones(())
    scale.divide(one)
    return 1 / float(one)


def rollout_of(*rewards: list[float], terminated: bool = False) -> Rollout:
    """A rollout with one episode of these rewards in each slot."""
    episodes = [
        Episode(np.zeros((len(x) + 1, 1), np.float32), np.zeros(len(x), np.int64), np.array(x), terminated=terminated)
        for x in rewards
    ]
    return Rollout.from_episodes(episodes)


def test_the_divisor_of_three_steps_is_worked_out_by_hand() -> None:
    scale = RewardScale(2, gamma=0.5)
    scale.update(rollout_of([1.0, 2.0]), slice(1, 2))
    # returns 1 and 0.5 · 1 + 2 = 2.5, whose mean is 1.75
    assert divisor(scale) == pytest.approx(0.75)
    scale.update(rollout_of([-4.0]), slice(0, 1))
    # returns 1, 2.5 and -4: their mean is -1/6, their variance (1 + 6.25 + 16) / 3 - 1/36
    assert divisor(scale) == pytest.approx((23.25 / 3 - 1 / 36) ** 0.5)


def test_returns_that_do_not_vary_are_divided_to_five() -> None:
    scale = RewardScale(1, gamma=0.0)
    for _ in range(3):
        scale.update(rollout_of([-8.0] * 4), slice(0, 1))
    assert divisor(scale) == pytest.approx(8 / 5)
    zeros = RewardScale(1, gamma=0.9)
    zeros.update(rollout_of([0.0, 0.0]), slice(0, 1))
    rewards = torch.zeros(3)
    zeros.divide(rewards)
    assert not rewards.any()


def module_of(config: Any) -> Any:
    spec = config.get_rl_module_spec(spaces.Box(-1, 1, (3,)), spaces.Discrete(2))
    return spec.build()


@pytest.mark.parametrize("spoilt", [False, True])
def test_the_divisor_is_that_of_all_returns_step_by_step(spoilt: bool) -> None:
    module, gamma = module_of(DQNConfig(model_config={"fcnet_hiddens": [4]})), 0.9
    scale, returns, seen = RewardScale(7, gamma), np.zeros(7), list[float]()
    rng = np.random.default_rng(0)
    for seed, steps in enumerate((1, 9, 30, 1, 1, 14)):
        rollout = random_rollout(module, steps, 3, seed)
        if seed == 3:  # no valid row
            rollout = replace(
                rollout, columns=rollout.columns | {Columns.VALID: torch.zeros(steps, 3, dtype=torch.bool)}
            )
        columns = rng.permutation(7)[:3]
        for t in range(steps):
            for slot, column in enumerate(columns):
                if not rollout.valid[t, slot]:
                    continue
                if rollout[Columns.STARTS][t, slot]:
                    returns[column] = 0
                returns[column] = gamma * returns[column] + float(rollout[Columns.REWARDS][t, slot])
                seen.append(returns[column])
        if spoilt:
            rollout[Columns.REWARDS][~rollout.valid] = torch.nan
        scale.update(rollout, columns)
        expected = max(float(np.std(seen)), float(np.abs(seen).max()) / 5)
        assert divisor(scale) == pytest.approx(expected, rel=1e-6)
    np.testing.assert_allclose(scale.returns.numpy(), returns)


def replaying(config_class: Any, env: Any, **more: Any) -> Any:
    values = {
        "model_config": {"fcnet_hiddens": [8]},
        "num_envs_per_env_runner": 2,
        "train_batch_size_per_learner": 16,
        "num_steps_sampled_before_learning_starts": 64,
        "num_env_steps_per_iteration": 100,
        "training_intensity": 2.0,
        "replay_capacity": 1000,
        "normalize_rewards": True,
        "seed": 1,
    }
    return config_class(**values | more).environment(env)


@pytest.mark.parametrize(
    ("config_class", "env", "more"),
    [
        (SACConfig, "Pendulum-v1", {"n_step": 3}),
        (TD3Config, "Pendulum-v1", {"prioritized_replay": True}),
        (DQNConfig, "CartPole-v1", {"model_config": {"fcnet_hiddens": [8], "use_gru": True, "max_seq_len": 4}}),
    ],
    ids=["SAC", "TD3", "DQN"],
)
def test_samples_hold_divided_rewards_and_replay_those_of_the_env(config_class: Any, env: str, more: Any) -> None:
    replays = []
    for normalize_rewards in (False, True, True):
        with replaying(config_class, env, **more | {"normalize_rewards": normalize_rewards}).build() as algorithm:
            module = algorithm.get_module()
            replays.append(algorithm.replay)
    plain, divided, loaded = replays
    for replay in (plain, divided):
        for seed in range(6):
            replay.add(random_rollout(module, 16, 2, seed))
    np.testing.assert_array_equal(plain.ring.rewards, divided.ring.rewards)
    factor = divisor(divided._reward_scale)
    assert factor > 1.1
    for _ in range(2):
        raw, got = plain.sample(16).batch, divided.sample(16).batch
        torch.testing.assert_close(got.pop(Columns.REWARDS), raw.pop(Columns.REWARDS) / factor)
        assert differences(raw, got) == []
    loaded.set_state(clone(divided.get_state()))
    for replay in (divided, loaded):
        replay.add(random_rollout(module, 9, 2, 7))
    assert differences(divided.sample(16).batch, loaded.sample(16).batch) == []
    assert differences(divided.get_state(), loaded.get_state()) == []


def test_each_policy_has_its_own_statistics() -> None:
    config = replaying(DQNConfig, CartPoles, env_config={"num_agents": 2}, policies="own")
    config.multi_agent(policy_overrides={"cart_1": {"normalize_rewards": False}})
    with config.build() as algorithm:
        algorithm.train()
        scales = {name: replay._reward_scale for name, replay in algorithm.replays.items()}
        assert scales["cart_1"] is None
        assert int(scales["cart_0"].moments.count) == algorithm.replays["cart_0"].num_transitions


def test_new_goals_have_no_known_returns() -> None:
    with pytest.raises(ValueError, match=r"normalize_rewards: expected False with her_ratio > 0, .*got True"):
        DQNConfig(normalize_rewards=True, her_ratio=0.5, n_step=1).environment("CartPole-v1").validate()
