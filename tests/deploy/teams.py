"""Cells of several agents: teams of three in one env, whose episodes end together, and their policies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from algorithms.ppo import PPOConfig
from rlmodule.agents import AgentRunner, MultiAgentEnv, MultiRollout, PolicyMap
from rlmodule.modules.rl_module import MultiRLModule
from tests.algorithms.ppo import matrix
from tests.deploy.parity import STEPS, filled

AGENTS = [0, "left", "right"]
OTHER = matrix.Case("Box, rank 1", "Discrete with a start", "no memory", "shared", "no mask")
"""What the last agent sees and does."""
MAPPINGS = {
    "one for two agents": {0: "pair", "left": "pair", "right": "other"},
    "one for each": {0: "first", "left": "second", "right": "other"},
}
FACTORS = {
    "observation": (
        "Box, rank 1, float64, unbounded",
        "Box, rank 3, bytes, channels last",
        "MultiDiscrete with starts",
        "Tuple",
        "Dict and Tuple nested, images and vectors",
    ),
    "action": ("Discrete", matrix.DESCRIBED, "Box, bounded", "Box, Beta", "Dict and Tuple nested"),
    "memory": ("no memory", "no memory, previous action and reward", "LSTM", "GRU, previous action and reward"),
    "sharing": tuple(matrix.SHARING),
    "mask": tuple(matrix.MASKS),
    "policies": tuple(MAPPINGS),
}


class Team(MultiAgentEnv):
    """An env of a case for each agent, stepped together; their episodes have the same lengths."""

    def __init__(self, cases: dict[Any, matrix.Case]) -> None:
        self.possible_agents = [*cases]
        self._envs = {agent: matrix.SpacesEnv(**vars(case)) for agent, case in cases.items()}
        self.observation_spaces = {agent: env.observation_space for agent, env in self._envs.items()}
        self.action_spaces = {agent: env.action_space for agent, env in self._envs.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        seeds = [None if seed is None else seed + number for number in range(len(self._envs))]
        found = {agent: env.reset(seed=one) for (agent, env), one in zip(self._envs.items(), seeds, strict=True)}
        return {agent: obs for agent, (obs, _) in found.items()}, {}

    def step(self, actions: dict[Any, Any]) -> Any:
        found = {agent: self._envs[agent].step(action) for agent, action in actions.items()}
        obs, rewards, terminated, truncated = ({agent: x[i] for agent, x in found.items()} for i in range(4))
        return obs, rewards, {"__all__": any(terminated.values())}, {"__all__": any(truncated.values())}, {}


@dataclass(frozen=True)
class TeamCell:
    """One level of each factor; see :data:`FACTORS`."""

    observation: str
    action: str
    memory: str
    sharing: str
    mask: str
    policies: str

    @property
    def name(self) -> str:
        return " | ".join(vars(self).values())

    @property
    def mapping(self) -> dict[Any, str]:
        return MAPPINGS[self.policies]

    @property
    def cases(self) -> dict[Any, matrix.Case]:
        own = {name: level for name, level in vars(self).items() if name != "policies"}
        return dict.fromkeys(AGENTS[:2], matrix.Case(**own)) | {AGENTS[2]: OTHER}

    def env(self) -> Team:
        return Team(self.cases)

    def modules(self) -> MultiRLModule:
        modules = {}
        for number, (agent, case) in enumerate(self.cases.items()):
            spec = case.config().get_rl_module_spec(*case.spaces)
            modules.setdefault(self.mapping[agent], filled(spec, number))
        return MultiRLModule(modules)

    def sampled(self, modules: MultiRLModule, num: int) -> MultiRollout:
        """What the runner of a run does greedily in ``num`` envs."""
        ids = [*modules]
        config = PPOConfig(env=lambda config: self.env(), num_envs_per_env_runner=num, policies=ids)
        runner = AgentRunner(config.update({"policy_mapping_fn": self.mapping}), run_seed=num)
        runner.set_module(modules, PolicyMap(AGENTS, ids, self.mapping))
        rollouts = runner.sample(STEPS, explore=False)
        runner.stop()
        return rollouts


TEAMS = tuple(TeamCell(**levels) for levels in matrix.covering(FACTORS, matrix.is_sensible))
