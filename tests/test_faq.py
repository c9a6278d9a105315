"""The errors that docs/faq.md lists begin as it says.

Its python snippets run in test_readme.py. Here every beginning in its table is looked for in the error that a recipe
raises or a command prints, and ``console`` blocks show what the commands in them print on stderr.
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
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import PendulumEnv

from algorithms import Algorithm
from algorithms.cli import main
from algorithms.dqn import DQNConfig
from algorithms.ppo import PPOCatalog, PPOConfig, PPOLearner
from algorithms.run import evaluation
from rlmodule import RLModuleSpec

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("\n## ")[0]
BEGINNINGS = [words for row in re.findall(r"^\| (`.+?) \| ", TABLE, re.M) for words in re.findall(r"`([^`]+)`", row)]
COMMANDS: list[tuple[str, str]] = [
    command
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.S)
    for command in re.findall(r"^\$ (.+)\n((?:[^$].*\n)*)", block, re.M)
]
CARTPOLE = PPOConfig().environment("CartPole-v1")


def pattern(words: str) -> str:
    return ".*".join(re.escape(part) for part in words.split("..."))


def assert_shown(shown: str, came: str) -> None:
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    assert doctest.OutputChecker().check_output(f"{shown.strip()}\n", f"{came.strip()}\n", flags), came


# --- how the errors come about ----------------------------------------------------------------------------------------

Patch = pytest.MonkeyPatch
Recipe = Callable[[Path, Patch], None]


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


def hidden_by_a_folder(script: str) -> Recipe:
    def recipe(folder: Path, patch: Patch) -> None:
        (folder / "algorithms").mkdir()
        (folder / "algorithms" / "__init__.py").touch()
        run_script(folder, script)

    return recipe


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
        "config.env_runners(num_envs_per_env_runner=1, gym_env_vectorize_mode='async').build()\n",
    )


def endless_episodes(folder: Path, patch: Patch) -> None:
    patch.setattr(evaluation, "LIMIT", 100)
    with PPOConfig().environment(PendulumEnv).build() as algorithm:
        algorithm.evaluate(num_episodes=1)


def raises(code: str) -> Recipe:
    """Return a recipe that runs ``code`` as a script does, with the names that it needs imported."""

    def recipe(folder: Path, patch: Patch) -> None:
        exec(
            code, {"gym": gym, "np": np, "PPOConfig": PPOConfig, "CARTPOLE": CARTPOLE.copy(), "wrappers": gym.wrappers}
        )

    return recipe


def not_finite(folder: Path, patch: Patch) -> None:
    class NotFinite(PPOLearner):
        def compute_loss_for_module(self, module_id: Any, batch: Any, fwd_out: Any) -> Any:
            loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
            return loss * float("nan"), metrics

    config = CARTPOLE.copy().learners(learner_class=NotFinite).training(train_batch_size_per_learner=64)
    with config.build() as algorithm:
        for _ in range(10):
            algorithm.train()


def reshaped(wrapper: str) -> Recipe:
    return raises(f"CARTPOLE.environment(lambda env_config: wrappers.{wrapper}).build().train()")


def masked(folder: Path, patch: Patch) -> None:
    def stuck(env_config: Any) -> gym.Env:
        env = gym.make("CartPole-v1")
        space = gym.spaces.Dict(obs=env.observation_space, action_mask=gym.spaces.MultiBinary(2))
        none = np.zeros(2, np.int8)
        return gym.wrappers.TransformObservation(env, lambda obs: {"obs": obs, "action_mask": none}, space)

    PPOConfig().environment(stuck).build().train()


def in_one_folder(folder: Path, patch: Patch) -> None:
    config = CARTPOLE.copy().reporting(run_dir="runs/mine").debugging(seed=1)
    for _ in (1, 2):
        with config.training(train_batch_size_per_learner=64).build() as algorithm:
            algorithm.learn(num_env_steps=64)


def at_once(folder: Path, patch: Patch) -> None:
    config = CARTPOLE.copy().reporting(run_dir="runs/shared").training(train_batch_size_per_learner=64)
    with config.build() as first, config.build() as second:
        first.train()
        second.train()


def not_a_folder(folder: Path, patch: Patch) -> None:
    (folder / "taken").touch()
    CARTPOLE.copy().reporting(run_dir="taken").build().train()


def saved(config: PPOConfig) -> None:
    with config.build() as algorithm:
        algorithm.save("saved")
    Algorithm.from_checkpoint("saved")


def cut_off(folder: Path, patch: Patch) -> None:
    with CARTPOLE.build() as algorithm:
        algorithm.save("whole")
    tensors = folder / "whole" / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:1000])
    Algorithm.from_checkpoint("whole")


class MyCatalog(PPOCatalog):
    """A class that a checkpoint may only name."""


RECIPES: dict[str, tuple[Recipe, ...]] = {
    "The package ... is hidden": (hidden_by_a_file, hidden_by_a_folder("import rlmodule")),
    "No module named 'algorithms.ppo'": (hidden_by_a_folder("from algorithms.ppo import PPOConfig"),),
    "cannot import name 'Algorithm' from 'algorithms'": (hidden_by_a_folder("from algorithms import Algorithm"),),
    "env '...': expected its packages": (no_mujoco, no_box2d, no_atari),
    "expected the package ...": (no_wandb, no_moviepy),
    "PPOConfig.training(): expected one of": (raises("PPOConfig().training(learning_rate=1e-3)"),),
    "model_config[...]: expected a model setting": (
        raises("PPOConfig().rl_module(model_config={'fcnet_hidden': [64]})"),
    ),
    "PPOConfig.training(lr=): expected": (raises("PPOConfig().training(lr='3e-4')"),),
    "PPOConfig.train_batch_size_per_learner: expected": (
        raises("CARTPOLE.training(train_batch_size_per_learner=1001).build()"),
        raises("CARTPOLE.env_runners(rollout_fragment_length=100).build()"),
    ),
    "PPOConfig.minibatch_size: expected at most": (raises("CARTPOLE.training(minibatch_size=4096).build()"),),
    "PPOConfig.num_learners: expected at most": (raises("CARTPOLE.learners(num_learners=16).build()"),),
    "env '...': expected a registered id": (raises("PPOConfig().environment('CartPol-v1').build()"),),
    "env '...': expected a current id": (raises("PPOConfig().environment('BreakoutNoFrameskip-v4').build()"),),
    "PPOConfig.environment(env=): expected": (raises("PPOConfig().environment(gym.make('CartPole-v1'))"),),
    "env ...: expected an env, got": (
        raises("PPOConfig().environment(lambda: gym.make('CartPole-v1')).build()"),
        raises("PPOConfig().environment('CartPole-v1', env_config={'gravity': 1.6}).build()"),
    ),
    "env ...: expected a gymnasium.Env": (raises("PPOConfig().environment(lambda env_config: object()).build()"),),
    "env 0, ..., obs: expected values in": (
        reshaped("TransformObservation(gym.make('CartPole-v1'), lambda obs: obs + 10, None)"),
    ),
    "env 0, ..., reward: expected finite numbers": (
        reshaped("TransformReward(gym.make('CartPole-v1'), lambda reward: float('nan'))"),
    ),
    "env 0 raised": (reshaped("TransformReward(gym.make('CartPole-v1'), lambda reward: reward / 0)"),),
    "obs['action_mask']: expected at least one": (masked,),
    "action_space of DQN: expected": (lambda folder, patch: DQNConfig().environment("Pendulum-v1").build().stop(),),
    "expected a process for each env": (no_main_guard,),
    "updates of module '...': expected": (not_finite,),
    "run_dir '...': expected a folder without another run": (in_one_folder,),
    "run_dir '...': expected a folder to write to": (not_a_folder,),
    "got one where a run is training": (at_once,),
    "PPOConfig.checkpoint_interval: expected None": (raises("CARTPOLE.checkpointing(checkpoint_interval=5).build()"),),
    "load('...'): expected a folder": (lambda folder, patch: Algorithm.from_checkpoint("runs/mein").stop(),),
    "load('...'): expected a complete checkpoint": (cut_off,),
    "an import path that you allow": (
        lambda folder, patch: saved(CARTPOLE.copy().rl_module(rl_module_spec=RLModuleSpec(catalog_class=MyCatalog))),
    ),
    "expected the object itself": (
        lambda folder, patch: saved(PPOConfig().environment(lambda env_config: gym.make("CartPole-v1"))),
    ),
    "Policy.act(obs): expected one observation": (
        raises("with CARTPOLE.build() as algo: algo.policy.act(np.zeros((8, 4), np.float32))"),
    ),
    "evaluate(): expected episodes that end": (endless_episodes,),
    "evaluate(video_dir=): expected": (raises("with CARTPOLE.build() as algo: algo.evaluate(num_videos=1)"),),
}
ON_RAY = {
    "expected at most the ... CPUs of the cluster",
    "no room in time",
    "cannot be pickled",
    "env runner ...: expected no error",
    "learner ...: expected an answer",
    "no progress for ... s",
}
"""Errors that take a cluster: tests/rlmodule raises them."""

# --- the page ---------------------------------------------------------------------------------------------------------


def test_every_error_of_the_table_is_produced_by_something() -> None:
    in_shell = {words for words in BEGINNINGS if words.startswith("error: ")}
    assert len(BEGINNINGS) == len({*BEGINNINGS})
    assert {*BEGINNINGS} == {*RECIPES} | ON_RAY | in_shell
    for words in in_shell:
        assert COMMANDS
        assert all(re.match(pattern(words), shown) for _, shown in COMMANDS)


@pytest.mark.parametrize(
    ("words", "recipe"),
    [(words, recipe) for words, recipes in RECIPES.items() for recipe in recipes],
    ids=[f"{words}-{number}" for words, recipes in RECIPES.items() for number in range(len(recipes))],
)
def test_the_error_begins_as_the_table_says(words: str, recipe: Recipe, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        recipe(tmp_path, monkeypatch)
    except ScriptError as error:
        came = str(error)
    except Exception as error:
        came = "".join(traceback.format_exception_only(error))
    else:
        pytest.fail("nothing was raised")
    assert re.search(pattern(words), came), came


@pytest.mark.parametrize(("command", "shown"), COMMANDS, ids=[command for command, _ in COMMANDS])
def test_the_shell_prints_what_is_shown(
    command: str, shown: str, tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    program, *args = shlex.split(command)
    assert program == "rlmodule"
    assert main(args) in (1, 2)
    assert_shown(shown, capsys.readouterr().err)
