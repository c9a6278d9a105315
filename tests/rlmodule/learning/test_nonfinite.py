"""What is not finite never reaches the weights: such an update is left out, counted, and too many end the run."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from algorithms.dqn import DQNConfig, DQNLearner
from algorithms.ppo import PPOConfig, PPOLearner
from catalog.base import Tree
from rlmodule import Columns
from rlmodule.data.columns import Batch
from rlmodule.learning.flat_optimizer import FlatAdam
from rlmodule.learning.reports import Metrics
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.testing.data import clone, differences
from tests.rlmodule.toys import Regression, Settings, Small

ID = "default_policy"
SPEC = RLModuleSpec(Small, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3), {"fcnet_hiddens": [8]}).as_multi()
NAN, INF = float("nan"), float("inf")


class Descent(Regression):
    """With an optimizer of its own."""

    def configure_optimizer_for_module(self, module_id: str, parameters: nn.Parameter) -> torch.optim.Optimizer:
        return torch.optim.SGD([parameters], lr=0.1, momentum=0.9)


class InfiniteSlope(Regression):
    """A loss that is 0 and finite, and whose gradient is not."""

    def compute_loss_for_module(
        self, module_id: str, batch: dict[str, Tree], fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
        return (loss if batch["target"][0, 0] == 1 else (loss * 0).sqrt()), metrics


def make(cls: type[Regression] = Regression, **settings: Any) -> Regression:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(Settings(**settings), SPEC, run_seed=0)


def batch(target: float = 1.0, seed: int = 0) -> Batch:
    rows = torch.rand(8, 4, generator=torch.Generator().manual_seed(seed))
    return {Columns.OBS: rows, "target": torch.full((8, 3), target)}


def update(learner: Regression, targets: list[float]) -> float:
    """The number of updates left out of those towards ``targets``."""
    history = [learner.step_on_batch(batch(target, seed), env_steps=0) for seed, target in enumerate(targets)]
    return learner.summarize_updates(history)[ID]["num_updates_skipped"]


def evolved(learner: Regression) -> dict[str, Any]:
    """All that an update may change but the counts."""
    state = clone(learner.get_state())
    return {name: state[name] for name in ("module", "optimizers")}


@pytest.mark.parametrize("cls", [Regression, Descent])
@pytest.mark.parametrize("wrong", [NAN, INF, -INF, 1e30])
def test_an_update_that_is_not_finite_changes_nothing(cls: type[Regression], wrong: float) -> None:
    learner = make(cls)
    update(learner, [1.0, 2.0])
    before = evolved(learner)
    assert update(learner, [wrong]) == 1
    # the observation statistics took in the rows, which are as good as any
    assert differences(before["optimizers"], evolved(learner)["optimizers"]) == []
    assert all(torch.equal(p, before["module"][ID][name]) for name, p in learner.module[ID].named_parameters())


def test_an_infinite_gradient_of_a_finite_loss_is_left_out_too() -> None:
    learner = make(InfiniteSlope)
    before = [p.clone() for p in learner.module[ID].parameters()]
    assert update(learner, [0.0]) == 1
    assert all(torch.equal(old, new) for old, new in zip(before, learner.module[ID].parameters(), strict=True))
    assert update(learner, [1.0]) == 0
    assert not torch.equal(before[0], next(iter(learner.module[ID].parameters())))


@pytest.mark.parametrize("cls", [Regression, Descent])
def test_what_follows_is_as_if_it_had_not_been(cls: type[Regression]) -> None:
    with_fault, without = make(cls), make(cls)
    for learner, targets in ((with_fault, [1.0, NAN, 2.0]), (without, [1.0, 1.0, 2.0])):
        for seed, target in zip((0, 5, 1), targets, strict=True):
            if learner is with_fault or seed != 5:
                learner.step_on_batch(batch(target, seed), env_steps=0)
    assert differences(evolved(with_fault)["optimizers"], evolved(without)["optimizers"]) == []


@pytest.mark.parametrize("skip", [0.0, 1.0])
def test_flat_adam_steps_or_does_not(skip: float) -> None:
    parameters, reference = (nn.Parameter(torch.linspace(-1, 1, 7)) for _ in range(2))
    ours, theirs = FlatAdam(parameters, lr=0.1, eps=1e-5), FlatAdam(reference, lr=0.1, eps=1e-5)
    for number in range(3):
        parameters.grad = reference.grad = torch.full((7,), 0.5 + number)
        theirs.step()
        ours.step_unless(torch.tensor(skip if number == 1 else 0.0))
    assert torch.equal(parameters, reference) == (skip == 0)
    assert float(ours.state[parameters]["step"]) == 3 - skip


# --- too many ---------------------------------------------------------------------------------------------------------


def test_too_many_in_a_row_end_the_run_and_name_the_parameters() -> None:
    learner = make(max_nonfinite_updates_in_a_row=3)
    match = rf"updates of module '{ID}': expected finite .*, got 3 in a row .* the gradients of .*weight.*Lower lr"
    with pytest.raises(FloatingPointError, match=match):
        update(learner, [1.0, NAN, NAN, NAN])
    assert all(p.isfinite().all() for p in learner.module[ID].parameters())


def test_one_that_is_finite_begins_the_count_anew() -> None:
    learner = make(max_nonfinite_updates_in_a_row=3)
    assert update(learner, [NAN, NAN, 1.0, NAN, NAN]) == 4


def test_the_count_goes_on_from_iteration_to_iteration_and_through_checkpoints() -> None:
    learner, other = make(max_nonfinite_updates_in_a_row=3), make(max_nonfinite_updates_in_a_row=3)
    update(learner, [NAN, NAN])
    other.set_state(clone(learner.get_state()))
    for each in (learner, other):
        with pytest.raises(FloatingPointError, match="3 in a row"):
            update(each, [NAN])


# --- in the algorithms ------------------------------------------------------------------------------------------------


class SometimesNaN(PPOLearner):
    """Its second and third loss is not a number."""

    calls = 0

    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
        self.calls += 1
        return (loss * NAN if self.calls in (2, 3) else loss), metrics


def test_ppo_goes_on_and_tells() -> None:
    config = PPOConfig(env="CartPole-v1", seed=1, train_batch_size_per_learner=128, minibatch_size=64, num_epochs=3)
    with config.learners(learner_class=SometimesNaN).build() as algorithm:
        results = [algorithm.train()["learners"][ID] for _ in range(2)]
        assert [result["num_updates_skipped"] for result in results] == [2, 0]
        assert np.isnan(results[0]["total_loss"])
        assert all(p.isfinite().all() for p in algorithm.get_module().parameters())


class NoNumbers(DQNLearner):
    """Targets that are not numbers, every other time."""

    calls = 0

    def compute_targets(self, module_id: str, batch: Batch) -> Tensor:
        self.calls += 1
        return super().compute_targets(module_id, batch) * (NAN if self.calls % 2 else 1)


@pytest.mark.parametrize("prioritized", [False, True])
def test_dqn_goes_on_and_keeps_its_priorities(prioritized: bool) -> None:
    config = DQNConfig(
        env="CartPole-v1",
        seed=1,
        train_batch_size_per_learner=16,
        num_steps_sampled_before_learning_starts=64,
        num_env_steps_per_iteration=128,
        prioritized_replay=prioritized,
        learner_class=NoNumbers,
    )
    with config.build() as algorithm:
        result = algorithm.train()["learners"][ID]
        assert result["num_updates_skipped"] > 1
        assert all(p.isfinite().all() for p in algorithm.get_module().parameters())
        algorithm.train()
