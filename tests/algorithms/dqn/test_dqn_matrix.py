"""DQN with spaces, memories, masks and the parts of Rainbow together: the cases of the feature matrix."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from algorithms import Algorithm
from rlmodule.testing.data import differences
from tests.algorithms.dqn import matrix
from tests.algorithms.dqn.matrix import FACTORS, Case
from tests.algorithms.ppo.matrix import pairs_of
from tests.algorithms.ppo.test_ppo_matrix import play
from tests.turns import dealt, in_turn, levels_of

CASES = matrix.cases()


@pytest.mark.parametrize("case", in_turn(CASES))
def test_a_run_samples_updates_saves_loads_and_acts_the_same(case: Case, tmp_path: Path) -> None:
    with case.config().build() as algorithm:
        before = {name: x.clone() for name, x in algorithm.get_module().named_parameters()}
        result = algorithm.train()["learners"]["default_policy"]
        assert all(torch.tensor(value).isfinite() for value in result.values()), result
        still = [n for n, x in algorithm.get_module().named_parameters() if torch.equal(x, before[n])]
        assert not still, "these parameters are not trained"
        path = algorithm.save(tmp_path / "run")
        with Algorithm.from_checkpoint(path, allow=["tests"]) as loaded:
            assert differences(algorithm.get_state(), loaded.get_state()) == []
            ours, theirs = (list(play(one.policy, one.config.env_config)) for one in (algorithm, loaded))
            assert differences(ours, theirs) == []


def test_the_cases_hold_every_pair_of_features() -> None:
    assert all(levels_of(part) == levels_of(CASES) for part in dealt(CASES))
    met = {pair for case in CASES for pair in pairs_of(vars(case))}
    for first, second in itertools.combinations(FACTORS, 2):
        for a, b in itertools.product(FACTORS[first], FACTORS[second]):
            assert (frozenset({(first, a), (second, b)}) in met) is not ({first, second} == {"observation", "action"})
