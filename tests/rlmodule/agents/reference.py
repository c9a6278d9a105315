"""A slow sampler of several agents, written with dicts and lists: one forward pass per agent, one object per row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import tree
from torch import Tensor

from catalog.base import Tree
from catalog.past import PREV_ACTION, PREV_OBS, PREV_REWARD
from rlmodule import Columns, RLModule, Rollout
from rlmodule.agents.episode import AgentEpisode
from rlmodule.agents.multi_agent_env import ALL, AgentID, MultiAgentEnv
from rlmodule.data.rollout import allocate_observations, as_tensors
from rlmodule.modules.recurrent import initial_states
from rlmodule.sampling.random_streams import ActionNoise


@dataclass
class Row:
    """A step of an agent."""

    obs: Tree
    starts: bool
    action: Tensor
    inputs: Tensor
    state: Tree
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final: Tree | None = None


@dataclass
class Life:
    """An agent from its start to its end."""

    module_id: str
    obs: list[Tensor]
    actions: list[Tensor] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    row: Row | None = None  # open
    total: float = 0.0


class Reference:
    """Samples as an AgentRunner does. ``mapping(agent, env, number of the episode)`` names the module."""

    def __init__(
        self,
        envs: Sequence[MultiAgentEnv],
        modules: dict[str, RLModule],
        mapping: Callable[[AgentID, int, int], str],
        noise: Callable[[str, int], ActionNoise],
    ) -> None:
        self.envs, self.modules, self.mapping = envs, modules, mapping
        self.agents = list(envs[0].possible_agents)
        self.noise, self.states = {}, {}
        for name, module in modules.items():
            for slot in range(len(envs) * len(self.agents)):
                self.noise[name, slot] = one = noise(name, slot)
                one.use(module.action_dist_cls, module.action_dist_cls.required_input_dim(module.action_space))
                if module.is_stateful():
                    self.states[name, slot] = initial_states(module, 1)
        self.lives: dict[int, Life] = {}
        self.latest: dict[tuple[str, int], Tree] = {}
        self.early: dict[int, float] = defaultdict(float)
        self.returns, self.lengths = [0.0] * len(envs), [0] * len(envs)
        self.number = [-1] * len(envs)
        self.began = False

    def sample(self, num_steps: int) -> tuple[dict[str, Rollout], dict[str, list[int]], dict[str, Any]]:
        """Rollouts and slots by module, and statistics."""
        self.rows: dict[tuple[str, int], list[Row]] = defaultdict(list)
        self.stats: dict[str, Any] = defaultdict(lambda: defaultdict(list))
        self.stats["rewards_before_acting"] = defaultdict(float)
        self.ended: list[tuple[float, int, int]] = []
        if not self.began:
            self.began = True
            for e in range(len(self.envs)):
                self.reset(e)
        for _ in range(num_steps):
            over = [e for e, env in enumerate(self.envs) if self.step(e, env)]
            for e in over:
                self.reset(e)
        return self.packed()

    def reset(self, e: int) -> None:
        self.number[e] += 1
        self.returns[e], self.lengths[e] = 0.0, 0
        for agent, obs in self.envs[e].reset()[0].items():
            self.start(e, agent, obs)

    def start(self, e: int, agent: AgentID, obs: Any) -> None:
        slot = self.slot(e, agent)
        life = Life(self.mapping(agent, e, self.number[e]), [torch.as_tensor(obs)])
        life.total = self.early.pop(slot, 0.0)
        self.set_aside(agent, life.total)
        self.lives[slot] = life
        self.latest[life.module_id, slot] = self.seen(life)

    def set_aside(self, agent: AgentID, amount: float) -> None:
        if amount:
            self.stats["rewards_before_acting"][agent] += amount

    def slot(self, e: int, agent: AgentID) -> int:
        return e * len(self.agents) + self.agents.index(agent)

    def step(self, e: int, env: MultiAgentEnv) -> bool:
        """Step an env with the agents that have no open row; return whether its episode ended."""
        actions = {a: self.act(self.slot(e, a)) for a in self.agents if self.waits(self.slot(e, a))}
        obs, rewards, terminateds, truncateds, _ = env.step(actions)
        self.lengths[e] += 1
        self.returns[e] += sum(rewards.values())
        for agent, reward in rewards.items():
            slot = self.slot(e, agent)
            if (life := self.lives.get(slot)) is None:
                self.early[slot] += reward
            else:
                assert life.row is not None
                life.row.reward += reward
                life.total += reward
        for agent in self.agents:
            slot = self.slot(e, agent)
            flags = [f.get(ALL, False) or f.get(agent, False) for f in (terminateds, truncateds)]
            if agent in obs and slot not in self.lives:
                self.start(e, agent, obs[agent])
            elif agent in obs:
                self.complete(slot, obs[agent], *flags)
            if any(flags) and slot in self.lives:
                life = self.lives.pop(slot)
                ended = AgentEpisode(agent, life.module_id, life.total, len(life.actions))
                self.stats["agent_episodes"][agent].append(ended)
        over = not any(self.slot(e, agent) in self.lives for agent in self.agents)
        if over:
            self.ended.append((self.returns[e], self.lengths[e], e))
            for agent in self.agents:
                self.set_aside(agent, self.early.pop(self.slot(e, agent), 0.0))
        return over

    def waits(self, slot: int) -> bool:
        return slot in self.lives and self.lives[slot].row is None

    def act(self, slot: int) -> int:
        life = self.lives[slot]
        module, key = self.modules[life.module_id], (life.module_id, slot)
        batch, state = {Columns.OBS: tree.map_structure(lambda x: x[None], seen := self.seen(life))}, None
        if module.is_stateful():
            state = self.states[key]
            batch = {
                Columns.OBS: tree.map_structure(lambda x: x[None], batch[Columns.OBS]),
                Columns.STARTS: torch.tensor([[not life.actions]]),
                Columns.STATE_IN: state,
            }
        out = module.forward_exploration(batch)
        inputs = out[Columns.ACTION_DIST_INPUTS].reshape(1, -1)
        if module.is_stateful():
            self.states[key] = out[Columns.STATE_OUT]
        action = module.action_dist_cls.from_logits(inputs).sample_from(self.noise[key].take(1)[0])
        life.row = Row(seen, not life.actions, action[0], inputs[0], state)
        return int(action)

    def complete(self, slot: int, obs: Any, terminated: bool, truncated: bool) -> None:
        life = self.lives[slot]
        row, life.row = life.row, None
        assert row is not None
        row.terminated, row.truncated = terminated, truncated
        life.obs.append(torch.as_tensor(obs))
        life.actions.append(row.action)
        life.rewards.append(row.reward)
        self.latest[life.module_id, slot] = seen = self.seen(life)
        if truncated and not terminated:
            row.final = seen
        self.rows[life.module_id, slot].append(row)

    def seen(self, life: Life) -> Tree:
        """What the module sees at the current step: the observation and the past, zeros before the start."""
        module = self.modules[life.module_id]
        if not module.sees_more_than_the_env:
            return life.obs[-1]
        zeros = tree.map_structure(
            lambda x: torch.zeros_like(x[0]), as_tensors(allocate_observations(module.input_space, 1))
        )
        past = {PREV_OBS: life.obs[:-1], PREV_ACTION: life.actions, PREV_REWARD: [*map(torch.tensor, life.rewards)]}
        fields = {Columns.OBS: life.obs[-1]}
        for name, steps in module.past_view.steps.items():
            zero = zeros[name] if steps == 1 else zeros[name][0]
            entries = [zero] * steps + [x.to(zero.dtype) for x in past[name]]
            fields[name] = entries[-1] if steps == 1 else torch.stack(entries[-steps:])
        return fields

    def packed(self) -> tuple[dict[str, Rollout], dict[str, list[int]], dict[str, Any]]:
        rollouts, slots_of = {}, {}
        for name in self.modules:
            slots = sorted(slot for module_id, slot in self.rows if module_id == name)
            if slots:
                rollouts[name] = self.pack(name, [self.rows[name, slot] for slot in slots], slots)
                slots_of[name] = slots
        self.stats["module_steps"] = {name: int(r.valid.sum()) for name, r in rollouts.items()}
        stats = {name: dict(values) for name, values in self.stats.items()}
        stats["episodes"] = self.ended
        return rollouts, slots_of, stats

    def pack(self, name: str, rows: list[list[Row]], slots: list[int]) -> Rollout:
        module, length = self.modules[name], max(map(len, rows))

        def stacked(of_row: Callable[[Row], Tree], tails: Sequence[Tree] | None = None, more: int = 0) -> Tree:
            """``[T + more, N, ...]``: behind the rows of a slot its tail, or zeros."""
            columns = []
            for i, one in enumerate(rows):
                values = [tree.map_structure(torch.as_tensor, of_row(row)) for row in one]
                tail = tree.map_structure(torch.zeros_like, values[0]) if tails is None else tails[i]
                values += [tail] * (length + more - len(values))
                columns.append(tree.map_structure(lambda *x: torch.stack(x), *values))
            return tree.map_structure(lambda *x: torch.stack(x, 1), *columns)

        obs = stacked(lambda row: row.obs, [self.latest[name, slot] for slot in slots], more=1)
        columns = {
            Columns.OBS: tree.map_structure(lambda x: x[:-1], obs),
            Columns.VALID: stacked(lambda row: True),
            Columns.STARTS: stacked(lambda row: row.starts),
            Columns.ACTIONS: stacked(lambda row: row.action),
            Columns.REWARDS: stacked(lambda row: row.reward),
            Columns.TERMINATEDS: stacked(lambda row: row.terminated),
            Columns.TRUNCATEDS: stacked(lambda row: row.truncated),
            Columns.ACTION_DIST_INPUTS: stacked(lambda row: row.inputs),
            Columns.ACTION_LOGP: stacked(lambda row: module.action_dist_cls.from_logits(row.inputs).logp(row.action)),
        }
        finals = sorted(
            ((t, i, row.final) for i, one in enumerate(rows) for t, row in enumerate(one) if row.final is not None),
            key=lambda each: each[:2],
        )
        state_in = None
        if module.is_stateful():
            states = stacked(lambda row: tree.map_structure(lambda x: x[0], row.state))
            state_in = tree.map_structure(lambda x: x[:: module.max_seq_len], states)
        none = tree.map_structure(lambda x: x[0, :0], columns[Columns.OBS])
        return Rollout(
            columns=columns,
            last_obs=tree.map_structure(lambda x: x[-1], obs),
            final_index=torch.tensor([each[:2] for each in finals], dtype=torch.int64).reshape(-1, 2),
            final_obs=tree.map_structure(lambda *x: torch.stack(x), *(each[2] for each in finals)) if finals else none,
            state_in=state_in,
        )
