"""LearnerGroup: the learners of a run, in this process or in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from catalog.errors import closest
from rlmodule.checkpoint import load_checkpoint
from rlmodule.data.episode import Episode
from rlmodule.data.rollout import Rollout
from rlmodule.learning.batch_learner import BatchLearner
from rlmodule.learning.learner import Batch, EpisodeLearner, Learner, warn_of_update
from rlmodule.learning.reports import Metrics
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID, MultiRLModule, RLModule
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec
from rlmodule.settings import LearnerSettings

Kwargs = dict[str, Any]
Reduce = Callable[[list[Any]], Any]


class LearnerGroup:
    """The learners of a run; :meth:`create` makes the group that the settings ask for.

    With ``num_learners=0`` it is this class, with one learner in this process. Otherwise it is a
    :class:`RemoteLearnerGroup` of as many processes on Ray, which take the same gradient steps, each on a part of the
    data; all have the same weights at any time. :attr:`module` gets these after every update, by
    :meth:`summarize_updates`, and at the latest after 64 calls of :meth:`step_on_batch`.

    If a learner process dies or hangs, all are restarted with the state that :attr:`module` was last updated with, and
    repeat the updates since then; nothing is lost.

    Updates take these arguments; those from batches have no ``num_epochs`` and ``minibatch_size``:
        ``env_steps``: Env steps sampled in the whole run so far; None adds those in the data to the learners' count.
        ``module_id``: Which module learns from the data.
        ``num_epochs``: Passes over episodes; None takes the setting.
        ``minibatch_size``: Rows of episodes in each gradient step of one learner; None takes the setting.
        ``async_update``: Do not wait for learners in other processes: return a list of the results of earlier updates
        that are done by now, each once. If two are still to do, the data is dropped and counted. A learner in this
        process always updates at once, and the list has its result.
        ``reduce_fn``: Makes one result of the list of those of all learners; by default the first is taken, since each
        is about the data of all.

    Override points: none.

    Args:
        settings, learner_class, spec, run_seed: See :meth:`create`.

    Raises:
        ValueError: If the settings ask for learners in other processes, which :meth:`create` makes.

    Attributes:
        module: The modules, on the CPU of this process; a learner in this process and on the CPU trains these very
            ones. Those of learners on a GPU or in other processes are copied here.
        num_env_steps_dropped: Rows for which learners in other processes had no room, or on which they raised.
    """

    module: MultiRLModule

    def __init__(
        self, settings: LearnerSettings, learner_class: type[Learner], spec: MultiRLModuleSpec, *, run_seed: int
    ) -> None:
        self._learner_class, self.num_env_steps_dropped = learner_class, 0
        self._processes: Any = SimpleNamespace(num_restarts=0)  # those of earlier parts of the run
        self._start(settings, spec, run_seed)

    def _start(self, settings: LearnerSettings, spec: MultiRLModuleSpec, run_seed: int) -> None:
        """Make the learners."""
        if settings.num_learners:
            raise ValueError(
                f"LearnerGroup(): expected num_learners=0, got {settings.num_learners}. Call "
                "LearnerGroup.create(), which makes the group that this asks for."
            )
        self._learner = learner = self._learner_class(settings, spec, run_seed=run_seed)
        self._is_copy = learner.device.type != "cpu"
        self.module = spec.build() if self._is_copy else learner.module
        if self._is_copy:
            self._update_module()

    def _update_module(self) -> None:
        """Copy the weights from the GPU."""
        self._num_updates = self._learner.num_updates
        self.module.set_state(self._learner.module.get_state())

    @staticmethod
    def create(
        settings: LearnerSettings, learner_class: type[Learner], spec: MultiRLModuleSpec, *, run_seed: int
    ) -> LearnerGroup:
        """Build the learners of a run, in this process or in others.

        Args:
            settings: Learning rate, clipping, minibatches, how many.
            learner_class: What learns.
            spec: The modules.
            run_seed: Seed of the run.

        Raises:
            WorkerFailed: If a learner in another process cannot be built.
        """
        if settings.num_learners:
            from rlmodule.groups.remote_learner_group import RemoteLearnerGroup

            return RemoteLearnerGroup(settings, learner_class, spec, run_seed=run_seed)
        return LearnerGroup(settings, learner_class, spec, run_seed=run_seed)

    @property
    def learner(self) -> Learner:
        """The learner in this process.

        Raises:
            RuntimeError: If there is none.
        """
        return self._learner

    @property
    def num_updates(self) -> int:
        """Gradient steps taken so far: the version of the weights of :attr:`module`."""
        return self._num_updates if self._is_copy else self._learner.num_updates

    # --- updates ------------------------------------------------------------------------------------------------------

    def _wrong_kind(self, called: str) -> TypeError:
        """Return the error of a method that groups of the other kind of learner have."""
        right = "update_from_batch" if called == "update_from_episodes" else "update_from_episodes"
        return TypeError(
            f"LearnerGroup.{called}(): expected a learner that offers {called}, got "
            f"{self._learner_class.__name__}, which does not. Call {right}() for this algorithm."
        )

    def update(self, data: Any = None, *, batch: Any = None, episodes: Any = None, **kwargs: Any) -> Any:
        """Deprecated: call :meth:`update_from_episodes` or :meth:`update_from_batch`, whichever the learner has."""
        from_episodes = issubclass(self._learner_class, EpisodeLearner)
        right = self.update_from_episodes if from_episodes else self.update_from_batch
        warn_of_update(type(self), right.__name__)
        given = [one for one in (data, batch, episodes) if one is not None]
        return right(*given, **kwargs)

    def update_from_episodes(
        self,
        episodes: Rollout | Sequence[Episode],
        *,
        async_update: bool = False,
        reduce_fn: Reduce | None = None,
        **kwargs: Any,
    ) -> Any:
        """Learn from a rollout or episodes, which are divided among the learners, and return the result.

        Args:
            episodes: The data, which is divided among the learners.
            async_update, reduce_fn, **kwargs: See the class.

        Raises:
            TypeError: If the learner learns from batches.
            KeyError: If there is no module of that id; names those there are.
            WorkerFailed: If a learner in another process raises, or fails too often.
        """
        if not isinstance(self._learner, EpisodeLearner):
            raise self._wrong_kind("update_from_episodes")
        result = self._learner.update_from_episodes(episodes, **kwargs)
        return self._finish(result, async_update, reduce_fn)

    def _finish(self, result: Any, async_update: bool, reduce_fn: Reduce | None) -> Any:
        """Copy the weights if need be, and return the result as the caller wants it."""
        if self._is_copy:
            self._update_module()
        result = result if reduce_fn is None else reduce_fn([result])
        return [result] if async_update else result

    def update_from_batch(
        self,
        batch: Batch,
        *,
        env_steps: int | None = None,
        module_id: str = DEFAULT_MODULE_ID,
        async_update: bool = False,
        reduce_fn: Reduce | None = None,
    ) -> Any:
        """See :meth:`BatchLearner.update_from_batch`, and for the arguments the class.

        Raises:
            TypeError: If the learner learns from episodes.
            KeyError: If there is no module of that id; names those there are.
            WorkerFailed: If a learner in another process raises, or fails too often.
        """
        if not issubclass(self._learner_class, BatchLearner):
            raise self._wrong_kind("update_from_batch")
        kwargs = {"env_steps": env_steps, "module_id": module_id}
        return self._update("update_from_batch", batch, kwargs, async_update, reduce_fn)

    def step_on_batch(
        self, batch: Batch, *, env_steps: int, module_id: str = DEFAULT_MODULE_ID
    ) -> Mapping[str, Metrics]:
        """See :meth:`BatchLearner.step_on_batch`; the results of several learners are merged by :func:`merge_metrics`.
        Their tensors are on the CPU, or where a learner in this process computes, without waiting for it.

        Raises:
            TypeError: If the learner learns from episodes.
            KeyError: If there is no module of that id; names those there are.
            WorkerFailed: If a learner in another process raises, or fails too often.
        """
        if not issubclass(self._learner_class, BatchLearner):
            raise self._wrong_kind("step_on_batch")
        return self._update("step_on_batch", batch, {"env_steps": env_steps, "module_id": module_id})

    def summarize_updates(self, history: Sequence[Mapping[str, Metrics]]) -> dict[str, dict[str, float]]:
        """See :meth:`BatchLearner.summarize_updates`, of what :meth:`step_on_batch` returned. :attr:`module` has the
        latest weights afterwards.

        Raises:
            TypeError: If the learner learns from episodes.
            WorkerFailed: If a learner in another process raises, or fails too often.
        """
        if not issubclass(self._learner_class, BatchLearner):
            raise self._wrong_kind("summarize_updates")
        return self._call("summarize_updates", history) if history else {}

    def _update(
        self, method: str, data: Any, kwargs: Kwargs, async_update: bool = False, reduce_fn: Reduce | None = None
    ) -> Any:
        """Call the ``method`` of the learners that updates them, each with its part of ``data``."""
        result = getattr(self._learner, method)(data, **kwargs)
        return result if method == "step_on_batch" else self._finish(result, async_update, reduce_fn)

    def _call(self, method: str, *args: Any) -> Any:
        """Call another ``method`` of the learners, and copy their weights to :attr:`module` if that is a copy."""
        result = getattr(self._learner, method)(*args)
        if self._is_copy:
            self._update_module()
        return result

    # --- modules ------------------------------------------------------------------------------------------------------

    def get_module(self, module_id: str) -> RLModule:
        """The module that is being trained, or the copy of it in this process.

        Raises:
            KeyError: If there is none of that id; names those there are.
        """
        return self.module[module_id]

    def add_module(self, module_id: str, spec: RLModuleSpec) -> None:
        """Train a further module from now on. Its weights depend on the run's seed and its id.

        Raises:
            ValueError: If there is one of that id, or the id cannot be one.
            TypeError: If it lacks an ability that the learner requires.
            WorkerFailed: If learners in other processes cannot add it.
        """
        if self._is_copy:
            with torch.random.fork_rng(devices=[]):  # its weights are replaced
                self.module.add(module_id, spec.build())
        try:
            self._call("add_module", module_id, spec)
        except BaseException:
            if self._is_copy:
                self.module.remove(module_id)
            raise

    def remove_module(self, module_id: str) -> None:
        """Forget a module.

        Raises:
            KeyError: If there is none of that id; names those there are.
            WorkerFailed: If learners in other processes fail too often.
        """
        self.module[module_id]  # raises if there is none
        self._call("remove_module", module_id)
        if self._is_copy:
            self.module.remove(module_id)

    def load_modules(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        module_ids: Sequence[str] | None = None,
        paths: Mapping[str, str | os.PathLike[str]] | None = None,
    ) -> None:
        """Copy weights of modules out of checkpoints, all of them or none; their optimizers keep their state.

        Args:
            path: A checkpoint that ``algorithm.save()`` wrote.
            module_ids: Which modules to take from there; None takes all of this group that ``paths`` does not name.
            paths: Checkpoints of single modules, by module id.

        Raises:
            FileNotFoundError: If there is no checkpoint.
            KeyError: If a module is not in this group, or not in the checkpoint; names those there are.
            ValueError: If nothing is asked for, a module is to come from two places, a checkpoint is damaged, or its
                weights are those of another kind of module.
        """
        sources = {module_id: Path(source) for module_id, source in (paths or {}).items()}
        if twice := [module_id for module_id in module_ids or () if module_id in sources]:
            raise ValueError(
                f"load_modules(): expected one place for each module, got {', '.join(map(repr, twice))} in "
                "both module_ids and paths. Leave it out of one of them."
            )
        if path is None and (module_ids is not None or not sources):
            got = "none" if module_ids is None else f"module_ids={list(module_ids)!r} without one"
            raise ValueError(
                f"load_modules(): expected a checkpoint to load from, got {got}. Pass the folder that "
                "algo.save(path) wrote, or paths={module_id: folder}."
            )
        if path is not None:
            sources = dict.fromkeys(self.module if module_ids is None else module_ids, Path(path)) | sources
        checkpoints = {source: _saved_modules(source) for source in {*sources.values()}}
        for module_id, source in sources.items():
            module, saved = self.module[module_id], checkpoints[source]
            if module_id not in saved:
                raise KeyError(
                    f"load_modules({str(source)!r}): expected one of {', '.join(saved)}, which this checkpoint has, "
                    f"got {module_id!r}. Name a module that it has.{closest(module_id, saved)}"
                )
            module.check_state(saved[module_id])
        for module_id, source in sources.items():
            self._call("load_module_state", module_id, checkpoints[source][module_id])

    # --- state --------------------------------------------------------------------------------------------------------

    def get_state(self) -> dict[str, Any]:
        """The state that all learners have in common. If they failed for good, the one they returned last.

        Raises:
            WorkerFailed: If learners in other processes fail too often while it waits for them.
        """
        return self._learner.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`get_state` gave."""
        self._call("set_state", state)

    def report(self) -> dict[str, Any]:
        """Numbers of learners in other processes for the ``workers`` section of a result; none if there are none."""
        return {}

    def get_counters(self) -> dict[str, int]:
        """Return ``num_learner_restarts`` and ``num_env_steps_dropped`` of the whole run."""
        restarts = self._processes.num_restarts
        return {"num_learner_restarts": restarts, "num_env_steps_dropped": self.num_env_steps_dropped}

    def set_counters(self, counters: Mapping[str, int]) -> None:
        """Restore what :meth:`get_counters` gave, also of a group of the other kind."""
        self._processes.num_restarts = counters["num_learner_restarts"]
        self.num_env_steps_dropped = counters["num_env_steps_dropped"]

    def stop(self) -> None:
        """End the processes of learners."""


def _saved_modules(path: Path) -> dict[str, dict[str, Tensor]]:
    """The states of the modules in the checkpoint of an algorithm."""
    content = load_checkpoint(path)
    if "learners" not in content.get("state", ()):
        raise ValueError(
            f"load_modules({str(path)!r}): expected the checkpoint of an algorithm, got one with "
            f"{', '.join(content) or 'nothing'}. Pass the folder that algo.save(path) wrote."
        )
    return content["state"]["learners"]["module"]
