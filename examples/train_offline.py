"""Learn from recorded episodes, then go on in the env: BC from data alone, and PPO that begins with its nets.

Run it as ``python examples/train_offline.py``.
"""

import tempfile

import gymnasium as gym

from algorithms.bc import BCConfig
from algorithms.ppo import PPOConfig
from rlmodule import Dataset, Episode

# 1. Ten episodes of someone who balances the pole.
env, episodes = gym.make("CartPole-v1"), []
for seed in range(10):
    episode = Episode()
    episode.add_reset(env.reset(seed=seed)[0])
    while not episode.is_finished:
        _, _, angle, spin = episode.get_observations(-1)
        action = int(angle + 0.5 * spin > 0)
        obs, reward, terminated, truncated, _ = env.step(action)
        episode.add_step(action, obs, float(reward), terminated, truncated)
    episodes.append(episode)
data = Dataset.from_episodes(
    episodes, observation_space=env.observation_space, action_space=env.action_space, env="CartPole-v1"
)
print(data.describe())

with tempfile.TemporaryDirectory() as folder:
    # 2. BC makes these actions likely. It needs the env only to be evaluated.
    with BCConfig().environment("CartPole-v1").offline(data=data).debugging(seed=1).build() as algo:
        algo.learn(num_updates=1_000, progress=True)
        print(f"BC: return {algo.evaluate()['env_runners']['episode_return_mean']:.0f}")
        algo.save(folder)

    # 3. PPO begins with these weights, and for comparison with weights that know nothing.
    for begins_with_bc in (True, False):
        with PPOConfig().environment("CartPole-v1").debugging(seed=1).build() as algo:
            if begins_with_bc:
                algo.learner_group.load_modules(folder)
            algo.learn(num_env_steps=6_000, progress=True)
            print(
                f"PPO {'after BC' if begins_with_bc else 'alone'}: "
                f"return {algo.evaluate()['env_runners']['episode_return_mean']:.0f}"
            )
