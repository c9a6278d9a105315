"""Sample in processes of their own, on Ray: the same run with one number more, and what it says of its processes.

Run it as ``python examples/ray_env_runners.py``. With ``RAY_ADDRESS`` set, the processes are on that cluster.
"""

import time

import gymnasium as gym

from algorithms.ppo import PPOConfig


class SlowCartPole(gym.Wrapper):
    """Thinks for a millisecond before each step, as a simulator does."""

    def step(self, action):
        time.sleep(0.001)
        return super().step(action)


def make_env(env_config):
    return SlowCartPole(gym.make("CartPole-v1"))


config = (
    PPOConfig()
    .environment(make_env)
    .env_runners(num_env_runners=2, num_envs_per_env_runner=4, env_step_timeout_s=10)  # 8 environments in all
    .fault_tolerance(restart_failed_sub_environments=True)
    .debugging(seed=1)
)

for num_env_runners in (0, 2):
    # as many environments, wherever they are
    config.env_runners(num_env_runners=num_env_runners, num_envs_per_env_runner=4 if num_env_runners else 8)
    with config.build() as algo:
        result = algo.learn(num_env_steps=10_000, progress=True)
    steps, seconds = result["env_runners"]["num_env_steps_per_second"], result["timers"]["env_step"]
    print(f"num_env_runners={num_env_runners}: {steps:,.0f} steps/s, {seconds:.1f} s in env.step")
for name, value in result["workers"].items():
    print(f"  workers/{name}: {value}")
