"""Evaluate while training and on call: greedy or sampled, by episodes or by steps, in another env_config.

Run it as ``python examples/evaluate.py``.
"""

from algorithms import Algorithm, new_run_dir
from algorithms.ppo import PPOConfig

run_dir = new_run_dir("PPO", "CartPole-v1")
config = (
    PPOConfig()
    .environment("CartPole-v1", env_config={"sutton_barto_reward": True})  # trained on -1 for a fall, else 0 ...
    .evaluation(
        evaluation_interval=1,
        evaluation_duration=10,
        evaluation_env_config={},  # ... and measured by the steps it stands
    )
    .reporting(run_dir=str(run_dir))
    .debugging(seed=1)
)

with config.build() as algo:
    algo.learn(num_env_steps=60_000, target_return=475, progress=True)

# the best of many evaluations was lucky too, so it is measured again
with Algorithm.from_checkpoint(run_dir / "best_checkpoint") as algo:
    for how, evaluation in {
        "most likely actions": algo.evaluate(num_episodes=50),
        "sampled actions": algo.evaluate(num_episodes=50, explore=True),
        "10,000 env steps": algo.evaluate(num_env_steps=10_000),
    }.items():
        got = evaluation["env_runners"]
        least, most = got["episode_return_min"], got["episode_return_max"]
        print(f"{how}: return {got['episode_return_mean']:.1f} ({least:g} to {most:g}), {got['num_episodes']} episodes")
