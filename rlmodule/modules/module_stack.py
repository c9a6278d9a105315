"""Class that runs several neural modules of the same structure as a single module, with one batched matrix product per
layer."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from catalog.base import Tree
from catalog.encoders.dense import DenseStack
from catalog.encoders.shape_checks import untouched
from catalog.settings import settings_of
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import allocate_observations, as_tensors, entry_of, write_row
from rlmodule.modules.apis import ExplorationAPI, NoisyNetAPI
from rlmodule.modules.rl_module import RLModule

logger = logging.getLogger(__name__)

# Number of observations per module with which a new stack is tried.
_ROWS = 3


class ModuleStack:
    """``M`` modules as a single module, whose forward passes take and return rows ``[M, B, ...]``.

    The single module is a copy of the first module. In the copy, each dense layer has the weights of all modules, as in
    a :class:`DenseEnsemble`. Every other parameter or buffer is ``[M, 1, ...]`` and broadcasts over the rows. The
    weights are copies, so call :meth:`refresh` before the first pass and whenever the weights of the modules have
    changed.

    Args:
        modules: The modules, whose structure must be the same; see :func:`structure_of`.
        training: Whether the copy is in train mode and its passes record gradients.

    Attributes:
        module: The copy of the first module.
        parameters: For each module, the list of its own parameters (not copies).
        weights: The parameters of all modules, ``[M, P]``, in the order of ``parameters()``.
        leaves: Views of ``weights``, one for each parameter: ``[M, in, out]`` for the weight matrix of a linear layer,
            otherwise ``[M, 1, ...]``.
    """

    def __init__(self, modules: Sequence[RLModule], *, training: bool) -> None:
        self.module, self.parameters = copy.deepcopy(modules[0]).train(training), [[*x.parameters()] for x in modules]
        self._shapes = [(p, p.shape) for p in self.module.parameters()]
        self._linear = {id(x.weight) for x in self.module.modules() if isinstance(x, nn.Linear)}
        self.weights = torch.cat([p.new_zeros(len(modules), p.numel()) for p, _ in self._shapes], 1).detach()
        self.leaves = [x.detach().requires_grad_(training) for x in self.views_of(self.weights)]
        leaf_of = {id(p): leaf for (p, _), leaf in zip(self._shapes, self.leaves, strict=True)}
        buffers_of = [dict(module.named_buffers(remove_duplicate=False)) for module in modules]
        self._buffers: list[tuple[list[Tensor], Tensor]] = []  # buffers of the modules, and the stacked one
        for path, part in self.module.named_modules():
            if isinstance(part, DenseStack):
                part.take_members()
            own: dict[str, Any] = part._parameters
            own |= {name: leaf_of[id(p)] for name, p in own.items() if p is not None}
            for name in part._buffers.keys() - part._non_persistent_buffers_set:
                of_each = [of[f"{path}.{name}" if path else name] for of in buffers_of]
                self._buffers.append((of_each, torch.stack(of_each)))
                part._buffers[name] = self._buffers[-1][1].unsqueeze(1)

    def views_of(self, flat: Tensor) -> list[Tensor]:
        """Return for each parameter a view of its part of ``flat`` ``[M, P]``, in the shapes of ``leaves``."""
        views, start = list[Tensor](), 0
        for p, shape in self._shapes:
            view = flat[:, start : start + shape.numel()].view(-1, *shape)
            views.append(view.transpose(1, 2) if id(p) in self._linear else view.unsqueeze(1))
            start += shape.numel()
        return views

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the current weights and buffers of all modules into the stack."""
        for row, own in zip(self.weights.unbind(), self.parameters, strict=True):
            torch.cat([p.flatten() for p in own], out=row)
        for of_each, kept in self._buffers:
            torch.stack(of_each, out=kept)


def structure_of(module: RLModule) -> Hashable:
    """Return a key that is equal for modules of the same class with the same catalog class and settings, whose tensors
    have the same names, shapes and dtypes."""
    tensors = ((name, x.shape, x.dtype) for name, x in module.state_dict().items())
    config = module.model_config
    settings = [getattr(config, name) for name in settings_of(type(config))]  # its repr() shows those given alone
    return type(module), type(module.catalog), repr(settings), *tensors


def stack_of(
    modules: Sequence[RLModule], compute: Callable[[RLModule, Batch], Sequence[Tensor]], *, training: bool = False
) -> ModuleStack | None:
    """Return ``modules``, which must have the same structure, as a stack. Return None if there is only one module or if
    the stack's results would differ from those of the separate modules.

    Args:
        modules: The modules.
        compute: The pass that the stack will run, which returns tensors with one entry per row. It is tried with the
            stack and with each module on random observations, and the results are compared.
        training: See :class:`ModuleStack`.
    """
    first = modules[0]
    spaces = [(module.input_space, module.action_space) for module in modules]
    apart = isinstance(first, ExplorationAPI | NoisyNetAPI) or first.is_stateful()
    apart |= not first.action_dist_cls.inputs_suffice  # it reads parameters of its own module
    if len(modules) < 2 or any(of != spaces[0] for of in spaces) or apart:
        return None
    obs = _observations(first, len(modules))
    try:
        with ExitStack() as trial:
            trial.enter_context(torch.random.fork_rng(devices=[]))
            stack = ModuleStack(modules, training=training)
            for module in (stack.module, *modules):
                trial.enter_context(untouched(module))
                module.train(training)
            stack.refresh()
            together = compute(stack.module, {Columns.OBS: obs})
            alone = [compute(module, {Columns.OBS: entry_of(obs, i)}) for i, module in enumerate(modules)]
            close = [
                torch.allclose(all_of[i], one, rtol=1e-4, atol=1e-5, equal_nan=True)
                for i, outputs in enumerate(alone)
                for all_of, one in zip(together, outputs, strict=True)
            ]
    except Exception as error:  # such as a layer of another kind, which cannot take weights of several modules
        logger.debug("%s: not stacked: %r", type(first).__name__, error)
        return None
    return stack if all(close) else None


def _observations(module: RLModule, num: int) -> Tree:
    """Return random observations for ``num`` modules like ``module``, three for each, as a tree of tensors
    ``[num, 3, ...]``. They are the same in each call."""
    space = copy.deepcopy(module.input_space)
    space.seed(0)
    obs = allocate_observations(space, num, _ROWS)
    for index in np.ndindex(num, _ROWS):
        write_row(obs, index, space.sample())
    return as_tensors(obs)
