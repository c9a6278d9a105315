"""Algorithm: builds the parts of a run from a config and turns iterations into results."""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from algorithms.registry import config_class
from catalog.errors import explain_error
from rlmodule import DEFAULT_MODULE_ID, EnvRunnerGroup, LearnerGroup, RLModule, RLModuleSpec, Rollout
from rlmodule.checkpoint import load_checkpoint, save_checkpoint
from rlmodule.metrics import RunMetrics, episode_summary
from rlmodule.policy import Policy
from rlmodule.randomness import int_seed, torch_stream

if TYPE_CHECKING:
    from typing_extensions import Self

    from algorithms.config import AlgorithmConfig

SMALL_NET = 1_000_000
"""Parameters below which one thread is faster than handing the work out to several."""


class Algorithm(ABC):
    """A run: samples, learns, evaluates, saves.

    Override points:
        ``training_step``: what one iteration does.

    Args:
        config: A validated config; usually through ``config.build()``.
    """

    def __init__(self, config: AlgorithmConfig) -> None:
        self.config = config
        self.run_seed = secrets.randbits(31) if config.seed is None else config.seed
        with torch.random.fork_rng(devices=[]):
            # module construction draws from torch's global generator; everything after has streams of its own
            torch.manual_seed(int_seed(self.run_seed, "module"))
            self.env_runner_group = EnvRunnerGroup(config, run_seed=self.run_seed)
            try:
                self.module_spec, self.learner_group = self._build_modules()
            except BaseException:
                self.env_runner_group.stop()
                raise
        self.policy = Policy(self.env_runner_group.local_runner.module, torch_stream(self.run_seed, "policy"))
        """Acts with the current weights: ``action, state = algo.policy.act(obs)``."""
        self.metrics = RunMetrics(config.metrics_num_episodes_for_smoothing)
        self._evaluation_group: EnvRunnerGroup | None = None
        torch.set_num_threads(self._num_threads())

    def _build_modules(self) -> tuple[RLModuleSpec, LearnerGroup]:
        runners, config = self.env_runner_group, self.config
        spec = config.get_rl_module_spec(runners.observation_space, runners.action_space)
        learner_class = config.learner_class or config.default_learner_class()
        learners = LearnerGroup(config, learner_class, spec.as_multi(DEFAULT_MODULE_ID), run_seed=self.run_seed)
        runners.build_modules(spec, learners.get_module(DEFAULT_MODULE_ID))
        return spec, learners

    def _num_threads(self) -> int:
        if self.config.torch_num_threads is not None:
            return self.config.torch_num_threads
        size = sum(p.numel() for p in self.get_module().parameters())
        return 1 if size < SMALL_NET else torch.get_num_threads()

    @abstractmethod
    def training_step(self) -> dict[str, dict[str, Any]]:
        """One iteration: sample, learn.

        Returns:
            Sections of the result: ``learners`` (numbers by module id), seconds by phase under ``timers``, and what
            else there is to tell.
        """

    @property
    def env_steps(self) -> int:
        """Env steps sampled in the whole run."""
        return self.metrics.env_steps

    def sample(self) -> Rollout:
        """One train batch from the env runners, counted."""
        rollouts = []
        for rollout in self.env_runner_group.sample(
            self.config.get_rollout_fragment_length(), policy_version=self.learner_group.num_updates
        ):
            self.metrics.add_rollout(rollout)
            rollouts.append(rollout)
        return Rollout.concat(rollouts)

    def train(self) -> dict[str, Any]:
        """One iteration.

        Returns:
            Nested dict: ``env_runners`` (returns, lengths, step counts), ``learners`` by module id, ``timers`` in
            seconds, ``training_iteration``, ``time_total_s``, and ``evaluation`` in iterations that evaluate.
        """
        start = perf_counter()
        sections = self.training_step()
        if not isinstance(sections, dict):
            where, got = f"{type(self).__name__}.training_step()", type(sections).__name__
            remedy = "Return {'learners': ...}."
            raise TypeError(explain_error(where, expected="a dict of sections of the result", got=got, remedy=remedy))
        self.metrics.add_timers(sections.pop("timers", {}))
        result = self.metrics.finish_iteration(perf_counter() - start) | sections
        interval = self.config.evaluation_interval
        if interval is not None and self.metrics.iterations % interval == 0:
            start = perf_counter()
            result["evaluation"] = self.evaluate()
            self.metrics.seconds += perf_counter() - start
            result["time_total_s"] = self.metrics.seconds
        return result

    def learn(
        self, *, num_env_steps: int, target_return: float | None = None, progress: bool = False
    ) -> dict[str, Any]:
        """Call :meth:`train` until ``num_env_steps`` more steps are sampled or ``target_return`` is reached.

        With ``run_dir`` set, progress.jsonl grows as it goes, and the checkpoint and learning_curve.png stand there
        at the end. Ctrl-C finishes the running iteration, saves (below ``runs/`` if there is no ``run_dir``) and
        returns; a second one interrupts at once.

        Args:
            num_env_steps: Steps to sample from now on, over all envs.
            target_return: Stop once the mean return of an evaluation, or of recent training episodes if
                ``evaluation_interval`` is None, is at least this.
            progress: Show a live display (on a terminal).

        Returns:
            The last iteration's result.

        Raises:
            OSError: If ``run_dir`` cannot be written to, or holds another run.
            KeyboardInterrupt: On the second Ctrl-C.
            SystemExit: With code 143, after saving, on SIGTERM.
        """
        from algorithms.session import TrainingSession

        return TrainingSession(self, num_env_steps, target_return, progress).run()

    def evaluate(self) -> dict[str, Any]:
        """Play ``evaluation_duration`` episodes in envs of their own, each on a fresh seed.

        Every env plays an equal share of them, so that short episodes are not counted more often than long ones.

        Raises:
            RuntimeError: If episodes do not end.
        """
        runner = self._make_evaluation_group().local_runner
        runner.reset()
        episodes, envs = self.config.evaluation_duration, runner.num_envs
        wanted = [episodes // envs + (slot < episodes % envs) for slot in range(envs)]
        returns: list[float] = []
        lengths: list[int] = []
        since_end = 0
        while any(wanted):
            stats = runner.sample(EVALUATION_FRAGMENT, explore=self.config.evaluation_explore).stats
            since_end = 0 if len(stats["episode_slots"]) else since_end + EVALUATION_FRAGMENT
            if since_end > EVALUATION_LIMIT:
                raise RuntimeError(
                    explain_error(
                        "evaluate()",
                        expected="episodes that end",
                        got=f"none that did in the last {EVALUATION_LIMIT:,} steps of {envs} envs",
                        remedy="Limit their length: gymnasium.wrappers.TimeLimit, or max_episode_steps.",
                    )
                )
            finished = zip(stats["episode_slots"], stats["episode_returns"], stats["episode_lengths"], strict=True)
            for slot, episode_return, length in finished:
                if wanted[slot]:
                    wanted[slot] -= 1
                    returns.append(float(episode_return))
                    lengths.append(int(length))
        return {"env_runners": episode_summary(returns, lengths) | {"num_episodes": len(returns)}}

    def _make_evaluation_group(self) -> EnvRunnerGroup:
        if self._evaluation_group is None:
            with torch.random.fork_rng(devices=[]):
                self._evaluation_group = EnvRunnerGroup(self.config, run_seed=self.run_seed, role="evaluation_env")
                self._evaluation_group.build_modules(self.module_spec, self.get_module())
        return self._evaluation_group

    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> RLModule:
        """The learner's module: the weights being trained, value function included."""
        return self.learner_group.get_module(module_id)

    def explain(self) -> str:
        """The catalog's path through its decision tree; see :meth:`catalog.Catalog.explain`."""
        return self.get_module().catalog.explain()

    def get_state(self) -> dict[str, Any]:
        """Everything that evolves: a tree of tensors and JSON-able values."""
        state = {
            "learners": self.learner_group.get_state(),
            "env_runners": self.env_runner_group.get_state(),
            "metrics": self.metrics.get_state(),
            "policy": self.policy.generator.get_state(),
        }
        if self._evaluation_group is not None:
            state["evaluation"] = self._evaluation_group.get_state()
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`get_state` gave. Envs start new episodes."""
        self.learner_group.set_state(state["learners"])
        self.env_runner_group.set_state(state["env_runners"])
        self.metrics.set_state(state["metrics"])
        self.policy.generator.set_state(state["policy"])
        if "evaluation" in state:
            self._make_evaluation_group().set_state(state["evaluation"])

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a checkpoint folder: tensors in safetensors, the rest in JSON. See :func:`save_checkpoint`."""
        content = {
            "algorithm": type(self).__name__,
            "run_seed": self.run_seed,
            "config": self.config.to_dict(),
            "state": self.get_state(),
        }
        return save_checkpoint(path, content)

    @staticmethod
    def from_checkpoint(path: str | os.PathLike[str], *, allow: Sequence[str] = (), **objects: Any) -> Algorithm:
        """The algorithm that was saved at ``path``, ready to go on.

        Args:
            path: The folder that :meth:`save` wrote.
            allow: Import paths (``"my_package"``, ``"my_module:MyCatalog"``) that the checkpoint may import besides
                this library's own; nothing else is imported.
            **objects: Settings that could not be saved or shall differ, such as ``env=my_factory``.

        Raises:
            FileNotFoundError, ValueError: If there is no checkpoint, it is damaged, needs an import that is not
                allowed, or a setting that must be passed again.
        """
        content = load_checkpoint(path)
        config = config_class(content["algorithm"]).from_dict(content["config"], allow=list(allow), **objects)
        if config.seed is None:
            config.seed = content["run_seed"]
        algorithm = config.build()
        algorithm.set_state(content["state"])
        return algorithm

    def stop(self) -> None:
        """Close all envs."""
        self.env_runner_group.stop()
        if self._evaluation_group is not None:
            self._evaluation_group.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


EVALUATION_FRAGMENT = 64
"""Steps per call of the runner while evaluating; a few may be played in vain at the end."""
EVALUATION_LIMIT = 200_000
"""Steps per env without the end of an episode after which an evaluation gives up."""
