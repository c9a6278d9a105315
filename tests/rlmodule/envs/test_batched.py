"""A simulator that is one ``gymnasium.Env`` of many envs is taken as a batch."""

from typing import Any, ClassVar

import gymnasium as gym
import pytest
import torch

from algorithms.ppo import PPOConfig
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
