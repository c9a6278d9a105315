"""PPO's loss, term by term, against numbers worked by hand.

The module is a table: one row of logits and one value per observation, so that every probability is what it is set to.
Four rows of two actions; the old policy gave the action taken 0.5, clipping is at 0.2:

    row  p(action)  ratio  advantage  objective
    0    0.75       1.5    +2         min(3, 2.4) = 2.4      clipped: no gradient
    1    0.75       1.5    -2         min(-3, -2.4) = -3
    2    0.25       0.5    +2         min(1, 1.6) = 1
    3    0.25       0.5    -2         min(-1, -1.6) = -1.6   clipped: no gradient
                                      mean = -0.3
"""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from algorithms.ppo import PPOConfig, PPOLearner
from rlmodule import Columns, RLModule, RLModuleSpec, ValueFunctionAPI
from rlmodule.data.columns import Batch

ID = "default_policy"
PROBABILITIES = [[0.75, 0.25], [0.75, 0.25], [0.25, 0.75], [0.25, 0.75]]
ENTROPY = -0.75 * math.log(0.75) - 0.25 * math.log(0.25)
# KL(old ‖ new) of the uniform old policy: 0.5 log(0.5 / 0.75) + 0.5 log(0.5 / 0.25)
KL = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)


class Table(RLModule, ValueFunctionAPI):
    def setup(self) -> None:
        self.logits = nn.Parameter(torch.tensor(PROBABILITIES).log())
        self.values = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.scale = 1.0

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.logits[batch[Columns.OBS]]}

    def compute_values(self, batch: Mapping[str, Any], embeddings: Tensor | None = None) -> Tensor:
        return self.values[batch[Columns.OBS]]

    def value_scale(self) -> Tensor:
        return torch.tensor(self.scale)


def table_learner(**training: Any) -> tuple[PPOLearner, Table]:
    config = PPOConfig().training(**{"clip_param": 0.2, "vf_loss_coeff": 0.0, "entropy_coeff": 0.0, **training})
    spec = RLModuleSpec(Table, spaces.Discrete(4), spaces.Discrete(2))
    learner = PPOLearner(config, spec.as_multi(), run_seed=0)
    module = learner.module[ID]
    assert isinstance(module, Table)
    return learner, module


def batch_of_four() -> Batch:
    return {
        Columns.OBS: torch.arange(4),
        Columns.ACTIONS: torch.zeros(4, dtype=torch.int64),
        Columns.ACTION_LOGP: torch.full((4,), 0.5).log(),
        Columns.ACTION_DIST_INPUTS: torch.zeros(4, 2),
        Columns.ADVANTAGES: torch.tensor([2.0, -2.0, 2.0, -2.0]),
        Columns.VALUES: torch.tensor([1.0, 4.0, 3.0, 1.0]),
        Columns.VALUE_TARGETS: torch.tensor([2.0, 2.0, 5.0, 0.0]),
    }


def loss_of(learner: PPOLearner) -> tuple[Tensor, dict[str, Tensor]]:
    batch = batch_of_four()
    return learner.compute_loss_for_module(ID, batch, learner.module[ID].forward_train(batch))


def test_policy_loss_is_the_clipped_surrogate() -> None:
    learner, module = table_learner()
    loss, metrics = loss_of(learner)
    assert loss.item() == pytest.approx(0.3)
    assert metrics["policy_loss"].mean().item() == pytest.approx(0.3)
    torch.testing.assert_close(metrics["log_ratio"], torch.tensor([1.5, 1.5, 0.5, 0.5]).log())
    (gradient,) = torch.autograd.grad(loss, module.logits)
    assert not gradient[[0, 3]].any()
    # d(ratio · A)/d(logit of the action) = ratio · A · (1 - p), divided by four rows, with the sign of a loss
    expected = torch.tensor([-1.5 * -2 * 0.25 / 4, -0.5 * 2 * 0.75 / 4])
    torch.testing.assert_close(gradient[[1, 2], 0], expected)
    torch.testing.assert_close(gradient[[1, 2], 1], -expected)


def test_a_wider_clip_frees_the_gradient() -> None:
    learner, module = table_learner(clip_param=0.6)
    loss, _ = loss_of(learner)
    assert loss.item() == pytest.approx(-(3 - 3 + 1 - 1) / 4)
    assert torch.autograd.grad(loss, module.logits)[0].all()


def test_value_error() -> None:
    # errors -1, 0, -2, 4: squares 1, 0, 4, 16, mean 5.25
    learner, module = table_learner(vf_loss_coeff=0.5)
    loss, metrics = loss_of(learner)
    assert metrics["vf_loss"].mean().item() == pytest.approx(5.25)
    assert loss.item() == pytest.approx(0.3 + 0.5 * 5.25)
    gradient = torch.autograd.grad(loss, module.values)[0]
    torch.testing.assert_close(gradient, 0.5 * 2 * torch.tensor([-1.0, 0.0, -2.0, 4.0]) / 4)


def test_value_error_is_in_units_of_the_value_scale() -> None:
    learner, module = table_learner(vf_loss_coeff=0.5)
    module.scale = 2.0
    loss, metrics = loss_of(learner)
    assert metrics["vf_loss"].mean().item() == pytest.approx(5.25 / 4)
    assert loss.item() == pytest.approx(0.3 + 0.5 * 5.25 / 4)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_value_clipping_is_in_units_of_the_value_scale(scale: float) -> None:
    # held within 1 of the old 1, 4, 3, 1: 1, 3, 3, 2, with squared errors 1, 1, 4, 4 next to 1, 0, 4, 16 unheld;
    # the larger ones are 1, 1, 4, 16, mean 5.5
    learner, module = table_learner(vf_loss_coeff=1.0, vf_clip_param=1.0 / scale)
    module.scale = scale
    loss, metrics = loss_of(learner)
    assert metrics["vf_loss"].mean().item() == pytest.approx(5.5 / scale**2)
    assert loss.item() == pytest.approx(0.3 + 5.5 / scale**2)
    assert torch.autograd.grad(loss, module.values)[0][1] == 0  # row 1 moved from 4 to its target 2 too fast


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("clip", [None, 1.0])
def test_large_value_errors_count_linearly(scale: float, clip: float | None) -> None:
    # errors 1, 0 (held: 1), 2, 4 in values; beyond 1.5 they count as 2 · 1.5 · error - 1.5²: 1, 0 or 1, 3.75, 9.75
    learner, module = table_learner(
        vf_loss_coeff=1.0, vf_huber_delta=1.5 / scale, vf_clip_param=None if clip is None else clip / scale
    )
    module.scale = scale
    loss, metrics = loss_of(learner)
    assert metrics["vf_loss"].mean().item() == pytest.approx((14.5 if clip is None else 15.5) / 4 / scale**2)
    gradient = torch.autograd.grad(loss, module.values)[0]
    torch.testing.assert_close(gradient, torch.tensor([-2.0, 0.0, -3.0, 3.0]) / 4 / scale**2)


def test_entropy_is_a_bonus() -> None:
    learner, _ = table_learner(entropy_coeff=0.1)
    loss, metrics = loss_of(learner)
    assert metrics["entropy"].mean().item() == pytest.approx(ENTROPY)
    assert loss.item() == pytest.approx(0.3 - 0.1 * ENTROPY)


def test_kl_penalty() -> None:
    learner, _ = table_learner(use_kl_loss=True, kl_coeff=0.7)
    assert loss_of(learner)[0].item() == pytest.approx(0.3 + 0.7 * KL)
    learner.kl_coeff[ID] = 1.4
    assert loss_of(learner)[0].item() == pytest.approx(0.3 + 1.4 * KL)


def test_all_terms_together() -> None:
    learner, module = table_learner(
        vf_loss_coeff=0.5, vf_clip_param=0.5, entropy_coeff=0.1, use_kl_loss=True, kl_coeff=0.7
    )
    module.scale = 2.0
    expected = 0.3 + 0.5 * 5.5 / 4 - 0.1 * ENTROPY + 0.7 * KL
    assert loss_of(learner)[0].item() == pytest.approx(expected)


def test_summary() -> None:
    learner, _ = table_learner()
    ratios = torch.tensor([1.5, 1.1, 0.85, 0.5])
    summary = learner.summarize(ID, {"log_ratio": ratios.log(), "policy_loss": torch.tensor([1.0, 3.0])})
    assert summary["policy_loss"] == pytest.approx(2.0)
    assert summary["clip_fraction"] == pytest.approx(0.5)
    assert summary["approx_kl"] == pytest.approx(sum(r - 1 - math.log(r) for r in ratios.tolist()) / 4, rel=1e-4)
    assert set(summary) == {"policy_loss", "clip_fraction", "approx_kl"}
    assert all(type(value) is float for value in summary.values())
