"""N CartPoles in one env: a policy for each agent, each with another net; and one policy that all share.

Run it as ``python examples/multi_agent/cartpole.py``, or with another number of agents behind it.
"""

import sys
from typing import Any

import gymnasium as gym

from algorithms.ppo import PPOConfig
from rlmodule import RLModuleSpec
from rlmodule.agents import AgentID, MultiAgentEnv


class CartPoles(MultiAgentEnv):
    """One CartPole for each agent. An agent whose pole fell waits until all have fallen."""

    def __init__(self, num_agents: int = 4) -> None:
        self.envs = {f"cart_{i}": gym.make("CartPole-v1") for i in range(num_agents)}
        self.possible_agents = [*self.envs]
        self.observation_spaces = {agent: env.observation_space for agent, env in self.envs.items()}
        self.action_spaces = {agent: env.action_space for agent, env in self.envs.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        starts = {
            agent: env.reset(seed=None if seed is None else seed + i)
            for i, (agent, env) in enumerate(self.envs.items())
        }
        return {agent: obs for agent, (obs, _) in starts.items()}, {}

    def step(self, actions: dict[str, int]) -> Any:
        results = {agent: self.envs[agent].step(action) for agent, action in actions.items()}
        obs, rewards, terminateds, truncateds, infos = ({a: r[i] for a, r in results.items()} for i in range(5))
        return obs, rewards, terminateds, truncateds, infos


def policies(agents: list[AgentID]) -> dict[str, RLModuleSpec]:
    """A spec for each agent of the env, however many it has: nets of 32, 64, 96, … units."""
    return {f"{agent}": RLModuleSpec(model_config={"fcnet_hiddens": [32 * i]}) for i, agent in enumerate(agents, 1)}


env_config = {"num_agents": int(sys.argv[1]) if len(sys.argv) > 1 else 4}
config = PPOConfig().environment(CartPoles, env_config=env_config).debugging(seed=1)
for name, choice in {"own": policies, "shared": "shared"}.items():
    with config.multi_agent(policies=choice).build() as algo:
        nets = {policy_id: algo.get_module(policy_id).model_config.fcnet_hiddens for policy_id in algo.policies}
        print(f"{name}: {nets}")
        algo.learn(num_env_steps=60_000, progress=True)
        for agent, mean in algo.evaluate()["env_runners"]["agent_episode_returns_mean"].items():
            print(f"  {agent}: {mean:.0f}")
