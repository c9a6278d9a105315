"""Observations as vectors, and running statistics."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from catalog import Catalog
from catalog.encoders.preprocessing import (
    ObservationNormalizer,
    RunningMoments,
    Vectorize,
    can_normalize,
    is_byte_box,
    vector_width,
    vectorizer,
)


def vector(space: spaces.Space, obs: Any) -> list[Any]:
    """What one observation becomes, batched and unbatched alike."""
    tree = as_tensors(obs)
    one = Vectorize(space)(tree)
    assert one.dtype == torch.float32
    assert one.shape == (vector_width(space),)
    batch = Vectorize(space)(_map(lambda x: torch.stack([x, x]), tree))
    assert torch.equal(batch, torch.stack([one, one]))
    return one.tolist()


def as_tensors(obs: Any) -> Any:
    return _map(lambda x: torch.as_tensor(np.asarray(x)), obs)


def _map(function: Any, tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _map(function, part) for key, part in tree.items()}
    return tuple(_map(function, part) for part in tree) if isinstance(tree, tuple) else function(tree)


@pytest.mark.parametrize(
    ("space", "obs", "expected"),
    [
        (spaces.Box(-1, 1, ()), np.float32(0.5), [0.5]),
        (spaces.Box(-1, 1, (2, 1, 2), np.float64), np.array([[[1, 2]], [[3, 4]]], np.float64), [1, 2, 3, 4]),
        (spaces.Box(-1, 1, (2,), np.float16), np.array([0.5, -1], np.float16), [0.5, -1]),
        (spaces.Box(0, 255, (3,), np.uint8), np.array([0, 255, 51], np.uint8), [0, 1, pytest.approx(0.2)]),
        (spaces.Box(0, 254, (1,), np.uint8), np.array([51], np.uint8), [51]),
        (spaces.Box(0, 255, (1,), np.int16), np.array([51], np.int16), [51]),
        (spaces.Box(-7, 9, (2,), np.int64), np.array([-7, 9]), [-7, 9]),
        (spaces.Box(0, 1, (2,), np.bool_), np.array([True, False]), [1, 0]),
        (spaces.Discrete(3, start=5), np.int64(6), [0, 1, 0]),
        (spaces.Discrete(3, start=-1), np.int8(-1), [1, 0, 0]),
        # 2 is the second of {1, 2}, -1 the first of {-1, 0, 1}
        (spaces.MultiDiscrete([[2, 3]], start=[[1, -1]]), np.array([[2, -1]]), [0, 1, 1, 0, 0]),
        (spaces.MultiDiscrete([2, 2], dtype=np.uint8), np.array([1, 0], np.uint8), [0, 1, 1, 0]),
        (spaces.MultiBinary((2, 2)), np.array([[1, 0], [0, 1]], np.int8), [1, 0, 0, 1]),
    ],
)
def test_a_leaf_becomes_a_vector(space: spaces.Space, obs: Any, expected: list[Any]) -> None:
    assert vector(space, obs) == expected


def test_parts_stand_in_the_space_s_own_order_and_other_fields_are_not_read() -> None:
    space = spaces.Dict(
        [
            ("z", spaces.Discrete(2)),
            ("m", spaces.Tuple([spaces.MultiDiscrete([2, 2]), spaces.Box(-9, 9, (1,)), spaces.Discrete(2, start=1)])),
            ("a", spaces.Box(-9, 9, ())),
        ]
    )
    obs = {
        "unknown": np.array(["text"] * 2) == "",
        "a": np.float32(7),
        "m": (np.array([0, 1]), np.array([5], np.float32), np.int64(2)),
        "z": np.int64(1),
    }
    assert vector(space, obs) == [0, 1, 1, 0, 0, 1, 5, 0, 1, 7]


@pytest.mark.parametrize("lead", [(), (4,), (3, 4), (0,)])
@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.MultiDiscrete([[2], [3]]),
        spaces.Box(-1, 1, ()),
        spaces.Box(0, 255, (2, 2), np.uint8),
        spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,))]),
    ],
)
def test_any_leading_dims_are_kept(lead: tuple[int, ...], space: spaces.Space) -> None:
    leaves = space.spaces if isinstance(space, spaces.Tuple) else (space,)
    obs = tuple(torch.zeros((*lead, *leaf.shape), dtype=torch.uint8) for leaf in leaves)
    code = Vectorize(space)(obs if isinstance(space, spaces.Tuple) else obs[0])
    assert code.shape == (*lead, vector_width(space))
    assert code.dtype == torch.float32


def test_observations_are_not_changed() -> None:
    space = spaces.Dict({"n": spaces.Discrete(3, start=1), "x": spaces.Box(-1, 1, (2,))})
    obs = {"n": torch.tensor([1, 3]), "x": torch.ones(2, 2)}
    before = copy.deepcopy(obs)
    Vectorize(space)(obs).zero_()
    assert torch.equal(obs["n"], before["n"])
    assert torch.equal(obs["x"], before["x"])


def test_what_is_read_is_no_part_of_the_state() -> None:
    assert not Vectorize(spaces.MultiDiscrete([2, 3], start=[1, 1])).state_dict()


@pytest.mark.parametrize(
    ("space", "path"),
    [
        (spaces.Text(3), "obs"),
        (spaces.Dict({"x": spaces.Tuple([spaces.Discrete(2), spaces.Text(3)])}), r"obs\['x'\]\[1\]"),
        (spaces.Tuple([spaces.Sequence(spaces.Discrete(2))]), r"obs\[0\]"),
        (spaces.Tuple([spaces.Graph(spaces.Discrete(2), None)]), r"obs\[0\]"),
        (spaces.Tuple([spaces.OneOf([spaces.Discrete(2)])]), r"obs\[0\]"),
    ],
)
@pytest.mark.parametrize("function", [Vectorize, vector_width])
def test_what_has_no_array_form_is_refused_by_its_path(function: Any, space: spaces.Space, path: str) -> None:
    with pytest.raises(ValueError, match=rf"^{path}: expected a space of arrays"):
        function(space, "obs")


@pytest.mark.parametrize(
    ("space", "path"),
    [
        (spaces.Box(-1, 1, (2, 0)), "obs"),
        (spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Dict({})}), r"obs\['b'\]"),
        (spaces.Tuple([spaces.Tuple([])]), r"obs\[0\]"),
    ],
)
def test_what_is_empty_is_refused_by_its_path(space: spaces.Space, path: str) -> None:
    with pytest.raises(ValueError, match=rf"^{path}: expected a space with at least one entry"):
        vector_width(space, "obs")


def test_integers_that_int64_cannot_hold_are_refused_by_their_path_whatever_the_encoder() -> None:
    fits, exceeds = (spaces.Dict(x=spaces.Box(0, high, (2,), np.uint64)) for high in (2**63 - 1, 2**63))
    Catalog(fits, spaces.Discrete(2), may_lack_encoder=True)
    text = r"^observation_space\['x'\]: expected uint64 below 2\*\*63, .* Give the Box that upper"
    with pytest.raises(ValueError, match=text):
        Catalog(exceeds, spaces.Discrete(2), may_lack_encoder=True)


def test_bytes_are_those_from_0_to_255() -> None:
    assert is_byte_box(spaces.Box(0, 255, (2, 2), np.uint8))
    assert not is_byte_box(spaces.Box(0, 255, (2, 2), np.int32))
    assert not is_byte_box(spaces.Box(0, np.array([255, 254], np.uint8), dtype=np.uint8))
    assert not is_byte_box(spaces.Discrete(256))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_vector_of_floats_needs_no_module(dtype: Any) -> None:
    space = spaces.Box(-1, 1, (3,), dtype)
    obs = torch.as_tensor(space.sample())
    read = vectorizer(space)
    assert not isinstance(read, torch.nn.Module)
    assert torch.equal(read(obs), Vectorize(space)(obs))
    assert isinstance(vectorizer(spaces.Box(-1, 1, (3, 1), dtype)), Vectorize)


@pytest.mark.parametrize("lengths", [[1], [7, 1, 0, 30], [100, 3]])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_moments_are_those_of_all_batches_together(lengths: list[int], shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    batches = [rng.normal(50 * i, 1 + i, (n, *shape)).astype(np.float32) for i, n in enumerate(lengths)]
    moments = RunningMoments(shape)
    for batch in batches:
        moments.update(torch.from_numpy(batch))
    together = np.concatenate(batches).astype(np.float64)
    np.testing.assert_allclose(moments.mean.numpy(), together.mean(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        moments.std.numpy(), np.maximum(together.std(0), 1e-7 * np.abs(together.mean(0))), rtol=1e-5
    )
    assert moments.count.item() == sum(lengths)


def test_moments_by_hand() -> None:
    moments = RunningMoments()
    moments.update(torch.tensor([1.0, 3.0]))
    assert (moments.mean.item(), moments.std.item()) == (2, 1)
    moments.update(torch.tensor([8.0, 8.0]))
    # 1, 3, 8, 8: mean 5, variance (16 + 4 + 9 + 9)/4 = 9.5
    assert moments.mean.item() == 5
    assert moments.std.item() == pytest.approx(9.5**0.5)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), max_size=5), min_size=1, max_size=6))
def test_moments_do_not_depend_on_how_data_is_cut(batches: list[list[float]]) -> None:
    cut, whole = RunningMoments(), RunningMoments()
    for batch in batches:
        cut.update(torch.tensor(batch))
    whole.update(torch.tensor([x for batch in batches for x in batch]))
    # the least deviation, which is in what is stored, is all that may make a difference, besides rounding
    torch.testing.assert_close(cut.mean, whole.mean, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(cut.std, whole.std, atol=2e-4, rtol=1e-6)


def test_long_streams_do_not_drift() -> None:
    rng, moments = np.random.default_rng(0), RunningMoments()
    batches = rng.normal(100, 1, (3000, 64)).astype(np.float32)
    for batch in batches:
        moments.update(torch.from_numpy(batch))
    assert moments.mean.item() == pytest.approx(batches.mean(dtype=np.float64), abs=1e-3)
    assert moments.std.item() == pytest.approx(batches.std(dtype=np.float64), rel=1e-3)


@pytest.mark.parametrize("decay", [None, 0.9])
def test_moments_far_from_zero_follow_small_steps(decay: float | None) -> None:
    """Each update moves the mean by less than float32 resolves at 1000."""
    moments = RunningMoments((1,), decay)
    moments.update(torch.tensor([[999.0], [1001.0]]))
    moments.count.fill_(1e7 if decay is None else 1.0)
    new = 1000.0 + (2.0 if decay is None else 1e-4) * torch.ones(64, 1, dtype=torch.float64)
    for _ in range(500):
        moments.update(new)
    weight = 500 * 64 / (1e7 + 500 * 64) if decay is None else 1.0
    assert moments.mean.item() == pytest.approx(1000 + weight * (new[0].item() - 1000), abs=1e-6)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1e-6), (-3e-5, 1e-5), (1e6, 1e6 + 4.0), (-2e-7, 0.0)])
def test_a_feature_of_any_scale_is_standardised(low: float, high: float) -> None:
    obs = torch.linspace(low, high, 101)[:, None]
    normalizer = ObservationNormalizer(spaces.Box(-np.inf, np.inf, (1,)))
    normalizer.update(obs)
    out = normalizer(obs)
    assert out.dtype == torch.float32
    assert out.std(unbiased=False).item() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("value", [0.0, 3.0, -101325.0, 1e30])
def test_noise_of_rounding_around_a_constant_stays_small(value: float) -> None:
    normalizer = ObservationNormalizer(spaces.Box(-np.inf, np.inf, (1,)))
    obs = torch.full((100, 1), value)
    for _ in range(3):
        normalizer.update(obs)
    assert normalizer(obs).abs().max().item() <= 0.1
    assert normalizer(torch.nextafter(obs, torch.tensor(np.inf))).abs().max().item() <= 1.3


def test_decayed_moments_are_the_weighted_ones_of_their_batches() -> None:
    decay, rng = 0.8, np.random.default_rng(0)
    batches = [rng.normal(10 * i, 1 + i, 5 + i) for i in range(6)]
    moments = RunningMoments(decay=decay)
    for k in range(1, len(batches) + 1):
        moments.update(torch.from_numpy(batches[k - 1]).float())
        weights = np.array([decay ** (k - 1 - i) for i in range(k)])
        weights /= weights.sum()  # which corrects for the start
        first = weights @ [batch.mean() for batch in batches[:k]]
        second = weights @ [np.square(batch).mean() for batch in batches[:k]]
        assert moments.mean.item() == pytest.approx(first, rel=1e-5, abs=1e-6)
        assert moments.std.item() == pytest.approx(np.sqrt(second - first**2), rel=1e-4)


@pytest.mark.parametrize("decay", [None, 0.9])
def test_an_empty_batch_changes_nothing(decay: float | None) -> None:
    moments = RunningMoments((2,), decay)
    moments.update(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    before = {name: value.clone() for name, value in moments.state_dict().items()}
    moments.update(torch.zeros(0, 2))
    assert all(torch.equal(before[name], value) for name, value in moments.state_dict().items())


@pytest.mark.parametrize("decay", [None, 0.9])
def test_updates_are_in_place_and_part_of_the_state(decay: float | None) -> None:
    moments = RunningMoments((2,), decay)
    kept = (moments.mean, moments.std, moments.count)
    moments.update(torch.tensor([[1.0, 2.0], [3.0, 5.0]]))
    assert all(a is b for a, b in zip(kept, (moments.mean, moments.std, moments.count), strict=True))
    assert kept[0].tolist() == [2, 3.5]
    copy = RunningMoments((2,), decay)
    copy.load_state_dict(moments.state_dict())
    for both in (copy, moments):
        both.update(torch.tensor([[9.0, 9.0]]))
    assert torch.equal(copy.mean, moments.mean)
    assert torch.equal(copy.std, moments.std)


@pytest.mark.parametrize(("value", "least"), [(0.0, 1e-8), (3.0, 3e-7), (-5e4, 0.005)])
def test_a_constant_stream_never_divides_by_zero(value: float, least: float) -> None:
    moments = RunningMoments()
    moments.update(torch.full((10,), value))
    assert moments.std.item() == pytest.approx(least)


def test_the_normalizer_standardises_and_clips() -> None:
    normalizer = ObservationNormalizer(spaces.Box(-np.inf, np.inf, (2,)))
    obs = torch.tensor([[1.0, 10.0], [3.0, 30.0]])
    assert torch.equal(normalizer(obs / 3), obs / 3), "the identity before the first data, but for the clip"
    normalizer.update(obs)
    # means 2 and 20, deviations 1 and 10
    assert normalizer(obs).tolist() == [[-1, -1], [1, 1]]
    assert normalizer(torch.tensor([1000.0, -1000.0])).tolist() == [10, -10]
    assert not list(normalizer.parameters())


def test_the_normalizer_takes_any_leading_dims() -> None:
    normalizer = ObservationNormalizer(spaces.Box(-1, 1, (2, 3)))
    obs = torch.randn(50, 2, 3, generator=torch.Generator().manual_seed(0))
    normalizer.update(obs)
    torch.testing.assert_close(normalizer(obs.unflatten(0, (5, 10))).flatten(0, 1), normalizer(obs))


INNER = spaces.Dict({"mask": spaces.Box(0, 1, (1,))})
NESTED = spaces.Dict(
    [
        ("pose", spaces.Box(-np.inf, np.inf, (2,), np.float64)),
        ("camera", spaces.Box(0, 255, (2, 2, 1), np.uint8)),
        ("mask", spaces.Box(0, 1, (3,))),
        (
            "more",
            spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, ()), spaces.Dict({"mask": spaces.Box(0, 1, (1,))})]),
        ),
    ]
)


def nested_obs() -> dict[str, Any]:
    return {
        "pose": torch.tensor([[1.0, 10.0], [3.0, 30.0]]),
        "camera": torch.zeros(2, 2, 2, 1, dtype=torch.uint8),
        "mask": torch.ones(2, 3),
        "more": (torch.tensor([0, 2]), torch.tensor([4.0, 8.0]), {"mask": torch.tensor([[0.0], [2.0]])}),
    }


def test_every_float_leaf_has_moments_of_its_own() -> None:
    normalizer, obs = ObservationNormalizer(NESTED, exclude=("mask",)), nested_obs()
    normalizer.update(obs)
    out = normalizer(obs)
    assert list(out) == list(obs)
    assert out["pose"].tolist() == [[-1, -1], [1, 1]]
    assert out["more"][1].tolist() == [-1, 1]
    assert out["more"][2]["mask"].tolist() == [[-1], [1]], "only the outermost field is the action mask"
    for untouched in (out["camera"] is obs["camera"], out["mask"] is obs["mask"], out["more"][0] is obs["more"][0]):
        assert untouched
    assert obs["pose"].tolist() == [[1, 10], [3, 30]]


def test_without_exclude_every_float_leaf_is_standardised() -> None:
    normalizer, obs = ObservationNormalizer(NESTED), nested_obs()
    normalizer.update(obs)
    assert normalizer(obs)["mask"].tolist() == [[0, 0, 0]] * 2


def test_fields_the_space_does_not_name_pass_through() -> None:
    normalizer = ObservationNormalizer(spaces.Dict({"x": spaces.Box(-1, 1, ())}))
    other = torch.ones(3)
    assert normalizer({"x": torch.ones(3), "other": other})["other"] is other


def test_names_in_the_state_are_stable() -> None:
    moments = {"mean", "std", "count"}
    assert set(ObservationNormalizer(spaces.Box(-1, 1, (2,))).state_dict()) == {f"moments.{x}" for x in moments}
    names = ["parts.0.moments", "parts.1.parts.0.moments", "parts.1.parts.1.parts.0.moments"]
    assert list(ObservationNormalizer(NESTED, ("mask",)).state_dict()) == [
        f"{n}.{x}" for n in names for x in ("mean", "std", "count")
    ]


def test_previous_actions_and_rewards_are_leaves_like_others() -> None:
    space = spaces.Dict({"obs": spaces.Discrete(2), "prev_reward": spaces.Box(-np.inf, np.inf, ())})
    normalizer = ObservationNormalizer(space)
    obs = {"obs": torch.tensor([0, 1]), "prev_reward": torch.tensor([2.0, 6.0])}
    normalizer.update(obs)
    assert normalizer(obs)["prev_reward"].tolist() == [-1, 1]


def test_keys_may_hold_any_characters() -> None:
    normalizer = ObservationNormalizer(spaces.Dict({"a.b": spaces.Box(-1, 1, ()), "": spaces.Box(-1, 1, ())}))
    out = normalizer({"a.b": torch.ones(2), "": torch.zeros(2)})
    assert out["a.b"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(-1, 1, (2,)), True),
        (spaces.Box(-1, 1, (), np.float64), True),
        (spaces.Box(0, 255, (2,), np.uint8), False),
        (spaces.Discrete(3), False),
        (spaces.Text(3), False),
        (NESTED, True),
        (spaces.Tuple([spaces.Discrete(3), spaces.Tuple([spaces.Box(-1, 1, ())])]), True),
        (spaces.Dict({"mask": spaces.Box(0, 1, (2,)), "n": spaces.Discrete(2)}), False),
        (spaces.Dict({"x": spaces.Dict({"mask": spaces.Box(0, 1, (2,))})}), True),
    ],
)
def test_float_boxes_are_normalised_wherever_they_are(space: spaces.Space, expected: bool) -> None:
    assert can_normalize(space, exclude=("mask",)) is expected


WIDE_SPACES = {
    "Discrete": spaces.Discrete(1500, start=-3),
    "MultiDiscrete": spaces.MultiDiscrete([[900, 2], [700, 3]], start=[[1, 0], [0, 5]]),
    "mixed": spaces.Dict(
        {
            "x": spaces.Box(-1, 1, (2,)),
            "n": spaces.Discrete(2000),
            "y": spaces.Box(0, 255, (3,), np.uint8),
            "few": spaces.Discrete(4),
        }
    ),
}


@pytest.mark.parametrize("lead", [(), (5,), (3, 2), (0,)])
@pytest.mark.parametrize("kind", WIDE_SPACES)
def test_the_product_without_codes_is_that_of_the_codes(kind: str, lead: tuple[int, ...]) -> None:
    space = WIDE_SPACES[kind]
    space.seed(0)
    rows = [as_tensors(space.sample()) for _ in range(int(np.prod(lead)) or 1)]
    stacked = tree.map_structure(lambda *x: torch.stack(x)[: int(np.prod(lead))].reshape((*lead, *x[0].shape)), *rows)
    vectorize = Vectorize(space)
    weight = torch.randn(7, vector_width(space), generator=torch.Generator().manual_seed(0), requires_grad=True)
    expected = vectorize(stacked) @ weight.T
    (gradient,) = torch.autograd.grad(expected.square().sum(), weight)
    for earlier in (None, torch.ones_like(weight)):  # a learner adds to a gradient that it has set to zero
        weight.grad = earlier
        product = vectorize.times(stacked, weight)
        assert product.shape == (*lead, 7)
        torch.testing.assert_close(product, expected, rtol=1e-5, atol=1e-6)
        product.square().sum().backward()
        before = 0 if earlier is None else 1
        torch.testing.assert_close(weight.grad, gradient + before, rtol=1e-5, atol=1e-5)
        assert earlier is None or weight.grad is earlier
