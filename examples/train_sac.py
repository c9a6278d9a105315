"""Train SAC on Pendulum, evaluate it and let it choose an action.

Run it as ``python examples/train_sac.py``.
"""

import gymnasium as gym

from algorithms.sac import SACConfig

config = (
    SACConfig()
    .environment("Pendulum-v1")
    .env_runners(num_envs_per_env_runner=4)
    .training(lr=1e-3, train_batch_size_per_learner=128, training_intensity=128.0)  # an update per env step
    .rl_module(model_config={"fcnet_hiddens": [64, 64]})
    .debugging(seed=1)
)

with config.build() as algo:
    print(algo.explain())
    result = algo.learn(num_env_steps=20_000, progress=True)
    learned = result["learners"]["default_policy"]
    print(f"Temperature {learned['alpha_value']:.3f}, entropy {learned['entropy']:.2f} nats")
    print(f"Return of greedy episodes: {algo.evaluate()['env_runners']['episode_return_mean']:.0f}")

    obs, info = gym.make("Pendulum-v1").reset(seed=0)
    action, state = algo.policy.act(obs)
    print(f"At the start of an episode, it applies a torque of {action[0]:.2f}")
