"""The feature matrix of SAC: every pair of observations, actions, memories, encoders, replays and masks.

docs/feature_matrix.py writes its page from these tables, so that a tick there is a case that the tests run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from algorithms.off_policy import ReplayConfig
from algorithms.sac import SACConfig
from tests.algorithms.ppo import matrix
from tests.algorithms.ppo.matrix import MASKS, MEMORIES, SHARING, TINY, SpacesEnv, is_sensible

OBSERVATIONS = (
    "Box, rank 1",
    "Box, rank 3, bytes, channels last",
    "Discrete, embedded",
    "MultiDiscrete with starts",
    "Dict and Tuple nested, images and vectors",
    "the same, flattened to one vector",
)
ACTIONS = (
    "Discrete with a start",
    "MultiDiscrete with starts, rank 2",
    "MultiBinary, rank 2",
    "Box, bounded",
    "Box, rank 0",
    "Box, rank 2, float64",
    "Box of integers, rank 2",
    "Tuple",
    "Dict and Tuple nested",
)
REPLAY: dict[str, Mapping[str, Any]] = {
    "uniform": {"n_step": 1},
    "prioritized": {"prioritized_replay": True, "n_step": 1},
    "prioritized, 3 steps": {"prioritized_replay": True, "n_step": 3},
}
FACTORS: dict[str, tuple[str, ...]] = {
    "observation": OBSERVATIONS,
    "action": ACTIONS,
    "memory": ("no memory", "LSTM", "attention, previous action and reward"),
    "sharing": tuple(SHARING),
    "replay": tuple(REPLAY),
    "mask": tuple(MASKS),
}


@dataclass(frozen=True)
class Case:
    """One level of each factor; see :data:`FACTORS`."""

    observation: str
    action: str
    memory: str
    sharing: str
    replay: str
    mask: str
    make: ClassVar[Callable[[], ReplayConfig]] = SACConfig

    @property
    def name(self) -> str:
        return " | ".join(vars(self).values())

    def config(self) -> ReplayConfig:
        """A run of two envs, with an update for every four steps once 16 are in replay."""
        own = {**TINY, **MEMORIES[self.memory], **matrix.OBSERVATIONS[self.observation].settings}
        config = self.make().environment(SpacesEnv, env_config=vars(self)).env_runners(num_envs_per_env_runner=2)
        config.update({**REPLAY[self.replay], "num_steps_sampled_before_learning_starts": 16})
        config.training(train_batch_size_per_learner=4, training_intensity=1.0, tau=0.1)
        config.replay(replay_capacity=256).reporting(num_env_steps_per_iteration=40)
        config.rl_module(model_config=own | {"vf_share_layers": SHARING[self.sharing]})
        return config.debugging(seed=3)


@cache
def cases() -> tuple[Case, ...]:
    """Cases that hold every pair of levels that go together."""
    return tuple(Case(**levels) for levels in matrix.covering(FACTORS, is_sensible))
