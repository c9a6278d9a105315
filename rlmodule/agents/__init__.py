"""Multi-agent envs, and sampling from them. Single-agent runs import nothing from this package."""

from typing import TYPE_CHECKING

from catalog_rl import lazily

if TYPE_CHECKING:
    from rlmodule.agents.episode import AgentEpisode, MultiAgentEpisode
    from rlmodule.agents.mask_wrapper import AgentMasksFromInfo
    from rlmodule.agents.multi_agent_env import AgentID, MultiAgentEnv
    from rlmodule.agents.multi_rollout import MultiRollout
    from rlmodule.agents.pettingzoo import AECAdapter, ParallelAdapter
    from rlmodule.agents.policy import MultiAgentPolicy
    from rlmodule.agents.policy_map import PolicyMap
    from rlmodule.agents.runner import AgentRunner
    from rlmodule.agents.state_wrapper import WithState
else:
    __getattr__ = lazily(__name__, __file__)

__all__ = [
    "AECAdapter",
    "AgentEpisode",
    "AgentID",
    "AgentMasksFromInfo",
    "AgentRunner",
    "MultiAgentEnv",
    "MultiAgentEpisode",
    "MultiAgentPolicy",
    "MultiRollout",
    "ParallelAdapter",
    "PolicyMap",
    "WithState",
]
