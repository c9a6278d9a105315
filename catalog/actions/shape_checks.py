"""Checks that call action embeddings and action models with samples when a module is built."""

import torch
from gymnasium import Space
from torch import Tensor

from catalog.actions.embeddings import ActionEmbeddings
from catalog.distributions.action_models import MADE
from catalog.distributions.autoregressive import AutoregressiveDistribution
from catalog.encoders.shape_checks import check_floats, numbers_of, try_net
from catalog.spaces import zero_batch


def check_action_embeddings(embeddings: ActionEmbeddings, observation_space: Space, count: int, where: str) -> None:
    """Check that ``embeddings`` maps intents ``[2, width]`` and two observations to logits ``[2, count]``.

    The batch size is 2 because with a batch of 1 a module that drops the batch dim would pass by broadcasting.

    Args:
        embeddings: The module, whose train or eval mode does not change.
        observation_space: Space of one observation of the env.
        count: Number of actions.
        where: The function that made the module, for error messages.

    Raises:
        ValueError: If the module does not accept these inputs, or returns a wrong shape.
    """
    intents = torch.zeros(2, embeddings.width)
    takes = f"a module that multiplies intents of shape {tuple(intents.shape)} with the vectors of the actions"
    remedy = f"Let its net map each vector to {embeddings.width} numbers, the value of width."
    out = try_net(embeddings, (intents, zero_batch(observation_space, (2,))), where, takes, remedy)
    expected = f"logits of shape (2, {count}) for two intents"
    check_floats(out, (2, count), where, expected, "Keep the batch dim and that of the actions.")


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
    whole = _some_code(dist_cls)
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


def _some_code(dist_cls: type[AutoregressiveDistribution]) -> Tensor:
    """Return an action as a vector ``[E]``, as :meth:`ActionModel.encode` does, in which no part is all zeros."""
    code = torch.zeros(dist_cls.code_dim)
    for part in dist_cls.parts:
        if part.nvec:
            part.code.of(code)[torch.tensor(part.nvec).cumsum(0) - 1] = 1.0
        else:
            width = part.code.width
            part.code.of(code).copy_(torch.ones(width) if part.num_values == 2 else numbers_of(width))
    return code
