"""What docs/coming-from-cleanrl.md says in its tables of names; what it shows runs in test_readme.py."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from algorithms.dqn import DQNConfig
from algorithms.ppo import PPOConfig
from algorithms.run_folder import flatten
from algorithms.settings import settings_of

PAGE = (Path(__file__).parents[1] / "docs" / "coming-from-cleanrl.md").read_text(encoding="utf-8")
NAMES = PAGE.partition("## Names")[2]


def test_settings_exist_with_these_defaults() -> None:
    rows = re.findall(r"^\| `.+ \| .+ \| `\.(\w+)\((\w+)=\.\.\.\)`.* \| (.+) \|$", NAMES, re.M)
    assert len(rows) > 15
    config = PPOConfig()
    for section, name, default in rows:
        assert settings_of(PPOConfig)[name].section == section
        assert ast.literal_eval(default) == getattr(config, name), name


def test_metrics_are_reported() -> None:
    named = re.findall(r"^\| `(?:charts|losses|global).+?` \| `([\w/]+)` \|", NAMES, re.M)
    assert len(named) > 12
    ppo = PPOConfig().environment("CartPole-v1").training(train_batch_size_per_learner=128)
    dqn = DQNConfig().environment("CartPole-v1").reporting(num_env_steps_per_iteration=256)
    dqn.training(num_steps_sampled_before_learning_starts=128)
    reported: set[str] = set()
    for config in (ppo, dqn):
        with config.build() as algorithm:
            reported |= dict(flatten(algorithm.train())).keys()
    assert [name for name in named if name not in reported] == []
