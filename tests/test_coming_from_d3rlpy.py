"""What docs/coming-from-d3rlpy.md says in its tables of settings; what it shows runs in test_readme.py."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from algorithms.bc import BCConfig
from algorithms.dqn import DQNConfig
from algorithms.sac import SACConfig
from algorithms.td3 import TD3Config
from catalog.settings import settings_of

PAGE = (Path(__file__).parents[1] / "docs" / "coming-from-d3rlpy.md").read_text(encoding="utf-8")
SETTINGS = PAGE.partition("## Settings\n")[2].partition("\n## ")[0]

# The fields of the configs of d3rlpy 2.8 for BC.
BC_FIELDS = [
    *("batch_size", "learning_rate", "policy_type", "beta", "encoder_factory", "optim_factory"),
    *("observation_scaler", "action_scaler", "reward_scaler", "compile_graph"),
]


def test_every_field_of_their_bc_is_there() -> None:
    assert sorted(re.findall(r"^\| `(\w+)` \| .+ \| .+ \| .+ \|.*\|$", SETTINGS, re.M)) == sorted(BC_FIELDS)


def test_settings_of_bc_exist_with_these_defaults() -> None:
    rows = re.findall(r"^\| `\w+` \| .+ \| `\.(\w+)\((\w+)=\.\.\.\)` \| (.+?) \| ", SETTINGS, re.M)
    assert len(rows) > 5
    for section, name, default in rows:
        assert settings_of(BCConfig)[name].section == section
        assert getattr(BCConfig(), name) == ast.literal_eval(default), name


def test_settings_of_algorithms_with_replay_exist() -> None:
    lines = SETTINGS.partition("| Setting of DQN")[2].splitlines()[2:]
    rows = [line for line in lines if line.startswith("|")]
    named = {name for row in rows for name in re.findall(r"`(\w+)(?:=\d+)?`", row.split(" | ")[1])}
    assert len(named) > 8
    known = {name for config in (DQNConfig, SACConfig, TD3Config) for name in settings_of(config)}
    assert named - known == set()
