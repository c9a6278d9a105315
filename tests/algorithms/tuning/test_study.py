"""A study's folder: its lines are its state, whatever killed the process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from algorithms.run.jobs import Jobs
from algorithms.run.run_folder import lock_folder
from algorithms.tuning.driver import Driver
from algorithms.tuning.page import importance, study_table, write_page
from algorithms.tuning.population import Population
from algorithms.tuning.samplers import sampler_named
from algorithms.tuning.search import Choices, parse_search
from algorithms.tuning.study import SeedResult, Study, Trial
from algorithms.tuning.trials import wait_until_free

CONFIG = {"lr": 0.1, "seed": None, "run_dir": "study"}
ABOUT: dict[str, Any] = {"algorithm": "PPO", "config": CONFIG, "search": ["lr=1..2"], "seeds": 2, "seed": 0}
SEARCH = parse_search(ABOUT["search"])


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    with closing(Study(tmp_path / "study", ABOUT, SEARCH)) as made:
        yield made


def ended(study: Study, values: list[float], *, state: Any = "finished") -> Trial:
    """A trial whose seeds 1, 2, … have ended with ``values``, which they had at all rungs, too."""
    trial = study.ask({"lr": 0.5})
    for seed, value in enumerate(values, 1):
        trial.results[seed] = SeedResult([value] * 4, value if state == "finished" else None, 100, "digest")
    study.tell(trial, state)
    return trial


def test_a_study_is_read_from_its_lines(study: Study) -> None:
    best = ended(study, [3.0, 1.0, 8.0])
    ended(study, [0.5, 0.5], state="pruned")
    running = study.ask({"lr": 0.1})
    best.results[1001] = SeedResult([], -5.0, 100, "other")
    study.tell(best, "finished")
    study.close()
    with closing(Study(study.folder, ABOUT, SEARCH)) as again:
        assert again.trials == study.trials
        assert (again.best.number, again.best.value) == (0, 3.0)  # the median, without the seed that no trial saw
        assert again.trials[2].number == running.number == 2
        assert not again.trials[2].results


@pytest.mark.parametrize("cut", range(1, 54, 7))
def test_a_last_line_that_was_cut_off_is_no_trial(study: Study, cut: int) -> None:
    ended(study, [1.0])
    study.ask({"lr": 0.1})
    study.close()
    file = study.folder / "trials.jsonl"
    file.write_bytes(file.read_bytes()[:-cut])
    with closing(Study(study.folder, ABOUT, SEARCH)) as again:
        assert [trial.state for trial in again.trials] == ["finished"]
        again.ask({"lr": 0.2})
    assert all(json.loads(line) for line in file.read_text().splitlines())


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"ended": 7, "state": "finished"}',
        '{"asked": 0}',
        '{"asked": 0, "shares": {"lr": "0.5"}}',
        '{"asked": 0, "shares": {"lr": 1.5}}',
        '{"asked": 0, "shares": {"lr": NaN}}',
        '{"asked": 0, "shares": {"env": 0.5}}',
        '{"asked": 0, "shares": {}}',
    ],
)
def test_damaged_lines_are_refused(study: Study, line: str) -> None:
    study.close()
    (study.folder / "trials.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=r"expected study\.json and trials\.jsonl of a study, got what"):
        Study(study.folder, ABOUT, SEARCH)


def test_settings_come_from_the_search_and_not_from_the_lines(study: Study) -> None:
    study.close()
    (study.folder / "trials.jsonl").write_text('{"asked": 0, "shares": {"lr": 0.5}, "point": {"env": "evil:Env"}}\n')
    with closing(Study(study.folder, ABOUT, SEARCH)) as again:
        assert again.trials[0].point == {"lr": SEARCH["lr"].at(0.5)}
    foreign = {"parent": 0, "shares": {"lr": 0.5}, "point": {"callbacks-class": "evil:Thing"}, "value": 1.0}
    (study.folder / "generations.jsonl").write_text(json.dumps({"members": [foreign] * 4}) + "\n")
    with closing(Population(study.folder, ABOUT, SEARCH)) as population:
        members = population.next_members(4, np.random.default_rng(0))
        assert all(member.point.keys() == {"lr"} for member in members)  # which become flags


@pytest.mark.parametrize("damage", ["[]", '"text"', '{"config": 3}', "{"])
def test_a_damaged_file_about_the_study_is_refused(study: Study, damage: str) -> None:
    study.close()
    (study.folder / "study.json").write_text(damage)
    with pytest.raises(ValueError, match=r"expected study\.json and trials\.jsonl of a study, got what"):
        Study(study.folder, ABOUT, SEARCH)


def test_a_run_that_still_saves_is_waited_for(tmp_path: Path) -> None:
    lock = lock_folder(tmp_path)
    begun = time.perf_counter()
    threading.Timer(0.5, lock.release).start()
    wait_until_free(tmp_path, Jobs(1))
    assert time.perf_counter() - begun > 0.4
    wait_until_free(tmp_path / "not there", Jobs(1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"search": ["lr=1..3"]}, r"the same search, got \['lr=1..2'\] there"),
        ({"config": {"lr": 0.2}}, "the same lr, got 0.1 there and 0.2 here"),
        ({"seed": 1}, "the same seed, got 0 there and 1 here"),
        ({"seeds": 3}, "the same seeds, got 2 there and 3 here"),
    ],
)
def test_the_folder_of_another_search_is_refused(study: Study, change: dict[str, Any], message: str) -> None:
    study.close()
    with pytest.raises(FileExistsError, match=message):
        Study(study.folder, ABOUT | change, SEARCH)


def test_a_study_that_was_moved_goes_on(study: Study) -> None:
    ended(study, [1.0])
    study.close()
    moved = study.folder.rename(study.folder.with_name("moved"))
    with closing(Study(moved, ABOUT | {"config": CONFIG | {"run_dir": "moved"}}, SEARCH)) as again:
        assert again.trials == study.trials


def test_a_study_begins_where_one_was_killed_before_it_had_begun(tmp_path: Path) -> None:
    (tmp_path / ".study.json-new").write_text("{")
    Study(tmp_path, ABOUT, SEARCH).close()
    assert json.loads((tmp_path / "study.json").read_text()) == ABOUT


def test_a_folder_with_something_else_or_that_another_process_uses_is_refused(study: Study) -> None:
    with pytest.raises(BlockingIOError, match="expected a folder in which no run is training"):
        Study(study.folder, ABOUT, SEARCH)
    (study.folder.parent / "run.json").touch()
    with pytest.raises(
        FileExistsError, match=r"expected a new folder or that of a study, got one with (run.json|study)"
    ):
        Study(study.folder.parent, ABOUT, SEARCH)


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file", "file/study"):
        with pytest.raises(OSError, match=rf"^run_dir '.*{name}': expected a folder to write to, got .+\. Choose"):
            Study(tmp_path / name, ABOUT, SEARCH)


def test_a_study_without_a_finished_trial_has_no_best(study: Study) -> None:
    ended(study, [1.0], state="pruned")
    with pytest.raises(ValueError, match="expected a trial that has finished, got none"):
        _ = study.best
    with pytest.raises(ValueError, match=r"expected a trial that has finished, got none\. Allow more trials"):
        write_page(study)


def test_a_test_that_fails_is_reported(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    ended(study, [1.0])
    with Jobs(1, lambda name, line: None) as jobs:
        driver = Driver(study, jobs, lambda trial, seed: ["nonsense"], 100, "", False, lambda done, facts: None)
        driver.test(range(1001, 1002))
    assert capsys.readouterr().err.startswith("Trial 0: a test failed. seed 1001: error: rlmodule: expected one of")


def test_the_table_names_settings_as_the_search_does(tmp_path: Path) -> None:
    search = parse_search(["model_config.fcnet_hiddens=[8]|[9]", "model_config.functions.value.fcnet_hiddens=[8]|[9]"])
    with closing(Study(tmp_path, ABOUT, search)) as study:
        trial = study.ask(dict(zip(search, (0.25, 0.75), strict=True)))
        trial.results[1] = SeedResult([], 1.0)
        study.tell(trial, "finished")
        assert "model_config.fcnet_hiddens [8], model_config.functions.value.fcnet_hiddens [9]" in study_table(study)


# --- pruning ----------------------------------------------------------------------------------------------------------


def judged(study: Study, rungs: dict[int, list[float | None]]) -> bool:
    """Whether a trial whose seeds have reached these rungs would be stopped at the last of them."""
    trial = study.ask({"lr": 0.1})
    trial.results = {seed: SeedResult(list(values)) for seed, values in rungs.items()}
    driver = Driver(study, Jobs(1), lambda trial, seed: [], 100, "", True, lambda done, facts: None)
    return driver.is_worse(trial, trial.num_rungs - 1, tuple(trial.results))


def test_a_trial_is_worse_below_the_median_of_the_others_with_the_same_seeds(study: Study) -> None:
    for value in (1.0, 2.0, 3.0, 10.0):
        ended(study, [value, value + 100])
    assert judged(study, {1: [2.4]})  # others: 1, 2, 3, 10
    assert not judged(study, {1: [2.5]})
    assert judged(study, {1: [9.0], 2: [92.0]})  # 50.5; others 51, 52, 53, 60 and, with both seeds, none of the above
    assert not judged(study, {1: [9.0], 2: [99.0]})
    assert not judged(study, {2: [None]})  # no episode has ended


def test_with_few_others_no_trial_is_stopped(study: Study) -> None:
    for value in (1.0, 2.0, 3.0):
        ended(study, [value])
    assert not judged(study, {1: [-100.0]})


# --- samplers and importance ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tpe", "random"])
def test_a_proposal_depends_on_the_seed_and_the_trials_alone(study: Study, name: Any) -> None:
    search = parse_search(["lr=log:1e-5..1e-2", "model_config.fcnet_activation=relu|tanh", "num_epochs=1..4"])
    sample = sampler_named(name)
    for number in range(14):
        shares = sample(search, study.trials, 3)
        assert shares == sample(search, study.trials, 3)
        assert {*shares} == {*search}
        assert all(0 <= share <= 1 for share in shares.values())
        trial = Trial(number, shares, {})
        study.trials.append(trial)
        trial.results[1] = SeedResult([1.0], float(number))
        study.tell(trial, ("finished", "failed", "pruned")[number % 3])
    assert sample(search, study.trials, 3) != sample(search, study.trials, 4)


def test_tpe_comes_nearer_to_the_top_of_a_hill_than_chance() -> None:
    search = parse_search(["lr=0.0..1.0", "x=0.0..1.0"])
    distances = {}
    for name in ("tpe", "random"):
        sample, trials = sampler_named(name), list[Trial]()
        for number in range(40):
            shares = sample(search, trials, 0)
            value = -((shares["lr"] - 0.3) ** 2 + (shares["x"] - 0.8) ** 2)
            trials.append(Trial(number, shares, {}, "finished", value))
        distances[name] = median(-trial.value for trial in trials[20:] if trial.value is not None)
    assert distances["tpe"] < 0.5 * distances["random"]


def test_importance_is_the_share_that_groups_explain_of_the_ranks() -> None:
    trials = []
    for number in range(40):
        shares = {"matters": (number % 4 + 0.5) / 4, "does not": (number // 10 + 0.5) / 4}
        trials.append(Trial(number, shares, {}, "finished", 100.0 * (number % 4) + number // 4))
    found = importance(trials, parse_search(["matters=0.1..0.2", "does not=0.1..0.2"]))
    # ranks: ten of each group of "matters" in a row, so means 4.5, 14.5, 24.5, 34.5
    assert found["matters"] == pytest.approx(125 / (40**2 - 1) * 12)
    assert found["does not"] < 0.15


def test_importance_of_choices_groups_the_trials_of_each_choice() -> None:
    shares = [(number + 0.5) / 60 for number in range(60)]  # as drawn at random
    for count in (2, 3, 5):
        values = Choices(tuple(range(count)))
        trials = [Trial(0, {"x": share}, {}, "finished", 100.0 * values.at(share) + share) for share in shares]
        # ranks 0 to 59 in equal parts: the variance of their means, by that of the ranks
        expected = (60 / count) ** 2 * (count**2 - 1) / (60**2 - 1)
        assert importance(trials, {"x": values})["x"] == pytest.approx(expected)
