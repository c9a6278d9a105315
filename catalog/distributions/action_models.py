"""Nets that condition the later parts of an action on the earlier ones."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from gymnasium import Space
from torch import Tensor, nn
from torch.nn import functional

from catalog.activations import Activation, Init
from catalog.base import Tree
from catalog.distributions.autoregressive import AutoregressiveDistribution
from catalog.encoders.dense import DenseStack, Layer
from catalog.encoders.preprocessing import Vectorize
from catalog.model_config import DefaultModelConfig
from catalog.past import sampled_space


class ActionModel(nn.Module, ABC):
    """What an :class:`AutoregressiveDistribution` asks for the inputs of its parts; one of its own comes from the
    catalog's ``build_action_model``.

    Args:
        action_space: Space of one action.
    """

    def __init__(self, action_space: Space) -> None:
        super().__init__()
        self.vectorize = Vectorize(sampled_space(action_space), "action_space")

    def encode(self, actions: Tree) -> Tensor:
        """Code ``[..., E]`` of sampled actions: choices one-hot, all else as numbers, part after part."""
        return self.vectorize(actions)

    @abstractmethod
    def forward(self, inputs: Tensor, context: Tensor, code: Tensor) -> Tensor:
        """Inputs ``[..., D]`` of all parts, each given those before it.

        Those of a part may depend on the code of earlier parts only: later ones are 0 while an action is drawn. This is
        tried when a module is built, as far as the first weights show it. Add to ``inputs`` and do not replace them,
        else what a mask forbids is forbidden no longer.

        Args:
            inputs: Those of independent parts, ``[..., D]``.
            context: What else the head says, ``[..., C]``.
            code: That of :meth:`encode`, ``[..., E]``.
        """


class MADE(ActionModel):
    """Masked dense layers (Germain et al. 2015, "MADE: Masked Autoencoder for Distribution Estimation"): one net for
    all parts, in which nothing leads from a part to itself or to an earlier one.

    Every hidden unit belongs to a number from 1 to one less than there are parts. It sees the context, and of the code
    the parts up to that number; only later parts see it (eq. 12 and 13). Codes also lead to later parts directly
    (eq. 10). All of it starts by adding 0, so that the parts begin independent.

    Args:
        dist_cls: The distribution, bound to ``action_space``.
        action_space: Space of one action.
        hidden_dims: Widths of the hidden layers.
        activation: That of the hidden layers.
        init: How the hidden layers start.
        fixed: Which inputs stay as they are.
        bounds: Which inputs are kept within ``±bound``, and the bound.

    Raises:
        ValueError: If ``activation`` reads several units at once, as softmax does: past the masks it would lead from
            every part to every other.
    """

    direct_mask: Tensor
    free: Tensor
    low: Tensor
    high: Tensor

    def __init__(
        self,
        dist_cls: type[AutoregressiveDistribution],
        action_space: Space,
        *,
        hidden_dims: Sequence[int] = (64,),
        activation: Activation = "tanh",
        init: Init | None = None,
        fixed: Sequence[int] = (),
        bounds: tuple[Sequence[int], float] = ((), torch.inf),
    ) -> None:
        super().__init__(action_space)
        parts = [*enumerate(dist_cls.parts, 1)]
        # the number of the part that each number of the code, and each input, belongs to
        codes = torch.tensor([i for i, part in parts for _ in range(part.code.width)])
        outputs = torch.tensor([i for i, part in parts for _ in range(part.inputs.width)])
        context = torch.zeros(dist_cls.context_dim, dtype=torch.long)
        hidden = [1 + torch.arange(width) * (len(parts) - 1) // width for width in hidden_dims]
        seen = [torch.cat([context, codes]), *hidden]
        masks = [below.unsqueeze(0) <= above.unsqueeze(1) for below, above in pairwise(seen)]
        masks.append(seen[-1].unsqueeze(0) < outputs.unsqueeze(1))
        self.stack = _MaskedStack(masks, activation, init or Init())
        self.direct = nn.Parameter(torch.zeros(len(outputs), len(codes)))
        self.register_buffer("direct_mask", (codes.unsqueeze(0) < outputs.unsqueeze(1)).float(), persistent=False)
        free = torch.ones(len(outputs))
        free[list(fixed)] = 0
        self.register_buffer("free", free, persistent=False)
        high = torch.full((len(outputs),), torch.inf)
        high[list(bounds[0])] = bounds[1]
        self.clips = len(bounds[0]) > 0
        self.register_buffer("low", -high, persistent=False)
        self.register_buffer("high", high, persistent=False)

    @classmethod
    def of(
        cls, dist_cls: type[AutoregressiveDistribution], action_space: Space, model_config: DefaultModelConfig
    ) -> MADE:
        """As the settings say. Log standard deviations depend on earlier parts if they depend on the state."""
        log_stds = dist_cls.log_std_indices(action_space)
        return cls(
            dist_cls,
            action_space,
            hidden_dims=model_config.autoregressive_hiddens,
            activation=model_config.head_fcnet_activation,
            init=Init.of("head_fcnet", model_config),
            fixed=log_stds if model_config.free_log_std else (),
            bounds=(() if model_config.free_log_std else log_stds, model_config.log_std_clip_param),
        )

    def forward(self, inputs: Tensor, context: Tensor, code: Tensor) -> Tensor:
        added = self.stack(torch.cat([context, code], dim=-1))
        added = added + functional.linear(code, self.direct * self.direct_mask)
        out = torch.addcmul(inputs, added, self.free)
        return torch.clamp(out, self.low, self.high) if self.clips else out


class _MaskedStack(DenseStack):
    """Dense layers in which ``masks`` ``[outputs, inputs]`` say what leads where; the last layer starts at 0."""

    def __init__(self, masks: Sequence[Tensor], activation: Activation, init: Init) -> None:
        super().__init__(
            masks[0].shape[1],
            [len(mask) for mask in masks[:-1]],
            activation=activation,
            layernorm=False,  # which would let every unit see every other
            init=init,
            output_dim=len(masks[-1]),
            output_init=Init(kernel="zeros_", bias="zeros_"),
        )
        for i, (mask, (_, _, made, _)) in enumerate(zip(masks, self.layers, strict=True)):
            self.register_buffer(f"mask_{i}", mask.float(), persistent=False)
            if made is not None:
                _check_elementwise(made, len(mask), activation)

    def forward(self, x: Tensor) -> Tensor:
        """``[..., inputs] → [..., outputs]``."""
        masked: list[Layer] = []
        for i, (weights, norm, activation, hidden) in enumerate(self.layers):
            weight = weights["weight"] * self._buffers[f"mask_{i}"]
            masked.append(({**weights, "weight": weight}, norm, activation, hidden))
        return self.run(x, masked)


@torch.no_grad()
def _check_elementwise(made: Callable[[Tensor], Tensor], width: int, activation: Activation) -> None:
    """Try ``made`` on ``width`` units, of which one changes: only its own output may change with it."""
    tried = copy.deepcopy(made)
    if isinstance(tried, nn.Module):
        tried.eval()  # in training some draw random numbers, or count
    units = torch.linspace(-1, 1, width).repeat(2, 1)
    units[1, 0] += 10
    out = tried(units)
    if out.shape != units.shape or not torch.allclose(out[0, 1:], out[1, 1:], rtol=1e-5, atol=1e-6, equal_nan=True):
        raise ValueError(
            "activation of MADE, the model_config.head_fcnet_activation: expected one that reads "
            "each hidden unit alone, so that no part of an action tells of later ones, got "
            f"{activation!r}, which reads several at once. Choose another one, such as 'tanh' or "
            "'relu'."
        )
