"""Attention over past steps against plain loops, row by row and step by step: windows, starts, states, gradients."""

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from catalog import Catalog
from catalog.activations import Init
from catalog.base import Encoder, EncoderOutput, ModelConfig
from catalog.encoders.attention import (
    AttentionEncoder,
    AttentionEncoderConfig,
    AttentionLayer,
    attention_encoder_config,
)
from catalog.encoders.memory import BuiltEncoderConfig
from catalog.encoders.mlp import MLPEncoderConfig
from catalog.model_config import DefaultModelConfig

State = dict[str, Tensor]
DIM, HEADS, HEAD_DIM = 6, 2, 3
OBS, TWO = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)


def encoder(memory: int = 3, num_layers: int = 1, seed: int = 0, width: int = 4) -> AttentionEncoder:
    torch.manual_seed(seed)
    config = AttentionEncoderConfig(
        tokenizer_config=BuiltEncoderConfig(net=nn.Linear(2, width), width=width),
        dim=DIM,
        num_layers=num_layers,
        num_heads=HEADS,
        head_dim=HEAD_DIM,
        memory=memory,
        mlp_dim=5,
        gate_bias=0.5,
        init=Init(kernel="normal_", kernel_kwargs={"std": 0.5}, bias="normal_"),
    )
    net = config.build()
    for layer in layers(net):
        nn.init.normal_(layer.by_distance)
    return net


def layers(net: AttentionEncoder) -> list[AttentionLayer]:
    return [layer for layer in net.layers if isinstance(layer, AttentionLayer)]


def random_state(net: AttentionEncoder, rows: int) -> State:
    """Memories filled to different lengths, and rubbish in the empty slots."""
    memory = net.get_initial_state()["memory"]
    length = torch.randint(0, net.memory + 1, (rows,))
    return {"memory": torch.randn(rows, *memory.shape), "length": length}


def gate(cell: nn.GRUCell, x: Tensor, y: Tensor) -> Tensor:
    """A GRU's cell in its textbook form, with ``x`` as the state and ``y`` as the input."""
    (ir, iz, i_n), (hr, hz, hn) = ((w @ v + b).chunk(3) for w, v, b in _weights(cell, x, y))
    r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
    return (1 - z) * torch.tanh(i_n + r * hn) + z * x


def _weights(cell: nn.GRUCell, x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    return [(cell.weight_ih, y, cell.bias_ih), (cell.weight_hh, x, cell.bias_hh)]


def standardised(x: Tensor, norm: nn.LayerNorm) -> Tensor:
    return (x - x.mean()) / (x.var(correction=0) + norm.eps).sqrt() * norm.weight + norm.bias


def attend(layer: AttentionLayer, seen: list[Tensor]) -> Tensor:
    """One layer at the last of the inputs ``seen``, with loops over heads and steps."""
    normed = [standardised(x, layer.attention_norm) for x in seen]
    query, heads = layer.query(normed[-1]), []
    for h in range(HEADS):
        part = slice(h * HEAD_DIM, (h + 1) * HEAD_DIM)
        scores = [
            query[part] @ layer.key(x)[part] / math.sqrt(HEAD_DIM) + layer.by_distance[h, len(seen) - 1 - j]
            for j, x in enumerate(normed)
        ]
        weights = torch.stack(scores).softmax(0)
        heads.append(torch.stack([w * layer.value(x)[part] for w, x in zip(weights, seen, strict=True)]).sum(0))
    x = gate(layer.attention_gate, seen[-1], torch.relu(layer.attended(torch.cat(heads))))
    hidden = torch.relu(layer.mlp_hidden(standardised(x, layer.mlp_norm)))
    return gate(layer.mlp_gate, x, torch.relu(layer.mlp_output(hidden)))


def oracle(net: AttentionEncoder, obs: Tensor, state: State | None, starts: Tensor) -> tuple[Tensor, State]:
    """Row by row, step by step, layer by layer, with lists of what each layer saw in the episode."""
    latents, memories, lengths = [], [], []
    for row in range(obs.shape[1]):
        before: list[list[Tensor]] = [[] for _ in net.layers]
        if state is not None:
            filled = int(state["length"][row])
            before = [list(part[net.memory - filled :]) for part in state["memory"][row]]
        outputs = []
        for t in range(obs.shape[0]):
            if starts[t, row]:
                before = [[] for _ in net.layers]
            x = net.tokenizer(obs[t, row]).latent
            x = net.projection(x)
            for i, layer in enumerate(layers(net)):
                seen = [*before[i], x]
                before[i] = seen[-net.memory :]
                x = attend(layer, seen)
            outputs.append(x)
        latents.append(torch.stack(outputs))
        lengths.append(len(before[0]))
        empty = [torch.zeros(DIM)] * (net.memory - lengths[-1])
        memories.append(torch.stack([torch.stack([*empty, *part]) for part in before]))
    return torch.stack(latents, 1), {"memory": torch.stack(memories), "length": torch.tensor(lengths)}


def assert_equal_states(one: Any, other: Any) -> None:
    """Equal where slots are filled; the others are never read."""
    assert list(one) == list(other) == ["memory", "length"]
    assert torch.equal(one["length"], other["length"])
    slots = one["memory"].shape[2]
    filled = torch.arange(-slots, 0) >= -one["length"].unsqueeze(1)
    one, other = (state["memory"] * filled[:, None, :, None] for state in (one, other))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@settings(max_examples=12, deadline=None)
@given(
    memory=st.integers(1, 6),
    num_layers=st.integers(1, 3),
    num_steps=st.one_of(st.integers(1, 9), st.sampled_from([17, 35])),
    num_rows=st.integers(1, 3),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    begins=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_a_run_equals_loops_over_what_each_step_may_see(
    memory: int, num_layers: int, num_steps: int, num_rows: int, share: float, begins: bool, seed: int
) -> None:
    net = encoder(memory, num_layers, seed)
    obs = torch.randn(num_steps, num_rows, 2)
    starts = torch.rand(num_steps, num_rows) < share
    state = None if begins else random_state(net, num_rows)
    out = net(obs, state, starts=starts)
    latent, after = oracle(net, obs, state, starts)
    torch.testing.assert_close(out.latent, latent, atol=1e-5, rtol=1e-5)
    assert_equal_states(out.state, after)


@settings(max_examples=12, deadline=None)
@given(
    memory=st.integers(1, 20),
    cuts=st.lists(st.integers(1, 59), max_size=8, unique=True).map(sorted),
    share=st.sampled_from([0.0, 0.05, 0.3]),
    seed=st.integers(0, 2**31),
)
def test_pieces_make_the_whole_wherever_they_are_cut(memory: int, cuts: list[int], share: float, seed: int) -> None:
    net = encoder(memory, 2, seed)
    obs, starts = torch.randn(60, 3, 2), torch.rand(60, 3) < share
    whole = net(obs, starts=starts)
    state, latents = None, []
    for a, b in zip([0, *cuts], [*cuts, 60], strict=True):
        latent, state = net(obs[a:b], state, starts=starts[a:b])
        latents.append(latent)
    torch.testing.assert_close(torch.cat(latents), whole.latent, atol=1e-5, rtol=1e-5)
    for name in whole.state:  # also in the slots that are empty
        torch.testing.assert_close(state[name], whole.state[name], atol=1e-5, rtol=1e-5)  # type: ignore[index]


@settings(max_examples=12, deadline=None)
@given(
    num_layers=st.integers(1, 2),
    num_steps=st.sampled_from([1, 3, 8, 35]),
    share=st.sampled_from([0.0, 0.2, 0.7]),
    seed=st.integers(0, 2**31),
)
def test_gradients_are_those_of_the_loops(num_layers: int, num_steps: int, share: float, seed: int) -> None:
    net = encoder(3, num_layers, seed).double()
    obs, starts = torch.randn(num_steps, 2, 2).double(), torch.rand(num_steps, 2) < share
    state = random_state(net, 2)
    state["memory"] = state["memory"].double()
    weight = torch.randn(num_steps, 2, DIM)
    inputs = [obs, state["memory"]]
    for tensor in inputs:
        tensor.requires_grad_()

    def gradients(latent: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad((latent * weight).sum(), [*net.parameters(), *inputs], materialize_grads=True)

    ours, theirs = (
        gradients(latent) for latent in (net(obs, state, starts=starts).latent, oracle(net, obs, state, starts)[0])
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=1e-7)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_step_sees_as_many_steps_back_as_the_memory_is_long_in_each_layer(num_layers: int) -> None:
    net = encoder(memory=3, num_layers=num_layers)
    obs = torch.randn(20, 1, 2, requires_grad=True)
    (gradient,) = torch.autograd.grad(net(obs).latent[-1].sum(), obs)
    seen = gradient.ne(0).any(2).squeeze(1)
    assert seen.tolist() == [False] * (19 - 3 * num_layers) + [True] * (1 + 3 * num_layers)


def test_nothing_is_seen_over_a_start() -> None:
    net = encoder(memory=4, num_layers=2)
    obs, state = torch.randn(30, 1, 2, requires_grad=True), random_state(net, 1)
    state["memory"].requires_grad_()
    starts = torch.zeros(30, 1, dtype=torch.bool)
    starts[17] = True
    grads = torch.autograd.grad(net(obs, state, starts=starts).latent[17:].sum(), [obs, state["memory"]])
    assert grads[0][:17].eq(0).all()
    assert grads[0][17:].ne(0).all()
    assert grads[1].eq(0).all()


def test_a_start_in_one_row_leaves_the_others_alone() -> None:
    net = encoder()
    obs, state = torch.randn(6, 3, 2), random_state(net, 3)
    starts = torch.zeros(6, 3, dtype=torch.bool)
    starts[3, 1] = True
    started, unset = net(obs, state, starts=starts).latent, net(obs, state).latent
    torch.testing.assert_close(started[:, ::2], unset[:, ::2])
    torch.testing.assert_close(started[:3], unset[:3])
    assert not torch.allclose(started[3:, 1], unset[3:, 1])


def test_where_in_a_run_a_step_lies_does_not_matter() -> None:
    net = encoder(memory=4, num_layers=2)
    obs = torch.randn(9, 1, 2)
    late = net(torch.cat([torch.randn(50, 1, 2), obs])).latent[-1]
    torch.testing.assert_close(net(obs).latent[-1], late, atol=1e-5, rtol=1e-5)


def test_the_order_of_past_steps_matters() -> None:
    net = encoder(memory=4)
    obs = torch.randn(3, 1, 2)
    assert not torch.allclose(net(obs).latent[-1], net(obs[[1, 0, 2]]).latent[-1])


def test_an_empty_slot_is_no_step_of_zeros() -> None:
    net = encoder(memory=4)
    obs = torch.randn(1, 1, 2)
    empty = {name: part.unsqueeze(0) for name, part in net.get_initial_state().items()}
    seen = {"memory": empty["memory"], "length": torch.tensor([4])}
    torch.testing.assert_close(net(obs, empty).latent, net(obs).latent)
    assert not torch.allclose(net(obs, seen).latent, net(obs).latent)


@pytest.mark.parametrize("num_steps", [1, 5])
def test_even_a_state_that_is_not_a_number_is_forgotten_at_a_start(num_steps: int) -> None:
    net = encoder()
    state = {"memory": torch.full((1, 1, 3, DIM), torch.nan), "length": torch.tensor([3])}
    starts = torch.zeros(num_steps, 1, dtype=torch.bool)
    starts[0] = True
    out = net(torch.zeros(num_steps, 1, 2), state, starts=starts)
    assert out.latent.isfinite().all()
    assert out.state["memory"].isfinite().all()


def test_the_state_is_batch_first_and_starts_at_zero() -> None:
    net = encoder(memory=7, num_layers=2)
    initial = net.get_initial_state()
    assert {name: (tuple(part.shape), part.dtype) for name, part in initial.items()} == {
        "memory": ((2, 7, DIM), torch.float32),
        "length": ((), torch.int64),
    }
    assert all(part.eq(0).all() for part in initial.values())
    out = net(torch.randn(3, 4, 2))
    assert out.latent.shape == (3, 4, DIM)
    assert [(tuple(part.shape), part.dtype) for part in out.state.values()] == [
        ((4, 2, 7, DIM), torch.float32),
        ((4,), torch.int64),
    ]
    assert out.state["length"].tolist() == [3] * 4
    assert out.state["memory"][:, :, :4].eq(0).all()
    assert out.state["memory"][:, :, 4:].ne(0).all()


@pytest.mark.parametrize("num_steps", [1, 5, 40])
def test_nothing_given_is_changed_and_repeated_calls_agree_to_the_bit(num_steps: int) -> None:
    net = encoder(num_layers=2)
    obs, state = torch.randn(num_steps, 3, 2), random_state(net, 3)
    starts = torch.rand(num_steps, 3) < 0.5
    kept = copy.deepcopy((obs, state, starts))
    first, second = (net(obs, state, starts=starts) for _ in range(2))
    assert torch.equal(first.latent, second.latent)
    assert all(torch.equal(first.state[name], second.state[name]) for name in state)
    assert torch.equal(obs, kept[0])
    assert torch.equal(starts, kept[2])
    assert all(torch.equal(state[name], kept[1][name]) for name in state)


@pytest.mark.parametrize("num_steps", [1, 5, 40])
def test_acting_without_gradients_gives_the_same(num_steps: int) -> None:
    net = encoder()
    obs, starts = torch.randn(num_steps, 3, 2), torch.rand(num_steps, 3) < 0.5
    expected = net(obs, starts=starts)
    with torch.inference_mode():
        out = net(obs, starts=starts)
    torch.testing.assert_close(out.latent, expected.latent)


def test_a_layer_by_hand() -> None:
    ones = Init(kernel="constant_", kernel_kwargs={"val": 1.0}, bias="zeros_")
    net = AttentionEncoderConfig(
        tokenizer_config=BuiltEncoderConfig(net=nn.Identity(), width=1),
        dim=1,
        num_heads=1,
        head_dim=1,
        memory=1,
        mlp_dim=1,
        gate_bias=0.0,
        init=ones,
    ).build()
    (layer,) = layers(net)
    with torch.no_grad():  # the norm of a single number is its bias
        layer.mlp_norm.bias.fill_(-1.0)
        layer.attended.bias.fill_(1.5)
    # alone, a step attends to itself: y = 0.5 · 1 + 1.5 = 2; the MLP's hidden unit is relu(-1) = 0, its output 0
    # gate of x = 0.5, y = 2: r = z = σ(2.5) = 0.924142, n = tanh(2 + 0.924142 · 0.5) = tanh(2.462071) = 0.985566,
    # x = 0.075858 · 0.985566 + 0.924142 · 0.5 = 0.536834
    # gate of x, y = 0: r = z = σ(0.536834) = 0.631076, n = tanh(0.631076 · 0.536834) = 0.326391,
    # x = 0.368924 · 0.326391 + 0.631076 · 0.536834 = 0.459197
    assert net(torch.tensor([[[0.5]]])).latent.item() == pytest.approx(0.459197, abs=1e-5)


def test_a_large_gate_bias_makes_a_layer_the_identity() -> None:
    config = DefaultModelConfig(use_attention=True, attention_dim=4, attention_init_gru_gate_bias=20.0)
    net, obs = (
        attention_encoder_config(BuiltEncoderConfig(net=nn.Identity(), width=4), config).build(),
        torch.randn(5, 2, 4),
    )
    torch.testing.assert_close(net(obs).latent, net.projection(obs), atol=1e-6, rtol=0)


def test_what_is_attended_to_keeps_its_size() -> None:
    """A net that sees the directions of its inputs alone cannot learn from small numbers how fast they change."""
    config = DefaultModelConfig(use_attention=True, attention_bias_initializer="zeros_")
    net, small = (
        attention_encoder_config(BuiltEncoderConfig(net=nn.Identity(), width=64), config).build(),
        torch.randn(8, 1, 64) / 100,
    )
    attended = []
    for layer in layers(net):
        layer.attended.register_forward_hook(lambda module, given, out: attended.append(out.abs().mean().item()))
    net(small)
    net(2 * small)
    assert attended[1] == pytest.approx(2 * attended[0], rel=0.05)


def test_heads_look_near_first_and_each_further_than_the_one_before() -> None:
    config = DefaultModelConfig(use_attention=True, attention_memory=2, attention_num_heads=3)
    (layer,) = layers(attention_encoder_config(BuiltEncoderConfig(net=nn.Identity(), width=4), config).build())
    assert layer.by_distance.tolist() == [[0, -1, -2], [0, -0.25, -0.5], [0, -0.0625, -0.125]]


def test_settings_shape_the_net() -> None:
    config = attention_encoder_config(
        MLPEncoderConfig(input_dims=(3,), hidden_layer_dims=(7,)),
        DefaultModelConfig(
            use_attention=True,
            attention_num_transformer_units=2,
            attention_dim=12,
            attention_num_heads=3,
            attention_head_dim=4,
            attention_memory=5,
            attention_position_wise_mlp_dim=10,
            attention_init_gru_gate_bias=1.5,
            attention_bias_initializer="zeros_",
        ),
    )
    assert config.output_dims == (12,)
    net = config.build()
    assert net.parts() == (net.tokenizer,)
    assert net.projection.weight.shape == (12, 7)
    assert net(torch.randn(2, 4, 3)).state["memory"].shape == (4, 2, 5, 12)
    assert len(layers(net)) == 2
    for layer in layers(net):
        assert layer.by_distance.shape == (3, 6)
        assert layer.mlp_hidden.weight.shape == (10, 12)
        for weight in (layer.query.weight, layer.key.weight, *layer.mlp_gate.weight_hh.split(12)):
            torch.testing.assert_close(weight @ weight.T, torch.eye(12), atol=1e-5, rtol=0)  # orthogonal by default
        for cell in (layer.attention_gate, layer.mlp_gate):
            assert cell.bias_ih.tolist() == [0] * 12 + [1.5] * 12 + [0] * 12
            assert cell.bias_hh.eq(0).all()


def test_initialisers_may_be_functions_with_keywords() -> None:
    settings_ = DefaultModelConfig(
        use_attention=True,
        attention_kernel_initializer=nn.init.constant_,
        attention_kernel_initializer_kwargs={"val": 0.25},
        attention_bias_initializer="constant_",
        attention_bias_initializer_kwargs={"val": -1.0},
        attention_init_gru_gate_bias=0.0,
    )
    for net in (
        attention_encoder_config(MLPEncoderConfig(input_dims=(3,)), settings_).build(),
        attention_encoder_config(BuiltEncoderConfig(net=nn.Identity(), width=3), settings_).build(),
    ):
        for layer in layers(net):
            named = [(n, w) for n, w in layer.named_parameters() if n != "by_distance" and "norm" not in n]
            assert all(w.unique().tolist() == [0.25 if w.dim() == 2 else -1.0] for _, w in named)


def test_a_config_that_is_pickled_builds_the_same() -> None:
    config = attention_encoder_config(MLPEncoderConfig(input_dims=(2,)), DefaultModelConfig(use_attention=True))
    copied = pickle.loads(pickle.dumps(config))
    assert copied == config
    torch.manual_seed(0)
    net = config.build()
    torch.manual_seed(0)
    obs = torch.randn(3, 1, 2, generator=torch.Generator().manual_seed(1))
    assert torch.equal(net(obs).latent, copied.build()(obs).latent)


class Matrices(ModelConfig):
    @property
    def output_dims(self) -> tuple[int, ...]:
        return (2, 3)

    def build(self) -> nn.Module:
        return nn.Identity()


class Remembering(Encoder):
    def get_initial_state(self) -> Tensor:
        return torch.zeros(1)

    def forward(self, obs: Any, state: Any = None, *, starts: Tensor | None = None) -> EncoderOutput:
        return EncoderOutput(obs, state)


def test_configs_that_fit_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tokenizer_config: expected .* latents have one dim.*\(2, 3\)"):
        AttentionEncoderConfig(tokenizer_config=Matrices()).build()


def test_a_tokenizer_with_a_state_of_its_own_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"AttentionEncoderConfig.tokenizer_config: expected an encoder without .* Remembering"
    ):
        attention_encoder_config(
            BuiltEncoderConfig(net=Remembering(), width=3), DefaultModelConfig(use_attention=True)
        ).build()


@pytest.mark.parametrize(
    ("obs", "state", "starts", "message"),
    [
        (
            torch.zeros(3, 4, 2),
            None,
            None,
            r"latents of shape \(12, 5\) from the tokenizer, got .* \(12, 4\)\. Let its config",
        ),
        (torch.zeros(3), None, None, r"obs \[T, B, \.\.\.\] .*leading dims \(3,\)"),
        (torch.zeros(3, 4, 2), None, torch.zeros(3, dtype=torch.bool), r"leading dims \(3, 4\) and starts .*\(3,\)"),
        (torch.zeros(3, 4, 2), {"memory": torch.zeros(4, 1, 3, DIM)}, None, r"'length': \(4,\)}, got"),
        (
            torch.zeros(3, 4, 2),
            {"memory": torch.zeros(1, 4, 3, DIM), "length": torch.zeros(4)},
            None,
            r"'memory': \(4, 1, 3, 6\), 'length': \(4,\)}, got .*\(1, 4, 3, 6\)",
        ),
        (torch.zeros(3, 4, 2), torch.zeros(4, 1, 5), None, r"'memory': \(4, 1, 3, 6\).*, got Tensor"),
    ],
)
def test_shapes_that_do_not_fit_are_named(obs: Any, state: Any, starts: Any, message: str) -> None:
    net = encoder()
    net.input_dim += "from the tokenizer" in message
    with pytest.raises(ValueError, match=rf"AttentionEncoder: .*{message}"):
        net(obs, state, starts=starts)


# --- in the tree ------------------------------------------------------------------------------------------------------


def test_the_setting_puts_attention_behind_whatever_the_tree_chose() -> None:
    space = spaces.Dict({"camera": spaces.Box(0, 255, (16, 16, 3)), "speed": OBS})
    catalog = Catalog(space, TWO, {"use_attention": True, "attention_dim": 24, "lstm_use_prev_action": True})
    net = catalog.build_trunk()
    assert isinstance(net, AttentionEncoder)
    assert catalog.latent_dims == (24,)


def test_explain_tells_of_attention_and_of_settings_that_do_nothing() -> None:
    given_ = {"use_attention": True, "attention_memory": 8, "conv_dense_dim": 32}
    expected_text = Catalog(OBS, TWO, given_).explain()
    assert "Attention to the last 8 steps and this one, over the encoding of each step" in expected_text
    assert "attention_memory = 8 (set)" in expected_text
    assert "AttentionEncoderConfig(tokenizer_config=MLPEncoderConfig(…), memory=8)" in expected_text
    assert "without effect         conv_dense_dim = 32 (set)" in expected_text


def test_an_encoder_of_ones_own_gets_attention_behind_it() -> None:
    class Mine(Catalog):
        def build_encoder(self) -> nn.Module:
            return nn.Linear(2, 5)

    net = Mine(OBS, TWO, {"use_attention": True}).build_trunk()
    assert isinstance(net, AttentionEncoder)
    expected_text = " ".join(Mine(OBS, TWO, {"use_attention": True}).explain().split())
    assert (
        "followed by Attention to the last 32 steps and this one, over the encoding of each step decided by"
        in expected_text
    )


def test_only_one_memory_is_taken() -> None:
    with pytest.raises(ValueError, match=r"use_attention: expected False, since use_gru is True, got True"):
        DefaultModelConfig(use_gru=True, use_attention=True)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("attention_memory_inference", "It is attention_memory, one number"),
        ("attention_memory_training", "It is attention_memory, one number"),
        ("attention_use_n_prev_actions", "It is lstm_use_prev_action"),
        ("attention_use_n_prev_rewards", "It is lstm_use_prev_reward"),
    ],
)
def test_names_from_rllib_lead_to_ours(name: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        DefaultModelConfig.from_any({"use_attention": True, name: 3})
