"""Each cell of the table of what every algorithm takes: a run that has the feature, or an error that says why not."""

from __future__ import annotations

import re

import pytest

from tests.algorithms.compatibility import ALGORITHMS, FEATURES, REFUSED, config_of

CELLS = [(algorithm, name) for algorithm in ALGORITHMS for name in FEATURES]


@pytest.mark.parametrize(("algorithm", "name"), CELLS, ids=[f"{algorithm}-{name}" for algorithm, name in CELLS])
def test_an_algorithm_builds_with_a_feature_or_refuses_it_by_name(algorithm: str, name: str) -> None:
    config = config_of(algorithm, name)
    if words := REFUSED[algorithm].get(name):
        with pytest.raises(ValueError, match=re.escape(words)):
            config.build()
        return
    with config.build() as algorithm_built:
        assert algorithm_built.env_steps == 0
