"""The shell command: flags, exit codes, and what it tells."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from gymnasium import spaces

import catalog_rl
from algorithms import Algorithm
from algorithms.checks import Bounds, is_schedule
from algorithms.cli import COMMANDS, main, train_config
from algorithms.cli.flags import UsageError, flag_type
from algorithms.ppo import PPOConfig
from algorithms.registry import ALGORITHMS, config_class
from algorithms.settings import settings_of
from catalog import DefaultModelConfig

ROOT = Path(catalog_rl.__file__).resolve().parent
SMALL = [
    *("--num-envs-per-env-runner", "4", "--train-batch-size-per-learner", "64", "--minibatch-size", "32"),
    *("--num-epochs", "1", "--evaluation-duration", "2", "--seed", "1"),
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def flag(name: str) -> str:
    return "--" + name.strip("_").replace("_", "-")


def another(hint: Any, bounds: Bounds, default: Any) -> Any:
    """A value that fits ``hint`` and is not the default; None if it cannot be typed in a shell."""
    if is_schedule(hint):
        return [[0, 0.5], [1000, 0.25]]
    if get_origin(hint) is Literal:
        return next(choice for choice in get_args(hint) if choice != default)
    if get_origin(hint) in (dict, list, tuple) or "Mapping" in str(get_origin(hint)):
        return {dict: {"gain": 2}, list: [7, 8], tuple: (7, 8)}.get(get_origin(hint), {"gain": 2})
    if get_args(hint):
        inner = [another(part, bounds, default) for part in get_args(hint) if part is not NoneType]
        return next((value for value in inner if value is not None), None)
    if not isinstance(hint, type):
        return None
    candidates = {bool: [True, False], int: [2, 3, 0], float: [0.5, 0.25], str: ["some/text"]}.get(hint, [])
    return next((value for value in candidates if value != default and (hint in (bool, str) or value in bounds)), None)


def typed(name: str, value: Any) -> list[str]:
    """A value as a user types it."""
    if isinstance(value, bool):
        return [flag(name) if value else flag(f"no-{name}")]
    if isinstance(value, tuple) and not isinstance(value[0], tuple):
        return [flag(name), *map(str, value)]
    return [flag(name), json.dumps(value) if isinstance(value, list | tuple | dict) else str(value)]


# --- flags ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", sorted(ALGORITHMS))
def test_every_setting_can_be_given_and_arrives(algo: str) -> None:
    config_type = config_class(algo)
    default, args, expected = config_type(), [], {}
    for name, known in settings_of(config_type).items():
        value = another(known.hint, known.bounds, vars(default)[name])
        if value is not None and name not in ("env", "model_config"):
            args += typed(name, value)
            expected[name] = value
    assert len(expected) > 25
    assert {"lr", "seed", "run_dir", "env_config", "grad_clip", "evaluation_explore"} <= expected.keys()
    config, _ = train_config([algo, "CartPole-v1", *args])
    assert {name: vars(config)[name] for name in expected} == expected
    untouched = settings_of(config_type).keys() - expected.keys() - {"env"}
    assert {name: vars(config)[name] for name in untouched} == {name: vars(default)[name] for name in untouched}


NAMES: dict[str, Any] = {  # what a model setting accepts cannot be told from `str` and `Mapping`
    "fcnet_dropout": 0.25,
    "leaf_overrides": {"camera": {"conv_filters": "nature"}},
    "conv_filters": ((8, 4, 2, "valid"), (16, 3, 1)),
    "use_gru": False,  # an LSTM or a GRU
    "functions": {"value": {"fcnet_hiddens": [8]}},
    "custom_action_dist": "SquashedGaussian",
    "action_mask_key": "legal",
    "custom_model": "my_nets:Net",
    "custom_model_config": {"width": 3},
}
BY_ENDING = {"_activation": "relu", "_initializer": "uniform_", "_initializer_kwargs": {"a": 0.5}}


def test_every_model_setting_can_be_given_and_arrives() -> None:
    hints, default, args, expected = get_type_hints(DefaultModelConfig), DefaultModelConfig(), [], {}
    for item in dataclasses.fields(DefaultModelConfig):
        hint, before = hints[item.name], vars(default)[item.name]
        value = not before if bool in (hint, *get_args(hint)) else another(hint, Bounds(), before)
        value = next((known for ending, known in BY_ENDING.items() if item.name.endswith(ending)), value)
        value = NAMES.get(item.name, value)
        assert value is not None, item.name
        # an optional bool has three values, so it takes one as text
        args += [flag(item.name), str(value)] if hint == bool | None else typed(item.name, value)
        expected[item.name] = value
    config, _ = train_config(["ppo", "CartPole-v1", *args])
    assert len(expected) > 45
    assert isinstance(config.model_config, DefaultModelConfig)
    assert vars(config.model_config) == expected


def test_explain_without_an_env_asks_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 2
    assert "ENV" in capsys.readouterr().err


def test_without_flags_the_config_is_the_default() -> None:
    config, flags = train_config(["PPO", "CartPole-v1"])
    assert config.update({"run_dir": None}) == PPOConfig().environment("CartPole-v1")
    assert (flags.num_env_steps, flags.target_return) == (200_000, None)


@pytest.mark.parametrize(
    ("args", "name", "value"),
    [
        (["--lr", "1e-3"], "lr", 1e-3),
        (["--lr", ".5"], "lr", 0.5),
        (["--lr=[[0,3e-4],[1e6,0]]"], "lr", [[0.0, 3e-4], [1e6, 0.0]]),
        (["--grad-clip", "None"], "grad_clip", None),
        (["--minibatch_size", "16"], "minibatch_size", 16),
        (["--lambda", "0.9"], "lambda_", 0.9),
        (["--lambda_", "0.9"], "lambda_", 0.9),
        (["--env-config", '{"continuous": true}'], "env_config", {"continuous": True}),
        (["--no-use-kl-loss"], "use_kl_loss", False),
        (["--run-dir", "None"], "run_dir", None),
    ],
)
def test_spellings(args: list[str], name: str, value: Any) -> None:
    config, _ = train_config(["ppo", "CartPole-v1", *args])
    assert vars(config)[name] == value


@pytest.mark.parametrize("args", [["--fcnet-hiddens", "32", "16"], ["--fcnet-hiddens", "[32, 16]"]])
def test_model_flags_build_the_model_config(args: list[str]) -> None:
    config, _ = train_config(["ppo", "CartPole-v1", *args])
    assert config.model_config == DefaultModelConfig(fcnet_hiddens=(32, 16))


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (int | None, int | None),
        (str | Callable[..., Any] | None, str | None),
        (type[PPOConfig], None),
        (Callable[[], None] | None, None),
        (list[type], None),
        (dict[str, Any], dict[str, Any]),
    ],
)
def test_classes_and_functions_are_no_flags(hint: Any, expected: Any) -> None:
    assert flag_type(hint) == expected


def test_help_shows_every_flag_with_its_sentence_by_section(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "--help"]) == 0
    shown = " ".join(re.sub(r"[│╭╮╰╯─]", " ", capsys.readouterr().out).split())
    for name in ("num-env-steps", "target-return", "quiet", "debug"):
        assert flag(name) in shown
    for name, known in settings_of(PPOConfig).items():
        if name not in ("env", "model_config", "rl_module_spec", "learner_class"):
            assert f"{flag(name)} " in shown or f"{flag(name)}, " in shown, name
            assert " ".join(known.doc.split()[:5]) in shown
    for item in dataclasses.fields(DefaultModelConfig):
        assert flag(item.name) in shown
    for section in ("environment", "env-runners", "training", "evaluation", "reporting", "model"):
        assert f"{section} options" in shown
    assert "(>= 0 and <= 1) (default: 0.99)" in shown


@pytest.mark.parametrize("args", [["--help"], ["train", "--help"]])
def test_overview_lists_commands_and_algorithms(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(args) == 0
    shown = capsys.readouterr().out
    assert all(f"rlmodule {name} " in shown for name in COMMANDS)
    assert "ppo" in shown


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "code", "parts"),
    [
        (["tran"], 2, ["Did you mean 'train'?"]),
        (["train"], 2, ["ALGO first, got nothing"]),
        (["train", "--lr", "3"], 2, ["ALGO first", "rlmodule train ALGO ENV"]),
        (["train", "ppp", "CartPole-v1"], 2, ["'ppp'", "Did you mean 'PPO'?"]),
        (["explain", "CartPole-v1", "--algo", "ppp"], 2, ["Did you mean 'PPO'?"]),
        (["train", "ppo", "CartPole-v1", "--num-epoch", "3"], 2, ["'--num-epoch'", "Did you mean '--num-epochs'?"]),
        (["train", "ppo", "CartPole-v1", "--target-retrun=3"], 2, ["Did you mean '--target-return'?"]),
        (["train", "ppo", "CartPole-v1", "--fcnet-hidden", "3"], 2, ["Did you mean '--fcnet-hiddens'?"]),
        (["explain", "CartPole-v1", "--fcnet-hidens", "3"], 2, ["Did you mean '--fcnet-hiddens'?"]),
        (["explain", "CartPole-v1", "--num-epochs", "3"], 2, ["'--num-epochs'", "rlmodule explain --help"]),
        (["train", "ppo", "CartPole-v1", "--gamma", "2"], 1, ["--gamma: expected", "<= 1, got 2.0"]),
        (["train", "ppo", "CartPole-v1", "--lr", "[[5,1],[6,1]]"], 1, ["--lr: expected a schedule"]),
        (["train", "ppo", "CartPole-v1", "--env-config", "[1]"], 1, ["--env-config: expected dict"]),
        (["train", "ppo", "CartPole-v1", "--fcnet-hiddens", "0"], 1, ["fcnet_hiddens: expected a list of widths"]),
        (["train", "ppo", "CartPole-v1", "--minibatch-size", "9999"], 1, ["minibatch_size: expected at most"]),
        (["train", "ppo", "CartPole-v1", "--num-env-steps", "0"], 1, ["num_env_steps", "an int >= 1, got 0"]),
        (["train", "ppo", "CartPol-v1"], 1, ["Did you mean 'CartPole-v1'?"]),
        (["explain", "CartPol-v1"], 1, ["Did you mean 'CartPole-v1'?"]),
    ],
)
def test_a_mistake_is_told_in_one_line(
    args: list[str], code: int, parts: list[str], capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    assert main(args) == code
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert line.startswith("error: ")
    assert all(part in line for part in parts), line
    assert not list(here.glob("runs/*"))


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (["--num-epochs", "x"], "--num-epochs"),
        (["--lr", "fast"], "neither a number nor JSON"),
        (["--gym-env-vectorize-mode", "snc"], "'sync'"),
    ],
)
def test_a_value_that_cannot_be_read_is_a_usage_error(
    args: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "ppo", "CartPole-v1", *args]) == 2
    told = capsys.readouterr().err
    assert part in told
    assert "Traceback" not in told


def test_env_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo"]) == 2
    assert "ENV" in capsys.readouterr().err


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "CartPol-v1", "--debug"]) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_error_that_is_not_ours_says_its_type(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: PPOConfig) -> None:
        raise KeyError("left")

    monkeypatch.setattr(PPOConfig, "build", broken)
    assert main(["train", "ppo", "CartPole-v1"]) == 1
    assert capsys.readouterr().err == "error: KeyError: 'left' (--debug shows the traceback)\n"


def test_usage_errors_name_the_closest_flag() -> None:
    with pytest.raises(UsageError, match="Did you mean '--train-batch-size-per-learner'"):
        train_config(["ppo", "CartPole-v1", "--train-batch-size", "64"])


# --- train ------------------------------------------------------------------------------------------------------------


def test_train_tells_what_it_does_and_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "ppo", "CartPole-v1", *SMALL, "--num-env-steps", "200"]) == 0
    told = capsys.readouterr().out
    (run,) = Path("runs").iterdir()
    assert re.fullmatch(r"ppo-CartPole-v1-\d{8}-\d{6}", run.name)
    assert told.startswith("PPO on CartPole-v1\n")
    assert re.search(r"seed +1\n +parameters +9,155\n +run dir +runs/ppo", told)
    for name in ("checkpoint", "progress.jsonl", "learning_curve.png"):
        assert f"  {run / name}\n" in told
        assert (run / name).exists()
    assert len((run / "progress.jsonl").read_text().splitlines()) == 4
    assert re.search(r"Evaluation: return \d+\.\d over 2 episodes", told)
    assert told.endswith("    rlmodule explain CartPole-v1\n")
    snippet = told.partition("in Python:\n")[2].partition("\nand to see")[0]
    names: dict[str, Any] = {}
    exec(textwrap.dedent(snippet), names)
    assert names["action"] in (0, 1)
    names["env"].close()


def test_train_with_model_flags_env_config_and_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--fcnet-hiddens", "8", "--env-config", '{"sutton_barto_reward": true}', "--lr", "[[0,0.001],[1e3,0]]"]
    assert main(["train", "PPO", "CartPole-v1", *SMALL, *args, "--num-env-steps", "64", "--run-dir", "here"]) == 0
    told = capsys.readouterr().out
    assert "gymnasium.make('CartPole-v1', **{'sutton_barto_reward': True})" in told
    assert """rlmodule explain CartPole-v1 --env-config '{"sutton_barto_reward": true}'""" in told
    with Algorithm.from_checkpoint("here/checkpoint") as algorithm:
        assert algorithm.config.env_config == {"sutton_barto_reward": True}
        assert algorithm.config.lr == [[0, 0.001], [1000, 0]]
        assert re.search(r"4 ?→ ?8", algorithm.explain())


def test_an_env_beside_the_user(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "envs_of_mine.py").write_text(
        "import gymnasium\n"
        "gymnasium.register('Mine-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=9)\n"
    )
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(here))])
    assert main(["train", "ppo", "envs_of_mine:Mine-v0", *SMALL, "--num-env-steps", "64"]) == 0
    told = capsys.readouterr().out
    assert "return 9.0" in told
    assert ", allow=['envs_of_mine'])" in told
    assert [path.name.startswith("ppo-envs_of_mine-Mine-v0-") for path in Path("runs").iterdir()] == [True]


def test_quiet_prints_nothing(capfd: pytest.CaptureFixture[str], here: Path) -> None:
    args = ["--num-env-steps", "64", "--quiet", "--run-dir", "None", "--target-return", "-200"]
    assert main(["train", "ppo", "CartPole-v1", *SMALL, *args]) == 0
    assert capfd.readouterr() == ("", "")
    assert not list(here.iterdir())


def test_a_target_that_is_not_reached_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--num-env-steps", "64", "--target-return", "501", "--evaluation-interval", "1", "--run-dir", "run"]
    assert main(["train", "ppo", "CartPole-v1", *SMALL, *args]) == 1
    assert "The target return 501 was not reached.\n" in capsys.readouterr().err
    assert Path("run/checkpoint").exists()


def test_a_target_that_is_reached(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--num-env-steps", "640", "--target-return", "2", "--evaluation-interval", "1", "--run-dir", "run"]
    assert main(["train", "ppo", "CartPole-v1", *SMALL, *args]) == 0
    assert "The target return 2 was reached." in capsys.readouterr().out
    assert len(Path("run/progress.jsonl").read_text().splitlines()) == 1


def test_no_evaluation_where_no_episode_ends(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--train-batch-size-per-learner", "4", "--minibatch-size", "4", "--num-env-steps", "4", "--run-dir", "None"]
    assert main(["train", "ppo", "CartPole-v1", *SMALL, *args]) == 0
    told = capsys.readouterr().out
    assert "No episode has ended yet" in told
    assert "none: nothing will be written" in told


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_with_a_checkpoint(sent: signal.Signals, code: int) -> None:
    command = ["train", "ppo", "CartPole-v1", *SMALL, "--num-env-steps", "100000000", "--run-dir", "run"]
    # a process started in the background by a shell without job control ignores SIGINT
    script = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from algorithms.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        progress, deadline = Path("run/progress.jsonl"), time.monotonic() + 300
        while not (progress.exists() and progress.stat().st_size):
            assert time.monotonic() < deadline, "no iteration was finished"
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.05)
        process.send_signal(sent)
        told, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == code, told
    assert "Traceback" not in told
    assert f"Stopped by {sent.name}" in told
    told_rows = [json.loads(line) for line in progress.read_text().splitlines()]
    assert Path("run/learning_curve.png").stat().st_size > 0
    with Algorithm.from_checkpoint("run/checkpoint") as resumed:
        assert resumed.env_steps == told_rows[-1]["env_runners/num_env_steps_sampled_lifetime"] == 64 * len(told_rows)


# --- explain ----------------------------------------------------------------------------------------------------------


def test_explain_says_what_the_built_algorithm_says(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--env-config", '{"g": 9.0}', "--fcnet-hiddens", "8", "--vf-share-layers", "True"]
    assert main(["explain", "Pendulum-v1", "--algo", "PPO", *args]) == 0
    told = capsys.readouterr().out.strip()
    model = DefaultModelConfig(fcnet_hiddens=(8,), vf_share_layers=True)
    with PPOConfig().environment("Pendulum-v1").rl_module(model_config=model).build() as algorithm:
        assert told == algorithm.explain()
    assert "DiagGaussian" in told
    assert re.search(r"3 ?→ ?8", told)


def test_explain_builds_no_algorithm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Algorithm, "__init__", lambda self, config: pytest.fail("an algorithm was built"))
    assert main(["explain", "CartPole-v1"]) == 0
    assert capsys.readouterr().out.startswith("PPOCatalog\n")


def test_the_nets_of_an_algorithm_keep_its_own_defaults() -> None:
    config, _ = train_config(["dqn", "CartPole-v1", "--fcnet-use-layernorm", "--dueling"])
    model_config = config.get_rl_module_spec(spaces.Box(-1, 1, (4,)), spaces.Discrete(2)).model_config
    assert (model_config.fcnet_use_layernorm, model_config.dueling) == (True, True)
    assert (model_config.fcnet_hiddens, model_config.fcnet_activation) == ((256, 256), "relu")
    assert model_config.fcnet_kernel_initializer is None
    other, _ = train_config(["ppo", "CartPole-v1", "--fcnet-use-layernorm"])
    assert DefaultModelConfig.from_any(other.model_config).fcnet_hiddens == (64, 64)
