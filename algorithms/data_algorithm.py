"""What algorithms share that learn from data sets: settings, the data, and the updates from it alone."""

import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from algorithms.algorithm import Algorithm
from algorithms.multi_agent_config import MultiAgentConfig
from algorithms.ops.rewards import clipped_rewards
from algorithms.replay.buffer import ReplayBuffer, ReplaySample
from algorithms.replay.data_rollout import data_rollout
from algorithms.replay.join import join_batches
from algorithms.replay.sequences import SequenceReplay
from algorithms.run.goal import Budget
from catalog.settings import Section, Settings, setting
from rlmodule.data.dataset import Dataset
from rlmodule.data.rollout import Rollout
from rlmodule.groups.env_runner_group import EnvRunnerGroup
from rlmodule.groups.no_env_runner_group import NoEnvRunnerGroup
from rlmodule.learning.reports import Metrics
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID, RLModule
from rlmodule.seeding import seed_sequence
from rlmodule.settings import Training


class DataTraining(Training):
    """Settings of updates from batches of stored steps."""

    train_batch_size_per_learner = 256
    n_step: int | tuple[int, int] = setting(
        1, "Steps whose rewards are summed before the next value; from a pair, a number is drawn for each row.", ge=1
    )
    burn_in_len: int = setting(0, "Steps before each training sequence that only warm up the recurrent state.", ge=0)


class Offline(Settings):
    """The data sets to learn from, and how."""

    data: str | Dataset | dict[str, str | Dataset] | None = setting(
        None,
        "The data set: a Dataset, or the path of a folder that Dataset.load() reads; for several agents, a dict by "
        "policy id. None learns from env steps alone.",
    )
    num_updates_per_iteration: int = setting(
        1000, "Gradient steps per call of train() that learns from data alone.", ge=1
    )


class DataConfig(DataTraining, Offline, MultiAgentConfig):
    """Settings of a :class:`DataAlgorithm`."""

    training = Section(DataTraining)
    offline = Section(Offline)

    not_for_learners = (*MultiAgentConfig.not_for_learners, "data")

    def load_data(self) -> dict[str, Dataset]:
        """Return the data sets by module id, loaded from their folders; an empty dict without data."""
        if self.data is None:
            return {}
        named = self.data if isinstance(self.data, Mapping) else {DEFAULT_MODULE_ID: self.data}
        return {name: Dataset.load(data) if isinstance(data, str) else data for name, data in named.items()}

    @property
    def needs_env(self) -> bool:
        return self.data is None or self.is_multi_agent

    def build(self) -> Any:
        config = self.copy()
        # a run that resumes may have another working directory
        if isinstance(config.data, Mapping):
            config.data = {name: _absolute(data) for name, data in config.data.items()}
        elif config.data is not None:
            config.data = _absolute(config.data)
        return super(DataConfig, config).build()

    def get_rollout_fragment_length(self) -> int:
        """Return the number of steps per env in each rollout: the setting ``rollout_fragment_length``. If that is None,
        return 1, or 4 with remote runners, so that they send fewer messages."""
        return self.rollout_fragment_length or (4 if self.num_env_runners else 1)

    def spaces_of(self, env: Any = None) -> Any:
        if env is None and self.env is None and not self.needs_env:
            (dataset,) = self.load_data().values()
            return dataset.observation_space, dataset.action_space
        return super().spaces_of(env)

    def validate(self) -> None:
        super().validate()
        if isinstance(self.data, Mapping) != (self.is_multi_agent and self.data is not None):
            expected = "a dict of data sets by policy id" if self.is_multi_agent else "one data set, for one policy"
            raise self._invalid("data", expected, "Write .offline(data=...) so.")
        if self.env is None:
            for name, neutral in (("evaluation_interval", None), ("evaluation_num_videos", 0)):
                if getattr(self, name):
                    remedy = "Name one: .environment('CartPole-v1'), or leave this out."
                    raise self._invalid(name, f"{neutral}, since there is no env to evaluate in", remedy)


class DataAlgorithm(Algorithm):
    """Learns from batches of stored steps. This class takes them from data sets, which the settings name.

    Attributes:
        data: The steps of the data set of each trained module, by module id. Empty if the settings name no data.
        configs: The settings of each trained module, which include its ``policy_overrides``, by module id.
    """

    config: Any

    def __init__(self, config: DataConfig) -> None:
        self.data: dict[str, ReplayBuffer] = {}
        self.configs: dict[str, Any] = {}
        self._datasets = config.load_data()
        self._digests = {module_id: dataset.digest for module_id, dataset in self._datasets.items()}
        super().__init__(config)
        try:
            self.policies_changed([*filter(config.is_trained, self.learner_group.module)])
            if self._datasets and (differing := self._datasets.keys() ^ self.configs.keys()):
                raise ValueError(
                    f"{type(config).__name__}.data: expected a data set for each policy that is trained, "
                    f"{', '.join(self.configs)}, got those of {', '.join(self._datasets)}. Look at {min(differing)!r}."
                )
            self._datasets = {}  # replay buffers hold them now
        except BaseException:
            self.stop()
            raise

    def _make_runners(self) -> EnvRunnerGroup:
        if "num_env_steps" in self.budgets:
            return super()._make_runners()
        return NoEnvRunnerGroup(self.config, *self.config.spaces_of())

    @property
    def budgets(self) -> tuple[Budget, ...]:
        samples, learns_from_data = self.config.can_sample and self.config.env is not None, self.config.data is not None
        if not samples:
            return ("num_updates",)
        return ("num_env_steps", "num_updates") if learns_from_data else ("num_env_steps",)

    def policies_changed(self, trained: Collection[str]) -> None:
        for module_id in self.configs.keys() - set(trained):
            self._remove_module(module_id)
        for module_id in trained:
            if module_id not in self.configs:
                self._add_module(module_id, self.config.for_module(module_id), self.get_module(module_id))

    def _remove_module(self, module_id: str) -> None:
        """Forget what is kept for a module that is no longer trained."""
        self.data.pop(module_id, None)
        del self.configs[module_id]

    def _add_module(self, module_id: str, config: Any, module: RLModule) -> None:
        """Prepare the training of a module, whose settings are ``config``."""
        self.configs[module_id] = config
        self._make_buffers(module_id, config, self._buffer_settings(config, module))

    def _make_buffers(self, module_id: str, config: Any, settings: dict[str, Any]) -> None:
        """Create the replay buffers of a module with ``settings``, arguments that :meth:`_buffer_settings` returned."""
        if (dataset := self._datasets.get(module_id)) is not None:
            self.data[module_id] = self._stored(dataset, module_id, settings)

    def _buffer_settings(self, config: Any, module: RLModule) -> dict[str, Any]:
        """Return the arguments of the replay buffers of a module, except for their sizes and seeds."""
        sequences = None
        if module.is_stateful():
            length, state = module.max_seq_len, module.get_initial_state()
            sequences = SequenceReplay(length=length, burn_in=config.burn_in_len, initial_state=state)
        elif config.burn_in_len:
            remedy = "Leave it out, or set use_lstm, use_gru or use_attention in model_config."
            raise config._invalid("burn_in_len", "0, since the module has no recurrent state", remedy)
        return {
            "observation_space": module.input_space,
            "action_space": module.action_space,
            "gamma": config.gamma,
            "n_step": config.n_step,
            "sequences": sequences,
        }

    def _stored(self, dataset: Dataset, module_id: str, settings: dict[str, Any]) -> ReplayBuffer:
        """Return a replay buffer that holds ``dataset``, and nothing else ever."""
        module = self.get_module(module_id)
        try:
            dataset = dataset.with_spaces(module.observation_space, module.action_space)
        except ValueError as error:
            raise ValueError(
                f"data of {module_id!r}: expected steps with the spaces of the run's env, got others. {error} Or name "
                "the env in which they were recorded."
            ) from None
        number = zlib.crc32(module_id.encode())
        seed = seed_sequence(self.run_seed, "data", number)
        num_steps, n_step = dataset.num_steps, settings["n_step"]
        # no window is longer than the data
        within = (
            tuple(min(steps, num_steps) for steps in n_step) if isinstance(n_step, tuple) else min(n_step, num_steps)
        )
        settings = settings | {"n_step": within}
        buffer = ReplayBuffer(**settings, capacity=num_steps, num_envs=1, whole_episodes=True, seed=seed)
        clip, rollout = self.config.clip_rewards, self._rollout_of(dataset, module)
        buffer.add(rollout if clip is None else clipped_rewards(rollout, clip=clip))
        return buffer

    def _rollout_of(self, dataset: Dataset, module: RLModule) -> Rollout:
        """Return the steps of ``dataset`` as ``module`` learns from them, a rollout ``[S, 1]``."""
        return data_rollout(dataset, module)

    def training_step(self) -> dict[str, dict[str, Any]]:
        """Take updates from data alone."""
        if not self.data:
            raise ValueError(
                f"{type(self).__name__}.train(): expected a data set to learn from, got none. Name it: "
                ".offline(data='my_data'), or from_checkpoint(path, data='my_data')."
            )
        history, seconds = [], {"replay": 0.0, "update": 0.0}
        start = perf_counter()
        for _ in range(self._num_updates_now()):
            for module_id, data in self.data.items():
                size = self.configs[module_id].train_batch_size
                history.append(self._learn(module_id, [(data, size)], seconds))
            self.metrics.updates += 1
        seconds["replay"] = perf_counter() - start - seconds["update"]
        return {"learners": self.learner_group.summarize_updates(history), "timers": seconds}

    def _num_updates_now(self) -> int:
        """Return the number of updates of this iteration."""
        return self.config.num_updates_per_iteration

    def _learn(
        self, module_id: str, sources: Sequence[tuple[ReplayBuffer, int]], seconds: dict[str, float]
    ) -> Mapping[str, Metrics]:
        """Take one gradient step on a batch of stored steps.

        Args:
            module_id: The module that learns.
            sources: Replay buffers, each with the number of steps to draw from it.
            seconds: The learning time is added to its entry ``update``.

        Returns:
            The learners' metrics by module id.
        """
        samples = [self._draw(module_id, buffer, size) for buffer, size in sources]
        batch = join_batches([sample.batch for sample in samples])
        start = perf_counter()
        learned = self.learner_group.step_on_batch(batch, env_steps=self.clock, module_id=module_id)
        seconds["update"] += perf_counter() - start
        buffers = [buffer for buffer, _ in sources]
        if buffers[0].priorities is not None:
            _update_priorities(buffers, samples, learned[module_id])
        return learned

    def _draw(self, module_id: str, buffer: ReplayBuffer, size: int) -> ReplaySample:
        """Return ``size`` steps from one of the replay buffers of a module."""
        return buffer.sample(size)

    def get_state(self) -> dict[str, Any]:
        data = {
            module_id: {"digest": self._digests[module_id], "draws": buffer.get_draws()}
            for module_id, buffer in self.data.items()
        }
        return super().get_state() | ({"data": data} if data else {})

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        for module_id, saved in state.get("data", {}).items():
            if module_id not in self.data:
                continue
            expected, got = saved["digest"], self._digests[module_id]
            if expected != got:
                raise ValueError(
                    f"data of {module_id!r}: expected the data set that the run began with, whose digest is "
                    f"{expected:.12}…, got one with {got:.12}…. Pass it again: from_checkpoint(path, data=...)."
                )
            self.data[module_id].set_draws(saved["draws"])


def _absolute(data: str | Dataset) -> str | Dataset:
    return str(Path(data).absolute()) if isinstance(data, str) else data


def _update_priorities(buffers: Sequence[ReplayBuffer], samples: Sequence[ReplaySample], metrics: Metrics) -> None:
    """Set the priorities of the steps of a batch, which was joined from ``samples`` of ``buffers``."""
    if "td_error" not in metrics:
        raise ValueError(
            "metrics of compute_loss_for_module(): expected 'td_error', one per row, since "
            f"prioritized_replay=True, got {', '.join(metrics)}. Report it, or turn "
            "prioritized_replay off."
        )
    errors = metrics["td_error"].cpu()
    if not errors.isfinite().all():  # the learner skipped the update, and the priorities stay as they are
        return
    if len(samples) == 1:
        buffers[0].update_priorities(samples[0], errors)  # which checks the number of errors
        return
    of_each = errors.split([sample.num_rows for sample in samples])
    for buffer, sample, part in zip(buffers, samples, of_each, strict=True):
        buffer.update_priorities(sample, part)
