"""The base of encoders with a memory."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import tree
from torch import Tensor, nn

from catalog.activations import Init
from catalog.base import Encoder, EncoderOutput, ModelConfig, Tree, as_encoder


@dataclass(frozen=True, kw_only=True)
class MemoryEncoderConfig(ModelConfig):
    """Base of configs of encoders with a memory.

    Attributes:
        tokenizer_config: Config of the stateless encoder of single steps, whose latents must be vectors.
        init: Initialisers of the weights, applied to each matrix and each gate separately.
    """

    tokenizer_config: ModelConfig
    init: Init = field(default_factory=Init)


@dataclass(frozen=True, kw_only=True)
class BuiltEncoderConfig(ModelConfig):
    """Config of an encoder ``net`` that is already built and returns latents of this ``width``. :meth:`build` returns
    ``net`` itself."""

    net: nn.Module
    width: int

    @property
    def output_dims(self) -> tuple[int, ...]:
        return (self.width,)

    def build(self) -> nn.Module:
        return self.net


class MemoryEncoder(Encoder):
    """Base of encoders with a memory. A tokenizer encodes single steps, and a subclass reads the sequence of latents.

    Raises:
        ValueError: If the tokenizer has a state, or if its latents are not vectors.
    """

    def __init__(self, config: MemoryEncoderConfig) -> None:
        super().__init__()
        self.tokenizer = as_encoder(config.tokenizer_config.build())
        dims = tuple(config.tokenizer_config.output_dims)
        if len(dims) != 1 or self.tokenizer.get_initial_state() is not None:
            raise ValueError(
                f"{type(config).__name__}.tokenizer_config: expected an encoder without a state, whose "
                f"latents have one dim, got {type(self.tokenizer).__name__} with output_dims {dims}. Flatten its "
                "output, and leave out use_lstm, use_gru and use_attention for a net with a state."
            )
        self.input_dim = dims[0]

    def parts(self) -> tuple[nn.Module, ...]:
        return (self.tokenizer,)

    @abstractmethod
    def get_initial_state(self) -> dict[str, Tensor]:
        """Return the state of one sequence before its first step, without a batch dim."""

    @cached_property
    def _state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(part.shape) for name, part in self.get_initial_state().items()}

    def tokens(self, obs: Tree, starts: Tensor | None) -> Tensor:
        """Return latents ``[T, B, input_dim]`` of observations ``[T, B, ...]``, encoded by the tokenizer as one batch.

        Raises:
            ValueError: If observations, ``starts`` ``[T, B]`` or the latents of the tokenizer have a wrong shape.
        """
        leading = tuple(tree.flatten(obs)[0].shape[:2])
        if len(leading) < 2 or (starts is not None and starts.shape != leading):
            given = None if starts is None else tuple(starts.shape)
            got = f"leading dims {leading} and starts of shape {given}"
            raise self._misfit("obs [T, B, ...] and starts [T, B]", got)
        latents = self.tokenizer(_merged(obs)).latent
        if latents.shape != (leading[0] * leading[1], self.input_dim):
            raise ValueError(
                f"{type(self).__name__}: expected latents of shape ({leading[0] * leading[1]}, {self.input_dim}) from "
                f"the tokenizer, got shape {tuple(latents.shape)}. Let its config's output_dims say its width."
            )
        return latents.view(*leading, self.input_dim)

    def state_before(self, x: Tensor, state: Tree | None, starts: Tensor | None) -> dict[str, Tensor]:
        """Return the state ``[B, ...]`` before the first step of ``x`` ``[T, B, D]``: zeros if ``state`` is None, else
        ``state``, zeroed where ``starts[0]`` is True.

        Raises:
            ValueError: If ``state`` has a wrong structure or shape.
        """
        shapes = {name: (x.shape[1], *shape) for name, shape in self._state_shapes.items()}
        if state is None:
            return {name: x.new_zeros(shape) for name, shape in shapes.items()}
        is_dict = isinstance(state, Mapping)
        got = {name: tuple(part.shape) for name, part in state.items()} if is_dict else type(state).__name__
        if got != shapes:
            raise self._misfit(f"a state of shapes {shapes}", str(got))
        before = {name: state[name] for name in shapes}  # in this order, whichever the state was stored in
        if starts is None:
            return before
        return {name: part.masked_fill(starts[0].view(-1, *[1] * (part.dim() - 1)), 0) for name, part in before.items()}

    def _misfit(self, expected: str, got: str) -> ValueError:
        """Return the error for arguments of the wrong shape."""
        return ValueError(
            f"{type(self).__name__}: expected {expected}, got {got}. Give sequences, time first, "
            "and the state that came with the step before, or None."
        )


def start_gates(init: Init, weights: tuple[Tensor, ...], size: int) -> None:
    """Initialise ``weights`` in place: input weights, recurrent weights and the biases of both, in this order. Each
    gate of ``size`` units is initialised separately."""
    w_ih, w_hh, b_ih, b_hh = (weight.detach().split(size) for weight in weights)
    for weight, bias in zip(w_ih + w_hh, b_ih + b_hh, strict=True):
        init.fill(weight, bias)


def encode_steps(encoder: Callable[[Tree], EncoderOutput], obs: Tree) -> Tensor:
    """Return latents ``[T, B, D]`` of sequences ``[T, B, ...]``, which the stateless ``encoder`` reads as one batch."""
    return encoder(_merged(obs)).latent.unflatten(0, tree.flatten(obs)[0].shape[:2])


def _merged(obs: Tree) -> Tree:
    """Merge ``[T, B, ...] → [T * B, ...]``, for modules that take a single batch dim."""
    if isinstance(obs, Tensor):
        return obs.flatten(0, 1)
    return tree.map_structure(lambda leaf: leaf.flatten(0, 1), obs)
