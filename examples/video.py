"""Record videos of a policy as it learns, and once it has learned. Needs ``pip install "catalog-rl[video]"``.

Run it as ``python examples/video.py``.
"""

from algorithms import new_run_dir
from algorithms.ppo import PPOConfig

run_dir = new_run_dir("PPO", "CartPole-v1")
config = (
    PPOConfig()
    .environment("CartPole-v1")
    .evaluation(evaluation_interval=10, evaluation_num_videos=1)
    .reporting(run_dir=str(run_dir))
    .debugging(seed=1)
)

with config.build() as algo:
    algo.evaluate(num_episodes=1, num_videos=1)  # before it has learned anything
    algo.learn(num_env_steps=60_000, progress=True)
    best = algo.evaluate(num_episodes=20, num_videos=2, video_dir=run_dir / "videos" / "last")

for path in sorted((run_dir / "videos").rglob("*.mp4")):
    print(path)
print(f"Recorded episodes change no figure: mean return of 20 others {best['env_runners']['episode_return_mean']:g}")
