"""Leaves of spaces, and samples of spaces as batched tensors."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from catalog.spaces import array_leaves, kept_dtype, to_tensor, zero_batch

NESTED = spaces.Dict(
    [
        ("z", spaces.Box(-1, 1, (2,), np.float64)),
        ("a", spaces.Tuple([spaces.Discrete(3, start=4), spaces.MultiDiscrete([2, 2], start=[1, 2])])),
        ("b", spaces.MultiBinary(3)),
    ]
)


def test_leaves_come_in_the_space_s_own_order_with_the_keys_that_lead_to_them() -> None:
    assert [leaf.keys for leaf in array_leaves(NESTED)] == [("z",), ("a", 0), ("a", 1), ("b",)]
    assert [leaf.shape for leaf in array_leaves(NESTED)] == [(2,), (), (2,), (3,)]
    (leaf,) = array_leaves(spaces.Discrete(3))
    assert (leaf.keys, leaf.shape) == ((), ())


def test_a_leaf_finds_itself_in_an_observation() -> None:
    obs = zero_batch(NESTED, (5, 2))
    assert [tuple(leaf.of(obs).shape) for leaf in array_leaves(NESTED)] == [(5, 2, 2), (5, 2, 1), (5, 2, 2), (5, 2, 3)]
    assert next(array_leaves(spaces.Box(-1, 1, (2, 3)))).of(torch.ones(4, 2, 3)).shape == (4, 6)


def test_a_zero_batch_has_the_space_s_structure_and_order() -> None:
    batch = zero_batch(NESTED)
    assert list(batch) == ["z", "a", "b"]
    assert batch["z"].dtype == torch.float32
    assert [batch["a"][0].tolist(), batch["a"][1].tolist(), batch["b"].tolist()] == [[4], [[1, 2]], [[0, 0, 0]]]


@pytest.mark.parametrize("leading", [(), (1,), (1, 1), (3, 2)])
def test_a_zero_batch_has_the_leading_dims_asked_for(leading: tuple[int, ...]) -> None:
    batch = zero_batch(NESTED, leading)
    assert batch["z"].shape == (*leading, 2)
    assert batch["a"][0].shape == leading
    assert batch["a"][0].eq(4).all()
    batch["z"][...] = torch.arange(batch["z"].numel()).reshape(batch["z"].shape)  # no memory is shared between rows


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(2, 5, (3,)),
        spaces.Box(-5, np.array([-2, 7], np.float32)),
        spaces.Box(-np.inf, -1, (), np.float64),
        spaces.Box(3, 9, (2,), np.uint8),
        spaces.Box(0, 1, (2,), np.bool_),
        spaces.Discrete(3, start=-2),
        spaces.MultiDiscrete([2, 3], dtype=np.uint8, start=[1, 1]),
        spaces.MultiBinary((2, 2)),
    ],
)
def test_a_zero_batch_is_a_valid_observation(space: Any) -> None:
    row = np.asarray(zero_batch(space).numpy()[0], space.dtype)
    assert space.contains(row[()] if isinstance(space, spaces.Discrete) else row)


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
    assert to_tensor(np.float64(3) * np.ones(())).shape == ()


KEPT = {"f2": "f2", "f4": "f4", ">f4": "f4", "f8": "f4", "?": "?", "i8": "i8", ">i2": "i2"}
KEPT |= {"u1": "u1", "u2": "i4", "u4": "i8", "u8": "i8"}


@pytest.mark.parametrize(("dtype", "kept"), KEPT.items())
def test_what_observations_are_kept_as_can_be_indexed_and_shuffled(dtype: str, kept: str) -> None:
    assert kept_dtype(np.dtype(dtype)) == np.dtype(kept)
    rows = to_tensor(np.array([[0, 1], [1, 0], [1, 1]], dtype))
    assert (
        rows[torch.tensor([2, 0])].tolist() == rows.index_select(0, torch.tensor([2, 0])).tolist() == [[1, 1], [0, 1]]
    )
    rows[torch.tensor([0])] = rows[2].clone()
    assert rows.float().sum() == 5
