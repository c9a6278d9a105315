"""What docs/coming-from-sb3.md says in its tables: their arguments are all there, ours exist and have these defaults.

That its snippets run is checked in test_readme.py.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from algorithms import AlgorithmConfig
from algorithms.a2c import A2CConfig
from algorithms.dqn import DQNConfig, DQNModelConfig
from algorithms.off_policy import ReplayConfig
from algorithms.ppo import PPOConfig
from algorithms.run.callbacks import CALLBACKS
from algorithms.run.run_folder import flatten
from algorithms.sac import SACConfig
from algorithms.td3 import TD3Config
from catalog.settings import settings_of

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "coming-from-sb3.md").read_text(encoding="utf-8")
SECTIONS = {heading: text for heading, _, text in (part.partition("\n") for part in PAGE.split("\n## "))}

# The arguments of the constructors in Stable-Baselines3 2.9, with their defaults; "–" for those without one.
SHARED = {
    "stats_window_size": 100,
    "tensorboard_log": None,
    "policy_kwargs": None,
    "verbose": 0,
    "seed": None,
    "device": "auto",
    "_init_setup_model": True,
}
PPO_ARGUMENTS = {
    "policy": "–",
    "env": "–",
    "learning_rate": 3e-4,
    "n_steps": 2048,
    "batch_size": 64,
    "n_epochs": 10,
    "gamma": 0.99,
    "gae_lambda": 0.95,
    "clip_range": 0.2,
    "clip_range_vf": None,
    "normalize_advantage": True,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "use_sde": False,
    "sde_sample_freq": -1,
    "rollout_buffer_class": None,
    "rollout_buffer_kwargs": None,
    "target_kl": None,
} | SHARED
A2C_ARGUMENTS = {
    "policy": "–",
    "env": "–",
    "learning_rate": 7e-4,
    "n_steps": 5,
    "gamma": 0.99,
    "gae_lambda": 1.0,
    "ent_coef": 0.0,
    "vf_coef": 0.5,
    "max_grad_norm": 0.5,
    "rms_prop_eps": 1e-5,
    "use_rms_prop": True,
    "use_sde": False,
    "sde_sample_freq": -1,
    "rollout_buffer_class": None,
    "rollout_buffer_kwargs": None,
    "normalize_advantage": False,
} | SHARED
DQN_ARGUMENTS = {
    "policy": "–",
    "env": "–",
    "learning_rate": 1e-4,
    "buffer_size": 1_000_000,
    "learning_starts": 100,
    "batch_size": 32,
    "tau": 1.0,
    "gamma": 0.99,
    "train_freq": 4,
    "gradient_steps": 1,
    "replay_buffer_class": None,
    "replay_buffer_kwargs": None,
    "optimize_memory_usage": False,
    "n_steps": 1,
    "target_update_interval": 10_000,
    "exploration_fraction": 0.1,
    "exploration_initial_eps": 1.0,
    "exploration_final_eps": 0.05,
    "max_grad_norm": 10,
} | SHARED
ACTION_CRITIC_ARGUMENTS = {
    "policy": "–",
    "env": "–",
    "learning_rate": 3e-4,
    "buffer_size": 1_000_000,
    "learning_starts": 100,
    "batch_size": 256,
    "tau": 0.005,
    "gamma": 0.99,
    "train_freq": 1,
    "gradient_steps": 1,
    "action_noise": None,
    "replay_buffer_class": None,
    "replay_buffer_kwargs": None,
    "optimize_memory_usage": False,
    "n_steps": 1,
}
SAC_ARGUMENTS = {
    **ACTION_CRITIC_ARGUMENTS,
    "ent_coef": "auto",
    "target_update_interval": 1,
    "target_entropy": "auto",
    "use_sde": False,
    "sde_sample_freq": -1,
    "use_sde_at_warmup": False,
    **SHARED,
}
TD3_ARGUMENTS = {
    **ACTION_CRITIC_ARGUMENTS,
    "learning_rate": 1e-3,
    "policy_delay": 2,
    "target_policy_noise": 0.2,
    "target_noise_clip": 0.5,
    **SHARED,
}
ALGORITHMS: list[tuple[str, type[AlgorithmConfig], dict[str, Any]]] = [
    ("PPO's arguments", PPOConfig, PPO_ARGUMENTS),
    ("A2C's arguments", A2CConfig, A2C_ARGUMENTS),
    ("DQN's arguments", DQNConfig, DQN_ARGUMENTS),
    ("SAC's arguments", SACConfig, SAC_ARGUMENTS),
    ("TD3's arguments", TD3Config, TD3_ARGUMENTS),
]


def rows(section: str) -> list[list[str]]:
    """The cells of the body of all tables in a section of the page."""
    lines = [line for line in SECTIONS[section].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if not line.startswith("| ---")]


def value(text: str) -> Any:
    return text if text == "–" else ast.literal_eval(text)


@pytest.mark.parametrize(("section", "config_class", "arguments"), ALGORITHMS, ids=["PPO", "A2C", "DQN", "SAC", "TD3"])
def test_every_argument_has_a_row_with_both_defaults(
    section: str, config_class: type[AlgorithmConfig], arguments: dict[str, Any]
) -> None:
    head, *body = rows(section)
    assert len(head) == 5
    assert {cells[0].strip("`"): value(cells[1]) for cells in body} == arguments
    assert [cells[0].strip("`") for cells in body] == list(arguments)
    for name, _, ours, default, _ in body:
        if ours == "nothing":
            assert default == "–", name
            continue
        match = re.fullmatch(r"`\.(\w+)\((\w+)=\.\.\.\)`", ours)
        assert match, f"{name}: {ours}"
        section_of, setting = match.groups()
        assert settings_of(config_class)[setting].section == section_of
        assert value(default) == getattr(config_class(), setting), setting


def test_defaults_of_ppo_that_differ_are_explained() -> None:
    differing = [cells for cells in rows("PPO's arguments")[1:] if "–" not in cells and cells[1] != cells[3]]
    assert [cells[0] for cells in differing if not cells[4]] == []


@pytest.mark.parametrize(("section", "config_class", "arguments"), ALGORITHMS, ids=["PPO", "A2C", "DQN", "SAC", "TD3"])
def test_a_name_that_is_not_ours_raises_and_names_the_setting_to_use(
    section: str, config_class: type[AlgorithmConfig], arguments: dict[str, Any]
) -> None:
    ours = {cells[0].strip("`"): cells[2] for cells in rows(section)[1:]}
    for name in arguments:
        if name in settings_of(config_class):
            continue
        with pytest.raises(TypeError) as caught:
            config_class().update({name: arguments[name]})
        if match := re.search(r"\((\w+)=", ours[name]):
            assert match[1] in str(caught.value)


def test_settings_in_the_other_tables_exist() -> None:
    known = {*settings_of(PPOConfig), *settings_of(DQNConfig), *(f.name for f in dataclasses.fields(DQNModelConfig))}
    for cells in rows("Nets") + rows("Evaluation, and the best model"):
        named = re.findall(r"`\.?(?:\w+\()?(\w+)=", cells[1]) + re.findall(r"`([a-z]+(?:_[a-z]+)+)`", cells[1])
        for name in named:
            if name in ("learn", "target_return", "num_episodes", "num_videos"):  # arguments of methods
                continue
            assert name in (*known, *CALLBACKS, "build_encoder", "configure_optimizer_for_module"), name


def test_what_stands_in_for_a_callback_exists() -> None:
    named = {name for cells in rows("Callbacks") for name in re.findall(r"\b(on_\w+)", cells[1])}
    assert named
    assert named <= {*CALLBACKS}


def test_metrics_that_are_named_are_reported() -> None:
    reported: set[str] = set()
    for config in (PPOConfig(), DQNConfig(), SACConfig()):
        config.environment("CartPole-v1").evaluation(evaluation_interval=1, evaluation_duration=1)
        config.training(train_batch_size_per_learner=128)
        if isinstance(config, ReplayConfig):
            config.training(num_steps_sampled_before_learning_starts=128).reporting(num_env_steps_per_iteration=256)
        with config.build() as algorithm:
            reported |= dict(flatten(algorithm.train())).keys()
    named = [cells[1].strip("`") for cells in rows("Logs")[1:]]
    assert len(named) > 15
    assert [name for name in named if name not in reported] == []
