"""One-hot codes and running statistics."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from catalog import ObservationNormalizer, RunningMoments
from catalog.preprocessing import OneHot, can_normalize, one_hot_dim
from catalog.spaces import to_tensor, zero_batch


def test_one_hot_of_a_discrete_counts_from_its_start() -> None:
    code = OneHot(spaces.Discrete(3, start=5))
    assert code(torch.tensor([5, 7])).tolist() == [[1, 0, 0], [0, 0, 1]]


def test_one_hot_of_a_multi_discrete_has_one_one_per_part() -> None:
    space = spaces.MultiDiscrete(np.array([[2, 3]]), start=np.array([[1, -1]]))
    assert one_hot_dim(space) == 5
    # 2 is the second of {1, 2}, -1 the first of {-1, 0, 1}
    assert OneHot(space)(torch.tensor([[[2, -1]]])).tolist() == [[0, 1, 1, 0, 0]]


@pytest.mark.parametrize("lead", [(), (4,), (3, 4), (0,)])
@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([[2], [3]])])
def test_one_hot_keeps_leading_dims(lead: tuple[int, ...], space: spaces.Discrete | spaces.MultiDiscrete) -> None:
    obs = torch.zeros((*lead, *(space.shape or ())), dtype=torch.int32)
    code = OneHot(space)(obs)
    assert code.shape == (*lead, one_hot_dim(space))
    assert code.dtype == torch.float32


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
    np.testing.assert_allclose(moments.std.numpy(), np.maximum(together.std(0), 1e-4), rtol=1e-5)
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
    # the floor of 1e-4 on what is stored is all that may tell them apart, besides rounding
    torch.testing.assert_close(cut.mean, whole.mean, atol=2e-3, rtol=1e-5)
    torch.testing.assert_close(cut.std, whole.std, atol=2e-3, rtol=1e-4)


def test_long_streams_do_not_drift() -> None:
    rng, moments = np.random.default_rng(0), RunningMoments()
    batches = rng.normal(100, 1, (3000, 64)).astype(np.float32)
    for batch in batches:
        moments.update(torch.from_numpy(batch))
    assert moments.mean.item() == pytest.approx(batches.mean(dtype=np.float64), abs=1e-3)
    assert moments.std.item() == pytest.approx(batches.std(dtype=np.float64), rel=1e-3)


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


def test_a_constant_stream_never_divides_by_zero() -> None:
    moments = RunningMoments()
    moments.update(torch.full((10,), 3.0))
    assert moments.std.item() == pytest.approx(1e-4)


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


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (spaces.Box(-1, 1, (2,)), True),
        (spaces.Box(0, 255, (2,), np.uint8), False),
        (spaces.Discrete(3), False),
    ],
)
def test_only_float_boxes_are_normalised(space: spaces.Space, expected: bool) -> None:
    assert can_normalize(space) is expected


def test_a_zero_batch_has_the_space_s_structure_and_order() -> None:
    space = spaces.Dict(
        {
            "z": spaces.Box(-1, 1, (2,), np.float64),
            "a": spaces.Tuple([spaces.Discrete(3, start=4), spaces.MultiDiscrete([2, 2], start=[1, 2])]),
            "b": spaces.MultiBinary(3),
        }
    )
    batch = zero_batch(space)
    assert list(batch) == list(space.spaces)
    assert batch["z"].dtype == torch.float32
    assert [batch["a"][0].tolist(), batch["a"][1].tolist(), batch["b"].tolist()] == [[4], [[1, 2]], [[0, 0, 0]]]


def test_a_zero_batch_names_the_leaf_it_cannot_make() -> None:
    space = spaces.Dict({"x": spaces.Tuple([spaces.Discrete(2), spaces.Text(3)])})
    with pytest.raises(ValueError, match=r"observation_space\['x'\]\[1\]: expected a space of arrays"):
        zero_batch(space)


def test_tensors_share_memory_where_they_can() -> None:
    array = np.zeros(3, np.float32)
    tensor: Tensor = to_tensor(array)
    array[0] = 1
    assert tensor.tolist() == [1, 0, 0]
    assert to_tensor(np.zeros(2)).dtype == torch.float32
