"""RemoteLearnerGroup: learners in processes of their own, each with a part of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rlmodule.data.episode import Episode
from rlmodule.data.rollout import Rollout
from rlmodule.data.sequences import num_rows
from rlmodule.distributed.remote_learners import RemoteLearners, State
from rlmodule.groups.learner_group import LearnerGroup, Reduce
from rlmodule.learning.learner import Batch, EpisodeLearner, Learner
from rlmodule.learning.reports import merge_metrics
from rlmodule.learning.sharding import shard_batch, shard_episodes, shard_rollout
from rlmodule.learning.update_data import check_batch, check_episodes, num_steps_in
from rlmodule.modules.spec import MultiRLModuleSpec
from rlmodule.settings import LearnerSettings


class RemoteLearnerGroup(LearnerGroup):
    """Learners on Ray; see :class:`LearnerGroup`.

    Attributes:
        processes: The learners.
    """

    def __init__(
        self, settings: LearnerSettings, learner_class: type[Learner], spec: MultiRLModuleSpec, *, run_seed: int
    ) -> None:
        super().__init__(learner_class, spec.build(), is_copy=True)
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
        self._check_kind(EpisodeLearner, "update_from_episodes")
        return self._update("update_from_episodes", episodes, kwargs, async_update, reduce_fn)

    def _update(
        self,
        method: str,
        data: Any,
        kwargs: dict[str, Any],
        async_update: bool = False,
        reduce_fn: Reduce | None = None,
    ) -> Any:
        if (module_id := kwargs.get("module_id")) is not None:
            self.module[module_id]  # raises if there is none
        size, default, where = self.processes.workers.size, _first, f"LearnerGroup.{method}()"
        if method == "update_from_episodes":
            check_episodes(data, where)
            parts = shard_rollout(data, size) if isinstance(data, Rollout) else shard_episodes(data, size)
            rows = num_steps_in(data)
        else:
            if method == "step_on_batch":
                default = partial(_merged, data)
            else:
                check_batch(data, where)
            parts, rows = shard_batch(data, size), num_rows(data)
        return self.processes.update(method, parts, kwargs, rows, reduce_fn or default, async_update)

    def _call(self, method: str, *args: Any) -> Any:
        return self.processes.call(method, *args)

    def get_state(self) -> State:
        state = self.processes.get_state()
        # what this process set in its copy, such as how much to explore, counts
        return state | {"module": self.module.get_state()} if self.processes.is_current else state

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
