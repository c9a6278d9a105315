"""The settings of env runners and learners, by the sections of an algorithm's config."""

from collections.abc import Callable
from dataclasses import KW_ONLY
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import gymnasium as gym
from gymnasium.vector import VectorEnv
from typing_extensions import Self

from catalog.checks import Schedule
from catalog.settings import Settings, setting, settings_of


class Environment(Settings, kw_only=False):
    """The environment to act in."""

    env: str | type[gym.Env] | type[VectorEnv] | Callable[..., Any] | None = setting(
        None,
        "The environment: a Gymnasium id, an Env class, a factory fn(env_config), or a VectorEnv factory; with several "
        "agents, a MultiAgentEnv class, an id of PettingZoo, or its module. Required by build().",
    )
    _: KW_ONLY
    env_config: dict[str, Any] = setting(
        {}, "Keyword arguments for a Gymnasium id or an Env class; the one argument of a factory."
    )


class EnvRunners(Settings):
    """The processes and environments that sample experience."""

    num_env_runners: int = setting(0, "Sampling processes; 0 samples in this process.", ge=0)
    num_envs_per_env_runner: int = setting(8, "Environments that each runner steps together as one vector.", ge=1)
    gym_env_vectorize_mode: Literal["sync", "async", "vector_entry_point"] | None = setting(
        None,
        "How a runner steps its environments: in turn, each in a process, or with the vector class registered for the "
        "id; None uses that class for Atari's games, and steps all others in turn.",
    )
    rollout_fragment_length: int | None = setting(
        None,
        "Steps of each environment per rollout; None lets the algorithm choose: PPO follows its train batch size, DQN "
        "takes 1, or 4 from sampling processes.",
        ge=1,
    )
    num_cpus_per_env_runner: float = setting(
        1.0, "CPUs that Ray sets aside for each sampling process; may be a fraction.", ge=0
    )
    env_step_timeout_s: float = setting(
        60.0, "Seconds without one environment step after which a sampling process counts as hung.", gt=0
    )


class LearnerResources(Settings):
    """The learners that update the networks, and their resources."""

    num_learners: int = setting(0, "Learner processes; 0 learns in this process.", ge=0)
    num_cpus_per_learner: float = setting(
        1.0, "CPUs that Ray sets aside for each learner process; may be a fraction.", ge=0
    )
    num_gpus_per_learner: int = setting(0, "GPUs of each learner; 0 learns on the CPU.", ge=0, le=1)
    learner_timeout_s: float = setting(
        60.0,
        "Seconds without one gradient step after which a learner process counts as hung; also the longest that "
        "learners wait for each other.",
        gt=0,
    )
    torch_compile_learner: bool = setting(False, "Whether learners compile the loss with torch.compile.")
    torch_cuda_graphs: bool = setting(
        False, "Whether learners on a GPU replay the loss and its gradient as a CUDA graph."
    )
    torch_autocast: Literal["bfloat16"] | None = setting(
        None,
        "Floating-point type in which the networks' layers compute the loss; None takes that of the weights.",
    )
    torch_num_threads: int | None = setting(
        None,
        "CPU threads of torch in the process that learns; None chooses by the size of the network, and a learner "
        "process takes one per CPU.",
        ge=1,
    )


class Training(Settings):
    """Train batches, the optimizer and the loss."""

    gamma: float = setting(0.99, "Discount factor per step.", ge=0, le=1)
    lr: Schedule = setting(
        3e-4, "Learning rate: a number, or points [[0, lr], [env_step, lr], ...] joined by straight lines.", ge=0
    )
    grad_clip: float | None = setting(
        0.5, "Bound of the gradients, which grad_clip_by defines; None does not clip.", gt=0
    )
    grad_clip_by: Literal["global_norm", "norm", "value"] = setting(
        "global_norm",
        "What grad_clip bounds: the norm of all gradients together, of each tensor, or every single element.",
    )
    train_batch_size_per_learner: int = setting(2048, "Environment steps in each train batch of each learner.", ge=1)
    clip_rewards: Literal["sign"] | float | None = setting(
        None,
        "How rewards are clipped for learning: 'sign' replaces each by -1, 0 or 1, a number is the largest magnitude, "
        "None does not clip; reported returns are never clipped.",
        gt=0,
    )


class EpisodeTraining(Training):
    """Train batches, their minibatches and epochs, the optimizer and the loss."""

    minibatch_size: int | None = setting(
        None, "Environment steps per gradient step of one learner; None takes the whole batch.", ge=1
    )
    num_epochs: int = setting(1, "Passes over each train batch.", ge=1)


class FaultTolerance(Settings):
    """Failures that a run survives."""

    restart_failed_env_runners: bool = setting(
        True, "Whether a sampling process that raised, died or hung is replaced by a new one."
    )
    restart_failed_sub_environments: bool = setting(
        False,
        "Whether a single environment that raises is restarted, while the others continue; else it fails its runner.",
    )
    ignore_env_runner_failures: bool = setting(
        False,
        "Whether to continue without a sampling process that is not restarted, as long as another one is left.",
    )
    restart_failed_learners: bool = setting(
        True, "Whether learner processes that died or hung are replaced, and their update repeated."
    )
    max_restarts_in_a_row: int = setting(
        5, "Restarts of one process without an answer from it in between; one more failure ends the run.", ge=1
    )
    max_nonfinite_updates_in_a_row: int = setting(
        10,
        "Updates in a row that may be skipped because their loss or gradient is NaN or infinite; the last of them "
        "ends the run.",
        ge=1,
    )


class RunnerSettings(Environment, EnvRunners, FaultTolerance):
    """Settings of env runners and their groups."""

    records_action_dist: ClassVar[bool] = True
    """Whether rollouts have the columns ``action_dist_inputs`` and ``action_logp``, which some losses compare."""

    @property
    def records_episode_infos(self) -> bool:
        """Whether rollouts have the last ``info`` of each episode that ended."""
        return False

    @property
    def is_multi_agent(self) -> bool:
        """Whether the env has several agents."""
        return False

    @property
    def num_envs(self) -> int:
        """Number of environments, over all runners."""
        return max(1, self.num_env_runners) * self.num_envs_per_env_runner

    def for_runners(self) -> Any:
        """Return a plain copy of the settings that an env runner reads, to send to another process."""
        names = (*settings_of(RunnerSettings), "records_action_dist", "records_episode_infos")
        return SimpleNamespace(**{name: getattr(self, name) for name in names})


class LearnerSettings(Training, LearnerResources, FaultTolerance):
    """Settings of learners and their groups."""

    def is_trained(self, module_id: str) -> bool:
        """Return whether a module is trained; False if it only acts."""
        return True

    def for_module(self, module_id: str) -> Self:
        """Return the settings with which a module is trained: these, with the overrides of that module."""
        return self


class EpisodeLearnerSettings(EpisodeTraining, LearnerSettings):
    """Settings of learners that divide rollouts into minibatches."""
