"""Attention as a memory: gated transformer layers over the last steps of an episode."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from catalog.activations import Init
from catalog.base import EncoderOutput, ModelConfig, Tree
from catalog.encoders.memory import MemoryEncoder, MemoryEncoderConfig, start_gates
from catalog.model_config import DefaultModelConfig

# minimum number of steps per block: a matrix product of fewer steps takes as long
_SHORTEST_BLOCK = 16


@dataclass(frozen=True, kw_only=True)
class AttentionEncoderConfig(MemoryEncoderConfig):
    """Config of gated transformer layers over the encoded last steps, ``[T, B, *obs] → [T, B, dim]``.

    Attributes:
        dim: Width of the inputs and outputs of the layers.
        num_layers: Number of layers. Each layer after the first lets a step see ``memory`` steps further back.
        num_heads: Number of attention heads of each layer.
        head_dim: Width of the queries, keys and values of a head.
        memory: Number of earlier steps that a step sees in each layer.
        mlp_dim: Width of the hidden layer of the MLP in each layer.
        gate_bias: Initial bias of the gates. At 0 they are half open. The larger the bias, the closer a new layer is to
            the identity.
    """

    dim: int = 64
    num_layers: int = 1
    num_heads: int = 2
    head_dim: int = 32
    memory: int = 32
    mlp_dim: int = 64
    gate_bias: float = 2.0

    @property
    def output_dims(self) -> tuple[int, ...]:
        return (self.dim,)

    def build(self) -> "AttentionEncoder":
        return AttentionEncoder(self)


class AttentionEncoder(MemoryEncoder):
    """The net of an :class:`AttentionEncoderConfig`: a tokenizer, and layers of :class:`AttentionLayer` over a linear
    projection of its latents.

    In each layer, a step sees itself and the ``memory`` steps before it, as far as they belong to its episode. It does
    not matter where sequences are cut: outputs are the same step by step and in one pass over a sequence. Only the
    distance between steps matters, not their position in an episode.

    The state is ``{"memory": [B, layers, memory, dim], "length": [B]}``: the inputs of each layer at the last steps, as
    in Transformer-XL (Dai et al. 2019), and the number of these steps. The newest step comes last, and the slots of
    missing steps are zeros. The layers never wait for a GPU.
    """

    def __init__(self, config: AttentionEncoderConfig) -> None:
        super().__init__(config)
        self.dim, self.memory = config.dim, config.memory
        self.projection = _linear(self.input_dim, config.dim, config.init)
        self.layers = nn.ModuleList(AttentionLayer(config) for _ in range(config.num_layers))

    def get_initial_state(self) -> dict[str, Tensor]:
        like = next(self.layers.parameters())
        return {
            "memory": like.new_zeros(len(self.layers), self.memory, self.dim),
            "length": like.new_zeros((), dtype=torch.int64),
        }

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        """Return latents ``[T, B, dim]`` of observations ``[T, B, ...]``, and the state ``[B, ...]`` after them.

        Args:
            obs: Observations; the tokenizer gets all steps as one batch ``[T * B, ...]``.
            state: The state before the first step, ``[B, ...]``; None for the initial state.
            starts: Steps that start an episode, and therefore see no earlier step, bool ``[T, B]``; None for no such
                step.

        Raises:
            ValueError: If observations, state and starts do not have these shapes.
        """
        x = self.tokens(obs, starts)
        before = self.state_before(x, state, starts)  # zeros, since hidden steps must be finite, too
        x = self.projection(x).transpose(0, 1)
        window = _Window(x, before["length"], starts, self.memory)
        after = []
        for i, layer in enumerate(self.layers):
            seen = torch.cat([before["memory"][:, i], x], 1)
            after.append(seen[:, -self.memory :])
            x = layer(seen, window)
        filled = window.filled_after
        remembered = torch.stack(after, 1)
        if window.num_steps > 1:  # after one step, state_before() has zeroed other episodes
            remembered = remembered.masked_fill(~filled[:, None, :, None], 0)
        return EncoderOutput(x.transpose(0, 1), {"memory": remembered, "length": filled.sum(1)})


class _Window:
    """Determines which steps see which other steps. This is the same in each layer.

    Attention cuts the ``T`` queries into blocks of ``C``, each with the ``M + C`` keys that any query of the block may
    see. So time and memory grow linearly with the length of sequences.

    Args:
        x: Inputs ``[B, T, D]`` of the first layer.
        length: ``[B]``: number of earlier steps that the memory holds before the first step.
        starts: ``[T, B]`` bool: steps that start an episode; None for no such step.
        memory: ``M``, the number of slots of the memory, each for one earlier step.

    Attributes:
        filled_after: ``[B, M]`` bool: the filled slots of the memory after the last step.
    """

    def __init__(self, x: Tensor, length: Tensor, starts: Tensor | None, memory: int) -> None:
        rows, self.num_steps = x.shape[:2]
        self.memory = memory
        self.num_blocks = -(-self.num_steps // max(memory, _SHORTEST_BLOCK))
        self.block = -(-self.num_steps // self.num_blocks)
        # Number the episodes, with -1 for empty slots: steps see each other only if their numbers are equal.
        slots = torch.arange(-memory, 0, device=x.device)
        before = (slots >= -length.unsqueeze(1)).long() - 1
        if starts is None:
            steps = before.new_zeros(rows, self.num_steps)
        else:
            steps = starts.T.long() if self.num_steps == 1 else starts.T.cumsum(1)
        episodes = torch.cat([before, steps], 1)
        self.filled_after = episodes[:, -memory:] == steps[:, -1:]
        keys, queries = self.blocks_of_keys(episodes.unsqueeze(2)), self.blocks(steps.unsqueeze(2))
        self._hidden = (keys.transpose(1, 2) != queries).unsqueeze(1)

    def blocks(self, x: Tensor) -> Tensor:
        """Cut queries into blocks, ``[B, T, D] → [B * blocks, C, D]``, with padding at the end."""
        if self.num_blocks == 1:
            return x
        return self._filled_up(x).unflatten(1, (self.num_blocks, self.block)).flatten(0, 1)

    def blocks_of_keys(self, x: Tensor) -> Tensor:
        """Cut keys or values into overlapping blocks, ``[B, M + T, D] → [B * blocks, M + C, D]``."""
        if self.num_blocks == 1:
            return x
        return self._filled_up(x).unfold(1, self.memory + self.block, self.block).flatten(0, 1).transpose(1, 2)

    def steps(self, y: Tensor) -> Tensor:
        """Join blocks and drop the padding, ``[B * blocks, C, D] → [B, T, D]``."""
        if self.num_blocks == 1:
            return y
        return y.unflatten(0, (-1, self.num_blocks)).flatten(1, 2)[:, : self.num_steps]

    def scores(self, by_distance: Tensor) -> Tensor:
        """Return the mask to add to attention scores, ``[B * blocks, heads, C, M + C]``: for each query and key, the
        bias for their distance, or minus infinity if the query does not see the key.

        Args:
            by_distance: Bias of each head for a key that is 0 to ``M`` steps before the query, ``[heads, M + 1]``.
        """
        heads, width = len(by_distance), self.memory + self.block
        # Equal rows of width + 1, flattened and cut at width, shift by one place from row to row: so each diagonal has
        # one distance.
        row = functional.pad(by_distance.flip(1), (0, self.block), value=-math.inf)
        rows = row.unsqueeze(1).expand(heads, self.block, width + 1).flatten(1)
        return rows[:, : self.block * width].view(heads, self.block, width).masked_fill(self._hidden, -math.inf)

    def _filled_up(self, x: Tensor) -> Tensor:
        """Pad dim 1 (time) of ``x`` with zeros at the end, so that its last ``T`` steps fill whole blocks of ``C``."""
        missing = self.num_blocks * self.block - self.num_steps
        return functional.pad(x, (0, 0, 0, missing)) if missing else x


class AttentionLayer(nn.Module):
    """A GTrXL layer (Parisotto et al. 2020, "Stabilizing Transformers for Reinforcement Learning", section 3).

    The layer runs attention and then an MLP. Each of them reads a layer norm of its input, and a gate joins its output
    with that input. The gate is torch's GRU cell, ``(1 - z) * n + z * input``, and the bias of z starts at
    ``gate_bias``.

    Two things differ from the paper. Instead of Transformer-XL's position encoding, each head adds a learned bias by
    distance to its scores. This bias starts at minus the distance in the first head, at a quarter of that in the second
    head, and so on, so that each head at first looks further back than the head before. And values are computed from
    the input instead of its norm, because a norm removes the magnitude: of two observed numbers, such as angle and
    position, only the ratio would remain.
    """

    def __init__(self, config: AttentionEncoderConfig) -> None:
        super().__init__()
        self.dim, self.num_heads, self.head_dim = dim, heads, head_dim = config.dim, config.num_heads, config.head_dim
        inner, init = heads * head_dim, config.init
        self.attention_norm, self.mlp_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query = _linear(dim, inner, init)
        # No biases: that of keys would shift all scores of a query alike, that of values all outputs, which have a
        # bias.
        self.key, self.value = _linear(dim, inner, init, bias=False), _linear(dim, inner, init, bias=False)
        slopes = 4.0 ** -torch.arange(heads)
        self.by_distance = nn.Parameter(-slopes.unsqueeze(1) * torch.arange(config.memory + 1))
        self.attended = _linear(inner, dim, init)
        self.mlp_hidden, self.mlp_output = _linear(dim, config.mlp_dim, init), _linear(config.mlp_dim, dim, init)
        self.attention_gate, self.mlp_gate = (_gate(dim, config.gate_bias, init) for _ in range(2))

    def forward(self, seen: Tensor, window: _Window) -> Tensor:
        """Return outputs ``[B, T, dim]`` for the last ``T`` steps of ``seen`` ``[B, M + T, dim]``, which is the memory
        of this layer followed by its inputs."""
        x = seen[:, window.memory :]
        attend = self._one_step if window.num_steps == 1 else self._steps
        y = self.attended(attend(seen, self.attention_norm(seen), window))
        x = _gated(self.attention_gate, x, torch.relu(y))
        y = self.mlp_output(torch.relu(self.mlp_hidden(self.mlp_norm(x))))
        return _gated(self.mlp_gate, x, torch.relu(y))

    def _steps(self, seen: Tensor, normed: Tensor, window: _Window) -> Tensor:
        """Attend from the last ``T`` steps of ``seen`` ``[B, M + T, dim]``, whose layer norm is ``normed``. Return
        ``[B, T, heads * head_dim]``."""
        query = self._heads(window.blocks(self.query(normed[:, window.memory :])))
        key = self._heads(window.blocks_of_keys(self.key(normed)))
        value = self._heads(window.blocks_of_keys(self.value(seen)))
        scores = window.scores(self.by_distance)
        y = functional.scaled_dot_product_attention(query, key, value, attn_mask=scores)
        return window.steps(y.transpose(1, 2).flatten(2))

    def _one_step(self, seen: Tensor, normed: Tensor, window: _Window) -> Tensor:
        """Return the result of :meth:`_steps` for ``T = 1``, ``[B, 1, heads * head_dim]``, without computing all keys
        and values.

        Since ``q · (W_k x) = (W_kᵀ q) · x`` and ``Σ aᵢ W_v xᵢ = W_v Σ aᵢ xᵢ``, the weights multiply one query and one
        weighted sum instead of ``M + 1`` steps.
        """
        parts = (self.num_heads, self.head_dim)
        # heads come first for a batched product with the weights of each head
        query = self.query(normed[:, -1]).unflatten(1, parts).transpose(0, 1)
        query = (query @ self.key.weight.unflatten(0, parts)).transpose(0, 1).unsqueeze(2)
        scores, scale = window.scores(self.by_distance), self.head_dim**-0.5
        key, value = (x.unsqueeze(1).expand(-1, self.num_heads, -1, -1) for x in (normed, seen))
        y = functional.scaled_dot_product_attention(query, key, value, attn_mask=scores, scale=scale)
        y = y.squeeze(2).transpose(0, 1) @ self.value.weight.unflatten(0, parts).mT
        return y.transpose(0, 1).flatten(1).unsqueeze(1)

    def _heads(self, x: Tensor) -> Tensor:
        """Split heads, ``[N, L, heads * head_dim] → [N, heads, L, head_dim]``."""
        return x.unflatten(2, (self.num_heads, self.head_dim)).transpose(1, 2)


def _gated(gate: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return gate(y.flatten(0, 1), x.flatten(0, 1)).view_as(x)


def _linear(input_dim: int, output_dim: int, init: Init, *, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(input_dim, output_dim, bias)
    init.apply(layer)
    return layer


def _gate(dim: int, bias: float, init: Init) -> nn.GRUCell:
    """Return a new gate, with the weights of each GRU gate initialised separately. A larger ``bias`` passes more of the
    layer's input."""
    cell = nn.GRUCell(dim, dim)
    start_gates(init, (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh), dim)
    with torch.no_grad():
        cell.bias_ih[dim : 2 * dim] += bias
    return cell


def attention_encoder_config(tokenizer_config: ModelConfig, model_config: DefaultModelConfig) -> AttentionEncoderConfig:
    """Return the config of an encoder in which attention (``use_attention``) follows ``tokenizer_config``."""
    return AttentionEncoderConfig(
        tokenizer_config=tokenizer_config,
        dim=model_config.attention_dim,
        num_layers=model_config.attention_num_transformer_units,
        num_heads=model_config.attention_num_heads,
        head_dim=model_config.attention_head_dim,
        memory=model_config.attention_memory,
        mlp_dim=model_config.attention_position_wise_mlp_dim,
        gate_bias=model_config.attention_init_gru_gate_bias,
        init=Init.of("attention", model_config, gain=1.0),
    )
