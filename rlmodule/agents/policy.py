"""MultiAgentPolicy: acts for several agents, each with the module that it is mapped to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import torch

from catalog.base import Tree
from catalog_rl import unknown
from rlmodule.agents.episode import MultiAgentEpisode
from rlmodule.agents.multi_agent_env import AgentID
from rlmodule.agents.policy_map import PolicyMap, PolicyMappingFn
from rlmodule.encoding import Decoder
from rlmodule.modules.hub import OnHub, downloaded
from rlmodule.modules.policy import Policy
from rlmodule.modules.policy_files import build_module, read_policies, save_policies
from rlmodule.modules.rl_module import MultiRLModule
from rlmodule.sealed_folder import StrPath

_MAPPING = "policy_mapping_fn"
State = Mapping[AgentID, tuple[str, Any]]
"""Maps each agent that has acted to the id of its policy and the state of that policy."""


class MultiAgentPolicy(OnHub, dict[str, Policy]):
    """Acts for the agents of one env. Maps the id of each module to its :class:`Policy`.

    Nothing is stored between calls. Pass the state that one call returns to the next call::

        state = None                                            # at the start of every episode of the env
        actions, state = policies.act(obs, state)

    If an agent ends and comes back in the same episode of the env, remove its entry from the state in between.

    Args:
        modules: The modules to act with; they are put into eval mode.
        agents: All agents of the env.
        policy_map: Maps agents to modules. A mapping function is called once per agent and episode.
        generator: Draws actions for ``act(explore=True)``, for all modules; None creates a generator with seed 0.

    Attributes:
        policy_map: Maps agents to modules.
    """

    import_path = "rlmodule.agents.MultiAgentPolicy"

    def __init__(
        self,
        modules: MultiRLModule,
        agents: Sequence[AgentID],
        policy_map: PolicyMap,
        generator: torch.Generator | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(0) if generator is None else generator
        super().__init__({module_id: Policy(module, generator) for module_id, module in modules.items()})
        self._modules, self._agents, self.policy_map, self._generator = modules, agents, policy_map, generator

    def act(
        self,
        obs: Mapping[AgentID, Tree],
        state: State | None = None,
        *,
        rewards: Mapping[AgentID, float] | None = None,
        explore: bool = False,
    ) -> tuple[dict[AgentID, Tree], dict[AgentID, tuple[str, Any]]]:
        """Return actions for the observations of the agents of one env.

        Args:
            obs: The observations of the agents that act; leave out agents that have ended.
            state: The state that the last call returned; None at the start of an episode of the env.
            rewards: The sum of the rewards of each agent since it last acted. Required where :meth:`Policy.act`
                requires a reward.
            explore: Sample the actions; False takes the most likely ones.

        Returns:
            The actions by agent, and the next state.

        Raises:
            ValueError: If an agent is unknown, or for the reasons of :meth:`Policy.act`.
        """
        if not isinstance(obs, Mapping):
            raise TypeError(f"MultiAgentPolicy.act(obs): expected a dict by agent, got {type(obs).__name__}. Pass one.")
        after, actions = dict(state or {}), dict[AgentID, Tree]()
        episode = MultiAgentEpisode(0, 0, self._agents, self.policy_map, np.zeros(len(self._agents)))
        for agent, seen in obs.items():
            if agent not in self._agents:
                remedy = "Pass what the env returned, by agent."
                raise unknown("MultiAgentPolicy.act(obs)", "agents", self._agents, agent, remedy)
            policy_id, memory = after[agent] if agent in after else (episode.policy_of(agent), None)
            reward = None if rewards is None else rewards.get(agent)
            actions[agent], memory = self[policy_id].act(seen, memory, reward=reward, explore=explore)
            after[agent] = policy_id, memory
        return actions, after

    def with_generator(self, generator: torch.Generator) -> MultiAgentPolicy:
        """Return a copy with the same modules, which samples actions with ``generator``."""
        return MultiAgentPolicy(self._modules, self._agents, self.policy_map, generator)

    def follow(self, policy_ids: Sequence[str]) -> None:
        """Act with exactly the modules ``policy_ids`` from now on, after modules were added, removed or replaced. All
        must be among the ``modules`` of this object."""
        self.policy_map.update(policy_ids, None)
        self.clear()
        self.update({module_id: Policy(self._modules[module_id], self._generator) for module_id in policy_ids})

    def save(self, path: StrPath) -> Path:
        """Write the policies to a folder ``path``, as the files that :meth:`Policy.save` describes. They hold all
        modules, the agents, and the mapping of agents to modules. A mapping function that the files cannot hold, such
        as a lambda, must be passed to :meth:`load` again.

        Raises:
            TypeError: If a setting of the nets cannot be written, such as a lambda.
            FileExistsError, OSError: See :meth:`Policy.save`.
        """
        mapping = self.policy_map.static or self.policy_map.mapping_fn
        modules = {name: policy.module for name, policy in self.items()}
        return save_policies(modules, path, {"agents": [*self._agents], _MAPPING: mapping})

    @classmethod
    def load(
        cls, path: StrPath, *, policy_mapping_fn: PolicyMappingFn | None = None, allow: Sequence[str] = ()
    ) -> MultiAgentPolicy:
        """Load policies from a folder of :meth:`save`, a checkpoint or a run folder, as :meth:`Policy.load` does. To
        load a single policy, call ``Policy.load(path, module_id=...)``.

        Args:
            path: The folder.
            policy_mapping_fn: Maps agents to modules; None uses the mapping in the file.
            allow: Python modules whose classes and functions the file may name, in addition to those of this library.

        Raises:
            FileNotFoundError: If ``path`` is not such a folder.
            ValueError: If a file is damaged, names code that is not allowed, or holds a single-agent policy.
        """
        where, mapping = f"MultiAgentPolicy.load({str(path)!r})", policy_mapping_fn
        content, decoder = read_policies(path, where), Decoder(where, allow)
        agents = content.get("agents")
        if not isinstance(agents, list) or not all(isinstance(agent, str | int) for agent in agents):
            raise ValueError(
                f"{where}: expected policies of several agents, got {', '.join(content['modules'])} without agents. "
                "Call Policy.load(path), with module_id= if there are several."
            )
        modules = MultiRLModule({name: build_module(content, name, decoder, where) for name in content["modules"]})
        if mapping is None:
            hint = Mapping[AgentID, str] | Callable[..., str] | None
            mapping = decoder.read(content.get(_MAPPING), _MAPPING, hint)
            decoder.refuse_missing()
            if not isinstance(mapping, Mapping | Callable | None):
                raise ValueError(f"{where}: expected a function or ids by agent, got {mapping!r}. Pass {_MAPPING}=.")
        return cls(modules, agents, PolicyMap(agents, [*modules], mapping))

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        *,
        revision: str | None = None,
        policy_mapping_fn: PolicyMappingFn | None = None,
        allow: Sequence[str] = (),
        token: str | None = None,
    ) -> MultiAgentPolicy:
        """Load policies from a repository of the Hugging Face Hub; see :meth:`Policy.from_pretrained`."""
        with downloaded(repo_id, revision, token, f"MultiAgentPolicy.from_pretrained({repo_id!r})") as folder:
            return cls.load(folder, policy_mapping_fn=policy_mapping_fn, allow=allow)

    def export(self, folder: StrPath, *, suffix: str = ".onnx", explore: bool = False) -> dict[str, Path]:
        """Write each policy to its own file ``<id><suffix>`` in ``folder``; see :meth:`Policy.export`.

        Returns:
            The files by policy id. Characters of an id that are not allowed in a file name are percent-encoded.
        """
        names = {module_id: quote(module_id, safe=" ") + suffix for module_id in self}
        return {name: self[name].export(Path(folder, file), explore=explore) for name, file in names.items()}

    def __missing__(self, module_id: str) -> Policy:
        """Raise KeyError for an unknown id, with the text of :class:`MultiRLModule`, which names the known ids."""
        self._modules[module_id]
        raise AssertionError("every module has a policy")
