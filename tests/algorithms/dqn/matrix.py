"""The feature matrix of DQN: every pair of observations, actions, memories and parts of Rainbow.

docs/feature_matrix.py writes its page from these tables, so that a tick there is a case that the tests run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from algorithms.dqn import DQNConfig
from tests.algorithms.ppo import matrix
from tests.algorithms.ppo.matrix import DESCRIBED, MASKS, MEMORIES, TINY, SpacesEnv

OBSERVATIONS = (
    "Box, rank 1",
    "Box, rank 3, bytes, channels last",
    "Box, rank 4, stacked frames",
    "Discrete, embedded",
    "MultiDiscrete with starts",
    "Dict and Tuple nested, images and vectors",
    "the same, flattened to one vector",
)
ACTIONS = ("Discrete", "Discrete with a start", DESCRIBED)
NETS: dict[str, Mapping[str, Any]] = {
    "plain": {"double_q": False},
    "double": {"double_q": True},
    "dueling": {"dueling": True},
    "distributional": {"num_atoms": 5, "v_min": -3.0, "v_max": 9.0},
    "noisy": {"noisy": True},
    "all": {"double_q": True, "dueling": True, "num_atoms": 5, "v_min": -3.0, "v_max": 9.0, "noisy": True},
}
REPLAY: dict[str, Mapping[str, Any]] = {
    "uniform": {"n_step": 1},
    "prioritized": {"prioritized_replay": True, "n_step": 1},
    "3 steps": {"n_step": 3},
    "prioritized, 3 steps": {"prioritized_replay": True, "n_step": 3},
}
FACTORS: dict[str, tuple[str, ...]] = {
    "observation": OBSERVATIONS,
    "action": ACTIONS,
    "memory": ("no memory", "LSTM", "GRU", "attention", "LSTM, previous action and reward"),
    "net": tuple(NETS),
    "replay": tuple(REPLAY),
    "mask": tuple(MASKS),
}


@dataclass(frozen=True)
class Case:
    """One level of each factor; see :data:`FACTORS`."""

    observation: str
    action: str
    memory: str
    net: str
    replay: str
    mask: str

    @property
    def name(self) -> str:
        return " | ".join(vars(self).values())

    def config(self) -> DQNConfig:
        """A run of two envs, with an update for every four steps once 16 are in replay."""
        own = {**TINY, **MEMORIES[self.memory], **matrix.OBSERVATIONS[self.observation].settings}
        config = DQNConfig().environment(SpacesEnv, env_config=vars(self)).env_runners(num_envs_per_env_runner=2)
        config.update({**NETS[self.net], **REPLAY[self.replay]})
        config.training(
            num_steps_sampled_before_learning_starts=16, train_batch_size_per_learner=4, training_intensity=1.0
        )
        config.replay(replay_capacity=256).reporting(num_env_steps_per_iteration=40)
        return config.rl_module(model_config=own).debugging(seed=3)


@cache
def cases() -> tuple[Case, ...]:
    """Cases that hold every pair of levels."""
    return tuple(Case(**levels) for levels in matrix.covering(FACTORS, lambda _: True))
