"""The loop from pixels we measure ourselves against has our net and our arithmetic."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from benchmarks.bare_pong import Net, collect, train
from benchmarks.bare_ppo import Storage
from benchmarks.jobs import PONG_JOBS
from benchmarks.ours_ppo import config
from catalog import CNNEncoderConfig

ale_py = pytest.importorskip("ale_py")

SHORT = replace(PONG_JOBS["pong"], num_envs=2, fragment=8, minibatch_size=8, num_epochs=1, num_threads=1)


def game(**settings: Any) -> Any:
    settings = {"autoreset_mode": AutoresetMode.SAME_STEP, "reward_clipping": False, **settings}
    return gym.make_vec("ale_py:ALE/Pong-v5", 2, "vector_entry_point", **settings)


def test_its_net_is_as_large_as_ours() -> None:
    env = game()
    with config(SHORT, 0).build() as algorithm:
        ours = algorithm.get_module()
        encoder = ours.catalog.encoder_config
        assert algorithm.config.torch_num_threads == 1
        assert algorithm.config.clip_rewards == "sign"
    assert isinstance(encoder, CNNEncoderConfig)
    shapes = sorted(tuple(p.shape) for p in ours.parameters())
    assert shapes == sorted(tuple(p.shape) for p in Net(env).parameters())
    assert env.single_observation_space == ours.observation_space == spaces.Box(0, 255, (4, 84, 84), np.uint8)
    env.close()


def test_cut_off_games_keep_their_last_frames_and_scores_are_whole() -> None:
    env = game(max_num_frames_per_episode=120)
    torch.manual_seed(0)
    net, store = Net(env), Storage(env, 60)
    running, late = np.zeros(2), deque[float]()
    obs, finals = collect(env, net, store, torch.from_numpy(env.reset(seed=0)[0]), running, late)
    env.close()
    cut = {(t, n) for t, n in store.truncated.nonzero().tolist()}
    assert cut
    assert cut == {(t, n) for t, n, _ in finals}
    assert all(final.shape == obs[0].shape and final.any() for _, _, final in finals)
    assert sum(late) + running.sum() == store.rewards.sum()  # Pong pays one point at a time


def test_some_iterations_take_place() -> None:
    assert train(SHORT, 4 * SHORT.batch_size, seed=0)["steps_per_s"] > 0
