"""Train two settings on three seeds each and compare their learning curves: the means of the seeds with their range.

Run it as ``python examples/compare_seeds.py``.
"""

from algorithms import new_run_dir, plot_runs, table_of
from algorithms.ppo import PPOConfig

folder = new_run_dir("PPO", "CartPole-v1")
learning_rates = 3e-4, 2e-3

for lr in learning_rates:
    for seed in (1, 2, 3):
        config = (
            PPOConfig()
            .environment("CartPole-v1")
            .training(lr=lr, train_batch_size_per_learner=1024)
            .evaluation(evaluation_interval=1, evaluation_duration=5)
            .reporting(run_dir=str(folder / f"lr-{lr:g}" / f"seed-{seed}"))
            .debugging(seed=seed)
        )
        with config.build() as algo:
            algo.learn(num_env_steps=25_000, progress=True)

# each folder holds the runs of its seeds; what differs between the folders becomes the label
curves = plot_runs([folder / f"lr-{lr:g}" for lr in learning_rates], folder / "curves.png")
print(table_of(curves))
print(f"Wrote {folder / 'curves.png'}")
