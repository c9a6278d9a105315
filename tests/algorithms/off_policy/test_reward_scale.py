"""Rewards that are divided by the running deviation of discounted returns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from algorithms import Algorithm
from algorithms.dqn import DQNConfig
from algorithms.off_policy.reward_scale import RewardScale
from algorithms.sac import SACConfig
from algorithms.td3 import TD3Config
from rlmodule import Columns, Episode, Rollout
from rlmodule.testing.data import random_rollout
from tests.rlmodule.agents.envs import CartPoles

ID = "default_policy"


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
    assert float(scale.divisor) == pytest.approx(0.75)
    scale.update(rollout_of([-4.0]), slice(0, 1))
    # returns 1, 2.5 and -4: their mean is -1/6, their variance (1 + 6.25 + 16) / 3 - 1/36
    assert float(scale.divisor) == pytest.approx((23.25 / 3 - 1 / 36) ** 0.5)


def test_returns_that_do_not_vary_are_divided_to_five() -> None:
    scale = RewardScale(1, gamma=0.0)
    for _ in range(3):
        scale.update(rollout_of([-8.0] * 4), slice(0, 1))
    assert float(scale.divisor) == pytest.approx(8 / 5)
    zeros = RewardScale(1, gamma=0.9)
    zeros.update(rollout_of([0.0, 0.0]), slice(0, 1))
    assert float(torch.zeros(()) / zeros.divisor) == 0


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
        assert float(scale.divisor) == pytest.approx(expected, rel=1e-9)
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
def test_learners_get_divided_rewards_and_replay_keeps_those_of_the_env(config_class: Any, env: str, more: Any) -> None:
    seen = []
    for divides in (False, True):
        with replaying(config_class, env, **more | {"normalize_rewards": divides}).build() as algorithm:
            step = algorithm.learner_group.step_on_batch
            batches = []

            def note(
                batch: Any, step: Any = step, batches: Any = batches, algorithm: Any = algorithm, **rest: Any
            ) -> Any:
                scales = algorithm._reward_scales
                batches.append((batch[Columns.REWARDS].clone(), float(scales[ID].divisor) if scales else 1.0))
                return step(batch, **rest)

            algorithm.learner_group.step_on_batch = note
            algorithm.train()
            seen.append((batches[0], algorithm.replay.ring.rewards[:20].copy()))
    (raw, _), stored = seen[0]
    (divided, divisor), stored_too = seen[1]
    assert divisor not in (0.0, 1.0)
    torch.testing.assert_close(divided, raw / divisor)
    np.testing.assert_array_equal(stored[:10], stored_too[:10])


@pytest.mark.parametrize("keeps", [True, False])
def test_the_statistics_are_in_checkpoints_with_replay_and_without(tmp_path: Path, keeps: bool) -> None:
    with replaying(SACConfig, "Pendulum-v1", replay_in_checkpoints=keeps).build() as algorithm:
        algorithm.train()
        algorithm.save(tmp_path / "run")
        saved = dict(algorithm._reward_scales[ID].state_dict())
    with Algorithm.from_checkpoint(tmp_path / "run") as loaded:
        scale = loaded._reward_scales[ID]
        for name, value in scale.state_dict().items():
            assert torch.equal(value, saved[name])
    if not keeps:
        with Algorithm.from_checkpoint(tmp_path / "run", num_envs_per_env_runner=3) as wider:
            assert wider._reward_scales[ID].returns.tolist() == [0, 0, 0]
            assert torch.equal(wider._reward_scales[ID].divisor, scale.divisor)
            wider.train()


def test_each_policy_has_its_own_statistics() -> None:
    config = replaying(DQNConfig, CartPoles, env_config={"num_agents": 2}, policies="own")
    config.multi_agent(policy_overrides={"cart_1": {"normalize_rewards": False}})
    with config.build() as algorithm:
        algorithm.train()
        assert [*algorithm._reward_scales] == ["cart_0"]
        scale = algorithm._reward_scales["cart_0"]
        assert int(scale.moments.count) == algorithm.replays["cart_0"].num_transitions


def test_new_goals_have_no_known_returns() -> None:
    with pytest.raises(ValueError, match=r"normalize_rewards: expected False with her_ratio > 0, .*got True"):
        DQNConfig(normalize_rewards=True, her_ratio=0.5, n_step=1).environment("CartPole-v1").validate()
