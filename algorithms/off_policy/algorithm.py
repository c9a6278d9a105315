"""The settings and the iteration of algorithms that learn from a replay buffer."""

import logging
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import floor
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import VectorEnv

from algorithms.data_algorithm import DataAlgorithm, DataConfig, DataTraining, Offline
from algorithms.replay.buffer import FORMAT, ReplayBuffer, ReplaySample
from algorithms.replay.hindsight import GoalFn, HindsightReplay
from algorithms.replay.prioritized import PrioritizedReplay, with_exponent
from algorithms.replay.sequences import SequenceReplay
from algorithms.run.threads import building
from algorithms.sections import ReportingBySteps
from catalog.checks import Schedule
from catalog.past import PREV_OBS, PREV_REWARD
from catalog.settings import Section, Settings, setting, settings_of
from rlmodule.data.rollout import Rollout
from rlmodule.learning.reports import Metrics
from rlmodule.learning.schedules import value_at
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID, RLModule
from rlmodule.seeding import seed_sequence
from rlmodule.settings import FinalObs

if TYPE_CHECKING:
    from algorithms.run.saved_settings import SavedSettings

logger = logging.getLogger("algorithms.replay")

PRIORITIZED_SETTINGS = ("prioritized_replay_alpha", "prioritized_replay_beta", "prioritized_replay_eps")
"""Settings that only have an effect with ``prioritized_replay=True``."""
HINDSIGHT_SETTINGS = ("her_strategy", "her_reward_fn")
"""Settings that only have an effect with ``her_ratio > 0``."""


class ReplayTraining(DataTraining):
    """Settings of updates from a replay buffer, and of target nets."""

    normalize_rewards: bool = setting(
        False,
        "Whether rewards are divided by the running standard deviation of discounted returns, so that returns lie "
        "within ±5.",
    )
    target_network_update_freq: int = setting(
        0, "Environment steps between updates of the target network; 0 updates it after every gradient step.", ge=0
    )
    tau: float = setting(0.005, "Fraction by which updates move the target network towards the online one.", gt=0, le=1)
    num_steps_sampled_before_learning_starts: int = setting(1000, "Environment steps before the first update.", ge=0)
    training_intensity: float | None = setting(
        256.0,
        "Environment steps trained on per step sampled, kept exactly over the run; None trains one batch per rollout.",
        gt=0,
    )


class Replay(Settings):
    """Settings of the replay buffer."""

    replay_capacity: int = setting(50_000, "Environment steps that the replay buffer holds.", ge=1)
    prioritized_replay: bool = setting(False, "Whether steps with large errors are drawn more often.")
    prioritized_replay_alpha: float = setting(
        0.6, "Exponent of the priorities of steps: 0 draws uniformly, 1 in proportion to errors.", ge=0, le=1
    )
    prioritized_replay_beta: Schedule = setting(
        0.4,
        "Share of the bias of prioritized draws that importance weights correct (their exponent): a number, or points "
        "[[0, value], [env_step, value], ...].",
        ge=0,
        le=1,
    )
    prioritized_replay_eps: float = setting(1e-6, "Added to each absolute error, so that no priority is 0.", gt=0)
    frame_stack_axis: int | dict[str, int] | None = setting(
        None,
        "Axis along which observations stack frames, to store each frame once; for a Dict or Tuple, a dict of axes by "
        "path; None stores whole observations.",
    )
    her_ratio: float = setting(
        0.0,
        "Share of sampled steps whose desired goal becomes one achieved later in their episode (hindsight, HER): 0.8 "
        "is four in five, 0 leaves all goals as they are.",
        ge=0,
        le=1,
    )
    her_strategy: Literal["future", "final"] = setting(
        "future", "Which achieved goal a step gets: of a random step up to the end of its episode, or of the last one."
    )
    her_reward_fn: Callable[..., Any] | None = setting(
        None,
        "fn(achieved_goals, desired_goals, infos) that returns the rewards for new goals, all at once; None asks the "
        "env's compute_reward, and compute_terminated if it has one.",
    )
    replay_in_checkpoints: bool = setting(
        True, "Whether checkpoints hold the replay buffer, so that a run resumes exactly."
    )


class OfflineToOnline(Offline):
    """Data sets to learn from, alone or besides env steps."""

    num_offline_updates: int = setting(0, "Gradient steps from data alone before the first environment step.", ge=0)
    data_share: float = setting(
        0.5, "Share of data in each batch once environment steps are learned from, too (RLPD: 0.5).", ge=0, le=1
    )


class ReplayConfig(ReplayTraining, Replay, OfflineToOnline, ReportingBySteps, DataConfig):
    """Settings of a :class:`ReplayAlgorithm`."""

    training = Section(ReplayTraining)
    replay = Section(Replay)
    offline = Section(OfflineToOnline)
    reporting = Section(ReportingBySteps)

    records_action_dist = False
    sections_of_a_policy = ("training", "replay")
    settings_of_the_run = (*DataConfig.settings_of_the_run, "replay_in_checkpoints")
    not_for_learners = (*DataConfig.not_for_learners, "her_reward_fn")

    @property
    def records_final_obs(self) -> FinalObs:
        return "ended" if self.is_on("her_ratio") else "truncated"

    def validate(self) -> None:
        super().validate()
        self._validate_replay()
        if self.env is not None or self.data is None:  # else no step is sampled
            self._validate_batches()
        self._validate_data()
        for policy_id, changed in self.policy_overrides.items():
            try:
                self.copy().update({**changed, "policy_overrides": {}}).validate()
            except ValueError as error:
                raise ValueError(f"policy_overrides[{policy_id!r}] makes {error} Or override it there, too.") from None

    def _validate_replay(self) -> None:
        """Raise ValueError if replay cannot hold what one update or one rollout needs."""
        least, most = self.n_step if isinstance(self.n_step, tuple) else (self.n_step, self.n_step)
        if least > most:
            raise self._invalid("n_step", "a pair (least, most)", "Swap the two.")
        if not self.prioritized_replay:
            expected = "its default without prioritized_replay"
            self._check_left_out(PRIORITIZED_SETTINGS, expected, "Set that to True, or leave this out.")
        if not self.her_ratio:
            expected = "its default with her_ratio=0"
            self._check_left_out(HINDSIGHT_SETTINGS, expected, "Set her_ratio=0.8, or leave this out.")
        if self.normalize_rewards and self.her_ratio:
            expected = "False with her_ratio > 0, since the returns of new goals are not known"
            raise self._invalid("normalize_rewards", expected, "Leave one of the two out.")
        num_envs = self.num_envs
        for needed, why in (
            (self.train_batch_size, self._batch_text()),
            (most * num_envs, f"n_step={most} in each of {num_envs} environments"),
            (self.get_rollout_fragment_length() * num_envs, f"one rollout of {num_envs} environments"),
        ):
            if self.replay_capacity < needed:
                raise self._invalid("replay_capacity", f"at least {needed}, for {why}", "Make it larger.")

    def _check_left_out(self, names: Iterable[str], expected: str, remedy: str) -> None:
        """Raise ValueError for the first of the settings ``names`` that is not its default."""
        known = settings_of(type(self))
        for name in names:
            if vars(self)[name] != known[name].default:
                raise self._invalid(name, expected, remedy)

    def _validate_data(self) -> None:
        """Raise ValueError if settings contradict that there is a data set, or that there is none."""
        if self.data is None:
            remedy = "Set .offline(data=...), or leave this out."
            self._check_left_out(settings_of(OfflineToOnline), "its default without data", remedy)
        elif self.normalize_rewards:
            expected = "False with data, since its returns differ from those of env steps"
            raise self._invalid("normalize_rewards", expected, "Leave one of the two out.")

    def _batch_text(self) -> str:
        """Return the setting that makes batches as large as they are, for errors."""
        text = f"train_batch_size_per_learner={self.train_batch_size_per_learner}"
        return f"{text} for each of {self.num_learners} learners" if self.num_learners > 1 else text

    def _validate_batches(self) -> None:
        """Raise ValueError if an update would have to begin before there is a batch to draw, or if the ratio of updates
        to steps asks for less than one batch per iteration, or for more than replay can give."""
        batch = self.train_batch_size
        if self.num_steps_sampled_before_learning_starts < batch:
            raise self._invalid(
                "num_steps_sampled_before_learning_starts",
                f"at least {batch}, for {self._batch_text()}, so that there is something to draw",
                "Make it larger, or the batch smaller.",
            )
        intensity = self.training_intensity
        if intensity is None:
            return
        steps = self.num_env_steps_per_iteration
        if intensity * steps < batch:
            raise self._invalid(
                "training_intensity",
                f"at least {batch / steps:g}: one batch of {batch} per iteration of {steps} steps",
                "Make it greater, the batch smaller or num_env_steps_per_iteration greater.",
            )
        most = batch * self.replay_capacity
        if intensity > most:
            raise self._invalid(
                "training_intensity",
                f"at most {most:,}: per step sampled, as many batches of {batch} as replay holds steps",
                "Make it smaller.",
            )


class ReplayAlgorithm(DataAlgorithm):
    """Samples env steps, stores them in a replay buffer, and learns from batches drawn from the buffer. May learn from
    data sets before, and besides.

    Attributes:
        replays: The replay buffer of each trained module, by module id. In a multi-agent run, a buffer has a column for
            each pair of env and agent that may act with the module, and a module has no buffer if no agent may. A run
            without an env has none.
    """

    def __init__(self, config: ReplayConfig) -> None:
        self.replays: dict[str, ReplayBuffer] = {}
        # Module id → steps that it still has to train on to reach `training_intensity`, less than one batch.
        self._steps_owed: dict[str, float] = {}
        # Module id → column of each env and agent in its replay buffer `[envs, agents]`; -1 for none.
        self._columns: dict[str, np.ndarray] = {}
        super().__init__(config)

    @property
    def replay(self) -> ReplayBuffer:
        """The replay buffer of a run that trains one policy.

        Raises:
            AttributeError: If the run trains several policies, or has no env and so no replay buffer; names the ids.
        """
        if len(self.replays) != 1:
            got = f"{', '.join(map(repr, self.replays))}. Use algo.replays[id]."
            if not self.replays:
                got = "one that stores no env steps. Its data sets are in algo.data."
            raise AttributeError(f"{type(self).__name__}.replay: expected a run that trains one policy, got {got}")
        return next(iter(self.replays.values()))

    def _remove_module(self, module_id: str) -> None:
        super()._remove_module(module_id)
        for by_id in (self.replays, self._steps_owed, self._columns):
            by_id.pop(module_id, None)

    @property
    def _learns_from_data(self) -> bool:
        """Whether this iteration takes updates from data alone."""
        if self.config.data is None:
            return False
        is_asked = self.config.env is None or self.budget == "num_updates"
        return is_asked or self.metrics.updates < self.config.num_offline_updates

    def _num_updates_now(self) -> int:
        most, left = super()._num_updates_now(), self.config.num_offline_updates - self.metrics.updates
        return min(most, left) if left > 0 else most

    def training_step(self) -> dict[str, dict[str, Any]]:
        return super().training_step() if self._learns_from_data else self._learn_from_env_steps()

    def _learn_from_env_steps(self) -> dict[str, dict[str, Any]]:
        history, seconds, replays = [], {"replay": 0.0, "update": 0.0}, self.replays
        goal = self.env_steps + self.config.num_env_steps_per_iteration
        while self.env_steps < goal:
            before = self.env_steps
            rollouts = self.sample_rollouts()
            start = perf_counter()
            for module_id, sampled in self._store(rollouts, self.env_steps - before).items():
                for _ in range(self._updates_due(module_id, sampled)):
                    history.append(self._update(module_id, seconds))
            if not self._callbacks.listeners["on_sample_end"]:  # which may keep rollouts
                self.env_runner_group.recycle()
            seconds["replay"] += perf_counter() - start
        seconds["replay"] -= seconds["update"]  # the time measured as replay includes the updates
        learned = self.learner_group.summarize_updates(
            [metrics for metrics in history if metrics.keys() <= self.configs.keys()]
        )
        for module_id, numbers in learned.items():
            if (config := self.configs[module_id]).prioritized_replay:
                numbers["prioritized_replay_beta"] = value_at(config.prioritized_replay_beta, self.clock)
        stored = {name: {"num_transitions": x.num_transitions, "num_bytes": x.num_bytes} for name, x in replays.items()}
        return {"learners": learned, "replay_buffer": self._by_id(stored), "timers": seconds}

    def _by_id(self, values: dict[str, Any]) -> Any:
        """Return ``values``, a dict by module id, unchanged in a multi-agent run; else return its only value."""
        return values if self.config.is_multi_agent else values[DEFAULT_MODULE_ID]

    def _as_dict(self, values: Any) -> dict[str, Any]:
        """Return the dict by module id from which :meth:`_by_id` made ``values``."""
        return values if self.config.is_multi_agent else {DEFAULT_MODULE_ID: values}

    def _store(self, rollouts: Sequence[Any], num_env_steps: int) -> dict[str, int]:
        """Store rollouts, which have ``num_env_steps`` env steps in all, in the replay buffers. Return the number of
        new steps by module id: env steps, or in a multi-agent run, steps of the agents that act with the module."""
        if not self.config.is_multi_agent:
            for rollout in rollouts:
                self.replay.add(rollout.to(torch.device("cpu")), rollout.first_env_index)
            return {DEFAULT_MODULE_ID: num_env_steps}
        sampled = dict[str, int]()
        for rollout in rollouts:
            for module_id, module_rollout in rollout.items():
                columns = self._columns[module_id][tuple(rollout.slots[module_id].T)]
                self.replays[module_id].add(module_rollout, columns)
                sampled[module_id] = sampled.get(module_id, 0) + module_rollout.num_env_steps
        return sampled

    def sample(self) -> Rollout:
        """Sample as :meth:`Algorithm.sample` does, for use outside :meth:`training_step`. The rollout is not stored for
        replay. All envs start new episodes after it, so that no stored episode has a gap."""
        rollouts = self.sample_rollouts(last=True)
        self.env_runner_group.reset()
        return rollouts[0].concat(rollouts)

    def _update(self, module_id: str, seconds: dict[str, float]) -> Mapping[str, Metrics]:
        """Learn from a batch of replayed steps and, if the module has data, of steps from that; see :meth:`_learn`."""
        config, size = self.configs[module_id], self.configs[module_id].train_batch_size
        sources = [(self.replays[module_id], size)]
        if module_id in self.data:
            of_data = round(config.data_share * size)
            sources = [(self.data[module_id], of_data), (self.replays[module_id], size - of_data)]
            sources = [(buffer, count) for buffer, count in sources if count]
        return self._learn(module_id, sources, seconds)

    def _draw(self, module_id: str, buffer: ReplayBuffer, size: int) -> ReplaySample:
        return buffer.sample(size, beta=value_at(self.configs[module_id].prioritized_replay_beta, self.clock))

    def _updates_due(self, module_id: str, sampled: int) -> int:
        """Return the number of batches that a module has to learn from now, after ``sampled`` new steps, as counted by
        :meth:`_store`. Call this once per sampling, since it keeps the rest that fills no batch for the next call."""
        config, replay = self.configs[module_id], self.replays[module_id]
        starts = config.num_steps_sampled_before_learning_starts
        # A full buffer may hold fewer transitions than that: it has invalid rows, or columns of agents that rarely act.
        waits = replay.num_transitions < starts and not (replay.is_full and self.metrics.steps_of(module_id) >= starts)
        if waits or not replay.num_drawable:  # several agents may act that often before one has a complete sequence
            return 0
        if config.training_intensity is None:
            return 1
        owed = self._steps_owed[module_id] + config.training_intensity * sampled
        # The small number makes up for rounding: a sum that should be whole may be just below it.
        batches = floor(owed / config.train_batch_size + 1e-9)
        self._steps_owed[module_id] = owed - batches * config.train_batch_size
        return batches

    def _add_module(self, module_id: str, config: Any, module: RLModule) -> None:
        """Create the replay buffer of a module, unless no agent can act with the module, and store its data."""
        if config.is_multi_agent:
            from algorithms.run.policies import columns_of  # imports much that only several agents need

            self._columns[module_id] = columns_of(self, module_id)
            num_columns = int(self._columns[module_id].max()) + 1
            self._check_agents(config, module_id, num_columns)
            if not num_columns:
                return
        super()._add_module(module_id, config, module)

    def _make_buffers(self, module_id: str, config: Any, settings: dict[str, Any]) -> None:
        super()._make_buffers(module_id, config, settings)
        if config.env is None:
            return
        columns = self.config.num_envs
        if config.is_multi_agent:
            columns = int(self._columns[module_id].max()) + 1
        number = [zlib.crc32(module_id.encode())] if self.replays else []
        seed = seed_sequence(self.run_seed, "replay", *number)
        replay = ReplayBuffer(**settings, capacity=config.replay_capacity, num_envs=columns, seed=seed)
        if settings["sequences"] is not None and not config.is_multi_agent:
            self._check_sequences(settings["sequences"], replay.max_steps)
        self.replays[module_id], self._steps_owed[module_id] = replay, 0.0

    def _buffer_settings(self, config: Any, module: RLModule) -> dict[str, Any]:
        prioritized = None
        if config.prioritized_replay:
            alpha, eps = config.prioritized_replay_alpha, config.prioritized_replay_eps
            prioritized = PrioritizedReplay(alpha=alpha, eps=eps)
        return super()._buffer_settings(config, module) | {
            "prioritized": prioritized,
            "hindsight": self._hindsight_of(config, module) if config.her_ratio else None,
            "normalize_rewards": config.normalize_rewards,
            "frame_stack_axis": config.frame_stack_axis,
        }

    def _hindsight_of(self, config: Any, module: RLModule) -> HindsightReplay:
        """Return the settings of hindsight for ``module``, which is trained with the settings ``config``. Raise
        ``ValueError`` if it sees more of a goal than the observation, or nothing gives rewards for new goals."""
        if seen := [name for name in (PREV_OBS, PREV_REWARD) if name in module.past_view.steps]:
            expected = f"0 for a module that sees {' and '.join(seen)}, which belong to the goal that the env set"
            raise config._invalid("her_ratio", expected, "Leave out lstm_use_prev_reward or these steps of the past.")
        reward, terminated = config.her_reward_fn, None
        if reward is None:
            reward, terminated = self._goal_functions(config)
        return HindsightReplay(
            ratio=config.her_ratio,
            reward=reward,
            terminated=terminated,
            strategy=config.her_strategy,
            clip=config.clip_rewards,
        )

    def _goal_functions(self, config: Any) -> tuple[GoalFn, GoalFn | None]:
        """Return ``compute_reward`` of an env made for this, and its ``compute_terminated`` or None. The outermost
        wrapper that has the method counts."""
        env: Any = None
        is_vector = isinstance(config.env, type) and issubclass(config.env, VectorEnv)
        if config.env is not None and not config.is_multi_agent and not is_vector:
            with building(self.run_seed):
                env = config.make_env()
            self._opened.callback(env.close)
        if not isinstance(env, gym.Env) or not env.has_wrapper_attr("compute_reward"):
            raise config._invalid(
                "her_reward_fn",
                "fn(achieved_goals, desired_goals, infos), unless a single env has compute_reward(achieved_goal, "
                "desired_goal, info)",
                "Pass the function that computes the rewards of the env, or leave her_ratio out.",
            )
        has_terminated = env.has_wrapper_attr("compute_terminated")
        terminated = env.get_wrapper_attr("compute_terminated") if has_terminated else None
        return env.get_wrapper_attr("compute_reward"), terminated

    def _check_agents(self, config: Any, module_id: str, columns: int) -> None:
        """Raise ``ValueError`` if the module's replay buffer, which has ``columns`` columns, one per pair of env and
        agent, cannot hold a rollout. ``config`` holds the settings for this module."""
        steps = config.get_rollout_fragment_length()
        if config.replay_capacity < (needed := steps * columns):
            raise config._invalid(
                "replay_capacity",
                f"at least {needed} for policy {module_id!r}, {steps} steps of {columns} agents in all envs",
                "Make it larger.",
            )

    def _check_sequences(self, sequences: SequenceReplay, n_step: int) -> None:
        """Raise ``ValueError`` unless the replay buffer will hold enough complete sequences for a batch when learning
        starts."""
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
        state = super().get_state()
        if not self.replays:
            return state
        state["steps_owed"] = self._by_id(self._steps_owed.copy())
        if self.config.replay_in_checkpoints:
            state["replay"] = self._by_id({name: replay.get_state() for name, replay in self.replays.items()})
        return state

    def adapt_state(self, state: dict[str, Any], saved: "SavedSettings") -> None:
        """Give the saved priorities a ``prioritized_replay_alpha`` that differs from that of the saved run."""
        super().adapt_state(state, saved)
        draws = [*self._as_dict(state.get("replay") or {}).items()]
        draws += [(module_id, of_data["draws"]) for module_id, of_data in state.get("data", {}).items()]
        for module_id, drawn in draws:
            if module_id in self.configs and "priorities" in drawn:
                alpha = self.configs[module_id].prioritized_replay_alpha
                before = saved.get("prioritized_replay_alpha", module_id, default=alpha)
                if alpha != before:
                    drawn["priorities"] = with_exponent(drawn["priorities"], before, alpha)

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if not self.replays or "steps_owed" not in state:  # one of the two runs has no env
            return
        self._steps_owed |= self._as_dict(state["steps_owed"])
        if "replay" not in state or not self.config.replay_in_checkpoints:
            return
        replays = self._as_dict(state["replay"])
        for module_id in self.replays.keys() & replays.keys():
            if "format" in replays[module_id]["layout"]:
                self.replays[module_id].set_state(replays[module_id])
            else:
                logger.warning(
                    "checkpoint: expected a replay buffer of format %d, got one of an earlier version. The run goes on "
                    "with an empty one, and learns again once it holds num_steps_sampled_before_learning_starts steps.",
                    FORMAT,
                )
