"""What runners and learners read from a config. An AlgorithmConfig satisfies these without knowing them."""

import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
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
    def gym_env_vectorize_mode(self) -> Literal["sync", "async", "vector_entry_point"] | None: ...
    @property
    def records_episode_infos(self) -> bool: ...
    @property
    def restart_failed_sub_environments(self) -> bool: ...


class RunnerGroupSettings(RunnerSettings, Protocol):
    """Read by groups of env runners."""

    @property
    def num_env_runners(self) -> int: ...
    @property
    def num_cpus_per_env_runner(self) -> float: ...
    @property
    def env_step_timeout_s(self) -> float: ...
    @property
    def restart_failed_env_runners(self) -> bool: ...
    @property
    def ignore_env_runner_failures(self) -> bool: ...
    @property
    def max_restarts_in_a_row(self) -> int: ...


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
    @property
    def num_gpus_per_learner(self) -> int: ...
    @property
    def torch_compile_learner(self) -> bool: ...
    @property
    def torch_cuda_graphs(self) -> bool: ...
    @property
    def torch_autocast(self) -> Literal["bfloat16"] | None: ...


class LearnerGroupSettings(LearnerSettings, Protocol):
    """Read by groups of learners."""

    @property
    def num_learners(self) -> int: ...
    @property
    def num_cpus_per_learner(self) -> float: ...
    @property
    def torch_num_threads(self) -> int | None: ...
    @property
    def learner_timeout_s(self) -> float: ...
    @property
    def restart_failed_learners(self) -> bool: ...
    @property
    def max_restarts_in_a_row(self) -> int: ...


class EpisodeLearnerSettings(LearnerSettings, Protocol):
    """Read by learners that make minibatches of rollouts."""

    @property
    def minibatch_size(self) -> int | None: ...
    @property
    def num_epochs(self) -> int: ...


def subset(settings: Any, protocol: type) -> Any:
    """The settings that ``protocol`` names and nothing else: what a worker elsewhere is sent of a config."""
    bases = [base for base in protocol.__mro__ if base not in (Protocol, object)]
    names = {name for base in bases for name in (*vars(base), *inspect.get_annotations(base))}
    return SimpleNamespace(**{name: getattr(settings, name) for name in names if not name.startswith("_")})
