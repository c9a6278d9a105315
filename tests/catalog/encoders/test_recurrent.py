"""Recurrent encoders against cells run step by step and row by row: starts anywhere, states, gradients, weights."""

import copy
from typing import Any, Literal

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from catalog.activations import Init
from catalog.base import Encoder, EncoderOutput, ModelConfig, encoder_rules
from catalog.encoders import recurrent
from catalog.encoders.memory import BuiltEncoderConfig
from catalog.encoders.mlp import MLPEncoderConfig
from catalog.encoders.recurrent import (
    RecurrentEncoder,
    RecurrentEncoderConfig,
    _in_one_piece,
    _Timeline,
    recurrent_encoder_config,
)
from catalog.encoders.sequence import SequenceEncoderConfig
from catalog.model_config import DefaultModelConfig

LAYER_TYPES: list[Literal["lstm", "gru"]] = ["lstm", "gru"]
State = dict[str, Tensor]


def encoder(layer_type: Any, num_layers: int = 1, seed: int = 0, width: int = 3, hidden: int = 5) -> RecurrentEncoder:
    torch.manual_seed(seed)
    init = Init(kernel="normal_", kernel_kwargs={"std": 0.7}, bias="normal_")
    tokenizer = BuiltEncoderConfig(net=nn.Linear(2, width), width=width)
    return RecurrentEncoderConfig(
        tokenizer_config=tokenizer, recurrent_layer_type=layer_type, hidden_dim=hidden, num_layers=num_layers, init=init
    ).build()


def random_state(net: RecurrentEncoder, rows: int) -> State:
    return {name: torch.randn(rows, *zeros.shape) for name, zeros in net.get_initial_state().items()}


def oracle(net: RecurrentEncoder, obs: Tensor, state: State | None, starts: Tensor) -> tuple[Tensor, State]:
    """Row by row, step by step, layer by layer, with torch's own cells."""
    cells: list[nn.LSTMCell | nn.GRUCell] = []
    for layer in net.layers:
        assert isinstance(layer, nn.LSTM | nn.GRU)
        cell = (nn.LSTMCell if isinstance(layer, nn.LSTM) else nn.GRUCell)(layer.input_size, layer.hidden_size)
        for name, weight in layer.named_parameters():
            setattr(cell, name.removesuffix("_l0"), weight)
        cells.append(cell)
    latents, states = [], []
    for row in range(obs.shape[1]):
        first = net.get_initial_state()
        now = first if state is None else {name: part[row] for name, part in state.items()}
        steps = []
        for t in range(obs.shape[0]):
            if starts[t, row]:
                now = first
            x, after = net.tokenizer(obs[t, row]).latent, []
            for i, cell in enumerate(cells):
                before = tuple(part[i] for part in now.values())
                made = cell(x, before) if isinstance(cell, nn.LSTMCell) else (cell(x, before[0]),)
                after.append(made)
                x = made[0]
            now = {name: torch.stack([made[k] for made in after]) for k, name in enumerate(now)}
            steps.append(x)
        latents.append(torch.stack(steps))
        states.append(now)
    return torch.stack(latents, 1), {name: torch.stack([s[name] for s in states]) for name in states[0]}


def assert_equal_states(one: Any, other: Any) -> None:
    assert list(one) == list(other)
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("layer_type", LAYER_TYPES)
@settings(max_examples=30, deadline=None)
@given(
    num_layers=st.integers(1, 3),
    num_steps=st.integers(1, 9),
    num_rows=st.integers(1, 4),
    share=st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]),
    begins=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_a_run_equals_cells_that_are_reset_row_by_row(
    layer_type: str, num_layers: int, num_steps: int, num_rows: int, share: float, begins: bool, seed: int
) -> None:
    net = encoder(layer_type, num_layers, seed)
    obs = torch.randn(num_steps, num_rows, 2)
    starts = torch.rand(num_steps, num_rows) < share
    state = None if begins else random_state(net, num_rows)
    out = net(obs, state, starts=starts)
    latent, after = oracle(net, obs, state, starts)
    torch.testing.assert_close(out.latent, latent, atol=1e-5, rtol=1e-5)
    assert_equal_states(out.state, after)


@pytest.mark.parametrize("layer_type", LAYER_TYPES)
@settings(max_examples=25, deadline=None)
@given(
    num_layers=st.integers(1, 2),
    num_steps=st.integers(1, 8),
    share=st.sampled_from([0.0, 0.2, 0.7]),
    seed=st.integers(0, 2**31),
)
def test_gradients_are_those_of_the_cells(
    layer_type: str, num_layers: int, num_steps: int, share: float, seed: int
) -> None:
    net = encoder(layer_type, num_layers, seed)
    obs, starts = torch.randn(num_steps, 3, 2), torch.rand(num_steps, 3) < share
    state = random_state(net, 3)
    weight = torch.randn(num_steps, 3, 5)
    inputs = [obs, *state.values()]
    for tensor in inputs:
        tensor.requires_grad_()

    def gradients(latent: Tensor, after: State) -> tuple[Tensor, ...]:
        loss = (latent * weight).sum() + sum(part.square().sum() for part in after.values())
        return torch.autograd.grad(loss, [*net.parameters(), *inputs], materialize_grads=True)

    latent, after = net(obs, state, starts=starts)
    for ours, theirs in zip(gradients(latent, after), gradients(*oracle(net, obs, state, starts)), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("layer_type", LAYER_TYPES)
@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(1, 11), max_size=4, unique=True).map(sorted), seed=st.integers(0, 2**31))
def test_pieces_make_the_whole(layer_type: str, cuts: list[int], seed: int) -> None:
    net = encoder(layer_type, 2, seed)
    obs, starts = torch.randn(12, 3, 2), torch.rand(12, 3) < 0.2
    whole = net(obs, starts=starts)
    state, latents = None, []
    for a, b in zip([0, *cuts], [*cuts, 12], strict=True):
        latent, state = net(obs[a:b], state, starts=starts[a:b])
        latents.append(latent)
    torch.testing.assert_close(torch.cat(latents), whole.latent, atol=1e-5, rtol=1e-5)
    assert_equal_states(state, whole.state)


@pytest.mark.parametrize("layer_type", LAYER_TYPES)
@pytest.mark.parametrize("num_steps", [1, 6])
def test_a_start_forgets_everything_in_its_row_only(layer_type: str, num_steps: int) -> None:
    net = encoder(layer_type)
    obs, state = torch.randn(num_steps, 3, 2), random_state(net, 3)
    starts = torch.zeros(num_steps, 3, dtype=torch.bool)
    starts[-1, 1] = True
    other_obs, other_state = obs.clone(), {name: part.clone() for name, part in state.items()}
    other_obs[:-1, 1] += 3
    for part in other_state.values():
        part[1] += 3
    one, other = net(obs, state, starts=starts), net(other_obs, other_state, starts=starts)
    torch.testing.assert_close(one.latent[-1], other.latent[-1])
    unset = net(obs, state)
    torch.testing.assert_close(unset.latent[:, ::2], one.latent[:, ::2])
    assert not torch.allclose(unset.latent[-1, 1], one.latent[-1, 1])


def test_even_a_state_that_is_not_a_number_is_zeroed_at_a_start() -> None:
    net = encoder("lstm")
    state = {name: torch.full((1, 1, 5), torch.nan) for name in ("h", "c")}
    assert net(torch.zeros(1, 1, 2), state, starts=torch.ones(1, 1, dtype=torch.bool)).latent.isfinite().all()


def test_a_timeline_has_a_step_more_per_start_after_the_first_row() -> None:
    starts = torch.tensor([[True, True], [False, False], [False, True], [True, True]])
    timeline = _Timeline.from_starts(starts)
    assert timeline is not None
    forgets, holds = timeline.forces.unbind(2)
    # row 0: x x x F x H, row 1: x x F x F x, at 2 * step + row
    assert timeline.places.tolist() == [[0, 1], [2, 3], [4, 7], [8, 11]]
    assert forgets.T.tolist() == [[False, False, False, True, False, False], [False, False, True, False, True, False]]
    assert holds.T.tolist() == [[False] * 5 + [True], [False] * 6]
    assert _Timeline.from_starts(starts[:2]) is None


@pytest.mark.parametrize("layer_type", LAYER_TYPES)
def test_no_gradient_passes_a_start(layer_type: str) -> None:
    net = encoder(layer_type)
    obs, state = torch.randn(4, 1, 2, requires_grad=True), random_state(net, 1)
    starts = torch.tensor([[False], [False], [True], [False]])
    for part in state.values():
        part.requires_grad_()
    grads = torch.autograd.grad(net(obs, state, starts=starts).latent[2:].sum(), [obs, *state.values()])
    assert grads[0][:2].eq(0).all()
    assert grads[0][2:].ne(0).all()
    assert all(grad.eq(0).all() for grad in grads[1:])


@pytest.mark.parametrize("layer_type", LAYER_TYPES)
@pytest.mark.parametrize("num_steps", [1, 5])
def test_nothing_given_is_changed_and_repeated_calls_agree_to_the_bit(layer_type: str, num_steps: int) -> None:
    net = encoder(layer_type, 2)
    obs, state = torch.randn(num_steps, 3, 2), random_state(net, 3)
    starts = torch.rand(num_steps, 3) < 0.5
    kept = copy.deepcopy((obs, state, starts))
    first, second = (net(obs, state, starts=starts) for _ in range(2))
    assert torch.equal(first.latent, second.latent)
    assert all(torch.equal(first.state[name], second.state[name]) for name in state)
    assert torch.equal(obs, kept[0])
    assert torch.equal(starts, kept[2])
    assert all(torch.equal(state[name], kept[1][name]) for name in state)


@pytest.mark.parametrize("layer_type", LAYER_TYPES)
@pytest.mark.parametrize("num_steps", [1, 5])
def test_acting_without_gradients_gives_the_same(layer_type: str, num_steps: int) -> None:
    net = encoder(layer_type)
    obs, starts = torch.randn(num_steps, 3, 2), torch.rand(num_steps, 3) < 0.5
    expected = net(obs, starts=starts)
    with torch.inference_mode():
        out = net(obs, starts=starts)
    torch.testing.assert_close(out.latent, expected.latent)


@pytest.mark.parametrize(("layer_type", "names"), [("lstm", ["h", "c"]), ("gru", ["h"])])
def test_the_state_is_batch_first_and_starts_at_zero(layer_type: str, names: list[str]) -> None:
    net = encoder(layer_type, 2)
    initial = net.get_initial_state()
    assert list(initial) == names
    assert all(part.shape == (2, 5) and part.eq(0).all() for part in initial.values())
    obs = torch.randn(3, 4, 2)
    out = net(obs)
    assert out.latent.shape == (3, 4, 5)
    assert [tuple(part.shape) for part in out.state.values()] == [(4, 2, 5)] * len(names)
    batched = {name: part.expand(4, 2, 5) for name, part in initial.items()}
    assert torch.equal(net(obs, batched).latent, out.latent)


@pytest.mark.parametrize("starts", [None, torch.tensor([[False, True]])])
def test_the_order_in_which_a_state_was_stored_does_not_matter(starts: Tensor | None) -> None:
    net = encoder("lstm")
    obs, state = torch.randn(1, 2, 2), random_state(net, 2)
    for rows in (obs, obs.repeat(3, 1, 1)):
        at = None if starts is None else starts.expand(len(rows), -1)
        expected, found = (net(rows, {name: state[name] for name in names}, starts=at) for names in ("hc", "ch"))
        assert torch.equal(found.latent, expected.latent)
        assert all(torch.equal(found.state[name], expected.state[name]) for name in "hc")


def test_an_lstm_by_hand() -> None:
    half = Init(kernel="constant_", kernel_kwargs={"val": 0.5}, bias="zeros_")
    net = RecurrentEncoderConfig(
        tokenizer_config=BuiltEncoderConfig(net=nn.Identity(), width=1), hidden_dim=1, init=half
    ).build()
    # x = 2, h = 0: gates σ(1) = 0.731059, candidate tanh(1) = 0.761594; c = 0.556770, h = 0.731059 tanh(c) = 0.369606
    # x = 0, h = 0.369606: gates σ(0.184803) = 0.546070, candidate 0.182729;
    # c = 0.546070 (0.556770 + 0.182729) = 0.403818, h = 0.546070 tanh(0.403818) = 0.209260
    out = net(torch.tensor([[[2.0]], [[0.0]]]))
    assert out.latent.flatten().tolist() == pytest.approx([0.369606, 0.209260], abs=1e-5)
    assert out.state["c"].item() == pytest.approx(0.403818, abs=1e-5)


def test_a_module_that_knows_one_batch_dim_gets_one() -> None:
    tokenizer = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten())
    net = recurrent_encoder_config(
        BuiltEncoderConfig(net=tokenizer, width=2), DefaultModelConfig(use_lstm=True, lstm_cell_size=4)
    ).build()
    assert net(torch.randn(3, 5, 1, 2, 2)).latent.shape == (3, 5, 4)


def test_nested_observations_reach_the_tokenizer_with_their_steps_merged() -> None:
    class Sum(Encoder):
        def forward(self, obs: Any, state: Any = None, *, starts: Tensor | None = None) -> EncoderOutput:
            assert obs["a"].shape == (6, 2)
            assert obs["b"][0].shape == (6,)
            return EncoderOutput(obs["a"] + obs["b"][0].unsqueeze(-1))

    net = recurrent_encoder_config(
        BuiltEncoderConfig(net=Sum(), width=2), DefaultModelConfig(use_gru=True, lstm_cell_size=4)
    ).build()
    a, b = torch.randn(3, 2, 2), torch.randn(3, 2)
    inner = recurrent_encoder_config(
        BuiltEncoderConfig(net=nn.Identity(), width=2), DefaultModelConfig(use_gru=True, lstm_cell_size=4)
    ).build()
    inner.layers.load_state_dict(net.layers.state_dict())
    torch.testing.assert_close(net({"a": a, "b": (b,)}).latent, inner(a + b.unsqueeze(-1)).latent)


@pytest.mark.parametrize(("name", "cls", "gates"), [("use_lstm", nn.LSTM, 4), ("use_gru", nn.GRU, 3)])
def test_settings_shape_the_net(name: str, cls: type[nn.Module], gates: int) -> None:
    config = recurrent_encoder_config(
        MLPEncoderConfig(input_dims=(3,), hidden_layer_dims=(7,)),
        DefaultModelConfig.from_any({name: True, "lstm_cell_size": 6, "lstm_num_layers": 2}),
    )
    assert config.output_dims == (6,)
    net = config.build()
    assert [type(layer) for layer in net.layers] == [cls, cls]
    assert net.parts() == (net.tokenizer,)
    assert net(torch.randn(2, 4, 3)).latent.shape == (2, 4, 6)
    for layer, width in zip(net.layers, (7, 6), strict=True):
        weights = dict(layer.named_parameters())
        assert weights["weight_ih_l0"].shape == (gates * 6, width)
        # orthogonal by default: each gate's matrix on its own
        for block in weights["weight_hh_l0"].split(6):
            torch.testing.assert_close(block @ block.T, torch.eye(6), atol=1e-5, rtol=0)
        assert weights["bias_ih_l0"].eq(0).all()
        assert weights["bias_hh_l0"].eq(0).all()


def test_initialisers_may_be_functions_with_keywords() -> None:
    settings_ = DefaultModelConfig(
        use_gru=True,
        lstm_kernel_initializer=nn.init.constant_,
        lstm_kernel_initializer_kwargs={"val": 0.25},
        lstm_bias_initializer="constant_",
        lstm_bias_initializer_kwargs={"val": -1.0},
    )
    for net in (
        recurrent_encoder_config(MLPEncoderConfig(input_dims=(3,)), settings_).build(),
        recurrent_encoder_config(BuiltEncoderConfig(net=nn.Identity(), width=3), settings_).build(),
    ):
        for weight in net.layers.parameters():
            assert weight.unique().tolist() == [0.25 if weight.dim() == 2 else -1.0]


@pytest.mark.parametrize("layer_type", LAYER_TYPES)
def test_replaced_weights_are_the_ones_that_run(layer_type: str) -> None:
    net, other = encoder(layer_type, seed=1), encoder(layer_type, seed=2)
    for mine, theirs in zip(net.modules(), other.modules(), strict=True):
        mine._parameters.update(theirs._parameters)
    obs, starts = torch.randn(4, 2, 2), torch.rand(4, 2) < 0.5
    for steps in (1, 4):
        out, expected = net(obs[:steps], starts=starts[:steps]), other(obs[:steps], starts=starts[:steps])
        assert torch.equal(out.latent, expected.latent)


def test_weights_in_one_piece_lie_as_cudnn_wants_them_and_pass_gradients_on() -> None:
    weights = tuple(encoder("lstm").layers[0].parameters())
    pieces = _in_one_piece(weights)
    ends = torch.tensor([w.numel() for w in weights]).cumsum(0).tolist()
    assert [piece.storage_offset() for piece in pieces] == [0, *ends[:-1]]
    assert len({piece.untyped_storage().data_ptr() for piece in pieces}) == 1
    for piece, weight in zip(pieces, weights, strict=True):
        assert torch.equal(piece, weight)
    sum(piece.sum() * i for i, piece in enumerate(pieces, 1)).backward()  # type: ignore[union-attr]
    assert [w.grad.unique().tolist() for w in weights if w.grad is not None] == [[1], [2], [3], [4]]


class Remembering(Encoder):
    def get_initial_state(self) -> Tensor:
        return torch.zeros(1)

    def forward(self, obs: Any, state: Any = None, *, starts: Tensor | None = None) -> EncoderOutput:
        return EncoderOutput(obs, state)


def test_a_tokenizer_with_a_state_of_its_own_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tokenizer_config: expected an encoder without a state, .* got Remembering"):
        recurrent_encoder_config(
            BuiltEncoderConfig(net=Remembering(), width=3), DefaultModelConfig(use_lstm=True)
        ).build()


class Matrices(ModelConfig):
    @property
    def output_dims(self) -> tuple[int, ...]:
        return (2, 3)

    def build(self) -> nn.Module:
        return nn.Identity()


def test_configs_that_fit_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tokenizer_config: expected .* latents have one dim.*\(2, 3\)"):
        RecurrentEncoderConfig(tokenizer_config=Matrices()).build()


@pytest.mark.parametrize(
    ("obs", "state", "starts", "message"),
    [
        (torch.zeros(3, 2), {"h": torch.zeros(2, 1, 5)}, None, "expected latents of shape"),
        (torch.zeros(3), None, None, r"obs \[T, B, \.\.\.\] .*leading dims \(3,\)"),
        (torch.zeros(3, 4, 2), None, torch.zeros(3, dtype=torch.bool), r"leading dims \(3, 4\) and starts .*\(3,\)"),
        (torch.zeros(3, 4, 2), {"h": torch.zeros(1, 4, 5)}, None, r"'h': \(4, 1, 5\)}, got .*\(1, 4, 5\)"),
        (torch.zeros(3, 4, 2), {"c": torch.zeros(4, 1, 5)}, None, r"'h': \(4, 1, 5\)}, got \{'c'"),
        (torch.zeros(3, 4, 2), torch.zeros(4, 1, 5), None, r"'h': \(4, 1, 5\)}, got Tensor"),
    ],
)
def test_shapes_that_do_not_fit_are_named(obs: Any, state: Any, starts: Any, message: str) -> None:
    net = RecurrentEncoderConfig(
        tokenizer_config=BuiltEncoderConfig(net=nn.Identity(), width=2), recurrent_layer_type="gru", hidden_dim=5
    ).build()
    with pytest.raises(ValueError, match=message):
        net(obs, state, starts=starts)


# --- observations that are sequences ----------------------------------------------------------------------------------


@pytest.mark.parametrize("layer_type", LAYER_TYPES)
@pytest.mark.parametrize("begins", [True, False])
def test_steps_taken_one_by_one_give_the_same_where_nobody_may_wait(
    layer_type: str, begins: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = encoder(layer_type, num_layers=2)
    obs, starts = torch.randn(7, 4, 2), torch.rand(7, 4) < 0.3
    state = None if begins else random_state(net, 4)
    monkeypatch.setattr(recurrent, "_must_not_wait", lambda x: True)
    monkeypatch.setattr(recurrent._Timeline, "from_starts", lambda starts: pytest.fail("this waits"))
    out = net(obs, state, starts=starts)
    latent, after = oracle(net, obs, state, starts)
    torch.testing.assert_close(out.latent, latent, atol=1e-5, rtol=1e-5)
    assert_equal_states(out.state, after)
    gradients, expected = (torch.autograd.grad(y.square().sum(), [*net.parameters()]) for y in (out.latent, latent))
    for ours, theirs in zip(gradients, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def sequence_config(space: spaces.Box, **settings_: Any) -> SequenceEncoderConfig:
    model_config = DefaultModelConfig(matrix_observations="sequence", **settings_)
    config = encoder_rules.root(space, model_config, "observation_space").run()
    assert isinstance(config, SequenceEncoderConfig)
    return config


@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
def test_a_matrix_read_as_a_sequence_is_the_last_output_of_a_gru(lead: tuple[int, ...]) -> None:
    config = sequence_config(spaces.Box(-1, 1, (6, 3)), fcnet_hiddens=[32, 8])
    assert config.output_dims == (8,)
    net = config.build()
    obs = torch.randn(*lead, 6, 3)
    out = net(obs)
    assert out.state is None
    assert net.get_initial_state() is None
    gru = net.gru
    expected = torch.stack([gru(matrix)[0][-1] for matrix in obs.reshape(-1, 6, 3)]).view(*lead, 8)
    torch.testing.assert_close(out.latent, expected)


def test_bytes_in_a_sequence_are_fractions_of_255_and_other_integers_are_themselves() -> None:
    for dtype, high, scale in ((np.uint8, 255, 255), (np.uint8, 10, 1), (np.int64, 255, 1)):
        net = sequence_config(spaces.Box(0, high, (3, 2), dtype)).build()
        obs = torch.randint(0, high + 1, (4, 3, 2), dtype=torch.uint8 if dtype is np.uint8 else torch.int64)
        torch.testing.assert_close(net(obs).latent, net.gru((obs / scale).transpose(0, 1))[1][0])


def test_sequences_that_cannot_be_read_are_refused_with_their_path() -> None:
    with pytest.raises(ValueError, match=r"observation_space: expected a space with at least one entry, got Box"):
        sequence_config(spaces.Box(0, 1, (0, 3)))
    with pytest.raises(ValueError, match=r"fcnet_hiddens: expected a last width .* of observation_space, got \(\)"):
        sequence_config(spaces.Box(0, 1, (2, 3)), fcnet_hiddens=[])
