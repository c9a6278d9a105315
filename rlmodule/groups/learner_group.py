"""LearnerGroup: the learners of a run, in this process or each in one of its own."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from catalog.errors import closest, explain_error
from rlmodule.checkpoint import load_checkpoint
from rlmodule.data.episode import Episode
from rlmodule.data.rollout import Rollout
from rlmodule.data.sequences import num_rows
from rlmodule.distributed.remote_learners import Reduce, RemoteLearners, State
from rlmodule.learning.batch_learner import BatchLearner
from rlmodule.learning.learner import Batch, EpisodeLearner, Learner, warn_of_update
from rlmodule.learning.reports import Metrics, merge_metrics
from rlmodule.learning.sharding import shard_batch, shard_episodes, shard_rollout
from rlmodule.learning.update_data import check_batch, check_episodes, num_steps_in
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID, MultiRLModule, RLModule
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec
from rlmodule.settings import LearnerGroupSettings


class LearnerGroup:
    """The learners of a run.

    With ``num_learners=0`` there is one, in this process. Otherwise there are as many processes on Ray, which take the
    same gradient steps on a part of the data each; all have the same weights at any time. What they come to is handed
    over to :attr:`module` after every update, by :meth:`summarize_updates`, and at the latest after 64 calls of
    :meth:`step_on_batch`.

    If a learner dies or hangs, all are made again with the state that was last handed over, and what they did since is
    done again; nothing is lost.

    Args:
        settings: Learning rate, clipping, minibatches, how many.
        learner_class: What learns.
        spec: The modules.
        run_seed: Seed of the run.

    Attributes:
        module: The modules, on the CPU of this process; a learner in this process and on the CPU trains these very
            ones.
        processes: The learners elsewhere; None if there are none.
    """

    def __init__(
        self, settings: LearnerGroupSettings, learner_class: type[Learner], spec: MultiRLModuleSpec, *, run_seed: int
    ) -> None:
        self._learner_class = learner_class
        self.processes: RemoteLearners | None = None
        self._learner: Learner | None = None
        self._counted = {"num_learner_restarts": 0, "num_env_steps_dropped": 0}  # where there are no processes
        self._num_updates: int | None = None  # of the weights that were handed over
        if settings.num_learners:
            self.module: MultiRLModule = spec.build()
            self.processes = RemoteLearners(settings, learner_class, spec, run_seed=run_seed, keep=self._keep)
            return
        self._learner = learner_class(settings, spec, run_seed=run_seed)
        self.module = self._learner.module
        if self._learner.device.type != "cpu":
            self.module = spec.build()
            self._keep(self._learner.get_state())

    @property
    def learner(self) -> Learner:
        """The learner in this process.

        Raises:
            RuntimeError: If there is none.
        """
        if self._learner is None:
            remedy = "Set num_learners=0 to have one here, for example to debug a loss."
            where, got = "LearnerGroup.learner", "learners in processes of their own"
            raise RuntimeError(explain_error(where, expected="a learner in this process", got=got, remedy=remedy))
        return self._learner

    @property
    def num_updates(self) -> int:
        """Gradient steps taken so far: the version of the weights of :attr:`module`."""
        return self.learner.num_updates if self._num_updates is None else self._num_updates

    @property
    def num_restarts(self) -> int:
        """How many learners were made again."""
        return 0 if self.processes is None else self.processes.workers.num_restarts

    @property
    def num_env_steps_dropped(self) -> int:
        """Rows of data that learners elsewhere had no room for, or that they failed on."""
        return 0 if self.processes is None else self.processes.num_env_steps_dropped

    @property
    def seconds_waited(self) -> float:
        """For learners elsewhere, in all."""
        return 0.0 if self.processes is None else self.processes.seconds_waited

    def report(self) -> dict[str, Any]:
        """What a result has on learners under ``workers``; nothing where there are no processes."""
        if self.processes is None:
            return {}
        return {
            "num_learner_restarts_lifetime": self.num_restarts,
            "num_env_steps_dropped_lifetime": self.num_env_steps_dropped,
            "waited_for_learners_s": self.seconds_waited,
        }

    def get_counters(self) -> dict[str, int]:
        """What was counted in the whole run, whichever processes it was in."""
        if self.processes is None:
            return dict(self._counted)
        return {"num_learner_restarts": self.num_restarts, "num_env_steps_dropped": self.num_env_steps_dropped}

    def set_counters(self, counters: Mapping[str, int]) -> None:
        """Restore what :meth:`get_counters` gave."""
        self._counted = {name: counters[name] for name in self._counted}
        if self.processes is not None:
            self.processes.workers.num_restarts = counters["num_learner_restarts"]
            self.processes.num_env_steps_dropped = counters["num_env_steps_dropped"]

    # --- updates ------------------------------------------------------------------------------------------------------

    def update(self, data: Any = None, *, batch: Any = None, episodes: Any = None, **kwargs: Any) -> Any:
        """Deprecated: call :meth:`update_from_episodes` or :meth:`update_from_batch`, whichever the learner has."""
        from_episodes = issubclass(self._learner_class, EpisodeLearner)
        warn_of_update(type(self), "update_from_episodes" if from_episodes else "update_from_batch")
        if data is None:
            data = batch if episodes is None else episodes
        return (self.update_from_episodes if from_episodes else self.update_from_batch)(data, **kwargs)

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
        """See :meth:`EpisodeLearner.update_from_episodes`.

        Args:
            episodes: The data, which is shared out among the learners.
            env_steps: Env steps sampled in the whole run so far; None adds those in the data to the learners' count.
            module_id: Which module learns from it.
            num_epochs: Passes over the data; None takes the setting.
            minibatch_size: Rows of each gradient step of one learner; None takes the setting.
            async_update: Do not wait for learners elsewhere: return a list of the results of updates that were asked
                for earlier and are done by now, each once. If they have two to do already, the data is dropped, and
                counted. A learner in this process is always done at once.
            reduce_fn: What makes one result of the list of those of all learners; by default the first is taken, since
                all tell of the whole.

        Returns:
            The result, or with ``async_update`` a list of results.

        Raises:
            TypeError: If the learner learns from batches.
            KeyError: If there is no module of that id; names those there are.
            WorkerFailed: If a learner elsewhere raises, or fails too often.
        """
        if not issubclass(self._learner_class, EpisodeLearner):
            raise _wrong_data(self._learner_class, "update_from_episodes", "update_from_batch")
        kwargs: dict[str, Any] = {"env_steps": env_steps, "module_id": module_id}
        kwargs |= {"num_epochs": num_epochs, "minibatch_size": minibatch_size}
        if (learner := self._learner) is not None:
            assert isinstance(learner, EpisodeLearner)
            result: Any = learner.update_from_episodes(episodes, **kwargs)
            if self._num_updates is not None:
                self._keep(learner.get_state())
            return _told(result, async_update, reduce_fn)
        check_episodes(episodes, "LearnerGroup.update_from_episodes()")
        split: Any = shard_rollout if isinstance(episodes, Rollout) else shard_episodes
        data = functools.partial(split, episodes), num_steps_in(episodes)
        return self._update_remote("update_from_episodes", data, kwargs, reduce_fn or _first, async_update)

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
            WorkerFailed: If a learner elsewhere raises, or fails too often.
        """
        if not issubclass(self._learner_class, BatchLearner):
            raise _wrong_data(self._learner_class, "update_from_batch", "update_from_episodes")
        if (learner := self._learner) is not None:
            assert isinstance(learner, BatchLearner)
            result = learner.update_from_batch(batch, env_steps=env_steps, module_id=module_id)
            if self._num_updates is not None:
                self._keep(learner.get_state())
            return _told(result, async_update, reduce_fn)
        check_batch(batch, "LearnerGroup.update_from_batch()")
        kwargs = {"env_steps": env_steps, "module_id": module_id}
        data = functools.partial(shard_batch, batch), num_rows(batch)
        return self._update_remote("update_from_batch", data, kwargs, reduce_fn or _first, async_update)

    def step_on_batch(
        self, batch: Batch, *, env_steps: int, module_id: str = DEFAULT_MODULE_ID
    ) -> Mapping[str, Metrics]:
        """See :meth:`BatchLearner.step_on_batch`; the results of several learners are merged by :func:`merge_metrics`.
        Their tensors are on the CPU, or where a learner in this process computes, which nobody waits for.

        Raises:
            TypeError: If the learner learns from episodes.
            KeyError: If there is no module of that id; names those there are.
            WorkerFailed: If a learner elsewhere raises, or fails too often.
        """
        if not issubclass(self._learner_class, BatchLearner):
            raise _wrong_data(self._learner_class, "step_on_batch", "update_from_episodes")
        kwargs = {"env_steps": env_steps, "module_id": module_id}
        if (learner := self._learner) is not None:
            assert isinstance(learner, BatchLearner)
            return learner.step_on_batch(batch, **kwargs)
        data = functools.partial(shard_batch, batch), num_rows(batch)
        return self._update_remote("step_on_batch", data, kwargs, functools.partial(_merged, batch))

    def _update_remote(
        self,
        method: str,
        data: tuple[Callable[[int], Sequence[Any]], int],
        kwargs: dict[str, Any],
        reduce_fn: Reduce,
        async_update: bool = False,
    ) -> Any:
        """Let the learners' ``method`` run on ``data``: a function that splits it among so many, and its rows."""
        assert self.processes is not None
        self.module[kwargs["module_id"]]  # raises if there is none
        (split, rows), update = data, self.processes.update_later if async_update else self.processes.update
        return update(method, split(self.processes.workers.size), kwargs, rows, reduce_fn)

    def summarize_updates(self, history: Sequence[Mapping[str, Metrics]]) -> dict[str, dict[str, float]]:
        """See :meth:`BatchLearner.summarize_updates`, of what :meth:`step_on_batch` returned. Learners elsewhere, or on
        a GPU, hand over their weights, too.

        Raises:
            TypeError: If the learner learns from episodes.
            WorkerFailed: If a learner elsewhere raises, or fails too often.
        """
        if not issubclass(self._learner_class, BatchLearner):
            raise _wrong_data(self._learner_class, "summarize_updates", "update_from_episodes")
        if self.processes is not None:
            return self.processes.call("summarize_updates", history) if history else {}
        assert isinstance(self._learner, BatchLearner)
        summary = self._learner.summarize_updates(history)
        if self._num_updates is not None:
            self._keep(self._learner.get_state())
        return summary

    # --- modules ------------------------------------------------------------------------------------------------------

    def get_module(self, module_id: str) -> RLModule:
        """The module that is being trained, or the copy of it in this process.

        Raises:
            KeyError: If there is none of that id; names those there are.
        """
        return self.module[module_id]

    def add_module(self, module_id: str, spec: RLModuleSpec) -> None:
        """Let a further module be trained from now on. Its weights go by the run's seed and its id.

        Raises:
            ValueError: If there is one of that id, or the id cannot be one.
            TypeError: If it lacks an ability that the learner requires.
            WorkerFailed: If learners elsewhere cannot take it.
        """
        if self._learner is not None:
            self._learner.add_module(module_id, spec)
            if self._num_updates is not None:
                self._add_copy(module_id, spec)
                self._keep(self._learner.get_state())
            return
        assert self.processes is not None
        self._add_copy(module_id, spec)
        try:
            self.processes.call("add_module", module_id, spec)
        except BaseException:
            self.module.remove(module_id)
            raise

    def _add_copy(self, module_id: str, spec: RLModuleSpec) -> None:
        with torch.random.fork_rng(devices=[]):  # its weights are replaced, and shall cost no random numbers
            self.module.add(module_id, spec.build())

    def remove_module(self, module_id: str) -> None:
        """Forget a module.

        Raises:
            KeyError: If there is none of that id; names those there are.
            WorkerFailed: If learners elsewhere fail too often.
        """
        self.module[module_id]  # which tells if there is none
        if self.processes is not None:
            self.processes.call("remove_module", module_id)
        else:
            self.learner.remove_module(module_id)
        if module_id in self.module:  # a copy
            self.module.remove(module_id)

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
            saved = _saved_modules(source)
            for module_id in wanted:
                self.module[module_id].check_state(_of(saved, module_id, source))
                states[module_id] = saved[module_id]
        for module_id, state in states.items():
            if self.processes is not None:
                self.processes.call("load_module_state", module_id, state)
            else:
                self.learner.load_module_state(module_id, state)
        if self._learner is not None and self._num_updates is not None:
            self._keep(self._learner.get_state())

    # --- state --------------------------------------------------------------------------------------------------------

    def _keep(self, state: State) -> None:
        """Take over what learners with memory of their own came to."""
        self._num_updates = state["num_updates"]
        self.module.set_state({name: saved for name, saved in state["module"].items() if name in self.module})

    def get_state(self) -> State:
        """State of the learners, which is one and the same. If they failed for good: what they handed over last.

        Raises:
            WorkerFailed: If learners elsewhere fail too often while it waits for them.
        """
        if self.processes is None:
            return self.learner.get_state()
        state = self.processes.get_state()
        # what this process set in its copy, such as how much to explore, counts
        return state | {"module": self.module.get_state()} if self.processes.has_handed_over else state

    def set_state(self, state: State) -> None:
        """Restore what :meth:`get_state` gave."""
        if self.processes is not None:
            self.processes.call("set_state", state)
            return
        self.learner.set_state(state)
        if self._num_updates is not None:
            self._keep(state)

    def stop(self) -> None:
        """End the processes."""
        if self.processes is not None:
            self.processes.stop()


def _told(result: Any, async_update: bool, reduce_fn: Reduce | None) -> Any:
    """The result of the one learner that there is."""
    if reduce_fn is not None:
        result = reduce_fn([result])
    return [result] if async_update else result


def _first(results: list[Any]) -> Any:
    return results[0]


def _merged(batch: Batch, results: list[Any]) -> Any:
    return {module_id: merge_metrics([one[module_id] for one in results], batch) for module_id in results[0]}


def _sources(
    path: str | os.PathLike[str] | None,
    module_ids: Sequence[str] | None,
    paths: Mapping[str, str | os.PathLike[str]],
    there: Sequence[str],
) -> list[tuple[str | os.PathLike[str], list[str]]]:
    """Which modules to take from which checkpoint."""
    where = "load_modules()"
    if twice := [module_id for module_id in module_ids or () if module_id in paths]:
        got = f"{', '.join(map(repr, twice))} in both module_ids and paths"
        remedy = f"Leave {', '.join(map(repr, twice))} out of one of them."
        raise ValueError(explain_error(where, expected="one place for each module", got=got, remedy=remedy))
    if path is None and (module_ids is not None or not paths):
        got = "none" if module_ids is None else f"module_ids={list(module_ids)!r} without one"
        remedy = "Pass the folder that algo.save(path) wrote, or paths={module_id: folder}."
        raise ValueError(explain_error(where, expected="a checkpoint to load from", got=got, remedy=remedy))
    found: list[tuple[str | os.PathLike[str], list[str]]] = []
    if path is not None:
        found.append((path, [name for name in there if name not in paths] if module_ids is None else [*module_ids]))
    return found + [(source, [module_id]) for module_id, source in paths.items()]


def _saved_modules(path: str | os.PathLike[str]) -> dict[str, dict[str, Tensor]]:
    content = load_checkpoint(path)
    if "state" not in content or "learners" not in content["state"]:
        where, got = f"load_modules({str(path)!r})", f"one with {', '.join(content) or 'nothing'}"
        remedy = "Pass the folder that algo.save(path) wrote."
        raise ValueError(explain_error(where, expected="the checkpoint of an algorithm", got=got, remedy=remedy))
    return content["state"]["learners"]["module"]


def _of(saved: dict[str, dict[str, Tensor]], module_id: str, source: str | os.PathLike[str]) -> dict[str, Tensor]:
    if module_id not in saved:
        where, remedy = f"load_modules({str(source)!r})", f"Name a module that it has.{closest(module_id, saved)}"
        expected, got = f"one of {', '.join(saved)}, which this checkpoint has", repr(module_id)
        raise KeyError(explain_error(where, expected=expected, got=got, remedy=remedy))
    return saved[module_id]


def _wrong_data(learner_class: type[Learner], called: str, right: str) -> TypeError:
    return TypeError(
        explain_error(
            f"LearnerGroup.{called}()",
            expected=f"a learner that offers {called}",
            got=f"{learner_class.__name__}, which does not",
            remedy=f"Call {right}() for this algorithm.",
        )
    )
