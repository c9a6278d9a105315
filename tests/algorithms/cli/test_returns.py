"""Returns read alike everywhere: three digits that count."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from algorithms.run.text import return_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0.5321, "0.532"), (27.44, "27.4"), (500, "500"), (-1523.4, "-1,520"), (9.996, "10.0"), (99.96, "100")),
        *((0, "0"), (-0.0, "0"), (-0.04, "-0.0400"), (1e-9, "1e-09"), (math.nan, "–"), (-math.inf, "-inf")),
    ],
)
def test_a_return_has_three_digits_that_count(value: float, text: str) -> None:
    assert return_text(value) == text


@given(st.floats(1e-3, 1e9) | st.floats(-1e9, -1e-3))
def test_what_is_read_is_near_what_it_was(value: float) -> None:
    assert float(return_text(value).replace(",", "")) == pytest.approx(value, rel=0.0051)
