"""AgentRunnerGroup: the runners of envs with several agents, in this process or in others."""

from __future__ import annotations

from typing import Any

from rlmodule.agents.policy_map import PolicyMap
from rlmodule.agents.runner import AgentRunner
from rlmodule.groups.env_runner_group import EnvRunnerGroup, Spec
from rlmodule.modules.spec import MultiRLModuleSpec
from rlmodule.sampling.env_runner import OnEnv


def create_agent_runner_group(settings: Any, *, run_seed: int, role: str, on_env: OnEnv | None) -> EnvRunnerGroup:
    """Build the runners; see :meth:`EnvRunnerGroup.create`."""
    if settings.num_env_runners:
        from rlmodule.groups.remote_agent_runner_group import RemoteAgentRunnerGroup

        return RemoteAgentRunnerGroup(settings, run_seed=run_seed, role=role, on_env=on_env)
    return AgentRunnerGroup(settings, run_seed=run_seed, role=role, on_env=on_env)


def policy_map_of(settings: Any, agents: Any, spec: Spec) -> PolicyMap:
    """Return the map from ``agents`` to the modules of ``spec`` that the settings of a config describe."""
    assert isinstance(spec, MultiRLModuleSpec)
    return PolicyMap(list(agents), [*spec.rl_module_specs], settings.policy_mapping_fn)


def trained_parts(rollouts: list[Any], settings: Any) -> list[Any]:
    """Return ``rollouts`` without the rows of modules that are not trained."""
    return [rollout.restricted(settings.is_trained) for rollout in rollouts]


class AgentRunnerGroup(EnvRunnerGroup):
    """The runner of envs with several agents, in this process. Rollouts are of type :class:`MultiRollout`.

    Args:
        settings, run_seed, role, on_env: See :meth:`EnvRunnerGroup.create`; the settings have those of ``multi_agent``.
    """

    def _start(self, run_seed: int, role: str, on_env: OnEnv | None) -> None:
        self._runner: Any = AgentRunner(self._settings, run_seed=run_seed, role=role, on_env=on_env)
        self.observation_space, self.action_space = self._runner.observation_spaces, self._runner.action_spaces
        self.num_env_steps_lost = self._runner.num_env_steps_lost

    def _act_with(self, spec: Spec) -> None:
        self._has_copies = False  # learners keep a copy of their modules on the CPU, on which these runners act
        self._runner.set_modules(self.module, policy_map_of(self._settings, self.observation_space, spec))

    def sample(self, num_steps: int, *, explore: bool = True, policy_version: int = 0) -> list[Any]:
        rollouts = super().sample(num_steps, explore=explore, policy_version=policy_version)
        return trained_parts(rollouts, self._settings)
