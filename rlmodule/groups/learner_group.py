"""LearnerGroup: the learners of a run, in this process or in other processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from catalog.hooks import check_constructor
from catalog_rl import closest
from rlmodule.checkpoint import load_checkpoint
from rlmodule.data.columns import Batch
from rlmodule.distributed.restarts import WorkerAccounts
from rlmodule.learning.batch_learner import BatchLearner
from rlmodule.learning.episode_learner import EpisodeLearner
from rlmodule.learning.learner import Learner
from rlmodule.learning.reports import Metrics
from rlmodule.learning.update_data import ModuleData, check_counts, warn_of_update
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID, MultiRLModule, RLModule
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec
from rlmodule.sealed_folder import StrPath
from rlmodule.settings import LearnerSettings

if TYPE_CHECKING:
    from rlmodule.distributed.ray_workers import RayWorkers

Kwargs = dict[str, Any]
Reduce = Callable[[list[Any]], Any]


class LearnerGroup(ABC):
    """The learners of a run. :meth:`create` builds the group for the settings: a :class:`LocalLearnerGroup` with one
    learner, in this process, or a :class:`RemoteLearnerGroup` with learners in other processes, which take the same
    gradient steps, each on its share of the data. All learners have the same weights at any time.

    The weights are copied to :attr:`module` after every update and by :meth:`summarize_updates`. With processes,
    they are also copied after at most 64 calls of :meth:`step_on_batch`. If a learner process dies or hangs, all
    learners are restarted with their last full state, and repeat the updates since then. No update is lost. The full
    state includes the optimizers. It comes with each update for which the caller waits; with asynchronous updates and
    :meth:`step_on_batch`, it comes after 64 updates or 256 MiB of their data, which is kept until then.

    An update from episodes takes the data of one module, or a dict of data by module id. The modules learn in the order
    of their ids, each with its own settings.

    Updates have these arguments; updates from batches have neither ``num_epochs`` nor ``minibatch_size``:
        ``env_steps``: The count of env steps of the run at which schedules are read. For episodes, it is that before
        they were sampled. None takes the learners' own count, to which they add the steps of the data.
        ``module_id``: Id of the module that learns.
        ``num_epochs``: Passes over the data; None takes the setting.
        ``minibatch_size``: Rows in each gradient step of one learner; None takes the setting.
        ``async_update``: Do not wait for learners in other processes. The call then returns a list of the results of
        earlier updates that have finished. Each result is returned only once. If two updates are unfinished, the data
        is dropped and counted in ``num_env_steps_dropped``. Check :attr:`has_room` first. A learner in this process
        updates at once, and the list has its result.
        ``reduce_fn``: A function that turns the list of all learners' results into one result. By default, the first
        result is returned, since each covers the data of all learners.

    The class has no methods to override.

    Attributes:
        module: The modules, on the CPU of this process. A learner that is in this process and on the CPU trains these
            modules themselves; otherwise they are copies.
        accounts: What the learners have cost the run: their restarts.
        num_env_steps_dropped: Rows of data that were dropped because learners in other processes were busy or raised.
    """

    module: MultiRLModule
    _has_copies: bool  # whether `module` has copies of the learners' weights

    def __init__(self, learner_class: type[Learner]) -> None:
        self._learner_class, self.accounts, self.num_env_steps_dropped = learner_class, WorkerAccounts(), 0

    @staticmethod
    def create(
        settings: LearnerSettings, learner_class: type[Learner], spec: MultiRLModuleSpec, *, run_seed: int
    ) -> LearnerGroup:
        """Build the learners of a run: one in this process if ``settings.num_learners`` is 0, otherwise that many in
        other processes.

        Args:
            settings: The settings of the learners.
            learner_class: Class of each learner.
            spec: Specs of the modules.
            run_seed: Seed of the run.

        Raises:
            WorkerFailed: If a learner in another process cannot be built.
            TypeError: If the constructor of ``learner_class`` has other arguments than that of :class:`Learner`, or
                does not call it.
        """
        check_constructor(learner_class, Learner)
        if settings.num_learners:
            from rlmodule.groups.remote_learner_group import RemoteLearnerGroup

            return RemoteLearnerGroup(settings, learner_class, spec, run_seed=run_seed)
        return LocalLearnerGroup(settings, learner_class, spec, run_seed=run_seed)

    @property
    @abstractmethod
    def learner(self) -> Learner:
        """The learner in this process.

        Raises:
            RuntimeError: If the learners are in other processes.
        """

    @property
    @abstractmethod
    def num_updates(self) -> int:
        """Number of gradient steps that led to the weights in :attr:`module`. It is the version of these weights."""

    @property
    def processes(self) -> list[RayWorkers]:
        """The learner processes, for :func:`wait_for_any`: a list of one, or empty for a learner in this process."""
        return []

    # --- updates ------------------------------------------------------------------------------------------------------

    def _wrong_kind(self, called: str) -> TypeError:
        """Return the error to raise when the user calls method ``called``, which the learner class does not support."""
        right = "update_from_batch" if called == "update_from_episodes" else "update_from_episodes"
        return TypeError(
            f"LearnerGroup.{called}(): expected a learner that offers {called}, got "
            f"{self._learner_class.__name__}, which does not. Call {right}() for this algorithm."
        )

    def update(self, data: Any = None, *, batch: Any = None, episodes: Any = None, **kwargs: Any) -> Any:
        """Return the result of :meth:`update_from_episodes` or :meth:`update_from_batch`, whichever the learner class
        has. This method is deprecated and warns.

        Args:
            data, batch, episodes: Three names for the same argument, the data. Give exactly one.
            **kwargs: The other arguments of the method that is called.
        """
        from_episodes = issubclass(self._learner_class, EpisodeLearner)
        right = self.update_from_episodes if from_episodes else self.update_from_batch
        warn_of_update(type(self), right.__name__)
        given = [argument for argument in (data, batch, episodes) if argument is not None]
        if len(given) != 1:
            raise TypeError(
                f"LearnerGroup.update(): expected the data once, got it {len(given)} times. Call "
                f"{right.__name__}(data)."
            )
        return right(*given, **kwargs)

    @abstractmethod
    def update_from_episodes(
        self,
        episodes: ModuleData | Mapping[str, ModuleData],
        *,
        env_steps: int | None = None,
        module_id: str = DEFAULT_MODULE_ID,
        num_epochs: int | None = None,
        minibatch_size: int | None = None,
        async_update: bool = False,
        reduce_fn: Reduce | None = None,
    ) -> Any:
        """Learn from a rollout or episodes. The class documents the arguments and what ``async_update`` and
        ``reduce_fn`` return; :meth:`EpisodeLearner.update_from_episodes` documents the result of a learner.

        Raises:
            TypeError: If the learner learns from batches.
            KeyError: If the group has no module with a given id; names the known ids.
            WorkerFailed: If a learner in another process raises, or dies more often than it may be restarted.
        """

    def _episode_kwargs(
        self, env_steps: int | None, module_id: str, num_epochs: int | None, minibatch_size: int | None
    ) -> Kwargs:
        """Return the arguments of the learners' ``update_from_episodes``. Raise if they, or the call, are wrong."""
        if not issubclass(self._learner_class, EpisodeLearner):
            raise self._wrong_kind("update_from_episodes")
        kwargs: Kwargs = {"num_epochs": num_epochs, "minibatch_size": minibatch_size}
        if num_epochs is not None or minibatch_size is not None:
            check_counts(kwargs, "update_from_episodes()")  # before anything is sent to another process
        return kwargs | {"env_steps": env_steps, "module_id": module_id}

    def update_from_batch(
        self,
        batch: Batch,
        *,
        env_steps: int | None = None,
        module_id: str = DEFAULT_MODULE_ID,
        async_update: bool = False,
        reduce_fn: Reduce | None = None,
    ) -> Any:
        """Take one gradient step on a batch and return the result; see :meth:`BatchLearner.update_from_batch`.

        Args:
            batch: The data, which is divided among the learners.
            env_steps, module_id, async_update, reduce_fn: See the class.

        Raises:
            TypeError: If the learner learns from episodes.
            KeyError: If no module has that id; names the known ids.
            WorkerFailed: If a learner in another process raises, or dies more often than it may be restarted.
        """
        if not issubclass(self._learner_class, BatchLearner):
            raise self._wrong_kind("update_from_batch")
        kwargs = {"env_steps": env_steps, "module_id": module_id}
        return self._update("update_from_batch", batch, kwargs, async_update, reduce_fn)

    def step_on_batch(
        self, batch: Batch, *, env_steps: int, module_id: str = DEFAULT_MODULE_ID
    ) -> Mapping[str, Metrics]:
        """Take one gradient step on a batch without waiting for the results; see :meth:`BatchLearner.step_on_batch`.

        :func:`merge_metrics` merges the results of several learners.

        Args:
            batch: The data, which is divided among the learners.
            env_steps, module_id: See the class.

        Returns:
            The results by module id: tensors on the CPU, or on the device of a learner in this process. The call does
            not wait for that device.

        Raises:
            TypeError: If the learner learns from episodes.
            KeyError: If no module has that id; names the known ids.
            WorkerFailed: If a learner in another process raises, or dies more often than it may be restarted.
        """
        if not issubclass(self._learner_class, BatchLearner):
            raise self._wrong_kind("step_on_batch")
        return self._update("step_on_batch", batch, {"env_steps": env_steps, "module_id": module_id})

    def summarize_updates(self, history: Sequence[Mapping[str, Metrics]]) -> dict[str, dict[str, float]]:
        """Summarize the results of :meth:`step_on_batch`; see :meth:`BatchLearner.summarize_updates`.

        :attr:`module` has the latest weights afterwards.

        Args:
            history: The results of the steps, in order.

        Returns:
            The numbers to report, by module id; empty if ``history`` is empty.

        Raises:
            TypeError: If the learner learns from episodes.
            WorkerFailed: If a learner in another process raises, or dies more often than it may be restarted.
        """
        if not issubclass(self._learner_class, BatchLearner):
            raise self._wrong_kind("summarize_updates")
        return self._call("summarize_updates", history) if history else {}

    @abstractmethod
    def _update(
        self, method: str, data: Any, kwargs: Kwargs, async_update: bool = False, reduce_fn: Reduce | None = None
    ) -> Any:
        """Call ``method``, which updates the learners, on all learners. Each gets its share of ``data``, and the same
        other arguments. Return the result as the class documents."""

    @property
    @abstractmethod
    def has_room(self) -> bool:
        """Whether an update with ``async_update`` would be done now, and not dropped: always for a learner in this
        process.

        Raises:
            WorkerFailed: If a learner in another process raised, or died more often than it may be restarted.
        """

    @property
    @abstractmethod
    def num_unfinished(self) -> int:
        """Number of updates that were begun, and whose weights are not in :attr:`module` yet."""

    @abstractmethod
    def wait_for_room(self) -> None:
        """Wait until :attr:`has_room`.

        Raises:
            WorkerFailed: See :attr:`has_room`.
        """

    @abstractmethod
    def _call(self, method: str, *args: Any) -> Any:
        """Call ``method`` with the same arguments on all learners, and copy the new weights to :attr:`module`. Return
        the result of the first learner."""

    # --- modules ------------------------------------------------------------------------------------------------------

    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> RLModule:
        """Return a module of :attr:`module` by its id.

        Raises:
            KeyError: If no module has that id; names the known ids.
        """
        return self.module[module_id]

    def add_module(
        self, module_id: str, spec: RLModuleSpec, train: bool = True, weights: Mapping[str, Tensor] | None = None
    ) -> None:
        """Add a module to all learners.

        Args:
            module_id: Id of the new module.
            spec: Spec of the new module.
            train: Whether it is trained from now on. If not, it has no optimizer and gets no gradient.
            weights: Its weights, from the ``get_state()`` of a module. By default, the initial weights depend only on
                the run's seed and on the id.

        Raises:
            ValueError: If a module has that id already, or the id is not allowed.
            TypeError: If the module lacks an API that the learner requires.
            WorkerFailed: If learners in other processes cannot add it.
        """
        if self._has_copies:
            with torch.random.fork_rng(devices=[]):  # the learners' weights replace these random ones
                self.module.add(module_id, spec.build())
        try:
            self._call("add_module", module_id, spec, train)
            if weights is not None:
                self._call("load_module_state", module_id, weights)
        except BaseException:
            if self._has_copies:
                self.module.remove(module_id)
            raise

    def remove_module(self, module_id: str) -> None:
        """Remove a module and the state of its optimizer from all learners.

        Raises:
            KeyError: If no module has that id; names the known ids.
            WorkerFailed: If learners in other processes fail too often.
        """
        self.module[module_id]  # raises KeyError for an unknown id
        self._call("remove_module", module_id)
        if self._has_copies:
            self.module.remove(module_id)

    def load_modules(
        self,
        path: StrPath | None = None,
        *,
        module_ids: Sequence[str] | None = None,
        paths: Mapping[str, StrPath] | None = None,
    ) -> None:
        """Load the weights of modules from checkpoints. Optimizers keep their state. If the call raises because of its
        arguments or a checkpoint, no weights have changed.

        Args:
            path: A checkpoint that ``algorithm.save()`` wrote.
            module_ids: Ids of the modules to load from ``path``; None loads all modules of this group except those in
                ``paths``.
            paths: Checkpoints of single modules, by module id.

        Raises:
            FileNotFoundError: If a checkpoint does not exist.
            KeyError: If this group or the checkpoint lacks a module; names the known ids.
            ValueError: If no checkpoint is named, a module is named twice, a checkpoint is damaged, or its weights do
                not fit the module.
        """
        sources = {module_id: Path(source) for module_id, source in (paths or {}).items()}
        if twice := [module_id for module_id in module_ids or () if module_id in sources]:
            raise ValueError(
                f"load_modules(): expected one checkpoint for each module, got {', '.join(map(repr, twice))} in "
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

    @abstractmethod
    def get_state(self) -> dict[str, Any]:
        """Return the state of the learners, which is the same for all of them.

        If learners in other processes have failed for good, return the last full state that they sent, with the
        weights of :attr:`module`, which may be newer.

        Raises:
            WorkerFailed: If learners in other processes fail too often during the call.
        """

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that :meth:`get_state` returned."""
        self._call("set_state", state)

    @abstractmethod
    def report(self) -> dict[str, Any]:
        """Return the entries about learner processes in the ``workers`` section of a result; empty without them."""

    def get_counters(self) -> dict[str, int]:
        """Return the counters of the whole run: ``num_learner_restarts`` and ``num_env_steps_dropped``."""
        return {
            "num_learner_restarts": self.accounts.num_restarts,
            "num_env_steps_dropped": self.num_env_steps_dropped,
        }

    def set_counters(self, counters: Mapping[str, int]) -> None:
        """Restore the counters that :meth:`get_counters` returned, here or in a group with a different
        ``num_learners``."""
        self.accounts.num_restarts = counters["num_learner_restarts"]
        self.num_env_steps_dropped = counters["num_env_steps_dropped"]

    @abstractmethod
    def stop(self) -> None:
        """End the learner processes, if the group has any."""


class LocalLearnerGroup(LearnerGroup):
    """One learner, in this process.

    Args:
        settings, learner_class, spec, run_seed: See :meth:`LearnerGroup.create`.
    """

    def __init__(
        self, settings: LearnerSettings, learner_class: type[Learner], spec: MultiRLModuleSpec, *, run_seed: int
    ) -> None:
        super().__init__(learner_class)
        self._learner: Any = learner_class(settings, spec, run_seed=run_seed)
        self._has_copies = self._learner.device.type != "cpu"
        self.module = spec.build() if self._has_copies else self._learner.module
        if self._has_copies:
            self._copy_weights()

    def _copy_weights(self) -> None:
        """Copy the weights of the learner on the GPU to :attr:`module`."""
        self._num_updates = self._learner.num_updates
        self.module.set_state(self._learner.module.get_state())

    @property
    def learner(self) -> Learner:
        return self._learner

    @property
    def num_updates(self) -> int:
        return self._num_updates if self._has_copies else self._learner.num_updates

    def update_from_episodes(
        self,
        episodes: ModuleData | Mapping[str, ModuleData],
        *,
        env_steps: int | None = None,
        module_id: str = DEFAULT_MODULE_ID,
        num_epochs: int | None = None,
        minibatch_size: int | None = None,
        async_update: bool = False,
        reduce_fn: Reduce | None = None,
    ) -> Any:
        kwargs = self._episode_kwargs(env_steps, module_id, num_epochs, minibatch_size)
        return self._finish(self._learner.update_from_episodes(episodes, **kwargs), async_update, reduce_fn)

    def _finish(self, result: Any, async_update: bool = False, reduce_fn: Reduce | None = None) -> Any:
        """If :attr:`module` is a copy, copy the learner's weights to it. Return ``result``, or ``reduce_fn([result])``
        if there is a ``reduce_fn``. With ``async_update``, return that in a list of one."""
        if self._has_copies:
            self._copy_weights()
        result = result if reduce_fn is None else reduce_fn([result])
        return [result] if async_update else result

    def _update(
        self, method: str, data: Any, kwargs: Kwargs, async_update: bool = False, reduce_fn: Reduce | None = None
    ) -> Any:
        result = getattr(self._learner, method)(data, **kwargs)
        # copying the weights after each single step would wait for the GPU
        return result if method == "step_on_batch" else self._finish(result, async_update, reduce_fn)

    @property
    def has_room(self) -> bool:
        return True

    @property
    def num_unfinished(self) -> int:
        return 0

    def wait_for_room(self) -> None:
        """Do nothing: the learner updates when it is called."""

    def _call(self, method: str, *args: Any) -> Any:
        return self._finish(getattr(self._learner, method)(*args))

    def get_state(self) -> dict[str, Any]:
        return self._learner.get_state()

    def report(self) -> dict[str, Any]:
        return {}

    def stop(self) -> None:
        """Do nothing: there are no processes."""


def _saved_modules(path: Path) -> dict[str, dict[str, Tensor]]:
    """Return the states of the modules in the checkpoint of an algorithm at ``path``, by module id.

    Raises:
        ValueError: If the checkpoint is not of an algorithm.
    """
    content = load_checkpoint(path)
    if "learners" not in content.get("state", ()):
        raise ValueError(
            f"load_modules({str(path)!r}): expected the checkpoint of an algorithm, got one with "
            f"{', '.join(content) or 'nothing'}. Pass the folder that algo.save(path) wrote."
        )
    return content["state"]["learners"]["module"]
