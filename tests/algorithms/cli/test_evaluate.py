"""``rlmodule evaluate``: which checkpoint it takes, what it needs of the training, what it prints and records."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

from algorithms import Algorithm
from algorithms.cli import evaluate as module
from algorithms.cli import main
from algorithms.dqn import DQNConfig
from algorithms.ppo import PPOConfig
from algorithms.run.results import read_result
from algorithms.run.text import return_text
from rlmodule import Policy
from tests.deploy.test_agent_policies import team

TINY: dict[str, Any] = {
    "num_envs_per_env_runner": 2,
    "train_batch_size_per_learner": 16,
    "minibatch_size": 16,
    "num_epochs": 1,
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def measured(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    """What ``--json`` prints."""
    assert main(["evaluate", *args, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def saved(config: PPOConfig | DQNConfig, path: str = "saved") -> str:
    with config.build() as algorithm:
        algorithm.save(path)
    return path


def seed(number: int) -> Path:
    """The folder of a short run, as one of several seeds."""
    config = PPOConfig(env="CartPole-v1", seed=number, run_dir=f"runs/seed-{number}", **TINY)
    with config.evaluation(evaluation_interval=1, evaluation_duration=2).build() as algorithm:
        algorithm.learn(num_env_steps=16)
    return Path(f"runs/seed-{number}")


def test_a_folder_of_several_seeds_stands_for_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    finals = {run: read_result(run).final_return for run in map(seed, (1, 2, 3))}
    best = max(finals, key=lambda run: finals[run])
    assert len({*finals.values()}) == 3
    assert main(["evaluate", "runs", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["checkpoint"] == str(best / "best_checkpoint")
    which = f"{best}: the best of 3 seeds, final return {return_text(finals[best])}\n"
    assert printed.err.startswith(which)
    assert main(["export", "runs", "policy"]) == 0
    assert capsys.readouterr().err == which
    policies = [Policy.load(path).module.state_dict() for path in ("policy", best)]
    assert all(torch.equal(tensor, policies[1][name]) for name, tensor in policies[0].items())


# --- what it measures -------------------------------------------------------------------------------------------------


def test_it_tells_what_it_plays_and_how_that_goes(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(capsys, str(trained), "--episodes", "5")["env_runners"]
    assert main(["evaluate", str(trained), "--episodes", "5"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"PPO on CartPole-v1, trained for (64|128) env steps", printed[0])
    assert printed[1:] == [
        f"  checkpoint   {trained / 'best_checkpoint'}",
        "  actions      most likely",
        "  seed         1",
        "",
        f"return       {return_text(found['episode_return_mean'])}, the mean of 5 episodes",
        f"  from       {return_text(found['episode_return_min'])}",
        f"  to         {return_text(found['episode_return_max'])}",
        f"length       {found['episode_len_mean']:.1f} steps",
    ]


def test_it_measures_what_evaluate_measures(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = measured(capsys, str(trained / "checkpoint"), "--episodes", "6")
    with Algorithm.from_checkpoint(trained / "checkpoint", on_train_result=None, run_dir=None) as algorithm:
        expected = algorithm.evaluate(num_episodes=6)
    assert found == {"checkpoint": str(trained / "checkpoint"), **expected}
    assert found["env_runners"]["num_episodes"] == 6


def test_it_plays_20_episodes_the_same_each_time(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = measured(capsys, str(trained))
    assert first["env_runners"]["num_episodes"] == 20
    assert measured(capsys, str(trained)) == first


def test_a_run_stands_for_its_best_checkpoint_or_for_its_last(
    trained: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measured(capsys, str(trained), "--episodes", "1")["checkpoint"] == str(trained / "best_checkpoint")
    (here / "run").mkdir()
    (here / "run/checkpoint").symlink_to(trained / "checkpoint")
    assert measured(capsys, "run", "--episodes", "1")["checkpoint"] == "run/checkpoint"


def test_seed_exploration_and_env_config_change_what_is_played(
    trained: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = str(trained / "checkpoint")
    plain, seeded = measured(capsys, path), measured(capsys, path, "--seed", "7")
    assert not caplog.messages  # only who trains on cares which random streams the seed begins
    explored = measured(capsys, path, "--explore")
    assert len({str(one["env_runners"]) for one in (plain, seeded, explored)}) == 3
    changed = measured(capsys, path, "--env-config", '{"sutton_barto_reward": true}')["env_runners"]
    assert changed["episode_return_max"] <= 0


def test_the_number_of_envs_can_be_another_than_that_of_the_run(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int | None] = []
    real = Algorithm.evaluate

    def evaluate(algorithm: Algorithm, **kwargs: Any) -> dict[str, Any]:
        seen.append(algorithm.config.for_evaluation().num_envs_per_env_runner)
        return real(algorithm, **kwargs)

    monkeypatch.setattr(Algorithm, "evaluate", evaluate)
    assert measured(capsys, str(trained), "--num-envs", "3")["env_runners"]["num_episodes"] == 20
    assert seen == [3]


# --- what it needs ----------------------------------------------------------------------------------------------------


def test_it_needs_nothing_of_the_wiring_of_the_training(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def unsaved(**_: Any) -> None:
        raise AssertionError("called")

    config = PPOConfig(env="CartPole-v1", run_dir="run", loggers=[unsaved], checkpoint_interval=1, **TINY)
    config.callbacks(on_environment_created=unsaved, on_evaluate_end=unsaved, on_checkpoint=unsaved)
    config.update({"evaluation_num_videos": 2, "evaluation_interval": 1})
    quiet = config.copy().update({"on_environment_created": None, "on_checkpoint": None})
    with quiet.build() as algorithm:
        algorithm.config = config
        algorithm.save("saved")
    before = sorted(here.rglob("*"))
    assert measured(capsys, "saved", "--episodes", "2")["env_runners"]["num_episodes"] == 2
    assert sorted(here.rglob("*")) == before


def test_it_does_not_read_the_replay(capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(DQNConfig(env="CartPole-v1", seed=1))
    replay = Path(path, "replay.safetensors")
    replay.write_bytes(b"?" * replay.stat().st_size)  # reading it would find that
    with pytest.raises(ValueError, match=r"replay\.safetensors"):
        Algorithm.from_checkpoint(path)
    assert measured(capsys, path, "--episodes", "1")["env_runners"]["num_episodes"] == 1


def test_modules_of_the_users_are_imported_if_they_are_allowed(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "short_envs.py").write_text(
        "import gymnasium\ndef make(config):\n    return gymnasium.make('CartPole-v1', max_episode_steps=5)\n"
    )
    monkeypatch.syspath_prepend(here)
    import short_envs  # pyright: ignore[reportMissingImports]

    path = saved(PPOConfig(env=short_envs.make, **TINY))
    assert main(["evaluate", path]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "PPOConfig.env: expected an import path that you allow, got 'short_envs:make'" in line
    assert line.endswith("In a shell, type --allow short_envs; setting=... is --setting.")
    found = measured(capsys, "--allow", "short_envs", "other_module", "--episodes", "3", path)
    assert found["env_runners"]["episode_len_mean"] == 5


def test_all_modules_of_a_checkpoint_are_asked_for_at_once(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Episodes end at once: the env has no time limit, and a policy may balance the pole by chance.
    (here / "two_envs.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv as Base\n\n\n"
        "class Env(Base):\n"
        "    def step(self, action):\n"
        "        obs, reward, _, truncated, info = super().step(action)\n"
        "        return obs, reward, True, truncated, info\n"
    )
    (here / "two_nets.py").write_text("from algorithms.ppo import PPOCatalog\n\n\nclass Mine(PPOCatalog): ...\n")
    args = ["two_envs:Env", "--catalog-class", "two_nets:Mine", "--num-env-steps", "16", "--run-dir", "run"]
    flags = [word for name, value in TINY.items() for word in (f"--{name}", str(value))]
    monkeypatch.syspath_prepend(here)
    assert main(["train", "ppo", *args, *flags]) == 0
    printed = capsys.readouterr().out
    assert "rlmodule evaluate run --allow two_envs two_nets\n" in printed
    assert "rlmodule train --load run --allow two_envs two_nets\n" in printed
    assert "allow=['two_envs', 'two_nets']" in printed
    for command in (["evaluate"], ["train", "--load"]):
        assert main([*command, "run"]) == 1
        assert capsys.readouterr().err.count("In a shell, type --allow two_envs two_nets; ") == 1
    with pytest.raises(ValueError, match=r"'two_envs:Env' and 'two_nets:Mine'\. .*allow=\['two_envs', 'two_nets'\]"):
        Algorithm.from_checkpoint("run/checkpoint")
    allowed = ["--allow", "two_envs", "two_nets"]
    assert measured(capsys, "run", *allowed, "--episodes", "2")["env_runners"]["num_episodes"] == 2


def test_a_module_that_is_elsewhere_is_told_with_its_folder(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "far_envs.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv as Base\n\n\nclass Env(Base): ...\n"
    )
    with monkeypatch.context() as there:
        there.syspath_prepend(here)
        import far_envs  # pyright: ignore[reportMissingImports]

        path = str(here / saved(PPOConfig(env=far_envs.Env, **TINY)))
    monkeypatch.delitem(sys.modules, "far_envs")
    (here / "far_envs.py").rename(here / "moved.py")
    assert main(["evaluate", path, "--allow", "far_envs"]) == 1
    assert "Or run from the folder that far_envs.py is in, or set PYTHONPATH" in capsys.readouterr().err


def test_an_env_that_could_not_be_saved_leads_to_python(capsys: pytest.CaptureFixture[str]) -> None:
    path = saved(PPOConfig(env=lambda config: gym.make("CartPole-v1"), **TINY))
    assert main(["evaluate", path]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "PPOConfig.env: expected the object itself, which could not be saved" in line
    assert "Pass it again by keyword (env=...)" in line


# --- videos and windows -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "count"), [pytest.param([], 1, marks=pytest.mark.end_to_end), (["--num-videos", "2"], 2)]
)
def test_videos_are_written_and_named(
    trained: Path, capsys: pytest.CaptureFixture[str], args: list[str], count: int
) -> None:
    assert main(["evaluate", str(trained), "--episodes", "1", "--video", "videos", *args]) == 0
    printed = re.findall(r"^video +(\S+) \(return (\S+)\)$", capsys.readouterr().out, re.M)
    assert sorted(path for path, _ in printed) == sorted(map(str, Path("videos").iterdir()))
    assert len(printed) == count


def test_a_window_shows_the_episodes_that_a_video_would(
    trained: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def watch(policy: Any, settings: Any, **kwargs: Any) -> list[tuple[float, int]]:
        asked.update(kwargs, env=settings.env)
        return [(10.0, 10), (20.0, 30)]

    monkeypatch.setattr(module, "watch", watch)
    found = measured(capsys, str(trained), "--render", "--episodes", "2", "--explore")["env_runners"]
    assert (asked["env"], asked["num_episodes"], asked["explore"]) == ("CartPole-v1", 2, True)
    assert found == {
        "episode_return_mean": 15.0,
        "episode_return_min": 10.0,
        "episode_return_max": 20.0,
        "episode_len_mean": 20.0,
        "episode_return_std": 5.0,
        "num_episodes": 2,
        "num_env_steps": 40,
    }


def test_without_a_display_there_is_no_window(
    trained: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    assert main(["evaluate", str(trained), "--render"]) == 1
    printed = capfd.readouterr().err.splitlines()
    assert "expected a display to open a window on" in printed[-1]


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "code", "parts"),
    [
        (["--episodes", "0"], 2, ["--episodes: expected", "got 0"]),
        (["--episodes", "x"], 2, ["--episodes: expected int, got 'x'"]),
        (["--num-envs", "0"], 2, ["--num-envs: expected", ">= 1, got 0"]),
        (["--env-config", "[1]"], 2, ["--env-config: expected dict"]),
        (["--env-config", '{"graviti": 1}'], 1, ["graviti"]),
        (["--seed", "-1"], 2, ["--seed: expected", ">= 0, got -1"]),
        (["--num-videos", "2"], 2, ["--num-videos: expected --video with it"]),
        (["--render", "--video", "videos"], 2, ["--render: expected neither"]),
        (["--render", "--num-envs", "2"], 2, ["--render: expected neither"]),
        (["--episode", "2"], 2, ["Did you mean '--episodes'?"]),
    ],
)
def test_a_mistake_is_told_in_one_line(
    trained: Path, args: list[str], code: int, parts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(trained), *args]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert all(part in line for part in parts), line


def test_a_checkpoint_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate"]) == 2
    assert "CKPT" in capsys.readouterr().err


def test_a_saved_policy_plays_the_env_that_is_named_as_its_run_does(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, several = str(tmp_path / "policy"), str(team().save(tmp_path / "several"))
    assert main(["export", str(trained), policy]) == 0
    assert re.fullmatch(r".*policy, 0\.0\d MB\n", capsys.readouterr().out)
    seed = ["--seed", "5", "--episodes", "6", "--json", "--num-envs", "2"]
    assert main(["evaluate", str(trained), *seed]) == 0
    expected = json.loads(capsys.readouterr().out)["env_runners"]
    assert main(["evaluate", policy, "--env", "CartPole-v1", *seed]) == 0
    assert json.loads(capsys.readouterr().out)["env_runners"] == expected
    assert main(["evaluate", policy, "--env", "CartPole-v1", "--episodes", "2"]) == 0
    assert "return" in capsys.readouterr().out
    for wrong, printed in (
        ([policy], "expected --env, and neither"),
        ([policy, "--env", "Acrobot-v1"], "expected an env with the spaces of the policy"),
        ([str(trained), "--env", "CartPole-v1"], "expected no --env, got CartPole-v1"),
        ([several, "--env", "CartPole-v1"], "expected the policy of one agent, got pair, late. Evaluate the run"),
    ):
        assert main(["evaluate", *wrong]) in (1, 2)
        assert printed in capsys.readouterr().err


@pytest.mark.end_to_end
def test_a_run_is_exported(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(trained), str(tmp_path / "x.pt2")]) == 0
    assert "x.pt2, 0.0" in capsys.readouterr().out
    assert main(["export", str(trained), str(tmp_path / "x.tflite")]) == 1
    assert "ends with .onnx or .pt2, got 'x.tflite'" in capsys.readouterr().err
    assert main(["export", str(tmp_path), str(tmp_path / "x.onnx")]) == 1
    assert "a checkpoint, or a run with one, got none" in capsys.readouterr().err
