"""What users pass to updates and what comes back: data, counts, keywords, columns of their own, errors that help."""

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rlmodule import BatchLearner, Columns, Episode, EpisodeLearner, Learner, LearnerGroup, RLModule, Rollout
from rlmodule.data.columns import Batch
from rlmodule.testing.data import differences, random_rollout
from tests.rlmodule.learning.test_learner_modules import ID, make, rollout_for, spec
from tests.rlmodule.toys import Recurrent, Regression, Reinforce, Settings, Small


def batch(rows: int = 8) -> Batch:
    return {Columns.OBS: torch.rand(rows, 4), "target": torch.ones(rows, 3)}


def group_of(cls: type[Learner]) -> LearnerGroup:
    return LearnerGroup.create(Settings(), cls, spec(Small, fcnet_hiddens=[8]), run_seed=0)


# --- columns of your own ---------------------------------------------------------------------------------------------


class Doubles(Reinforce):
    """Adds a column of twice the rewards, and holds the loss to it."""

    def preprocess_train_data(self, rollout: Rollout) -> Rollout:
        twice = {"a": (rollout[Columns.REWARDS] * 2,)}
        return dataclasses.replace(rollout, columns=rollout.columns | {"twice": twice})

    def compute_loss_for_module(self, module_id: str, batch: Batch, fwd_out: Any) -> Any:
        assert torch.equal(batch["twice"]["a"][0], batch[Columns.REWARDS] * 2)
        return super().compute_loss_for_module(module_id, batch, fwd_out)


@pytest.mark.parametrize("module_class", [Small, Recurrent])
def test_columns_that_preprocessing_adds_reach_the_loss(module_class: type[RLModule]) -> None:
    learner = make(module_class, Doubles)
    learner.update_from_episodes(rollout_for(learner), env_steps=0)
    assert learner.seen


def test_columns_that_are_added_in_place_reach_the_loss() -> None:
    class InPlace(Doubles):
        def preprocess_train_data(self, rollout: Rollout) -> Rollout:
            rollout.columns["twice"] = {"a": (rollout[Columns.REWARDS] * 2,)}
            return rollout

    learner = make(Small, InPlace)
    rollout = rollout_for(learner)
    for _ in range(2):
        learner.update_from_episodes(rollout, env_steps=0)
        assert learner.seen
        assert "twice" not in rollout.columns


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (lambda rollout: None, TypeError, r"preprocess_train_data\(\): expected a Rollout, got NoneType\. Return the"),
        (lambda rollout: rollout.to_episodes(), TypeError, "expected a Rollout, got list"),
        (lambda rollout: _with(rollout, torch.ones(18)), ValueError, r"new column 'mine', got shape \(18,\)"),
        (lambda rollout: _with(rollout, np.ones((18, 3))), ValueError, "new column 'mine', got ndarray"),
    ],
)
def test_what_preprocessing_must_return_is_told(
    returned: Callable[[Rollout], Any], error: type[Exception], message: str
) -> None:
    class Wrong(Reinforce):
        def preprocess_train_data(self, rollout: Rollout) -> Rollout:
            return returned(rollout)

    learner = make(Small, Wrong)
    with pytest.raises(error, match=message):
        learner.update_from_episodes(rollout_for(learner), env_steps=0)


def _with(rollout: Rollout, column: Any) -> Rollout:
    return dataclasses.replace(rollout, columns=rollout.columns | {"mine": column})


# --- counts, keywords, results ----------------------------------------------------------------------------------------


def test_updates_count_env_steps_themselves() -> None:
    learner, rollout = make(Small), random_rollout(make(Small).module[ID], 18, 3)
    steps = rollout.num_env_steps
    learner.update_from_episodes(rollout)
    assert learner.env_steps == steps < 54
    learner.update_from_episodes(rollout.to_episodes())
    assert learner.env_steps == 2 * steps
    learner.update_from_episodes(rollout, env_steps=7)
    assert learner.env_steps == 7
    group = group_of(Regression)
    group.update_from_batch(batch(5))
    group.update_from_batch(batch(3))
    assert group.learner.env_steps == 8


@pytest.mark.parametrize("empty", [{}, {Columns.OBS: torch.zeros(0, 4), "target": torch.zeros(0, 3)}])
def test_a_batch_without_rows_is_refused_before_anything_changes(empty: Batch) -> None:
    group = group_of(Regression)
    with pytest.raises(ValueError, match="an update: expected data for at least one learner, got no row"):
        group.update_from_batch(empty)
    assert group.num_updates == group.learner.env_steps == 0


def test_sequences_without_a_valid_row_are_refused() -> None:
    learner = make(Recurrent, Reinforce)
    rollout = rollout_for(learner)
    nothing = {name: torch.zeros_like(rollout[name]) for name in (Columns.VALID, Columns.TRUNCATEDS)}
    rollout = dataclasses.replace(
        rollout,
        columns=rollout.columns | nothing,
        final_index=rollout.final_index[:0],
        final_obs=rollout.final_obs[:0],
    )
    with pytest.raises(ValueError, match="got no valid row"):
        learner.update_from_episodes(rollout, env_steps=0)


@pytest.mark.parametrize("counts", [{"num_epochs": 0}, {"minibatch_size": 0}, {"minibatch_size": -3}])
def test_epochs_and_minibatches_below_one_are_refused(counts: dict[str, Any]) -> None:
    group = group_of(Reinforce)
    ((name, count),) = counts.items()
    for updating in (group, group.learner):
        with pytest.raises(ValueError, match=rf"expected {name} of at least 1, got {count}"):
            updating.update_from_episodes(rollout_for(group.learner), **counts)
    assert group.num_updates == 0


def test_updates_from_batches_are_summarized_with_the_settings_of_their_module() -> None:
    used = []

    class Noting(Regression):
        def summarize(self, module_id: str, metrics: Any) -> dict[str, float]:
            used.append(self.settings.lr)
            return super().summarize(module_id, metrics)

    learner = make(Small, Noting)
    learner.trained[ID].settings = dataclasses.replace(learner.settings, lr=0.125)
    learner.update_from_batch(batch())
    learner.summarize_updates([learner.step_on_batch(batch(), env_steps=9)])
    assert used == [0.125, 0.125]


def test_epochs_and_minibatches_may_be_passed_for_one_update() -> None:
    learner, rollout = make(Small), random_rollout(make(Small).module[ID], 16, 4)
    rollout.columns[Columns.VALID].fill_(True)
    learner.update_from_episodes(rollout, num_epochs=3, minibatch_size=8)
    assert learner.num_updates == 3 * 8
    learner.update_from_episodes(rollout)
    assert learner.num_updates == 3 * 8 + 2 * 4  # as the settings say
    group = group_of(Reinforce)
    group.update_from_episodes(rollout, num_epochs=1, minibatch_size=1000)
    assert group.num_updates == 1


def test_either_kind_of_update_returns_numbers_by_module() -> None:
    rollout = random_rollout(make(Small).module[ID], 16, 4)
    for results in (
        group_of(Reinforce).update_from_episodes(rollout),
        group_of(Regression).update_from_batch(batch()),
        make(Small).update_from_episodes(rollout),
        make(Small, Regression).update_from_batch(batch()),
    ):
        assert {type(value) for value in results[ID].values()} == {float}
        assert results[ID].keys() >= {"total_loss", "gradient_norm", "learning_rate", "num_updates_skipped"}


def test_numbers_of_an_update_are_those_of_its_step() -> None:
    one, two, data = make(Small, Regression), make(Small, Regression), batch()
    numbers = one.update_from_batch(data, env_steps=0)
    assert numbers == two.summarize_updates([two.step_on_batch(data, env_steps=0)])
    assert differences(one.get_state(), two.get_state()) == []


@pytest.mark.parametrize("of", [lambda cls: make(Small, cls), group_of], ids=["learner", "group"])
def test_update_warns_once_and_forwards_by_the_kind_of_learner(of: Callable[[type[Learner]], Any]) -> None:
    rollout = random_rollout(make(Small).module[ID], 16, 4)
    for cls, data, name in ((Reinforce, rollout, "episodes"), (Regression, batch(), "batch")):
        learner = of(cls)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results = [learner.update(data), learner.update(**{name: data})]
        assert [warning.category for warning in caught] == [DeprecationWarning] * 2
        assert f"update() is deprecated: call update_from_{name}()" in str(caught[0].message)
        assert caught[0].filename == __file__
        assert all(type(each[ID]["total_loss"]) is float for each in results)


# --- data that is wrong -----------------------------------------------------------------------------------------------


def wrong_episodes(rollout: Rollout) -> dict[str, tuple[Any, str]]:
    return {
        "rollouts": ([rollout, rollout], r"got a list of Rollout\. Put rollouts side by side: Rollout\.concat"),
        "batch": (
            {"obs": rollout[Columns.OBS]},
            r"got a dict with 'obs'\. Pass the data of several modules by their ids; pass rows that are ready",
        ),
        "number": (3, r"got int\. Pass what algo\.sample\(\) returns"),
    }


@pytest.mark.parametrize("case", ["rollouts", "batch", "number"])
@pytest.mark.parametrize("of", [lambda cls: make(Small, cls), group_of], ids=["learner", "group"])
def test_what_is_no_data_of_episodes_is_told(case: str, of: Callable[[type[Learner]], Any]) -> None:
    data, message = wrong_episodes(random_rollout(make(Small).module[ID], 8, 2))[case]
    with pytest.raises(
        TypeError, match=rf"update_from_episodes\(\): expected a Rollout or a list of episodes, {message}"
    ):
        of(Reinforce).update_from_episodes(data, env_steps=0)


def test_what_is_no_batch_is_told() -> None:
    learner, rollout = make(Small, Regression), random_rollout(make(Small).module[ID], 8, 2)
    with pytest.raises(TypeError, match=r"columns of tensors, got ndarray in 'obs'\. Convert it: torch\.as_tensor"):
        learner.update_from_batch(batch() | {Columns.OBS: np.zeros((8, 4))})
    with pytest.raises(TypeError, match=r"got Rollout\. Pass its rows: rollout\.valid_rows\(rollout\.columns\)"):
        learner.update_from_batch(rollout)
    with pytest.raises(ValueError, match=r"columns of equal length, got obs \(8,\), target \(5,\)\. Give each"):
        learner.update_from_batch(batch() | {"target": torch.ones(5, 3)})
    with pytest.raises(ValueError, match=r"columns of equal length, got .*target \(5,\), target \(8,\)\. Give each"):
        learner.update_from_batch(batch() | {"target": (torch.ones(5, 3), torch.ones(8, 3))})
    assert learner.num_updates == 0


def test_ids_of_modules_are_given_in_one_place() -> None:
    with pytest.raises(ValueError, match=r"ids in one place, got data of 'one' and module_id='other'\. Leave it out"):
        group_of(Reinforce).update_from_episodes({"one": None}, module_id="other")


def test_a_column_that_is_missing_is_named_with_those_there_are() -> None:
    learner = make(Small)
    episode = Episode(np.zeros((4, 4), np.float32), np.zeros(3, np.int64), np.ones(3))
    expected = (
        r"Reinforce\.update_from_episodes\(\): expected the column 'action_logp', which the learner reads, got obs"
    )
    with pytest.raises(KeyError, match=expected):
        learner.update_from_episodes([episode], env_steps=0)

    class ReadsNext(Regression):
        def prepare_batch(self, module_id: str, batch: Batch) -> Batch:
            return batch | {"target": batch[Columns.NEXT_OBS][:, :3]}

    with pytest.raises(
        KeyError, match=r"expected the column 'next_obs', which the learner reads, got obs, target\. Add"
    ):
        make(Small, ReadsNext).update_from_batch(batch())


def test_a_key_error_of_ones_own_is_left_alone() -> None:
    class Buggy(Regression):
        def prepare_batch(self, module_id: str, batch: Batch) -> Batch:
            return {}["mine"]

    with pytest.raises(KeyError, match=r"^'mine'$"):
        make(Small, Buggy).update_from_batch(batch())


def test_an_ability_that_is_no_abstract_class_is_required_by_its_methods() -> None:
    class Curious:
        def compute_surprise(self, batch: Batch) -> torch.Tensor:
            raise NotImplementedError

    class Requires(Regression):
        required_apis = (Curious,)

    with pytest.raises(TypeError, match=r"implements Curious \(compute_surprise\), got Small, which does not"):
        make(Small, Requires)


def test_the_kinds_of_learner_offer_their_own_updates_only() -> None:
    assert not hasattr(EpisodeLearner, "step_on_batch")
    assert not hasattr(BatchLearner, "update_from_episodes")
