"""Train PPO on CartPole, save it, load it again and play an episode.

Run it as ``python examples/train_ppo.py``.
"""

import gymnasium as gym

from algorithms import Algorithm
from algorithms.ppo import PPOConfig

config = (
    PPOConfig()
    .environment("CartPole-v1")
    .env_runners(num_envs_per_env_runner=8)
    .training(lr=[[0, 3e-4], [200_000, 1e-4]], gamma=0.99, train_batch_size_per_learner=2048)
    .rl_module(model_config={"fcnet_hiddens": [64, 64]})
    .evaluation(evaluation_interval=5)
    .debugging(seed=1)
)

with config.build() as algo:
    print(algo.explain())
    result = algo.learn(num_env_steps=200_000, target_return=475, progress=True)
    print(f"{result['env_runners']['num_env_steps_sampled_lifetime']:,} env steps")
    checkpoint = algo.save("runs/train_ppo")

with Algorithm.from_checkpoint(checkpoint) as algo:
    env = gym.make("CartPole-v1")
    obs, info = env.reset(seed=0)
    total, over = 0.0, False
    while not over:
        action, state = algo.policy.act(obs)
        obs, reward, terminated, truncated, info = env.step(action)
        total, over = total + float(reward), terminated or truncated
    print(f"An episode with the loaded policy: return {total:g}")
