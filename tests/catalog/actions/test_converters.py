"""Whatever a policy samples, the env gets an action inside its space."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from catalog import ActionConverter, Beta, Catalog, DefaultModelConfig, Distribution, SquashedGaussian
from catalog.actions.converters import action_converter_rules
from catalog.distributions.base import action_distribution_rules


def converter(space: spaces.Space, **model_config: Any) -> ActionConverter:
    return action_converter_rules.root(space, DefaultModelConfig(**model_config), "action_space").run()


def chosen(space: spaces.Space) -> type[Distribution]:
    return action_distribution_rules.root(space, DefaultModelConfig(), "action_space").run()


def test_a_bounded_box_is_stretched_then_clipped() -> None:
    convert = converter(spaces.Box(np.float32([0, -4]), np.float32([10, -2])))
    # centres 5 and -3, radii 5 and 1; 1.5 would lie outside
    actions = convert(torch.tensor([[-1.0, -1.0], [0.0, 0.5], [1.5, 1.5]]))
    assert actions.tolist() == [[0, -4], [5, -2.5], [10, -2]]


def test_without_normalize_actions_it_is_only_clipped() -> None:
    convert = converter(spaces.Box(0, 10, (2,)), normalize_actions=False)
    assert convert(torch.tensor([0.5, 11.0])).tolist() == [0.5, 10]


def test_half_bounds_only_clip_and_no_bounds_do_nothing() -> None:
    low, high = np.float32([0, -np.inf, -np.inf]), np.float32([np.inf, 2, np.inf])
    convert = converter(spaces.Box(low, high))
    assert convert(torch.tensor([-5.0, 5.0, 1e9])).tolist() == [0, 2, 1e9]
    assert convert(torch.tensor([0.25, -5.0, -1e9])).tolist() == [0.25, -5, -1e9]


def test_a_unit_box_is_left_alone_inside_its_bounds() -> None:
    actions = torch.tensor([[-0.5, 1.0]])
    assert torch.equal(converter(spaces.Box(-1, 1, (2,)))(actions), actions)


def test_a_float64_box_narrower_than_float32_can_tell_is_met() -> None:
    space = spaces.Box(np.array([0.1]), np.array([0.1]), dtype=np.float64)
    assert space.contains(converter(space)(torch.tensor([0.3])).numpy())


def test_the_range_of_a_huge_box_does_not_overflow() -> None:
    most = np.finfo(np.float64).max
    space = spaces.Box(np.array([-most]), np.array([most]), dtype=np.float64)
    assert converter(space)(torch.tensor([[0.0], [0.5], [1.0]])).tolist() == [[0], [most / 2], [most]]


def test_starts_are_added() -> None:
    assert converter(spaces.Discrete(3, start=-1))(torch.tensor([0, 1, 2])).tolist() == [-1, 0, 1]
    grid = spaces.MultiDiscrete(np.array([[2, 3]]), start=np.array([[5, -2]]))
    assert converter(grid)(torch.tensor([[[0, 0]], [[1, 2]]])).tolist() == [[[5, -2]], [[6, 0]]]


def test_actions_have_the_dtype_of_their_space() -> None:
    assert converter(spaces.Discrete(3, start=4))(torch.tensor([0, 2])).dtype == torch.int64
    small = spaces.MultiDiscrete([3, 3], dtype=np.int8, start=[-2, 5])
    assert torch.equal(converter(small)(torch.tensor([2, 1])), torch.tensor([0, 6], dtype=torch.int8))
    half = spaces.Box(0, 1, (1,), np.float16)
    assert torch.equal(converter(half)(torch.tensor([0.5])), torch.tensor([0.75], dtype=torch.float16))
    assert converter(spaces.MultiBinary(2))(torch.tensor([0, 1])).dtype == torch.int8


def test_choices_in_an_integer_box_count_from_its_lowest_number() -> None:
    space = spaces.Box(np.int16([[-3], [7]]), np.int16([[2], [9]]), dtype=np.int16)
    fitted = converter(space)(torch.tensor([[[0], [2]], [[5], [0]]]))
    assert torch.equal(fitted, torch.tensor([[[-3], [9]], [[2], [7]]], dtype=torch.int16))
    flags = spaces.Box(0, 1, (2,), bool)
    assert torch.equal(converter(flags)(torch.tensor([1, 0])), torch.tensor([True, False]))


def test_numbers_beyond_int64_are_reached() -> None:
    top = np.uint64(2**64 - 4)
    space = spaces.Box(np.array([top]), np.array([top + np.uint64(2)]), dtype=np.uint64)
    fitted = converter(space)(torch.tensor([2])).numpy()
    assert fitted.tolist() == [2**64 - 2]
    assert space.contains(fitted)
    assert converter(spaces.Discrete(3, start=2**40))(torch.tensor(2)).item() == 2**40 + 2


def test_no_action_of_a_float16_box_is_infinite() -> None:
    fitted = converter(spaces.Box(-np.inf, np.inf, (2,), np.float16))(torch.tensor([1e9, -1e9]))
    assert fitted.tolist() == [65504, -65504]


def test_actions_at_the_bounds_are_samples_at_the_bounds() -> None:
    # a quotient would miss 1 for the first, and -1 for the last
    space = spaces.Box(
        np.float32([9.470809936523438, -np.inf, 3, -1.2853466272354126]),
        np.float32([13.039999961853027, 2, 3, 13.664634704589844]),
    )
    ends = torch.from_numpy(np.stack([space.high, space.low]))
    ends[1, 1] = -5
    samples = converter(space).inverse(ends)
    assert samples.tolist() == [[1, 2, 0, 1], [-1, -5, 0, -1]]
    beyond = torch.tensor([[13.05, 1, 3, -1.3]])
    assert converter(space).inverse(beyond).tolist() == [[1, 1, 0, -1]]


def test_without_normalize_actions_the_inverse_leaves_them_alone() -> None:
    convert = converter(spaces.Box(0, 10, (2,)), normalize_actions=False)
    assert convert.inverse(torch.tensor([10.0, 0.5])).tolist() == [10, 0.5]


def test_a_converter_without_an_inverse_says_so() -> None:
    class Half(ActionConverter):
        def forward(self, actions: Any) -> Any:
            return actions / 2

    with pytest.raises(NotImplementedError, match=r"Half.inverse\(\): expected the way .* Define it in Half"):
        Half().inverse(torch.ones(2))


def test_parts_of_dicts_and_tuples_are_converted_one_by_one() -> None:
    space = spaces.Dict(
        [("z.1", spaces.Discrete(3, start=5)), ("a", spaces.Tuple([spaces.Box(0, 10, (1,)), spaces.MultiBinary(2)]))]
    )
    sampled = {"a": (torch.tensor([[1.0], [-0.5]]), torch.tensor([[1, 0], [0, 0]])), "z.1": torch.tensor([0, 2])}
    fitted = converter(space)(sampled)
    assert list(fitted) == ["z.1", "a"]
    assert fitted["z.1"].tolist() == [5, 7]
    assert isinstance(fitted["a"], tuple)
    assert fitted["a"][0].tolist() == [[10.0], [2.5]]
    assert torch.equal(fitted["a"][1], torch.tensor([[1, 0], [0, 0]], dtype=torch.int8))


def test_converters_have_no_state_to_save() -> None:
    for space in (spaces.Box(0, 3, (2,)), spaces.Discrete(3, start=4), spaces.Tuple([spaces.Box(0, 3, (2,))])):
        assert converter(space).state_dict() == {}


def test_sampled_actions_are_never_changed_in_place() -> None:
    for space, sampled in (
        (spaces.Box(0, 3, (2,)), torch.tensor([[-5.0, 5.0]])),
        (spaces.Discrete(3, start=4), torch.tensor([1])),
        (spaces.MultiDiscrete([3], dtype=np.int32, start=[4]), torch.tensor([[1]])),
    ):
        before = sampled.clone()
        converter(space)(sampled)
        assert torch.equal(sampled, before)


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Graph(spaces.Discrete(2), None)], ids=str)
def test_a_space_without_a_branch_is_named(space: spaces.Space) -> None:
    with pytest.raises(ValueError, match=r"action_space: expected a space with a branch in the action converter"):
        converter(space)
    with pytest.raises(ValueError, match=r"action_space\['a'\]\[0\]: expected a space with a branch"):
        converter(spaces.Dict({"a": spaces.Tuple([space])}))


# any space ------------------------------------------------------------------------------------------------------------

SHAPES = st.sampled_from([(), (1,), (3,), (2, 2), (1, 2, 1)])


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    dtype = draw(st.sampled_from([np.float16, np.float32, np.float64]))
    shape = draw(SHAPES)
    number = st.floats(width=np.dtype(dtype).itemsize * 8, allow_nan=False, allow_infinity=False)  # type: ignore[arg-type]
    low, high = np.empty(shape, dtype), np.empty(shape, dtype)
    for i in np.ndindex(shape):
        kind = draw(st.sampled_from(["both", "narrow", "equal", "low", "high", "none"]))
        a, b = sorted((draw(number), draw(number)))
        if kind == "narrow":
            with np.errstate(over="ignore"):  # after the largest number comes infinity
                b = float(np.nextafter(dtype(a), dtype(np.inf)))
            b = a if np.isinf(b) else b
        low[i] = a if kind in ("both", "narrow", "equal", "low") else -np.inf
        high[i] = {"both": b, "narrow": b, "equal": a, "high": b}.get(kind, np.inf)
    return spaces.Box(low, high, dtype=dtype)


@st.composite
def integer_boxes(draw: st.DrawFn) -> spaces.Box:
    dtype = draw(st.sampled_from([bool, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.uint64]))
    least, most = (0, 1) if dtype is bool else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    shape = draw(SHAPES)
    low, high = np.empty(shape, dtype), np.empty(shape, dtype)
    for i in np.ndindex(shape):
        low[i] = draw(st.integers(least, most))
        high[i] = draw(st.integers(int(low[i]), min(most, int(low[i]) + 6)))
    return spaces.Box(low, high, dtype=dtype)


@st.composite
def multi_discretes(draw: st.DrawFn) -> spaces.MultiDiscrete:
    shape = draw(SHAPES)
    size = math.prod(shape)
    nvec = draw(st.lists(st.integers(1, 6), min_size=size, max_size=size))
    start = draw(st.lists(st.integers(-50, 50), min_size=size, max_size=size))
    dtype = draw(st.sampled_from([np.int8, np.int32, np.int64]))
    return spaces.MultiDiscrete(np.reshape(nvec, shape), dtype=dtype, start=np.reshape(start, shape))


LEAVES = st.one_of(
    boxes(),
    integer_boxes(),
    st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 9), st.integers(-50, 50)),
    multi_discretes(),
    st.builds(spaces.MultiBinary, st.sampled_from([1, 3, (2, 2)])),
)


def containers(parts: st.SearchStrategy[spaces.Space]) -> st.SearchStrategy[spaces.Space]:
    keys = st.sampled_from(["a", "b.c", "", "parts"])
    return st.one_of(
        st.builds(spaces.Tuple, st.lists(parts, min_size=1, max_size=3)),
        st.builds(spaces.Dict, st.dictionaries(keys, parts, min_size=1, max_size=3)),
    )


DEEP = LEAVES
for _ in range(3):
    DEEP = st.one_of(LEAVES, containers(DEEP))


def arrays(actions: Any) -> Any:
    if isinstance(actions, dict):
        return {key: arrays(value) for key, value in actions.items()}
    return tuple(map(arrays, actions)) if isinstance(actions, tuple) else actions.numpy()


def row(actions: Any, index: int) -> Any:
    """One action as arrays, those without dims included."""
    if isinstance(actions, dict):
        return {key: row(value, index) for key, value in actions.items()}
    if isinstance(actions, tuple):
        return tuple(row(value, index) for value in actions)
    return np.asarray(actions[index])


def leaf_spaces(space: spaces.Space) -> list[spaces.Space]:
    if isinstance(space, spaces.Dict):
        return [leaf for part in space.spaces.values() for leaf in leaf_spaces(part)]
    return [leaf for part in space.spaces for leaf in leaf_spaces(part)] if isinstance(space, spaces.Tuple) else [space]


def is_discrete(space: spaces.Space) -> bool:
    return not (isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind == "f")


def some_logits(dist_cls: type[Distribution], space: spaces.Space, scale: float, seed: int) -> Tensor:
    logits = scale * torch.randn(8, dist_cls.required_input_dim(space), generator=torch.Generator().manual_seed(seed))
    log_stds = list(dist_cls.log_std_indices(space))
    logits[:, log_stds] = logits[:, log_stds].clamp(-20, 20)  # as heads do
    return logits


@settings(max_examples=100, deadline=None)
@given(space=DEEP, normalize_actions=st.booleans(), seed=st.integers(0, 9))
def test_the_inverse_leads_back_to_the_same_action(space: spaces.Space, normalize_actions: bool, seed: int) -> None:
    for leaf in leaf_spaces(space):
        if isinstance(leaf, spaces.Box):  # samples are float32, beyond whose range only infinity is left
            bounds = np.concatenate([leaf.low.ravel(), leaf.high.ravel()]).astype(np.float64)
            assume(np.abs(bounds[np.isfinite(bounds)]).max(initial=0) < np.finfo(np.float32).max / 2)
    dist_cls, convert = chosen(space), converter(space, normalize_actions=normalize_actions)
    dist = dist_cls.from_logits(some_logits(dist_cls, space, 1.0, seed))
    actions = convert(dist.sample(torch.Generator().manual_seed(seed)))
    samples = convert.inverse(actions)
    for sample in tree.flatten(samples):
        assert sample.dtype in (torch.int64, torch.float32)
    again = tree.flatten(arrays(convert(samples)))
    for after, before in zip(again, tree.flatten(arrays(actions)), strict=True):
        if before.dtype.kind == "f":
            size = np.maximum(1, np.abs(before.astype(np.float64)).max(initial=0))
            precision = 2e-3 if before.dtype == np.float16 else 1e-6
            assert np.abs(after.astype(np.float64) - before).max() <= precision * size
        else:
            np.testing.assert_array_equal(after, before)


@settings(max_examples=50, deadline=None)
@given(space=DEEP, normalize_actions=st.booleans(), scale=st.sampled_from([0.0, 1.0, 1e3, 1e9]), seed=st.integers(0, 9))
def test_every_sample_becomes_an_action_of_the_space(
    space: spaces.Space, normalize_actions: bool, scale: float, seed: int
) -> None:
    dist_cls, convert = chosen(space), converter(space, normalize_actions=normalize_actions)
    dist = dist_cls.from_logits(some_logits(dist_cls, space, scale, seed))
    noise = dist_cls.draw_noise(np.random.default_rng(seed), 8, dist_cls.required_input_dim(space))
    assert noise is not None
    generator = torch.Generator().manual_seed(seed)
    for actions in (dist.sample(generator), dist.sample_from(noise), dist.to_deterministic().sample()):
        logp = dist.logp(actions)
        assert logp.shape == (8,)
        assert logp.isfinite().all()
        fitted = arrays(convert(actions))
        for index in range(8):
            action = row(fitted, index)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                assert space.contains(action), f"{action!r} is not in {space}"
    assert dist.entropy().shape == (8,)
    if all(map(is_discrete, leaf_spaces(space))):
        assert (dist.entropy() >= -1e-6).all()


# --- samples that lie in (-1, 1) --------------------------------------------------------------------------------------

FAR = spaces.Box(2, 10, (2,))
UNIT = spaces.Box(-1, 1, (2,))
NESTED = spaces.Dict(grip=spaces.Discrete(3), arm=spaces.Tuple([UNIT, FAR]))


def catalog_of(action_space: spaces.Space, dist: Any, **model_config: Any) -> Catalog:
    return Catalog(UNIT, action_space, {"custom_action_dist": dist, **model_config})


@pytest.mark.parametrize("dist_cls", [Beta, SquashedGaussian])
def test_bounded_samples_that_would_not_reach_the_bounds_are_refused(dist_cls: type[Distribution]) -> None:
    text = (
        rf"^model_config\.normalize_actions: expected True, since samples of {dist_cls.__name__} lie in \(-1, 1\), "
        r"got False for {}, Box\(2\.0, 10\.0.*\. Leave it out\.$"
    )
    with pytest.raises(ValueError, match=text.format("action_space")):
        catalog_of(FAR, dist_cls, normalize_actions=False)
    parts = {"arm.0": dist_cls, "arm.1": dist_cls}
    for settings_of_parts in ({}, {"autoregressive_actions": True}):
        with pytest.raises(ValueError, match=text.format(r"action_space\['arm'\]\[1\]")):
            catalog_of(NESTED, parts, normalize_actions=False, **settings_of_parts)

    class Hooked(Catalog):
        def get_action_dist_cls(self) -> type[Distribution]:
            return dist_cls.bind(self.action_space)

    with pytest.raises(ValueError, match=text.format("action_space")):
        Hooked(UNIT, FAR, {"normalize_actions": False})


@pytest.mark.parametrize("dist_cls", [Beta, SquashedGaussian])
def test_bounded_samples_are_taken_where_they_reach_all(dist_cls: type[Distribution]) -> None:
    assert catalog_of(UNIT, dist_cls, normalize_actions=False)
    assert catalog_of(NESTED, {"arm.0": dist_cls}, normalize_actions=False)
    dist = catalog_of(FAR, dist_cls).get_action_dist_cls().from_logits(torch.zeros(500, 4))
    actions = catalog_of(FAR, dist_cls).build_action_converter()(dist.sample(torch.Generator().manual_seed(0)))
    assert actions.min() < 3
    assert actions.max() > 9
