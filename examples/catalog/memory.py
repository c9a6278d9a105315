"""Memory: balance a pole without seeing how fast anything moves. A net with a memory can; one without cannot.

Run it as ``python examples/catalog/memory.py``.
"""

import gymnasium as gym
import numpy as np

from algorithms.ppo import PPOConfig


class PositionsOnly(gym.ObservationWrapper):
    """CartPole with its two velocities left out: the cart's position and the pole's angle remain."""

    def __init__(self, env: gym.Env) -> None:
        super().__init__(env)
        high = env.observation_space.high[[0, 2]]
        self.observation_space = gym.spaces.Box(-high, high)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation[[0, 2]]


config = (
    PPOConfig()
    .environment(lambda env_config: PositionsOnly(gym.make("CartPole-v1")))
    .training(lr=1e-3, train_batch_size_per_learner=1024, minibatch_size=128, num_epochs=8)
    .evaluation(evaluation_interval=2)
    .debugging(seed=1)
)
memories = {"MLP": {}, "LSTM": {"use_lstm": True}, "GRU": {"use_gru": True}, "attention": {"use_attention": True}}
for name, model_config in memories.items():
    config.training(lr=5e-4 if name == "attention" else 1e-3)
    with config.rl_module(model_config=model_config).build() as algo:
        algo.learn(num_env_steps=40_000, target_return=450, progress=True)
        returned = algo.evaluate()["env_runners"]["episode_return_mean"]
        print(f"{name}: greedy return {returned:.0f} after {algo.env_steps:,} env steps")

    # Acting by hand: the state goes out and comes in again; None begins an episode.
    env = PositionsOnly(gym.make("CartPole-v1"))
    (obs, info), state, total, over = env.reset(seed=1), None, 0.0, False
    while not over:
        action, state = algo.policy.act(obs, state)
        obs, reward, terminated, truncated, info = env.step(action)
        total, over = total + float(reward), terminated or truncated
    print(f"{name}: an episode by hand, return {total:g}")
