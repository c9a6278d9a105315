"""What modules bring along to any learner: recurrent states, batch norm, losses of their own."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from catalog.base import Tree
from rlmodule import (
    Columns,
    ExtraLoss,
    ExtraLossAPI,
    Learner,
    QNetAPI,
    RLModule,
    RLModuleSpec,
    Rollout,
)
from rlmodule.data.columns import Batch
from rlmodule.data.sequences import cut_into_sequences
from rlmodule.learning.reports import Metrics
from rlmodule.modules.policy import Policy
from rlmodule.testing.data import differences, random_rollout
from rlmodule.testing.learner_contract import LearnerContract
from tests.rlmodule.toys import NoNets, Recurrent, Regression, Reinforce, Settings, Small

OBS, ACTIONS = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
ID, LENGTH = "default_policy", 4


def spec(module_class: type[RLModule], **model: Any) -> Any:
    catalog = NoNets if issubclass(module_class, Recurrent) else None
    return RLModuleSpec(module_class, OBS, ACTIONS, model or None, catalog).as_multi()


def make(module_class: type[RLModule], cls: type[Learner] = Reinforce, model: Any = None, **settings: Any) -> Any:
    model = model or ({"max_seq_len": LENGTH} if issubclass(module_class, Recurrent) else {"fcnet_hiddens": [8]})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(Settings(**settings), spec(module_class, **model), run_seed=0)


def rollout_for(learner: Learner, steps: int = 18, slots: int = 3, seed: int = 0) -> Rollout:
    """A random rollout whose rewards number its rows."""
    rollout = random_rollout(learner.module[ID], steps, slots, seed)
    rollout.columns[Columns.REWARDS] = torch.arange(1.0, steps * slots + 1).view(steps, slots)
    return rollout


# --- recurrent modules -----------------------------------------------------------------------------------------------


class TestRecurrent(LearnerContract):
    def make(self) -> Learner:
        return Reinforce(Settings(), spec(Recurrent, max_seq_len=LENGTH), run_seed=torch.initial_seed())


class Watching(Reinforce):
    """Keeps the batches and forward columns its loss sees."""

    def compute_loss_for_module(self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]) -> Any:
        self.batches = [*getattr(self, "batches", []), (batch, fwd_out)]
        return super().compute_loss_for_module(module_id, batch, fwd_out)


@pytest.mark.parametrize("size", [16, 7, 1, None])
def test_losses_see_each_valid_row_once_per_epoch_and_nothing_of_sequences(size: int | None) -> None:
    learner = make(Recurrent, Watching, minibatch_size=size)
    rollout = rollout_for(learner)
    learner.update_from_episodes(rollout, env_steps=0)
    valid = rollout[Columns.REWARDS][rollout.valid].tolist()
    assert 0 < len(valid) < 54
    seen = [float(x) for minibatch in learner.seen for x in minibatch]
    assert sorted(seen) == sorted(2 * valid)
    sequences = cut_into_sequences(rollout, [], LENGTH)[Columns.STARTS].shape[1]
    per = sequences if size is None else max(1, size // LENGTH)
    assert learner.num_updates == 2 * -(-sequences // per)
    for batch, fwd_out in learner.batches:
        assert set(batch) == {Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.ACTION_LOGP}
        assert set(fwd_out) == {Columns.ACTION_DIST_INPUTS, Columns.EMBEDDINGS}
        assert {len(x) for x in (*batch.values(), *fwd_out.values())} == {len(batch[Columns.REWARDS])}


def test_forward_rows_are_those_that_acting_recorded() -> None:
    """At the first minibatch the weights are still those that acted."""
    learner = make(Recurrent, Watching)
    learner.update_from_episodes(rollout_for(learner), env_steps=0)
    batch, fwd_out = learner.batches[0]
    dist = learner.module[ID].action_dist_cls.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
    torch.testing.assert_close(dist.logp(batch[Columns.ACTIONS]), batch[Columns.ACTION_LOGP], rtol=1e-5, atol=1e-5)
    batch, fwd_out = learner.batches[-1]
    dist = learner.module[ID].action_dist_cls.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
    assert not torch.allclose(dist.logp(batch[Columns.ACTIONS]), batch[Columns.ACTION_LOGP], atol=1e-3)


def test_statistics_are_taken_of_valid_rows() -> None:
    seen: list[Tensor] = []

    class Observes(Recurrent):
        def update_observation_statistics(self, obs: Tree) -> None:
            seen.append(obs)

    learner = make(Observes)
    rollout = rollout_for(learner)
    learner.update_from_episodes(rollout, env_steps=0)
    rows, expected = (x[x[:, 0].argsort()] for x in (seen[0], rollout[Columns.OBS][rollout.valid]))
    assert torch.equal(rows, expected)


def test_episodes_of_a_recurrent_module_are_learned_from_as_from_their_rollout() -> None:
    one, two = make(Recurrent), make(Recurrent)
    episodes = rollout_for(one).to_episodes()
    one.update_from_episodes(episodes, env_steps=0)
    two.update_from_episodes(Rollout.from_episodes(episodes), env_steps=0)
    assert differences(one.get_state(), two.get_state()) == []
    assert sorted(x for m in one.seen for x in m) == sorted(2 * [r for e in episodes for r in e.get_rewards().tolist()])


def test_rows_for_a_recurrent_module_are_refused() -> None:
    class Forgets(Reinforce):
        def make_train_batch(self, module_id: str, rollout: Rollout) -> tuple[Batch, dict[str, float]]:
            return rollout.valid_rows([Columns.OBS, Columns.ACTIONS]), {}

    learner = make(Recurrent, Forgets)
    with pytest.raises(ValueError, match=r"Forgets with the recurrent module 'default_policy'.*state_in.*pack\(\)"):
        learner.update_from_episodes(rollout_for(learner), env_steps=0)


def test_a_recurrent_module_with_values_must_return_embeddings() -> None:
    class Without(Recurrent):
        def _forward_train(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
            out = self._forward(batch)
            del out[Columns.EMBEDDINGS]
            return out

    with pytest.raises(ValueError, match=r"Without\.forward_train\(\): expected the column 'embeddings'"):
        make(Without)


def test_a_batch_learner_takes_sequences() -> None:
    learner = make(Recurrent, Regression, grad_clip=None)
    batch = cut_into_sequences(rollout_for(learner), [Columns.OBS], LENGTH)
    assert Columns.VALID_ROWS in batch
    batch["target"] = torch.ones(*batch[Columns.STARTS].shape, 3)
    losses = [learner.step_on_batch(batch, env_steps=0)[ID]["total_loss"] for _ in range(80)]
    assert losses[-1] < 0.2 * losses[0]


# --- batch norm ------------------------------------------------------------------------------------------------------


class Normed(Small):
    """Batch norm before everything, and a note of the mode of every forward pass."""

    def setup(self) -> None:
        super().setup()
        self.norm = nn.BatchNorm1d(4, momentum=None)
        self.modes: list[tuple[bool, bool]] = []

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        self.modes.append((self.training, torch.is_grad_enabled()))
        return super()._forward({Columns.OBS: self.norm(batch[Columns.OBS])})

    def compute_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        if embeddings is None:
            self.modes.append((self.training, torch.is_grad_enabled()))
            embeddings = self.encoder(self.norm(batch[Columns.OBS])).latent
        return self.vf(embeddings).squeeze(-1)


class Asking(Reinforce):
    """Asks for values before the update and for a forward pass after it."""

    def make_train_batch(self, module_id: str, rollout: Rollout) -> tuple[Batch, dict[str, float]]:
        self.value_pass(module_id, rollout)
        return super().make_train_batch(module_id, rollout)

    @torch.no_grad()
    def after_update(self, module_id: str, batch: Batch) -> None:
        self.forward_rows(module_id, batch)


def test_batch_norm_takes_in_each_minibatch_once_and_nothing_else() -> None:
    learner = make(Normed, Asking, minibatch_size=None, num_epochs=3)
    module = learner.module[ID]
    acting = spec(Normed, fcnet_hiddens=[8]).build(inference_only=True)[ID].eval()
    acting.share_tensors_of(module)
    rollout = rollout_for(learner)
    rows = rollout[Columns.OBS][rollout.valid]
    module.modes.clear()
    for iteration in range(1, 3):
        learner.update_from_episodes(rollout, env_steps=0)
        assert int(module.norm.num_batches_tracked) == 3 * iteration == learner.num_updates
        # momentum=None makes it the plain average of the batches, here always the same
        torch.testing.assert_close(module.norm.running_mean, rows.mean(0))
        torch.testing.assert_close(module.norm.running_var, rows.var(0))
        assert module.modes == [(False, False), (True, True), (True, True), (True, True), (False, False)] * iteration
        assert not module.training
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert getattr(acting.norm, name) is getattr(module.norm, name)
        assert torch.equal(learner.get_state()["module"][ID][f"norm.{name}"], getattr(module.norm, name))
    assert int(acting.norm.num_batches_tracked) == 6


def test_a_batch_learner_trains_in_train_mode() -> None:
    learner = make(Normed, Regression)
    module = learner.module[ID].eval()
    for _ in range(2):
        learner.step_on_batch({Columns.OBS: torch.rand(8, 4), "target": torch.ones(8, 3)}, env_steps=0)
    assert int(module.norm.num_batches_tracked) == 2
    Policy(module).act(np.zeros(4, np.float32))
    learner.step_on_batch({Columns.OBS: torch.rand(8, 4), "target": torch.ones(8, 3)}, env_steps=0)
    assert int(module.norm.num_batches_tracked) == 3


class NormedRecurrent(Recurrent):
    """Batch norm before the memory, whose running mean is the plain average of all batches."""

    def setup(self) -> None:
        super().setup()
        self.norm = nn.BatchNorm1d(4, momentum=None)

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        if "norm" not in self._modules:  # setup() tries the rest
            return super()._forward(batch)
        shape = batch[Columns.OBS].shape
        obs = self.norm(batch[Columns.OBS].flatten(0, 1)).view(shape)
        return super()._forward({**batch, Columns.OBS: 100 * obs})


def test_batch_norm_before_a_memory_sees_valid_rows_alone() -> None:
    learner = make(NormedRecurrent, minibatch_size=None, num_epochs=1)
    rollout = rollout_for(learner)
    rows = rollout[Columns.OBS][rollout.valid]
    assert len(rows) < cut_into_sequences(rollout, [], LENGTH)[Columns.STARTS].numel()
    learner.update_from_episodes(rollout, env_steps=0)
    torch.testing.assert_close(learner.module[ID].norm.running_mean, rows.mean(0))
    torch.testing.assert_close(learner.module[ID].norm.running_var, rows.var(0))


def test_what_fills_sequences_up_changes_no_gradient_of_a_net_with_batch_norm() -> None:
    gradients = []
    for filling in (0.0, 9.0):
        learner = make(NormedRecurrent, Regression, grad_clip=None)
        batch = cut_into_sequences(rollout_for(learner), [Columns.OBS], LENGTH)
        filled = torch.ones(batch[Columns.STARTS].numel(), dtype=torch.bool)
        filled[batch[Columns.VALID_ROWS]] = False
        batch[Columns.OBS].flatten(0, 1)[filled] = filling
        batch["target"] = torch.ones(*batch[Columns.STARTS].shape, 3)
        learner.update_from_batch(batch, env_steps=0)
        gradients.append(learner.parameters[ID].grad)
    assert gradients[0].any()
    torch.testing.assert_close(*gradients)


def test_a_row_that_is_not_valid_is_normalised_as_its_neighbours_so_that_the_state_flows_through_it() -> None:
    learner = make(NormedRecurrent)
    module = learner.module[ID]
    batch = cut_into_sequences(random_rollout(module, LENGTH, 3), [Columns.OBS], LENGTH)
    rows = torch.cat([batch[Columns.OBS].flatten(0, 1)[:4], batch[Columns.OBS].flatten(0, 1)[5:]])
    batch = {**batch, Columns.STARTS: torch.zeros(LENGTH, 3, dtype=torch.bool)}
    index = torch.tensor([row for row in range(3 * LENGTH) if row != 4])
    module.train()
    _, fwd_out = learner.forward_rows(ID, {**batch, Columns.VALID_ROWS: index})
    module.eval()
    module.norm.running_mean, module.norm.running_var = rows.mean(0), rows.var(0, correction=0)
    expected = module.forward_train(batch)[Columns.EMBEDDINGS].flatten(0, 1)[index]
    torch.testing.assert_close(fwd_out[Columns.EMBEDDINGS], expected)


def test_a_single_valid_row_is_normalised_by_the_running_statistics() -> None:
    learner = make(NormedRecurrent, Regression)
    batch = cut_into_sequences(rollout_for(learner, LENGTH, 1), [Columns.OBS], LENGTH)
    batch |= {Columns.VALID_ROWS: torch.tensor([1]), "target": torch.ones(LENGTH, 1, 3)}
    learner.step_on_batch(batch, env_steps=0)
    assert int(learner.module[ID].norm.num_batches_tracked) == 0
    assert learner.module[ID].norm.training


@pytest.mark.parametrize("learner_class", [Reinforce, Regression])
def test_modules_are_in_eval_mode_but_for_gradient_steps(learner_class: type[Learner]) -> None:
    class Modes(Small):
        def setup(self) -> None:
            super().setup()
            self.trained_in = list[bool]()

        def _forward_train(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
            self.trained_in.append(self.training)
            return super()._forward_train(batch)

    learner = make(Modes, learner_class)
    module = learner.module[ID]
    assert not any(part.training for part in learner.module.modules())
    for _ in range(2):
        if isinstance(learner, Reinforce):
            learner.update_from_episodes(rollout_for(learner), env_steps=0)
        else:
            batch = {Columns.OBS: torch.rand(8, 4), "target": torch.ones(8, 3)}
            learner.update_from_batch(batch, env_steps=0)
            assert not module.training
            learner.summarize_updates([learner.step_on_batch(batch, env_steps=0) for _ in range(2)])
        assert not any(part.training for part in learner.module.modules())
    assert module.trained_in
    assert all(module.trained_in[-2:])


# --- losses of the module's own --------------------------------------------------------------------------------------


class Decaying(Small, ExtraLossAPI):
    """Wants small latents, and large outputs a little."""

    weight = 0.5

    def losses(self, batch: Mapping[str, Tree], fwd_out: Mapping[str, Tree]) -> dict[str, ExtraLoss]:
        latents, outputs = fwd_out[Columns.EMBEDDINGS], fwd_out[Columns.ACTION_DIST_INPUTS]
        size = latents.square().mean(-1)
        return {
            "decay": ExtraLoss(size.mean(), self.weight, {"latent_size": size.detach()}),
            "push": ExtraLoss(-outputs.square().mean() * 1e-3),
        }

    def compute_extra_losses(self, batch: Mapping[str, Tree], fwd_out: Mapping[str, Tree]) -> dict[str, ExtraLoss]:
        return self.losses(batch, fwd_out)


class RecurrentDecaying(Recurrent, ExtraLossAPI):
    def compute_extra_losses(self, batch: Mapping[str, Tree], fwd_out: Mapping[str, Tree]) -> dict[str, ExtraLoss]:
        assert batch[Columns.OBS].dim() == 2
        assert len(batch[Columns.OBS]) == len(batch[Columns.REWARDS]) == len(fwd_out[Columns.EMBEDDINGS])
        return {"decay": ExtraLoss(fwd_out[Columns.EMBEDDINGS].square().mean())}


class OwnLoss(Reinforce):
    """The same losses, written into the algorithm's."""

    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
        extra = Decaying.losses(self.module[module_id], batch, fwd_out)  # type: ignore[arg-type]
        return loss + sum(e.weight * e.value for e in extra.values()), metrics


class Weighty(Small):
    weight = 0.5


def test_a_modules_own_losses_are_added_to_the_algorithms() -> None:
    with_api, written_out, without = make(Decaying), make(Weighty, OwnLoss), make(Small)
    results = []
    for learner in (with_api, written_out, without):
        results.append(learner.update_from_episodes(rollout_for(learner), env_steps=0)[ID])
    weights = [learner.parameters[ID].tensor for learner in (with_api, written_out, without)]
    torch.testing.assert_close(weights[0], weights[1])
    assert not torch.allclose(weights[0], weights[2])
    assert results[0].keys() - results[1].keys() == {"decay_loss", "push_loss", "latent_size"}
    assert results[0]["total_loss"] == pytest.approx(results[1]["total_loss"], rel=1e-5)


def test_extra_losses_are_reported_unweighted_with_their_metrics() -> None:
    learner = make(Decaying, minibatch_size=None, num_epochs=1)
    batch, _ = learner.make_train_batch(ID, rollout_for(learner))
    latents = learner.module[ID].forward_train(batch)[Columns.EMBEDDINGS].detach()
    result = learner.update_from_episodes(rollout_for(learner), env_steps=0)[ID]
    assert result["decay_loss"] == pytest.approx(float(latents.square().mean()), rel=1e-5)
    assert result["latent_size"] == pytest.approx(result["decay_loss"], rel=1e-5)
    assert all(type(value) is float for value in result.values())


def test_extra_losses_work_for_batch_learners_and_recurrent_modules() -> None:
    learner = make(Decaying, Regression)
    result = learner.step_on_batch({Columns.OBS: torch.rand(8, 4), "target": torch.ones(8, 3)}, env_steps=0)[ID]
    assert {"decay_loss", "push_loss", "latent_size"} <= result.keys()
    learner = make(RecurrentDecaying)
    result = learner.update_from_episodes(rollout_for(learner), env_steps=0)[ID]
    assert result["decay_loss"] > 0


@pytest.mark.parametrize(
    ("losses", "text"),
    [
        ({"total": ExtraLoss(torch.zeros(()))}, "got 'total_loss'"),
        ({"policy": ExtraLoss(torch.zeros(()))}, "got 'policy_loss'"),
        ({"a": ExtraLoss(torch.zeros(()), 1.0, {"gradient_norm": torch.zeros(())})}, "got 'gradient_norm'"),
        ({"a": ExtraLoss(torch.zeros(()), 1.0, {"learning_rate": torch.zeros(())})}, "got 'learning_rate'"),
        ({"a": ExtraLoss(torch.zeros(()), 1.0, {"extra": torch.zeros(())})}, "got 'extra'"),
        ({"a": ExtraLoss(torch.zeros(()), 1.0, {"added_later": torch.zeros(())})}, "got 'added_later'"),
        ({"a": ExtraLoss(torch.zeros(()), 1.0, {"a_loss": torch.zeros(())})}, "got 'a_loss'"),
        ({"a": ExtraLoss(torch.zeros(2))}, r"\['a'\]: expected a scalar tensor, got shape \(2,\)"),
        ({"a": ExtraLoss(0.5)}, r"\['a'\]: expected a scalar tensor, got 0.5"),  # type: ignore[arg-type]
    ],
)
def test_names_that_are_taken_and_values_that_are_no_scalars_are_refused(losses: Any, text: str) -> None:
    class Module(Decaying):
        def losses(self, *_: Any) -> Any:
            return losses

    class Reporting(Reinforce):
        def compute_loss_for_module(self, *args: Any) -> tuple[Tensor, Metrics]:
            loss, metrics = super().compute_loss_for_module(*args)
            return loss, metrics | {"policy_loss": loss}

        def summarize(self, module_id: str, metrics: Mapping[str, Tensor]) -> dict[str, float]:
            return super().summarize(module_id, metrics) | {"added_later": 0.0}

    learner = make(Module, Reporting)
    with pytest.raises(ValueError, match=rf"Module\.compute_extra_losses\(\).*{text}"):
        learner.update_from_episodes(rollout_for(learner), env_steps=0)


def test_losses_that_come_and_go_are_refused() -> None:
    class Fickle(Decaying):
        calls = 0

        def losses(self, *args: Any) -> Any:
            self.calls += 1
            losses = super().losses(*args)
            return losses if self.calls < 3 else {"decay": losses["decay"]}

    learner = make(Fickle)
    text = (
        r"the same losses and metrics at every call: decay_loss, latent_size, push_loss, got decay_loss, latent_size\."
    )
    with pytest.raises(ValueError, match=text):
        learner.update_from_episodes(rollout_for(learner), env_steps=0)


def test_the_default_metrics_of_a_loss_cannot_be_written_to() -> None:
    with pytest.raises(TypeError):
        ExtraLoss(torch.zeros(())).metrics["a"] = torch.zeros(())  # type: ignore[index]


def test_a_q_net_says_the_value_of_every_action() -> None:
    class Net(Small, QNetAPI):
        def compute_q_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
            return self.pi(self.encoder(batch[Columns.OBS]).latent if embeddings is None else embeddings)

    class QLearner(Regression):
        required_apis = (QNetAPI,)

    assert make(Net, QLearner).module[ID].compute_q_values({Columns.OBS: torch.rand(5, 4)}).shape == (5, 3)
    with pytest.raises(TypeError, match=r"QNetAPI \(compute_q_values\)"):
        make(Small, QLearner)


@pytest.mark.parametrize("returned", [{"aux": torch.zeros(())}, torch.zeros(()), None])
def test_a_loss_that_is_no_extra_loss_is_refused(returned: Any) -> None:
    class Wrong(Small, ExtraLossAPI):
        def compute_extra_losses(self, batch: Mapping[str, Tree], fwd_out: Mapping[str, Tree]) -> dict[str, ExtraLoss]:
            return returned

    learner = make(Wrong)
    with pytest.raises(TypeError, match=r"Wrong\.compute_extra_losses\(\): expected a dict from names to ExtraLoss"):
        learner.update_from_episodes(rollout_for(learner), env_steps=0)
