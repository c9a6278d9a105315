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
from catalog.encoders.shape_checks import check_floats, numbers_of, try_net
from catalog.model_config import DefaultModelConfig
from catalog.past import sampled_space


class ActionModel(nn.Module, ABC):
    """Base of nets that compute the inputs of each part of an :class:`AutoregressiveDistribution` from earlier parts.
    Override ``forward``. To use a custom net, return it from ``build_action_model`` of a catalog.

    Args:
        action_space: Space of one action.
    """

    def __init__(self, action_space: Space) -> None:
        super().__init__()
        self.vectorize = Vectorize(sampled_space(action_space), "action_space")

    def encode(self, actions: Tree) -> Tensor:
        """Return ``actions`` as vectors ``[..., E]``: parts in order, choices one-hot, bits and floats unchanged."""
        return self.vectorize(actions)

    @abstractmethod
    def forward(self, inputs: Tensor, context: Tensor, code: Tensor) -> Tensor:
        """Compute the inputs ``[..., D]`` of all parts, each given the parts before it.

        The inputs of a part may depend on the code of earlier parts only, because the code of all other parts is still
        0 when the part is sampled. Building a module tests this with the initial weights. Add to ``inputs`` instead of
        replacing them, because the logits of masked actions must stay as low as they are.

        Args:
            inputs: Inputs of independent parts, ``[..., D]``, from the policy head.
            context: Additional outputs of the policy head, ``[..., C]``.
            code: Code of an action from :meth:`encode`, ``[..., E]``.
        """


class MADE(ActionModel):
    """Masked dense layers (Germain et al. 2015, "MADE: Masked Autoencoder for Distribution Estimation"): one net for
    all parts, in which no connection leads from the code of a part to the inputs of that part or of an earlier part.

    "Inputs" means the inputs of the distribution, to which the net adds its output. Every hidden unit has a number from
    1 to the number of parts minus 1. The unit sees the context and the code of the parts up to that number, and affects
    only the inputs of later parts (eq. 12 and 13). Codes are also connected to the inputs of later parts directly
    (eq. 10). With its initial weights the net adds 0, so that the parts are independent.

    Args:
        dist_cls: The distribution, bound to ``action_space``.
        action_space: Space of one action.
        hidden_dims: Widths of the hidden layers.
        activation: Activation of the hidden layers.
        init: Initialisers of the hidden layers.
        fixed: Indices of the inputs that the net does not change.
        bounds: ``(indices, bound)``: the net clamps the inputs at these indices to ``±bound``.

    Raises:
        ValueError: If ``activation`` reads several units at once, as softmax does, because it would connect parts that
            the masks separate.
    """

    direct_mask: Tensor
    free: Tensor

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
        # number of the part that each entry of the code and each input belongs to; all units see the context, number 0
        codes = torch.tensor([i for i, part in parts for _ in range(part.code.width)])
        outputs = torch.tensor([i for i, part in parts for _ in range(part.inputs.width)])
        context = torch.zeros(dist_cls.context_dim, dtype=torch.long)
        # unit numbers spread evenly over 1 … parts - 1
        hidden = [1 + torch.arange(width) * (len(parts) - 1) // width for width in hidden_dims]
        seen = [torch.cat([context, codes]), *hidden]
        # a unit sees the numbers up to its own (eq. 12); outputs see lower numbers only (eq. 13)
        masks = [below.unsqueeze(0) <= above.unsqueeze(1) for below, above in pairwise(seen)]
        masks.append(seen[-1].unsqueeze(0) < outputs.unsqueeze(1))
        self.stack = _MaskedStack(masks, activation, init or Init())
        self.direct = nn.Parameter(torch.zeros(len(outputs), len(codes)))
        self.register_buffer("direct_mask", (codes.unsqueeze(0) < outputs.unsqueeze(1)).float(), persistent=False)
        free = torch.ones(len(outputs))
        free[list(fixed)] = 0
        self.register_buffer("free", free, persistent=False)
        self.stack.bound_outputs(*bounds)

    @classmethod
    def of(
        cls, dist_cls: type[AutoregressiveDistribution], action_space: Space, model_config: DefaultModelConfig
    ) -> MADE:
        """Build the net for actions of ``action_space``, which ``dist_cls`` splits into parts. The settings
        ``autoregressive_hiddens`` and ``head_fcnet_*`` give its hidden layers.

        Log standard deviations depend on earlier parts only if they also depend on the state (``free_log_std=False``).
        """
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
        return self.stack.bounded(torch.addcmul(inputs, added, self.free))


class _MaskedStack(DenseStack):
    """Dense layers with one of ``masks``, each ``[outputs, inputs]``, for the weights of each layer, the output layer
    included. The initial weights and biases of the last layer are 0. Norm layers are not supported, because they
    connect every unit to every other."""

    def __init__(self, masks: Sequence[Tensor], activation: Activation, init: Init) -> None:
        super().__init__(
            masks[0].shape[1],
            [len(mask) for mask in masks[:-1]],
            activation=activation,
            init=init,
            output_dim=len(masks[-1]),
            output_init=Init(kernel="zeros_", bias="zeros_"),
        )
        for i, (mask, layer) in enumerate(zip(masks, self.layers, strict=True)):
            self.register_buffer(f"mask_{i}", mask.float(), persistent=False)
            if layer.activation is not None:
                _check_elementwise(layer.activation, len(mask), activation)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[..., inputs] → [..., outputs]``."""
        masked: list[Layer] = []
        for i, layer in enumerate(self.layers):
            assert layer.linear is not None  # a stack without blocks
            weight = layer.linear["weight"] * self._buffers[f"mask_{i}"]
            masked.append(layer._replace(linear={**layer.linear, "weight": weight}))
        return self.run(x, masked)


@torch.no_grad()
def _check_elementwise(made: Callable[[Tensor], Tensor], width: int, activation: Activation) -> None:
    """Raise ``ValueError`` if a change of the first of ``width`` inputs of ``made`` changes any output but the first.

    Args:
        made: The activation as a function or module.
        width: Number of units to call it with.
        activation: The activation as the setting gives it, for the error message.
    """
    tried = copy.deepcopy(made)
    if isinstance(tried, nn.Module):
        tried.eval()  # some activations draw random numbers or change state in training mode
    units = torch.linspace(-1, 1, width).repeat(2, 1)
    units[1, 0] += 10
    out = tried(units)
    if out.shape != units.shape or not torch.allclose(out[0, 1:], out[1, 1:], rtol=1e-5, atol=1e-6, equal_nan=True):
        raise ValueError(
            "activation of MADE, the model_config.head_fcnet_activation: expected one that reads "
            "each hidden unit alone, so that no part of an action depends on later ones, got "
            f"{activation!r}, which reads several at once. Choose another one, such as 'tanh' or "
            "'relu'."
        )


def check_action_model(dist_cls: type[AutoregressiveDistribution], where: str) -> None:
    """Check that the inputs which an action model computes for a part of an action depend on earlier parts only.

    The check calls the model with its current weights for one action: with the code of the whole action, which is its
    flat vector from :meth:`ActionModel.encode`, and with the partial codes, 0 for later parts, that the model gets
    while it samples that action. The inputs of each part must be the same in both.

    Args:
        dist_cls: The distribution, bound to a module. The train or eval mode of its action model does not change.
        where: Name of the model in error messages.

    Raises:
        ValueError: If the model does not accept inputs, context and code, if it returns a wrong shape, or if the inputs
            of a part depend on that part or on later ones; names the part.
    """
    model, parts = dist_cls.model, dist_cls.parts
    if model is None or type(model) is MADE:  # MADE's masks guarantee the independence
        return
    # the most likely action of inputs that grow: last choices, bits of 1 and numbers other than 0, so no code is all 0
    growing = torch.linspace(0.5, 1, dist_cls.width).unsqueeze(0)
    (whole,) = model.encode(dist_cls.independent.from_logits(growing).to_deterministic().sample())
    starts = torch.tensor([part.code.start for part in parts])
    drawn = whole.masked_fill(torch.arange(len(whole)) >= starts.unsqueeze(-1), 0.0)
    # one row per part, as known when that part is sampled, and a last row with the whole action
    codes = torch.cat([drawn, whole.unsqueeze(0)])
    inputs, context = (numbers_of(width).expand(len(codes), -1) for width in (dist_cls.width, dist_cls.context_dim))
    shapes = ", ".join(str((1, x.shape[-1])) for x in (inputs, context, codes))
    takes = f"a module that takes inputs, context and code of shapes {shapes}"
    remedy = "See ActionModel.forward for what it gets and returns."
    out = try_net(model, (inputs, context, codes), where, takes, remedy)
    shape, remedy = (len(codes), dist_cls.width), "Return the inputs of all parts, as wide as those it gets."
    check_floats(out, shape, where, f"inputs of shape {shape} for {len(codes)} actions", remedy)
    for i, part in enumerate(parts):
        if not torch.allclose(part.inputs.of(out[i]), part.inputs.of(out[-1]), rtol=1e-5, atol=1e-6, equal_nan=True):
            raise ValueError(
                f"{where}: expected inputs of the part {part.name!r} that depend on earlier parts only, got "
                "others once that part and later ones are known. Let forward() read only the code of earlier "
                "parts for each part: the rest is 0 while an action is sampled, and its log-probability would "
                "be wrong."
            )
