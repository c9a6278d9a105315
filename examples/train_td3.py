"""Train TD3 on Pendulum, evaluate it and let it choose an action.

Run it as ``python examples/train_td3.py``.
"""

import gymnasium as gym

from algorithms.td3 import TD3Config

config = (
    TD3Config()
    .environment("Pendulum-v1")
    .training(exploration_noise=[[0, 1.0], [5_000, 0.1]], policy_delay=2)
    .rl_module(model_config={"fcnet_hiddens": [64, 64], "fcnet_blocks": "simba"})
    .debugging(seed=1)
)

with config.build() as algo:
    print(algo.explain())
    result = algo.learn(num_env_steps=15_000, progress=True)
    print(f"{result['replay_buffer']['num_transitions']:,} transitions are in the replay buffer")
    print(f"Return of episodes without noise: {algo.evaluate()['env_runners']['episode_return_mean']:g}")

    obs, info = gym.make("Pendulum-v1").reset(seed=0)
    action, state = algo.policy.act(obs)
    print(f"At the start of an episode, it applies a torque of {action[0]:.2f}")
