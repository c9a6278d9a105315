"""Learners that train together: faults on one, hooks that differ between learners, nets with statistics, modules."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from catalog import RunningMoments
from catalog.base import Tree
from rlmodule import Columns, Learner, Rollout, ValueFunctionAPI
from rlmodule.collective import Collective, CollectiveError, SingleProcess
from rlmodule.data.columns import Batch
from rlmodule.learning.reports import Metrics
from rlmodule.learning.sharding import shard_batch, shard_rollout
from rlmodule.learning.target_nets import TargetedLearner
from rlmodule.modules.apis import ExplorationAPI
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.testing.data import clone, differences, random_rollout
from tests.rlmodule.toys import Regression, Reinforce, Settings, Small
from tests.together import Fleet, digest, weights
from tests.waiting import PATIENCE_S, wait_for

ID = "default_policy"
OBS, ACTIONS = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
NAN = float("nan")


class Exploring(Small, ExplorationAPI):
    """Its only buffers are two that control exploration, which training does not change."""

    exploration_buffers = ("epsilon", "scale")
    epsilon: Tensor
    scale: Tensor

    def setup(self) -> None:
        super().setup()
        del self.trained_on
        for name in ("epsilon", "scale"):
            self.register_buffer(name, torch.full((), 0.25))

    def set_exploration(self, value: float) -> None:
        self.epsilon.fill_(value)
        self.scale.fill_(value)

    def update_observation_statistics(self, obs: Tree) -> None:
        """Nothing."""


class Normed(Small):
    """With batch norm, dropout, and a constant that is no round number."""

    def setup(self) -> None:
        super().setup()
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("constant", torch.tensor([0.1, 1 / 3, float("inf")]))

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        return super()._forward({Columns.OBS: self.drop(self.norm(batch[Columns.OBS]))})


def make(cls: type[Learner], module_class: type[Small] = Small, **settings: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        spec = RLModuleSpec(module_class, OBS, ACTIONS, {"fcnet_hiddens": [8]})
        return cls(Settings(**settings), spec.as_multi(), run_seed=0)


def message(learner: Learner, **more: Any) -> dict[str, Any]:
    return {
        "weights": weights(learner),
        "digest": digest(learner.get_state()),
        "state": clone(learner.get_state()),
    } | more


def rollout_of(seed: int, slots: int = 4) -> Rollout:
    return random_rollout(make(Reinforce).module[ID], 12, slots, seed)


def batch_of(target: float = 1.0, seed: int = 0, rows: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return {Columns.OBS: torch.rand(rows, 4, generator=generator), "target": torch.full((rows, 3), target)}


# --- what is not finite -----------------------------------------------------------------------------------------------


class Descent(Regression):
    """With an optimizer of its own."""

    def configure_optimizer_for_module(self, module_id: str, parameters: nn.Parameter) -> torch.optim.Optimizer:
        return torch.optim.SGD([parameters], lr=0.1, momentum=0.9)


def learn_targets(collective: Collective, cls: type[Regression], targets: list[float]) -> list[dict[str, Any]]:
    learner = make(cls)
    learner.connect(collective)
    seen = []
    for seed, target in enumerate(targets):
        metrics = learner.step_on_batch(batch_of(target, seed), env_steps=0)
        seen.append(message(learner, skipped=float(metrics[ID]["update_skipped"])))
    return seen


@pytest.mark.parametrize("cls", [Regression, Descent])
def test_an_update_that_is_not_finite_on_one_is_left_out_on_all(fleet: Fleet, cls: type[Regression]) -> None:
    first, second = fleet.values(learn_targets, (cls, [1.0, 1.0, 2.0]), (cls, [1.0, NAN, 2.0]))
    for mine, other in zip(first, second, strict=True):
        assert mine["digest"] == other["digest"]
    for each in (first, second):
        assert [step["skipped"] for step in each] == [0, 1, 0]
        for name in ("module", "optimizers"):
            before, after = (step["state"][name][ID] for step in each[:2])
            for state in (before, after):
                state.pop("trained_on", None)  # a count of rows, not of steps
            assert differences(before, after) == []
        assert not torch.equal(each[1]["weights"], each[2]["weights"])


def learn_until_it_ends(collective: Collective, target: float) -> tuple[str, int]:
    learner = make(Regression, max_nonfinite_updates_in_a_row=3)
    learner.connect(collective)
    for seed in range(2):
        learner.summarize_updates([learner.step_on_batch(batch_of(target, seed), env_steps=0)])
    metrics = learner.step_on_batch(batch_of(target), env_steps=0)
    with pytest.raises(FloatingPointError) as caught:
        learner.summarize_updates([metrics])
    return str(caught.value), learner.num_updates


def test_too_many_in_a_row_end_the_run_on_all(fleet: Fleet) -> None:
    (first, count), other = fleet.values(learn_until_it_ends, (1.0,), (NAN,))
    assert (first, count) == other
    assert "3 in a row" in first
    assert "weight" in first
    assert count == 3


# --- a learner that fails ---------------------------------------------------------------------------------------------


class Fails(Reinforce):
    """Raises, or stays, in its third minibatch, on the second learner."""

    calls = 0
    way = "raises"
    was_told = Path()

    def compute_loss_for_module(
        self, module_id: str, batch: dict[str, Tree], fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        self.calls += 1
        if self.calls == 3 and self.collective.rank == 1:
            if self.way == "hangs":
                wait_for(self.was_told.exists)
            raise ValueError("a fault of its own")
        return super().compute_loss_for_module(module_id, batch, fwd_out)


def learn_with_a_fault(collective: Collective, rollout: Rollout, way: str, was_told: Path) -> tuple[str, int]:
    learner = make(Fails)
    learner.way, learner.was_told = way, was_told
    learner.connect(collective)
    with pytest.raises((ValueError, CollectiveError)) as caught:
        learner.update_from_episodes(rollout, env_steps=0)
    if collective.rank == 0:
        was_told.touch()
    wait_for(was_told.exists)  # the one that failed lives on, connected or not
    return type(caught.value).__name__, learner.progress


@pytest.mark.parametrize("way", ["raises", pytest.param("hangs", marks=pytest.mark.faults)])
def test_peers_of_a_learner_that_fails_are_told(fleet: Fleet, way: str, tmp_path: Path) -> None:
    """At once if it raises, when the time is up if it hangs; in either case while it is still there."""
    args = [(rollout_of(seed), way, tmp_path / "was reported") for seed in range(2)]
    timeout_s = 2 * PATIENCE_S if way == "raises" else 10.0  # busy cores may take seconds to meet
    assert fleet.values(learn_with_a_fault, *args, peer_timeout_s=timeout_s) == [
        ("CollectiveError", 2),
        ("ValueError", 2),
    ]


def learn_after_drawing(collective: Collective, rollout: Rollout) -> None:
    learner = make(Reinforce)
    learner.connect(collective)
    if collective.rank == 1:
        torch.rand(1, generator=learner.generator)
    with pytest.raises(RuntimeError, match="learner 1 differs from learner 0 in the random numbers of `generator`"):
        learner.update_from_episodes(rollout, env_steps=0)


def test_random_numbers_that_part_are_told(fleet: Fleet) -> None:
    fleet.values(learn_after_drawing, *[(rollout_of(seed),) for seed in range(2)])


# --- hooks with a mind of their own -----------------------------------------------------------------------------------


class StopsAlone(Reinforce):
    """The second learner alone wants to stop, after two epochs."""

    def should_stop(self, module_id: str, metrics: Mapping[str, Tensor]) -> bool:
        return self.collective.rank == 1 and self.num_epochs_seen() >= 2

    def num_epochs_seen(self) -> int:
        self.epochs = getattr(self, "epochs", 0) + 1
        return self.epochs


class Wide(Reinforce):
    """Makes its batch itself, with a column of its own."""

    def make_train_batch(self, module_id: str, rollout: Rollout) -> tuple[dict[str, Tree], dict[str, float]]:
        batch, reported = super().make_train_batch(module_id, rollout)
        return rollout.valid_rows([n for n in batch if n != Columns.ORDER] + ["more"]), reported

    def compute_loss_for_module(
        self, module_id: str, batch: dict[str, Tree], fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
        assert Columns.ORDER not in batch
        return loss + (batch["more"] * 0).mean(), metrics | {"rewards": batch[Columns.REWARDS], "more": loss * 2}


def learn(
    collective: Collective, cls: type[Reinforce], module_class: type[Small], parts: list[Any], settings: dict[str, Any]
) -> dict[str, Any]:
    learner = make(cls, module_class, **settings)
    learner.connect(collective)
    outside = torch.get_rng_state()
    results = [learner.update_from_episodes(part, env_steps=0)[ID] for part in parts]
    assert torch.equal(torch.get_rng_state(), outside)
    return message(learner, results=results, num_updates=learner.num_updates, progress=learner.progress)


def test_all_stop_if_one_wants_to(fleet: Fleet) -> None:
    settings = {"num_epochs": 5, "minibatch_size": None}
    args = [(StopsAlone, Small, [rollout_of(seed)], settings) for seed in range(2)]
    first, second = fleet.values(learn, *args)
    assert first["num_updates"] == second["num_updates"] == first["progress"] == 2
    assert first["digest"] == second["digest"]


@pytest.mark.parametrize("empty", [None, 0, 1])
def test_a_batch_of_ones_own_and_columns_that_one_lacks(fleet: Fleet, empty: int | None) -> None:
    """Rows that were not numbered stand learner by learner; one without data is lent the columns it cannot know."""
    rollout = rollout_of(0)
    rollout.columns["more"] = torch.ones(12, 4, 2)
    parts = shard_rollout(rollout, 2) if empty is None else [None if rank == empty else rollout for rank in range(2)]
    several = fleet.values(learn, *[(Wide, Small, [part], {}) for part in parts])
    assert several[0]["digest"] == several[1]["digest"]
    assert several[0]["results"] == several[1]["results"]
    assert several[0]["results"][0].keys() == learn(SingleProcess(), Wide, Small, [rollout], {})["results"][0].keys()
    if empty is not None:
        one = learn(SingleProcess(), Wide, Small, [rollout], {"minibatch_size": 32})  # as the two of 16 each
        assert float((several[0]["weights"] - one["weights"]).abs().max()) < 1e-6
        assert several[0]["results"][0] == pytest.approx(one["results"][0], rel=1e-4, abs=1e-6)


def test_nobody_has_data(fleet: Fleet) -> None:
    for parts in ([None, None], [[], []]):
        answers = fleet.run(learn, *[(Reinforce, Small, [part], {}) for part in parts])
        for answer in answers:
            assert isinstance(answer, ValueError)
            assert "data for at least one learner" in str(answer)


def test_one_alone_needs_data() -> None:
    with pytest.raises(ValueError, match="an update: expected data for at least one learner, got None"):
        make(Reinforce).update_from_episodes(None, env_steps=0)
    with pytest.raises(ValueError, match="an update: expected data for at least one learner, got None"):
        make(Regression).step_on_batch(None, env_steps=0)
    rollout = rollout_of(0)
    rollout.columns[Columns.VALID] = torch.zeros(12, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match="got no valid row"):
        make(Reinforce).update_from_episodes(rollout, env_steps=0)


# --- nets with numbers of their own -----------------------------------------------------------------------------------


def test_batch_norm_and_dropout_leave_the_learners_equal(fleet: Fleet) -> None:
    args = [(Reinforce, Normed, [rollout_of(seed) for seed in (rank, rank + 2)], {}) for rank in range(2)]
    first, second = fleet.values(learn, *args)
    assert first["digest"] == second["digest"]
    fresh = make(Reinforce, Normed).module[ID].get_state()
    module = first["state"]["module"][ID]
    assert torch.equal(module["constant"], fresh["constant"])
    assert not torch.equal(module["norm.running_mean"], fresh["norm.running_mean"])


class Followed(TargetedLearner, Reinforce):
    """With a target net that becomes the module after each update."""

    def after_update(self, module_id: str, batch: Batch) -> None:
        self.targets.update(module_id, env_steps=0, every=0, tau=1.0)


def test_target_nets_have_the_batch_norm_of_all_learners(fleet: Fleet) -> None:
    args = [(Followed, Normed, [rollout_of(seed) for seed in (rank, rank + 2)], {}) for rank in range(2)]
    first, second = fleet.values(learn, *args)
    assert differences(first["state"]["target"], second["state"]["target"]) == []
    assert first["digest"] == second["digest"]
    means = [first["state"][name][ID]["norm.running_mean"] for name in ("target", "module")]
    assert torch.equal(*means)


class Nobody(Collective):
    """Two learners, of which the other never answers."""

    rank, size = 0, 2

    def all_reduce(self, tensor: Tensor) -> Tensor:
        raise AssertionError("asked")

    all_gather = all_reduce  # type: ignore[assignment]

    def close(self) -> None:
        self.size = 0


class Scaled(Small):
    """With running moments."""

    def setup(self) -> None:
        super().setup()
        self.moments = RunningMoments((4,))

    def update_observation_statistics(self, obs: Tree) -> None:
        self.moments.update(obs)


class Echo(Collective):
    """Two learners, of which the other says what this one does; and how often it was asked."""

    rank, size, sums = 0, 2, 0

    def all_reduce(self, tensor: Tensor) -> Tensor:
        self.sums += 1
        return tensor.mul_(2)

    def all_gather(self, rows: Tensor) -> list[Tensor]:
        raise AssertionError("asked twice")

    def close(self) -> None:
        """Nothing."""


@pytest.mark.parametrize(("module_class", "sums"), [(Exploring, 1), (Small, 2), (Normed, 3), (Scaled, 4)])
def test_an_update_asks_the_others_no_more_than_it_must(module_class: type[Small], sums: int) -> None:
    """For the gradient; for whole numbers of the nets' own, such as counts; for others; and twice for moments."""
    learner, collective = make(Regression, module_class), Echo()
    before = clone(learner.module.get_state())
    learner.connect(collective)
    assert differences(learner.module.get_state(), before) == []
    for update in range(1, 3):
        learner.step_on_batch(batch_of(), env_steps=0)
        assert collective.sums == update * sums


def test_one_that_is_alone_again_asks_nobody() -> None:
    learner, collective = make(Reinforce, Scaled), Nobody()
    learner.connect(collective)
    with pytest.raises(AssertionError, match="asked"):
        learner.module[ID].moments.update(torch.rand(3, 4))
    learner.connect(SingleProcess())
    assert collective.size == 0
    never = make(Reinforce, Scaled)
    for one in (learner, never):
        one.update_from_episodes(rollout_of(0), env_steps=0)
    assert differences(learner.get_state(), never.get_state()) == []


class Drops(Reinforce):
    """Remembers numbers that a net draws in training."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.drawn: list[float] = []

    def compute_loss_for_module(
        self, module_id: str, batch: dict[str, Tree], fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        self.drawn.append(float(torch.rand(())))
        return super().compute_loss_for_module(module_id, batch, fwd_out)


def draw(collective: Collective, rollout: Rollout) -> tuple[list[float], Any]:
    learner = make(Drops)
    learner.connect(collective)
    for _ in range(2):
        learner.update_from_episodes(rollout, env_steps=0)
    return learner.drawn, learner.get_state()["module_noise"]


def test_each_draws_other_noise_and_the_stream_goes_on_alike(fleet: Fleet) -> None:
    (first, state), (second, other) = fleet.values(draw, *[(rollout_of(seed),) for seed in range(2)])
    numbers = first + second
    assert len({*numbers}) == len(numbers) >= 8
    assert torch.equal(state, other)
    assert not torch.equal(state, make(Drops).get_state()["module_noise"])


# --- modules ----------------------------------------------------------------------------------------------------------


def learn_two_modules(collective: Collective, parts: list[Rollout]) -> dict[str, Any]:
    learner = make(Reinforce, minibatch_size=16 // collective.size)
    learner.connect(collective)
    learner.add_module("other", RLModuleSpec(Small, OBS, ACTIONS, {"fcnet_hiddens": [5]}))
    for part in parts:
        learner.update_from_episodes(part, env_steps=0, module_id="other")
    return message(learner)


def test_an_added_module_learns_on_several_as_on_one(fleet: Fleet) -> None:
    rollout = rollout_of(0)
    one = learn_two_modules(SingleProcess(), [rollout])
    several = fleet.values(learn_two_modules, *[([part],) for part in shard_rollout(rollout, 2)])
    assert several[0]["digest"] == several[1]["digest"]
    assert float((several[0]["weights"] - one["weights"]).abs().max()) < 1e-6


def test_modules_come_and_go() -> None:
    learner, rollout = make(Reinforce), rollout_of(0)
    before = clone(learner.module.get_state())
    with pytest.raises(
        KeyError, match=r"expected one of default_policy, got the module id 'default_polcy'.*Did you mean"
    ):
        learner.update_from_episodes(rollout, env_steps=0, module_id="default_polcy")
    global_state = torch.get_rng_state()
    learner.add_module("other", RLModuleSpec(Small, OBS, ACTIONS, {"fcnet_hiddens": [5]}))
    assert torch.equal(torch.get_rng_state(), global_state)
    fresh = clone(learner.module["other"].get_state())
    results = learner.update_from_episodes(rollout, env_steps=0, module_id="other")
    assert results.keys() == {"other", "timers"}
    assert differences(before, {ID: learner.module.get_state()[ID]}) == []
    assert differences(fresh, learner.module["other"].get_state())
    assert learner.get_state()["optimizers"].keys() == {ID, "other"}
    with pytest.raises(ValueError, match="expected an id other than default_policy, other, got 'other'"):
        learner.add_module("other", RLModuleSpec(Small, OBS, ACTIONS))
    learner.load_module_state("other", fresh)
    assert differences(fresh, learner.module["other"].get_state()) == []
    learner.remove_module("other")
    assert learner.get_state().keys() == make(Reinforce).get_state().keys()
    assert learner.get_state()["optimizers"].keys() == {ID}
    learner.update_from_episodes(rollout, env_steps=0)
    for call in (learner.remove_module, lambda name: learner.load_module_state(name, fresh)):
        with pytest.raises(KeyError, match="expected one of default_policy, got the module id 'other'"):
            call("other")
    again = make(Reinforce)
    again.add_module("other", RLModuleSpec(Small, OBS, ACTIONS, {"fcnet_hiddens": [5]}))
    assert differences(fresh, again.module["other"].get_state()) == []  # by the seed and the id


def test_a_module_that_lacks_an_ability_is_not_taken_in() -> None:
    class Plain(Small):
        pass

    Plain.__bases__ = tuple(base for base in Small.__bases__ if base is not ValueFunctionAPI)
    learner = make(Reinforce)
    with pytest.raises(TypeError, match=r"module 'plain'.*ValueFunctionAPI"):
        learner.add_module("plain", RLModuleSpec(Plain, OBS, ACTIONS))
    assert list(learner.module) == [ID]


# --- batches ----------------------------------------------------------------------------------------------------------


def learn_batches(collective: Collective, batches: list[Batch | None]) -> tuple[dict[str, Any], list[Metrics]]:
    learner = make(Regression)
    learner.connect(collective)
    history = [learner.step_on_batch(batch, env_steps=0)[ID] for batch in batches]
    return message(learner), history


@pytest.mark.parametrize("rows", [1, 5, 8])
def test_learners_from_batches_come_to_what_one_does(fleet: Fleet, rows: int) -> None:
    batches = [batch_of(float(seed), seed, rows) for seed in range(10)]
    (one, _), shards = learn_batches(SingleProcess(), list(batches)), [shard_batch(batch, 2) for batch in batches]
    (first, history), (second, _) = fleet.values(learn_batches, *[([s[rank] for s in shards],) for rank in range(2)])
    assert first["digest"] == second["digest"]
    assert float((first["weights"] - one["weights"]).abs().max()) < 1e-6
    assert all(metrics["rows_trained_on"] == -(-rows // 2) for metrics in history)


# --- data of your own ------------------------------------------------------------------------------------------------


class Doubles(Reinforce):
    def preprocess_train_data(self, rollout: Rollout) -> Rollout:
        twice = rollout[Columns.REWARDS] * 2
        return dataclasses.replace(rollout, columns=rollout.columns | {"twice": twice})

    def compute_loss_for_module(self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]) -> Any:
        assert torch.equal(batch["twice"], batch[Columns.REWARDS] * 2)
        return super().compute_loss_for_module(module_id, batch, fwd_out)


def test_columns_that_preprocessing_adds_reach_the_loss_of_all(fleet: Fleet) -> None:
    parts = shard_rollout(rollout_of(0), 2)
    several = fleet.values(learn, *[(Doubles, Small, [part], {}) for part in parts])
    assert several[0]["digest"] == several[1]["digest"]


def learn_uncounted(collective: Collective, parts: list[Any], cls: type[Learner]) -> tuple[int, dict[str, float]]:
    learner = make(cls)
    learner.connect(collective)
    update = learner.update_from_batch if cls is Regression else learner.update_from_episodes
    results = [update(part)[ID] for part in parts]
    return learner.env_steps, results[-1]


def test_env_steps_of_all_are_counted_and_numbers_are_of_all_rows(fleet: Fleet) -> None:
    rollout, batch = rollout_of(0), batch_of(rows=9)
    several = fleet.values(learn_uncounted, *[([part], Reinforce) for part in shard_rollout(rollout, 2)])
    assert [steps for steps, _ in several] == [rollout.num_env_steps] * 2
    several = fleet.values(learn_uncounted, *[([part], Regression) for part in shard_batch(batch, 2)])
    steps, numbers = learn_uncounted(SingleProcess(), [batch], Regression)
    assert [count for count, _ in several] == [steps] * 2 == [9] * 2
    for _, mine in several:
        assert mine == pytest.approx(numbers, rel=1e-5)
