"""Random spaces with random settings: a module that works, or one error that says what is wrong."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from algorithms.ppo import PPOCatalog, PPOModule
from catalog import Categorical, DefaultModelConfig, DiagGaussian, Encoder, EncoderOutput, register_model
from catalog.base import Tree
from catalog.encoders.preprocessing import Vectorize, can_normalize, vector_width
from catalog.model_config import MEMORIES
from catalog.registry import models
from rlmodule import Columns, RLModuleSpec
from rlmodule.testing.data import differences
from rlmodule.testing.module_contract import RLModuleContract
from tests.algorithms.ppo.matrix import MASK, choices, mask_space, parts_of, with_fields

Draw = st.DrawFn
DTYPES = [np.float32, np.float64, np.float16, np.uint8, np.int8, np.int32, np.int64, np.uint16, bool]
VECTORS = "avail_actions"
KEYS = ["b", "a", "x.y", "keys", "obs", "prev_action", "1"]


# --- spaces ---


@st.composite
def boxes(draw: Draw, dtypes: list[Any], shape: st.SearchStrategy[list[int]]) -> spaces.Box:
    dtype, dims = np.dtype(draw(st.sampled_from(dtypes))), tuple(draw(shape))
    low, high = (0, 1) if dtype.kind == "b" else (0 if dtype.kind == "u" else draw(st.integers(-3, 0)), 3)
    if dtype == np.uint8 and draw(st.booleans()):
        high = 255
    if dtype.kind == "f":
        low, high = draw(st.sampled_from([(low, high), (low, np.inf), (-np.inf, high), (-np.inf, np.inf)]))
    return spaces.Box(low, high, dims, dtype.type)


def shapes(least: int = 1, most: int = 4, rank: int = 4) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(least, most), max_size=rank)


@st.composite
def choice_spaces(draw: Draw) -> Space:
    start = draw(st.integers(-3, 3))
    return draw(
        st.sampled_from(
            [
                spaces.Discrete(draw(st.integers(1, 4)), start=start),
                spaces.MultiDiscrete(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))),
                spaces.MultiDiscrete(np.array([[2, 1], [3, 2]]), start=np.full((2, 2), start)),
                spaces.MultiBinary(draw(st.integers(1, 3))),
                spaces.MultiBinary([2, 2]),
            ]
        )
    )


OBSERVED = st.one_of(boxes(DTYPES, shapes()), choice_spaces())
ACTED = st.one_of(boxes(DTYPES, shapes(most=2, rank=2)), choice_spaces())
COUNTED = [np.uint8, np.int8, np.int32, np.uint16, bool]
STRANGE: st.SearchStrategy[Space] = st.one_of(
    boxes(DTYPES, shapes(least=0, rank=5)),
    st.builds(spaces.Text, st.just(3)),
    st.builds(spaces.Sequence, OBSERVED),
    st.builds(lambda: spaces.Graph(spaces.Box(-1, 1, (2,)), None)),
    st.builds(lambda: spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)])),
    st.just(spaces.Dict()),
    st.just(spaces.Tuple([])),
    st.just(spaces.Box(-(2**31), 2**31 - 1, (1,), np.int32)),
)


@st.composite
def nested(draw: Draw, leaf: st.SearchStrategy[Space], depth: int = 3) -> Space:
    """A Dict or Tuple with up to ``depth`` levels, or a leaf."""
    kind = draw(st.sampled_from(["leaf", "leaf", "Dict", "Tuple"])) if depth else "leaf"
    if kind == "leaf":
        return draw(leaf)
    parts = [draw(nested(leaf, depth - 1)) for _ in range(draw(st.integers(1, 3)))]
    if kind == "Tuple":
        return spaces.Tuple(parts)
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=len(parts), max_size=len(parts), unique=True))
    return spaces.Dict([*zip(keys, parts, strict=True)])


def leaves(space: Space, name: str = "") -> dict[str, Space]:
    """Leaves by path, as settings name them, but for a mask and vectors of actions."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return {name: space}
    parts = {key: part for key, part in parts_of(space).items() if key not in (MASK, VECTORS)}
    inner = [leaves(part, f"{name}.{key}" if name else str(key)) for key, part in parts.items()]
    return {path: leaf for found in inner for path, leaf in found.items()}


# --- settings ---


class Flat(nn.Module):
    """An encoder of your own."""

    def __init__(self, space: Space, width: int = 4) -> None:
        super().__init__()
        self.vectorize = Vectorize(space)
        self.linear = nn.Linear(vector_width(space), width)

    def forward(self, obs: Tree) -> Tensor:
        return self.linear(self.vectorize(obs))


class Summing(Encoder):
    """A stateful one: the sum of what it saw since the episode began."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.flat = Flat(space, 3)

    def get_initial_state(self) -> Tree:
        return {"sum": torch.zeros(3)}

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        latent = self.flat(obs)
        total = torch.zeros_like(latent[0]) if state is None else state["sum"]
        totals = []
        for t in range(len(latent)):
            total = total if starts is None else total.masked_fill(starts[t].unsqueeze(-1), 0)
            total = total + latent[t]
            totals.append(total)
        return EncoderOutput(torch.stack(totals), {"sum": total})


@pytest.fixture(autouse=True, scope="module")
def registered() -> Iterator[None]:
    """A model known by name while these tests run."""
    register_model("flat-for-properties")(Flat)
    yield
    del models._known["flat-for-properties"]


ACTIVATIONS = st.sampled_from(["tanh", "relu", "SiLU", "leaky_relu", "linear", "softmax", nn.PReLU, nn.ELU])
KERNELS = st.sampled_from(["orthogonal_", "xavier_uniform_", "kaiming_normal_", nn.init.xavier_normal_, None])
BIASES = st.sampled_from(["zeros_", "normal_", None])
NO_KEYWORDS = st.sampled_from([None, {}])
FLAG, OPEN_FLAG = st.booleans(), st.sampled_from([None, True, False])
WIDTHS = st.lists(st.integers(1, 5), min_size=1, max_size=2)
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "fcnet_hiddens": WIDTHS,
    "fcnet_activation": ACTIVATIONS,
    "fcnet_use_layernorm": FLAG,
    "fcnet_norm": st.sampled_from([None, "layer", "rms", "batch"]),
    "fcnet_blocks": st.sampled_from([None, "simba", "bro"]),
    "fcnet_dropout": st.sampled_from([0, 0.5]),
    "fcnet_kernel_initializer": KERNELS,
    "fcnet_kernel_initializer_kwargs": NO_KEYWORDS,
    "fcnet_bias_initializer": BIASES,
    "fcnet_bias_initializer_kwargs": NO_KEYWORDS,
    "discrete_embedding_dim": st.sampled_from([None, 3]),
    "matrix_observations": st.sampled_from(["flatten", "image", "sequence"]),
    "flatten_observations": FLAG,
    "conv_filters": st.sampled_from([None, "impala", [[3, 2, 1, "same"]], [[2, [3, 2], [1, 2], "same"], [3, 1, 1]]]),
    "conv_padding": st.sampled_from(["same", "valid"]),
    "conv_channels": st.sampled_from([None, "first", "last"]),
    "conv_activation": ACTIVATIONS,
    "conv_use_layernorm": FLAG,
    "conv_dense_dim": st.sampled_from([None, 4]),
    "conv_kernel_initializer": KERNELS,
    "conv_kernel_initializer_kwargs": NO_KEYWORDS,
    "conv_bias_initializer": BIASES,
    "conv_bias_initializer_kwargs": NO_KEYWORDS,
    "fusionnet_hiddens": st.sampled_from([[], [4]]),
    "fusionnet_activation": ACTIVATIONS,
    "use_lstm": FLAG,
    "use_gru": FLAG,
    "use_attention": FLAG,
    "max_seq_len": st.integers(1, 5),
    "lstm_cell_size": st.integers(1, 4),
    "lstm_num_layers": st.integers(1, 2),
    "lstm_use_prev_action": FLAG,
    "lstm_use_prev_reward": FLAG,
    "lstm_kernel_initializer": KERNELS,
    "lstm_kernel_initializer_kwargs": NO_KEYWORDS,
    "lstm_bias_initializer": BIASES,
    "lstm_bias_initializer_kwargs": NO_KEYWORDS,
    "attention_num_transformer_units": st.integers(1, 2),
    "attention_dim": st.integers(1, 4),
    "attention_num_heads": st.integers(1, 3),
    "attention_head_dim": st.integers(1, 3),
    "attention_memory": st.integers(1, 4),
    "attention_position_wise_mlp_dim": st.integers(1, 4),
    "attention_init_gru_gate_bias": st.sampled_from([0, 2.0]),
    "attention_kernel_initializer": KERNELS,
    "attention_kernel_initializer_kwargs": NO_KEYWORDS,
    "attention_bias_initializer": BIASES,
    "attention_bias_initializer_kwargs": NO_KEYWORDS,
    "head_fcnet_hiddens": WIDTHS,
    "head_fcnet_activation": ACTIVATIONS,
    "head_fcnet_use_layernorm": FLAG,
    "head_fcnet_kernel_initializer": KERNELS,
    "head_fcnet_kernel_initializer_kwargs": NO_KEYWORDS,
    "head_fcnet_bias_initializer": BIASES,
    "head_fcnet_bias_initializer_kwargs": NO_KEYWORDS,
    "vf_share_layers": OPEN_FLAG,
    "free_log_std": FLAG,
    "log_std_clip_param": st.sampled_from([0.5, 20]),
    "action_mask_key": st.sampled_from([MASK, None]),
    "action_embeddings_key": st.sampled_from([VECTORS, None]),
    "autoregressive_actions": FLAG,
    "autoregressive_hiddens": WIDTHS,
    "autoregressive_context_dim": st.integers(1, 3),
    "normalize_actions": FLAG,
    "normalize_observations": OPEN_FLAG,
    "normalize_values": FLAG,
    "custom_model": st.sampled_from([None, Flat, Summing, "flat-for-properties"]),
    "custom_model_config": st.sampled_from([{}, {"width": 2}]),
    "critic_only_keys": st.just(()),
    "leaf_overrides": st.just({}),
    "functions": st.just({}),
    "custom_action_dist": st.none(),
}
"""Values of each setting that are right in themselves; the last three are drawn with the spaces."""
ENCODER_WIDE = (*MEMORIES, "leaf_overrides", "custom_model", "custom_model_config", "flatten_observations")


@st.composite
def some_of(draw: Draw, names: list[str], most: int) -> dict[str, Any]:
    """A few settings."""
    size = draw(st.integers(0, min(most, len(names))))
    chosen = draw(st.lists(st.sampled_from(names), unique=True, min_size=size, max_size=size))
    return {name: draw(GOOD[name]) for name in chosen}


def part_settings(parts: tuple[str, ...], most: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    fields = [item.name for item in dataclasses.fields(DefaultModelConfig) if item.metadata["part"] in parts]
    return some_of([name for name in fields if name not in ENCODER_WIDE], most)


@st.composite
def distributions(draw: Draw, action: Space) -> Any:
    """One for the whole action, or by path for some of its parts."""
    fits: dict[str, Any] = {}
    for name, leaf in leaves(action).items():
        if isinstance(leaf, spaces.Discrete):
            fits[name] = Categorical
        elif isinstance(leaf, spaces.Box) and not choices(leaf):
            fits[name] = "SquashedGaussian" if leaf.is_bounded() else DiagGaussian
    if "" in fits:
        return draw(st.sampled_from([None, fits[""]]))
    return draw(st.sampled_from([None, fits]))


@st.composite
def good_settings(draw: Draw, observation: Space, action: Space) -> dict[str, Any]:
    """Settings that go together, and with the spaces."""
    given = draw(some_of([*GOOD], 20))
    if (memory := draw(st.sampled_from([None, *MEMORIES]))) is not None:
        given = {name: value for name, value in given.items() if name not in MEMORIES} | {memory: True}
    for name in [name for name in MEMORIES if given.get(name)][1:]:
        del given[name]
    if any(given.get(name) for name in MEMORIES) and given.get("custom_model") is Summing:
        given["custom_model"] = None
    if given.get("custom_model") in (None, Summing):
        given.pop("custom_model_config", None)
    if num_parts(action) < 2:
        given.pop("autoregressive_actions", None)
    elif draw(st.integers(0, 2)) > 0:  # few draws would have it otherwise
        given["autoregressive_actions"] = True
    if not given.get("autoregressive_actions"):
        given = drop(given, "autoregressive_hiddens", "autoregressive_context_dim")
    given = drop(given, *of_other_memories(given))
    if given.get("fcnet_blocks"):
        given["fcnet_hiddens"] = [3, 3]
    if given.get("fcnet_norm") in ("rms", "batch"):
        given = drop(given, "fcnet_use_layernorm")
    if given.get("conv_filters") == "impala":
        given = drop(given, "conv_use_layernorm", "conv_padding")
    if not can_normalize(observation, (MASK, VECTORS)):
        given.pop("normalize_observations", None)
    if not (given.get("flatten_observations") or given.get("custom_model")) and (
        names := [*filter(None, leaves(observation))]
    ):
        never = ("conv_filters", "conv_use_layernorm", "conv_padding", *of_other_memories({}), *unfit_for_parts(given))
        overrides = part_settings(("encoder",)).map(lambda own: drop(own, *never))
        given["leaf_overrides"] = draw(st.dictionaries(st.sampled_from(names), overrides, max_size=2))
    given["custom_action_dist"] = draw(distributions(action))
    if given["custom_action_dist"] is not None:
        given = drop(given, "normalize_actions")  # without it samples of SquashedGaussian would not reach the bounds
    given["functions"] = draw(functions(given))
    for own in [given, *given["functions"].values()] if given.get("autoregressive_actions") else ():
        if own.get("head_fcnet_activation") == "softmax":  # which reads several units at once: MADE refuses it
            own["head_fcnet_activation"] = "tanh"
    return given


def num_parts(action: Space) -> int:
    """How many factors the probability of an action may have: a choice, a bit, or a Box each."""
    if isinstance(action, spaces.Dict | spaces.Tuple):
        return sum(map(num_parts, parts_of(action).values()))
    if isinstance(action, spaces.MultiBinary):
        return int(np.prod(action.shape))
    return len(choices(action)) or 1


def of_other_memories(given: Mapping[str, Any]) -> list[str]:
    """Settings of memories that are off."""
    off = [] if given.get("use_lstm") or given.get("use_gru") else ["lstm_"]
    off += [] if given.get("use_attention") else ["attention_"]
    return [name for name in GOOD if name.startswith(tuple(off)) and "_prev_" not in name]


def unfit_for_parts(given: Mapping[str, Any]) -> list[str]:
    """Settings of dense nets that a part cannot have, or that its ``given`` blocks and norm do not go with."""
    blocks, has_norm = given.get("fcnet_blocks"), given.get("fcnet_norm") in ("rms", "batch")
    return ["fcnet_blocks", "fcnet_norm", *["fcnet_hiddens"] * bool(blocks), *["fcnet_use_layernorm"] * has_norm]


def drop(given: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name not in names}


@st.composite
def functions(draw: Draw, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Other nets for the policy or the value, where they have their own, and further outputs."""
    never = ("conv_filters", "conv_use_layernorm", "conv_padding", *of_other_memories(given), *unfit_for_parts(given))
    encoders = part_settings(("encoder",)).map(lambda own: drop(own, *never))
    chosen: dict[str, dict[str, Any]] = {}
    for name in draw(st.lists(st.sampled_from(["policy", "value", "more", "a.b"]), unique=True, max_size=2)):
        own, separate = draw(part_settings(("head",))), name == "policy"
        if name == "value":
            separate = given.get("vf_share_layers") is False
        elif name != "policy":
            own |= {"output_dim": draw(st.integers(1, 3)), "trunk": draw(st.sampled_from(["policy", "value", "own"]))}
            separate = own["trunk"] == "own"
        more = draw(encoders) if separate else {}
        chosen[name] = own | (drop(more, *of_other_memories({})) if own.get("trunk") == "own" else more)
    return chosen


@st.composite
def good_cases(draw: Draw) -> tuple[Space, Space, dict[str, Any]]:
    observation, action = draw(nested(OBSERVED)), draw(nested(ACTED))
    if choices(action) and draw(st.booleans()):
        observation = with_fields(observation, {MASK: mask_space(action)})
    if isinstance(action, spaces.Discrete) and draw(st.booleans()):
        fields = observation.spaces if isinstance(observation, spaces.Dict) else {"inner": observation}
        vectors = draw(boxes(DTYPES, st.tuples(st.just(int(action.n)), st.integers(1, 3)).map(list)))
        observation = spaces.Dict([*fields.items(), (VECTORS, vectors)])
    return observation, action, draw(good_settings(observation, action))


JUNK: list[Any] = [None, -1, 0, True, 3, 2.5, float("nan"), "", "nope", "torch:nope", [], [[]], [0], [[1, 2, 3]], {}]
JUNK += [{"a": 1}, {"a": {}}, {"b": {"fcnet_hiddens": [3]}}, {"value": {"use_lstm": True}}, {"more": {"output_dim": 0}}]
JUNK += [{1: {2: 3}}, {"a": {"custom_model": Summing}}, {"value": {3: 4}}, dict, nn.Linear, nn.GLU, Summing, object()]
JUNK += [lambda: None, lambda space: None, lambda space: nn.Linear(7, 7), Categorical, {"a": DiagGaussian}]


@st.composite
def any_cases(draw: Draw) -> tuple[Space, Space, dict[str, Any]]:
    """Spaces that may have no rule, masks that may not fit, settings that may be anything."""
    observed, acted = (
        st.one_of(usual, usual, STRANGE) if draw(st.integers(0, 5)) == 0 else usual for usual in (OBSERVED, ACTED)
    )
    observation, action = draw(nested(observed)), draw(nested(acted))
    if draw(st.integers(0, 7)) == 0:
        mask = draw(nested(st.one_of(boxes([np.int8], shapes(most=3, rank=1)), ACTED), 1))
        observation = spaces.Dict({"b": observation, MASK: mask})
    given = draw(good_settings(observation, action)) if draw(st.booleans()) else draw(some_of([*GOOD], 5))
    for name in draw(st.lists(st.sampled_from([*GOOD]), max_size=2)):
        given[name] = draw(st.sampled_from(JUNK))
    return observation, action, given


# --- properties ---


class Contract(RLModuleContract):
    """What any module must keep, for one module that is made once."""

    tolerance = 1e-4
    batch_size, steps = 3, 3

    def __init__(self, spec: RLModuleSpec) -> None:
        self.spec, self.made = spec, dict[bool, Any]()

    def make(self) -> RLModuleSpec:
        return self.spec

    def build(self, seed: int = 0, inference_only: bool = False) -> Any:
        if inference_only not in self.made:
            self.made[inference_only] = super().build(seed, inference_only)
        return self.made[inference_only]


def test_every_setting_is_drawn() -> None:
    assert {*GOOD} == {item.name for item in dataclasses.fields(DefaultModelConfig)}


Case = tuple[Space, Space, dict[str, Any]]


def check_all(check: Callable[[Case], None], cases: st.SearchStrategy[Case], count: int) -> None:
    settings(max_examples=count, deadline=None, derandomize=True, database=None)(given(cases)(check))()


@pytest.mark.parametrize("count", [12, pytest.param(400, marks=pytest.mark.slow)])
def test_what_goes_together_makes_a_module_that_keeps_the_contract(count: int) -> None:
    check_all(keeps_the_contract, good_cases(), count)


def keeps_the_contract(case: Case) -> None:
    observation, action, model_config = case
    contract = Contract(RLModuleSpec(PPOModule, observation, action, model_config, PPOCatalog))
    contract.test_forward_passes_agree_and_only_training_has_a_gradient()
    contract.test_rows_do_not_see_each_other()
    contract.test_forwards_leave_batches_and_each_other_as_they_are()
    contract.test_inference_only_copy_acts_identically()
    contract.test_actions_lie_in_the_action_space()
    contract.test_values()
    contract.test_the_initial_state_is_zero()
    contract.test_training_sees_what_acting_saw()
    module = contract.build()
    batch = contract.batch(module)
    trained = module.forward_train(batch)
    for name, outputs in trained.get(Columns.EXTRA_OUTPUTS, {}).items():
        assert outputs.isfinite().all()
        assert outputs.shape[-1] == model_config["functions"][name]["output_dim"]
    copied = copy.deepcopy(module)
    assert differences(copied.get_state(), module.get_state()) == []
    assert differences(copied.forward_train(batch), trained) == []
    stands_alone(copied, module)
    for net in (module.encoder, module.pi_head, module.action_converter):
        assert differences(pickle.loads(pickle.dumps(net)).state_dict(), net.state_dict()) == []
    assert "parameters" in module.catalog.explain()


def stands_alone(copied: Any, module: Any) -> None:
    """Whether a copy's distribution asks the copy's action model, if there is one, and that of ``module`` its own."""
    if module.action_model is None:
        return
    inputs = torch.zeros(4, module.action_dist_cls.required_input_dim(module.action_space))
    dists = [each.action_dist_cls.from_logits(inputs) for each in (copied, module)]
    actions = dists[1].sample(torch.Generator().manual_seed(0))
    moved, kept = (dist.logp(actions) for dist in dists)
    assert torch.equal(moved, kept)
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in copied.action_model.parameters():
            parameter += torch.randn(parameter.shape, generator=rng)
    moved, again = (dist.logp(actions) for dist in dists)
    assert torch.equal(again, kept)
    assert not torch.equal(moved, kept) or (kept == 0).all()  # which is all there is to choose


SETTING = "|".join(item.name for item in dataclasses.fields(DefaultModelConfig))
EXPLAINED = re.compile(
    rf"(?=.*(observation_space|action_space|{SETTING}|build_|_config)).+: expected .+, got .+\. .+", re.DOTALL
)


@pytest.mark.parametrize("count", [50, pytest.param(1200, marks=pytest.mark.slow)])
def test_whatever_is_asked_for_is_built_or_explained(count: int) -> None:
    check_all(is_built_or_explained, any_cases(), count)


def is_built_or_explained(case: Case) -> None:
    observation, action, model_config = case
    spec = RLModuleSpec(PPOModule, observation, action, model_config, PPOCatalog)
    try:
        contract = Contract(spec)
        module = contract.build()
    except (ValueError, TypeError) as error:
        if not EXPLAINED.fullmatch(str(error)):
            raise
        return
    batch = contract.batch(module)
    for forward in (module.forward_inference, module.forward_exploration, module.forward_train):
        assert forward(batch)[Columns.ACTION_DIST_INPUTS].isfinite().all()
    module.catalog.explain()


# --- several at once ---

ROBOT = spaces.Dict([("walk", spaces.Box(-1, 1, (2,), np.float32)), ("arm", spaces.Discrete(3))])
CAMERA = spaces.Dict([("camera", spaces.Box(0, 255, (8, 8, 3), np.uint8)), ("x.y", spaces.Discrete(3, start=2))])
REQUESTS: list[tuple[Space, Space, dict[str, Any]]] = [
    (CAMERA, ROBOT, {"conv_dense_dim": 8, "functions": {"value": {"fcnet_hiddens": [5], "conv_dense_dim": 6}}}),
    (
        with_fields(CAMERA, {MASK: mask_space(ROBOT)}),
        ROBOT,
        {"conv_dense_dim": 8, "use_gru": True, "lstm_use_prev_action": True},
    ),
    (spaces.Discrete(4), spaces.Discrete(2), {"discrete_embedding_dim": 3, "functions": {"more": {"output_dim": 2}}}),
]


def test_catalogs_that_take_turns_do_not_disturb_each_other() -> None:
    alone = [PPOCatalog(*request) for request in REQUESTS]
    texts = [catalog.explain() for catalog in alone]
    shapes_of = [[tuple(x.shape) for x in catalog.build_actor_critic_encoder().parameters()] for catalog in alone]
    together = [PPOCatalog(*request) for request in REQUESTS]
    encoders = [catalog.build_actor_critic_encoder() for catalog in together]
    heads = [(catalog.build_pi_head(), catalog.build_vf_head()) for catalog in reversed(together)][::-1]
    assert [catalog.explain() for catalog in reversed(together)][::-1] == texts
    assert [[tuple(x.shape) for x in encoder.parameters()] for encoder in encoders] == shapes_of
    for catalog, (pi_head, vf_head) in zip(together, heads, strict=True):
        for head, function in ((pi_head, "policy"), (vf_head, "value")):
            assert head(torch.zeros(2, *catalog.for_function(function).latent_dims)).shape[0] == 2


def test_what_one_catalog_builds_twice_shares_nothing() -> None:
    for request in REQUESTS:
        catalog = PPOCatalog(*request)
        built = [catalog.build_actor_critic_encoder() for _ in range(2)]
        first, second = ({id(x) for x in encoder.parameters()} for encoder in built)
        assert not first & second
        assert catalog.build_action_converter() is not catalog.build_action_converter()


def test_names_in_a_state_do_not_depend_on_the_names_of_parts() -> None:
    def names(keys: list[str]) -> list[str]:
        parts = zip(keys, CAMERA.spaces.values(), strict=True)
        module = PPOModule(observation_space=spaces.Dict([*parts]), action_space=ROBOT, catalog_class=PPOCatalog)
        return [*module.get_state()]

    assert names(["camera", "x.y"]) == names(["forward", ""]) == names(["b", "a"])


def test_specs_can_be_pickled() -> None:
    for observation, action, model_config in REQUESTS:
        spec = RLModuleSpec(PPOModule, observation, action, DefaultModelConfig(**model_config), PPOCatalog)
        restored = pickle.loads(pickle.dumps(spec))
        assert restored == spec
        assert restored.build().get_state().keys() == spec.build().get_state().keys()
