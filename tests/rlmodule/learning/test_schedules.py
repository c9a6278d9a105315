"""Values over env steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlmodule.learning.schedules import value_at


@pytest.mark.parametrize(
    ("steps", "value"), [(0, 1.0), (5, 0.75), (10, 0.5), (15, 0.25), (20, 0.0), (21, 0.0), (10**9, 0.0)]
)
def test_straight_lines_between_points(steps: int, value: float) -> None:
    assert value_at([[0, 1.0], [10, 0.5], [20, 0.0]], steps) == pytest.approx(value)


def test_the_first_value_holds_before_the_first_point() -> None:
    assert [value_at([[10, 0.1], [20, 0.0]], steps) for steps in (0, 9, 10, 15)] == pytest.approx([0.1, 0.1, 0.1, 0.05])


def test_a_jump_takes_effect_after_its_step() -> None:
    schedule = [[0, 1.0], [10, 1.0], [11, 0.1]]
    assert [value_at(schedule, steps) for steps in (9, 10, 11)] == pytest.approx([1.0, 1.0, 0.1])


@given(st.floats(0, 1), st.integers(0, 10**12))
def test_a_number_stays(value: float, steps: int) -> None:
    assert value_at(value, steps) == value
    assert type(value_at(1, steps)) is float


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 10**6), st.integers(0, 10**7))
def test_never_leaves_the_range_of_its_points(first: float, last: float, end: int, steps: int) -> None:
    value = value_at([[0, first], [end, last]], steps)
    assert min(first, last) <= value <= max(first, last)
    assert steps < end or value == last
