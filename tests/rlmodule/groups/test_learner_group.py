"""LearnerGroup as an algorithm sees it, with a learner in this process and with learners in other processes."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlmodule import BatchLearner, Columns, EpisodeLearner, Learner, LearnerGroup, RLModuleSpec
from rlmodule.checkpoint import save_checkpoint
from rlmodule.groups import remote_learner_group
from rlmodule.groups.remote_learner_group import RemoteLearnerGroup
from rlmodule.testing.data import clone, differences, random_rollout
from tests.fault_learners import FaultRegression, FaultReinforce, FaultSettings, Plan
from tests.rlmodule.toys import Regression, Reinforce, Settings, Small
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("ray_started")

SPEC = RLModuleSpec(Small, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2), {"fcnet_hiddens": [8]})
SMALLER = RLModuleSpec(Small, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2), {"fcnet_hiddens": [3]})
ID = "default_policy"
Make = Callable[..., LearnerGroup]


def learners(cls: type[Learner], seed: int = 0, settings: Settings | None = None) -> LearnerGroup:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LearnerGroup.create(settings or Settings(), cls, SPEC.as_multi(), run_seed=seed)


def batch(target: float = 1.0, rows: int = 4) -> dict[str, Any]:
    return {Columns.OBS: torch.linspace(-1, 1, rows * 4).view(rows, 4), "target": torch.full((rows, 2), target)}


def saved(path: Path, **modules: RLModuleSpec) -> tuple[Path, dict[str, dict[str, torch.Tensor]]]:
    """A checkpoint with modules of these ids, and their states."""
    states = {module_id: clone(spec.build().get_state()) for module_id, spec in modules.items()}
    return save_checkpoint(path, {"state": {"learners": {"module": states}}}), states


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def remote(folder: Path) -> Iterator[dict[type[Learner], LearnerGroup]]:
    """Two learners that learn from batches, and one that learns from episodes."""
    made: dict[type[Learner], LearnerGroup] = {}
    for cls, size in ((FaultRegression, 2), (FaultReinforce, 1)):
        settings = FaultSettings(folder=str(folder), num_learners=size, torch_num_threads=3 if size == 1 else None)
        made[cls] = learners(cls, 0, settings)
    yield made
    for group in made.values():
        group.stop()


@pytest.fixture(params=["here", "other_place"])
def make(request: pytest.FixtureRequest, folder: Path) -> Make:
    """Groups of learners, in this process or in others; the latter are the same ones for all tests."""

    def build(cls: type[Learner]) -> LearnerGroup:
        fresh = learners(cls, 0, FaultSettings(folder=str(folder), num_learners=0))
        if request.param == "here":
            return fresh
        group = request.getfixturevalue("remote")[cls]
        group.set_state(fresh.get_state())
        return group

    Plan(folder).clear()
    return build


# --- one learner, here ------------------------------------------------------------------------------------------------


def test_each_learner_is_fed_its_own_way() -> None:
    episodic, batched = learners(Reinforce), learners(Regression)
    rollout = random_rollout(episodic.get_module(ID), 8, 2)
    assert ID in episodic.update_from_episodes(rollout, env_steps=16)
    assert episodic.num_updates > 0
    assert ID in batched.update_from_batch(batch(), env_steps=16)
    assert batched.num_updates == 1
    with pytest.raises(TypeError, match=r"update_from_batch\(\).*Reinforce.*Call update_from_episodes\(\)"):
        episodic.update_from_batch(batch(), env_steps=16)
    with pytest.raises(TypeError, match=r"update_from_episodes\(\).*Regression.*Call update_from_batch\(\)"):
        batched.update_from_episodes(rollout, env_steps=16)
    assert batched.num_updates == 1


def test_a_group_is_made_by_create() -> None:
    with pytest.raises(TypeError, match="abstract class LearnerGroup"):
        LearnerGroup(Regression)  # type: ignore[abstract]


def test_the_two_kinds_of_learner_do_not_share_their_ways() -> None:
    assert not hasattr(EpisodeLearner, "update_from_batch")
    assert not hasattr(BatchLearner, "update_from_episodes")


def test_learner_state_round_trip() -> None:
    one, two = learners(Regression, 0), learners(Regression, 1)
    one.update_from_batch(batch(), env_steps=16)
    two.set_state(clone(one.get_state()))
    assert differences(one.get_state(), two.get_state()) == []
    assert two.num_updates == 1


def test_a_state_that_was_set_is_not_written_into() -> None:
    """It may be of memory that others read."""
    one, two = learners(Regression, 0), learners(Regression, 1)
    one.update_from_batch(batch(), env_steps=16)
    state = clone(one.get_state())
    before = clone(state)
    two.set_state(state)
    two.update_from_batch(batch(), env_steps=32)
    assert differences(state, before) == []


def test_a_learner_here_is_always_done_at_once() -> None:
    group = learners(Regression)
    for number in range(1, 5):
        group.wait_for_room()
        assert group.has_room
        results = group.update_from_batch(batch(), env_steps=0, async_update=True)
        assert len(results) == 1
        assert group.num_updates == number
    assert group.get_counters()["num_env_steps_dropped"] == 0
    assert group.report() == {}


# --- in this process and in others -----------------------------------------------------------------------------------


@pytest.mark.end_to_end
def test_learners_elsewhere_come_to_what_one_here_does(make: Make, folder: Path) -> None:
    group, local = (
        make(FaultRegression),
        learners(FaultRegression, 0, FaultSettings(folder=str(folder), num_learners=0)),
    )
    for number in range(3):
        data = batch(number, rows=5)
        mine = group.step_on_batch(data, env_steps=number)[ID]
        expected = local.step_on_batch(data, env_steps=number)[ID]
        assert mine.keys() == expected.keys()
        torch.testing.assert_close(mine["error_of_row"], expected["error_of_row"])  # in the order of the rows
        assert float(mine["total_loss"]) == pytest.approx(float(expected["total_loss"]), rel=1e-6)
        assert float(mine["rows_of_all"]) == 5
        assert all(value.device.type == "cpu" for value in mine.values())
    state, expected = group.get_state()["module"][ID], local.get_state()["module"][ID]
    for name, _ in local.get_module(ID).named_parameters():
        torch.testing.assert_close(state[name], expected[name], rtol=0, atol=1e-6)


def test_weights_and_their_version_are_handed_over_together(make: Make) -> None:
    group = make(FaultRegression)
    other_place = isinstance(group, RemoteLearnerGroup)
    before = clone(group.get_module(ID).get_state())
    history = [group.step_on_batch(batch(), env_steps=0) for _ in range(2)]
    assert group.num_updates == (0 if other_place else 2)
    assert (differences(before, group.get_module(ID).get_state()) == []) is other_place
    assert group.get_state()["num_updates"] == 2  # in any case
    assert group.num_updates == (0 if other_place else 2)
    assert differences(group.get_state()["module"][ID], before)
    summary = group.summarize_updates(history)
    assert summary[ID]["total_loss"] > 0
    assert group.num_updates == 2
    assert differences(group.get_state()["module"][ID], group.get_module(ID).get_state()) == []
    assert differences(before, group.get_module(ID).get_state())
    assert group.summarize_updates([]) == {}


def test_weights_are_handed_over_after_64_updates_at_the_latest(make: Make) -> None:
    group = make(FaultRegression)
    for _ in range(66):
        group.step_on_batch(batch(), env_steps=0)
    assert group.num_updates == (64 if isinstance(group, RemoteLearnerGroup) else 66)
    assert group.get_state()["num_updates"] == 66


def test_what_this_process_set_in_its_copy_is_saved(make: Make) -> None:
    group = make(FaultReinforce)
    group.get_module(ID).get_buffer("trained_on").fill_(77)
    assert int(group.get_state()["module"][ID]["trained_on"]) == 77


def test_an_unknown_module_is_told_with_those_there_are(make: Make) -> None:
    batched, episodic = make(FaultRegression), make(FaultReinforce)
    with pytest.raises(KeyError, match=r"expected one of default_policy, got .*'default_polcy'.*Did you mean"):
        batched.update_from_batch(batch(), env_steps=0, module_id="default_polcy")
    with pytest.raises(KeyError, match=r"expected one of default_policy"):
        episodic.update_from_episodes(random_rollout(SPEC.build(), 4, 2), env_steps=0, module_id="other")
    with pytest.raises(KeyError, match=r"expected one of default_policy"):
        batched.remove_module("other")


def test_results_are_reduced_by_a_function_of_ones_own(make: Make) -> None:
    group = make(FaultRegression)
    size = 2 if isinstance(group, RemoteLearnerGroup) else 1
    assert group.update_from_batch(batch(), env_steps=0, reduce_fn=len) == size
    errors = group.update_from_batch(
        batch(rows=5), env_steps=0, reduce_fn=lambda results: [each[ID]["error_of_row"] for each in results]
    )
    assert errors == [errors[0]] * size  # each is about all rows


def test_a_function_of_ones_own_that_raises_disturbs_nobody(make: Make) -> None:
    group = make(FaultRegression)
    with pytest.raises(ZeroDivisionError):
        group.update_from_batch(batch(), env_steps=0, reduce_fn=lambda results: 1 / 0)
    group.update_from_batch(batch(), env_steps=0)
    assert group.get_state()["num_updates"] == 2


def test_modules_come_and_go(make: Make) -> None:
    group = make(FaultRegression)
    before = clone(group.get_module(ID).get_state())
    group.add_module("other", SMALLER)
    expected = learners(FaultRegression, 0)
    expected.add_module("other", SMALLER)
    assert differences(group.get_module("other").get_state(), expected.get_module("other").get_state()) == []
    assert group.update_from_batch(batch(), env_steps=0, module_id="other").keys() == {"other"}
    assert differences(group.get_module("other").get_state(), expected.get_module("other").get_state())
    assert differences(group.get_module(ID).get_state(), before) == []
    with pytest.raises(ValueError, match="expected an id other than default_policy, other"):
        group.add_module("other", SPEC)
    group.remove_module("other")
    assert [*group.module] == [ID]
    assert group.get_state()["module"].keys() == group.get_state()["optimizers"].keys() == {ID}
    group.update_from_batch(batch(), env_steps=0)


def test_a_module_that_is_added_costs_no_random_numbers(make: Make) -> None:
    group = make(FaultRegression)
    before = torch.random.get_rng_state()
    group.add_module("other", SMALLER)
    assert torch.equal(torch.random.get_rng_state(), before)
    group.remove_module("other")


def test_weights_are_loaded_out_of_checkpoints(make: Make, tmp_path: Path) -> None:
    group = make(FaultRegression)
    group.update_from_batch(batch(), env_steps=0)
    group.add_module("other", SMALLER)
    optimizers = clone(group.get_state()["optimizers"])
    both, states = saved(tmp_path / "both", default_policy=SPEC, other=SMALLER)
    single, of_single = saved(tmp_path / "single", other=SMALLER)
    group.load_modules(both, module_ids=["other"])
    assert differences(group.get_module("other").get_state(), states["other"]) == []
    assert differences(group.get_module(ID).get_state(), states[ID])
    group.load_modules(both, paths={"other": single})
    expected = {ID: states[ID], "other": of_single["other"]}
    assert differences(group.module.get_state(), expected) == []
    assert differences(group.get_state()["module"], expected) == []
    group.load_modules(both)
    assert differences(group.get_state()["module"], states) == []
    assert differences(group.get_state()["optimizers"], optimizers) == []
    group.remove_module("other")


def test_a_module_that_is_to_come_from_two_places_is_named(tmp_path: Path) -> None:
    group = learners(Regression)
    group.add_module("walker", SMALLER)
    before = clone(group.get_state())
    path, _ = saved(tmp_path / "one", default_policy=SPEC, walker=SMALLER)
    with pytest.raises(ValueError, match="'walker' in both module_ids and paths") as caught:
        group.load_modules(path, module_ids=[ID, "walker"], paths={"walker": path})
    assert ID not in str(caught.value)
    for wrong in ({}, {"module_ids": [ID]}):
        with pytest.raises(ValueError, match="expected a checkpoint to load from"):
            group.load_modules(**wrong)  # type: ignore[arg-type]
    alone, _ = saved(tmp_path / "alone", default_policy=SPEC)
    with pytest.raises(
        KeyError, match=re.escape("expected one of default_policy, which this checkpoint has, got 'walker'")
    ):
        group.load_modules(alone)
    with pytest.raises(KeyError, match="expected one of default_policy, walker, got the module id 'runner'"):
        group.load_modules(path, module_ids=["runner"])
    swapped, _ = saved(tmp_path / "swapped", default_policy=SPEC, walker=SPEC)
    with pytest.raises(ValueError, match="a state that differs at"):
        group.load_modules(swapped)
    with pytest.raises(ValueError, match="expected the checkpoint of an algorithm"):
        group.load_modules(save_checkpoint(tmp_path / "other", {"a": 1}))
    assert differences(group.get_state(), before) == []


def test_what_was_counted_of_learner_processes_is_kept(make: Make) -> None:
    group, counters = make(FaultRegression), {"num_learner_restarts": 3, "num_env_steps_dropped": 40}
    group.set_counters(counters)
    assert group.get_counters() == counters
    group.update_from_batch(batch(), env_steps=0)
    assert group.get_counters() == counters
    if isinstance(group, RemoteLearnerGroup):
        assert group.report()["num_learner_restarts_lifetime"] == 3
        group.set_counters(dict.fromkeys(counters, 0))


# --- without waiting --------------------------------------------------------------------------------------------------


def test_updates_that_nobody_waits_for_are_told_once_and_dropped_where_there_are_two(
    remote: dict[type[Learner], LearnerGroup], folder: Path
) -> None:
    group, plan = remote[FaultReinforce], Plan(folder)
    group.set_state(learners(FaultReinforce).get_state())
    rollout = random_rollout(group.get_module(ID), 8, 4)
    group.set_counters({"num_learner_restarts": 0, "num_env_steps_dropped": 0})
    before = group.num_updates
    plan.write("sleep")  # so that the first one takes a while
    for _ in range(4):
        assert group.update_from_episodes(rollout, env_steps=0, async_update=True) == []
    assert group.get_counters()["num_env_steps_dropped"] == 2 * rollout.num_env_steps
    assert group.num_updates == before
    own = group.update_from_episodes(rollout, env_steps=5)  # waits for its own result, after the others
    assert own[ID]["learning_rate"] == 0.01
    of_each = group.num_updates // 3
    assert group.num_updates == 3 * of_each > 0
    late = group.update_from_episodes(rollout, env_steps=0, async_update=True, reduce_fn=lambda results: "mine")
    assert len(late) == 2
    assert all(ID in each for each in late)
    group.get_state()  # waits for all
    assert group.num_updates == 4 * of_each
    message = group.update_from_episodes(rollout, env_steps=0, async_update=True)
    assert message[0] == "mine"
    group.get_state()


def test_no_update_is_dropped_by_who_waits_for_room(remote: dict[type[Learner], LearnerGroup], folder: Path) -> None:
    group, plan = remote[FaultReinforce], Plan(folder)
    group.set_state(learners(FaultReinforce).get_state())
    rollout = random_rollout(group.get_module(ID), 8, 4)
    group.set_counters({"num_learner_restarts": 0, "num_env_steps_dropped": 0})
    before, results = group.num_updates, list[Any]()
    plan.write("sleep")
    for _ in range(2):
        assert group.has_room
        results += group.update_from_episodes(rollout, env_steps=0, async_update=True)
    assert not group.has_room  # the first one takes a while
    wait_for(lambda: group.has_room)
    for _ in range(4):
        group.wait_for_room()
        assert group.has_room
        results += group.update_from_episodes(rollout, env_steps=0, async_update=True)
    num_updates = group.get_state()["num_updates"]  # waits for all
    assert group.get_counters()["num_env_steps_dropped"] == 0
    results += group.update_from_episodes(rollout, env_steps=0, async_update=True)
    assert len(results) in (6, 7)  # the last update may be done at once
    assert (num_updates - before) % 6 == 0 < num_updates - before
    group.get_state()


def test_asynchronous_updates_return_weights_and_rarely_the_state(
    remote: dict[type[Learner], LearnerGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    group: Any = remote[FaultReinforce]
    group.set_state(learners(FaultReinforce).get_state())
    rollout = random_rollout(group.get_module(ID), 8, 4)

    def update() -> None:
        group.update_from_episodes(rollout, env_steps=0, async_update=True)
        wait_for(lambda: group.has_room and not group.num_unfinished)

    before = group.num_updates
    for _ in range(3):
        update()
    assert group._state["num_updates"] == before < group.num_updates
    state = group.get_state()
    assert state["num_updates"] == group.num_updates
    assert differences(state["module"][ID], group.get_module(ID).get_state()) == []
    monkeypatch.setattr(remote_learner_group, "MAX_BYTES_TO_REPEAT", 1)  # the data that is kept is larger
    update()
    assert group._state["num_updates"] == group.num_updates
    assert not group._tasks  # nothing is kept
    group.get_state()


def test_there_is_no_learner_here_where_they_are_elsewhere(remote: dict[type[Learner], LearnerGroup]) -> None:
    with pytest.raises(RuntimeError, match="Set num_learners=0"):
        _ = remote[FaultReinforce].learner


def test_learners_elsewhere_compute_on_as_many_threads_as_the_settings_say(
    remote: dict[type[Learner], LearnerGroup],
) -> None:
    group = remote[FaultReinforce]
    assert isinstance(group, RemoteLearnerGroup)
    assert group._call("num_threads") == 3
