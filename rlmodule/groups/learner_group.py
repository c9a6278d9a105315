"""LearnerGroup: the learners of a run, in this process or each in one of its own."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from catalog.errors import closest
from rlmodule.checkpoint import load_checkpoint
from rlmodule.data.episode import Episode
from rlmodule.data.rollout import Rollout
from rlmodule.learning.learner import Batch, EpisodeLearner, Learner, warn_of_update
from rlmodule.learning.reports import Metrics
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID, MultiRLModule, RLModule
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec
from rlmodule.settings import LearnerSettings

Reduce = Callable[[list[Any]], Any]


class LearnerGroup(ABC):
    """The learners of a run; :meth:`create` makes the group that the settings ask for.

    With ``num_learners=0`` there is one, in this process. Otherwise there are as many processes on Ray, which take the
    same gradient steps on a part of the data each; all have the same weights at any time. :attr:`module` gets these
    after every update, by :meth:`summarize_updates`, and at the latest after 64 calls of :meth:`step_on_batch`.

    If a learner process dies or hangs, all are restarted with the state that :attr:`module` was last updated with, and
    repeat what they did since then; nothing is lost.

    Override points: none.

    Args:
        learner_class: What learns.

    Attributes:
        module: The modules, on the CPU of this process; a learner in this process and on the CPU trains these very
            ones.
    """

    module: MultiRLModule

    def __init__(self, learner_class: type[Learner]) -> None:
        self._learner_class = learner_class

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
        from rlmodule.groups.local_learner_group import LocalLearnerGroup
        from rlmodule.groups.remote_learner_group import RemoteLearnerGroup

        group = RemoteLearnerGroup if settings.num_learners else LocalLearnerGroup
        return group(settings, learner_class, spec, run_seed=run_seed)

    @property
    @abstractmethod
    def learner(self) -> Learner:
        """The learner in this process.

        Raises:
            RuntimeError: If there is none.
        """

    @property
    @abstractmethod
    def num_updates(self) -> int:
        """Gradient steps taken so far: the version of the weights of :attr:`module`."""

    # --- updates ------------------------------------------------------------------------------------------------------

    def update(self, data: Any = None, *, batch: Any = None, episodes: Any = None, **kwargs: Any) -> Any:
        """Deprecated: call :meth:`update_from_episodes` or :meth:`update_from_batch`, whichever the learner has."""
        from_episodes = issubclass(self._learner_class, EpisodeLearner)
        warn_of_update(type(self), "update_from_episodes" if from_episodes else "update_from_batch")
        if data is None:
            data = batch if episodes is None else episodes
        return (self.update_from_episodes if from_episodes else self.update_from_batch)(data, **kwargs)

    def _wrong_kind(self, called: str) -> TypeError:
        """The error of a method that groups of another kind of learner have."""
        from_episodes = issubclass(self._learner_class, EpisodeLearner)
        right = "update_from_episodes" if from_episodes else "update_from_batch"
        return TypeError(
            f"LearnerGroup.{called}(): expected a learner that offers {called}, got "
            f"{self._learner_class.__name__}, which does not. Call {right}() for this algorithm."
        )

    @abstractmethod
    def update_from_episodes(
        self,
        episodes: Rollout | Sequence[Episode],
        *,
        env_steps: int | None = None,
        module_id: str = DEFAULT_MODULE_ID,
        num_epochs: int | None = None,
        minibatch_size: int | None = None,
        async_update: bool = False,
        reduce_fn: Reduce | None = None,
    ) -> Any:
        """Learn from a rollout or episodes; see :meth:`EpisodeLearner.update_from_episodes`.

        Args:
            episodes: The data, which is divided among the learners.
            env_steps: Env steps sampled in the whole run so far; None adds those in the data to the learners' count.
            module_id: Which module learns from it.
            num_epochs: Passes over the data; None takes the setting.
            minibatch_size: Rows of each gradient step of one learner; None takes the setting.
            async_update: Do not wait for learners in other processes: return a list of the results of earlier updates
                that are done by now, each once. If two are still to do, the data is dropped, and counted. A learner in
                this process is always done at once.
            reduce_fn: Makes one result of the list of those of all learners; by default the first is taken, since each
                is about the data of all.

        Returns:
            The result, or with ``async_update`` a list of results.

        Raises:
            TypeError: If the learner learns from batches.
            KeyError: If there is no module of that id; names those there are.
            WorkerFailed: If a learner in another process raises, or fails too often.
        """

    @abstractmethod
    def update_from_batch(
        self,
        batch: Batch,
        *,
        env_steps: int | None = None,
        module_id: str = DEFAULT_MODULE_ID,
        async_update: bool = False,
        reduce_fn: Reduce | None = None,
    ) -> Any:
        """See :meth:`BatchLearner.update_from_batch`, and for the arguments :meth:`update_from_episodes`.

        Raises:
            TypeError: If the learner learns from episodes.
            KeyError: If there is no module of that id; names those there are.
            WorkerFailed: If a learner in another process raises, or fails too often.
        """

    @abstractmethod
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

    @abstractmethod
    def summarize_updates(self, history: Sequence[Mapping[str, Metrics]]) -> dict[str, dict[str, float]]:
        """See :meth:`BatchLearner.summarize_updates`, of what :meth:`step_on_batch` returned. :attr:`module` has the
        latest weights afterwards.

        Raises:
            TypeError: If the learner learns from episodes.
            WorkerFailed: If a learner in another process raises, or fails too often.
        """

    # --- modules ------------------------------------------------------------------------------------------------------

    def get_module(self, module_id: str) -> RLModule:
        """The module that is being trained, or the copy of it in this process.

        Raises:
            KeyError: If there is none of that id; names those there are.
        """
        return self.module[module_id]

    @abstractmethod
    def add_module(self, module_id: str, spec: RLModuleSpec) -> None:
        """Let a further module be trained from now on. Its weights depend on the run's seed and its id.

        Raises:
            ValueError: If there is one of that id, or the id cannot be one.
            TypeError: If it lacks an ability that the learner requires.
            WorkerFailed: If learners in other processes cannot add it.
        """

    @abstractmethod
    def remove_module(self, module_id: str) -> None:
        """Forget a module.

        Raises:
            KeyError: If there is none of that id; names those there are.
            WorkerFailed: If learners in other processes fail too often.
        """

    def load_modules(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        module_ids: Sequence[str] | None = None,
        paths: Mapping[str, str | os.PathLike[str]] | None = None,
    ) -> None:
        """Copy weights of modules out of checkpoints; their optimizers go on as they are. All or nothing is loaded.

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
        states: dict[str, dict[str, Tensor]] = {}
        for source, wanted in _sources(path, module_ids, paths or {}, [*self.module]):
            content, where = load_checkpoint(source), f"load_modules({str(source)!r})"
            if "learners" not in content.get("state", ()):
                raise ValueError(
                    f"{where}: expected the checkpoint of an algorithm, got one with "
                    f"{', '.join(content) or 'nothing'}. Pass the folder that algo.save(path) "
                    "wrote."
                )
            saved = content["state"]["learners"]["module"]
            for module_id in wanted:
                module = self.module[module_id]
                if module_id not in saved:
                    expected, remedy = (
                        f"one of {', '.join(saved)}, which this checkpoint has",
                        "Name a module that it has.",
                    )
                    remedy += closest(module_id, saved)
                    raise KeyError(f"{where}: expected {expected}, got {module_id!r}. {remedy}")
                module.check_state(saved[module_id])
                states[module_id] = saved[module_id]
        self._load_module_states(states)

    @abstractmethod
    def _load_module_states(self, states: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Copy the checked states into the modules of these ids."""

    # --- state --------------------------------------------------------------------------------------------------------

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """State of the learners, which is one and the same. If they failed for good: that of :attr:`module`.

        Raises:
            WorkerFailed: If learners in other processes fail too often while it waits for them.
        """

    @abstractmethod
    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`get_state` gave."""

    @abstractmethod
    def report(self) -> dict[str, Any]:
        """Numbers of learners in other processes for the ``workers`` section of a result; none if there are none."""

    @abstractmethod
    def get_counters(self) -> dict[str, int]:
        """``num_learner_restarts`` and ``num_env_steps_dropped`` of the whole run, whichever processes it was in."""

    @abstractmethod
    def set_counters(self, counters: Mapping[str, int]) -> None:
        """Restore what :meth:`get_counters` gave, also of a group of the other kind."""

    @abstractmethod
    def stop(self) -> None:
        """End the processes of learners."""


def _sources(
    path: str | os.PathLike[str] | None,
    module_ids: Sequence[str] | None,
    paths: Mapping[str, str | os.PathLike[str]],
    there: Sequence[str],
) -> list[tuple[str | os.PathLike[str], list[str]]]:
    """Which modules to take from which checkpoint."""
    where = "load_modules()"
    if twice := [module_id for module_id in module_ids or () if module_id in paths]:
        raise ValueError(
            f"{where}: expected one place for each module, got {', '.join(map(repr, twice))} in "
            f"both module_ids and paths. Leave {', '.join(map(repr, twice))} out of one of them."
        )
    if path is None and (module_ids is not None or not paths):
        got = "none" if module_ids is None else f"module_ids={list(module_ids)!r} without one"
        raise ValueError(
            f"{where}: expected a checkpoint to load from, got {got}. Pass the folder that "
            "algo.save(path) wrote, or paths={module_id: folder}."
        )
    found: list[tuple[str | os.PathLike[str], list[str]]] = []
    if path is not None:
        found.append((path, [name for name in there if name not in paths] if module_ids is None else [*module_ids]))
    return found + [(source, [module_id]) for module_id, source in paths.items()]
