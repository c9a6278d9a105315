"""Train DQN on CartPole, evaluate it and let it choose an action.

Run it as ``python examples/train_dqn.py``.
"""

import gymnasium as gym

from algorithms.dqn import DQNConfig

config = (
    DQNConfig()
    .environment("CartPole-v1")
    .env_runners(num_envs_per_env_runner=8)
    .training(epsilon=[[0, 1.0], [10_000, 0.05]], n_step=3, dueling=True)
    .replay(replay_capacity=50_000, prioritized_replay=True)
    .rl_module(model_config={"fcnet_hiddens": [256, 256]})
    .evaluation(evaluation_interval=5)
    .debugging(seed=1)
)

with config.build() as algo:
    print(algo.explain())
    result = algo.learn(num_env_steps=50_000, target_return=475, progress=True)
    print(f"{result['replay_buffer']['num_transitions']:,} transitions are in the replay buffer")
    print(f"Return of greedy episodes: {algo.evaluate()['env_runners']['episode_return_mean']:g}")

    obs, info = gym.make("CartPole-v1").reset(seed=0)
    action, state = algo.policy.act(obs)
    print(f"Where an episode begins, it does {action}")
