"""DQN: its settings, including those of Rainbow, and one iteration of training."""

import dataclasses
from collections.abc import Mapping
from math import floor
from time import perf_counter
from typing import Any, Literal

import torch
from gymnasium import Space

from algorithms.algorithm import Algorithm
from algorithms.config import AlgorithmConfig, Reporting
from algorithms.dqn.learner import DQNLearner
from algorithms.dqn.module import DQNCatalog, DQNModelConfig, DQNModule, DQNNetSettings, check_exploration
from algorithms.dqn.presets import PRESETS
from algorithms.replay.buffer import ReplayBuffer
from algorithms.replay.prioritized import PrioritizedReplay
from algorithms.replay.sequences import SequenceReplay
from algorithms.settings.base import on_the_class
from catalog.checks import Schedule
from catalog.settings import Section, Settings, setting, settings_of
from rlmodule.data.rollout import Rollout
from rlmodule.learning.learner import Metrics
from rlmodule.learning.schedules import value_at
from rlmodule.modules.apis import EpsilonGreedyAPI
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.seeding import seed_sequence
from rlmodule.settings import Training

NET_SETTINGS = tuple(settings_of(DQNNetSettings))
"""Settings of :class:`DQNConfig` that describe the nets. They are passed on to :class:`DQNModelConfig`."""

PRIORITIZED_SETTINGS = ("prioritized_replay_alpha", "prioritized_replay_beta", "prioritized_replay_eps")
"""Settings that only have an effect with ``prioritized_replay=True``."""


class DQNTraining(DQNNetSettings, Training):
    """Settings of DQN's loss, targets and exploration."""

    lr = 5e-4
    grad_clip = 10.0
    train_batch_size_per_learner = 128
    double_q: bool = setting(
        True, "Whether the online net chooses the action that the target net values (double Q-learning)."
    )
    n_step: int | tuple[int, int] = setting(
        3, "Steps whose rewards are summed before the next value; a pair draws the number for each row.", ge=1
    )
    epsilon: Schedule | None = setting(
        None,
        "Share of random actions: a number, or points [[0, value], [env_step, value], ...]; None is 1 to 0.05 over "
        "10,000 steps, and 0 for noisy nets.",
        ge=0,
        le=1,
    )
    td_error_loss_fn: Literal["huber", "mse"] = setting(
        "huber", "Whether errors above 1 count linearly (huber) or are squared too (mse); not for atoms."
    )
    target_network_update_freq: int = setting(200, "Environment steps between updates of the target network.", ge=1)
    tau: float = setting(1.0, "How far an update moves the target network: 1 copies the online one.", gt=0, le=1)
    num_steps_sampled_before_learning_starts: int = setting(1000, "Environment steps before the first update.", ge=0)
    training_intensity: float | None = setting(
        32.0,
        "Environment steps trained on per step sampled, kept exactly over the run; None trains one batch per rollout.",
        gt=0,
    )
    burn_in_len: int = setting(
        0, "Steps before each training sequence that only bring a recurrent state up to date.", ge=0
    )


class Replay(Settings):
    """Settings of the replay buffer."""

    replay_capacity: int = setting(50_000, "Environment steps that the replay buffer holds.", ge=1)
    prioritized_replay: bool = setting(False, "Whether steps with large errors are drawn more often.")
    prioritized_replay_alpha: float = setting(
        0.6, "Exponent of the priorities of steps: 0 draws all alike, 1 in proportion to errors.", ge=0, le=1
    )
    prioritized_replay_beta: Schedule = setting(
        0.4,
        "How much of the bias of prioritized draws is corrected, 1 being all: a number, or points [[0, value], "
        "[env_step, value], ...].",
        ge=0,
        le=1,
    )
    prioritized_replay_eps: float = setting(1e-6, "Added to each absolute error, so that no priority is 0.", gt=0)
    frame_stack_axis: int | dict[str, int] | None = setting(
        None,
        "Axis along which observations stack frames, to store each frame once; for a Dict or Tuple, a dict of axes by "
        "path; None stores whole observations.",
    )
    replay_in_checkpoints: bool = setting(
        True, "Whether checkpoints hold the replay buffer, so that a run resumes exactly."
    )


class DQNReporting(Reporting):
    """The metrics of a run, and where it writes its files and logs."""

    num_env_steps_per_iteration: int = setting(1000, "Environment steps per call of train().", ge=1)


class DQNConfig(DQNTraining, Replay, DQNReporting, AlgorithmConfig):
    """Settings of :class:`DQN`. Each part of Rainbow has its own setting; :meth:`rainbow` turns all of them on."""

    training = Section(DQNTraining)
    replay = Section(Replay)
    reporting = Section(DQNReporting)

    records_action_dist = False
    net_settings = NET_SETTINGS
    presets = PRESETS

    @on_the_class
    def rainbow(cls, **values: Any) -> "DQNConfig":
        """Return a new config with all parts of Rainbow (Hessel et al. 2018).

        These are double Q-learning, dueling nets, 3-step windows, prioritized replay, 51 atoms and noisy nets.

        Args:
            **values: Further settings, or other values for these. Set ``v_min`` and ``v_max`` here or with training()
                before build(): the range of discounted returns depends on the task.
        """
        parts = {
            "double_q": True,
            "dueling": True,
            "n_step": 3,
            "prioritized_replay": True,
            "prioritized_replay_alpha": 0.5,
            "prioritized_replay_beta": [[0, 0.4], [100_000, 1.0]],
            "num_atoms": 51,
            "noisy": True,
        } | values
        if not parts["prioritized_replay"]:
            parts = {name: value for name, value in parts.items() if name in values or name not in PRIORITIZED_SETTINGS}
        return cls().update(parts)

    @property
    def algo_class(self) -> type["DQN"]:
        return DQN

    @property
    def epsilon_schedule(self) -> Schedule:
        """``epsilon``, or the default schedule if it is None."""
        if self.epsilon is not None:
            return self.epsilon
        return 0.0 if self.noisy else [[0, 1.0], [10_000, 0.05]]

    def default_learner_class(self) -> type[DQNLearner]:
        return DQNLearner

    def default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=DQNModule, catalog_class=DQNCatalog)

    def get_rl_module_spec(self, observation_space: Space, action_space: Space) -> RLModuleSpec:
        """Return the spec of the base class, with the net settings of this config in its ``model_config``.

        Raises:
            ValueError: If ``model_config`` has another value for a net setting; or a net setting was changed and the
                catalog does not read it.
        """
        spec = super().get_rl_module_spec(observation_space, action_space)
        chosen = {name: getattr(self, name) for name in NET_SETTINGS}
        config_class = spec.catalog_class.model_config_class if spec.catalog_class else None
        if config_class is None or not issubclass(config_class, DQNModelConfig):
            # The user's module or catalog does not read these settings, so they must not be set.
            defaults = DQNModelConfig()
            for name, value in chosen.items():
                if value != getattr(defaults, name):
                    raise self._invalid(
                        name, "a catalog_class derived from DQNCatalog", "Leave it out, or derive yours."
                    )
            return spec
        given = config_class.from_any(spec.model_config)
        for name, value in chosen.items():
            if getattr(given, name) not in (value, config_class.__dataclass_fields__[name].default):
                raise self._invalid(
                    name, "one value", f"model_config has {getattr(given, name)!r}: take it out of there."
                )
        return dataclasses.replace(spec, model_config=dataclasses.replace(given, **chosen))

    def get_rollout_fragment_length(self) -> int:
        """Return the steps of each env per rollout: the setting, else 1, or 4 with remote runners (fewer messages)."""
        return self.rollout_fragment_length or (4 if self.num_env_runners else 1)

    def validate(self) -> None:
        super().validate()
        batch, capacity = self.train_batch_size, self.replay_capacity
        the_batch = f"train_batch_size_per_learner={self.train_batch_size_per_learner}"
        if self.num_learners > 1:
            the_batch += f" for each of {self.num_learners} learners"
        least, most = self.n_step if isinstance(self.n_step, tuple) else (self.n_step, self.n_step)
        if least > most:
            raise self._invalid("n_step", "a pair (least, most)", "Swap the two.")
        try:
            DQNModelConfig(**{name: getattr(self, name) for name in NET_SETTINGS})
        except ValueError as error:  # the user set them on this config, so name it and not model_config
            message = str(error).replace("model_config.", f"{type(self).__name__}.", 1)
            raise ValueError(message) from None
        for name in PRIORITIZED_SETTINGS:
            if not self.prioritized_replay and getattr(self, name) != settings_of(type(self))[name].default:
                raise self._invalid(
                    name, "its default without prioritized_replay", "Set that to True, or leave this out."
                )
        slots = self.num_envs
        for needed, why in (
            (batch, the_batch),
            (most * slots, f"n_step={most} in each of {slots} environments"),
            (self.get_rollout_fragment_length() * slots, f"one rollout of {slots} environments"),
        ):
            if capacity < needed:
                raise self._invalid("replay_capacity", f"at least {needed}, for {why}", "Make it larger.")
        if self.num_steps_sampled_before_learning_starts < batch:
            raise self._invalid(
                "num_steps_sampled_before_learning_starts",
                f"at least {batch}, for {the_batch}, so that there is something to draw",
                "Make it larger, or the batch smaller.",
            )
        intensity, steps = self.training_intensity, self.num_env_steps_per_iteration
        if intensity is not None and intensity * steps < batch:
            raise self._invalid(
                "training_intensity",
                f"at least {batch / steps:g}: one batch of {batch} per iteration of {steps} steps",
                "Make it greater, the batch smaller or num_env_steps_per_iteration greater.",
            )


class DQN(Algorithm):
    """Deep Q-learning (Mnih et al. 2015): act ε-greedily, store transitions, and learn from samples of them."""

    config: DQNConfig
    replay: ReplayBuffer

    def __init__(self, config: DQNConfig) -> None:
        super().__init__(config)
        module = self.get_module()
        assert isinstance(module, EpsilonGreedyAPI)  # the learner requires this API
        self._explorer = module
        self._steps_owed = 0.0
        """Env steps still to be trained on to reach ``training_intensity``, less than one batch."""
        try:
            check_exploration(module, self.env_runner_group.module)
            self.replay = self._make_replay()
        except BaseException:
            self.stop()
            raise

    def training_step(self) -> dict[str, dict[str, Any]]:
        history, seconds = [], {"replay": 0.0, "update": 0.0}
        goal, epsilon = self.env_steps + self.config.num_env_steps_per_iteration, 0.0
        while self.env_steps < goal:
            epsilon = value_at(self.config.epsilon_schedule, self.env_steps)
            self._explorer.set_epsilon(epsilon)
            before = self.env_steps
            rollouts = self.sample_rollouts()
            start = perf_counter()
            for rollout in rollouts:
                self.replay.add(rollout.to(torch.device("cpu")), rollout.first_env_index)
            for _ in range(self._updates_due(self.env_steps - before)):
                history.append(self._update(seconds))
            seconds["replay"] += perf_counter() - start
        seconds["replay"] -= seconds["update"]  # updates run within what was timed as replay
        learned = self.learner_group.summarize_updates(history)
        self._explorer.set_epsilon(epsilon)  # learners in other processes do not know it, and returned their state
        for numbers in learned.values():
            numbers["epsilon"] = epsilon
            if self.config.prioritized_replay:
                numbers["prioritized_replay_beta"] = value_at(self.config.prioritized_replay_beta, self.env_steps)
        return {
            "learners": learned,
            "replay_buffer": {"num_transitions": self.replay.num_transitions, "num_bytes": self.replay.num_bytes},
            "timers": seconds,
        }

    def sample(self) -> Rollout:
        """Sample as :meth:`Algorithm.sample` does. The rollout is not stored, so new episodes start after it."""
        rollout = super().sample()
        self.env_runner_group.reset()
        return rollout

    def _update(self, seconds: dict[str, float]) -> Mapping[str, Metrics]:
        """Draw a batch, learn from it and update its priorities. Add the learning time to ``seconds["update"]``."""
        config = self.config
        beta = value_at(config.prioritized_replay_beta, self.env_steps)
        sample = self.replay.sample(config.train_batch_size, beta=beta)
        start = perf_counter()
        learned = self.learner_group.step_on_batch(sample.batch, env_steps=self.env_steps)
        seconds["update"] += perf_counter() - start
        if config.prioritized_replay:
            metrics = learned[DEFAULT_MODULE_ID]
            if "td_error" not in metrics:
                raise ValueError(
                    "metrics of compute_loss_for_module(): expected 'td_error', one per row, since "
                    f"prioritized_replay=True, got {', '.join(metrics)}. Report it, or turn "
                    "prioritized_replay off."
                )
            errors = metrics["td_error"].cpu()
            if errors.isfinite().all():  # else the learner skipped the update, and the priorities stay as they are
                self.replay.update_priorities(sample, errors)
        return learned

    def _updates_due(self, sampled: int) -> int:
        """Return how many batches to learn from now, after ``sampled`` new env steps."""
        config = self.config
        # With invalid rows, a full buffer holds fewer transitions than its capacity, which the setting may equal.
        if self.replay.num_transitions < config.num_steps_sampled_before_learning_starts and not self.replay.is_full:
            return 0
        if config.training_intensity is None:
            return 1
        self._steps_owed += config.training_intensity * sampled
        # The small number makes up for rounding: a sum that should be whole may be just below it.
        batches = floor(self._steps_owed / config.train_batch_size + 1e-9)
        self._steps_owed -= batches * config.train_batch_size
        return batches

    def _make_replay(self) -> ReplayBuffer:
        config, module = self.config, self.get_module()
        prioritized = sequences = None
        if config.prioritized_replay:
            alpha, eps = config.prioritized_replay_alpha, config.prioritized_replay_eps
            prioritized = PrioritizedReplay(alpha=alpha, eps=eps)
        if module.is_stateful():
            length, state = module.max_seq_len, module.get_initial_state()
            sequences = SequenceReplay(length=length, burn_in=config.burn_in_len, initial_state=state)
        elif config.burn_in_len:
            remedy = "Leave it out, or set use_lstm, use_gru or use_attention in model_config."
            raise config._invalid("burn_in_len", "0, since the module has no recurrent state", remedy)
        replay = ReplayBuffer(
            module.input_space,
            module.action_space,
            capacity=config.replay_capacity,
            num_envs=config.num_envs,
            gamma=config.gamma,
            n_step=config.n_step,
            prioritized=prioritized,
            sequences=sequences,
            frame_stack_axis=config.frame_stack_axis,
            seed=seed_sequence(self.run_seed, "replay"),
        )
        if sequences is not None:
            self._check_learning_starts(sequences, replay.max_steps)
        return replay

    def _check_learning_starts(self, sequences: SequenceReplay, n_step: int) -> None:
        """Raise unless the replay buffer holds enough complete sequences for a batch when learning starts."""
        config, length = self.config, sequences.length
        count, slots = max(1, config.train_batch_size // length), config.num_envs
        needed = slots * (sequences.reach(n_step) + length * ((count - 1) // slots))
        if config.num_steps_sampled_before_learning_starts < needed:
            raise config._invalid(
                "num_steps_sampled_before_learning_starts",
                f"at least {needed}: {count} sequences of {length} steps from {slots} environments",
                "Make it larger, or the batch, max_seq_len or burn_in_len smaller.",
            )

    def get_state(self) -> dict[str, Any]:
        state = super().get_state() | {"steps_owed": self._steps_owed}
        return state | {"replay": self.replay.get_state()} if self.config.replay_in_checkpoints else state

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._steps_owed = state["steps_owed"]
        if "replay" in state and self.config.replay_in_checkpoints:
            self.replay.set_state(state["replay"], together=self.config.num_envs_per_env_runner)
