"""RemoteAgentRunnerGroup: runners of envs with several agents, in other processes."""

from __future__ import annotations

from typing import Any, ClassVar

from gymnasium.envs.registration import EnvSpec

from rlmodule.agents.multi_rollout import MultiRollout
from rlmodule.agents.policy_map import PolicyMap
from rlmodule.agents.runner import AgentRunner
from rlmodule.distributed.serialization import check_portable
from rlmodule.groups.agent_runner_group import policy_map_of, trained_parts
from rlmodule.groups.env_runner_group import Spec
from rlmodule.groups.remote_env_runner_group import RemoteEnvRunnerGroup, _RunnerActor
from rlmodule.modules.rl_module import MultiRLModule
from rlmodule.modules.spec import MultiRLModuleSpec


class RemoteAgentRunnerGroup(RemoteEnvRunnerGroup):
    """Runners of envs with several agents, in other processes; see :class:`AgentRunnerGroup`."""

    _runner_class: ClassVar[Any] = AgentRunner
    _rollout_class: ClassVar[Any] = MultiRollout

    @property
    def _actor_class(self) -> type[_RunnerActor]:
        return _AgentRunnerActor

    def _env_spec(self) -> EnvSpec | None:
        return None  # names are those of PettingZoo, or of modules

    def _act_with(self, spec: Spec) -> None:
        settings: Any = self._settings
        check_portable(f"num_env_runners={settings.num_env_runners}, policy_mapping_fn", settings.policy_mapping_fn)
        self._spec = spec, policy_map_of(settings, self.observation_space, spec)

    def sample(self, num_steps: int, *, explore: bool = True, policy_version: int = 0) -> list[Any]:
        rollouts = super().sample(num_steps, explore=explore, policy_version=policy_version)
        return trained_parts(rollouts, self._settings)


class _AgentRunnerActor(_RunnerActor):
    """The runner of another process."""

    def get_spaces(self) -> tuple[Any, Any]:
        return self._runner.observation_spaces, self._runner.action_spaces

    def act_with(self, spec: tuple[MultiRLModuleSpec, PolicyMap]) -> MultiRLModule:
        modules = spec[0].build(inference_only=True)
        self._runner.set_modules(modules, spec[1])
        return modules
