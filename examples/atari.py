"""Play Pong from small pictures, which a laptop can learn from. Needs ``pip install "catalog-rl[atari]"``.

Run it as ``python examples/atari.py``.
"""

from algorithms.ppo import PPOConfig

config = (
    PPOConfig.preset("ALE/Pong-v5")
    .environment("ALE/Pong-v5", env_config={"img_height": 42, "img_width": 42, "repeat_action_probability": 0.0})
    .training(lr=5e-4)
    .rl_module(model_config={"conv_filters": [[16, 8, 4], [32, 4, 2]], "conv_dense_dim": 128, "vf_share_layers": True})
    .debugging(seed=1)
)

with config.build() as algo:
    result = algo.learn(num_env_steps=1_000_000, target_return=0, progress=True)

# rewards are clipped for learning, returns are scores: from -21 to 21
score = result["env_runners"]["episode_return_mean"]
print(f"After {algo.env_steps:,} steps a game of Pong ends with {score:.1f} points, mean of the last games")
