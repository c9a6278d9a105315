"""Learn Pong from pixels, on one core in an hour or two. Needs ``pip install "catalog-rl[atari]"``.

Run it as ``python examples/atari.py``.
"""

from algorithms.ppo import PPOConfig

with PPOConfig.preset("ALE/Pong-v5").debugging(seed=1).build() as algo:
    result = algo.learn(num_env_steps=2_500_000, target_return=15, progress=True)

# rewards are clipped for learning, returns are scores: from -21 to 21
score = result["env_runners"]["episode_return_mean"]
print(f"After {algo.env_steps:,} steps a game of Pong ends with {score:.1f} points, mean of the last games")
