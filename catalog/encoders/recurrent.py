"""Recurrent encoders: LSTM and GRU over the steps of an episode."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from catalog.activations import Init
from catalog.base import EncoderOutput, ModelConfig, Tree
from catalog.encoders.memory import MemoryEncoder, MemoryEncoderConfig, start_gates
from catalog.model_config import DefaultModelConfig

Hidden = tuple[Tensor, ...]
"""State of one recurrent layer, as tensors ``[B, hidden]``: h and c of an LSTM, h of a GRU."""

# input that opens a gate to the last bit, or closes it if negative; float16 can hold it
_SATURATING = 1e4


@dataclass(frozen=True, kw_only=True)
class RecurrentEncoderConfig(MemoryEncoderConfig):
    """Config of an LSTM or GRU over the encoded steps, ``[T, B, *obs] → [T, B, hidden_dim]``.

    Attributes:
        recurrent_layer_type: "lstm" or "gru".
        hidden_dim: Width of the recurrent layers.
        num_layers: Number of recurrent layers.
    """

    recurrent_layer_type: Literal["lstm", "gru"] = "lstm"
    hidden_dim: int = 64
    num_layers: int = 1

    @property
    def output_dims(self) -> tuple[int, ...]:
        return (self.hidden_dim,)

    def build(self) -> "RecurrentEncoder":
        return RecurrentEncoder(self)


class RecurrentEncoder(MemoryEncoder):
    """The net of a :class:`RecurrentEncoderConfig`: a tokenizer, and recurrent layers over its latents.

    The state is ``{"h": [B, layers, hidden], "c": ...}``, with "c" for an LSTM only. The state of a sequence is zeroed
    before every step that starts an episode. Starts within a sequence cost little, because each layer still takes one
    fused call; see :class:`_Timeline`.
    """

    def __init__(self, config: RecurrentEncoderConfig) -> None:
        super().__init__(config)
        self.hidden_dim = config.hidden_dim
        net, self.state_names = {"lstm": (nn.LSTM, ("h", "c")), "gru": (nn.GRU, ("h",))}[config.recurrent_layer_type]
        widths = (self.input_dim, *[config.hidden_dim] * (config.num_layers - 1))
        layers = [net(width, config.hidden_dim) for width in widths]
        for layer in layers:
            start_gates(config.init, layer_weights(layer), config.hidden_dim)
        self.layers = nn.ModuleList(layers)

    def get_initial_state(self) -> dict[str, Tensor]:
        like = next(self.layers.parameters())
        return {name: like.new_zeros(len(self.layers), self.hidden_dim) for name in self.state_names}

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        """Return latents ``[T, B, hidden_dim]`` of observations ``[T, B, ...]``, and the state ``[B, ...]`` after them.

        Args:
            obs: Observations; the tokenizer gets all steps as one batch ``[T * B, ...]``.
            state: The state before the first step, ``[B, ...]``; None for the initial state.
            starts: Steps before which the state is zeroed, bool ``[T, B]``; None for no such step. If ``T > 1``, they
                cost one synchronisation with a GPU. Where a synchronisation is an error (in torch's sync debug mode,
                or while a CUDA graph is captured), the net runs step by step instead.

        Raises:
            ValueError: If observations, state and starts do not have these shapes.
        """
        x = self.tokens(obs, starts)
        before = self.state_before(x, state, starts).values()
        hidden = [*zip(*(part.unbind(1) for part in before), strict=True)]
        if len(x) == 1:
            x, hidden = self._step(x, hidden)
        elif starts is not None and _must_not_wait(starts):
            x, hidden = self._step_by_step(x, hidden, starts)
        else:
            x, hidden = self._sequence(x, hidden, None if starts is None else _Timeline.from_starts(starts))
        layers = zip(*hidden, strict=True)
        merged = (parts[0].unsqueeze(1) if len(parts) == 1 else torch.stack(parts, 1) for parts in layers)
        return EncoderOutput(x, dict(zip(self.state_names, merged, strict=True)))

    def _step(self, x: Tensor, hidden: list[Hidden]) -> tuple[Tensor, list[Hidden]]:
        """Run all layers for one step ``[1, B, D]`` from ``hidden``, the state of each layer. Return outputs
        ``[1, B, H]`` and the states after the step.

        This uses cells, which take half the time of a fused call on small batches.
        """
        x, after = x[0], []
        for before, layer in zip(hidden, self.layers, strict=True):
            weights = layer_weights(layer)
            is_lstm = len(before) == 2
            after.append(torch.lstm_cell(x, before, *weights) if is_lstm else (torch.gru_cell(x, *before, *weights),))
            x = after[-1][0]  # the output of a layer is its h
        return x.unsqueeze(0), after

    def _step_by_step(self, x: Tensor, hidden: list[Hidden], starts: Tensor) -> tuple[Tensor, list[Hidden]]:
        """Run steps ``[T, B, D]`` one by one with :meth:`_step`. Set the hidden state to zero where ``starts``
        ``[T, B]`` marks a new episode. Return the outputs, and the hidden state after the last step. This is slow
        except in a CUDA graph, but does not wait for the GPU."""
        outputs = []
        for tokens, fresh in zip(x.split(1), starts.unsqueeze(-1), strict=True):
            hidden = [tuple(part.masked_fill(fresh, 0) for part in before) for before in hidden]
            y, hidden = self._step(tokens, hidden)
            outputs.append(y)
        return torch.cat(outputs), hidden

    def _sequence(self, x: Tensor, hidden: list[Hidden], timeline: "_Timeline | None") -> tuple[Tensor, list[Hidden]]:
        """Run steps ``[T, B, D]`` with one fused call per layer, from ``hidden``, the state of each layer. Return
        outputs ``[T, B, H]`` and the states after the last step. ``timeline`` is the layout of the episode starts, None
        if no step after the first starts an episode."""
        after = []
        if timeline is None:
            for before, layer in zip(hidden, self.layers, strict=True):
                x, state = run_layer(x, before, layer_weights(layer))
                after.append(state)
            return x, after
        x = timeline.spread(x)
        for before, layer in zip(hidden, self.layers, strict=True):
            forced = torch.cat([x, timeline.forces.to(x.dtype)], 2)
            x, state = run_layer(forced, before, _with_forces(*layer_weights(layer)))
            after.append((timeline.last(x), *state[1:]))
        return timeline.gather(x), after


@dataclass(frozen=True)
class _Timeline:
    """Layout of sequences with an additional step before each step that starts an episode, to reset the state.

    Fused recurrent calls cannot zero the state within a sequence, and cutting sequences at every start would take a
    call per cut. With additional steps, one call over ``L`` instead of ``T`` steps is enough. In an additional step, an
    input that is 0 in ordinary steps saturates the gates, so that the state becomes zero and neither values nor
    gradients pass. Sequences with fewer starts end with steps that hold the state, so that all have the same length.

    Attributes:
        places: ``[T, B]``: index of each ordinary step in a flattened tensor ``[L * B, ...]``.
        forces: ``[L, B, 2]`` bool: the steps that forget the state (index 0) and the steps that hold it (index 1).
    """

    places: Tensor
    forces: Tensor

    @classmethod
    def from_starts(cls, starts: Tensor) -> "_Timeline | None":
        """Make the layout for ``starts`` ``[T, B]``; return None if no episode starts after step 0."""
        num_steps, num_rows = starts.shape
        before = starts.cumsum(0) - starts[:1].long()
        extra = int(before[-1].max())  # the only synchronisation with the device
        if extra == 0:
            return None
        steps = torch.arange(num_steps + extra, device=starts.device).unsqueeze(1)
        rows = torch.arange(num_rows, device=starts.device)
        places = (steps[:num_steps] + before) * num_rows + rows
        holds = steps >= num_steps + before[-1]
        forgets = (~holds).flatten().index_fill(0, places.flatten(), False).view_as(holds)
        return cls(places, torch.stack([forgets, holds], 2))

    def spread(self, x: Tensor) -> Tensor:
        """Return inputs ``[T, B, D]`` in this layout, ``[L, B, D]``, with zeros in additional steps."""
        spread = x.new_zeros(self.forces[..., 0].numel(), x.shape[2])
        return spread.index_copy(0, self.places.flatten(), x.flatten(0, 1)).view(*self.forces.shape[:2], -1)

    def gather(self, y: Tensor) -> Tensor:
        """Return the outputs of the ordinary steps, ``[L, B, H] → [T, B, H]``."""
        return y.flatten(0, 1).index_select(0, self.places.flatten()).view(*self.places.shape, -1)

    def last(self, y: Tensor) -> Tensor:
        """Return the output of the last ordinary step, ``[L, B, H] → [B, H]``."""
        return y.flatten(0, 1).index_select(0, self.places[-1])


def _must_not_wait(x: Tensor) -> bool:
    """Return whether a synchronisation with the device of ``x`` would raise an error now."""
    return x.is_cuda and (torch.cuda.is_current_stream_capturing() or torch.cuda.get_sync_debug_mode() == 2)


def _with_forces(w_ih: Tensor, w_hh: Tensor, b_ih: Tensor, b_hh: Tensor) -> tuple[Tensor, ...]:
    """Return the weights of a layer extended by two inputs. The first makes the layer forget its state. The second
    makes an LSTM hold its c.

    An LSTM forgets with gates i, f and o closed, and holds c with i closed and f open. A GRU forgets with gates r and z
    closed and an input that cancels the bias of the candidate state, which becomes tanh(0) = 0. No layer needs to hold
    h, because the caller reads h at the last ordinary step.
    """
    size = w_hh.shape[1]
    closed, free = b_ih.new_full((size,), -_SATURATING), b_ih.new_zeros(size)
    if len(w_hh) == 4 * size:
        forget, hold = (closed, closed, free, closed), (closed, -closed, free, free)
    else:
        forget, hold = (closed, closed, -b_ih[2 * size :]), (free, free, free)
    return torch.cat([w_ih, torch.stack([torch.cat(forget), torch.cat(hold)], 1)], 1), w_hh, b_ih, b_hh


def layer_weights(layer: nn.Module) -> tuple[Tensor, ...]:
    """Return input weights, recurrent weights and the biases of both of an ``nn.LSTM`` or ``nn.GRU``. Do not use its
    ``_flat_weights``, which would miss parameters that were replaced."""
    return tuple(layer._parameters.values())  # type: ignore[return-value]  # none is None


def run_layer(x: Tensor, hidden: Hidden, weights: tuple[Tensor, ...]) -> tuple[Tensor, Hidden]:
    """Run one layer over ``x`` ``[L, B, D]`` from the state ``hidden``, (h, c) or (h,). Return outputs
    ``[L, B, H]`` and the state after the last step. ``weights`` are those of :func:`layer_weights`."""
    if x.is_cuda:
        weights = _in_one_piece(weights)
    before = tuple(part.unsqueeze(0).contiguous() for part in hidden)
    # has_biases, num_layers, dropout, train, bidirectional, batch_first
    options = (True, 1, 0.0, torch.is_grad_enabled(), False, False)
    if len(before) == 2:
        y, h, c = torch.lstm(x, before, weights, *options)
        return y, (h[0], c[0])
    y, h = torch.gru(x, before[0], weights, *options)
    return y, (h[0],)


def _in_one_piece(weights: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return ``weights`` as views of one tensor, because cuDNN warns and copies weights that are not contiguous."""
    whole = torch.cat([w.flatten() for w in weights])
    pieces = whole.split([w.numel() for w in weights])
    return tuple(piece.view_as(w) for piece, w in zip(pieces, weights, strict=True))


def recurrent_encoder_config(tokenizer_config: ModelConfig, model_config: DefaultModelConfig) -> RecurrentEncoderConfig:
    """Return the config of an encoder in which an LSTM (``use_lstm``) or GRU (``use_gru``) follows
    ``tokenizer_config``."""
    return RecurrentEncoderConfig(
        tokenizer_config=tokenizer_config,
        recurrent_layer_type="gru" if model_config.use_gru else "lstm",
        hidden_dim=model_config.lstm_cell_size,
        num_layers=model_config.lstm_num_layers,
        init=Init.of("lstm", model_config, gain=1.0),
    )
