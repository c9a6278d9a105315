"""PPO on environments people have: it explains its nets and trains, whatever the spaces."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from algorithms.ppo import PPOConfig


class Sensors(gym.Env[Any, Any]):
    """A camera, joints and a mode; two parts to an action."""

    observation_space: ClassVar[spaces.Space] = spaces.Dict(
        camera=spaces.Box(0, 255, (12, 12, 3), np.uint8),
        joints=spaces.Box(-np.inf, np.inf, (5,), np.float64),
        mode=spaces.Discrete(3, start=1),
    )
    action_space: ClassVar[spaces.Space] = spaces.Dict(
        gripper=spaces.Discrete(2), torque=spaces.Box(-2.0, 2.0, (3,), np.float32)
    )

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps % 7 == 0, self.steps == 20, {}


class Levers(Sensors):
    """Two levers of three positions each; what is on the way cannot be chosen."""

    observation_space: ClassVar[spaces.Space] = spaces.Dict(
        position=spaces.MultiDiscrete([3, 3]), action_mask=spaces.MultiBinary(6)
    )
    action_space: ClassVar[spaces.Space] = spaces.MultiDiscrete([3, 3])

    def look(self) -> Any:
        free = np.ones((2, 3), np.int8)
        free[[0, 1], self.position] = 0
        return {"position": self.position.copy(), "action_mask": free.flatten()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.position = np.zeros(2, np.int64)
        return self.look(), {}

    def step(self, action: Any) -> Any:
        assert (action != self.position).all(), "forbidden"
        self.position = np.asarray(action, np.int64)
        _, *rest = super().step(action)
        return self.look(), *rest


ENVS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "CartPole": ("CartPole-v1", {}, "Box of rank 0 or 1 → MLP"),
    "Taxi": (max(name for name in gym.registry if name.startswith("Taxi-")), {}, "Discrete → one-hot → MLP"),
    "FrozenLake": ("FrozenLake-v1", {}, "Discrete → one-hot → MLP"),
    "Blackjack": ("Blackjack-v1", {}, "Tuple → an encoder per part, fused"),
    "Pendulum": ("Pendulum-v1", {}, "float Box → DiagGaussian"),
    "HalfCheetah": ("HalfCheetah-v5", {}, "by running mean and std"),
    "Pong, 84×84×4": ("ALE/Pong-v5", {}, "Box of rank 3 → CNN"),
    "a Dict": (Sensors, {}, "Dict → MultiDistribution"),
    "masked MultiDiscrete": (Levers, {}, "observation_space['action_mask'] says which actions are allowed"),
}


@pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")
@pytest.mark.parametrize("name", ENVS)
def test_it_explains_its_nets_and_trains(name: str) -> None:
    env, settings, said = ENVS[name]
    config = PPOConfig().environment(env).env_runners(num_envs_per_env_runner=2, **settings).debugging(seed=1)
    config.training(train_batch_size_per_learner=32, minibatch_size=16, num_epochs=1)
    if "Pong" in name:
        config.rl_module(model_config={"conv_filters": [[4, 8, 8], [8, 4, 2]], "conv_dense_dim": 16})
    with config.build() as algorithm:
        assert said in " ".join(algorithm.explain().split())
        before = [p.detach().clone() for p in algorithm.get_module().parameters()]
        for _ in range(3):
            result = algorithm.train()
        assert result["env_runners"]["num_env_steps_sampled_lifetime"] <= 96
        assert np.isfinite(result["learners"]["default_policy"]["total_loss"])
        after = algorithm.get_module().parameters()
        assert any(not p.equal(b) for p, b in zip(after, before, strict=True))


class FiveSteps(Sensors):
    """Episodes of five steps."""

    def step(self, action: Any) -> Any:
        observed, reward, _, _, info = super().step(action)
        return observed, reward, self.steps == 5, False, info


def test_rollouts_that_hold_nothing_but_resets_are_skipped() -> None:
    def in_lockstep(config: Any) -> SyncVectorEnv:
        return SyncVectorEnv([FiveSteps] * 8, autoreset_mode=AutoresetMode.NEXT_STEP)

    config = PPOConfig(env=in_lockstep).env_runners(num_envs_per_env_runner=8)
    with config.training(train_batch_size_per_learner=8, minibatch_size=8, num_epochs=1).build() as algorithm:
        for _ in range(6):
            algorithm.train()
        assert algorithm.env_steps == 6 * 8
