# Written by `python -m algorithms.stubs` from config.py; do not edit.

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import gymnasium as gym
from gymnasium import Space
from gymnasium.vector import VectorEnv
from typing_extensions import Self

from algorithms.algorithm import Algorithm
from algorithms.loggers.base import Logger
from algorithms.presets import Preset
from algorithms.run.callbacks import CallbackCaller, Callbacks
from algorithms.settings.checks import Schedule
from algorithms.settings.fields import SettingsBase, on_the_class, settings
from catalog.model_config import DefaultModelConfig
from rlmodule.groups.learner_group import LearnerGroup
from rlmodule.learning.learner import Learner
from rlmodule.modules.spec import RLModuleSpec

@settings
class AlgorithmConfig(SettingsBase, ABC):
    section_docs: ClassVar[dict[str, str]]
    records_action_dist: ClassVar[bool]
    net_settings: ClassVar[tuple[str, ...]]
    presets: ClassVar[Mapping[str, Preset]]
    env: str | type[gym.Env] | type[VectorEnv] | Callable[..., Any] | None = ...
    env_config: dict[str, Any] = ...
    num_env_runners: int = ...
    num_envs_per_env_runner: int = ...
    gym_env_vectorize_mode: Literal["sync", "async", "vector_entry_point"] | None = ...
    rollout_fragment_length: int | None = ...
    num_cpus_per_env_runner: float = ...
    env_step_timeout_s: float = ...
    num_learners: int = ...
    num_cpus_per_learner: float = ...
    num_gpus_per_learner: int = ...
    learner_timeout_s: float = ...
    torch_compile_learner: bool = ...
    torch_cuda_graphs: bool = ...
    torch_autocast: Literal["bfloat16"] | None = ...
    learner_class: type[Learner] | None = ...
    torch_num_threads: int | None = ...
    gamma: float = ...
    lr: Schedule = ...
    grad_clip: float | None = ...
    grad_clip_by: Literal["global_norm", "norm", "value"] = ...
    train_batch_size_per_learner: int = ...
    clip_rewards: Literal["sign"] | float | None = ...
    model_config: DefaultModelConfig | dict[str, Any] | None = ...
    rl_module_spec: RLModuleSpec | None = ...
    evaluation_interval: int | None = ...
    evaluation_duration: int = ...
    evaluation_duration_unit: Literal["episodes", "timesteps"] = ...
    evaluation_explore: bool = ...
    evaluation_num_envs: int | None = ...
    evaluation_env_config: dict[str, Any] | None = ...
    evaluation_num_videos: int = ...
    callbacks_class: type[Callbacks] | None = ...
    on_environment_created: Callable[..., Any] | None = ...
    on_sample_end: Callable[..., Any] | None = ...
    on_episode_end: Callable[..., Any] | None = ...
    on_evaluate_end: Callable[..., Any] | None = ...
    on_train_result: Callable[..., Any] | None = ...
    on_checkpoint: Callable[..., Any] | None = ...
    metrics_num_episodes_for_smoothing: int = ...
    run_dir: str | None = ...
    loggers: list[str | type[Logger] | Callable[..., Any]] | None = ...
    checkpoint_interval: int | None = ...
    keep_best_checkpoint: bool = ...
    restart_failed_env_runners: bool = ...
    restart_failed_sub_environments: bool = ...
    ignore_env_runner_failures: bool = ...
    restart_failed_learners: bool = ...
    max_restarts_in_a_row: int = ...
    max_nonfinite_updates_in_a_row: int = ...
    seed: int | None = ...
    @property
    @abstractmethod
    def algo_class(self) -> type[Algorithm]: ...
    @abstractmethod
    def default_learner_class(self) -> type[Learner]: ...
    @abstractmethod
    def default_rl_module_spec(self) -> RLModuleSpec: ...
    @on_the_class
    def preset(cls, env_id: str) -> Self: ...
    @property
    def records_episode_infos(self) -> bool: ...
    def callback_caller(self) -> CallbackCaller: ...
    def _callback_functions(self) -> dict[str, Callable[..., Any] | None]: ...
    def for_evaluation(self) -> Self: ...
    def for_learners(self) -> Self: ...
    @property
    def model_config_class(self) -> type[DefaultModelConfig]: ...
    def get_rl_module_spec(self, observation_space: Space, action_space: Space) -> RLModuleSpec: ...
    def build(self) -> Algorithm: ...
    def build_learner_group(
        self,
        *,
        env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any] | None = ...,
        spaces: tuple[Space[Any], Space[Any]] | None = ...,
        rl_module_spec: RLModuleSpec | None = ...,
    ) -> LearnerGroup: ...
    def learner_group_for(self, spec: RLModuleSpec, run_seed: int) -> LearnerGroup: ...
    def _spaces_of(self, env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any] | None) -> tuple[Space[Any], Space[Any]]: ...
    def _without_env(self) -> ValueError: ...
    def validate(self) -> None: ...
    @property
    def train_batch_size(self) -> int: ...
    def get_rollout_fragment_length(self) -> int: ...
    def _set(self, values: Mapping[str, Any], where: str, section: str | None) -> Self: ...
    def _invalid(self, name: str, expected: str, remedy: str) -> ValueError: ...
    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, allow: Sequence[str] | None = ..., **objects: Any) -> Self: ...
    def environment(
        self,
        env: str | type[gym.Env] | type[VectorEnv] | Callable[..., Any] | None = ...,
        *,
        env_config: dict[str, Any] = ...,
    ) -> Self:
        """The environment to act in. A setting left out keeps its value; returns the config.

        Args:
            env (str | type[gym.Env] | type[VectorEnv] | Callable[..., Any] | None, default None): The environment: a
                Gymnasium id, an Env class, a factory fn(env_config), or a VectorEnv factory; None is not ready to
                build.
            env_config (dict[str, Any], default {}): Keyword arguments for a Gymnasium id or an Env class; the one
                argument of a factory.
        """

    def env_runners(
        self,
        *,
        num_env_runners: int = ...,
        num_envs_per_env_runner: int = ...,
        gym_env_vectorize_mode: Literal["sync", "async", "vector_entry_point"] | None = ...,
        rollout_fragment_length: int | None = ...,
        num_cpus_per_env_runner: float = ...,
        env_step_timeout_s: float = ...,
    ) -> Self:
        """How experience is sampled. A setting left out keeps its value; returns the config.

        Args:
            num_env_runners (int, >= 0, default 0): Sampling processes; 0 samples in this process.
            num_envs_per_env_runner (int, >= 1, default 8): Environments that each runner steps together as one vector.
            gym_env_vectorize_mode (Literal['sync', 'async', 'vector_entry_point'] | None, default None): Whether a
                runner's environments are stepped in turn, in a process each, or by the vector class registered for the
                id; None takes that of Atari's games, and steps all others in turn.
            rollout_fragment_length (int | None, >= 1, default None): Steps of each environment per rollout; None lets
                the algorithm choose: PPO goes by its train batch size, DQN takes 1, or 4 from sampling processes.
            num_cpus_per_env_runner (float, >= 0, default 1.0): CPUs that Ray sets aside for each sampling process; may
                be a fraction.
            env_step_timeout_s (float, > 0, default 60.0): Seconds without one environment step after which a sampling
                process counts as hung.
        """

    def learners(
        self,
        *,
        num_learners: int = ...,
        num_cpus_per_learner: float = ...,
        num_gpus_per_learner: int = ...,
        learner_timeout_s: float = ...,
        torch_compile_learner: bool = ...,
        torch_cuda_graphs: bool = ...,
        torch_autocast: Literal["bfloat16"] | None = ...,
        learner_class: type[Learner] | None = ...,
        torch_num_threads: int | None = ...,
    ) -> Self:
        """Where and with what the networks are updated. A setting left out keeps its value; returns the config.

        Args:
            num_learners (int, >= 0, default 0): Learner processes; 0 learns in this process.
            num_cpus_per_learner (float, >= 0, default 1.0): CPUs that Ray sets aside for each learner process; may be a
                fraction.
            num_gpus_per_learner (int, >= 0 and <= 1, default 0): GPUs of each learner; 0 learns on the CPU.
            learner_timeout_s (float, > 0, default 60.0): Seconds without one gradient step after which a learner
                process counts as hung; also the longest that learners wait for each other.
            torch_compile_learner (bool, default False): Whether learners compile the loss with torch.compile.
            torch_cuda_graphs (bool, default False): Whether learners on a GPU replay the loss and its gradient as a
                CUDA graph.
            torch_autocast (Literal['bfloat16'] | None, default None): Type of numbers in which the networks' layers
                compute their loss; None is that of the weights.
            learner_class (type[Learner] | None, default None): What computes the loss; None takes the algorithm's own,
                from which yours should derive.
            torch_num_threads (int | None, >= 1, default None): CPU threads for torch where it learns; None chooses by
                the size of the network, and takes as many as its CPUs for a learner process.
        """

    def training(
        self,
        *,
        gamma: float = ...,
        lr: Schedule = ...,
        grad_clip: float | None = ...,
        grad_clip_by: Literal["global_norm", "norm", "value"] = ...,
        train_batch_size_per_learner: int = ...,
        clip_rewards: Literal["sign"] | float | None = ...,
    ) -> Self:
        """The algorithm's arithmetic. A setting left out keeps its value; returns the config.

        Args:
            gamma (float, >= 0 and <= 1, default 0.99): Discount of the reward one step later.
            lr (Schedule, >= 0, default 0.0003): Learning rate: a number, or points [[0, lr], [env_step, lr], ...]
                joined by lines.
            grad_clip (float | None, > 0, default 0.5): Bound of the gradients, in the sense of grad_clip_by; None
                leaves them as they are.
            grad_clip_by (Literal['global_norm', 'norm', 'value'], default 'global_norm'): What grad_clip bounds: the
                norm of all gradients together, of each tensor, or every single element.
            train_batch_size_per_learner (int, >= 1, default 2048): Environment steps in each train batch of each
                learner.
            clip_rewards (Literal['sign'] | float | None, > 0, default None): How rewards are clipped for learning:
                'sign' leaves -1, 0 or 1 of each, a number is the largest magnitude, None changes nothing; returns are
                told as they are.
        """

    def rl_module(
        self,
        *,
        model_config: DefaultModelConfig | dict[str, Any] | None = ...,
        rl_module_spec: RLModuleSpec | None = ...,
    ) -> Self:
        """The networks. A setting left out keeps its value; returns the config.

        Args:
            model_config (DefaultModelConfig | dict[str, Any] | None, default None): Settings of the default networks, a
                dict filled up with defaults; None takes the defaults.
            rl_module_spec (RLModuleSpec | None, default None): Module class, catalog class and spaces that differ from
                the algorithm's own; None for none.
        """

    def evaluation(
        self,
        *,
        evaluation_interval: int | None = ...,
        evaluation_duration: int = ...,
        evaluation_duration_unit: Literal["episodes", "timesteps"] = ...,
        evaluation_explore: bool = ...,
        evaluation_num_envs: int | None = ...,
        evaluation_env_config: dict[str, Any] | None = ...,
        evaluation_num_videos: int = ...,
    ) -> Self:
        """Episodes played on the side, to measure the policy. A setting left out keeps its value; returns the config.

        Args:
            evaluation_interval (int | None, >= 1, default None): Iterations between evaluations; None evaluates only on
                request.
            evaluation_duration (int, >= 1, default 20): Length of an evaluation, in the unit that
                evaluation_duration_unit names.
            evaluation_duration_unit (Literal['episodes', 'timesteps'], default 'episodes'): What evaluation_duration
                counts: episodes, or steps of all its environments together; then those episodes count that end within
                them.
            evaluation_explore (bool, default False): Whether evaluation samples its actions instead of taking the most
                likely ones.
            evaluation_num_envs (int | None, >= 1, default None): Environments of its own that an evaluation steps
                together; None takes num_envs_per_env_runner.
            evaluation_env_config (dict[str, Any] | None, default None): What to evaluate with in place of env_config;
                None takes env_config.
            evaluation_num_videos (int, >= 0, default 0): Further episodes to record in every evaluation, as MP4 below
                run_dir; needs the extra catalog-rl[video].
        """

    def callbacks(
        self,
        callbacks_class: type[Callbacks] | None = ...,
        *,
        on_environment_created: Callable[..., Any] | None = ...,
        on_sample_end: Callable[..., Any] | None = ...,
        on_episode_end: Callable[..., Any] | None = ...,
        on_evaluate_end: Callable[..., Any] | None = ...,
        on_train_result: Callable[..., Any] | None = ...,
        on_checkpoint: Callable[..., Any] | None = ...,
    ) -> Self:
        """Code of yours that a run calls as it goes. A setting left out keeps its value; returns the config.

        Args:
            callbacks_class (type[Callbacks] | None, default None): A class derived from Callbacks, of which a run makes
                one without arguments; None for none.
            on_environment_created (Callable[..., Any] | None, default None): Called as fn(env, in_evaluation) when a
                vector of environments was made; None for nothing.
            on_sample_end (Callable[..., Any] | None, default None): Called as fn(algorithm, rollout) when a rollout was
                sampled to train on; None for nothing.
            on_episode_end (Callable[..., Any] | None, default None): Called as fn(algorithm, episode) for every episode
                that ended; None for nothing.
            on_evaluate_end (Callable[..., Any] | None, default None): Called as fn(algorithm, evaluation) after an
                evaluation; None for nothing.
            on_train_result (Callable[..., Any] | None, default None): Called as fn(algorithm, result) after an
                iteration; None for nothing.
            on_checkpoint (Callable[..., Any] | None, default None): Called as fn(algorithm, path) when a checkpoint was
                written; None for nothing.
        """

    def reporting(
        self,
        *,
        metrics_num_episodes_for_smoothing: int = ...,
        run_dir: str | None = ...,
        loggers: list[str | type[Logger] | Callable[..., Any]] | None = ...,
    ) -> Self:
        """What a run tells and where it writes it. A setting left out keeps its value; returns the config.

        Args:
            metrics_num_episodes_for_smoothing (int, >= 1, default 100): Most recent episodes over which returns and
                lengths are averaged.
            run_dir (str | None, default None): Folder for logs, checkpoints, videos and learning_curve.png; None writes
                no files.
            loggers (list[str | type[Logger] | Callable[..., Any]] | None, default None): Where results go: 'jsonl',
                'tensorboard', 'csv', 'wandb', 'mlflow', a class derived from Logger, or fn(run) that makes one; None
                takes the first two if there is a run_dir.
        """

    def checkpointing(self, *, checkpoint_interval: int | None = ..., keep_best_checkpoint: bool = ...) -> Self:
        """What a run keeps, to go on from or to act with. A setting left out keeps its value; returns the config.

        Args:
            checkpoint_interval (int | None, >= 1, default None): Iterations between checkpoints in run_dir; None writes
                one when learn() ends.
            keep_best_checkpoint (bool, default True): Whether run_dir/best_checkpoint holds the weights of the
                evaluation with the best mean return so far.
        """

    def fault_tolerance(
        self,
        *,
        restart_failed_env_runners: bool = ...,
        restart_failed_sub_environments: bool = ...,
        ignore_env_runner_failures: bool = ...,
        restart_failed_learners: bool = ...,
        max_restarts_in_a_row: int = ...,
        max_nonfinite_updates_in_a_row: int = ...,
    ) -> Self:
        """What a run survives. A setting left out keeps its value; returns the config.

        Args:
            restart_failed_env_runners (bool, default True): Whether a sampling process that raised, died or hung is
                replaced by a new one.
            restart_failed_sub_environments (bool, default False): Whether a single environment that raises is made
                anew, while those beside it go on; else it fails its runner.
            ignore_env_runner_failures (bool, default False): Whether to go on without a sampling process that is not
                restarted, as long as there is another.
            restart_failed_learners (bool, default True): Whether learner processes that died or hung are replaced, and
                their update is done again.
            max_restarts_in_a_row (int, >= 1, default 5): Restarts of one process without an answer from it in between;
                the run ends after them.
            max_nonfinite_updates_in_a_row (int, >= 1, default 10): Updates in a row that may be left out because their
                loss or gradient is NaN or infinite; the run ends at the last of them.
        """

    def debugging(self, *, seed: int | None = ...) -> Self:
        """Reproducing a run. A setting left out keeps its value; returns the config.

        Args:
            seed (int | None, >= 0, default None): Seed of every random stream of the run; None draws a new one.
        """

@settings
class EpisodeLearnerConfig(AlgorithmConfig):
    minibatch_size: int | None = ...
    num_epochs: int = ...
    def validate(self) -> None: ...
    def environment(
        self,
        env: str | type[gym.Env] | type[VectorEnv] | Callable[..., Any] | None = ...,
        *,
        env_config: dict[str, Any] = ...,
    ) -> Self:
        """The environment to act in. A setting left out keeps its value; returns the config.

        Args:
            env (str | type[gym.Env] | type[VectorEnv] | Callable[..., Any] | None, default None): The environment: a
                Gymnasium id, an Env class, a factory fn(env_config), or a VectorEnv factory; None is not ready to
                build.
            env_config (dict[str, Any], default {}): Keyword arguments for a Gymnasium id or an Env class; the one
                argument of a factory.
        """

    def env_runners(
        self,
        *,
        num_env_runners: int = ...,
        num_envs_per_env_runner: int = ...,
        gym_env_vectorize_mode: Literal["sync", "async", "vector_entry_point"] | None = ...,
        rollout_fragment_length: int | None = ...,
        num_cpus_per_env_runner: float = ...,
        env_step_timeout_s: float = ...,
    ) -> Self:
        """How experience is sampled. A setting left out keeps its value; returns the config.

        Args:
            num_env_runners (int, >= 0, default 0): Sampling processes; 0 samples in this process.
            num_envs_per_env_runner (int, >= 1, default 8): Environments that each runner steps together as one vector.
            gym_env_vectorize_mode (Literal['sync', 'async', 'vector_entry_point'] | None, default None): Whether a
                runner's environments are stepped in turn, in a process each, or by the vector class registered for the
                id; None takes that of Atari's games, and steps all others in turn.
            rollout_fragment_length (int | None, >= 1, default None): Steps of each environment per rollout; None lets
                the algorithm choose: PPO goes by its train batch size, DQN takes 1, or 4 from sampling processes.
            num_cpus_per_env_runner (float, >= 0, default 1.0): CPUs that Ray sets aside for each sampling process; may
                be a fraction.
            env_step_timeout_s (float, > 0, default 60.0): Seconds without one environment step after which a sampling
                process counts as hung.
        """

    def learners(
        self,
        *,
        num_learners: int = ...,
        num_cpus_per_learner: float = ...,
        num_gpus_per_learner: int = ...,
        learner_timeout_s: float = ...,
        torch_compile_learner: bool = ...,
        torch_cuda_graphs: bool = ...,
        torch_autocast: Literal["bfloat16"] | None = ...,
        learner_class: type[Learner] | None = ...,
        torch_num_threads: int | None = ...,
    ) -> Self:
        """Where and with what the networks are updated. A setting left out keeps its value; returns the config.

        Args:
            num_learners (int, >= 0, default 0): Learner processes; 0 learns in this process.
            num_cpus_per_learner (float, >= 0, default 1.0): CPUs that Ray sets aside for each learner process; may be a
                fraction.
            num_gpus_per_learner (int, >= 0 and <= 1, default 0): GPUs of each learner; 0 learns on the CPU.
            learner_timeout_s (float, > 0, default 60.0): Seconds without one gradient step after which a learner
                process counts as hung; also the longest that learners wait for each other.
            torch_compile_learner (bool, default False): Whether learners compile the loss with torch.compile.
            torch_cuda_graphs (bool, default False): Whether learners on a GPU replay the loss and its gradient as a
                CUDA graph.
            torch_autocast (Literal['bfloat16'] | None, default None): Type of numbers in which the networks' layers
                compute their loss; None is that of the weights.
            learner_class (type[Learner] | None, default None): What computes the loss; None takes the algorithm's own,
                from which yours should derive.
            torch_num_threads (int | None, >= 1, default None): CPU threads for torch where it learns; None chooses by
                the size of the network, and takes as many as its CPUs for a learner process.
        """

    def training(
        self,
        *,
        gamma: float = ...,
        lr: Schedule = ...,
        grad_clip: float | None = ...,
        grad_clip_by: Literal["global_norm", "norm", "value"] = ...,
        train_batch_size_per_learner: int = ...,
        clip_rewards: Literal["sign"] | float | None = ...,
        minibatch_size: int | None = ...,
        num_epochs: int = ...,
    ) -> Self:
        """The algorithm's arithmetic. A setting left out keeps its value; returns the config.

        Args:
            gamma (float, >= 0 and <= 1, default 0.99): Discount of the reward one step later.
            lr (Schedule, >= 0, default 0.0003): Learning rate: a number, or points [[0, lr], [env_step, lr], ...]
                joined by lines.
            grad_clip (float | None, > 0, default 0.5): Bound of the gradients, in the sense of grad_clip_by; None
                leaves them as they are.
            grad_clip_by (Literal['global_norm', 'norm', 'value'], default 'global_norm'): What grad_clip bounds: the
                norm of all gradients together, of each tensor, or every single element.
            train_batch_size_per_learner (int, >= 1, default 2048): Environment steps in each train batch of each
                learner.
            clip_rewards (Literal['sign'] | float | None, > 0, default None): How rewards are clipped for learning:
                'sign' leaves -1, 0 or 1 of each, a number is the largest magnitude, None changes nothing; returns are
                told as they are.
            minibatch_size (int | None, >= 1, default None): Environment steps per gradient step of one learner; None
                takes the whole batch.
            num_epochs (int, >= 1, default 1): Passes over each train batch.
        """

    def rl_module(
        self,
        *,
        model_config: DefaultModelConfig | dict[str, Any] | None = ...,
        rl_module_spec: RLModuleSpec | None = ...,
    ) -> Self:
        """The networks. A setting left out keeps its value; returns the config.

        Args:
            model_config (DefaultModelConfig | dict[str, Any] | None, default None): Settings of the default networks, a
                dict filled up with defaults; None takes the defaults.
            rl_module_spec (RLModuleSpec | None, default None): Module class, catalog class and spaces that differ from
                the algorithm's own; None for none.
        """

    def evaluation(
        self,
        *,
        evaluation_interval: int | None = ...,
        evaluation_duration: int = ...,
        evaluation_duration_unit: Literal["episodes", "timesteps"] = ...,
        evaluation_explore: bool = ...,
        evaluation_num_envs: int | None = ...,
        evaluation_env_config: dict[str, Any] | None = ...,
        evaluation_num_videos: int = ...,
    ) -> Self:
        """Episodes played on the side, to measure the policy. A setting left out keeps its value; returns the config.

        Args:
            evaluation_interval (int | None, >= 1, default None): Iterations between evaluations; None evaluates only on
                request.
            evaluation_duration (int, >= 1, default 20): Length of an evaluation, in the unit that
                evaluation_duration_unit names.
            evaluation_duration_unit (Literal['episodes', 'timesteps'], default 'episodes'): What evaluation_duration
                counts: episodes, or steps of all its environments together; then those episodes count that end within
                them.
            evaluation_explore (bool, default False): Whether evaluation samples its actions instead of taking the most
                likely ones.
            evaluation_num_envs (int | None, >= 1, default None): Environments of its own that an evaluation steps
                together; None takes num_envs_per_env_runner.
            evaluation_env_config (dict[str, Any] | None, default None): What to evaluate with in place of env_config;
                None takes env_config.
            evaluation_num_videos (int, >= 0, default 0): Further episodes to record in every evaluation, as MP4 below
                run_dir; needs the extra catalog-rl[video].
        """

    def callbacks(
        self,
        callbacks_class: type[Callbacks] | None = ...,
        *,
        on_environment_created: Callable[..., Any] | None = ...,
        on_sample_end: Callable[..., Any] | None = ...,
        on_episode_end: Callable[..., Any] | None = ...,
        on_evaluate_end: Callable[..., Any] | None = ...,
        on_train_result: Callable[..., Any] | None = ...,
        on_checkpoint: Callable[..., Any] | None = ...,
    ) -> Self:
        """Code of yours that a run calls as it goes. A setting left out keeps its value; returns the config.

        Args:
            callbacks_class (type[Callbacks] | None, default None): A class derived from Callbacks, of which a run makes
                one without arguments; None for none.
            on_environment_created (Callable[..., Any] | None, default None): Called as fn(env, in_evaluation) when a
                vector of environments was made; None for nothing.
            on_sample_end (Callable[..., Any] | None, default None): Called as fn(algorithm, rollout) when a rollout was
                sampled to train on; None for nothing.
            on_episode_end (Callable[..., Any] | None, default None): Called as fn(algorithm, episode) for every episode
                that ended; None for nothing.
            on_evaluate_end (Callable[..., Any] | None, default None): Called as fn(algorithm, evaluation) after an
                evaluation; None for nothing.
            on_train_result (Callable[..., Any] | None, default None): Called as fn(algorithm, result) after an
                iteration; None for nothing.
            on_checkpoint (Callable[..., Any] | None, default None): Called as fn(algorithm, path) when a checkpoint was
                written; None for nothing.
        """

    def reporting(
        self,
        *,
        metrics_num_episodes_for_smoothing: int = ...,
        run_dir: str | None = ...,
        loggers: list[str | type[Logger] | Callable[..., Any]] | None = ...,
    ) -> Self:
        """What a run tells and where it writes it. A setting left out keeps its value; returns the config.

        Args:
            metrics_num_episodes_for_smoothing (int, >= 1, default 100): Most recent episodes over which returns and
                lengths are averaged.
            run_dir (str | None, default None): Folder for logs, checkpoints, videos and learning_curve.png; None writes
                no files.
            loggers (list[str | type[Logger] | Callable[..., Any]] | None, default None): Where results go: 'jsonl',
                'tensorboard', 'csv', 'wandb', 'mlflow', a class derived from Logger, or fn(run) that makes one; None
                takes the first two if there is a run_dir.
        """

    def checkpointing(self, *, checkpoint_interval: int | None = ..., keep_best_checkpoint: bool = ...) -> Self:
        """What a run keeps, to go on from or to act with. A setting left out keeps its value; returns the config.

        Args:
            checkpoint_interval (int | None, >= 1, default None): Iterations between checkpoints in run_dir; None writes
                one when learn() ends.
            keep_best_checkpoint (bool, default True): Whether run_dir/best_checkpoint holds the weights of the
                evaluation with the best mean return so far.
        """

    def fault_tolerance(
        self,
        *,
        restart_failed_env_runners: bool = ...,
        restart_failed_sub_environments: bool = ...,
        ignore_env_runner_failures: bool = ...,
        restart_failed_learners: bool = ...,
        max_restarts_in_a_row: int = ...,
        max_nonfinite_updates_in_a_row: int = ...,
    ) -> Self:
        """What a run survives. A setting left out keeps its value; returns the config.

        Args:
            restart_failed_env_runners (bool, default True): Whether a sampling process that raised, died or hung is
                replaced by a new one.
            restart_failed_sub_environments (bool, default False): Whether a single environment that raises is made
                anew, while those beside it go on; else it fails its runner.
            ignore_env_runner_failures (bool, default False): Whether to go on without a sampling process that is not
                restarted, as long as there is another.
            restart_failed_learners (bool, default True): Whether learner processes that died or hung are replaced, and
                their update is done again.
            max_restarts_in_a_row (int, >= 1, default 5): Restarts of one process without an answer from it in between;
                the run ends after them.
            max_nonfinite_updates_in_a_row (int, >= 1, default 10): Updates in a row that may be left out because their
                loss or gradient is NaN or infinite; the run ends at the last of them.
        """

    def debugging(self, *, seed: int | None = ...) -> Self:
        """Reproducing a run. A setting left out keeps its value; returns the config.

        Args:
            seed (int | None, >= 0, default None): Seed of every random stream of the run; None draws a new one.
        """
