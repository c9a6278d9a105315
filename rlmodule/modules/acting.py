"""One step of acting as a function of tensors, which a policy runs and an export traces."""

from __future__ import annotations

from collections.abc import Callable

import torch
import tree
from torch import Tensor

from catalog.base import Tree
from catalog.distributions.base import Distribution
from catalog.past import PREV_ACTION, PREV_REWARD
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import allocate_observations, as_tensors, map_leaves
from rlmodule.modules.past_rows import with_newest
from rlmodule.modules.recurrent import initial_states, state_out_of
from rlmodule.modules.rl_module import RLModule


class ActingStep:
    """Acts with a module for one step in ``B`` envs. It adds to the observations whatever the module sees of earlier
    steps, runs the module's nets, chooses actions, and converts them for the env.

    Its memory between steps is a dict with ``state_in`` if the module has a recurrent state, and with those earlier
    steps that the module sees (``prev_obs``, ``prev_action``, ``prev_reward``), all ``[B, ...]``. For other
    modules it is empty.

    Args:
        module: The module to act with.

    Attributes:
        unread: Zeros ``[1, ...]`` for the observation fields that only a critic reads, by name. The nets get these
            zeros instead of the fields.
    """

    def __init__(self, module: RLModule) -> None:
        self.module = module
        self.is_stateful = module.is_stateful()
        self.past = module.past_view.steps
        self._no_past: dict[str, Tree] = {}
        self.unread: dict[str, Tree] = {}
        keys = module.model_config.critic_only_keys
        if self.past or keys:
            device = next(module.parameters(), torch.empty(0)).device
            rows = as_tensors(allocate_observations(module.input_space, 1))
            rows = map_leaves(lambda x: torch.zeros_like(x, device=device), rows)
            self._no_past = {name: rows[name] for name in self.past}
            self.unread = {name: module.env_part(rows)[name] for name in keys}

    @property
    def remembers(self) -> bool:
        """Whether acting needs a memory of earlier steps."""
        return self.is_stateful or bool(self.past)

    def new_memory(self, num: int) -> dict[str, Tree]:
        """Return the memory for ``num`` envs whose episodes start."""
        memory = map_leaves(lambda x: x.expand(num, *x.shape[1:]), self._no_past)
        return memory | ({Columns.STATE_IN: initial_states(self.module, num)} if self.is_stateful else {})

    def __call__(
        self,
        obs: Tree,
        memory: dict[str, Tree],
        starts: Tensor | None,
        rewards: Tensor | None,
        choose: Callable[[Distribution], Tree],
        explore: bool = False,
    ) -> tuple[Tensor, Tree, dict[str, Tree]]:
        """Return the parameters of the action distributions ``[B, D]``, the actions for the envs, and the next memory.

        Args:
            obs: Observations ``[B, ...]``, which may lack the fields that only a critic reads.
            memory: The memory that the last call returned, or that of :meth:`new_memory`.
            starts: True for rows whose episode starts, ``[B]`` bool. The memory of these rows is ignored. None if the
                module has no memory.
            rewards: Rewards of the last steps ``[B]``; None if the module does not see previous rewards.
            choose: Returns the actions, given their distribution.
            explore: Whether to use the module's forward pass for exploration; False uses its pass for inference.
        """
        module = self.module
        if self.unread:
            assert isinstance(obs, dict)
            num = tree.flatten(obs)[0].shape[0]
            obs |= map_leaves(lambda x: x.expand(num, *x.shape[1:]), self.unread)
        seen = obs
        if self.past:
            assert starts is not None
            seen = {Columns.OBS: obs, **self._earlier(memory, starts, rewards)}
        batch = {Columns.OBS: seen}
        if self.is_stateful:
            assert starts is not None
            batch = {
                Columns.OBS: map_leaves(lambda x: x[None], seen),
                Columns.STARTS: starts[None],
                Columns.STATE_IN: memory[Columns.STATE_IN],
            }
        out = module._forward_exploration(batch) if explore else module._forward_inference(batch)
        inputs = out[Columns.ACTION_DIST_INPUTS]
        if self.is_stateful:
            inputs = inputs[0]
        actions = choose(module.action_dist_cls.from_logits(inputs))
        after: dict[str, Tree] = {Columns.STATE_IN: state_out_of(module, out)} if self.is_stateful else {}
        for name, steps in self.past.items():  # the reward of this action is added by the next call
            after[name] = seen[name]
            if name != PREV_REWARD:
                # a copy, since an env may write its next observation into the memory of this one
                done = actions if name == PREV_ACTION else map_leaves(Tensor.clone, obs)
                after[name] = with_newest(seen[name], done, steps)
        converter = module.action_converter
        return inputs, actions if converter.is_identity else converter.forward(actions), after

    def _earlier(self, memory: dict[str, Tree], starts: Tensor, rewards: Tensor | None) -> dict[str, Tree]:
        """Return the earlier steps that the module sees, including the last rewards. In rows whose episode starts, they
        are zeros."""

        def seen_by(rows: Tensor, like: Tensor) -> Tensor:
            fresh = starts.view(-1, *[1] * (rows.dim() - 1))
            return rows.to(like.dtype).masked_fill(fresh, 0)

        past = {name: memory[name] for name in self.past}
        if rewards is not None and PREV_REWARD in past:
            past[PREV_REWARD] = with_newest(past[PREV_REWARD], rewards, self.past[PREV_REWARD])
        return map_leaves(seen_by, past, self._no_past)


def most_likely(dist: Distribution) -> Tree:
    """Return the most likely action of each row of ``dist``."""
    return dist.to_deterministic().sample()
