"""What nets with a memory have in common."""

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from catalog.base import Encoder, EncoderOutput, ModelConfig, Tree, as_encoder


def check_count(config: ModelConfig, name: str, remedy: str) -> None:
    """Whether the field ``name`` of the config of a net with a memory is at least 1.

    Raises:
        ValueError: If it is not.
    """
    if (got := getattr(config, name)) < 1:
        raise ValueError(f"{type(config).__name__}.{name}: expected an int > 0, got {got}. {remedy}")


def tokenizer_width(tokenizer_config: ModelConfig, of: str) -> int:
    """Width of the latents of a tokenizer that stands in the config ``of``.

    Raises:
        ValueError: If they are no vectors.
    """
    dims = tuple(tokenizer_config.output_dims)
    if len(dims) != 1:
        raise ValueError(
            f"{of}.tokenizer_config: expected latents of one dim, (D,), got "
            f"{type(tokenizer_config).__name__} with output_dims {dims}. Flatten its output."
        )
    return dims[0]


class MemoryEncoder(Encoder):
    """Base of encoders that remember: a tokenizer of single steps, and what a subclass makes of its latents.

    Args:
        tokenizer: A module from observations ``[N, ...]`` to latents ``[N, input_dim]``, without a state of its own.
        input_dim: Width of these latents.

    Raises:
        ValueError: If the tokenizer has a state of its own.
    """

    def __init__(self, tokenizer: nn.Module, input_dim: int) -> None:
        super().__init__()
        self.tokenizer, self.input_dim = as_encoder(tokenizer), input_dim
        if self.tokenizer.get_initial_state() is not None:
            raise ValueError(
                f"{type(self).__name__}.tokenizer: expected an encoder without a state of its own, "
                f"got {type(tokenizer).__name__}, whose get_initial_state() is not None. Leave out "
                "use_lstm, use_gru and use_attention, or give it a stateless encoder."
            )

    def parts(self) -> tuple[nn.Module, ...]:
        return (self.tokenizer,)

    def tokens(self, obs: Tree, starts: Tensor | None) -> Tensor:
        """Latents ``[T, B, input_dim]`` of observations ``[T, B, ...]``, found for all steps at once.

        Raises:
            ValueError: If the shapes do not fit.
        """
        leading = tuple(_first_leaf(obs).shape[:2])
        if len(leading) < 2 or (starts is not None and starts.shape != leading):
            given = None if starts is None else tuple(starts.shape)
            got = f"leading dims {leading} and starts of shape {given}"
            raise ValueError(self.misfit("obs [T, B, ...] and starts [T, B]", got))
        latents = self.tokenizer(_merged(obs)).latent
        if latents.shape != (leading[0] * leading[1], self.input_dim):
            expected = f"latents of shape ({leading[0] * leading[1]}, {self.input_dim}) from the tokenizer"
            raise ValueError(self.misfit(expected, f"shape {tuple(latents.shape)}"))
        return latents.view(*leading, self.input_dim)

    def misfit(self, expected: str, got: str) -> str:
        """What is said of arguments whose shapes do not fit."""
        return (
            f"{type(self).__name__}: expected {expected}, got {got}. Give sequences, time first, "
            "and the state that came with the step before, or None."
        )


def encode_steps(encoder: Callable[[Tree], EncoderOutput], obs: Tree) -> Tensor:
    """Latents ``[T, B, D]`` of sequences ``[T, B, ...]``, by an encoder without a state that stands beside one with a
    state: it reads all steps as one batch."""
    return encoder(_merged(obs)).latent.unflatten(0, _first_leaf(obs).shape[:2])


def _first_leaf(tree: Tree) -> Tensor:
    while not isinstance(tree, Tensor):
        tree = next(iter(tree.values() if isinstance(tree, Mapping) else tree))
    return tree


def _merged(tree: Tree) -> Tree:
    """``[T, B, ...] → [T * B, ...]``, which also modules that know one batch dim only can take."""
    if isinstance(tree, Tensor):
        return tree.flatten(0, 1)
    if isinstance(tree, Mapping):
        return {key: _merged(part) for key, part in tree.items()}
    return tuple(_merged(part) for part in tree)
