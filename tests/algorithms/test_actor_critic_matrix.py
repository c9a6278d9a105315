"""A2C, IMPALA and APPO with all kinds of spaces, nets and masks: a part of the cases of PPO's feature matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from algorithms.a2c import A2CConfig, A2CLearner
from algorithms.actor_critic import ActorCriticLearner
from algorithms.appo import APPOConfig, APPOLearner
from algorithms.impala import IMPALAConfig, IMPALALearner
from catalog.settings import settings_of
from rlmodule import RLModule, Rollout
from rlmodule.data.columns import Batch
from rlmodule.learning.reports import Metrics
from tests.algorithms.ppo import matrix
from tests.algorithms.ppo.matrix import FACTORS, Case
from tests.turns import dealt, levels_of

CASES = dealt(matrix.cases(), 5)[0]


class Recording(ActorCriticLearner):
    """Keeps the largest log-ratio of each gradient step, and of each pass over a rollout."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.of_steps: list[float] = []
        self.of_rollouts: list[float] = []

    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Any]
    ) -> tuple[Tensor, Metrics]:
        loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
        self.of_steps.append(metrics["log_ratio"].abs().max().item())
        return loss, metrics


class RecordingA2C(Recording, A2CLearner):
    """A2C's learner, recorded."""


class RecordingIMPALA(Recording, IMPALALearner):
    """IMPALA's learner, recorded."""

    def log_ratios(self, module_id: str, module: RLModule, rollout: Rollout) -> Tensor:
        log_ratios = super().log_ratios(module_id, module, rollout)
        self.of_rollouts.append(log_ratios.abs().max().item())
        return log_ratios


class RecordingAPPO(RecordingIMPALA, APPOLearner):
    """APPO's learner, recorded."""


LEARNERS: dict[str, tuple[type[Any], type[Recording]]] = {
    "A2C": (A2CConfig, RecordingA2C),
    "IMPALA": (IMPALAConfig, RecordingIMPALA),
    "APPO": (APPOConfig, RecordingAPPO),
}


def test_the_cases_hold_every_level() -> None:
    assert levels_of(CASES) == {(factor, level) for factor, levels in FACTORS.items() for level in levels}


@pytest.mark.end_to_end
@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@pytest.mark.parametrize("algorithm", LEARNERS)
def test_learners_see_what_was_recorded_when_acting(algorithm: str, case: Case) -> None:
    config_class, learner_class = LEARNERS[algorithm]
    known = settings_of(config_class)
    of_ppo = case.config()
    values = {name: value for name, value in vars(of_ppo).items() if name in known and value != known[name].default}
    config = config_class(**values).learners(learner_class=learner_class)
    if "num_env_steps_per_iteration" in known:
        config.reporting(num_env_steps_per_iteration=20)
    with config.build() as algo:
        before = {name: x.clone() for name, x in algo.get_module().named_parameters()}
        result = algo.train()["learners"]["default_policy"]
        learner = algo.learner_group.learner
        assert all(torch.tensor(value).isfinite() for value in result.values()), result
        assert learner.of_steps[0] < 1e-5 < learner.of_steps[1]
        assert all(ratio < 1e-5 for ratio in learner.of_rollouts)
        assert len(learner.of_rollouts) == (algorithm != "A2C")
        still = [name for name, x in algo.get_module().named_parameters() if torch.equal(x, before[name])]
        assert not still, "these parameters are not trained"
