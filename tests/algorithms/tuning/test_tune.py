"""``tune`` and ``rlmodule tune``: trials of several seeds in processes, the command that repeats the best, and
populations whose members take over from one another."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import catalog_rl
from algorithms import Algorithm, tune
from algorithms.cli import main
from algorithms.cli.train import train_plan
from algorithms.ppo import PPOConfig
from algorithms.run.jobs import Jobs
from algorithms.run.results import read_result
from algorithms.tuning.page import winning_command
from algorithms.tuning.population import ADAPTED, SECTIONS, Population, _flag, check_perturbable, train_population
from algorithms.tuning.search import Choices, parse_search
from algorithms.tuning.study import Study
from catalog.settings import settings_of
from rlmodule.testing.data import differences
from tests.algorithms.test_changed_settings import ACTS, FROM_DATA, REFUSED, RUNS

ROOT = Path(catalog_rl.__file__).resolve().parent
SETTINGS: dict[str, Any] = {
    "num_envs_per_env_runner": 4,
    "train_batch_size_per_learner": 64,
    "minibatch_size": 32,
    "num_epochs": 1,
    "evaluation_duration": 2,
    "model_config": {"fcnet_hiddens": [8]},
}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items() if name != "model_config"]
FLAGS += ["--fcnet-hiddens=8", "--num-env-steps=256", "--run-dir=study"]
SEARCH = ["--search", "lr=log:1e-4..1e-2", "num_epochs=1..4", "--sampler", "random"]


def config(env: Any = "CartPole-v1") -> PPOConfig:
    return PPOConfig(**SETTINGS).environment(env)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.end_to_end
def test_the_printed_command_repeats_the_best_trial_bit_for_bit(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["tune", "ppo", "CartPole-v1", *FLAGS, *SEARCH, "--trials", "3", "--seeds", "2", "--test-seeds", "1"]
    assert main([*args, "--jobs", "2"]) == 0
    out, err = capsys.readouterr()
    assert "0 runs left" in err
    with_lines = [json.loads(line) for line in Path("study/trials.jsonl").read_text().splitlines()]
    about = json.loads(Path("study/study.json").read_text())
    study = Study(Path("study"), about, parse_search(about["search"]))
    study.close()
    assert [trial.state for trial in study.trials] == ["finished"] * 3
    assert all({*trial.results} == {1, 2, 1001} for trial in study.trials)
    assert len(with_lines) == 3 + 3 + 3
    for name in ("study.md", "study.png", "curves.png"):
        assert (study.folder / name).stat().st_size > 0

    command = winning_command(study)
    assert command in out
    assert command in (study.folder / "study.md").read_text()
    assert main(command.split()[1:]) == 0
    for seed in (1, 2):
        again = read_result(study.folder / "winner" / f"seed-{seed}")
        assert again.digest == study.best.results[seed].digest
        assert again.final_return == study.best.results[seed].final

    # killed between the line and the first file of a trial
    shutil.rmtree(study.folder_of(study.trials[2]))
    lines = Path("study/trials.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line).get("ended") != 2]
    Path("study/trials.jsonl").write_text("\n".join(kept) + "\n")
    assert main(args) == 0
    again = Study(study.folder, about, study.search)
    again.close()
    assert again.trials == study.trials

    with_lines = [json.loads(line) for line in Path("study/trials.jsonl").read_text().splitlines()]
    capsys.readouterr()
    assert main(args) == 0  # all is there: nothing is trained, whatever --jobs was
    assert [json.loads(line) for line in Path("study/trials.jsonl").read_text().splitlines()] == with_lines
    assert command in capsys.readouterr().out


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["ppo", "CartPole-v1"], "search: expected NAME=LOW..HIGH"),
        (["ppo", "CartPole-v1", "--search", "learning_rate=1..2"], "learning_rate"),
        (["ppo", "CartPole-v1", "--search", "num_epochs=0..2"], "num_epochs"),
        (["ppo", "CartPole-v1", "--search", "seed=1..5"], "settings that all runs of a trial share, got seed"),
        (["ppo", "NoSuchEnv-v0", "--search", "lr=1e-4..1e-3"], "NoSuchEnv"),
        (["ppo", "CartPole-v1", "--search", "lr=1e-4..1e-3", "--jobs", "1000"], "jobs: expected at most the"),
        (["ppo", "CartPole-v1", "--search", "lr=1e-4..1e-3", "--trials", "0"], "--trials"),
        (["ppo", "CartPole-v1", "--search", "lr=1e-4..1e-3", "--pbt", "4", "--seeds", "2"], "--seeds: expected none"),
        (["ppo", "CartPole-v1", "--search", "lr=1e-4..1e-3", "--pbt", "3"], "--pbt"),
        (["ppo", "CartPole-v1", "--search", "num_envs_per_env_runner=1|2", "--pbt", "4"], "num_envs_per_env_runner"),
        (["bc", "--data", "data", "--search", "lr=1e-4..1e-3", "--num-updates", "9"], "whose returns are the values"),
        (["ppo", "CartPole-v1", "--search", "lr=1e-4..1e-3", "--num-updates", "9", "--num-env-steps", "9"], "got both"),
        (["ppo", "CartPole-v1", "--search", "lr=1e-4..1e-3", "--pbt-interval", "9"], "expected --pbt with it"),
        (["ppo", "CartPole-v1", "--search", "lr=1e-4..1e-3", "--run-dir", "None"], "a study needs, got None"),
        ([], "expected ALGO first"),
    ],
)
def test_a_wrong_command_is_refused_before_the_first_trial(
    here: Path, args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tune", *args]) in (1, 2)
    err = capsys.readouterr().err
    assert message in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert not list(here.glob("**/trial-*"))


def test_an_env_that_other_processes_cannot_import_is_refused() -> None:
    def cartpole() -> gym.Env[Any, Any]:
        return gym.make("CartPole-v1")

    for env in (cartpole, lambda: gym.make("CartPole-v1")):
        with pytest.raises(ValueError, match=r"^tune\(\): expected settings that other processes can import, got env="):
            tune(config(env), ["lr=1e-4..1e-3"], num_env_steps=64)


def test_tpe_without_optuna_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match=r'pip install "catalog-rl\[tune\]".*random'):
        tune(config(), ["lr=1e-4..1e-3"], num_env_steps=64)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sampler": "cmaes"}, r"tune\(sampler=\): expected 'tpe' \| 'random', got 'cmaes'"),
        ({"prune": "hyperband"}, r"tune\(prune=\): expected 'median' \| 'none', got 'hyperband'"),
        ({"seeds": "3"}, r"tune\(seeds=\): expected int, >= 1, got '3'"),
        ({"trials": 0}, r"tune\(trials=\): expected finite int, >= 1, got 0"),
        ({"test_seeds": -1}, r"tune\(test_seeds=\): expected finite int, >= 0, got -1"),
        ({"run_dir": None}, r"^run_dir: expected a folder, which a study needs, got None\. Leave it out\."),
    ],
)
def test_a_wrong_argument_is_refused(given: dict[str, Any], message: str, here: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        tune(config("NoSuchEnv-v0"), ["lr=1e-4..1e-3"], num_env_steps=64, **given)  # before the env is made


@pytest.mark.parametrize("given", [{}, {"num_env_steps": 1, "num_updates": 1}])
def test_one_budget_is_expected(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"tune\(\): expected num_env_steps or num_updates"):
        tune(config(), ["lr=1e-4..1e-3"], **given)


NAN = """
import gymnasium as gym

class Nan(gym.Wrapper):
    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

    def step(self, action):
        obs, _, *rest = self.env.step(action)
        return obs, float("nan"), *rest
"""


@pytest.mark.end_to_end
def test_trials_that_all_fail_end_the_study(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "nan_env.py").write_text(NAN)
    monkeypatch.syspath_prepend(here)
    assert main(["tune", "ppo", "nan_env:Nan", *FLAGS, *SEARCH, "--trials", "2", "--seeds", "1"]) == 1
    err = capsys.readouterr().err
    assert "error: tune(): expected trials that train, got 2 that failed. seed 1: error: " in err
    assert "reward" in err


# --- kills ------------------------------------------------------------------------------------------------------------

TUNE = [sys.executable, "-m", "algorithms.cli", "tune", "ppo", "CartPole-v1", *FLAGS, *SEARCH, "--quiet"]
TUNE += ["--trials", "3", "--seeds", "1", "--test-seeds", "0"]


def ended_in(folder: Path) -> dict[int, Any]:
    lines = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    return {line["ended"]: (line["value"], line["results"]) for line in lines if "ended" in line}


@pytest.mark.faults
def test_a_study_that_is_killed_again_and_again_ends_as_one_that_was_not(here: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    undisturbed = [*TUNE[:-6], "--run-dir", "undisturbed", *TUNE[-6:]]
    undisturbed.remove("--run-dir=study")
    subprocess.run(undisturbed, env=env, check=True, stdin=subprocess.DEVNULL)
    rng, before = random.Random(int(os.environ.get("SEED_OF_KILLS", "0"))), dict[int, Any]()
    for _ in range(int(os.environ.get("NUM_KILLS", "4"))):
        process = subprocess.Popen(TUNE, env=env, stdin=subprocess.DEVNULL)
        time.sleep(rng.uniform(0.5, 9))
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = ended_in(here / "study") if (here / "study" / "trials.jsonl").exists() else {}
        assert now.items() >= before.items()  # no trial is lost
        before = now
    for _ in range(20):  # a run that was left alone may still save, and holds its folder until then
        if subprocess.run(TUNE, env=env, check=False, stdin=subprocess.DEVNULL).returncode == 0:
            break
        time.sleep(1)
    assert ended_in(here / "study") == ended_in(here / "undisturbed")


# --- populations ------------------------------------------------------------------------------------------------------


@pytest.mark.end_to_end
def test_a_member_goes_on_from_its_donor_bit_for_bit_with_settings_that_act(here: Path) -> None:
    def trained(steps: int) -> Population:
        return train_population(
            config(),
            ["lr=log:1e-4..1e-2", "clip_param=0.05..0.4"],
            size=4,
            num_env_steps=steps,
            interval=64,
            jobs=2,
            run_dir="population",
            progress=False,
        )

    assert len(trained(128).generations) == 2
    population = trained(192)  # goes on
    assert len(population.generations) == 3
    for number, members in enumerate(zip(*population.generations, strict=True)):
        for generation, member in enumerate(members):
            run = here / "population" / f"member-{number}" / f"generation-{generation:03d}"
            settings = json.loads((run / "run.json").read_text())["config"]
            assert {name: settings[name] for name in member.point} == member.point
            assert read_result(run).digest == member.digest
    later = population.generations[1]
    [replaced] = [number for number in range(4) if later[number].parent != number]
    donor = here / "population" / f"member-{later[replaced].parent}" / "generation-000" / "checkpoint"
    here_alone: dict[str, Any] = {"run_dir": None, "loggers": None}
    with (
        Algorithm.from_checkpoint(donor, **here_alone) as before,
        Algorithm.from_checkpoint(donor, **here_alone, **later[replaced].point) as taken,
    ):
        changed = differences(taken.get_state()["learners"], before.get_state()["learners"])
        assert {name.rpartition("/")[2] for name in changed} == {"lr", "initial_lr"}  # all else is the donor's
        taken.train()
        weights = taken.learner_group.get_state()
        before.train()
        assert differences(before.learner_group.get_state(), weights)  # the settings act
    run = here / "population" / f"member-{replaced}" / "generation-001"
    with Algorithm.from_checkpoint(run) as member:
        assert differences(member.learner_group.get_state(), weights) == []


@pytest.mark.parametrize("evaluates", [True, False])
def test_a_member_has_ended_once_it_has_evaluated(here: Path, evaluates: bool) -> None:
    """A signal in its last iteration leaves the steps without the evaluation, whose return is the member's value."""
    with closing(Population(here / "population", {"config": {}}, {})) as population:
        run = here / "population" / "member-0" / "generation-000"
        settings = config().evaluation(evaluation_interval=1 if evaluates else None).reporting(run_dir=str(run))
        with settings.build() as algorithm:
            algorithm.learn(num_env_steps=64)
        assert population._has_ended(0, 64, Jobs(1)) is evaluates
        assert run.exists() is evaluates


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("use_kl_loss", True),
        ("use_kl_loss", False),
        ("grad_clip", None),
        ("lr", 1e-5),
        ("lr", [[0, 0.1], [9, 0.2]]),
        ("clip_rewards", "sign"),
    ],
)
def test_the_flag_of_a_member_sets_its_value(name: str, value: Any) -> None:
    assert vars(train_plan(["ppo", "CartPole-v1", _flag(name, value)]).config)[name] == value


def test_members_may_write_checkpoints_and_videos(here: Path) -> None:
    settings = config().checkpointing(checkpoint_interval=1).reporting(run_dir="population")
    settings.evaluation(evaluation_interval=1, evaluation_num_videos=1)
    check_perturbable(settings, parse_search(["lr=1e-4..1e-3"]))
    assert not [*here.iterdir()]


def numbers_in(run: str, table: dict[str, Any]) -> dict[str, Choices]:
    """The numbers in the row of ``run``, of the sections that are about learning."""
    known = settings_of(type(RUNS[run]))
    return {
        name: Choices((value,))
        for name, value in table[run].items()
        if type(value) in (int, float) and known[name].section in SECTIONS and name not in ADAPTED
    }


@pytest.mark.parametrize("run", [name for name in ACTS if name not in FROM_DATA])
def test_settings_that_act_on_a_run_that_goes_on_may_change_in_a_population(run: str) -> None:
    """That they act is tested for each of them where the table is."""
    search = numbers_in(run, ACTS)
    assert search
    check_perturbable(RUNS[run], search)


@pytest.mark.parametrize(
    ("run", "name", "why"),
    [
        ("PPO", "kl_coeff", "what the run adapts"),
        ("SAC", "initial_alpha", "what the run adapts"),
        ("PPO", "evaluation_duration", r"a setting of \.evaluation\(\)"),
        ("PPO", "model_config.fcnet_hiddens", "a part of one"),
        ("PPO", "env", r"a setting of \.environment\(\)"),
        ("PPO", "num_envs_per_env_runner", r"a setting of \.env_runners\(\)"),
        *(
            (run, name, "what does not fit a resumed run")
            for run in ("DQN", "SAC")
            for name in numbers_in(run, REFUSED)
        ),
    ],
)
def test_other_settings_are_refused_by_name(run: str, name: str, why: str) -> None:
    dimension = Choices((REFUSED.get(run, {}).get(name, 5),))
    with pytest.raises(
        ValueError, match=f"^search: expected settings that a run reads as it goes on, got {name}, .*{why}"
    ):
        check_perturbable(RUNS[run], {name: dimension})


def test_a_population_needs_members_and_intervals() -> None:
    for size, interval in ((3, 64), (4, 0), (4, 65)):
        with pytest.raises(
            ValueError, match=r"train_population\(\): expected at least 4 members, and an interval from 1"
        ):
            train_population(config(), ["lr=1..2"], size=size, interval=interval, num_env_steps=64)


def test_a_search_of_lines_is_that_of_a_dict() -> None:
    assert parse_search(["lr=1e-4..1e-3"]) == parse_search(
        [f"{name}={text}" for name, text in {"lr": "1e-4..1e-3"}.items()]
    )
