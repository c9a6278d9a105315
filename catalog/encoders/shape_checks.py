"""Checks that call new nets with samples, so that errors appear early and name the net."""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import tree
from gymnasium import Space
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from catalog.base import Encoder, EncoderOutput, Tree
from catalog.spaces import zero_batch

T = TypeVar("T")

# remedy for a net that does not take observations
_OF_SAMPLES = (
    "Samples come as batches of tensors, in the structure and the dtypes of the space: convert images of bytes with "
    "x.float() / 255, and move channels from last to first with x.movedim(-1, -3)."
)


def check_encoder(
    encoder: Encoder, space: Space, where: str, declared: tuple[int, ...] | None = None, path: str = "observation_space"
) -> tuple[int, ...]:
    """Check that ``encoder`` encodes observations of ``space``, and return the shape of one latent.

    Args:
        encoder: The net. The check calls it with a batch of 2, or with ``[T, B] = [2, 3]`` and its initial state if it
            is stateful. Its train or eval mode and its buffers do not change.
        space: Space of one observation.
        where: The function that made the net, for error messages.
        declared: The shape that one latent must have; None accepts a vector of any width.
        path: Name of the space in error messages.

    Raises:
        ValueError: If the encoder does not accept observations of ``space``, does not return one latent of the expected
            shape and torch's default dtype for each, has an initial state that does not consist of tensors, or returns
            a next state that does not have the form of the initial state.

    Warns if the latents have no gradient although the encoder has parameters to train.
    """
    initial = encoder.get_initial_state()
    leading = (2,)  # with a batch of 1, a net that drops the batch dim would pass by broadcasting
    memory: dict[str, Any] = {"state": None}
    if initial is not None:
        check_state(initial, where)
        leading = (2, 3)
        state = tree.map_structure(lambda x: x.expand(3, *x.shape).clone(), initial)
        memory = {"state": state, "starts": torch.zeros(leading, dtype=torch.bool)}
    batch = ", ".join(map(str, leading))
    takes = f"a module that takes observations of shape ({batch}, ...) of {space}"
    out = try_net(encoder, (zero_batch(space, leading, path),), where, takes, **memory)
    latent = out.latent if isinstance(out, EncoderOutput) else None
    if not isinstance(latent, Tensor):
        got = f"an EncoderOutput of {type(latent).__name__}" if isinstance(out, EncoderOutput) else type(out).__name__
        raise ValueError(
            f"{where}: expected one tensor of latents, got {got}. Return the latent; an Encoder "
            "returns EncoderOutput(latent, state)."
        )
    dims = tuple(latent.shape[-1:]) if declared is None else declared
    width = declared[0] if declared is not None and len(declared) == 1 else "D"
    expected = f"latents of shape ({batch}, {width}) for observations of shape ({batch}, ...)"
    remedy = "Flatten the output, keep the batch dim, let output_dims say its width, and return float32 as heads take."
    check_floats(latent, (*leading, *dims), where, expected, remedy, torch.get_default_dtype())
    check_next_state(memory["state"], out.state, where)
    if not latent.requires_grad and any(parameter.requires_grad for parameter in encoder.parameters()):
        warnings.warn(
            f"{where}: expected latents with a gradient, got some without, so no loss of heads trains the encoder. "
            "Leave out detach() and torch.no_grad(), or freeze its parameters with requires_grad_(False).",
            stacklevel=2,
        )
    return dims


def check_head(head: nn.Module, input_dims: tuple[int, ...], output_dim: int, where: str) -> nn.Module:
    """Check that ``head`` maps a latent ``[1, *input_dims]`` to ``[1, output_dim]``, and return ``head``.

    Args:
        head: The net, whose train or eval mode does not change.
        input_dims: Shape of one latent.
        output_dim: Number of outputs that ``head`` must have.
        where: The function that made the net, for error messages.

    Raises:
        TypeError: If ``head`` is not a module.
        ValueError: If ``head`` does not accept the latent, or returns a wrong shape.
    """
    if not isinstance(head, nn.Module):
        raise TypeError(
            f"{where}: expected an nn.Module from latents to outputs, got {head!r}. Return a "
            "module, such as nn.Linear(64, 2)."
        )
    takes = f"a module that takes latents of shape {(1, *input_dims)}"
    remedy = "Give its first layer as many inputs as the encoder has outputs: the catalog's latent_dims."
    out = try_net(head, (torch.zeros(1, *input_dims),), where, takes, remedy)
    expected = f"outputs of shape (1, {output_dim}) for one latent"
    remedy = "Give its last layer as many outputs: the catalog's action_head_dim for actions, 1 for a value."
    check_floats(out, (1, output_dim), where, expected, remedy)
    return head


def check_floats(
    found: Any, shape: tuple[int, ...], where: str, expected: str, remedy: str, dtype: torch.dtype | None = None
) -> None:
    """Check that ``found`` is a tensor of floats with this ``shape`` and, unless it is None, this ``dtype``.

    Raises:
        ValueError: If ``found`` is anything else. The message consists of ``where``, ``expected``, what was found, and
            ``remedy``.
    """
    shown = found.shape if isinstance(found, Tensor) else None
    if shown != shape or not found.is_floating_point() or dtype not in (None, found.dtype):
        got = type(found).__name__ if shown is None else f"shape {tuple(shown)} of {found.dtype}"
        raise ValueError(f"{where}: expected {expected}, got {got}. {remedy}")


def check_state(state: Tree, where: str) -> None:
    """Check that an initial state consists of tensors, dicts and tuples, which is what rollouts can store. Error texts
    begin with ``where``.

    Raises:
        ValueError: If ``state`` contains anything else.
    """
    parts = [state]
    for part in parts:  # the loop appends nested parts
        if isinstance(part, Mapping | tuple):
            parts += part.values() if isinstance(part, Mapping) else part
        elif not isinstance(part, Tensor):
            raise ValueError(
                f"{where}: expected a tensor, or dicts and tuples of them, from get_initial_state(), got a "
                f"{type(part).__name__} in it. Return a tuple for a list, and a tensor such as torch.zeros(64) for "
                "each part; None alone is for no state."
            )


def check_next_state(before: Tree | None, after: Tree | None, where: str) -> None:
    """Check that the state ``after`` a step has the structure, shapes and dtypes of the state ``before`` it. None means
    that there is no state. Error texts begin with ``where``.

    Raises:
        ValueError: If the structure, a shape or a dtype differs.
    """
    expected, got = (tree.map_structure(_form, state) for state in (before, after))
    if expected != got:
        raise ValueError(
            f"{where}: expected a next state shaped like get_initial_state() with a batch dim, {expected}, got {got}. "
            "Return the states after the last row, [B, ...], in that structure; None where there is no state."
        )


def _form(part: Any) -> Any:
    return (tuple(part.shape), part.dtype) if isinstance(part, Tensor) else None if part is None else type(part)


def numbers_of(width: int) -> Tensor:
    """Return a vector of ``width`` different numbers in [-1, 1], none of them 0, without drawing random numbers."""
    return torch.arange(1, width + 1, dtype=torch.float32).sin()


@contextmanager
def untouched(net: nn.Module) -> Iterator[None]:
    """Put ``net`` in eval mode and turn gradients off within the context. Restore modes and buffers at its end."""
    modes = {module: module.training for module in net.modules()}
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in modes
        for name, buffer in module._buffers.items()
        if buffer is not None and not is_lazy(buffer)
    ]
    net.eval()
    with torch.no_grad():
        try:
            yield
        finally:
            for module, training in modes.items():
                module.training = training
            for module, name, buffer, before in buffers:
                module._buffers[name] = buffer.copy_(before)


def tried(call: Callable[[], T], samples: Tree, where: str, takes: str, remedy: str = "") -> T:
    """Return the result of ``call()``. If it raises, raise an error that says what was expected.

    Args:
        call: Function that calls a net with ``samples``.
        samples: Inputs of the net, which it must not change.
        where: The function that made the net, for error messages.
        takes: The inputs that the net is expected to accept, for error messages.
        remedy: Advice if the call fails; empty for general advice about observations.

    Raises:
        ValueError: If ``call`` fails, or if it changes the samples in place.
    """
    leaves = tree.flatten(samples)
    versions = [leaf._version for leaf in leaves]
    try:
        out = call()
    except Exception as error:
        if ": expected " in str(error):  # the error already has that form
            raise
        got = f"{type(error).__name__}: {error}"
        raise ValueError(f"{where}: expected {takes}, got {got}. {remedy or _OF_SAMPLES}") from error
    if versions != [leaf._version for leaf in leaves]:
        expected, got = "a net that leaves its input as it is", "one that changes it in place"
        remedy = "Use operations that make a new tensor, such as clamp() for clamp_() and nn.ReLU() without inplace."
        raise ValueError(f"{where}: expected {expected}, got {got}. {remedy}")
    return out


def try_net(net: nn.Module, samples: tuple[Tree, ...], where: str, takes: str, remedy: str = "", **memory: Any) -> Any:
    """Return ``net(*samples, **memory)``, called in eval mode. Modes and buffers are restored.

    Args:
        net: The net.
        samples: Positional arguments of ``net``, which it must not change.
        where: The function that made the net, for error messages.
        takes: The inputs that the net is expected to accept, for error messages.
        remedy: Advice if the call fails; empty for general advice about observations.
        memory: Keyword arguments of ``net``, such as ``state`` and ``starts`` of a stateful net.

    Raises:
        ValueError: If the call fails, or if it changes the samples in place.
    """
    with untouched(net), torch.enable_grad():
        return tried(lambda: net(*samples, **memory), samples, where, takes, remedy)
