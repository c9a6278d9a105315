"""DQN on every kind of observation, with and without masks and memory, plain and as Rainbow."""

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FrameStackObservation

from algorithms.dqn import DQNConfig
from rlmodule.testing.data import differences
from tests.algorithms.dqn.conftest import tiny
from tests.algorithms.ppo.matrix import MASKS, MEMORIES, OBSERVATIONS, SHARING, TINY, Case, SpacesEnv
from tests.turns import taking_turns

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


@pytest.mark.parametrize("case_of_dqn", taking_turns(CASES))
def test_any_observation(case_of_dqn: tuple[str, tuple[str, str], dict[str, Any]]) -> None:
    observation, (memory, mask), parts = case_of_dqn
    case = Case(observation, "Discrete with a start", memory, next(iter(SHARING)), mask)
    model_config = {**TINY, **MEMORIES[memory], **OBSERVATIONS[observation].settings}
    config = tiny(SpacesEnv, env_config=vars(case), model_config=model_config, **parts)
    env, state = SpacesEnv(**vars(case)), None
    with config.build() as algorithm:
        result = algorithm.train()
        assert np.isfinite(result["learners"]["default_policy"]["qf_loss"])
        assert result["replay_buffer"]["num_transitions"] == 64
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


@pytest.mark.parametrize(
    ("mode", "n_step", "padding"),
    [
        (AutoresetMode.NEXT_STEP, 1, "reset"),
        (AutoresetMode.NEXT_STEP, (1, 4), "zero"),
        (AutoresetMode.SAME_STEP, 1, "zero"),
        (AutoresetMode.SAME_STEP, (1, 4), "reset"),
    ],
)
def test_frames_stored_once_train_as_stacks_stored_whole(mode: AutoresetMode, n_step: Any, padding: str) -> None:
    def make(env_config: dict[str, Any]) -> SyncVectorEnv:
        return SyncVectorEnv([lambda: FrameStackObservation(Film(), 3, padding_type=padding)] * 2, autoreset_mode=mode)

    states = []
    for axis in (None, 0):
        config = tiny(
            make,
            gym_env_vectorize_mode="vector_entry_point",
            frame_stack_axis=axis,
            replay_capacity=512,  # not once around the rings, which differ in length
            n_step=n_step,
            model_config=TINY_CNN,
        )
        with config.build() as algorithm:
            for _ in range(3):
                algorithm.train()
            states.append((algorithm.get_module().get_state(), algorithm.replay.num_bytes))
    assert differences(states[0][0], states[1][0]) == []
    assert states[1][1] < 0.7 * states[0][1]


class Lockstep(gym.Env[np.ndarray, np.int64]):
    """Episodes of five steps, which tell their number and the step."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self) -> None:
        self.episode = -1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.episode, self.steps = self.episode + 1, 0
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.array([self.episode, self.steps], np.float32), 1.0, self.steps == 5, False, {}


def next_step(num: int) -> Any:
    return lambda config: SyncVectorEnv([Lockstep] * num, autoreset_mode=AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize(("starts", "batch"), [(90, 16), (60, 60), (48, 16)])
def test_learning_begins_and_goes_on_with_a_replay_that_has_rows_of_resets(starts: int, batch: int) -> None:
    config = DQNConfig(env=next_step(2), num_envs_per_env_runner=2, replay_capacity=60, num_env_steps_per_iteration=100)
    config = config.training(num_steps_sampled_before_learning_starts=starts, train_batch_size_per_learner=batch)
    config.training_intensity = None  # one batch for each rollout, of one step
    with config.build() as algorithm:
        algorithm.train()
        before = algorithm.learner_group.num_updates
        assert before == pytest.approx((100 - starts) / 2 * 6 / 5, abs=2)
        algorithm.train()  # a sixth of the rows is no transition, so there are never 60
        vector_steps = 100 / 2 * 6 / 5
        assert algorithm.learner_group.num_updates - before == pytest.approx(vector_steps, abs=2)


def test_what_is_sampled_by_hand_leaves_no_hole_in_what_is_remembered() -> None:
    config = DQNConfig(env=Lockstep).env_runners(num_envs_per_env_runner=1).reporting(num_env_steps_per_iteration=23)
    config = config.training(
        n_step=3, gamma=1.0, num_steps_sampled_before_learning_starts=40, train_batch_size_per_learner=40
    )
    with config.build() as algorithm:
        for _ in range(4):
            algorithm.train()
            algorithm.sample()
        batch = algorithm.replay.sample(algorithm.replay.num_transitions).batch
    (first, step), (last, after) = batch["obs"].T, batch["next_obs"].T
    goes_on = batch["discounts"] > 0
    assert goes_on.any()
    assert torch.equal(first[goes_on], last[goes_on])
    assert torch.equal((after - step)[goes_on], batch["rewards"][goes_on])
