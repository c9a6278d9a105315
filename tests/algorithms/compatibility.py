"""What each algorithm takes: actions, agents, memory, masks.

docs/feature_matrix.py makes a table of it, and test_compatibility.py tries each cell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from algorithms import AlgorithmConfig
from algorithms.a2c import A2CConfig
from algorithms.appo import APPOConfig
from algorithms.ddpg import DDPGConfig
from algorithms.dqn import DQNConfig
from algorithms.impala import IMPALAConfig
from algorithms.ppo import PPOConfig
from algorithms.sac import SACConfig
from algorithms.td3 import TD3Config
from rlmodule.agents import MultiAgentEnv

ALGORITHMS: dict[str, type[AlgorithmConfig]] = {
    "PPO": PPOConfig,
    "A2C": A2CConfig,
    "IMPALA": IMPALAConfig,
    "APPO": APPOConfig,
    "DQN": DQNConfig,
    "SAC": SACConfig,
    "TD3": TD3Config,
    "DDPG": DDPGConfig,
}
OBS, CHOICE, MOVE = spaces.Box(-1, 1, (3,)), spaces.Discrete(3), spaces.Box(-1, 1, (2,))


@dataclass(frozen=True)
class Feature:
    """One column.

    Attributes:
        page: The page on it.
        actions: Returns the action space, made of the simplest space that the algorithm takes.
        obs: Fields of the observation next to the vector ``state``.
        model_config: Settings of the nets.
        agents: Whether two agents act.
    """

    page: str
    actions: Callable[[spaces.Space[Any]], spaces.Space[Any]] = lambda simplest: simplest
    obs: dict[str, spaces.Space[Any]] = field(default_factory=dict)
    model_config: dict[str, Any] = field(default_factory=dict)
    agents: bool = False


FEATURES = {
    "Discrete": Feature("actions.md", lambda simplest: CHOICE),
    "Box": Feature("actions.md", lambda simplest: MOVE),
    "MultiDiscrete": Feature("actions.md", lambda simplest: spaces.MultiDiscrete([2, 3])),
    "MultiBinary": Feature("actions.md", lambda simplest: spaces.MultiBinary(3)),
    "Dict or Tuple": Feature("actions.md", lambda simplest: spaces.Dict(one=simplest, other=simplest)),
    "several agents": Feature("several-agents.md", agents=True),
    "memory": Feature("recurrent.md", model_config={"use_lstm": True}),
    "masks": Feature("action-masks.md", obs={"action_mask": spaces.MultiBinary(3)}),
    "described by vectors": Feature(
        "parametric-actions.md", lambda simplest: CHOICE, {"avail_actions": spaces.Box(-1, 1, (3, 2))}
    ),
    "autoregressive": Feature(
        "autoregressive-actions.md",
        lambda simplest: spaces.Tuple([simplest, simplest]),
        model_config={"autoregressive_actions": True},
    ),
}

_ONE_CHOICE = "action_space of DQN: expected a Discrete space, got"
_BOXES = "action_space of TD3 and DDPG: expected a Box of floats with finite bounds on all sides, got"
_WHOLE_ACTIONS = "since the critics of SACCatalog rate whole actions"
_OF_TD3 = {
    **dict.fromkeys(("Discrete", "MultiDiscrete", "MultiBinary", "described by vectors"), _BOXES),
    "masks": "observation_space['action_mask']: expected an action space with choices to forbid",
    "autoregressive": "expected DeterministicAction for each part, since its policy supports no other",
}
REFUSED: dict[str, dict[str, str]] = {
    "PPO": {},
    "A2C": {},
    "IMPALA": {},
    "APPO": {},
    "DQN": dict.fromkeys(("Box", "MultiDiscrete", "MultiBinary", "Dict or Tuple", "autoregressive"), _ONE_CHOICE),
    "SAC": {
        "described by vectors": f"model_config.action_embeddings_key: expected None, {_WHOLE_ACTIONS}",
        "autoregressive": f"model_config.autoregressive_actions: expected False, {_WHOLE_ACTIONS}",
    },
    "TD3": _OF_TD3,
    "DDPG": _OF_TD3,
}
"""By algorithm, the features that it refuses, each with words of the error. It has all others."""


class Still(gym.Env[Any, Any]):
    """Has the spaces that it is asked for, and is not played."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space


class Two(MultiAgentEnv):
    """The same for two agents."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.possible_agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys(self.possible_agents, observation_space)
        self.action_spaces = dict.fromkeys(self.possible_agents, action_space)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any: ...
    def step(self, actions: dict[str, Any]) -> Any: ...


def config_of(algorithm: str, name: str) -> AlgorithmConfig:
    """Return the config of a small run that has the feature ``name``."""
    feature = FEATURES[name]
    simplest = MOVE if algorithm in ("TD3", "DDPG") else CHOICE
    observed = spaces.Dict(state=OBS, **feature.obs) if feature.obs else OBS
    settings = {"observation_space": observed, "action_space": feature.actions(simplest)}
    nets = {"fcnet_hiddens": [8], "lstm_cell_size": 8, "max_seq_len": 4, **feature.model_config}
    config: Any = ALGORITHMS[algorithm]()
    config.environment(Two if feature.agents else Still, env_config=settings).rl_module(model_config=nets)
    if feature.agents:
        config.multi_agent(policies="shared")
    return config.env_runners(num_envs_per_env_runner=1)
