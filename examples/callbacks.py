"""Watch a run: log the rate of success of its recent episodes, and stop when nearly all of them succeed.

Run it as ``python examples/callbacks.py``.
"""

from collections import deque
from typing import Any

from algorithms import Algorithm, Callbacks, FinishedEpisode
from algorithms.ppo import PPOConfig


class StopAtSuccess(Callbacks):
    """One object of this class is made for a run, so it can remember what it has seen."""

    goal = 0.95

    def __init__(self) -> None:
        self.recent: deque[bool] = deque(maxlen=100)

    def on_episode_end(self, *, algorithm: Algorithm, episode: FinishedEpisode) -> None:
        # FrozenLake pays 1 at the goal and nothing else; other environments put "is_success" into episode.info
        success = episode.episode_return > 0
        algorithm.metrics.log_value("success", success)  # a mean over the iteration, apart in evaluations
        if not episode.in_evaluation:
            self.recent.append(success)

    def on_train_result(self, *, algorithm: Algorithm, result: dict[str, Any]) -> None:
        rate = sum(self.recent) / max(1, len(self.recent))
        result["recent_success"] = rate  # what is added here is logged too
        if rate >= self.goal:
            algorithm.stop_learning()


def tell(algorithm: Algorithm, result: dict[str, Any]) -> None:
    """A function of its own for one callback; both ways go together."""
    if result["training_iteration"] % 5 == 0:
        print(f"{algorithm.env_steps:>7,} steps, success {result['recent_success']:.0%}")


config = (
    PPOConfig()
    .environment("FrozenLake-v1", env_config={"is_slippery": False})
    .callbacks(StopAtSuccess, on_train_result=tell)
    .debugging(seed=1)
)

with config.build() as algo:
    algo.learn(num_env_steps=100_000)
    print(f"stopped after {algo.env_steps:,} env steps")
