"""What docs/coming-from-cleanrl.md says in its tables of names; what it shows runs in test_readme.py."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms.dqn import DQNConfig
from algorithms.ppo import PPOConfig
from algorithms.run.run_folder import flatten
from catalog.settings import settings_of
from rlmodule import Columns

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


def test_the_translation_has_the_loss_of_ppo_py() -> None:
    """Its loss in its own arithmetic, on rows whose ratios and values are partly outside of what is clipped."""
    translation = PAGE.partition("## On equal terms")[2].partition("```python")[2].partition("with config.build()")[0]
    names: dict[str, Any] = {}
    exec(translation, names)
    generator = torch.Generator().manual_seed(1)
    batch = {
        Columns.OBS: torch.randn(128, 4, generator=generator),
        Columns.ACTIONS: torch.randint(0, 2, (128,), generator=generator),
        Columns.ACTION_LOGP: torch.rand(128, generator=generator).add(0.1).log(),
        Columns.ADVANTAGES: torch.randn(128, generator=generator) * 3 + 1,
        Columns.VALUES: torch.randn(128, generator=generator),
        Columns.VALUE_TARGETS: torch.randn(128, generator=generator) * 20,
    }
    with names["config"].build() as algorithm:
        learner, module = algorithm.learner_group.learner, algorithm.get_module()
        out = module.forward_train(batch)
        loss, _ = learner.compute_loss_for_module("default_policy", batch, out)
        logits, new_values = out[Columns.ACTION_DIST_INPUTS], module.compute_values(batch)
        rates = [algorithm.train()["learners"]["default_policy"]["learning_rate"]]
        rates.append(algorithm.train()["learners"]["default_policy"]["learning_rate"])

    probs, clip_coef, ent_coef, vf_coef = torch.distributions.Categorical(logits=logits), 0.2, 0.01, 0.5
    ratio = (probs.log_prob(batch[Columns.ACTIONS]) - batch[Columns.ACTION_LOGP]).exp()
    advantages = batch[Columns.ADVANTAGES]
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    clipped = ratio.clamp(1 - clip_coef, 1 + clip_coef)
    policy_loss = torch.max(-advantages * ratio, -advantages * clipped).mean()
    targets, values = batch[Columns.VALUE_TARGETS], batch[Columns.VALUES]
    held = values + (new_values - values).clamp(-clip_coef, clip_coef)
    value_loss = 0.5 * torch.max((new_values - targets) ** 2, (held - targets) ** 2).mean()
    assert 0 < int((ratio != clipped).sum()) < 128
    assert 0 < int((held != new_values).sum()) < 128
    torch.testing.assert_close(loss, policy_loss - ent_coef * probs.entropy().mean() + value_loss * vf_coef)
    assert rates == pytest.approx([2.5e-4, 2.5e-4 * (1 - 1 / 976)])
