"""A simulator that is one ``gymnasium.Env`` of many envs is taken as a batch."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

from algorithms.ppo import PPOConfig
from rlmodule.envs.make import make_vector_env
from rlmodule.testing.data import differences
from tests.tensor_envs import TensorCartPole


class Simulator(gym.Env):
    """CartPoles in the form of the direct envs of Isaac Lab 2.2 (``isaaclab/envs/direct_rl_env.py``): a single env with
    batched spaces, whose steps return flags as integers."""

    num_made: ClassVar[int] = 0

    def __init__(self, num_envs: int = 4, has_finals: bool = True, **settings: Any) -> None:
        Simulator.num_made += 1
        self.batch, self.has_finals = TensorCartPole(num_envs, **settings), has_finals
        for name in ("num_envs", "single_observation_space", "single_action_space"):
            setattr(self, name, getattr(self.batch, name))
        self.observation_space, self.action_space = self.batch.observation_space, self.batch.action_space

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return self.batch.reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        obs, rewards, terminateds, truncateds, info = self.batch.step(action)
        return obs, rewards, terminateds.int(), truncateds.long(), info if self.has_finals else {}


def config(env: Any, num_envs: int = 4, **env_config: Any) -> PPOConfig:
    made = PPOConfig(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1, seed=1)
    made.environment(env, env_config=env_config).env_runners(num_envs_per_env_runner=num_envs)
    return made.rl_module(model_config={"fcnet_hiddens": [8]})


def test_it_is_made_once_and_gives_the_data_of_its_batch() -> None:
    Simulator.num_made = 0
    states = []
    for env in (Simulator, lambda settings: TensorCartPole(4, **settings)):
        with config(env, max_steps=9).build() as algorithm:
            algorithm.train()
            algorithm.train()
            states.append(algorithm.learner_group.get_state())
            assert torch.is_tensor(algorithm.sample().columns["rewards"])
    assert Simulator.num_made == 1
    assert differences(*states) == []


class Plain:
    """CartPoles that are no ``gymnasium.Env``."""

    def __init__(self, **settings: Any) -> None:
        self.batch = TensorCartPole(4, **settings)
        self.num_envs, self.reset, self.step = 4, self.batch.reset, self.batch.step
        self.single_observation_space = self.batch.single_observation_space
        self.single_action_space = self.batch.single_action_space


def test_a_batch_of_any_class_is_taken() -> None:
    with config(lambda settings: Plain(**settings), max_steps=9).build() as algorithm:
        assert algorithm.train()["env_runners"]["num_env_steps_sampled"] == 64


class Sized(CartPoleEnv):
    """A single env with the attributes by which an env of Brax is known."""

    observation_size, action_size = 4, 2


def test_a_single_env_with_sizes_is_no_env_of_brax() -> None:
    with config(Sized).build() as algorithm:
        assert algorithm.train()["env_runners"]["num_env_steps_sampled"] == 64


class Chatty(TensorCartPole):
    """A ready vector env whose flags are numbers, and whose log holds more than numbers."""

    log: Any = None

    def step(self, actions: Any) -> Any:
        obs, rewards, terminateds, truncateds, info = super().step(actions)
        return obs, rewards, terminateds.float(), truncateds.float(), {**info, "log": self.log}


@pytest.mark.parametrize(
    ("log", "kept"),
    [
        ({"speed": 2.0, "of each": np.array([1, 3])}, {"speed": 2.0, "of each": 2.0}),
        ({"_speed": np.array([True]), "text": "a", "texts": np.array(["b"])}, {}),
        ("a text", {}),
        (np.array([{"speed": 1.0}], object), {}),
        (None, {}),
    ],
)
def test_numbers_of_a_log_are_kept_and_flags_may_be_floats(log: Any, kept: dict[str, float]) -> None:
    def make(settings: Any) -> Any:
        env = Chatty(4, max_steps=9)
        env.log = log
        return env

    with config(make).build() as algorithm:
        metrics = algorithm.train().get("custom_metrics", {})
    assert metrics == kept


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_envs": 8}, "expected a VectorEnv of 8 envs, got one of 4. Set num_envs_per_env_runner=4"),
        ({"has_finals": False, "max_steps": 9}, "expected final_obs whenever an episode ends"),
    ],
)
def test_what_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message), config(Simulator, **settings).build() as algorithm:
        algorithm.train()


@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_envpool_gives_the_rows_of_gymnasium_with_a_reset_after_each_end() -> None:
    envpool = pytest.importorskip("envpool", reason="the extra 'batched' is not installed")
    made = make_vector_env(lambda settings: envpool.make_gymnasium("CartPole-v1", num_envs=3, seed=1), {}, 3)
    singles = [gym.make("CartPole-v1").unwrapped for _ in range(3)]
    rng = np.random.default_rng(0)
    obs, _ = made.reset(seed=1)
    truncated = over = np.ones(3, bool)  # an episode has ended, or none has begun
    for _ in range(200):
        for single, row, begins in zip(singles, obs, over, strict=True):
            if begins:
                single.reset()
                single.state = row.astype(np.float64)
        actions = rng.integers(2, size=3)
        after, rewards, terminated, truncated, _ = made.step(actions)
        for index, single in enumerate(singles):
            if over[index] and rewards[index] == 0:  # the step that only resets
                continue
            expected = single.step(int(actions[index]))
            np.testing.assert_allclose(after[index], expected[0], rtol=1e-4, atol=1e-5)
            assert (rewards[index], terminated[index]) == expected[1:3]
        # float32 states are compared from step to step, so that rounding does not add up
        for single, row in zip(singles, after, strict=True):
            single.state = row.astype(np.float64)
        obs, over = after, terminated | truncated
    assert not truncated.any()
    made.close()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_an_env_of_brax_gives_its_own_rows_as_tensors_and_trains() -> None:
    envs = pytest.importorskip("brax.envs", reason="Brax is not installed")
    import jax

    def make(settings: Any) -> Any:
        return envs.create("inverted_pendulum", batch_size=4, episode_length=6, backend="generalized")

    batch, twin = make_vector_env(make, {}, 4), make({})
    obs, _ = batch.reset(seed=3)
    state = jax.jit(twin.reset)(jax.random.split(jax.random.PRNGKey(3))[1])
    step, late = jax.jit(twin.step), 0
    for _ in range(12):
        np.testing.assert_array_equal(obs, state.obs)
        actions = torch.rand(4, 1) * 2 - 1
        obs, rewards, terminated, truncated, info = batch.step(actions)
        state = step(state, actions.numpy())
        np.testing.assert_array_equal(rewards, state.reward)
        np.testing.assert_array_equal(terminated | truncated, state.done)
        np.testing.assert_array_equal(info["time_outs"], state.info["truncation"])
        assert not (terminated & truncated).any()
        late += int(truncated.sum())
    assert late
    with config(make).build() as algorithm:
        algorithm.train()
        assert torch.is_tensor(algorithm.sample()["rewards"])
    with pytest.raises(ValueError, match="expected a batch of envs with a time limit"):
        make_vector_env(lambda settings: envs.create("fast"), {}, 1)
