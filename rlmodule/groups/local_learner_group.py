"""LocalLearnerGroup: one learner, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlmodule.data.episode import Episode
from rlmodule.data.rollout import Rollout
from rlmodule.groups.learner_group import LearnerGroup, Reduce
from rlmodule.learning.batch_learner import BatchLearner
from rlmodule.learning.learner import Batch, EpisodeLearner, Learner
from rlmodule.learning.reports import Metrics
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec
from rlmodule.settings import LearnerSettings


class LocalLearnerGroup(LearnerGroup):
    """A learner in this process; see :class:`LearnerGroup`. The modules of one on a GPU are copied after updates."""

    def __init__(
        self, settings: LearnerSettings, learner_class: type[Learner], spec: MultiRLModuleSpec, *, run_seed: int
    ) -> None:
        super().__init__(learner_class)
        self._learner = learner_class(settings, spec, run_seed=run_seed)
        self._counters = {"num_learner_restarts": 0, "num_env_steps_dropped": 0}
        self._copies = self._learner.device.type != "cpu"
        self.module = spec.build() if self._copies else self._learner.module
        self._update_module()

    @property
    def learner(self) -> Learner:
        return self._learner

    @property
    def num_updates(self) -> int:
        return self._num_updates if self._copies else self._learner.num_updates

    def _update_module(self) -> None:
        """Copy the weights from the GPU, if the learner is there."""
        if self._copies:
            self._num_updates = self._learner.num_updates
            self.module.set_state(self._learner.module.get_state())

    def update_from_episodes(
        self,
        episodes: Rollout | Sequence[Episode],
        *,
        async_update: bool = False,
        reduce_fn: Reduce | None = None,
        **kwargs: Any,
    ) -> Any:
        if not isinstance(self._learner, EpisodeLearner):
            raise self._wrong_kind("update_from_episodes")
        return self._finish(self._learner.update_from_episodes(episodes, **kwargs), async_update, reduce_fn)

    def update_from_batch(
        self, batch: Batch, *, async_update: bool = False, reduce_fn: Reduce | None = None, **kwargs: Any
    ) -> Any:
        if not isinstance(self._learner, BatchLearner):
            raise self._wrong_kind("update_from_batch")
        return self._finish(self._learner.update_from_batch(batch, **kwargs), async_update, reduce_fn)

    def _finish(self, result: Any, async_update: bool, reduce_fn: Reduce | None) -> Any:
        """Copy the weights if need be; returns the result as the caller wants it."""
        self._update_module()
        result = result if reduce_fn is None else reduce_fn([result])
        return [result] if async_update else result

    def step_on_batch(self, batch: Batch, **kwargs: Any) -> Mapping[str, Metrics]:
        if not isinstance(self._learner, BatchLearner):
            raise self._wrong_kind("step_on_batch")
        return self._learner.step_on_batch(batch, **kwargs)

    def summarize_updates(self, history: Sequence[Mapping[str, Metrics]]) -> dict[str, dict[str, float]]:
        if not isinstance(self._learner, BatchLearner):
            raise self._wrong_kind("summarize_updates")
        summary = self._learner.summarize_updates(history)
        self._update_module()
        return summary

    def add_module(self, module_id: str, spec: RLModuleSpec) -> None:
        self._learner.add_module(module_id, spec)
        if self._copies:
            with torch.random.fork_rng(devices=[]):  # its weights are replaced
                self.module.add(module_id, spec.build())
        self._update_module()

    def remove_module(self, module_id: str) -> None:
        self._learner.remove_module(module_id)
        if self._copies:
            self.module.remove(module_id)

    def _load_module_states(self, states: Mapping[str, Mapping[str, Tensor]]) -> None:
        for module_id, state in states.items():
            self._learner.load_module_state(module_id, state)
        self._update_module()

    def get_state(self) -> dict[str, Any]:
        return self._learner.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        self._learner.set_state(state)
        self._update_module()

    def report(self) -> dict[str, Any]:
        return {}

    def get_counters(self) -> dict[str, int]:
        return self._counters

    def set_counters(self, counters: Mapping[str, int]) -> None:
        self._counters = {name: counters[name] for name in self._counters}

    def stop(self) -> None:
        pass
