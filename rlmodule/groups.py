"""Groups of env runners and of learners, as an algorithm sees them. Here: one of each, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gymnasium.vector import VectorEnv

from catalog.errors import explain_error
from rlmodule.env_runner import EnvRunner
from rlmodule.episode import Episode
from rlmodule.learner import Batch, BatchLearner, EpisodeLearner, Learner, Metrics
from rlmodule.module import RLModule
from rlmodule.rollout import Rollout
from rlmodule.settings import LearnerSettings, RunnerSettings
from rlmodule.specs import MultiRLModuleSpec, RLModuleSpec


class EnvRunnerGroup:
    """The env runners of a run.

    Args:
        settings: Which env, how many, how vectorised.
        run_seed: Seed of the run.
        role: ``"env"`` or ``"evaluation_env"``.
        on_env: Told of every vector env once it is made; if it raises, that is closed again.
    """

    def __init__(
        self,
        settings: RunnerSettings,
        *,
        run_seed: int,
        role: str = "env",
        on_env: Callable[[VectorEnv[Any, Any, Any]], None] | None = None,
    ) -> None:
        self.local_runner = EnvRunner(settings, run_seed=run_seed, role=role, on_env=on_env)
        self.observation_space = self.local_runner.observation_space
        self.action_space = self.local_runner.action_space

    def build_modules(self, spec: RLModuleSpec, learner_module: RLModule) -> None:
        """Give each runner an inference-only module; the local one shares the learner's tensors."""
        module = spec.build(inference_only=True)
        module.share_tensors_of(learner_module)
        self.local_runner.set_module(module)

    def sample(self, num_steps: int, *, explore: bool = True, policy_version: int = 0) -> Iterator[Rollout]:
        """Rollouts of ``num_steps`` rows, one per runner, as they are ready."""
        yield self.local_runner.sample(num_steps, explore=explore, policy_version=policy_version)

    def get_state(self) -> dict[str, Any]:
        """State of each runner."""
        return {"0": self.local_runner.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`get_state` gave."""
        self.local_runner.set_state(state["0"])

    def stop(self) -> None:
        """Close all envs."""
        self.local_runner.stop()


class LearnerGroup:
    """The learners of a run.

    Args:
        settings: Learning rate, clipping, minibatches.
        learner_class: What learns.
        spec: The modules.
        run_seed: Seed of the run.
    """

    def __init__(
        self, settings: LearnerSettings, learner_class: type[Learner], spec: MultiRLModuleSpec, *, run_seed: int
    ) -> None:
        self.learner = learner_class(settings, spec, run_seed=run_seed)

    @property
    def num_updates(self) -> int:
        """Gradient steps taken so far: the version of the weights."""
        return self.learner.num_updates

    def update_from_episodes(
        self, rollouts: Rollout | Sequence[Episode], *, env_steps: int
    ) -> dict[str, dict[str, float]]:
        """See :meth:`EpisodeLearner.update_from_episodes`.

        Raises:
            TypeError: If the learner learns from batches.
        """
        if not isinstance(self.learner, EpisodeLearner):
            raise _wrong_data(self.learner, "update_from_episodes", "update_from_batch")
        return self.learner.update_from_episodes(rollouts, env_steps=env_steps)

    def update_from_batch(self, batch: Batch, *, env_steps: int) -> dict[str, Metrics]:
        """See :meth:`BatchLearner.update_from_batch`.

        Raises:
            TypeError: If the learner learns from episodes.
        """
        if not isinstance(self.learner, BatchLearner):
            raise _wrong_data(self.learner, "update_from_batch", "update_from_episodes")
        return self.learner.update_from_batch(batch, env_steps=env_steps)

    def summarize_updates(self, history: Sequence[Mapping[str, Metrics]]) -> dict[str, dict[str, float]]:
        """See :meth:`BatchLearner.summarize_updates`.

        Raises:
            TypeError: If the learner learns from episodes.
        """
        if not isinstance(self.learner, BatchLearner):
            raise _wrong_data(self.learner, "summarize_updates", "update_from_episodes")
        return self.learner.summarize_updates(history)

    def get_module(self, module_id: str) -> RLModule:
        """The module that is being trained."""
        return self.learner.module[module_id]

    def get_state(self) -> dict[str, Any]:
        """State of the learner."""
        return self.learner.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`get_state` gave."""
        self.learner.set_state(state)


def _wrong_data(learner: Learner, called: str, right: str) -> TypeError:
    return TypeError(
        explain_error(
            f"LearnerGroup.{called}()",
            expected=f"a learner that offers {called}",
            got=f"{type(learner).__name__}, which does not",
            remedy=f"Call {right}() for this algorithm.",
        )
    )
