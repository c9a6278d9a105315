"""Algorithms, learners and code of your own: registered, trained from the shell, built alone, saved, found again."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import pytest
import torch

from algorithms import Algorithm, AlgorithmConfig, EpisodeLearnerConfig, register_algorithm
from algorithms.cli import main
from algorithms.dqn import DQNConfig
from algorithms.ppo import PPO, PPOCatalog, PPOConfig, PPOModule
from algorithms.registry import ALGORITHMS, config_class
from rlmodule import Columns, EpisodeLearner, LearnerGroup, Policy, RLModuleSpec, Rollout
from rlmodule.encoding import NotReadable
from rlmodule.learning.learner import Learner
from rlmodule.modules.spec import MultiRLModuleSpec
from rlmodule.testing.data import differences, random_rollout
from tests.checkpoints import rewrite

ID = "default_policy"
TINY = ["--train-batch-size-per-learner", "32", "--num-envs-per-env-runner", "2", "--fcnet-hiddens", "8"]


class ReinforceLearner(EpisodeLearner):
    """Policy gradient on rewards."""

    def make_train_batch(self, module_id: str, rollout: Rollout) -> Any:
        return self.pack(module_id, rollout, [Columns.OBS, Columns.ACTIONS, Columns.REWARDS]), {}

    def compute_loss_for_module(self, module_id: str, batch: Any, fwd_out: Any) -> Any:
        dist = self.module[module_id].action_dist_cls.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        return -(dist.logp(batch[Columns.ACTIONS]) * batch[Columns.REWARDS]).mean(), {}


class ReinforceConfig(EpisodeLearnerConfig):
    """Settings of :class:`Reinforce`."""

    train_batch_size_per_learner = 32

    @property
    def algo_class(self) -> type[Algorithm]:
        return Reinforce

    def default_learner_class(self) -> type[Learner]:
        return ReinforceLearner

    def default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=PPOModule, catalog_class=PPOCatalog)


class Reinforce(Algorithm):
    """Policy gradient on rewards."""

    def training_step(self) -> dict[str, dict[str, Any]]:
        learned = self.learner_group.update_from_episodes(self.sample(), env_steps=self.env_steps)
        return {"timers": learned.pop("timers"), "learners": learned}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own; what a test registers is undone."""
    monkeypatch.chdir(tmp_path)
    known = dict(ALGORITHMS)
    yield tmp_path
    ALGORITHMS.clear()
    ALGORITHMS.update(known)


# --- an algorithm of your own ----------------------------------------------------------------------------------------


def test_a_learner_from_episodes_has_its_settings_with_defaults() -> None:
    config = ReinforceConfig(env="CartPole-v1", num_envs_per_env_runner=2, seed=1)
    for more, updates in ((config, 1), (config.copy().training(num_epochs=3, minibatch_size=16), 6)):
        with more.build() as algorithm:
            algorithm.train()
            assert algorithm.learner_group.num_updates == updates
    with pytest.raises(ValueError, match=r"minibatch_size.*at most train_batch_size_per_learner=32"):
        config.training(minibatch_size=33).build()


def test_a_config_without_settings_of_its_learner_says_where_they_are() -> None:
    with pytest.raises(AttributeError, match=r"num_epochs.*derive from EpisodeLearnerConfig"):
        DQNConfig().num_epochs  # type: ignore[attr-defined]  # noqa: B018


def test_a_registered_algorithm_is_found_by_its_checkpoints() -> None:
    config = ReinforceConfig(env="CartPole-v1", num_envs_per_env_runner=2, seed=1)
    with config.build() as algorithm:
        algorithm.train()
        path = algorithm.save("saved")
    with pytest.raises(ValueError, match=r"ReinforceConfig'.*import its module, which calls register_algorithm\("):
        Algorithm.from_checkpoint(path)
    register_algorithm("Reinforce", ReinforceConfig)
    register_algorithm("reinforce", ReinforceConfig)  # as a notebook does
    assert config_class("REINFORCE") is ReinforceConfig
    with Algorithm.from_checkpoint(path) as algorithm:
        assert type(algorithm) is Reinforce
        assert algorithm.env_steps == 32


def test_a_config_class_is_saved_under_its_own_name() -> None:
    register_algorithm("gentle", GentlePPOConfig)
    with GentlePPOConfig(env="CartPole-v1", num_envs_per_env_runner=2, train_batch_size_per_learner=64).build() as run:
        path = run.save("saved")
    with Algorithm.from_checkpoint(path) as algorithm:
        assert type(algorithm) is PPO
        assert type(algorithm.config) is GentlePPOConfig


class GentlePPOConfig(PPOConfig):
    """PPO by smaller steps."""

    clip_param = 0.1


def test_what_cannot_be_registered_is_told() -> None:
    with pytest.raises(TypeError, match=r"register_algorithm\('X'\): expected a class derived from AlgorithmConfig"):
        register_algorithm("X", Reinforce)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected a free name, got that of algorithms\.ppo\.ppo:PPOConfig"):
        register_algorithm("ppo", ReinforceConfig)


@pytest.fixture
def own_module(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module with a config class, next to the user's."""
    text = """
        from algorithms.ppo import PPOConfig
        from algorithms.settings import setting

        class CalmConfig(PPOConfig):
            "PPO by smaller steps."
            clip_param = 0.05
        """
    (here / "calm_algorithm.py").write_text(textwrap.dedent(text))
    monkeypatch.syspath_prepend(here)
    yield "calm_algorithm"
    sys.modules.pop("calm_algorithm", None)


def test_the_shell_trains_and_loads_an_algorithm_by_its_import_path(
    own_module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = [f"{own_module}:CalmConfig", "CartPole-v1", "--num-env-steps", "32", "--minibatch-size", "32"]
    assert main(["train", *run, "--run-dir", "run", "--quiet", *TINY]) == 0
    del ALGORITHMS["CALM"]  # as in another process
    assert main(["evaluate", "run", "--episodes", "1"]) == 2
    assert (
        "expected a run of a known algorithm (A2C, APPO, BC, DDPG, DQN, IMPALA, IQL, MARWIL, PPO, SAC, TD3), got one "
        f"of Calm. If it is one of yours, type --allow {own_module}, the module with its config class."
    ) in " ".join(capsys.readouterr().err.split())
    assert main(["evaluate", "run", "--episodes", "1", "--allow", own_module]) == 0
    del ALGORITHMS["CALM"]
    with pytest.raises(ValueError, match=r"expected modules that can be imported, got 'camel_algorithm'"):
        Algorithm.from_checkpoint("run", allow=["camel_algorithm"])
    assert main(["train", "--load", "run", "--allow", own_module, "--num-env-steps", "32", "--quiet"]) == 0
    del ALGORITHMS["CALM"]
    register_algorithm("cALM", import_module(own_module).CalmConfig)  # case does not matter
    with Algorithm.from_checkpoint("run") as algorithm:
        assert algorithm.config.to_dict()["clip_param"] == 0.05
        assert algorithm.env_steps == 64
        algorithm.train()


def test_a_checkpoint_of_a_config_class_without_a_name_is_loaded_if_that_is_allowed(
    own_module: str, here: Path
) -> None:
    calm = import_module(own_module).CalmConfig
    ALGORITHMS.pop("CALM", None)
    settings = {"env": "CartPole-v1", "train_batch_size_per_learner": 32, "num_envs_per_env_runner": 2}
    with calm(**settings, minibatch_size=32).build() as algorithm:
        algorithm.save("calm")
    with pytest.raises(
        ValueError, match=rf"got '{own_module}:CalmConfig'. If you trust it, pass allow=\['{own_module}'"
    ):
        Algorithm.from_checkpoint("calm")
    with Algorithm.from_checkpoint("calm", allow=[own_module]) as algorithm:
        assert type(algorithm.config) is calm
        assert algorithm.config.clip_param == 0.05
    register_algorithm("calm", calm)
    with Algorithm.from_checkpoint("calm") as algorithm:
        assert type(algorithm.config) is calm
    ALGORITHMS.pop("CALM")
    rewrite(Path("calm"), lambda content: content | {"config_class": "subprocess:Popen"})
    with pytest.raises(ValueError, match="expected a class derived from SettingsBase"):
        Algorithm.from_checkpoint("calm", allow=["subprocess"])


def test_what_train_prints_of_an_own_algorithm_works_when_pasted(
    own_module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = [f"{own_module}:CalmConfig", "CartPole-v1", "--num-env-steps", "32", "--minibatch-size", "32"]
    assert main(["train", *run, "--run-dir", "run", *TINY]) == 0
    shell, _, snippet = capsys.readouterr().out.partition("Next:\n")[2].partition("and in Python:\n")
    assert f"register_algorithm('Calm', {own_module}.CalmConfig)" in snippet
    evaluate, train = [shlex.split(line)[1:] for line in shell.split("\n") if line]
    for printed, shorter in ((evaluate, ["--episodes", "1"]), (train, ["--num-env-steps", "32"])):
        del ALGORITHMS["CALM"]  # as in another process
        assert main([printed[0], *shorter, *printed[1:]]) == 0
    del ALGORITHMS["CALM"]
    names: dict[str, Any] = {}
    exec(textwrap.dedent(snippet), names)
    assert type(names["algo"].config).__name__ == "CalmConfig"
    names["env"].close()


def test_what_is_no_config_class_is_told_in_the_shell(own_module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", f"{own_module}:setting", "CartPole-v1"]) == 2
    assert "ALGO: expected a class derived from AlgorithmConfig" in capsys.readouterr().err
    assert main(["train", f"{own_module}:CamlConfig", "CartPole-v1"]) == 2
    assert "Did you mean 'CalmConfig'" in capsys.readouterr().err
    assert main(["train", f"{own_module}:setting"]) == 2
    assert f"if this is an env: rlmodule train ppo {own_module}:setting." in capsys.readouterr().err


# --- learners alone ---------------------------------------------------------------------------------------------------


def test_a_learner_group_is_built_from_a_config(here: Path) -> None:
    config = PPOConfig(env="CartPole-v1", seed=3).rl_module(model_config={"fcnet_hiddens": [8]})
    env = gym.make("CartPole-v1")
    found = env.observation_space, env.action_space
    with config.build() as algorithm:
        expected = algorithm.get_module().get_state()
        threads = torch.random.get_rng_state()
        groups = [
            config.build_learner_group(),
            config.build_learner_group(env=env),
            config.build_learner_group(env=gym.make_vec("CartPole-v1", 2)),
            config.build_learner_group(spaces=found),
            config.copy().environment(None).build_learner_group(spaces=found),
        ]
        assert torch.equal(torch.random.get_rng_state(), threads)
    for group in groups:
        assert differences(group.get_module(ID).get_state(), expected) == []
    rollout = random_rollout(groups[0].get_module(ID), 16, 2)
    assert groups[0].update_from_episodes(rollout)[ID]["total_loss"] != 0


def test_a_learner_group_is_built_of_another_module_and_without_an_env() -> None:
    spaces = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)

    class Mine(PPOModule):
        """Another class."""

    group = PPOConfig().build_learner_group(spaces=spaces, rl_module_spec=RLModuleSpec(module_class=Mine))
    assert isinstance(group, LearnerGroup)
    assert type(group.get_module(ID)) is Mine
    with pytest.raises(ValueError, match=r"PPOConfig\.env: expected an environment, got None"):
        PPOConfig().build_learner_group()


def test_a_spec_of_several_modules_is_refused_in_one_line() -> None:
    several = MultiRLModuleSpec({"p0": RLModuleSpec(), "p1": RLModuleSpec()})
    expected = (
        r"^PPOConfig\.rl_module\(rl_module_spec=\): expected one RLModuleSpec, got a MultiRLModuleSpec of p0, p1\. "
        r"Pass one of its specs, or for several agents all of them: \.multi_agent\(policies=\.\.\.\)\.$"
    )
    with pytest.raises(TypeError, match=expected):
        PPOConfig().rl_module(rl_module_spec=several)  # type: ignore[arg-type]


# --- code of a script -------------------------------------------------------------------------------------------------


@pytest.fixture
def of_script(monkeypatch: pytest.MonkeyPatch) -> AlgorithmConfig:
    """A config that names a class of the script that runs."""
    script = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", script)
    mine: Any = type("Mine", (PPOCatalog,), {"__module__": "__main__"})
    script.Mine = mine  # type: ignore[attr-defined]
    config = PPOConfig(env="CartPole-v1", num_envs_per_env_runner=2).rl_module(
        rl_module_spec=RLModuleSpec(catalog_class=mine)
    )
    return config.training(train_batch_size_per_learner=64)


def test_code_of_the_script_is_warned_of_once_when_it_is_saved(
    of_script: AlgorithmConfig, caplog: pytest.LogCaptureFixture
) -> None:
    with of_script.build() as algorithm:
        algorithm.save("saved")
        (warned,) = caplog.messages
        assert "got rl_module_spec of this script. Move it to a module that can be imported, or pass it" in warned
        assert "from_checkpoint(path, rl_module_spec=...)" in warned
        algorithm.save("again")
        assert len(caplog.messages) == 1
    with Algorithm.from_checkpoint("saved", rl_module_spec=RLModuleSpec(catalog_class=PPOCatalog)) as algorithm:
        assert type(algorithm.get_module().catalog) is PPOCatalog


def test_the_shell_names_a_remedy_for_code_of_a_script_that_works(
    of_script: AlgorithmConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with of_script.build() as algorithm:
        algorithm.save("saved")
        algorithm.policy.save("policy")
    Algorithm.from_checkpoint("saved", allow=["__main__"]).stop()  # in the script itself
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    for path in ("saved", "policy"):
        with pytest.raises(NotReadable, match="It was defined in another script: load it there with allow="):
            Policy.load(path, allow=["__main__"])
    commands = [["evaluate", "saved"], ["export", "saved", "out"], ["evaluate", "policy", "--env", "CartPole-v1"]]
    for command in commands:
        for more in ([], ["--allow", "__main__"]):
            assert main([*command, *more]) == 1
            shown = " ".join(capsys.readouterr().err.split())
            assert "It was defined in another script" in shown
            assert "allow=['__main__'], or pass" not in shown
            assert "Algorithm.from_checkpoint(path, rl_module_spec=...).save('saved_again'). Then type --allow" in shown

    (tmp_path / "nets_of_script.py").write_text("from algorithms.ppo import PPOCatalog\nclass Mine(PPOCatalog): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = RLModuleSpec(catalog_class=import_module("nets_of_script").Mine)
    with Algorithm.from_checkpoint("saved", rl_module_spec=spec) as algorithm:
        algorithm.save("saved_again")
    assert main(["export", "saved_again", "out"]) == 1
    assert "pass allow=['nets_of_script']. In a shell, type --allow nets_of_script." in capsys.readouterr().err
    assert main(["export", "saved_again", "out", "--allow", "nets_of_script"]) == 0
