"""``rlmodule list`` lists what exists, and ``rlmodule explain`` the result."""

from __future__ import annotations

import re

import pytest

from algorithms import Algorithm
from algorithms.cli import main
from algorithms.ppo import PPOConfig
from algorithms.registry import ALGORITHMS, config_class
from catalog import DefaultModelConfig, action_converter_rules, action_distribution_rules, encoder_rules


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(args) == 0
    return capsys.readouterr().out


def test_every_algorithm_is_listed_with_its_purpose(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "list", "algorithms").splitlines()
    assert lines[0] == "Algorithms (rlmodule train ALGO ENV)"
    assert [line.split()[0] for line in lines[1:]] == [name.lower() for name in ALGORITHMS]
    assert all(line.endswith(".") for line in lines[1:])
    assert "  ppo     Proximal policy optimisation (Schulman et al. 2017)" in "\n".join(lines)


def test_every_preset_is_listed_with_what_it_reached(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "list", "presets").splitlines()[2:]
    expected = [(name.lower(), env_id) for name in ALGORITHMS for env_id in config_class(name).presets]
    assert [tuple(line.split()[:2]) for line in lines] == expected
    (line,) = [line for line in lines if "MountainCar-v0" in line]
    assert re.split(r" {2,}", line.strip())[2:] == [
        "150,000",
        "-99 at best, median of 5 seeds",
        "10 of its own",
    ]


def test_every_rule_for_a_space_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys, "list", "spaces").splitlines()
    for table in (encoder_rules, action_distribution_rules, action_converter_rules):
        names = [rule.name for rule in table]
        assert len(names) > 3
        assert {f"  {name}" for name in names} <= {*lines}


def test_without_an_argument_all_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    each = [printed(capsys, "list", what) for what in ("algorithms", "presets", "spaces")]
    assert printed(capsys, "list") == "\n".join(each)


def test_explain_says_what_the_built_algorithm_says(capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--env-config", '{"g": 9.0}', "--fcnet-hiddens", "8", "--vf-share-layers"]
    text = printed(capsys, "explain", "Pendulum-v1", "--algo", "PPO", *args).strip()
    model = DefaultModelConfig(fcnet_hiddens=(8,), vf_share_layers=True)
    with PPOConfig().environment("Pendulum-v1").rl_module(model_config=model).build() as algorithm:
        assert text == algorithm.explain()
    assert "DiagGaussian" in text
    assert re.search(r"3 ?→ ?8", text)


def test_explain_takes_a_class_of_an_env_and_of_a_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    env = "gymnasium.envs.classic_control:CartPoleEnv"
    text = printed(capsys, "explain", env, "--algo", "dqn", "--catalog-class", "algorithms.dqn:DQNCatalog")
    assert text.startswith("DQNCatalog\n")
    assert "Box(4)" in text


def test_explain_describes_a_module_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    where = "tests.algorithms.ppo.test_ppo_loss:Table"
    text = printed(capsys, "explain", "CartPole-v1", "--module-class", where)
    assert "Table" in text
    assert "MLPEncoder" not in text


def test_explain_builds_no_algorithm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Algorithm, "__init__", lambda self, config: pytest.fail("an algorithm was built"))
    assert printed(capsys, "explain", "CartPole-v1").startswith("PPOCatalog\n")


def test_explain_shows_each_policy_of_several_agents(capsys: pytest.CaptureFixture[str]) -> None:
    args = "explain", "rlmodule.agents.cartpoles", "--env-config", '{"num_agents": 2}', "--policies", "own"
    text = printed(capsys, *args)
    assert [text.count(f"{name}\nPPOCatalog\n") for name in ("cart_0", "cart_1")] == [1, 1]
    assert printed(capsys, *args, "--format", "mermaid").count("    subgraph ") == 2
