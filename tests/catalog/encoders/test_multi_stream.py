"""Nested observations: an encoder per part, and trees of any shape."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from catalog.activations import Init
from catalog.base import Encoder, EncoderOutput, ModelConfig, Tree, encoder_rules
from catalog.encoders.mlp import MLPEncoderConfig
from catalog.encoders.multi_stream import MultiStreamEncoder, MultiStreamEncoderConfig
from catalog.model_config import DefaultModelConfig
from catalog.spaces import to_tensor

VECTOR = spaces.Box(-1, 1, (2,))
NESTED = spaces.Dict(
    [("z", VECTOR), ("a.b", spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, ())])), ("", spaces.MultiBinary(2))]
)


def decide(space: spaces.Space, **settings: Any) -> tuple[MultiStreamEncoderConfig, Any]:
    node = encoder_rules.root(space, DefaultModelConfig.from_any(settings), "observation_space")
    config = node.run()
    assert isinstance(config, MultiStreamEncoderConfig)
    return config, node


def vector(space: spaces.Space) -> ModelConfig:
    return MLPEncoderConfig(input_space=space, hidden_layer_dims=())


def vectors(**spaces_by_key: spaces.Space) -> dict[str | int, ModelConfig]:
    return {key: vector(space) for key, space in spaces_by_key.items()}


@dataclass(frozen=True)
class Fixed(ModelConfig):
    """Says it gives ``dims``, and builds ``net``."""

    dims: tuple[int, ...]
    net: nn.Module

    @property
    def output_dims(self) -> tuple[int, ...]:
        return self.dims

    def build(self) -> nn.Module:
        return self.net


class Stateful(Encoder):
    """An encoder with a state."""

    def get_initial_state(self) -> Tree:
        return torch.zeros(1)

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        return EncoderOutput(obs, state)


@pytest.mark.parametrize("dims", [8, (), (2, 4)], ids=str)
def test_a_part_whose_latents_are_no_vectors_is_named(dims: Any) -> None:
    parts: dict[str | int, ModelConfig] = {"x": vector(VECTOR), "y": Fixed(dims, nn.Linear(2, 8))}
    with pytest.raises(
        ValueError, match=r"robot\['y'\]: expected an encoder of vectors, .*, got Fixed with output_dims"
    ):
        MultiStreamEncoderConfig(encoders=parts, where="robot").output_dims  # noqa: B018


def test_latents_stand_side_by_side_and_are_fused() -> None:
    init = Init(kernel="ones_", bias="zeros_")
    config = MultiStreamEncoderConfig(
        encoders=vectors(y=spaces.Discrete(2), x=VECTOR),
        fusion_hidden_dims=(1,),
        fusion_activation="linear",
        init=init,
    )
    obs = {"x": torch.tensor([[3.0, 4.0]]), "y": torch.tensor([1]), "other": None}
    assert config.output_dims == (1,)
    assert config.build()(obs).latent.tolist() == [[8]]
    plain = MultiStreamEncoderConfig(encoders=config.encoders, fusion_hidden_dims=())
    assert plain.output_dims == (4,)
    assert plain.build()(obs).latent.tolist() == [[0, 1, 3, 4]]
    assert not list(plain.build().parameters())


def test_parts_of_a_tuple_go_by_index() -> None:
    config = MultiStreamEncoderConfig(
        encoders={2: vector(VECTOR), 0: vector(spaces.Discrete(2))},
        fusion_hidden_dims=(),
    )
    obs = (torch.tensor([0]), "not read", torch.tensor([[3.0, 4.0]]))
    assert config.build()(obs).latent.tolist() == [[3, 4, 1, 0]]


def test_the_joining_layers_have_the_activation_asked_for() -> None:
    config = MultiStreamEncoderConfig(encoders=vectors(x=VECTOR), fusion_hidden_dims=(50, 40), fusion_activation="relu")
    net = config.build()
    latent = net({"x": 100 * torch.randn(3, 2)}).latent
    assert latent.min() == 0
    assert latent.max() > 1, "no tanh"


def test_any_module_may_encode_a_part() -> None:
    config = MultiStreamEncoderConfig(encoders={"x": Fixed((5,), nn.Linear(2, 5))}, fusion_hidden_dims=())
    net = config.build()
    assert isinstance(net.parts()[0], Encoder)
    assert net({"x": torch.zeros(3, 4, 2)}).latent.shape == (3, 4, 5)


def test_parts_are_the_encoders_in_the_order_of_the_tree() -> None:
    config, node = decide(NESTED)
    net = config.build()
    assert isinstance(net, MultiStreamEncoder)
    assert [child.keys for child in node.children] == [("z",), ("a.b",), ("",)]
    inputs = [next(part.parameters()).shape[1] for part in net.parts()]
    assert inputs == [2, 64 + 64, 2], "the fusion of the Tuple comes first among its parameters"
    assert all(p.requires_grad for p in net.parameters())


def test_every_leaf_has_the_settings_of_its_path() -> None:
    overrides = {"z": {"fcnet_hiddens": (5,)}, "a.b": {"fusionnet_hiddens": (6,)}, "a.b.1": {"fcnet_hiddens": ()}}
    config, node = decide(NESTED, leaf_overrides=overrides, fcnet_hiddens=(9,), fusionnet_hiddens=(8, 7))
    dims = {child.keys: child.result.output_dims for child in node.walk()}
    assert dims == {(): (7,), ("z",): (5,), ("a.b",): (6,), ("a.b", 0): (9,), ("a.b", 1): (1,), ("",): (9,)}
    assert config.output_dims == (7,)
    assert config.concatenated_dim == 5 + 6 + 9


def test_a_path_that_leads_to_several_parts_is_for_all_of_them() -> None:
    space = spaces.Dict({"a.b": VECTOR, "a": spaces.Dict({"b": VECTOR, "c": VECTOR})})
    _, node = decide(space, leaf_overrides={"a.b": {"fcnet_hiddens": (5,)}}, fcnet_hiddens=(9,))
    dims = {child.keys: child.result.output_dims for child in node.walk() if not child.children}
    assert dims == {("a.b",): (5,), ("a", "b"): (5,), ("a", "c"): (9,)}


def test_fusion_settings_shape_the_joining_layers() -> None:
    config, node = decide(
        NESTED, fusionnet_hiddens=(3,), fusionnet_activation="relu", fcnet_bias_initializer="ones_", fcnet_hiddens=(4,)
    )
    assert node.rule.name == "Dict → an encoder per part, fused"
    net = config.build()
    assert [tuple(layer.weight.shape) for layer in net.linears] == [(3, 4 + 3 + 4)]
    assert net.linears[0].bias.tolist() == [1, 1, 1]
    assert config.fusion_activation == "relu"
    assert {"fusionnet_hiddens", "fusionnet_activation", "fcnet_bias_initializer"} < set(node.reads)


@pytest.mark.parametrize("space", [spaces.Dict({"x": VECTOR}), spaces.Tuple([VECTOR])])
def test_a_single_part_is_not_fused(space: spaces.Space) -> None:
    config, _ = decide(space, fcnet_hiddens=(5,))
    assert config.output_dims == (5,)
    assert not list(config.build().linears)


@pytest.mark.parametrize(
    ("space", "path"),
    [
        (spaces.Dict({"x": spaces.Tuple([VECTOR, spaces.Text(3)])}), r"observation_space\['x'\]\[1\]: .*got Text"),
        (spaces.Tuple([spaces.Sequence(VECTOR)]), r"observation_space\[0\]: .*got Sequence"),
        (spaces.Tuple([spaces.Graph(VECTOR, None)]), r"observation_space\[0\]: .*got Graph"),
        (spaces.Tuple([spaces.OneOf([VECTOR])]), r"observation_space\[0\]: .*got OneOf"),
        (spaces.Dict({"x": spaces.Dict({})}), r"observation_space\['x'\]: expected at least one part"),
        (spaces.Dict({"x": spaces.Box(-1, 1, (0,))}), r"observation_space\['x'\]: expected .*at least one entry"),
    ],
)
def test_what_cannot_be_encoded_is_refused_by_its_path(space: spaces.Space, path: str) -> None:
    with pytest.raises(ValueError, match=f"^{path}"):
        decide(space)


def test_a_part_with_a_state_is_refused() -> None:
    config = MultiStreamEncoderConfig(encoders={"x": Fixed((2,), Stateful())}, where="obs")
    with pytest.raises(ValueError, match=r"obs\['x'\]: expected an encoder without a state, got Stateful"):
        config.build()


# --- trees of any shape -----------------------------------------------------------------------------------------------

FLOATS, INTEGERS = (np.float16, np.float32, np.float64), (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint32)
KEYS = st.sampled_from(["a", "b", "a.b", "", "x y", "é", "0", "parts"])


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    rank = draw(st.sampled_from([0, 1, 1, 2, 2, 3, 4]))
    shape = tuple(draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank)))
    kind = draw(st.sampled_from(["float", "unbounded", "half", "bytes", "int", "bool"]))
    if kind == "bytes":
        return spaces.Box(0, 255, shape, np.uint8)
    if kind == "bool":
        return spaces.Box(0, 1, shape, np.bool_)
    if kind == "int":
        low = draw(st.integers(0, 50))
        return spaces.Box(low, low + draw(st.integers(0, 70)), shape, draw(st.sampled_from(INTEGERS)))
    dtype = draw(st.sampled_from(FLOATS))
    low, high = {"float": (-draw(st.integers(0, 9)), 3), "unbounded": (-np.inf, np.inf), "half": (-1, np.inf)}[kind]
    return spaces.Box(low, high, shape, dtype)


def leaves() -> st.SearchStrategy[spaces.Space]:
    starts = st.integers(-3, 3)
    sizes = st.lists(st.integers(1, 4), min_size=1, max_size=3)
    discrete = st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 6), starts)
    rows = st.one_of(sizes, sizes.map(lambda row: [row, row]))
    multi = st.builds(lambda nvec, s: spaces.MultiDiscrete(nvec, start=np.full(np.shape(nvec), s)), rows, starts)
    bits = st.builds(spaces.MultiBinary, st.one_of(st.integers(1, 4), st.just((2, 3))))
    return st.one_of(boxes(), discrete, multi, bits)


def nested(leaf: st.SearchStrategy[spaces.Space], depth: int = 3) -> st.SearchStrategy[spaces.Space]:
    for _ in range(depth):
        keyed = st.lists(st.tuples(KEYS, leaf), min_size=1, max_size=3, unique_by=lambda item: item[0])
        leaf = st.one_of(leaf, keyed.map(spaces.Dict), st.lists(leaf, min_size=1, max_size=3).map(spaces.Tuple))
    return leaf


SETTINGS = st.sampled_from(
    [
        {},
        {"flatten_observations": True},
        {"discrete_embedding_dim": 3, "fcnet_hiddens": (4,), "fusionnet_hiddens": ()},
        {"fcnet_hiddens": (), "fcnet_use_layernorm": True},
        {"fcnet_activation": nn.PReLU, "fcnet_dropout": 0.5},
    ]
)


def stacked(samples: list[Any]) -> Any:
    """Samples of a space as one tree of tensors with a batch dim."""
    if isinstance(samples[0], dict):
        return {key: stacked([sample[key] for sample in samples]) for key in samples[0]}
    if isinstance(samples[0], tuple):
        return tuple(stacked(list(parts)) for parts in zip(*samples, strict=True))
    return to_tensor(np.stack(samples))


def mapped(function: Any, tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: mapped(function, part) for key, part in tree.items()}
    return tuple(mapped(function, part) for part in tree) if isinstance(tree, tuple) else function(tree)


@settings(max_examples=30, deadline=None)
@given(nested(leaves()), SETTINGS, st.integers(0, 2**31))
def test_any_observation_space_is_encoded_row_by_row(space: spaces.Space, given: dict[str, Any], seed: int) -> None:
    settings = DefaultModelConfig.from_any({"conv_dense_dim": 8, **given})
    config = encoder_rules.root(space, settings, "observation_space").run()
    net = config.build().eval()
    space.seed(seed)
    batch = stacked([space.sample() for _ in range(6)])
    with torch.no_grad():
        latent = net(batch).latent
        assert latent.shape == (6, *config.output_dims)
        assert latent.dtype == torch.float32
        assert latent.isfinite().all()
        close = {"rtol": 1e-4, "atol": 1e-3}
        folded = net(mapped(lambda x: x.unflatten(0, (2, 3)), batch)).latent
        torch.testing.assert_close(folded.flatten(0, 1), latent, **close)
        for row in (0, 5):
            alone = net(mapped(lambda x, row=row: x[row : row + 1], batch)).latent
            torch.testing.assert_close(alone[0], latent[row], **close)
            single = net(mapped(lambda x, row=row: x[row], batch)).latent
            torch.testing.assert_close(single, latent[row], **close)


RANK_5 = spaces.Box(-1, 1, (1, 2, 1, 2, 1))
BAD = [
    spaces.Text(3),
    spaces.Sequence(VECTOR),
    spaces.Graph(VECTOR, None),
    spaces.OneOf([VECTOR]),
    spaces.Box(-1, 1, (2, 0)),
    spaces.Dict({}),
    spaces.Tuple([]),
]


def paths_to_bad(space: spaces.Space, path: str, flatten: bool, outermost: bool = True) -> list[str]:
    if space in BAD or (space == RANK_5 and (outermost or not flatten)):
        return [path]
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return []
    parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    return [found for key, part in parts for found in paths_to_bad(part, f"{path}[{key!r}]", flatten, False)]


@settings(max_examples=25, deadline=None)
@given(nested(st.one_of(leaves(), st.sampled_from([*BAD, RANK_5]))), st.booleans())
def test_what_cannot_be_encoded_is_named_wherever_it_lies(space: spaces.Space, flatten: bool) -> None:
    node = encoder_rules.root(space, DefaultModelConfig(flatten_observations=flatten), "observation_space")
    paths = paths_to_bad(space, "observation_space", flatten)
    if not paths:
        node.run()
        return
    with pytest.raises(ValueError, match=r"expected .*, got ") as error:
        node.run()
    assert str(error.value).startswith(tuple(f"{path}: " for path in paths))
