"""Class that runs several neural modules of the same structure as a single module, with one batched matrix product per
layer."""

from __future__ import annotations

import copy
import logging
from collections.abc import Hashable, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from catalog.base import Tree
from catalog.encoders.dense import DenseStack
from catalog.encoders.shape_checks import untouched
from catalog.settings import settings_of
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import entry_of, map_leaves, random_observations
from rlmodule.modules.apis import ExplorationAPI, NoisyNetAPI, ValueFunctionAPI
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.shared_parts import tensors_at

logger = logging.getLogger(__name__)

# Number of observations per module with which a new stack is tried.
_ROWS = 3


class ModuleStack:
    """``M`` modules as a single module in train mode, whose forward passes take and return rows ``[M, B, ...]``.

    The single module is a copy of the first module. In the copy, each dense layer has the weights of all modules, as in
    a :class:`DenseEnsemble`. Every other parameter or buffer is ``[M, 1, ...]`` and broadcasts over the rows. The
    weights are copies, so call :meth:`refresh` before the first pass and whenever the weights of the modules have
    changed.

    Args:
        modules: The modules, whose structure must be the same; see :func:`structure_of`.

    Attributes:
        module: The copy of the first module.
        parameters: The parameters of the modules themselves (not copies), one module after another.
        weights: The parameters of all modules, ``[M, P]``, in the order of ``parameters()``.
        leaves: Views of ``weights`` that record gradients, one for each parameter: ``[M, in, out]`` for the weight
            matrix of a linear layer, otherwise ``[M, 1, ...]``.
    """

    def __init__(self, modules: Sequence[RLModule]) -> None:
        self.module = copy.deepcopy(modules[0]).train()
        self.parameters = [p for module in modules for p in module.parameters()]
        self._own_weights = [[p.detach().flatten() for p in module.parameters()] for module in modules]
        own = list(self.module.parameters())
        self._shapes = [p.shape for p in own]
        linear = {id(layer.weight) for layer in self.module.modules() if isinstance(layer, nn.Linear)}
        self._is_linear = [id(p) in linear for p in own]
        self.weights = own[0].new_zeros(len(modules), sum(p.numel() for p in own)).detach()
        self.leaves = [view.detach().requires_grad_() for view in self.views_of(self.weights)]
        leaf_of = {id(p): leaf for p, leaf in zip(own, self.leaves, strict=True)}
        buffers_of = [dict(module.named_buffers(remove_duplicate=False)) for module in modules]
        self._buffers: list[tuple[list[Tensor], Tensor]] = []  # buffers of the modules, and the stacked one
        for part in self.module.modules():
            if isinstance(part, DenseStack):
                part.take_members()
        saved = self.module.state_dict().keys()
        # torch's own setters would refuse tensors that are no nn.Parameter
        for name, (tensors, key) in tensors_at(self.module, "").items():
            if (leaf := leaf_of.get(id(tensors[key]))) is not None:
                tensors[key] = leaf
            elif name in saved:
                of_modules = [buffers[name] for buffers in buffers_of]
                stacked = torch.stack(of_modules)
                self._buffers.append((of_modules, stacked))
                tensors[key] = stacked.unsqueeze(1)

    def views_of(self, flat: Tensor) -> list[Tensor]:
        """Return for each parameter a view of its part of ``flat`` ``[M, P]``, in the shapes of ``leaves``."""
        views = list[Tensor]()
        pieces = flat.split([shape.numel() for shape in self._shapes], 1)
        for piece, shape, is_linear in zip(pieces, self._shapes, self._is_linear, strict=True):
            view = piece.view(-1, *shape)
            # torch keeps the weight of a linear layer as [out, in]
            views.append(view.transpose(1, 2) if is_linear else view.unsqueeze(1))
        return views

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the current weights and buffers of all modules into the stack."""
        for row, weights in zip(self.weights.unbind(), self._own_weights, strict=True):
            torch.cat(weights, out=row)
        for of_modules, stacked in self._buffers:
            torch.stack(of_modules, out=stacked)


def structure_of(module: RLModule) -> Hashable:
    """Return a key that is equal for modules of the same class with the same catalog class and settings, whose tensors
    have the same names, shapes and dtypes."""
    tensors = ((name, x.shape, x.dtype) for name, x in module.state_dict().items())
    config = module.model_config
    settings = [getattr(config, name) for name in settings_of(type(config))]  # its repr() shows those given alone
    return type(module), type(module.catalog), repr(settings), *tensors


def stack_of(modules: Sequence[RLModule]) -> ModuleStack | None:
    """Return ``modules``, which must have the same structure, as a stack. Return None if there is only one module, or
    if the stack's results for random observations differ from those of the separate modules."""
    first = modules[0]
    spaces = [(module.input_space, module.action_space) for module in modules]
    is_unlike = isinstance(first, ExplorationAPI | NoisyNetAPI) or first.is_stateful()
    is_unlike |= not first.action_dist_cls.inputs_suffice  # it reads parameters of its own module
    if len(modules) < 2 or any(of_module != spaces[0] for of_module in spaces) or is_unlike:
        return None
    obs = random_observations(first.input_space, len(modules) * _ROWS)
    obs = map_leaves(lambda x: x.unflatten(0, (len(modules), _ROWS)), obs)
    # Nets may have layers of any kind, of which some do not broadcast over [M, B]: so try it.
    try:
        with ExitStack() as trial:
            trial.enter_context(torch.random.fork_rng(devices=[]))
            stack = ModuleStack(modules)
            for module in (stack.module, *modules):
                trial.enter_context(untouched(module))
                module.train()
            stack.refresh()
            together = _outputs(stack.module, obs)
            if any(not torch.equal(stacked, torch.stack(of_modules)) for of_modules, stacked in stack._buffers):
                return None  # a pass changes a buffer, but refresh() never copies the stack's buffers back
            for i, module in enumerate(modules):
                for of_all, alone in zip(together, _outputs(module, entry_of(obs, i)), strict=True):
                    if not torch.allclose(of_all[i], alone, rtol=1e-4, atol=1e-5, equal_nan=True):
                        return None
    except Exception as error:  # such as a layer of another kind, which cannot take weights of several modules
        logger.debug("%s: not stacked: %r", type(first).__name__, error)
        return None
    return stack


def _outputs(module: RLModule, obs: Tree) -> list[Tensor]:
    """Return what a loss may read: the outputs of ``forward_train``, and the values if the module has any."""
    batch = {Columns.OBS: obs}
    out = module.forward_train(batch)
    outputs = [x for x in out.values() if isinstance(x, Tensor)]
    if isinstance(module, ValueFunctionAPI):
        outputs.append(module.compute_values(batch, out.get(Columns.EMBEDDINGS)))
    return outputs
