"""What runners and learners read from a config. An AlgorithmConfig satisfies these without knowing them."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, Protocol


class RunnerSettings(Protocol):
    """Read by env runners."""

    records_action_dist: ClassVar[bool]

    @property
    def env(self) -> str | type | Callable[..., Any] | None: ...
    @property
    def env_config(self) -> Mapping[str, Any]: ...
    @property
    def num_envs_per_env_runner(self) -> int: ...
    @property
    def gym_env_vectorize_mode(self) -> Literal["sync", "async", "vector_entry_point"]: ...
    @property
    def records_episode_infos(self) -> bool: ...


class LearnerSettings(Protocol):
    """Read by learners."""

    @property
    def lr(self) -> float | list[list[float]]: ...
    @property
    def grad_clip(self) -> float | None: ...
    @property
    def grad_clip_by(self) -> Literal["global_norm", "norm", "value"]: ...
    @property
    def max_nonfinite_updates_in_a_row(self) -> int: ...


class EpisodeLearnerSettings(LearnerSettings, Protocol):
    """Read by learners that make minibatches of rollouts."""

    @property
    def minibatch_size(self) -> int | None: ...
    @property
    def num_epochs(self) -> int: ...
