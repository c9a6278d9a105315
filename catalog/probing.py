"""Nets tried on one zero sample when they are built, so that what does not fit is said then and with a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import Space
from torch import Tensor, nn

from catalog.base import Encoder, EncoderOutput, Tree
from catalog.errors import explain_error
from catalog.spaces import zero_batch


def probe_encoder(
    encoder: Encoder, space: Space, where: str, declared: tuple[int, ...] | None = None
) -> tuple[int, ...]:
    """Shape of one latent of ``encoder``, which keeps its mode and its running statistics.

    Args:
        encoder: The net; a stateful one is tried on one step from its initial state.
        space: Space of one observation.
        where: What made the net, for messages.
        declared: What the shape ought to be, if that is known.

    Raises:
        ValueError: If it does not take observations of ``space``, gives anything but one latent of one dim, or hands on
            a state of another form than its initial one.
    """
    initial = encoder.get_initial_state()
    leading = (1,) if initial is None else (1, 1)
    memory: dict[str, Any] = {}
    if initial is not None:
        memory = {"state": _map(lambda x: x.unsqueeze(0), initial), "starts": torch.zeros(1, 1, dtype=torch.bool)}
    batch = ", ".join(map(str, leading))
    takes = f"a module that takes observations of shape ({batch}, ...) of {space}"
    out = _tried(encoder, zero_batch(space, leading), where, takes, **memory)
    if not isinstance(out, EncoderOutput) or not isinstance(out.latent, Tensor):
        got = (
            f"an EncoderOutput of {type(out.latent).__name__}" if isinstance(out, EncoderOutput) else type(out).__name__
        )
        remedy = "Return the latent; an Encoder returns EncoderOutput(latent, state)."
        raise ValueError(explain_error(where, expected="one tensor of latents", got=got, remedy=remedy))
    shape = tuple(out.latent.shape)
    dims = shape[len(leading) :]
    if shape[: len(leading)] != leading or len(dims) != 1 or declared not in (None, dims):
        width = declared[0] if declared is not None and len(declared) == 1 else "D"
        expected = f"latents of shape ({batch}, {width}) for one observation"
        remedy = "Flatten the output, keep the batch dim, and let output_dims say its width."
        raise ValueError(explain_error(where, expected=expected, got=f"shape {shape}", remedy=remedy))
    before, after = (_map(lambda x: tuple(x.shape), state) for state in (memory.get("state"), out.state))
    if before != after:
        expected = f"a next state shaped like get_initial_state() with a batch dim, {before}"
        remedy = "Return it as the state of the EncoderOutput; None where get_initial_state() is None."
        raise ValueError(explain_error(where, expected=expected, got=str(after), remedy=remedy))
    return dims


def probe_head(head: nn.Module, input_dims: tuple[int, ...], output_dim: int, where: str) -> nn.Module:
    """``head`` itself, if it makes ``[1, output_dim]`` of a latent ``[1, *input_dims]``.

    Args:
        head: The net; keeps its mode.
        input_dims: Shape of one latent.
        output_dim: How many outputs are needed.
        where: What made the net, for messages.

    Raises:
        TypeError: If it is no module.
        ValueError: If it does not take the latent, or gives another shape.
    """
    if not isinstance(head, nn.Module):
        expected, remedy = "an nn.Module from latents to outputs", "Return a module, such as nn.Linear(64, 2)."
        raise TypeError(explain_error(where, expected=expected, got=repr(head), remedy=remedy))
    out = _tried(head, torch.zeros(1, *input_dims), where, f"a module that takes latents of shape {(1, *input_dims)}")
    shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
    if shape != (1, output_dim):
        remedy = "Give its last layer as many outputs: the catalog's action_head_dim for actions, 1 for a value."
        expected = f"outputs of shape (1, {output_dim}) for one latent"
        raise ValueError(explain_error(where, expected=expected, got=str(shape), remedy=remedy))
    return head


def _tried(net: nn.Module, sample: Tree, where: str, takes: str, **memory: Any) -> Any:
    """``net(sample)`` in eval mode, without gradient."""
    modes = {module: module.training for module in net.modules()}
    net.eval()  # one sample must not touch running statistics of batch norm
    try:
        with torch.no_grad():
            return net(sample, **memory)
    except Exception as error:
        if ": expected " in str(error):  # explained where it was raised
            raise
        got = f"{type(error).__name__}: {error}"
        remedy = (
            "Samples come as batches of tensors, in the structure and the dtypes of the space; an image of bytes is "
        )
        remedy += "made numbers by x.float() / 255, and channels last become first by x.movedim(-1, -3)."
        raise ValueError(explain_error(where, expected=takes, got=got, remedy=remedy)) from error
    finally:
        for module, training in modes.items():
            module.training = training


def _map(function: Any, tree: Tree | None) -> Any:
    """``function`` of each tensor of a state."""
    if isinstance(tree, Mapping):
        return {key: _map(function, part) for key, part in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(_map(function, part) for part in tree)
    return None if tree is None else function(tree)
