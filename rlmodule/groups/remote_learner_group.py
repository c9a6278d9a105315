"""RemoteLearnerGroup: learners in processes of their own, each with a part of the data."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlmodule.data.episode import Episode
from rlmodule.data.rollout import Rollout
from rlmodule.data.sequences import num_rows
from rlmodule.distributed.remote_learners import RemoteLearners, State
from rlmodule.groups.learner_group import LearnerGroup, Reduce
from rlmodule.learning.batch_learner import BatchLearner
from rlmodule.learning.learner import Batch, EpisodeLearner, Learner
from rlmodule.learning.reports import Metrics, merge_metrics
from rlmodule.learning.sharding import shard_batch, shard_episodes, shard_rollout
from rlmodule.learning.update_data import check_batch, check_episodes, num_steps_in
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec
from rlmodule.settings import LearnerSettings


class RemoteLearnerGroup(LearnerGroup):
    """Learners on Ray; see :class:`LearnerGroup`.

    Attributes:
        processes: The learners.
    """

    def __init__(
        self, settings: LearnerSettings, learner_class: type[Learner], spec: MultiRLModuleSpec, *, run_seed: int
    ) -> None:
        super().__init__(learner_class)
        self.module = spec.build()
        self.processes = RemoteLearners(settings, learner_class, spec, run_seed=run_seed, keep=self._update_module)

    def _update_module(self, state: State) -> None:
        """Copy the weights of the learners from their ``state``."""
        self._num_updates: int = state["num_updates"]
        self.module.set_state({name: saved for name, saved in state["module"].items() if name in self.module})

    @property
    def learner(self) -> Learner:
        raise RuntimeError(
            "LearnerGroup.learner: expected a learner in this process, got learners in processes "
            "of their own. Set num_learners=0 to have one here, for example to debug a loss."
        )

    @property
    def num_updates(self) -> int:
        return self._num_updates

    def update_from_episodes(
        self,
        episodes: Rollout | Sequence[Episode],
        *,
        async_update: bool = False,
        reduce_fn: Reduce | None = None,
        **kwargs: Any,
    ) -> Any:
        if not issubclass(self._learner_class, EpisodeLearner):
            raise self._wrong_kind("update_from_episodes")
        check_episodes(episodes, "LearnerGroup.update_from_episodes()")
        size, rows = self.processes.workers.size, num_steps_in(episodes)
        parts = shard_rollout(episodes, size) if isinstance(episodes, Rollout) else shard_episodes(episodes, size)
        return self._update("update_from_episodes", parts, kwargs, rows, reduce_fn or _first, async_update)

    def update_from_batch(
        self, batch: Batch, *, async_update: bool = False, reduce_fn: Reduce | None = None, **kwargs: Any
    ) -> Any:
        if not issubclass(self._learner_class, BatchLearner):
            raise self._wrong_kind("update_from_batch")
        check_batch(batch, "LearnerGroup.update_from_batch()")
        parts, rows = shard_batch(batch, self.processes.workers.size), num_rows(batch)
        return self._update("update_from_batch", parts, kwargs, rows, reduce_fn or _first, async_update)

    def step_on_batch(self, batch: Batch, **kwargs: Any) -> Mapping[str, Metrics]:
        if not issubclass(self._learner_class, BatchLearner):
            raise self._wrong_kind("step_on_batch")
        parts, merge = shard_batch(batch, self.processes.workers.size), functools.partial(_merged, batch)
        return self._update("step_on_batch", parts, kwargs, num_rows(batch), merge)

    def _update(self, method: str, parts: Sequence[Any], kwargs: dict[str, Any], *rest: Any) -> Any:
        """See :meth:`RemoteLearners.update`."""
        self.module[kwargs.get("module_id", DEFAULT_MODULE_ID)]  # raises if there is none
        return self.processes.update(method, parts, kwargs, *rest)

    def summarize_updates(self, history: Sequence[Mapping[str, Metrics]]) -> dict[str, dict[str, float]]:
        if not issubclass(self._learner_class, BatchLearner):
            raise self._wrong_kind("summarize_updates")
        return self.processes.call("summarize_updates", history) if history else {}

    def add_module(self, module_id: str, spec: RLModuleSpec) -> None:
        with torch.random.fork_rng(devices=[]):  # its weights are replaced
            self.module.add(module_id, spec.build())
        try:
            self.processes.call("add_module", module_id, spec)
        except BaseException:
            self.module.remove(module_id)
            raise

    def remove_module(self, module_id: str) -> None:
        self.module[module_id]  # raises if there is none
        self.processes.call("remove_module", module_id)
        self.module.remove(module_id)

    def _load_module_states(self, states: Mapping[str, Mapping[str, Tensor]]) -> None:
        for module_id, state in states.items():
            self.processes.call("load_module_state", module_id, state)

    def get_state(self) -> State:
        state = self.processes.get_state()
        # what this process set in its copy, such as how much to explore, counts
        return state | {"module": self.module.get_state()} if self.processes.has_handed_over else state

    def set_state(self, state: State) -> None:
        self.processes.call("set_state", state)

    def report(self) -> dict[str, Any]:
        counters = {f"{name}_lifetime": count for name, count in self.get_counters().items()}
        return counters | {"waited_for_learners_s": self.processes.seconds_waited}

    def get_counters(self) -> dict[str, int]:
        return {
            "num_learner_restarts": self.processes.workers.num_restarts,
            "num_env_steps_dropped": self.processes.num_env_steps_dropped,
        }

    def set_counters(self, counters: Mapping[str, int]) -> None:
        self.processes.workers.num_restarts = counters["num_learner_restarts"]
        self.processes.num_env_steps_dropped = counters["num_env_steps_dropped"]

    def stop(self) -> None:
        self.processes.stop()


def _first(results: list[Any]) -> Any:
    return results[0]


def _merged(batch: Batch, results: list[Any]) -> Any:
    return {module_id: merge_metrics([one[module_id] for one in results], batch) for module_id in results[0]}
