"""Overriding one hook of a catalog never disables another, with whatever spaces, masks and memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from algorithms.ppo import PPOCatalog, PPOConfig, PPOLearner, PPOModule
from catalog import (
    AutoregressiveDistribution,
    DefaultModelConfig,
    Distribution,
    MLPEncoderConfig,
    ModelConfig,
    MultiDistribution,
)
from catalog.encoders.preprocessing import Vectorize, vector_width
from rlmodule import Columns, RLModuleSpec
from rlmodule.testing.data import random_rollout
from tests.turns import NUM_PARTS, marks_of, taking_turns

MASK = "action_mask"
VECTOR = spaces.Box(-1, 1, (3,), np.float32)
NESTED = spaces.Dict([("z", VECTOR), ("a", spaces.Tuple([spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(3)]))])
MASKED = spaces.Dict(
    [("x", VECTOR), (MASK, spaces.MultiBinary(3)), ("avail_actions", spaces.Box(-1, 1, (3, 2), np.float32))]
)
PARTS = spaces.Dict([("walk", spaces.Box(-1, 1, (2,), np.float32)), ("arm", spaces.Discrete(3))])
MEMORY = {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4}
PREVIOUS = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True, "vf_share_layers": False}


class Setting(NamedTuple):
    observation: Space
    action: Space
    model_config: dict[str, Any]


SETTINGS = {
    "flat": Setting(VECTOR, spaces.Discrete(3), {}),
    "nested": Setting(NESTED, PARTS, {}),
    "masked": Setting(MASKED, spaces.Discrete(3), {}),
    "autoregressive": Setting(VECTOR, PARTS, {"autoregressive_actions": True}),
    "recurrent": Setting(VECTOR, spaces.Discrete(3), MEMORY),
    "recurrent, masked, previous action": Setting(MASKED, spaces.Discrete(3), MEMORY | PREVIOUS),
    "recurrent, nested, previous action": Setting(NESTED, PARTS, MEMORY | PREVIOUS),
}
HOOKS = [name for name in dir(PPOCatalog) if name.startswith(("build_", "get_", "_get_", "_determine_"))]


class Mine(nn.Module):
    """An encoder of your own, of raw observations whatever they are."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self.vectorize = Vectorize(space)
        self.linear = nn.Linear(vector_width(space), 17)

    def forward(self, obs: Any) -> Tensor:
        return self.linear(self.vectorize(obs))


def another_encoder(catalog: PPOCatalog, space: Space, config: DefaultModelConfig) -> ModelConfig:
    if isinstance(space, spaces.Box):
        return MLPEncoderConfig(input_space=space, hidden_layer_dims=(11,))
    return PPOCatalog._get_encoder_config(catalog, space, config)


def another_tokenizer(catalog: PPOCatalog, space: Space, config: DefaultModelConfig) -> ModelConfig:
    return MLPEncoderConfig(input_space=space, hidden_layer_dims=(13,))


def another_distribution(catalog: PPOCatalog, space: Space) -> type[Distribution]:
    dist_cls = PPOCatalog._get_dist_cls_from_action_space(catalog, space)
    return dist_cls if isinstance(space, spaces.Dict) else type("Part", (dist_cls,), {"by_part": True})


def another_whole_distribution(catalog: PPOCatalog) -> type[Distribution]:
    return type("Whole", (PPOCatalog.get_action_dist_cls(catalog),), {"as_a_whole": True})


def another_decision(catalog: PPOCatalog) -> None:
    PPOCatalog._determine_components_hook(catalog)
    vars(catalog)["decided_by_me"] = True


REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "_get_encoder_config": another_encoder,
    "get_tokenizer_config": another_tokenizer,
    "_get_dist_cls_from_action_space": another_distribution,
    "get_action_dist_cls": another_whole_distribution,
    "_determine_components_hook": another_decision,
    "build_encoder": lambda catalog: Mine(catalog.input_space),
}
"""What a hook does instead; the others leave a mark on what super() builds."""


def marked(hook: str) -> Callable[..., Any]:
    def build(catalog: PPOCatalog) -> nn.Module | None:
        built = getattr(PPOCatalog, hook)(catalog)
        if built is not None:
            vars(built)["built_by"] = {*vars(built).get("built_by", ()), hook}
        return built

    return build


def override(hooks: Iterable[str]) -> tuple[type[PPOCatalog], set[str]]:
    """A catalog with these hooks overridden, and those of them that were called, once they are."""
    called: set[str] = set()

    def method(hook: str) -> Callable[..., Any]:
        def call(self: PPOCatalog, *args: Any) -> Any:
            called.add(hook)
            return REPLACEMENTS.get(hook, marked(hook))(self, *args)

        return call

    return type("Mine", (PPOCatalog,), {hook: method(hook) for hook in hooks}), called


def build(setting: Setting, catalog_class: type[PPOCatalog]) -> PPOModule:
    config = {"fcnet_hiddens": [8], "normalize_observations": True, "functions": {"more": {"output_dim": 2}}}
    observation, action, own = setting
    module = PPOModule(
        observation_space=observation, action_space=action, model_config=config | own, catalog_class=catalog_class
    )
    return module.eval()


def shows(module: PPOModule, hook: str) -> bool:
    """Whether what ``hook`` decides or builds is part of the module."""
    widths = {layer.out_features for layer in module.encoder.modules() if isinstance(layer, nn.Linear)}
    dist_cls: Any = module.action_dist_cls
    by_parts: Any = dist_cls.independent if issubclass(dist_cls, AutoregressiveDistribution) else dist_cls
    parts = by_parts.children if issubclass(by_parts, MultiDistribution) else (by_parts,)
    decided = {
        "_get_encoder_config": 11 in widths,
        "get_tokenizer_config": 13 in widths,
        "build_encoder": 17 in widths,
        "_get_dist_cls_from_action_space": all("by_part" in dir(part) for part in parts),
        "get_action_dist_cls": "as_a_whole" in dir(dist_cls),
        "_determine_components_hook": "decided_by_me" in vars(module.catalog),
    }
    built = {name for part in module.modules() for name in vars(part).get("built_by", ())}
    return decided.get(hook, hook in built)


def is_asked(hook: str, hooks: Iterable[str], setting: Setting) -> bool:
    """Whether anything is left for the hook to decide."""
    recurrent = "use_lstm" in setting.model_config
    if hook == "get_tokenizer_config":
        return recurrent
    return hook != "_get_encoder_config" or not (recurrent and "get_tokenizer_config" in hooks)


def counts(hook: str, hooks: Iterable[str], setting: Setting) -> bool:
    """Whether what it decides is used: a whole encoder of your own leaves no use for configs of parts of it."""
    if hook in ("build_action_mask", "build_action_embeddings"):
        return setting.observation is MASKED
    if hook == "build_action_model":
        return "autoregressive_actions" in setting.model_config
    by_config = hook in ("_get_encoder_config", "get_tokenizer_config")
    return is_asked(hook, hooks, setting) and not (by_config and "build_encoder" in hooks)


def test_every_hook_is_tried() -> None:
    assert {*REPLACEMENTS} < {*HOOKS}
    assert {"build_pi_head", "build_vf_head", "build_action_mask", "build_observation_normalizer"} < {*HOOKS}


@pytest.mark.parametrize("name", taking_turns(SETTINGS))
def test_overriding_one_hook_never_disables_another(name: str) -> None:
    setting = SETTINGS[name]
    pairs = [*itertools.combinations(HOOKS, 2)][[*SETTINGS].index(name) :: len(SETTINGS)]  # each pair in one setting
    for hooks in [*itertools.combinations(HOOKS, 1), *pairs, tuple(HOOKS)]:
        catalog_class, called = override(hooks)
        module = build(setting, catalog_class)
        for hook in HOOKS:
            expected = hook in hooks and counts(hook, hooks, setting)
            assert shows(module, hook) is expected, f"{hook} where {hooks} are overridden"
            assert (hook in called) is (hook in hooks and is_asked(hook, hooks, setting)), f"{hook} of {hooks}"


# each hook in two or three settings, and all of them in all
@pytest.mark.parametrize(
    ("hook", "name"),
    [
        pytest.param(hook, name, marks=() if hook == "all of them" else marks_of((i + j) % NUM_PARTS))
        for i, hook in enumerate([*HOOKS, "all of them"])
        for j, name in enumerate(SETTINGS)
    ],
)
def test_a_module_with_a_hook_overridden_acts_and_learns(hook: str, name: str) -> None:
    setting, (catalog_class, _) = SETTINGS[name], override(HOOKS if hook == "all of them" else [hook])
    config = PPOConfig().training(train_batch_size_per_learner=12, minibatch_size=None, num_epochs=1)
    own = build(setting, catalog_class).catalog.model_config
    spec = RLModuleSpec(PPOModule, setting.observation, setting.action, own, catalog_class)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        learner = PPOLearner(config.freeze(), spec.as_multi(), run_seed=0)
    module = learner.module["default_policy"]
    rollout = random_rollout(module, 6, 2)
    results = learner.update_from_episodes(rollout, env_steps=12)["default_policy"]
    assert all(np.isfinite(value) for value in results.values())
    fitted = module.action_converter(rollout[Columns.ACTIONS])
    first = {key: part[0, 0].numpy() for key, part in fitted.items()} if isinstance(fitted, dict) else fitted[0, 0]
    assert setting.action.contains(first if isinstance(first, dict) else first.numpy())


@pytest.mark.parametrize("name", taking_turns(SETTINGS))
def test_explain_names_each_hook_that_is_overridden(name: str) -> None:
    for hooks in [*itertools.combinations(HOOKS, 1), tuple(HOOKS)]:
        text = build(SETTINGS[name], override(hooks)[0]).catalog.explain()
        message = text[text.index("\n  overridden\n") :]
        for hook in HOOKS:
            assert (f" Mine.{hook}() in place of " in message) is (hook in hooks), hook
