"""The learner around the loss: what it trains on, when it stops, what it adapts, how the scale of returns enters."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from algorithms.ops.returns import generalized_advantages
from algorithms.ops.surrogate import k3_divergence
from algorithms.ppo import PPOCatalog, PPOConfig, PPOLearner, PPOModule
from rlmodule import Columns, RLModuleSpec, Rollout
from rlmodule.data.columns import Batch
from rlmodule.learning.flat_optimizer import Part
from rlmodule.learning.reports import Metrics
from rlmodule.testing.data import differences

ID = "default_policy"
BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
MakeRollout = Callable[..., Rollout]


class Recording(PPOLearner):
    """Keeps what the loss sees."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[Batch] = []
        self.log_ratios: list[float] = []  # the largest of each minibatch

    def compute_loss_for_module(self, module_id: str, batch: Batch, fwd_out: Mapping[str, Any]) -> tuple[Any, Metrics]:
        loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
        self.seen.append(batch)
        self.log_ratios.append(metrics["log_ratio"].abs().max().item())
        return loss, metrics


def build(
    action_space: spaces.Space | None = None,
    model_config: dict[str, Any] | None = None,
    learner_class: type[PPOLearner] = Recording,
    **training: Any,
) -> Any:
    config = PPOConfig().training(**{"minibatch_size": 16, "num_epochs": 2, "lr": 1e-3, **training})
    spec = RLModuleSpec(
        PPOModule,
        BOX,
        action_space or spaces.Discrete(2),
        {"fcnet_hiddens": [8, 8], **(model_config or {})},
        PPOCatalog,
    )
    torch.manual_seed(0)
    return learner_class(config, spec.as_multi(), run_seed=0)


def weights(learner: PPOLearner) -> Tensor:
    return learner.parameters[ID].tensor.detach().clone()


# --- the train batch -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("invalid", [False, True])
def test_advantages_are_standardised_over_valid_rows_only(make_rollout: MakeRollout, invalid: bool) -> None:
    learner = build()
    rollout = make_rollout(learner.module[ID], invalid=invalid)
    valid = rollout.valid
    assert bool(valid.all()) is not invalid
    with torch.no_grad():
        module = learner.module[ID]
        module.update_value_statistics(torch.tensor([-1.0, 1.0]))  # before the first targets, values count as 0
        values = module.compute_values(rollout.columns)
        following = torch.cat([values[1:], module.compute_values({Columns.OBS: rollout.last_obs})[None]])
        finals = module.compute_values({Columns.OBS: rollout.final_obs})
        following[rollout.final_index[:, 0], rollout.final_index[:, 1]] = finals
        batch, reported = learner.make_train_batch(ID, rollout)
    raw = generalized_advantages(
        rollout[Columns.REWARDS],
        values,
        following,
        terminated_t=rollout[Columns.TERMINATEDS],
        truncated_t=rollout[Columns.TRUNCATEDS],
        valid_t=valid,
        gamma=0.99,
        lambda_=0.95,
    )
    rows = raw[valid]
    torch.testing.assert_close(batch[Columns.ADVANTAGES], (rows - rows.mean()) / rows.std(unbiased=False))
    torch.testing.assert_close(batch[Columns.VALUE_TARGETS], rows + values[valid])
    targets = (rows + values[valid]).numpy()
    assert reported["vf_explained_var"] == pytest.approx(1 - rows.numpy().var() / targets.var(), abs=1e-4)
    for name in (Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP):
        assert torch.equal(batch[name], rollout[name][valid])


def test_statistics_are_those_of_the_valid_rows(make_rollout: MakeRollout) -> None:
    learner = build(model_config={"normalize_observations": True})
    module = learner.module[ID]
    rollout = make_rollout(module, invalid=True)
    learner.update_from_episodes(rollout, env_steps=64)
    targets = torch.cat([batch[Columns.VALUE_TARGETS] for batch in learner.seen])
    torch.testing.assert_close(module.value_normalizer.mean.float(), targets.mean(), rtol=1e-4, atol=1e-4)
    assert module.value_normalizer.std < 100  # the reset rows' rewards are 1e6
    rows = rollout[Columns.OBS][rollout.valid]
    moments = module.observation_normalizer.moments
    torch.testing.assert_close(moments.mean.float(), rows.mean(0), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(moments.std.float(), rows.std(0, unbiased=False), rtol=1e-4, atol=1e-4)


def test_the_loss_is_given_what_the_settings_need(make_rollout: MakeRollout) -> None:
    always = {Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ADVANTAGES, Columns.VALUE_TARGETS}
    for training, more in (
        ({}, set()),
        ({"vf_clip_param": 0.2}, {Columns.VALUES}),
        ({"use_kl_loss": True}, {Columns.ACTION_DIST_INPUTS}),
    ):
        learner = build(**training)
        learner.update_from_episodes(make_rollout(learner.module[ID]), env_steps=64)
        assert set(learner.seen[0]) == always | more


def test_the_objective_of_the_policy_can_be_overridden_alone(make_rollout: MakeRollout) -> None:
    class DualClip(PPOLearner):
        def compute_policy_objective(self, ratio: Tensor, batch: Batch) -> Tensor:
            clipped, advantages = super().compute_policy_objective(ratio, batch), batch[Columns.ADVANTAGES]
            return torch.where(advantages < 0, clipped.maximum(3.0 * advantages), clipped)

    reported = []
    for learner_class in (PPOLearner, DualClip):
        learner = build(learner_class=learner_class)
        with torch.no_grad():
            batch, _ = learner.make_train_batch(ID, make_rollout(learner.module[ID]))
        batch[Columns.ACTION_LOGP] = batch[Columns.ACTION_LOGP] - 2.0  # so that ratios are about e²
        reported.append(learner.compute_loss_for_module(ID, *learner.forward_rows(ID, batch))[1])
    plain, dual = reported
    advantages, ratio = batch[Columns.ADVANTAGES], plain["log_ratio"].exp()
    assert ((ratio > 3) & (advantages < 0)).any()
    expected = torch.where(advantages < 0, -3.0, -1.2) * advantages
    assert (ratio > 3).all()
    torch.testing.assert_close(dual["policy_loss"], expected)
    assert plain["policy_loss"].mean() > dual["policy_loss"].mean()
    assert torch.equal(plain["vf_loss"], dual["vf_loss"])
    assert torch.equal(plain["entropy"], dual["entropy"])


def test_values_to_clip_around_are_those_before_the_update(make_rollout: MakeRollout) -> None:
    """In the units of the statistics that the loss uses: else clipping would bite before anything has moved."""
    learner = build(vf_clip_param=0.2)
    module = learner.module[ID]
    for iteration in range(2):
        before = copy.deepcopy(module)
        learner.seen.clear()
        learner.update_from_episodes(make_rollout(module, seed=iteration, scale=50.0), env_steps=64)
        before.value_normalizer.load_state_dict(module.value_normalizer.state_dict())
        first = learner.seen[0]
        torch.testing.assert_close(first[Columns.VALUES], before.compute_values(first))


def test_every_epoch_sees_each_row_once_in_another_order(make_rollout: MakeRollout) -> None:
    learner = build(minibatch_size=20)  # 64 rows: 20, 20, 20, 4
    learner.update_from_episodes(make_rollout(learner.module[ID]), env_steps=64)
    assert [len(batch[Columns.ACTION_LOGP]) for batch in learner.seen] == [20, 20, 20, 4] * 2
    epochs = [torch.cat([batch[Columns.OBS] for batch in learner.seen[i : i + 4]]) for i in (0, 4)]
    assert not torch.equal(*epochs)
    torch.testing.assert_close(*(epoch[epoch[:, 0].argsort()] for epoch in epochs))


def test_preprocess_train_data_changes_what_is_trained_on(make_rollout: MakeRollout) -> None:
    class Constant(Recording):
        def preprocess_train_data(self, rollout: Rollout) -> Rollout:
            rollout.columns[Columns.REWARDS] = torch.full(rollout.shape, 7.0)
            return rollout

    for lambda_ in (0.0, 1.0):
        learner = build(learner_class=Constant, gamma=0.0, lambda_=lambda_)
        learner.update_from_episodes(make_rollout(learner.module[ID]), env_steps=64)
        for batch in learner.seen:
            torch.testing.assert_close(batch[Columns.VALUE_TARGETS], torch.full((16,), 7.0))


def test_episodes_are_packed_and_trained_on(make_rollout: MakeRollout) -> None:
    learner = build()
    rollout = make_rollout(learner.module[ID])
    learner.update_from_episodes(rollout.to_episodes(), env_steps=64)
    rows = torch.cat([batch[Columns.OBS] for batch in learner.seen[:4]])
    expected = rollout[Columns.OBS].flatten(0, 1)
    torch.testing.assert_close(rows[rows[:, 0].argsort()], expected[expected[:, 0].argsort()])


# --- on policy -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_the_ratio_is_one_at_the_first_minibatch_of_every_iteration(env_id: str, share: bool) -> None:
    model = {"vf_share_layers": share, "normalize_observations": True, "normalize_values": True}
    config = (
        PPOConfig()
        .environment(env_id)
        .env_runners(num_envs_per_env_runner=2)
        .learners(learner_class=Recording)
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=2, lr=3e-3)
        .rl_module(model_config=model)
        .debugging(seed=1)
    )
    with config.build() as algorithm:
        learner = algorithm.learner_group.learner
        assert isinstance(learner, Recording)
        for _ in range(4):
            algorithm.train()
        statistics = algorithm.get_module().observation_normalizer.moments
        assert statistics.mean.abs().max() > 1e-5
    first, later = learner.log_ratios[::4], learner.log_ratios[1::4]
    assert len(first) == 4
    assert max(first) < 1e-5
    assert min(later) > 1e-3


# --- stopping, adapting, schedules -----------------------------------------------------------------------------------


def test_target_kl_leaves_out_the_remaining_epochs(make_rollout: MakeRollout) -> None:
    free = build(num_epochs=5, lr=1e-2)
    report = free.update_from_episodes(make_rollout(free.module[ID]), env_steps=64)[ID]
    assert free.num_updates == 20
    assert report["approx_kl"] > 1e-3
    held = build(num_epochs=5, lr=1e-2, target_kl=1e-4)
    held.update_from_episodes(make_rollout(held.module[ID]), env_steps=64)
    assert held.num_updates == 4  # the first epoch is too much already
    loose = build(num_epochs=5, lr=1e-2, target_kl=100.0)
    loose.update_from_episodes(make_rollout(loose.module[ID]), env_steps=64)
    assert torch.equal(weights(loose), weights(free))


def test_target_kl_is_compared_with_the_mean_of_the_last_epoch() -> None:
    learner = build(target_kl=0.05)
    log_ratio = torch.tensor([0.0, 0.4])
    mean = k3_divergence(log_ratio).mean().item()
    for target, stops in ((mean * 1.01, False), (mean * 0.99, True)):
        learner = build(target_kl=target)
        assert learner.should_stop(ID, {"log_ratio": log_ratio}) is stops
    assert build().should_stop(ID, {"log_ratio": torch.full((2,), 9.0)}) is False


@pytest.mark.parametrize(
    ("lr", "kl_target", "factor"),
    [(1e-2, 1e-6, 2.0), (1e-2, 100.0, 0.5), (0.0, 1e-6, 0.5)],
    ids=["too far", "not far enough", "not at all"],
)
def test_kl_coefficient_is_adapted(make_rollout: MakeRollout, lr: float, kl_target: float, factor: float) -> None:
    learner = build(use_kl_loss=True, kl_coeff=0.3, kl_target=kl_target, lr=lr)
    for iteration in (1, 2):
        report = learner.update_from_episodes(make_rollout(learner.module[ID], seed=iteration), env_steps=64)[ID]
        assert report["kl_coeff"] == 0.3 * factor ** (iteration - 1)  # as it was set, not as float32 has it
        assert learner.kl_coeff[ID] == pytest.approx(0.3 * factor**iteration)
        assert learner.get_state()["kl_coeff"][ID] == 0.3 * factor**iteration


def test_kl_coefficient_stays_near_the_target_and_is_saved(make_rollout: MakeRollout) -> None:
    learner = build(use_kl_loss=True, kl_coeff=0.3, lr=1e-2)
    rollout = make_rollout(learner.module[ID])
    learner.update_from_episodes(rollout, env_steps=64)
    batch = {name: rollout[name].flatten(0, 1) for name in (Columns.OBS, Columns.ACTION_DIST_INPUTS)}
    module = learner.module[ID]
    with torch.no_grad():
        old = module.action_dist_cls.from_logits(batch[Columns.ACTION_DIST_INPUTS])
        new = module.action_dist_cls.from_logits(module.forward_train(batch)[Columns.ACTION_DIST_INPUTS])
        kl = old.kl(new).mean().item()
    for ratio, factor in ((1.4, 1.0), (1.6, 2.0), (1 / 1.4, 1.0), (1 / 1.6, 0.5)):
        near = build(use_kl_loss=True, kl_coeff=0.3, kl_target=kl / ratio)
        near.module[ID].set_state(module.get_state())
        near.after_update(ID, batch)
        assert near.kl_coeff[ID] == pytest.approx(0.3 * factor)
    state = near.get_state()
    again = build(use_kl_loss=True)
    again.set_state(state)
    assert again.kl_coeff[ID] == near.kl_coeff[ID]


@pytest.mark.parametrize("share", [0.4, 0.9, 1.9, 2.1])
def test_the_learning_rate_is_adapted_to_the_kl(make_rollout: MakeRollout, share: float) -> None:
    free = build(lr=1e-3, num_epochs=2)
    rollout = make_rollout(free.module[ID])
    free.update_from_episodes(rollout, env_steps=64)
    batch = {name: rollout[name].flatten(0, 1) for name in (Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP)}
    with torch.no_grad():
        logits = free.module[ID].forward_train(batch)[Columns.ACTION_DIST_INPUTS]
        logp = free.module[ID].action_dist_cls.from_logits(logits).logp(batch[Columns.ACTIONS])
    kl = float(k3_divergence(logp - batch[Columns.ACTION_LOGP]).mean())
    learner = build(lr=1e-3, num_epochs=2, adaptive_lr_kl=kl / share)
    report = learner.update_from_episodes(rollout, env_steps=64)[ID]
    factor = {0.4: 1.5, 0.9: 1.0, 1.9: 1.0, 2.1: 1 / 1.5}[share]
    assert report["learning_rate"] == 1e-3
    assert torch.equal(weights(learner), weights(free))  # only later updates have the new one
    assert learner.optimizers[ID].param_groups[0]["lr"] == pytest.approx(1e-3 * factor)
    again = build(lr=1e-3, adaptive_lr_kl=kl / share)
    again.set_state(learner.get_state())
    assert again.optimizers[ID].param_groups[0]["lr"] == pytest.approx(1e-3 * factor)


@pytest.mark.parametrize(("lr", "target", "bound"), [(1.2e-5, 1e-12, 1e-5), (8e-3, 100.0, 1e-2)])
def test_an_adapted_learning_rate_stays_in_its_bounds(
    make_rollout: MakeRollout, lr: float, target: float, bound: float
) -> None:
    learner = build(lr=lr, num_epochs=1, adaptive_lr_kl=target)
    for iteration in range(2):
        learner.update_from_episodes(make_rollout(learner.module[ID], seed=iteration), env_steps=64)
    assert learner.optimizers[ID].param_groups[0]["lr"] == bound


class FrozenValues(Recording):
    def parts_of(self, module_id: str) -> dict[str, Part]:
        policy = Part(("encoder.actor_encoder", "pi_head"), self.settings.lr, None)
        return {"policy": policy, "values": Part(("encoder.critic_encoder", "vf_head"), 0.0, None)}


def test_an_adapted_learning_rate_leaves_frozen_parts_frozen(make_rollout: MakeRollout) -> None:
    learner = build(learner_class=FrozenValues, lr=1e-3, num_epochs=1, adaptive_lr_kl=100.0)
    head = copy.deepcopy(learner.module[ID].vf_head.state_dict())
    for iteration in range(2):
        report = learner.update_from_episodes(make_rollout(learner.module[ID], seed=iteration), env_steps=64)[ID]
    assert report["learning_rate_policy"] == pytest.approx(1.5e-3)
    assert report["learning_rate_values"] == 0
    assert differences(head, learner.module[ID].vf_head.state_dict()) == []


def test_each_module_has_coefficients_of_its_own(make_rollout: MakeRollout) -> None:
    spec = RLModuleSpec(PPOModule, BOX, spaces.Discrete(2), {"fcnet_hiddens": [8]}, PPOCatalog)
    learners = [build(use_kl_loss=True, kl_coeff=0.3, kl_target=1e-6, lr=1e-2) for _ in range(2)]
    for learner in learners:
        learner.add_module("other", spec)
    learner, again = learners
    for module_id, coefficients in (("other", (0.3, 0.6)), ("other", (0.3, 1.2)), (ID, (0.6, 1.2))):
        rollout = make_rollout(learner.module[module_id])
        learner.update_from_episodes(rollout, env_steps=64, module_id=module_id)
        assert learner.get_state()["kl_coeff"] == {ID: coefficients[0], "other": coefficients[1]}
    again.set_state(learner.get_state())
    assert [again.kl_coeff.number(module_id) for module_id in (ID, "other")] == [0.6, 1.2]
    learner.remove_module("other")
    assert learner.get_state()["kl_coeff"] == {ID: 0.6}


def test_the_entropy_coefficient_of_each_update_is_that_of_its_env_steps(make_rollout: MakeRollout) -> None:
    learner = build(entropy_coeff=[[0, 0.4], [100, 0.0]])
    learner.add_module("other", RLModuleSpec(PPOModule, BOX, spaces.Discrete(2), None, PPOCatalog))
    for module_id, env_steps, coefficient in (("other", 50, 0.2), (ID, 0, 0.4), ("other", 75, 0.1)):
        rollout = make_rollout(learner.module[module_id])
        report = learner.update_from_episodes(rollout, env_steps=env_steps, module_id=module_id)[module_id]
        assert report["entropy_coeff"] == pytest.approx(coefficient, rel=1e-15)


def test_kl_coefficient_rests_without_the_penalty(make_rollout: MakeRollout) -> None:
    learner = build(kl_coeff=0.3, lr=1e-2, kl_target=1e-6)
    learner.update_from_episodes(make_rollout(learner.module[ID]), env_steps=64)
    assert learner.kl_coeff[ID] == 0.3


def test_schedules_go_by_env_steps(make_rollout: MakeRollout) -> None:
    learner = build(lr=[[0, 1e-3], [100, 0.0]], entropy_coeff=[[0, 0.4], [100, 0.2]])
    rollout = make_rollout(learner.module[ID])
    for env_steps, lr, entropy_coeff in ((0, 1e-3, 0.4), (50, 5e-4, 0.3), (100, 0.0, 0.2), (500, 0.0, 0.2)):
        before = weights(learner)
        report = learner.update_from_episodes(rollout, env_steps=env_steps)[ID]
        assert report["learning_rate"] == pytest.approx(lr)
        assert learner.optimizers[ID].param_groups[0]["lr"] == pytest.approx(lr)
        assert float(learner.entropy_coeff[ID]) == pytest.approx(entropy_coeff)
        assert report["entropy_coeff"] == pytest.approx(entropy_coeff, rel=1e-15)  # with all digits
        assert torch.equal(before, weights(learner)) is (lr == 0)


def test_entropy_coefficient_of_now_enters_the_loss(make_rollout: MakeRollout) -> None:
    losses = []
    for coefficient in (0.0, 0.5):
        learner = build(entropy_coeff=[[0, 0.0], [100, coefficient]], lr=0.0, num_epochs=1, minibatch_size=None)
        report = learner.update_from_episodes(make_rollout(learner.module[ID]), env_steps=100)[ID]
        losses.append(report["total_loss"] + coefficient * report["entropy"])
        assert report["entropy"] > 0.5
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


# --- the gradient step -----------------------------------------------------------------------------------------------


def gradient(make_rollout: MakeRollout, **training: Any) -> tuple[PPOLearner, list[Tensor], float]:
    """Learner, its gradients, and the norm it reports, after one step."""
    learner = build(num_epochs=1, minibatch_size=None, **training)
    report = learner.update_from_episodes(make_rollout(learner.module[ID]), env_steps=64)[ID]
    return (
        learner,
        [p.grad.clone() for p in learner.module[ID].parameters() if p.grad is not None],
        report["gradient_norm"],
    )


def test_gradients_are_clipped_as_asked(make_rollout: MakeRollout) -> None:
    learner, free, norm = gradient(make_rollout, grad_clip=None)
    together = torch.cat([g.flatten() for g in free])
    assert norm == pytest.approx(together.norm().item(), rel=1e-5)
    limit = norm / 10
    _, clipped, reported = gradient(make_rollout, grad_clip=limit)
    assert reported == pytest.approx(norm, rel=1e-5)  # before clipping
    for after, before in zip(clipped, free, strict=True):
        torch.testing.assert_close(after, before / 10, rtol=1e-3, atol=1e-7)
    _, clipped, _ = gradient(make_rollout, grad_clip=limit, grad_clip_by="norm")
    for after, before in zip(clipped, free, strict=True):
        torch.testing.assert_close(after, before * min(1.0, limit / before.norm().item()), rtol=1e-3, atol=1e-7)
    assert any(before.norm() < limit for before in free)
    bound = together.abs().median().item()
    _, clipped, _ = gradient(make_rollout, grad_clip=bound, grad_clip_by="value")
    for after, before in zip(clipped, free, strict=True):
        torch.testing.assert_close(after, before.clamp(-bound, bound))
    assert len(list(learner.module[ID].parameters())) == len(free)


def test_a_loose_bound_changes_nothing(make_rollout: MakeRollout) -> None:
    free, _, _ = gradient(make_rollout, grad_clip=None)
    for kind in ("global_norm", "norm", "value"):
        loose, _, _ = gradient(make_rollout, grad_clip=1e6, grad_clip_by=kind)
        assert torch.equal(weights(loose), weights(free))


def test_another_optimizer(make_rollout: MakeRollout) -> None:
    class Plain(Recording):
        def configure_optimizer_for_module(self, module_id: str, parameters: nn.Parameter) -> torch.optim.Optimizer:
            return torch.optim.SGD([parameters], lr=0.1)

    learner = build(learner_class=Plain, num_epochs=1, minibatch_size=None, lr=0.5, grad_clip=None)
    before = weights(learner)
    learner.update_from_episodes(make_rollout(learner.module[ID]), env_steps=64)
    torch.testing.assert_close(weights(learner), before - 0.1 * learner.parameters[ID].grad)


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("free", [False, True])
def test_every_part_learns(make_rollout: MakeRollout, share: bool, free: bool) -> None:
    model = {"vf_share_layers": share, "free_log_std": free}
    learner = build(spaces.Box(-1, 1, (2,), np.float32), model, lr=1e-3)
    module = learner.module[ID]
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    learner.update_from_episodes(make_rollout(module), env_steps=64)
    for name, p in module.named_parameters():
        assert not torch.equal(p, before[name]), name
    assert ("pi_head.log_std" in before) is free
    assert any(name.startswith("encoder.critic_encoder") for name in before) is not share


def test_two_learners_of_one_seed_are_equal(make_rollout: MakeRollout) -> None:
    results = []
    for _ in range(2):
        learner = build()
        for seed in range(2):
            learner.update_from_episodes(make_rollout(learner.module[ID], seed=seed), env_steps=64)
        results.append(weights(learner))
    assert torch.equal(*results)


def test_report(make_rollout: MakeRollout) -> None:
    learner = build()
    results = learner.update_from_episodes(make_rollout(learner.module[ID]), env_steps=64)
    assert set(results) == {ID, "timers"}
    assert set(results[ID]) == {
        "approx_kl",
        "clip_fraction",
        "entropy",
        "gradient_norm",
        "num_updates_skipped",
        "learning_rate",
        "policy_loss",
        "total_loss",
        "vf_explained_var",
        "vf_loss",
    }
    assert all(type(value) is float and np.isfinite(value) for value in results[ID].values())


# --- the scale of returns --------------------------------------------------------------------------------------------


def value_share(make_rollout: MakeRollout, scale: float, normalize_values: bool) -> tuple[float, Tensor]:
    """Norm of the value loss's gradient in a shared trunk over that of the policy loss, after three iterations; and
    that gradient of the policy."""
    model = {"vf_share_layers": True, "normalize_values": normalize_values}
    learner = build(model_config=model, num_epochs=1, lr=1e-4, entropy_coeff=0.0)
    module = learner.module[ID]
    assert isinstance(module, PPOModule)
    for iteration in range(3):
        learner.update_from_episodes(make_rollout(module, seed=iteration, scale=10 * scale), env_steps=64)
    with torch.no_grad():
        batch, _ = learner.make_train_batch(ID, make_rollout(module, seed=9, scale=10 * scale))
    _, metrics = learner.compute_loss_for_module(ID, batch, module.forward_train(batch))
    trunk = list(module.encoder.actor_encoder.parameters())

    def gradient_of(loss: Tensor) -> Tensor:
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, trunk, retain_graph=True)])

    of_policy, of_values = (gradient_of(metrics[name].mean()) for name in ("policy_loss", "vf_loss"))
    return (of_values.norm() / of_policy.norm()).item(), of_policy


def test_the_scale_of_rewards_does_not_reach_a_shared_trunk(make_rollout: MakeRollout) -> None:
    (one, policy), (hundred, same_policy) = (value_share(make_rollout, scale, True) for scale in (1.0, 100.0))
    assert 0.5 < hundred / one < 2.0
    cosine = torch.nn.functional.cosine_similarity(policy, same_policy, dim=0)
    assert cosine > 0.95
    assert 0.8 < (policy.norm() / same_policy.norm()).item() < 1.25


def test_without_normalisation_it_drowns_the_policy(make_rollout: MakeRollout) -> None:
    (one, _), (hundred, _) = (value_share(make_rollout, scale, False) for scale in (1.0, 100.0))
    assert hundred / one > 20


@pytest.mark.parametrize(("normalize", "equal"), [(True, True), (False, False)])
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_training_is_blind_to_the_scale_of_rewards(
    make_rollout: MakeRollout, scale: float, normalize: bool, equal: bool
) -> None:
    ends, values = [], []
    for of_rewards in (1.0, scale):
        learner = build(model_config={"vf_share_layers": True, "normalize_values": normalize})
        module = learner.module[ID]
        start = weights(learner)
        for iteration in range(3):
            learner.update_from_episodes(make_rollout(module, seed=iteration, scale=of_rewards), env_steps=64)
        ends.append(weights(learner) - start)
        with torch.no_grad():
            values.append(module.compute_values(make_rollout(module).columns) / of_rewards)
    assert torch.allclose(*ends, rtol=1e-2, atol=1e-4) is equal
    assert torch.allclose(*values, rtol=1e-2, atol=1e-2) is equal
