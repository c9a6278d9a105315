"""Save a policy, load it and act, one observation at a time, with a policy that has a memory.

Run it as ``python examples/deploy.py``.
"""

from time import perf_counter

import gymnasium as gym

from algorithms.ppo import PPOConfig
from rlmodule import Policy

config = (
    PPOConfig()
    .environment("CartPole-v1")
    .rl_module(model_config={"fcnet_hiddens": [32], "use_lstm": True, "lstm_cell_size": 32, "max_seq_len": 16})
    .debugging(seed=1)
)
with config.build() as algo:
    algo.learn(num_env_steps=40_000, progress=True)
    folder = algo.policy.save("runs/deploy")  # all that has to be copied

# what follows could be another program, on another machine
policy, env = Policy.load(folder), gym.make("CartPole-v1")
for seed in range(3):
    obs, info = env.reset(seed=seed)
    state, reward = None, None  # the memory is yours to keep: None where an episode begins
    total, steps, seconds, over = 0.0, 0, 0.0, False
    while not over:
        start = perf_counter()
        action, state = policy.act(obs, state, reward=reward)
        seconds += perf_counter() - start
        obs, gained, terminated, truncated, info = env.step(action)
        reward, over = float(gained), terminated or truncated
        total, steps = total + reward, steps + 1
    print(f"Episode {seed}: return {total:g}, {1e3 * seconds / steps:.2f} ms per action")
