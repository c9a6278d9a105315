"""TD3 with spaces, memories and replays together: the cases of the feature matrix."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.algorithms.ppo.matrix import all_pairs, is_sensible, pairs_of
from tests.algorithms.sac.test_sac_matrix import test_a_run_samples_updates_saves_loads_and_acts_the_same as check
from tests.algorithms.td3 import matrix
from tests.algorithms.td3.matrix import FACTORS, Case
from tests.turns import dealt, in_turn, levels_of

CASES = matrix.cases()


@pytest.mark.parametrize("case", in_turn(CASES))
def test_a_run_samples_updates_saves_loads_and_acts_the_same(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_the_cases_hold_every_pair_of_features_that_go_together() -> None:
    assert all(levels_of(part) == levels_of(CASES) for part in dealt(CASES))
    met = {pair for case in CASES for pair in pairs_of(vars(case))}
    assert met >= all_pairs(FACTORS, is_sensible)
