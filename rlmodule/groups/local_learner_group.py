"""LocalLearnerGroup: one learner, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rlmodule.data.episode import Episode
from rlmodule.data.rollout import Rollout
from rlmodule.groups.learner_group import Kwargs, LearnerGroup, Reduce
from rlmodule.learning.learner import EpisodeLearner, Learner
from rlmodule.modules.spec import MultiRLModuleSpec
from rlmodule.settings import LearnerSettings


class LocalLearnerGroup(LearnerGroup):
    """A learner in this process; see :class:`LearnerGroup`. The modules of one on a GPU are copied after updates."""

    def __init__(
        self, settings: LearnerSettings, learner_class: type[Learner], spec: MultiRLModuleSpec, *, run_seed: int
    ) -> None:
        self._learner = learner = learner_class(settings, spec, run_seed=run_seed)
        self._counters = {"num_learner_restarts": 0, "num_env_steps_dropped": 0}
        is_copy = learner.device.type != "cpu"
        super().__init__(learner_class, spec.build() if is_copy else learner.module, is_copy)
        self._update_module()

    @property
    def learner(self) -> Learner:
        return self._learner

    @property
    def num_updates(self) -> int:
        return self._num_updates if self._is_copy else self._learner.num_updates

    def _update_module(self) -> None:
        """Copy the weights from the GPU, if the learner is there."""
        if self._is_copy:
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

    def _update(
        self, method: str, data: Any, kwargs: Kwargs, async_update: bool = False, reduce_fn: Reduce | None = None
    ) -> Any:
        result = getattr(self._learner, method)(data, **kwargs)
        return result if method == "step_on_batch" else self._finish(result, async_update, reduce_fn)

    def _finish(self, result: Any, async_update: bool, reduce_fn: Reduce | None) -> Any:
        """Copy the weights if need be, and return the result as the caller wants it."""
        self._update_module()
        result = result if reduce_fn is None else reduce_fn([result])
        return [result] if async_update else result

    def _call(self, method: str, *args: Any) -> Any:
        result = getattr(self._learner, method)(*args)
        self._update_module()
        return result

    def get_state(self) -> dict[str, Any]:
        return self._learner.get_state()

    def report(self) -> dict[str, Any]:
        return {}

    def get_counters(self) -> dict[str, int]:
        return self._counters

    def set_counters(self, counters: Mapping[str, int]) -> None:
        self._counters = {name: counters[name] for name in self._counters}

    def stop(self) -> None:
        pass
