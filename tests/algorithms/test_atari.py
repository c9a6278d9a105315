"""Atari's games by id alone: presets as published, rewards clipped for learning and reported as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from algorithms.algorithm import Algorithm
from algorithms.cli.train import train_plan
from algorithms.config import AlgorithmConfig
from algorithms.dqn import DQN, DQNConfig
from algorithms.ops.rewards import clipped_rewards
from algorithms.ppo import PPOConfig, PPOLearner
from catalog import CNNEncoderConfig
from catalog.encoders.cnn import NATURE
from rlmodule import Columns, Rollout

SMALL_NET = {"conv_filters": [[4, 8, 8], [8, 4, 2]], "conv_dense_dim": 16}


class Rewarding(gym.Env[np.ndarray, Any]):
    """Three steps with the rewards -5, 0.5 and 20."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, **_: Any) -> Any:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.steps += 1
        return np.zeros(1, np.float32), (-5.0, 0.5, 20.0)[self.steps - 1], self.steps == 3, False, {}


# clip_rewards ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clip", "expected"),
    [(None, [-5, 0.5, 20]), ("sign", [-1, 1, 1]), (1.0, [-1, 0.5, 1]), (10, [-5, 0.5, 10])],
)
def test_rewards_are_clipped_for_learning_and_returns_are_not(
    clip: Literal["sign"] | float | None, expected: list[float]
) -> None:
    seen: list[torch.Tensor] = []
    config = PPOConfig().environment(Rewarding).env_runners(num_envs_per_env_runner=2)
    config.training(train_batch_size_per_learner=6, minibatch_size=6, num_epochs=1, clip_rewards=clip)

    class Learner(PPOLearner):
        def preprocess_train_data(self, rollout: Rollout) -> Rollout:
            seen.append(rollout[Columns.REWARDS])
            return rollout

    raw: list[torch.Tensor] = []
    config.callbacks(on_sample_end=lambda rollout, **_: raw.append(rollout[Columns.REWARDS].clone()))
    with config.learners(learner_class=Learner).build() as algorithm:
        result = algorithm.train()
    torch.testing.assert_close(seen[0], torch.tensor(expected, dtype=torch.float32)[:, None].expand(3, 2))
    assert raw[0][:, 0].tolist() == [-5.0, 0.5, 20.0]
    assert result["env_runners"]["episode_return_mean"] == 15.5


def test_dqn_sums_up_clipped_rewards() -> None:
    config = DQNConfig().environment(Rewarding).env_runners(num_envs_per_env_runner=2)
    config.training(clip_rewards="sign", n_step=3, gamma=0.5, train_batch_size_per_learner=8)
    config.training(num_steps_sampled_before_learning_starts=40).reporting(num_env_steps_per_iteration=84)
    with config.build() as algorithm:
        assert isinstance(algorithm, DQN)
        result = algorithm.train()
        rewards = {round(reward, 3) for reward in algorithm.replay.sample(64).batch[Columns.REWARDS].tolist()}
    # -1 + 1/2 + 1/4, 1 + 1/2 and 1
    assert rewards == {-0.25, 1.5, 1.0}
    assert result["env_runners"]["episode_return_mean"] == 15.5


def test_clipping_leaves_the_rollout_as_it_is() -> None:
    columns = {Columns.REWARDS: torch.tensor([[-3.0]]), Columns.VALID: torch.ones(1, 1, dtype=torch.bool)}
    none = torch.empty(0, 2, dtype=torch.int64)
    rollout = Rollout(columns=columns, last_obs=torch.zeros(1, 1), final_index=none, final_obs=torch.zeros(0, 1))
    assert clipped_rewards(rollout, 2.0)[Columns.REWARDS].item() == -2
    assert rollout[Columns.REWARDS].item() == -3


def test_a_bound_of_rewards_is_above_nothing() -> None:
    with pytest.raises(ValueError, match=r"PPOConfig\.training\(clip_rewards=\)"):
        PPOConfig().training(clip_rewards=0.0)
    with pytest.raises(TypeError, match=r"clip_rewards=\): expected 'sign' \| float \| None"):
        PPOConfig().training(clip_rewards=True)


# presets --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", [PPOConfig, DQNConfig])
def test_all_games_have_the_published_settings(algo: type[PPOConfig] | type[DQNConfig]) -> None:
    for env_id in ("ALE/Seaquest-v5", "ALE/Breakout-v5", "ale_py:ALE/Breakout-v5"):
        config = algo.preset(env_id)
        config.validate()
        assert config.env == env_id
        assert config.clip_rewards == "sign"
        catalog_config = config.get_rl_module_spec(spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6))
        assert catalog_config.catalog_class is not None
        encoder = catalog_config.catalog_class(
            spaces.Box(0, 255, (4, 84, 84), np.uint8), spaces.Discrete(6), catalog_config.model_config
        ).encoder_config
        assert isinstance(encoder, CNNEncoderConfig)
        assert (encoder.filters, encoder.dense_dim) == (NATURE, 512)
    with pytest.raises(ValueError, match="preset"):
        algo.preset("Pong-v5")


def test_the_shell_begins_with_them() -> None:
    plan = train_plan(["ppo", "ALE/Breakout-v5", "--num-epochs", "2"])
    assert plan.config.update({"run_dir": None}) == PPOConfig.preset("ALE/Breakout-v5").training(num_epochs=2)
    assert plan.amount == 10_000_000
    assert plan.begun_with == (
        "the preset of ALE/Breakout-v5: 8 settings of its own as published (Schulman et al. 2017), not measured here, "
        "after 10,000,000 steps"
    )


# playing --------------------------------------------------------------------------------------------------------------


def updates(config: AlgorithmConfig, iterations: int) -> tuple[Algorithm, dict[str, Any]]:
    with config.build() as algorithm:
        results = [algorithm.train() for _ in range(iterations)]
    assert all(np.isfinite(result["learners"]["default_policy"]["total_loss"]) for result in results)
    return algorithm, results[-1]


def small_pong(config: Any, **env_config: Any) -> Any:
    net = {**config.model_config, **SMALL_NET}
    return config.environment("ALE/Pong-v5", env_config=env_config).rl_module(model_config=net).debugging(seed=1)


@pytest.mark.end_to_end
def test_ppo_takes_updates_on_pong() -> None:
    pytest.importorskip("ale_py")
    config = small_pong(PPOConfig.preset("ALE/Pong-v5"), max_num_frames_per_episode=400)
    config.training(train_batch_size_per_learner=256, minibatch_size=128, num_epochs=1)
    algorithm, result = updates(config, 4)
    # an episode of 100 steps, in which Pong takes at most 3 points; clipped or not they are -1 here
    assert -4 <= result["env_runners"]["episode_return_mean"] < 0
    assert algorithm.get_module().observation_space.shape == (4, 84, 84)


@pytest.mark.end_to_end
def test_dqn_takes_updates_on_pong_and_stores_each_frame_once() -> None:
    pytest.importorskip("ale_py")
    config = small_pong(DQNConfig.preset("ALE/Pong-v5"), max_num_frames_per_episode=200)
    config.training(num_steps_sampled_before_learning_starts=64).replay(replay_capacity=800)
    algorithm, result = updates(config.reporting(num_env_steps_per_iteration=480), 1)
    assert isinstance(algorithm, DQN)
    assert result["env_runners"]["num_episodes_lifetime"] > 0
    assert result["replay_buffer"]["num_bytes"] < 2 * 800 * 84 * 84


@pytest.mark.end_to_end
def test_games_are_recorded_as_the_policy_sees_them(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("moviepy")
    config = small_pong(PPOConfig.preset("ALE/Pong-v5"), max_num_frames_per_episode=80, img_height=42, img_width=42)
    with config.evaluation(evaluation_num_envs=1).build() as algorithm:
        algorithm.evaluate(num_episodes=1, num_videos=1, video_dir=tmp_path)
    (video,) = tmp_path.glob("*.mp4")
    assert video.stat().st_size > 1000


def test_a_config_makes_one_game_to_play() -> None:
    pytest.importorskip("ale_py")
    config = PPOConfig().environment("ALE/Pong-v5", env_config={"stack_num": 2})
    assert config.make_env().reset(seed=1)[0].shape == (2, 84, 84)


@pytest.mark.slow
def test_ppo_learns_pong() -> None:
    pytest.importorskip("ale_py")
    with PPOConfig.preset("ALE/Pong-v5").debugging(seed=1).build() as algorithm:
        result = algorithm.learn(num_env_steps=2_000_000, target_return=-10)
    # -21 loses every point; a policy that plays at random has about -20.5
    assert result["env_runners"]["episode_return_mean"] >= -10
