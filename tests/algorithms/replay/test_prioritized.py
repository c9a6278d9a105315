"""Priorities: by hand, against powers taken leaf by leaf, and by the frequencies of what is drawn."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.replay.prioritized import Priorities, PrioritizedReplay


def filled(errors: list[float], **options: float) -> Priorities:
    priorities = Priorities(PrioritizedReplay(**options), len(errors))
    priorities.insert(np.arange(len(errors)))
    priorities.update(np.arange(len(errors)), np.array(errors, np.float32))
    return priorities


def test_one_leaf_is_drawn_from_each_equal_share() -> None:
    # p = 1, 2, 1, 4: shares of 2 begin at 0, 2, 4, 6
    priorities = filled([1, -4, 1, 16], alpha=0.5, eps=1e-12)
    drawn = [priorities.sample(4, 0.0, np.random.default_rng(seed))[0] for seed in range(50)]
    assert {tuple(leaves[2:]) for leaves in drawn} == {(3, 3)}
    assert {int(leaves[0]) for leaves in drawn} == {0, 1}
    assert {int(leaves[1]) for leaves in drawn} == {1, 2}


def test_weights_by_hand() -> None:
    priorities = filled([1, 4, 1, 16], alpha=0.5, eps=1e-12)
    leaves, weights = priorities.sample(4, 1.0, np.random.default_rng(0))
    assert weights.dtype == np.float32
    # (N · p / 8)^-1 of p = 1, 2, 4 are 2, 1, 1/2, of which the greatest in the batch becomes 1
    by_priority = {int(leaf): float(weight) for leaf, weight in zip(leaves, weights, strict=True)}
    smallest = min([1, 2, 1, 4][leaf] for leaf in by_priority)
    assert by_priority == pytest.approx({leaf: smallest / [1, 2, 1, 4][leaf] for leaf in by_priority})
    assert max(weights) == 1


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=60),
    st.floats(0, 1),
    st.floats(0, 1),
    st.sampled_from([1e-6, 0.01, 1.0]),
    st.integers(0, 2**32 - 1),
)
def test_weights_are_those_of_the_paper(errors: list[float], alpha: float, beta: float, eps: float, seed: int) -> None:
    leaves, weights = filled(errors, alpha=alpha, eps=eps).sample(20, beta, np.random.default_rng(seed))
    powers = [(abs(error) + eps) ** alpha for error in errors]
    slow = [(len(errors) * powers[leaf] / sum(powers)) ** -beta for leaf in leaves.tolist()]
    np.testing.assert_allclose(weights, np.array(slow) / max(slow), rtol=1e-5)


def test_frequencies_are_in_proportion_to_priorities() -> None:
    rng = np.random.default_rng(5)
    errors = rng.exponential(size=50)
    priorities = filled(errors.tolist(), alpha=0.7)
    counts = np.zeros(50)
    for _ in range(4000):  # draws of one are independent, as chi-square has it
        np.add.at(counts, priorities.sample(1, 0.0, rng)[0], 1)
    shares = (errors + 1e-6) ** 0.7
    expected = 4000 * shares / shares.sum()
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 85.4  # 99.9 % of chi-square with 49 degrees of freedom
    uniform = ((counts - 80) ** 2 / 80).sum()
    assert uniform > 500


def test_draws_of_a_batch_are_spread_more_evenly_than_independent_ones() -> None:
    priorities = filled([1.0] * 16)
    leaves, _ = priorities.sample(16, 0.0, np.random.default_rng(0))
    assert leaves.tolist() == list(range(16))


def test_what_is_new_has_the_greatest_priority_there_ever_was() -> None:
    priorities = Priorities(PrioritizedReplay(alpha=0.5, eps=1e-12), 6)
    priorities.insert(np.array([0, 1]))
    assert shares_of(priorities, 6) == [1, 1, 0, 0, 0, 0]
    priorities.update(np.array([0]), np.array([0.25]))
    priorities.insert(np.array([2]))
    assert shares_of(priorities, 6) == pytest.approx([0.5, 1, 1, 0, 0, 0])
    priorities.update(np.array([1]), np.array([9.0]))
    priorities.update(np.array([1]), np.array([4.0]))
    priorities.insert(np.array([0, 3]))
    assert shares_of(priorities, 6) == pytest.approx([3, 2, 1, 3, 0, 0])


def shares_of(priorities: Priorities, num: int) -> list[float]:
    return priorities._tree.get(np.arange(num)).tolist()


def test_what_was_removed_is_neither_drawn_nor_revived() -> None:
    priorities = filled([1.0, 1, 1])
    leaves, _ = priorities.sample(3, 1.0, np.random.default_rng(0))
    priorities.remove(np.array([1]))
    priorities.update(leaves, np.array([2.0, 50, 4], np.float32))
    assert shares_of(priorities, 3) == pytest.approx([2**0.6, 0, 4**0.6], rel=1e-4)
    assert 1 not in priorities.sample(300, 1.0, np.random.default_rng(0))[0]
    priorities.insert(np.array([1]))
    assert shares_of(priorities, 3)[1] == pytest.approx(4**0.6, rel=1e-4)  # 50 was that of nothing that is there


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_errors_that_are_no_numbers_are_explained_and_change_nothing(wrong: float) -> None:
    priorities = filled([1.0, 2, 3])
    before = shares_of(priorities, 3)
    with pytest.raises(ValueError, match=rf"td_errors\)\[1\]: expected a finite number, got {wrong}\. The learner"):
        priorities.update(np.arange(3), np.array([5, wrong, 7], np.float32))
    assert shares_of(priorities, 3) == before
    assert priorities._greatest == pytest.approx(3**0.6)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"alpha": -0.1}, r"PrioritizedReplay\(alpha=\): expected finite float, >= 0 and <= 1, got -0\.1\."),
        ({"alpha": 1.5}, r"PrioritizedReplay\(alpha=\): expected finite float, >= 0 and <= 1, got 1\.5\."),
        ({"alpha": np.nan}, r"PrioritizedReplay\(alpha=\): .*got nan"),
        ({"eps": 0.0}, r"PrioritizedReplay\(eps=\): expected finite float, > 0, got 0\.0\."),
        ({"eps": np.inf}, r"PrioritizedReplay\(eps=\): .*got inf"),
    ],
)
def test_settings_out_of_range_are_explained(options: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        PrioritizedReplay(**options)


@pytest.mark.parametrize("capacity", [5, 70, 40_000])
def test_draws_go_on_bit_by_bit_after_a_round_trip(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    used = max(3, capacity * 3 // 4)
    priorities = Priorities(PrioritizedReplay(), capacity)
    priorities.insert(np.arange(used))
    priorities.update(rng.integers(0, used, used), rng.normal(size=used) * 3)
    priorities.remove(np.arange(2))
    state = priorities.get_state()
    assert state["values"].shape == (used,)
    assert state["values"].dtype == torch.float64
    again = Priorities(PrioritizedReplay(), capacity)
    again.insert(np.arange(capacity))  # of which nothing stays
    again.set_state(state)
    for seed in range(5):
        a, b = (p.sample(64, 0.4, np.random.default_rng(seed)) for p in (priorities, again))
        np.testing.assert_array_equal(a[0], b[0])
        np.testing.assert_array_equal(a[1], b[1])
    for p in (priorities, again):
        p.insert(np.array([0]))
    assert shares_of(priorities, capacity) == shares_of(again, capacity)


def test_an_empty_state_can_be_kept_too() -> None:
    priorities = Priorities(PrioritizedReplay(), 9)
    state = priorities.get_state()
    assert state["values"].shape == (0,)
    again = filled([1.0] * 9)
    again.set_state(state)
    assert shares_of(again, 9) == [0.0] * 9
