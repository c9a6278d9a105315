"""Learners: the contract on three of them, minibatches, clipping, schedules, and what the contract must notice."""

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from algorithms.ppo import PPOConfig, PPOLearner
from catalog.base import Tree
from rlmodule import Columns, Episode, Learner, LearnerGroup, Rollout, ValueFunctionAPI
from rlmodule.data.columns import Batch
from rlmodule.data.rollout import row_minibatches
from rlmodule.learning.flat_optimizer import load_optimizer_state, optimizer_state
from rlmodule.learning.learner import join_metrics
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec
from rlmodule.testing.data import clone, differences, random_rollout
from rlmodule.testing.learner_contract import LearnerContract
from tests.rlmodule.toys import Regression, Reinforce, Settings, Small

OBS, ACTIONS = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
SPEC = RLModuleSpec(Small, OBS, ACTIONS, {"fcnet_hiddens": [8]}).as_multi()


def make(cls: type[Learner] = Reinforce, run_seed: int = 0, **settings: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(Settings(**settings), SPEC, run_seed=run_seed)


def numbered_rollout(learner: Learner, steps: int = 20, slots: int = 3) -> tuple[Rollout, list[float]]:
    """A rollout whose rewards number the valid rows, and these numbers."""
    rollout = random_rollout(learner.module["default_policy"], steps, slots)
    learner.module.train()
    rewards = torch.arange(1.0, steps * slots + 1).view(steps, slots)
    rollout.columns[Columns.REWARDS] = rewards
    return rollout, rewards[rollout.valid].tolist()


class TestReinforce(LearnerContract):
    def make(self) -> Learner:
        return Reinforce(Settings(lr=[[0, 0.01], [200, 0.0]]), SPEC, run_seed=torch.initial_seed())


class TestRegression(LearnerContract):
    def make(self) -> Learner:
        return Regression(Settings(), SPEC, run_seed=torch.initial_seed())

    def make_data(self, learner: Learner, seed: int) -> Batch:
        generator = torch.Generator().manual_seed(seed)
        return {Columns.OBS: torch.rand(8, 4, generator=generator), "target": torch.ones(8, 3)}


@pytest.mark.parametrize("test", [name for name in dir(LearnerContract) if name.startswith("test_")])
@pytest.mark.parametrize("action_space", [ACTIONS, spaces.Box(-1, 1, (2,), np.float32)])
def test_ppo_keeps_the_contract(test: str, action_space: spaces.Space, tmp_path: Any) -> None:
    config = PPOConfig(
        minibatch_size=32, num_epochs=2, use_kl_loss=True, vf_clip_param=1.0, entropy_coeff=[[0, 0.1], [100, 0.0]]
    )
    spec = config.get_rl_module_spec(OBS, action_space).as_multi()

    class Contract(LearnerContract):
        def make(self) -> Learner:
            return PPOLearner(config, spec, run_seed=torch.initial_seed())  # type: ignore[arg-type]

    getattr(Contract(), test)(*([tmp_path] if "round_trip" in test else []))


class Forgets(Reinforce):
    """Has a coefficient that grows, and keeps it to itself."""

    coefficient = 1.0

    def compute_loss_for_module(
        self, module_id: str, batch: dict[str, Tree], fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        self.coefficient += 1
        loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
        value = fwd_out[Columns.EMBEDDINGS].square().mean()
        return loss + self.coefficient * value, metrics


class WritesIntoData(Reinforce):
    def preprocess_train_data(self, rollout: Rollout) -> Rollout:
        rollout.columns[Columns.REWARDS].clamp_(-0.1, 0.1)
        return rollout


class DrawsGlobally(Reinforce):
    def preprocess_train_data(self, rollout: Rollout) -> Rollout:
        torch.rand(1)
        return rollout


class ReportsNaN(Reinforce):
    def summarize(self, module_id: str, metrics: Mapping[str, Tensor]) -> dict[str, float]:
        return super().summarize(module_id, metrics) | {"more": float("nan")}


class ReportsTensor(Reinforce):
    def summarize(self, module_id: str, metrics: Mapping[str, Tensor]) -> dict[str, float]:
        return dict(metrics)  # type: ignore[arg-type]


class LearnsNothing(Reinforce):
    def compute_loss_for_module(
        self, module_id: str, batch: dict[str, Tree], fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
        return loss * 0, metrics


@pytest.mark.parametrize(
    ("cls", "test"),
    [
        (Forgets, "test_state_round_trip_goes_on_bit_equal"),
        (WritesIntoData, "test_update_leaves_the_data_as_it_is"),
        (DrawsGlobally, "test_update_draws_no_global_random_numbers"),
        (ReportsNaN, "test_update_reports_finite_numbers"),
        (ReportsTensor, "test_update_reports_finite_numbers"),
        (LearnsNothing, "test_update_changes_the_weights"),
    ],
)
def test_contract_notices(cls: type[Learner], test: str, tmp_path: Any) -> None:
    class Contract(LearnerContract):
        def make(self) -> Learner:
            return cls(Settings(), SPEC, run_seed=torch.initial_seed())

    with pytest.raises(AssertionError):
        getattr(Contract(), test)(*([tmp_path] if "round_trip" in test else []))


@pytest.mark.parametrize("size", [16, 7, 1000, None])
def test_minibatches_cover_each_valid_row_once_per_epoch(size: int | None) -> None:
    learner = make(minibatch_size=size, num_epochs=3)
    rollout, rows = numbered_rollout(learner)
    assert len(rows) % 7
    assert len(rows) < 60
    learner.update_from_episodes(rollout, env_steps=60)
    per_epoch = -(-len(rows) // (size or 60))
    assert len(learner.seen) == learner.num_updates == 3 * per_epoch
    sizes = [len(minibatch) for minibatch in learner.seen[:per_epoch]]
    assert sizes[:-1] == [size] * (per_epoch - 1)
    epochs = [list(itertools.chain(*learner.seen[i : i + per_epoch])) for i in range(0, len(learner.seen), per_epoch)]
    for epoch in epochs:
        assert sorted(epoch) == rows
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] != rows


@pytest.mark.parametrize(("rows", "sizes"), [(9, [4, 5]), (8, [4, 4]), (10, [4, 4, 2]), (1, [1]), (5, [5])])
def test_a_single_row_joins_the_minibatch_before(rows: int, sizes: list[int]) -> None:
    pieces = list(row_minibatches({"x": torch.arange(rows)}, 4, torch.Generator()))
    assert [len(piece["x"]) for piece in pieces] == sizes
    assert sorted(torch.cat([piece["x"] for piece in pieces]).tolist()) == [*range(rows)]


def test_columns_of_a_minibatch_stay_together() -> None:
    learner = make()
    rollout, _ = numbered_rollout(learner)
    batch, _ = learner.make_train_batch("default_policy", rollout)
    where = {float(reward): row for row, reward in enumerate(batch[Columns.REWARDS])}
    batch["nested"] = {"a": (batch[Columns.REWARDS] * 2,)}
    for minibatch in row_minibatches(batch, 16, learner.generator):
        rows = [where[float(reward)] for reward in minibatch[Columns.REWARDS]]
        for name in (Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP):
            assert torch.equal(minibatch[name], batch[name][rows])
        assert torch.equal(minibatch["nested"]["a"][0], minibatch[Columns.REWARDS] * 2)


def test_shuffling_follows_the_run_seed() -> None:
    orders = []
    for run_seed in (1, 1, 2):
        learner = make(run_seed=run_seed)
        learner.update_from_episodes(numbered_rollout(learner)[0], env_steps=0)
        orders.append(learner.seen)
    assert orders[0] == orders[1] != orders[2]


def test_epochs_can_stop_early() -> None:
    learner = make(num_epochs=5, minibatch_size=None)
    learner.stop_after = 2
    learner.update_from_episodes(numbered_rollout(learner)[0], env_steps=0)
    assert learner.num_updates == 2


class NeverAsked(Reinforce):
    def may_stop(self) -> bool:
        return False


def test_an_update_that_may_stop_joins_the_metrics_of_each_epoch_once(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for cls, epochs_joined in ((Reinforce, [1, 1, 1]), (NeverAsked, [3])):
        learner, sizes = make(cls, num_epochs=3, minibatch_size=None), list[int]()

        def joined(module_id: str, steps: Any, real: Any = learner.joined_metrics, sizes: list[int] = sizes) -> Any:
            sizes.append(len(steps))
            return real(module_id, steps)

        monkeypatch.setattr(learner, "joined_metrics", joined)
        results.append(learner.update_from_episodes(numbered_rollout(learner)[0], env_steps=0)["default_policy"])
        assert sizes == epochs_joined
    assert results[0] == results[1]


def test_hooks_run_in_order_and_see_the_whole_batch() -> None:
    calls: list[Any] = []

    class Hooks(Reinforce):
        def preprocess_train_data(self, rollout: Rollout) -> Rollout:
            calls.append(("preprocess", torch.is_grad_enabled(), self.module.training))
            return rollout

        def make_train_batch(self, module_id: str, rollout: Rollout) -> Any:
            calls.append(("make", torch.is_grad_enabled()))
            return super().make_train_batch(module_id, rollout)

        def should_stop(self, module_id: str, metrics: Mapping[str, Tensor]) -> bool:
            calls.append(("stop?", metrics["total_loss"].shape))
            return False

        def after_update(self, module_id: str, batch: Batch) -> None:
            calls.append(("after", len(batch[Columns.OBS])))

    learner = make(Hooks)
    rollout, rows = numbered_rollout(learner)
    learner.update_from_episodes(rollout, env_steps=0)
    minibatches = -(-len(rows) // 16)
    epoch = ("stop?", (minibatches,))
    assert calls == [("preprocess", False, False), ("make", False), epoch, epoch, ("after", len(rows))]
    assert int(learner.module["default_policy"].trained_on) == len(rows)


def test_results_of_an_update() -> None:
    learner = make(lr=[[0, 0.2], [100, 0.1]])
    result = learner.update_from_episodes(numbered_rollout(learner)[0], env_steps=50)
    assert result.keys() == {"default_policy", "timers"}
    assert set(result["default_policy"]) == {
        "total_loss", "gradient_norm", "num_updates_skipped", "extra", "learning_rate"
    }  # fmt: skip
    assert result["default_policy"]["extra"] == 1.5
    assert result["default_policy"]["learning_rate"] == pytest.approx(0.15)
    assert learner.optimizers["default_policy"].param_groups[0]["lr"] == pytest.approx(0.15)
    assert set(result["timers"]) == {"value_pass", "update"}
    assert all(seconds > 0 for seconds in result["timers"].values())


def test_schedule_at_zero_leaves_the_weights() -> None:
    learner = make(lr=[[0, 0.2], [100, 0.0]])
    before = clone(dict(learner.module.named_parameters()))
    rollout, _ = numbered_rollout(learner)
    learner.update_from_episodes(rollout, env_steps=100)
    assert differences(before, dict(learner.module.named_parameters())) == []
    learner.update_from_episodes(rollout, env_steps=50)
    assert differences(before, dict(learner.module.named_parameters()))


@pytest.mark.parametrize("by", ["global_norm", "value", "norm"])
def test_gradients_are_clipped_before_the_step_and_their_norm_is_reported_before(by: str) -> None:
    class Descends(Regression):
        def configure_optimizer_for_module(self, module_id: str, parameters: Any) -> torch.optim.Optimizer:
            return torch.optim.SGD([parameters], lr=self.settings.lr)  # type: ignore[arg-type]

    learner, free = (make(Descends, lr=1.0, grad_clip=limit, grad_clip_by=by) for limit in (0.01, None))
    batch = {Columns.OBS: torch.rand(8, 4, generator=torch.Generator().manual_seed(0)), "target": torch.ones(8, 3)}
    before = learner.parameters["default_policy"].tensor.detach().clone()
    results = [
        each.summarize_updates([each.step_on_batch(batch, env_steps=0)])["default_policy"] for each in (learner, free)
    ]
    assert results[0]["gradient_norm"] == results[1]["gradient_norm"] > 0.1
    moved, moved_free = (before - each.parameters["default_policy"].tensor.detach() for each in (learner, free))
    assert float(moved_free.norm()) == pytest.approx(results[1]["gradient_norm"], rel=1e-5)
    if by == "value":
        assert float(moved.abs().max()) <= 0.01 + 1e-6
        assert torch.allclose(moved, moved_free.clamp(-0.01, 0.01), atol=1e-7)
    else:
        parts = [moved] if by == "global_norm" else moved.split([p.numel() for p in learner.module.parameters()])
        norms = [float(part.norm()) for part in parts]
        assert max(norms) == pytest.approx(0.01, rel=1e-3)
        assert by == "global_norm" or sorted(norms)[-2] > 0.001


def test_a_batch_learner_learns() -> None:
    learner = make(Regression, grad_clip=None)
    x = torch.rand(64, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1
    batch = {Columns.OBS: x, "target": torch.stack([x.sum(1), x[:, 0], -x[:, 1]], 1)}
    losses = [learner.step_on_batch(batch, env_steps=0)["default_policy"]["total_loss"] for _ in range(150)]
    assert losses[-1] < 0.05 * losses[0]
    assert learner.num_updates == 150


def test_updates_of_a_batch_learner_are_summed_up_at_the_end() -> None:
    learner = make(Regression, lr=[[0, 1e-3], [100, 0.0]])
    batches = [{Columns.OBS: torch.full((4, 4), x), "target": torch.ones(4, 3)} for x in (0.0, 1.0)]
    history = [learner.step_on_batch(batch, env_steps=steps) for batch, steps in zip(batches, (0, 50), strict=True)]
    losses = [float(metrics["default_policy"]["total_loss"]) for metrics in history]
    results = learner.summarize_updates(history)["default_policy"]
    assert results["total_loss"] == pytest.approx(sum(losses) / 2)
    assert results["learning_rate"] == pytest.approx(5e-4)
    assert learner.summarize_updates([]) == {}


def test_a_batch_is_prepared_before_and_followed_after_each_gradient_step() -> None:
    calls = []

    class Watching(Regression):
        def prepare_batch(self, module_id: str, batch: Batch) -> Batch:
            calls.append(("prepare", self.num_updates, torch.is_grad_enabled()))
            return batch | {"target": batch["target"] * 0}

        def after_gradient_step(self, module_id: str) -> None:
            calls.append(("after", self.num_updates, torch.is_grad_enabled()))

    one, two = make(Watching), make(Regression)
    batch = {Columns.OBS: torch.rand(4, 4, generator=torch.Generator().manual_seed(0)), "target": torch.ones(4, 3)}
    one.step_on_batch(batch, env_steps=0)
    two.step_on_batch(batch | {"target": torch.zeros(4, 3)}, env_steps=0)
    assert calls == [("prepare", 0, False), ("after", 1, False)]
    assert differences(one.module.get_state(), two.module.get_state()) == []


def test_an_episode_learner_learns_from_episodes_as_from_their_rollout() -> None:
    one, two = make(), make()
    rollout, _ = numbered_rollout(one)
    episodes = rollout.to_episodes()
    assert all(isinstance(episode, Episode) for episode in episodes)
    one.update_from_episodes(episodes, env_steps=0)
    two.update_from_episodes(Rollout.from_episodes(episodes), env_steps=0)
    assert differences(one.get_state(), two.get_state()) == []
    assert sorted(itertools.chain(*one.seen[: len(one.seen) // 2])) == sorted(
        rollout[Columns.REWARDS][rollout.valid].tolist()
    )


def test_missing_api_is_named_with_its_methods() -> None:
    class Plain(Small):
        pass

    Plain.__bases__ = tuple(base for base in Small.__bases__ if base is not ValueFunctionAPI)
    spec = MultiRLModuleSpec({"mine": RLModuleSpec(Plain, OBS, ACTIONS)})
    with pytest.raises(TypeError, match=r"Reinforce with module 'mine'.*ValueFunctionAPI \(compute_values\).*Plain"):
        Reinforce(Settings(), spec, run_seed=0)


def test_frozen_parts_stay() -> None:
    class Frozen(Small):
        def setup(self) -> None:
            super().setup()
            self.encoder.requires_grad_(False)

    learner = Reinforce(
        Settings(), MultiRLModuleSpec({"default_policy": RLModuleSpec(Frozen, OBS, ACTIONS)}), run_seed=0
    )
    before = clone(learner.module.get_state())
    learner.update_from_episodes(numbered_rollout(learner)[0], env_steps=0)
    changed = differences(before, learner.module.get_state())
    assert changed
    assert not [name for name in changed if "encoder" in name]


class Replacing(Small):
    """Counts its passes in a buffer of which each pass makes a new one."""

    def setup(self) -> None:
        super().setup()
        self.register_buffer("passes", torch.zeros(()))

    def _forward_train(self, batch: Any) -> Any:
        self.passes = self.passes + 1
        return super()._forward_train(batch)


def test_buffers_that_a_pass_replaces_are_refused_since_the_copies_that_act_keep_the_old_ones() -> None:
    text = r"expected the tensors that it was built with, got 'passes', which was replaced"
    spec = RLModuleSpec(Replacing, OBS, ACTIONS).as_multi()
    learner = Reinforce(Settings(), spec, run_seed=0)
    with pytest.raises(ValueError, match=text):
        learner.update_from_episodes(numbered_rollout(learner)[0], env_steps=0)
    fitting = Regression(Settings(), spec, run_seed=0)
    with pytest.raises(ValueError, match=text):
        fitting.update_from_batch({"obs": torch.zeros(2, 4), "target": torch.zeros(2, 3)}, env_steps=0)


@pytest.mark.parametrize("trains", [True, False])
def test_parts_that_are_frozen_or_unfrozen_during_a_run_are_refused(trains: bool) -> None:
    """Moments would go on moving what is frozen, and no optimizer knows what was frozen before."""

    class Begins(Small):
        def setup(self) -> None:
            super().setup()
            self.pi.requires_grad_(not trains)

    learner = Reinforce(Settings(), RLModuleSpec(Begins, OBS, ACTIONS).as_multi(), run_seed=0)
    learner.update_from_episodes(numbered_rollout(learner)[0], env_steps=0)
    learner.module["default_policy"].pi.requires_grad_(trains)
    with pytest.raises(ValueError, match=f"'pi.weight', which was {'unfrozen' if trains else 'frozen'}.*parts_to_step"):
        learner.update_from_episodes(numbered_rollout(learner)[0], env_steps=0)


@pytest.mark.parametrize("of", ["module", "optimizer"])
def test_a_loss_may_clear_gradients_as_torch_does(of: str) -> None:
    class Clearing(Reinforce):
        def compute_loss_for_module(self, module_id: str, batch: Any, fwd_out: Any) -> Any:
            (self.module if of == "module" else self.optimizers[module_id]).zero_grad()
            return super().compute_loss_for_module(module_id, batch, fwd_out)

    states = []
    for cls in (Reinforce, Clearing):
        learner = make(cls)
        learner.update_from_episodes(numbered_rollout(learner)[0], env_steps=0)
        states.append(learner.module.get_state())
    assert differences(*states) == []


def test_a_parameter_that_two_modules_would_train_is_refused() -> None:
    shared = torch.nn.Linear(8, 3)

    class Sharing(Small):
        def setup(self) -> None:
            super().setup()
            self.pi = shared

    one = RLModuleSpec(Sharing, OBS, ACTIONS, {"fcnet_hiddens": [8]})
    text = r"module '{}' of Reinforce: expected .* no other module has, got pi.weight, pi.bias, which module '{}' has"
    with pytest.raises(ValueError, match=text.format("a", "b")):
        Reinforce(Settings(), MultiRLModuleSpec({"a": one, "b": one}), run_seed=0)
    learner = Reinforce(Settings(), MultiRLModuleSpec({"a": one}), run_seed=0)
    for train in (True, False):  # one that only acts would freeze the net in training
        with pytest.raises(ValueError, match=text.format("b", "a")):
            learner.add_module("b", one, train=train)
    assert list(learner.module) == ["a"]
    assert shared.weight.requires_grad
    shared.requires_grad_(False)  # what nobody trains may be shared
    learner = Reinforce(Settings(), MultiRLModuleSpec({"a": one, "b": one}), run_seed=0)
    assert learner.module["a"].pi is learner.module["b"].pi


def test_set_state_writes_into_the_tensors_that_are_there() -> None:
    learner, other = make(), make(run_seed=1)
    learner.update_from_episodes(numbered_rollout(learner)[0], env_steps=0)
    flat, weight = other.parameters["default_policy"].tensor, other.module["default_policy"].pi.weight
    other.set_state(clone(learner.get_state()))
    assert other.module["default_policy"].pi.weight is weight
    assert torch.equal(flat, learner.parameters["default_policy"].tensor)
    other.optimizers["default_policy"].step()
    assert weight.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()


def test_optimizer_state_has_text_keys_and_comes_back() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight], lr=0.1)
    weight.grad = torch.ones(3)
    optimizer.step()
    state = clone(optimizer_state(optimizer))
    assert list(state["state"]) == ["0"]
    fresh = torch.optim.Adam([weight], lr=0.5)
    load_optimizer_state(fresh, state)
    assert differences(optimizer_state(fresh), state) == []
    assert fresh.param_groups[0]["lr"] == 0.1


def test_join_metrics() -> None:
    joined = join_metrics([{"a": torch.tensor(1.0), "b": torch.ones(2)}, {"a": torch.tensor(3.0), "b": torch.zeros(1)}])
    assert joined["a"].tolist() == [1, 3]
    assert joined["b"].tolist() == [1, 1, 0]


# --- learning rates of your own optimizer ----------------------------------------------------------------------------


class TwoRates(Reinforce):
    """Momentum, and a slower rate for the encoder."""

    rates = (0.3, 0.1)

    def configure_optimizer_for_module(self, module_id: str, parameters: Any) -> torch.optim.Optimizer:
        module = self.module[module_id]
        heads = [*module.pi.parameters(), *module.vf.parameters()]
        groups = [{"params": heads, "lr": self.rates[0]}, {"params": module.encoder.parameters(), "lr": self.rates[1]}]
        return torch.optim.SGD(groups, momentum=0.9)


def rates(learner: Learner) -> list[float]:
    return [group["lr"] for group in learner.optimizers["default_policy"].param_groups]


def update(learner: Any, env_steps: int) -> dict[str, float]:
    return learner.update_from_episodes(numbered_rollout(learner)[0], env_steps=env_steps)["default_policy"]


def test_a_constant_lr_leaves_the_rates_of_ones_own_optimizer() -> None:
    learner = make(TwoRates, lr=0.01)
    assert update(learner, 0)["learning_rate"] == 0.3
    assert rates(learner) == [0.3, 0.1]
    learner.optimizers["default_policy"].param_groups[0]["lr"] = 0.2  # as a scheduler of your own does
    assert update(learner, 60)["learning_rate"] == 0.2


@pytest.mark.parametrize(
    ("lr", "steps", "factor"),
    [
        ([[0, 0.01], [100, 0.0]], 50, 0.5),
        ([[0, 0.01], [100, 0.0]], 100, 0.0),
        ([[0, 0.01], [100, 0.02]], 200, 2.0),
        ([[0, 0.0], [100, 0.01], [200, 0.005]], 0, 0.0),  # warm-up: relative to the first value that is not 0
        ([[0, 0.0], [100, 0.01], [200, 0.005]], 100, 1.0),
        ([[0, 0.0], [100, 0.01], [200, 0.005]], 200, 0.5),
        ([[0, 0.0], [100, 0.0]], 50, 0.0),
    ],
)
def test_a_schedule_scales_the_rates_that_the_optimizer_was_made_with(lr: Any, steps: int, factor: float) -> None:
    learner = make(TwoRates, lr=lr)
    for env_steps in (10, steps):
        result = update(learner, env_steps)
    assert rates(learner) == pytest.approx([0.3 * factor, 0.1 * factor])
    assert result["learning_rate"] == rates(learner)[0]


@pytest.mark.parametrize("steps", [0, 7, 33, 100])
def test_the_default_optimizer_has_the_very_number_of_the_schedule(steps: int) -> None:
    learner = make(lr=[[0, 0.3], [99, 0.1]])
    update(learner, steps)
    assert rates(learner) == [float(np.interp(steps, [0, 99], [0.3, 0.1]))]


def test_initial_rates_outlive_a_checkpoint() -> None:
    schedule = [[0, 0.01], [100, 0.0]]
    used, other = make(TwoRates, lr=schedule), make(TwoRates, lr=schedule, run_seed=1)
    update(used, 50)
    other.set_state(clone(used.get_state()))
    for learner in (used, other):
        update(learner, 75)
        assert rates(learner) == pytest.approx([0.3 / 4, 0.1 / 4])
    assert differences(used.get_state(), other.get_state()) == []


@pytest.mark.parametrize("saved", [0.01, [[0, 0.01], [100, 0.0]], [[0, 0.04], [100, 0.0]]])
@pytest.mark.parametrize("given", [0.04, 0.01, [[0, 0.04], [100, 0.02]]])
def test_the_lr_that_is_given_for_a_checkpoint_takes_effect(saved: Any, given: Any) -> None:
    used, other = make(lr=saved), make(lr=given)
    update(used, 50)
    other.set_state(clone(used.get_state()))
    update(other, 50)
    assert rates(other) == [pytest.approx(given if isinstance(given, float) else 0.03)]


def test_a_rate_that_changed_under_a_constant_lr_outlives_a_checkpoint_unless_another_is_given() -> None:
    class Faster(TwoRates):
        rates = (0.5, 0.1)

    used, other, faster = make(TwoRates), make(TwoRates), make(Faster)
    used.optimizers["default_policy"].param_groups[0]["lr"] = 0.2
    used.optimizers["default_policy"].param_groups[1]["lr"] = 0.07
    for learner in (other, faster):
        learner.set_state(clone(used.get_state()))
    assert rates(other) == [0.2, 0.07]
    assert rates(faster) == [0.5, 0.07]


# --- what a custom loss may return ------------------------------------------------------------------------------------


class Reporting(PPOLearner):
    """PPO's loss, which also reports what ``reported`` has."""

    reported: ClassVar[Mapping[str, Any]] = {}

    def compute_loss_for_module(self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]) -> Any:
        loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
        return loss, {**metrics, **self.reported}


def learner_of(cls: type[PPOLearner], policies: int = 1, **settings: Any) -> PPOLearner:
    config = PPOConfig(minibatch_size=32, num_epochs=1, **settings)
    spec = config.get_rl_module_spec(OBS, ACTIONS, RLModuleSpec(model_config={"fcnet_hiddens": [8]}))
    names = ["default_policy"] if policies == 1 else [f"policy_{i}" for i in range(policies)]
    return cls(config, MultiRLModuleSpec(dict.fromkeys(names, spec)), run_seed=1)


@pytest.mark.parametrize("policies", [1, 2], ids=["one policy", "policies updated at once"])
def test_a_metric_may_be_a_number(policies: int) -> None:
    class Numbers(Reporting):
        reported: ClassVar[Mapping[str, Any]] = {"whole": 3, "half": np.float32(0.5), "yes": True}

    learner = learner_of(Numbers, policies)
    data = {name: random_rollout(module, 32, 2) for name, module in learner.module.items()}
    results = learner.update_from_episodes(data)
    for name in data:
        assert {key: results[name][key] for key in Numbers.reported} == {"whole": 3.0, "half": 0.5, "yes": 1.0}


def test_a_metric_may_be_a_tensor_of_integers_or_bools() -> None:
    class Counts(Reporting):
        reported: ClassVar[Mapping[str, Any]] = {"count": torch.tensor(3), "share": torch.tensor([True, False])}

    learner = learner_of(Counts)
    results = learner.update_from_episodes(random_rollout(learner.module["default_policy"], 32, 2))["default_policy"]
    assert (results["count"], results["share"]) == (3.0, 0.5)


OURS = ("total_loss", "gradient_norm", "approx_kl", "clip_fraction", "vf_explained_var", "learning_rate")


@pytest.mark.parametrize("policies", [1, 2], ids=["one policy", "policies updated at once"])
def test_a_metric_of_the_loss_replaces_one_of_the_same_name(policies: int) -> None:
    class Named(Reporting):
        reported: ClassVar[Mapping[str, Any]] = {name: float(i) for i, name in enumerate(OURS)}

    learner = learner_of(Named, policies)
    data = {name: random_rollout(module, 32, 2) for name, module in learner.module.items()}
    results = learner.update_from_episodes(data)
    for name in data:
        assert [results[name][key] for key in OURS] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
        assert results[name]["num_updates_skipped"] == 0


def test_metrics_of_policies_that_share_a_part_replace_ours() -> None:
    class Named(Reporting):
        reported: ClassVar[Mapping[str, Any]] = {"total_loss": 7.0}

    config = PPOConfig(minibatch_size=32, num_epochs=1)
    spec = config.get_rl_module_spec(OBS, ACTIONS, RLModuleSpec(model_config={"fcnet_hiddens": [8]}))
    specs = MultiRLModuleSpec({"a": spec, "b": spec}, shared_parts={"actor": "encoder.actor_encoder"})
    learner = Named(config, specs, run_seed=1)
    results = learner.update_from_episodes({name: random_rollout(x, 32, 2) for name, x in learner.module.items()})
    assert (results["a"]["total_loss"], results["b"]["total_loss"]) == (7.0, 7.0)


@pytest.mark.parametrize("settings", [{}, {"target_kl": 0.01}])
def test_a_loss_in_the_place_of_ppo_s_is_told_what_to_report(settings: dict[str, Any]) -> None:
    class Whole(PPOLearner):
        def compute_loss_for_module(self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]) -> Any:
            loss, _ = super().compute_loss_for_module(module_id, batch, fwd_out)
            return loss, {}

    learner = learner_of(Whole, **settings)
    with pytest.raises(ValueError, match=r"Whole\.compute_loss_for_module\(\): expected the metric 'log_ratio'"):
        learner.update_from_episodes(random_rollout(learner.module["default_policy"], 32, 2))


def test_a_stop_that_returns_nothing_goes_on() -> None:
    class Silent(PPOLearner):
        def should_stop(self, module_id: str, metrics: Mapping[str, Tensor]) -> Any:
            return None

    learner = learner_of(Silent)
    learner.update_from_episodes(random_rollout(learner.module["default_policy"], 32, 2))
    assert learner.num_gradient_steps == {"default_policy": 2}


def test_a_metric_that_is_no_number_is_named() -> None:
    class Text(Reporting):
        reported: ClassVar[Mapping[str, Any]] = {"phase": "late"}

    learner = learner_of(Text)
    with pytest.raises(TypeError, match=r"Text\.compute_loss_for_module\(\): .* as metric 'phase', got str"):
        learner.update_from_episodes(random_rollout(learner.module["default_policy"], 32, 2))


def test_a_loss_without_a_gradient_is_named() -> None:
    class Detached(PPOLearner):
        def compute_loss_for_module(self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]) -> Any:
            loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
            return loss.detach(), metrics

    learner = learner_of(Detached)
    with pytest.raises(ValueError, match=r"Detached\.compute_loss_for_module\(\): expected a loss that depends on"):
        learner.update_from_episodes(random_rollout(learner.module["default_policy"], 32, 2))


def test_an_optimizer_of_the_tensor_itself_gets_the_remedy() -> None:
    class Plain(PPOLearner):
        def configure_optimizer_for_module(self, module_id: str, parameters: Any) -> torch.optim.Optimizer:
            return torch.optim.RMSprop(parameters, lr=1e-3)

    with pytest.raises(TypeError, match=r"Write it in brackets, as in torch\.optim\.RMSprop\(\[parameters\]\)"):
        learner_of(Plain)


def test_an_optimizer_that_is_not_returned_is_missed_at_build() -> None:
    class Forgotten(PPOLearner):
        def configure_optimizer_for_module(self, module_id: str, parameters: Any) -> Any:
            torch.optim.RMSprop([parameters], lr=1e-3)

    message = r"Forgotten\.configure_optimizer_for_module\(\): expected a torch\.optim\.Optimizer, got None"
    with pytest.raises(TypeError, match=message):
        learner_of(Forgotten)


# --- schedules of an update -------------------------------------------------------------------------------------------


def test_each_update_of_an_annealed_run_moves_the_weights() -> None:
    """As in CleanRL, update ``k`` of ``n`` has the rate lr · (1 − (k − 1) / n)."""
    total, size = 4 * 64, 64
    learner = learner_of(PPOLearner, lr=[[0, 1e-3], [total, 0.0]], entropy_coeff=[[0, 0.1], [total, 0.0]])
    rates, coefficients = [], []
    for update in range(4):
        before = clone(learner.module.state_dict())
        rollout = random_rollout(learner.module["default_policy"], 32, 2)
        results = learner.update_from_episodes(rollout, env_steps=size * update)["default_policy"]
        rates.append(results["learning_rate"])
        coefficients.append(results["entropy_coeff"])
        assert differences(before, learner.module.state_dict()) != []
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])
    assert coefficients == pytest.approx([0.1, 0.075, 0.05, 0.025])


def test_policies_of_one_update_read_schedules_at_the_same_step() -> None:
    learner = learner_of(PPOLearner, 2, lr=[[0, 1e-3], [200, 0.0]])
    for expected in (1e-3, 0.5e-3):
        data = {name: random_rollout(module, 25, 2) for name, module in learner.module.items()}
        steps = sum(int(rollout.valid.sum()) for rollout in data.values())
        learner.env_steps = 0 if expected == 1e-3 else 100
        results = learner.update_from_episodes(data)
        assert learner.env_steps == steps + (0 if expected == 1e-3 else 100)
        assert [results[name]["learning_rate"] for name in data] == pytest.approx([expected, expected])


def test_a_learner_whose_constructor_calls_no_other_is_refused() -> None:
    class Forgets(PPOLearner):
        def __init__(self, settings: Any, spec: Any, *, run_seed: int) -> None:
            self.scale = 2.0

    class Fewer(PPOLearner):
        def __init__(self, settings: Any) -> None:
            super().__init__(settings, MultiRLModuleSpec(), run_seed=1)

    with pytest.raises(TypeError, match=r"Forgets\.__init__\(\): expected one that calls super\(\)\.__init__\(\)"):
        LearnerGroup.create(PPOConfig(), Forgets, SPEC, run_seed=1)
    with pytest.raises(
        TypeError, match=r"Fewer\.__init__\(\): expected the arguments \(self, settings, spec, \*, run_s"
    ):
        LearnerGroup.create(PPOConfig(), Fewer, SPEC, run_seed=1)
