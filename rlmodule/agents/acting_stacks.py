"""ActingStacks: batches the forward passes of modules that have the same structure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rlmodule.agents.columns import AgentColumns
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import allocate_observations, map_leaves, write_row
from rlmodule.modules.module_stack import ModuleStack, stack_of, structure_of
from rlmodule.modules.rl_module import RLModule

_INPUTS = Columns.ACTION_DIST_INPUTS


class ActingStacks:
    """Chooses actions with the modules of several policies. Feed-forward modules of the same structure share one
    batched forward pass where that is possible. Every other module runs in its own pass.

    Args:
        columns: The :class:`AgentColumns` of each module.
    """

    def __init__(self, columns: Iterable[AgentColumns]) -> None:
        by_structure: dict[Any, list[AgentColumns]] = {}
        self._alone: list[AgentColumns] = []
        for one in columns:
            if one.noise.is_drawn:
                by_structure.setdefault(structure_of(one.module), []).append(one)
            else:
                self._alone.append(one)
        self._stacks: list[_Stack] = []
        for group in by_structure.values():
            if (modules := stack_of([one.module for one in group], _acting_pass)) is None:
                self._alone += group
            else:
                self._stacks.append(_Stack(group, modules))

    def begin(self) -> None:
        """Copy the current weights of the modules into the stacks. Call it at the start of each fragment."""
        for stack in self._stacks:
            stack.modules.refresh()

    def act(self, explore: bool, generator: torch.Generator) -> Iterator[tuple[AgentColumns, list[int], Sequence[Any]]]:
        """Choose the actions of all agents that are ready. For each module with such agents, yield its
        :class:`AgentColumns` and the two results of :meth:`AgentColumns.act`: the columns of these agents, and their
        actions."""
        alone = self._alone
        for stack in self._stacks:
            ready = [one for one in stack.columns if len(one.ready)]
            # every module is padded to the rows of the one with most
            counts = [len(one.ready) for one in ready]
            if len(ready) > 1 and 2 * sum(counts) >= len(stack.columns) * max(counts):
                yield from stack.act(ready, explore)
            else:
                alone = alone + ready
        for one in alone:
            if len(one.ready):
                yield one, *one.act(explore, generator)


class _Stack:
    """Modules of the same structure, which act in one forward pass.

    Args:
        columns: The :class:`AgentColumns` of each module.
        modules: The modules as a stack, in the same order.
    """

    def __init__(self, columns: list[AgentColumns], modules: ModuleStack) -> None:
        self.columns, self.modules = columns, modules
        self._places = {id(one): i for i, one in enumerate(columns)}
        most = max(len(one.slots) for one in columns)
        self._obs = allocate_observations(columns[0].module.input_space, len(columns), most)
        map_leaves(lambda x: x.fill(0), self._obs)

    def act(
        self, ready: Sequence[AgentColumns], explore: bool
    ) -> Iterator[tuple[AgentColumns, list[int], Sequence[Any]]]:
        """Choose the actions of the agents in ``ready``, which are those of ``columns`` in which agents wait for an
        action. Yield the same as :meth:`ActingStacks.act`."""
        module, counts = self.modules.module, [len(one.ready) for one in ready]
        for one, count in zip(ready, counts, strict=True):
            write_row(self._obs, (self._places[id(one)], slice(count)), one.observed())
        most = max(counts)
        batch = {Columns.OBS: map_leaves(lambda x: torch.from_numpy(x[:, :most]), self._obs)}
        out = (module._forward_exploration if explore else module._forward_inference)(batch)[_INPUTS]
        logits = torch.cat([out[self._places[id(one)], :count] for one, count in zip(ready, counts, strict=True)])
        dist = ready[0].module.action_dist_cls.from_logits(logits)
        if explore:
            action = dist.sample_from(torch.cat([one.noise.take_of(one.ready) for one in ready]))
        else:
            action = dist.to_deterministic().sample()
        sent = ready[0].converted(action)
        rows, inputs = map_leaves(Tensor.numpy, action), logits.numpy()
        for one, (a, b) in zip(ready, itertools.pairwise(itertools.accumulate(counts, initial=0)), strict=True):
            yield one, one.record(map_leaves(lambda x, a=a, b=b: x[a:b], rows), inputs[a:b]), sent[a:b]


def _acting_pass(module: RLModule, batch: Batch) -> list[Tensor]:
    return [module._forward_exploration(batch)[_INPUTS], module._forward_inference(batch)[_INPUTS]]
