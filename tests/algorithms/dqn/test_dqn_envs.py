"""DQN on every kind of observation, with and without masks and memory, plain and as Rainbow."""

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation

from rlmodule.testing import differences
from tests.algorithms.dqn.conftest import tiny
from tests.algorithms.ppo.matrix import MASKS, MEMORIES, OBSERVATIONS, SHARING, TINY, Case, SpacesEnv

RAINBOW: dict[str, Any] = {
    "dueling": True,
    "noisy": True,
    "prioritized_replay": True,
    "num_atoms": 5,
    "v_min": -1.0,
    "v_max": 9.0,
    "n_step": 3,
}
# every observation once, against the other factors in turn
CASES = list(
    zip(
        OBSERVATIONS,
        itertools.cycle(itertools.product(MEMORIES, MASKS)),
        itertools.cycle([{}, RAINBOW, {}]),
        strict=False,
    )
)


@pytest.mark.parametrize(("observation", "others", "parts"), CASES)
def test_any_observation(observation: str, others: tuple[str, str], parts: dict[str, Any]) -> None:
    memory, mask = others
    case = Case(observation, "Discrete with a start", memory, next(iter(SHARING)), mask)
    model_config = {**TINY, **MEMORIES[memory], **OBSERVATIONS[observation].settings}
    config = tiny(SpacesEnv, env_config=vars(case), model_config=model_config, **parts)
    env, state = SpacesEnv(**vars(case)), None
    with config.build() as algorithm:
        for _ in range(2):
            result = algorithm.train()
        assert np.isfinite(result["learners"]["default_policy"]["qf_loss"])
        assert result["replay_buffer"]["num_transitions"] == 128
        obs, reward = env.reset(seed=0)[0], None
        for _ in range(3):
            action, state = algorithm.policy.act(obs, state, reward=reward, explore=True)
            obs, reward, *_ = env.step(action)  # which refuses what is forbidden


TINY_CNN = {"conv_filters": [[4, 3, 2]], "conv_dense_dim": 8}


class Film(gym.Env[np.ndarray, np.int64]):
    """Grey frames of 6×5 that show how often each action was taken; ends after a while, in either way."""

    observation_space = spaces.Box(0, 255, (6, 5), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.frame = self.np_random.integers(0, 255, (6, 5), np.uint8)
        self.t, self.length = 0, int(self.np_random.integers(2, 9))
        return self.frame.copy(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.frame[:, self.t % 5] += np.uint8(1 + action)
        self.t += 1
        ends = self.t == self.length
        return self.frame.copy(), float(action), ends and self.length % 2 == 0, ends and self.length % 2 == 1, {}


@pytest.mark.parametrize("padding", ["reset", "zero"])
@pytest.mark.parametrize("n_step", [1, (1, 4)])
@pytest.mark.parametrize("mode", list(AutoresetMode)[:2])
def test_frames_stored_once_train_as_stacks_stored_whole(padding: str, n_step: Any, mode: AutoresetMode) -> None:
    def make(env_config: dict[str, Any]) -> SyncVectorEnv:
        return SyncVectorEnv([lambda: FrameStackObservation(Film(), 3, padding_type=padding)] * 2, autoreset_mode=mode)

    states = []
    for axis in (None, 0):
        config = tiny(
            make,
            gym_env_vectorize_mode="vector_entry_point",
            frame_stack_axis=axis,
            replay_capacity=1024,  # not once around the rings, which differ in length
            n_step=n_step,
            model_config=TINY_CNN,
        )
        with config.build() as algorithm:
            for _ in range(6):
                algorithm.train()
            states.append((algorithm.get_module().get_state(), algorithm.replay.num_bytes))
    assert differences(states[0][0], states[1][0]) == []
    assert states[1][1] < 0.7 * states[0][1]
