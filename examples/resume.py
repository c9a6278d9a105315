"""Train, stop, and go on from the checkpoint, as after a crash or the end of a job.

Run it as ``python examples/resume.py``.
"""

from algorithms import Algorithm, new_run_dir
from algorithms.dqn import DQNConfig

run_dir = new_run_dir("DQN", "CartPole-v1")
config = (
    DQNConfig()
    .environment("CartPole-v1")
    .reporting(run_dir=str(run_dir))
    .checkpointing(checkpoint_interval=5)  # for the process that is killed; learn() writes one at its end anyway
    .debugging(seed=1)
)

with config.build() as algo:
    algo.learn(num_env_steps=10_000, progress=True)
    print(f"Stopped after {algo.metrics.iterations} iterations, {algo.env_steps:,} env steps")

# another process, another day
with Algorithm.from_checkpoint(run_dir / "checkpoint") as algo:
    print(f"Goes on after {algo.env_steps:,}: weights, optimiser and replay buffer are those it had")
    result = algo.learn(num_env_steps=10_000, progress=True)
    print(f"{algo.env_steps:,} env steps, {result['replay_buffer']['num_transitions']:,} of them in the replay buffer")

log = (run_dir / "progress.jsonl").read_text(encoding="utf-8")
print(f"{run_dir / 'progress.jsonl'}, {len(log.splitlines())} lines")
