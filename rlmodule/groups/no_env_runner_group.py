"""NoEnvRunnerGroup: the env runners of a run that has no env."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NoReturn

from gymnasium import Space

from rlmodule.data.rollout import Rollout
from rlmodule.groups.env_runner_group import EnvRunnerGroup, Spec, State
from rlmodule.modules.spec import MultiRLModuleSpec
from rlmodule.sampling.env_runner import EnvRunner
from rlmodule.settings import RunnerSettings


class NoEnvRunnerGroup(EnvRunnerGroup):
    """Knows the spaces of a run that learns from data alone, and has the module that acts, but samples nothing.

    Args:
        settings: The settings of the run.
        observation_space, action_space: Spaces of the data.
    """

    def __init__(self, settings: RunnerSettings, observation_space: Space, action_space: Space) -> None:
        super().__init__(settings)
        self.observation_space, self.action_space = observation_space, action_space

    def _refuse(self) -> NoReturn:
        raise RuntimeError(
            "EnvRunnerGroup: expected a run with an env, got one that learns from data alone. Name the env: "
            ".environment('CartPole-v1'), or from_checkpoint(path, env='CartPole-v1')."
        )

    @property
    def local_runner(self) -> EnvRunner:
        self._refuse()

    def sample(self, num_steps: int, *, explore: bool = True, policy_version: int = 0) -> list[Rollout]:
        self._refuse()

    def ask(self, num_steps: int, *, explore: bool = True, policy_version: int = 0, in_flight: int = 1) -> None:
        self._refuse()

    def has(self, count: int) -> bool:
        self._refuse()

    def take(self, count: int | None = None) -> list[Rollout]:
        self._refuse()

    def post_weights(self, policy_version: int) -> None:
        self._refuse()

    @property
    def is_asked(self) -> bool:
        return False

    def _act_with(self, spec: Spec) -> None:
        """Do nothing: no runner acts."""

    def _follow(self, spec: MultiRLModuleSpec, trained: Collection[str], mapping_fn: Callable[..., str] | None) -> None:
        """Do nothing: no runner acts."""

    def finish(self) -> None:
        """Do nothing: no runner samples."""

    def reset(self) -> None:
        """Do nothing: there is no episode."""

    def recycle(self) -> None:
        """Do nothing: there is no rollout."""

    def report(self) -> dict[str, Any]:
        return {}

    def get_state(self) -> State:
        return {}

    def set_state(self, state: State) -> None:
        """Do nothing: there is no env."""

    def stop(self) -> None:
        """Do nothing: there is no env."""
