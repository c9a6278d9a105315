"""Nets tried on zero samples when they are built, so that what does not fit is said then and with a name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from gymnasium import Space
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from catalog.base import Encoder, EncoderOutput, Tree
from catalog.spaces import zero_batch

T = TypeVar("T")

_OF_SAMPLES = (
    "Samples come as batches of tensors, in the structure and the dtypes of the space; an image of bytes is made "
    "numbers by x.float() / 255, and channels last become first by x.movedim(-1, -3)."
)
"""What to do where a net does not take observations."""


def check_encoder(
    encoder: Encoder,
    space: Space,
    where: str,
    declared: tuple[int, ...] | None = None,
    path: str = "observation_space",
) -> tuple[int, ...]:
    """Shape of one latent of ``encoder``, which keeps its mode and its buffers.

    Args:
        encoder: The net, tried on a batch of two; a stateful one on two steps of three, from its initial state.
        space: Space of one observation.
        where: What made the net, for messages.
        declared: What the shape ought to be, if that is known.
        path: What the space is called in messages.

    Raises:
        ValueError: If it does not take observations of ``space``, gives anything but one latent of one dim for each, in
            the dtype of a new head, has an initial state that is not of tensors, or hands on one of another form.
    """
    initial = encoder.get_initial_state()
    leading = (2,) if initial is None else (2, 3)
    memory: dict[str, Any] = {}
    if initial is not None:
        state = _map(lambda x: _state_part(x, where).expand(3, *x.shape).clone(), initial)
        memory = {"state": state, "starts": torch.zeros(leading, dtype=torch.bool)}
    batch = ", ".join(map(str, leading))
    takes = f"a module that takes observations of shape ({batch}, ...) of {space}"
    out = try_net(encoder, (zero_batch(space, leading, path),), where, takes, **memory)
    if not isinstance(out, EncoderOutput) or not isinstance(out.latent, Tensor):
        got = (
            f"an EncoderOutput of {type(out.latent).__name__}" if isinstance(out, EncoderOutput) else type(out).__name__
        )
        raise ValueError(
            f"{where}: expected one tensor of latents, got {got}. Return the latent; an Encoder "
            "returns EncoderOutput(latent, state)."
        )
    shape = tuple(out.latent.shape)
    dims = shape[len(leading) :]
    if shape[: len(leading)] != leading or len(dims) != 1 or declared not in (None, dims):
        width = declared[0] if declared is not None and len(declared) == 1 else "D"
        raise ValueError(
            f"{where}: expected latents of shape ({batch}, {width}) for observations of shape "
            f"({batch}, ...), got shape {shape}. Flatten the output, keep the batch dim, and let "
            "output_dims say its width."
        )
    if out.latent.dtype != (dtype := torch.get_default_dtype()):
        raise ValueError(
            f"{where}: expected latents of {dtype}, as heads take them, got {out.latent.dtype}. "
            "Return such latents, by latent.float() for example."
        )
    before, after = (_map(_form, state) for state in (memory.get("state"), out.state))
    if before != after:
        raise ValueError(
            f"{where}: expected a next state shaped like get_initial_state() with a batch dim, "
            f"{before}, got {after}. Return it as the state of the EncoderOutput; None where "
            "get_initial_state() is None."
        )
    return dims


def check_head(head: nn.Module, input_dims: tuple[int, ...], output_dim: int, where: str) -> nn.Module:
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
        raise TypeError(
            f"{where}: expected an nn.Module from latents to outputs, got {head!r}. Return a "
            "module, such as nn.Linear(64, 2)."
        )
    takes = f"a module that takes latents of shape {(1, *input_dims)}"
    out = try_net(head, (torch.zeros(1, *input_dims),), where, takes)
    shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
    if shape != (1, output_dim):
        raise ValueError(
            f"{where}: expected outputs of shape (1, {output_dim}) for one latent, got {shape}. "
            "Give its last layer as many outputs: the catalog's action_head_dim for actions, 1 "
            "for a value."
        )
    return head


def numbers_of(width: int) -> Tensor:
    """Some that differ, in [-1, 1] and not 0, drawn from nowhere."""
    return torch.arange(1, width + 1, dtype=torch.float32).sin()


@contextmanager
def untouched(net: nn.Module) -> Iterator[None]:
    """Eval mode without gradient for a trial, which leaves modes and buffers as they were."""
    modes = {module: module.training for module in net.modules()}
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in modes
        for name, buffer in module._buffers.items()
        if buffer is not None and not is_lazy(buffer)
    ]
    net.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
        for module, name, buffer, before in buffers:
            module._buffers[name] = buffer
            with torch.no_grad():
                buffer.copy_(before)


def tried(call: Callable[[], T], samples: Tree, where: str, takes: str, remedy: str = "") -> T:
    """What ``call`` makes of ``samples``, which it must leave as they are.

    Raises:
        ValueError: If it does not take them, or changes them in place.
    """
    leaves: list[Tensor] = []
    _map(leaves.append, samples)
    versions = [leaf._version for leaf in leaves]
    try:
        out = call()
    except Exception as error:
        if ": expected " in str(error):  # explained where it was raised
            raise
        got = f"{type(error).__name__}: {error}"
        raise ValueError(f"{where}: expected {takes}, got {got}. {remedy or _OF_SAMPLES}") from error
    if versions != [leaf._version for leaf in leaves]:
        expected, got = "a net that leaves its input as it is", "one that changes it in place"
        remedy = "Use operations that make a new tensor, such as clamp() for clamp_() and nn.ReLU() without inplace."
        raise ValueError(f"{where}: expected {expected}, got {got}. {remedy}")
    return out


def try_net(net: nn.Module, samples: tuple[Tree, ...], where: str, takes: str, remedy: str = "", **memory: Any) -> Any:
    """``net(*samples)`` in eval mode, without gradient."""
    with untouched(net):
        return tried(lambda: net(*samples, **memory), samples, where, takes, remedy)


def _state_part(part: Any, where: str) -> Tensor:
    """``part`` of an initial state, which must be a tensor."""
    if isinstance(part, Tensor):
        return part
    raise ValueError(
        f"{where}: expected a tensor, or a dict or tuple of them, from get_initial_state(), got "
        f"{part!r}. Make tensors of all its parts, such as torch.zeros(64), and tuples of lists; "
        "None alone is for no state."
    )


def _form(part: Any) -> Any:
    """What the initial state and a next one have in common in each part."""
    return tuple(part.shape) if isinstance(part, Tensor) else None if part is None else type(part).__name__


def _map(function: Any, nested: Tree | None) -> Any:
    """``function`` of each part of a state that is not nested."""
    if isinstance(nested, Mapping):
        return {key: _map(function, part) for key, part in nested.items()}
    if isinstance(nested, tuple):
        return tuple(_map(function, part) for part in nested)
    return function(nested)
