"""The sections of a config that belong to the run as a whole. Those of sampling and learning are in
:mod:`rlmodule.settings`."""

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Any, Literal

from algorithms.loggers.base import Logger
from algorithms.run.callbacks import Callbacks
from catalog.model_config import DefaultModelConfig
from catalog.settings import Settings, setting
from rlmodule.learning.learner import Learner
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.settings import LearnerResources


class Learners(LearnerResources):
    """The learners that update the networks, and their resources."""

    learner_class: type[Learner] | None = setting(
        None,
        "Class of the learners, which compute the loss; None takes the algorithm's own, from which to derive yours.",
    )


class Networks(Settings):
    """The networks of a run, and their settings."""

    model_config: DefaultModelConfig | dict[str, Any] | None = setting(
        None, "Settings of the default networks; a dict needs only the settings to change, and None takes the defaults."
    )
    rl_module_spec: RLModuleSpec | None = setting(
        None, "Module class, catalog class or spaces that differ from the algorithm's own; None takes the algorithm's."
    )


class Evaluation(Settings):
    """Episodes played in separate environments, to measure the policy."""

    evaluation_interval: int | None = setting(
        None, "Iterations between evaluations; None evaluates only on request.", ge=1
    )
    evaluation_duration: int = setting(
        20, "Length of an evaluation, in the unit that evaluation_duration_unit names.", ge=1
    )
    evaluation_duration_unit: Literal["episodes", "timesteps"] = setting(
        "episodes",
        "Unit of evaluation_duration: episodes, or steps over all environments. Of steps, only the episodes that end "
        "within them count.",
    )
    evaluation_explore: bool = setting(
        False, "Whether evaluation samples its actions instead of taking the most likely ones."
    )
    evaluation_num_envs: int | None = setting(
        None, "Environments that an evaluation steps together; None takes num_envs_per_env_runner.", ge=1
    )
    evaluation_env_config: dict[str, Any] | None = setting(
        None, "The env_config of evaluations; None takes env_config."
    )
    evaluation_num_videos: int = setting(
        0,
        "Additional episodes to record in every evaluation, as MP4 below run_dir; needs the extra catalog-rl[video].",
        ge=0,
    )


class CallbackFunctions(Settings, kw_only=False):
    """Your functions, or your ``Callbacks`` class, that a run calls at certain events."""

    callbacks_class: type[Callbacks] | None = setting(
        None, "A class derived from Callbacks; each run makes one instance, without arguments. None uses no class."
    )
    _: KW_ONLY
    on_environment_created: Callable[..., Any] | None = setting(
        None, "Called as fn(env, in_evaluation) after a vector of environments was made; None calls nothing."
    )
    on_sample_end: Callable[..., Any] | None = setting(
        None, "Called as fn(algorithm, rollout) after a rollout was sampled to train on; None calls nothing."
    )
    on_episode_end: Callable[..., Any] | None = setting(
        None, "Called as fn(algorithm, episode) for every episode that ended; None calls nothing."
    )
    on_evaluate_end: Callable[..., Any] | None = setting(
        None, "Called as fn(algorithm, evaluation) after an evaluation; None calls nothing."
    )
    on_train_result: Callable[..., Any] | None = setting(
        None, "Called as fn(algorithm, result) after an iteration; None calls nothing."
    )
    on_checkpoint: Callable[..., Any] | None = setting(
        None, "Called as fn(algorithm, path) after a checkpoint was written; None calls nothing."
    )


class Reporting(Settings):
    """The metrics of a run, and where it writes its files and logs."""

    metrics_num_episodes_for_smoothing: int = setting(
        100, "Most recent episodes over which returns and lengths are averaged.", ge=1
    )
    run_dir: str | None = setting(
        None, "Folder for logs, checkpoints, videos and learning_curve.png; None writes no files."
    )
    loggers: list[str | type[Logger] | Callable[..., Any]] | None = setting(
        None,
        "Loggers of the results: 'jsonl', 'tensorboard', 'csv', 'wandb', 'mlflow', a class derived from Logger, or "
        "fn(run) that makes one; None takes the first two if there is a run_dir.",
    )


class ReportingBySteps(Reporting):
    """The metrics of a run whose iterations have many updates, and where it writes its files and logs."""

    num_env_steps_per_iteration: int = setting(1000, "Environment steps per call of train().", ge=1)


class Checkpointing(Settings):
    """The checkpoints that a run writes."""

    checkpoint_interval: int | None = setting(
        None, "Iterations between checkpoints in run_dir; None writes one when learn() ends.", ge=1
    )
    keep_checkpoints: int = setting(
        1,
        "Last checkpoints to keep: run_dir/checkpoint, and earlier ones in run_dir/checkpoints by their env steps.",
        ge=1,
    )
    keep_best_checkpoint: bool = setting(
        True, "Whether run_dir/best_checkpoint holds the weights of the evaluation with the best mean return so far."
    )


class Debugging(Settings):
    """The seed of a run, which makes it reproducible."""

    seed: int | None = setting(None, "Seed of every random stream of the run; None draws a new one.", ge=0)
