"""The errors that docs/faq.md shows are those that come.

Its python snippets run in test_readme.py. Here is what takes a missing package, a folder, a process or a shell: a text
block below ``<!-- from: name -->`` shows what the function of that name here ends with, and ``console`` blocks show
what the commands in them print on stderr.
"""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import pytest
from gymnasium.envs.classic_control import PendulumEnv

from algorithms.cli import main
from algorithms.ppo import PPOConfig
from algorithms.run import evaluation

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
ERRORS: list[tuple[str, str]] = re.findall(r"<!-- from: (\w+) -->\n```text\n(.*?)\n```", PAGE, re.S)
COMMANDS: list[tuple[str, str]] = [
    command
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.S)
    for command in re.findall(r"^\$ (.+)\n((?:[^$].*\n)*)", block, re.M)
]
CARTPOLE = PPOConfig().environment("CartPole-v1")


def assert_shown(shown: str, came: str) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(f"{shown.strip()}\n", f"{came.strip()}\n", flags), came


# --- how the errors come about ----------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch


class ScriptError(Exception):
    """The last line that a script of a user's printed."""


def run_script(folder: Path, text: str) -> None:
    (folder / "script.py").write_text(text, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, "script.py"],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == 1
    raise ScriptError(run.stderr.strip().splitlines()[-1])


def uninstall(patch: Patch, package: str, *users: str) -> None:
    """Make ``package`` one that cannot be imported, and forget the modules ``users`` that may have done so."""
    for name in list(sys.modules):
        if name.startswith((f"{package}.", *users)):
            patch.delitem(sys.modules, name)
    patch.setitem(sys.modules, package, None)


def hidden_by_a_file(folder: Path, patch: Patch) -> None:
    (folder / "catalog.py").touch()
    run_script(folder, "import algorithms")


def hidden_by_a_folder(folder: Path, patch: Patch) -> None:
    (folder / "algorithms").mkdir()
    (folder / "algorithms" / "__init__.py").touch()
    run_script(folder, "from algorithms.ppo import PPOConfig")


def no_mujoco(folder: Path, patch: Patch) -> None:
    uninstall(patch, "mujoco", "gymnasium.envs.mujoco")
    PPOConfig().environment("HalfCheetah-v5").build()


def no_box2d(folder: Path, patch: Patch) -> None:
    uninstall(patch, "Box2D", "gymnasium.envs.box2d")
    PPOConfig().environment("LunarLander-v3").build()


def no_atari(folder: Path, patch: Patch) -> None:
    uninstall(patch, "ale_py")
    for name in [name for name in gym.registry if name.startswith("ALE/")]:
        patch.delitem(gym.registry, name)
    PPOConfig().environment("ALE/Pong-v5").build()


def no_wandb(folder: Path, patch: Patch) -> None:
    uninstall(patch, "wandb")
    CARTPOLE.copy().reporting(loggers=["wandb"]).build().train()


def no_moviepy(folder: Path, patch: Patch) -> None:
    uninstall(patch, "moviepy")
    with CARTPOLE.build() as algorithm:
        algorithm.evaluate(num_episodes=1, num_videos=1, video_dir=folder)


def no_main_guard(folder: Path, patch: Patch) -> None:
    run_script(
        folder,
        "import multiprocessing\n"
        "multiprocessing.set_start_method('spawn', force=True)\n"  # as macOS and Windows do
        "from algorithms.ppo import PPOConfig\n"
        "config = PPOConfig().environment('CartPole-v1')\n"
        "config.env_runners(num_envs_per_env_runner=2, gym_env_vectorize_mode='async').build()\n",
    )


def endless_episodes(folder: Path, patch: Patch) -> None:
    patch.setattr(evaluation, "LIMIT", 100)
    with PPOConfig().environment(PendulumEnv).build() as algorithm:
        algorithm.evaluate(num_episodes=1)


RECIPES: dict[str, Callable[[Path, Patch], None]] = {
    recipe.__name__: recipe
    for recipe in (
        hidden_by_a_file,
        hidden_by_a_folder,
        no_mujoco,
        no_box2d,
        no_atari,
        no_wandb,
        no_moviepy,
        no_main_guard,
        endless_episodes,
    )
}

# --- the page ---------------------------------------------------------------------------------------------------------


def test_every_error_that_is_shown_is_produced_by_something() -> None:
    blocks = re.findall(r"^(.*)\n+```text\n", PAGE, re.M)
    told = [line for line in blocks if line != "```"]  # those below python are looked at in test_readme.py
    assert told == [f"<!-- from: {name} -->" for name, _ in ERRORS]
    assert [name for name, _ in ERRORS] == list(RECIPES)


@pytest.mark.parametrize(("name", "shown"), ERRORS, ids=[name for name, _ in ERRORS])
def test_the_error_is_the_one_that_comes(name: str, shown: str, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        RECIPES[name](tmp_path, monkeypatch)
    except ScriptError as error:
        came = str(error)
    except Exception as error:
        came = "".join(traceback.format_exception_only(error))
    else:
        pytest.fail("nothing was raised")
    assert_shown(shown, came)


@pytest.mark.parametrize(("command", "shown"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_the_shell_prints_what_is_shown(
    command: str, shown: str, tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program, *args = shlex.split(command)
    assert program == "rlmodule"
    assert main(args) in (1, 2)
    assert_shown(shown, capsys.readouterr().err)


def test_the_index_names_how_errors_begin() -> None:
    """Each row's first words stand in an error below the heading it leads to."""
    rows = re.findall(r"^\| (`.+?) \| \[.+\]\(#([\w-]+)\) \|$", PAGE, re.M)
    assert len(rows) > 20
    sections = {}
    for part in re.split(r"^##+ ", PAGE, flags=re.M)[1:]:
        heading, _, text = part.partition("\n")
        sections[heading.lower().replace(" ", "-").replace(",", "")] = " ".join(text.split())
    for begins, anchor in rows:
        for words in re.findall(r"`([^`]+)`", begins):
            pattern = ".*".join(re.escape(word) for word in words.split("..."))
            assert re.search(pattern, sections[anchor]), f"{words} in {anchor}"
