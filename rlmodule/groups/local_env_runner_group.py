"""LocalEnvRunnerGroup: one env runner, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlmodule.data.rollout import Rollout
from rlmodule.groups.env_runner_group import EnvRunnerGroup, State
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.sampling.env_runner import EnvRunner, OnEnv
from rlmodule.settings import RunnerSettings


class LocalEnvRunnerGroup(EnvRunnerGroup):
    """One runner in this process, which acts with the tensors of the learner themselves, or with copies on its device.

    Args:
        settings, run_seed, role, on_env: See :meth:`EnvRunnerGroup.create`.
    """

    def __init__(
        self, settings: RunnerSettings, *, run_seed: int, role: str = "env", on_env: OnEnv | None = None
    ) -> None:
        super().__init__(settings)
        self._runner = EnvRunner(settings, run_seed=run_seed, role=role, on_env=on_env)
        self.observation_space, self.action_space = self._runner.observation_space, self._runner.action_space
        self.num_env_steps_lost = self._runner.num_env_steps_lost

    @property
    def local_runner(self) -> EnvRunner:
        return self._runner

    def _act_with(self, spec: RLModuleSpec) -> None:
        self._has_copies = self._runner.device != self._tensors[0].device
        copies = spec.build(inference_only=True).to(self._runner.device) if self._has_copies else self.module
        self._runner.set_module(copies)

    def sample(self, num_steps: int, *, explore: bool = True, policy_version: int = 0) -> list[Rollout]:
        if self._has_copies and self._weights_changed(policy_version):
            self._runner.module.set_state(self.module.get_state())
        rollout = self._runner.sample(num_steps, explore=explore, policy_version=policy_version)
        self.num_env_steps_lost.update(rollout.stats.get("num_env_steps_lost", {}))
        return [rollout]

    def reset(self) -> None:
        self._runner.reset()

    def report(self) -> dict[str, Any]:
        can_lose = self.num_env_steps_lost or self._settings.restart_failed_sub_environments
        return self._lost_steps() if can_lose else {}

    def get_state(self) -> State:
        return self._with_the_rest(self._runner.get_state())

    def set_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        self._keep_the_rest(state, 1)
        envs = map(str, range(self._settings.num_envs_per_env_runner))
        self._runner.set_state({env: dict(state[env]) for env in envs if env in state})

    def stop(self) -> None:
        self._runner.stop()
