"""The settings of env runners and learners, grouped by the sections of an algorithm's config."""

from collections.abc import Callable
from dataclasses import KW_ONLY
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, TypeAlias

import gymnasium as gym
from gymnasium.vector import VectorEnv
from typing_extensions import Self

from catalog.checks import Schedule
from catalog.settings import Settings, setting, settings_of

FinalObs: TypeAlias = 'Literal["truncated", "ended"]'  # as text: Jedi, which completes in notebooks, fails on it
"""Steps whose true final observation is recorded: those that truncate an episode and do not terminate it, or all that
end one."""


class Environment(Settings, kw_only=False):
    """The environment to act in."""

    env: str | type[gym.Env] | type[VectorEnv] | Callable[..., Any] | None = setting(
        None,
        "The environment: a Gymnasium id, an Env class, a factory fn(env_config), or a VectorEnv factory; for "
        "multi-agent training, a MultiAgentEnv class, a factory, a PettingZoo id, or the name of a PettingZoo module. "
        "Required by build().",
    )
    _: KW_ONLY
    env_config: dict[str, Any] = setting(
        {}, "Keyword arguments for a Gymnasium id or an Env class; the only argument of a factory, as a dict."
    )


class EnvRunners(Settings):
    """The processes and environments that sample experience."""

    num_env_runners: int = setting(0, "Sampling processes; 0 samples in this process.", ge=0)
    num_envs_per_env_runner: int = setting(8, "Environments that each runner steps together as one vector.", ge=1)
    gym_env_vectorize_mode: Literal["sync", "async", "vector_entry_point"] | None = setting(
        None,
        "How a runner steps its environments: one after another ('sync'), each in its own process ('async'), or with "
        "the vector class registered for the id ('vector_entry_point'); None uses the registered vector class for "
        "Atari games, and 'sync' for all other environments.",
    )
    rollout_fragment_length: int | None = setting(
        None,
        "Steps of each environment per rollout; None lets the algorithm choose: PPO and A2C derive it from the train "
        "batch size, IMPALA and APPO take at most 32, algorithms with replay use 1, or 4 with sampling processes.",
        ge=1,
    )
    sample_ahead: int = setting(
        0,
        "Rollouts that runners begin before an update instead of after it: with 1, they sample while the learners "
        "update, with weights that are one update old.",
        ge=0,
        le=1,
    )
    num_cpus_per_env_runner: float = setting(
        1.0, "CPUs that Ray sets aside for each sampling process; may be a fraction.", ge=0
    )
    env_step_timeout_s: float = setting(
        60.0, "Seconds without an environment step after which a sampling process counts as hung.", gt=0
    )


class LearnerResources(Settings):
    """Settings of the learners, which update the networks: their number, CPUs, GPUs, timeout and torch options."""

    num_learners: int = setting(0, "Learner processes; 0 learns in this process.", ge=0)
    num_cpus_per_learner: float = setting(
        1.0, "CPUs that Ray sets aside for each learner process; may be a fraction.", ge=0
    )
    num_gpus_per_learner: int = setting(0, "GPUs of each learner; 0 learns on the CPU.", ge=0, le=1)
    learner_timeout_s: float = setting(
        60.0,
        "Seconds without a gradient step after which a learner process counts as hung; also the longest time that "
        "learners wait for each other.",
        gt=0,
    )
    torch_compile_learner: bool = setting(False, "Whether learners compile the loss with torch.compile.")
    torch_cuda_graphs: bool = setting(
        False, "Whether learners on a GPU replay the loss and its gradient as a CUDA graph."
    )
    torch_autocast: Literal["bfloat16"] | None = setting(
        None,
        "Floating-point type that the networks' layers compute with in the loss; None uses the type of the weights.",
    )
    torch_num_threads: int | None = setting(
        None,
        "CPU threads of torch in the process that learns; None uses one per CPU in a learner process, and otherwise a "
        "number that follows from the rows of a gradient step, the size of the nets and the CPU cores. A run that "
        "resumes keeps it.",
        ge=1,
    )


class Training(Settings):
    """Train batches, the optimizer and the loss."""

    gamma: float = setting(0.99, "Discount factor per step.", ge=0, le=1)
    lr: Schedule = setting(
        3e-4, "Learning rate: a number, or points [[0, lr], [env_step, lr], ...] joined by straight lines.", ge=0
    )
    grad_clip: float | None = setting(
        0.5, "Upper bound on the gradients, in the sense of grad_clip_by; None does not clip.", gt=0
    )
    grad_clip_by: Literal["global_norm", "norm", "value"] = setting(
        "global_norm",
        "What grad_clip bounds: the norm of all gradients together ('global_norm'), the norm of each tensor's gradient "
        "('norm'), or the magnitude of every single element ('value').",
    )
    train_batch_size_per_learner: int = setting(2048, "Environment steps in each train batch of each learner.", ge=1)
    clip_rewards: Literal["sign"] | float | None = setting(
        None,
        "How rewards are clipped for learning: 'sign' replaces each with -1, 0 or 1; a number is the largest "
        "magnitude; None does not clip. Reported returns are never clipped.",
        gt=0,
    )

    @property
    def rows_per_gradient_step(self) -> int:
        """Rows in the batch of a gradient step of one learner."""
        return self.train_batch_size_per_learner


class EpisodeTraining(Training):
    """Train batches, their minibatches and epochs, the optimizer and the loss."""

    minibatch_size: int | None = setting(
        None, "Environment steps per gradient step of one learner; None takes the whole batch.", ge=1
    )
    num_epochs: int = setting(1, "Passes over each train batch.", ge=1)

    @property
    def rows_per_gradient_step(self) -> int:
        return self.minibatch_size or super().rows_per_gradient_step


class FaultTolerance(Settings):
    """Failures that a run survives."""

    restart_failed_env_runners: bool = setting(
        True, "Whether a sampling process that raised, died or hung is replaced by a new one."
    )
    restart_failed_sub_environments: bool = setting(
        False,
        "Whether a single environment that raises, also in its constructor, is restarted while the runner's other "
        "environments continue; otherwise its error makes the runner fail.",
    )
    ignore_env_runner_failures: bool = setting(
        False,
        "Whether to continue without a failed sampling process that is not restarted, as long as at least one other is "
        "left.",
    )
    restart_failed_learners: bool = setting(
        True, "Whether learner processes that died or hung are replaced, and their update repeated."
    )
    max_restarts_in_a_row: int = setting(
        5, "Restarts of one process without an answer from it in between; the next failure ends the run.", ge=1
    )
    max_nonfinite_updates_in_a_row: int = setting(
        10,
        "Number of updates in a row with a NaN or infinite loss or gradient after which the run ends; fewer are "
        "skipped.",
        ge=1,
    )


class RunnerSettings(Environment, EnvRunners, FaultTolerance):
    """Settings of env runners and their groups."""

    records_action_dist: ClassVar[bool] = True
    """Whether rollouts have the columns ``action_dist_inputs`` and ``action_logp``. Losses such as PPO's compare them
    with the current policy's."""

    @property
    def records_final_obs(self) -> FinalObs:
        """Which steps have their true final observation in :attr:`Rollout.final_obs`. Value targets need those of
        truncated steps only; ``"ended"`` adds those of terminated steps."""
        return "truncated"

    @property
    def records_episode_infos(self) -> bool:
        """Whether the ``stats`` of rollouts contain the last ``info`` dict of each episode that ended."""
        return False

    @property
    def is_multi_agent(self) -> bool:
        """Whether the env is a multi-agent env."""
        return False

    @property
    def num_envs(self) -> int:
        """Total number of environments over all env runners."""
        return max(1, self.num_env_runners) * self.num_envs_per_env_runner

    def for_runners(self) -> Any:
        """Copy the settings that an env runner reads to a plain namespace, which can be sent to another process."""
        names = (*settings_of(RunnerSettings), "records_action_dist", "records_final_obs", "records_episode_infos")
        return SimpleNamespace(**{name: getattr(self, name) for name in names})


class LearnerSettings(Training, LearnerResources, FaultTolerance):
    """Settings of learners and their groups."""

    def is_trained(self, module_id: str) -> bool:
        """Return whether module ``module_id`` is trained; False if it only acts."""
        return True

    def for_module(self, module_id: str) -> Self:
        """Return the settings with which module ``module_id`` is trained: these settings, changed by the module's
        overrides if it has any."""
        return self


class EpisodeLearnerSettings(EpisodeTraining, LearnerSettings):
    """Settings of learners that train on rollouts in epochs of minibatches."""
