"""The sum tree, against sums by hand and against a linear scan."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.replay.sum_tree import SumTree

SIZES = [1, 7, 8, 9, 64, 65, 4096, 4097, 32768, 32769, 300_000]
"""Around what fills a node, a level and a top level; one to three levels below the top."""


def tree_of(values: np.ndarray) -> SumTree:
    tree = SumTree(len(values))
    tree.set(np.arange(len(values)), values)
    return tree


def scan(values: np.ndarray, mass: float) -> int:
    """The first leaf at whose end the sum is greater than ``mass``, or the last that is not 0."""
    total = 0.0
    for leaf, value in enumerate(values.tolist()):
        total += value
        if total > mass:
            return leaf
    return int(np.flatnonzero(values)[-1])


def test_five_leaves_by_hand() -> None:
    tree = tree_of(np.array([2.0, 0, 3, 1, 0]))
    assert tree.total == 6
    mass = np.array([0, 1.9, 2, 4.9, 5, 5.9, 6])
    assert tree.find(mass).tolist() == [0, 0, 2, 2, 3, 3, 3]
    assert mass.tolist() == [0, 1.9, 2, 4.9, 5, 5.9, 6]  # left as it was
    tree.set(np.array([2, 4]), np.array([0, 10.0]))
    assert tree.total == 13
    assert tree.find(np.array([2, 3, 12])).tolist() == [3, 4, 4]
    assert tree.get(np.array([4, 0, 2])).tolist() == [10, 2, 0]


def test_the_last_of_equal_leaves_counts() -> None:
    tree = tree_of(np.ones(20))
    tree.set(np.array([3, 19, 3, 3]), np.array([7.0, 2, 8, 9]))
    assert tree.get(np.array([3, 19])).tolist() == [9, 2]
    assert tree.total == 18 + 9 + 2


@pytest.mark.parametrize("size", SIZES)
def test_whole_numbers_are_found_where_a_linear_scan_finds_them(size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.integers(0, 4, size).astype(np.float64)
    values[rng.integers(size)] += 1
    tree = tree_of(values)
    assert tree.total == values.sum()
    mass = rng.integers(0, int(tree.total), 500).astype(np.float64)
    np.testing.assert_array_equal(tree.find(mass), np.searchsorted(values.cumsum(), mass, "right"))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 200), st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1.0, 20.0]))
def test_leaves_are_those_of_a_linear_scan_after_many_changes(size: int, seed: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    values, tree = np.zeros(size), SumTree(size)
    for _ in range(5):
        leaves = rng.integers(0, size, rng.integers(1, 2 * size + 1))
        new = np.exp(rng.normal(scale=spread, size=len(leaves))) * (rng.random(len(leaves)) < 0.6)
        tree.set(leaves, new)
        for leaf, value in zip(leaves, new, strict=True):
            values[leaf] = value
    np.testing.assert_array_equal(tree.get(np.arange(size)), values)
    assert tree.total == pytest.approx(values.sum(), rel=1e-12)
    if not values.any():
        return
    mass = rng.random(50) * tree.total
    found = tree.find(mass)
    assert (values[found] > 0).all()
    for leaf, wanted in zip(found, mass, strict=True):
        # rounding may move an edge by a few bits of the total
        nearest = [scan(values, wanted + shift * tree.total) for shift in (-1e-12, 0, 1e-12)]
        assert nearest[0] <= leaf <= nearest[2]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.sampled_from([0.0, 5e-324, 1e-300, 1e-16, 0.1, 0.3, 1.0, 1e16]), min_size=1, max_size=70))
def test_a_leaf_of_zero_is_never_found_at_an_edge(values: list[float]) -> None:
    tree = tree_of(np.array(values))
    if tree.total == 0:
        return
    ends = np.cumsum(values)
    edges = np.concatenate([[0.0, tree.total], ends, np.nextafter(ends, 0), np.nextafter(ends, math.inf)])
    assert (tree.get(tree.find(np.minimum(edges, tree.total))) > 0).all()


def test_nor_is_it_at_edges_that_rounding_moves_from_level_to_level() -> None:
    rng = np.random.default_rng(0)
    values = rng.random(300_000)
    values[::8] = 0  # the first leaf of each node, found if what is left of the mass falls below 0
    tree = tree_of(values)
    edges = values.cumsum()[7::8]
    assert (tree.get(tree.find(edges)) > 0).all()
    assert (tree.get(tree.find(np.nextafter(edges, 0))) > 0).all()


@pytest.mark.parametrize("size", [9, 5000, 40_000])
def test_sums_do_not_drift(size: int) -> None:
    rng = np.random.default_rng(0)
    tree = tree_of(np.full(size, 1e12))
    for _ in range(300):
        tree.set(rng.integers(0, size, 50), 10.0 ** rng.integers(-12, 12, 50))
    tree.set(np.arange(size), 0.0)
    tree.set(np.array([4]), 1e-9)
    assert tree.total == 1e-9


@pytest.mark.parametrize("size", SIZES)
def test_sums_are_the_same_bits_in_whatever_order_leaves_were_set(size: int) -> None:
    rng = np.random.default_rng(size)
    values = rng.random(size)
    at_once, bit_by_bit = tree_of(values), SumTree(size)
    for leaves in np.array_split(rng.permutation(size), 40):
        bit_by_bit.set(leaves, values[leaves])
    one = rng.integers(size, size=1)
    bit_by_bit.set(one, values[one])
    for a, b in zip(at_once._levels, bit_by_bit._levels, strict=True):
        np.testing.assert_array_equal(a, b)
