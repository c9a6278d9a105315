"""Makes model-settings.md, the table of all model settings, from the fields of ``DefaultModelConfig``."""

from typing import Any

import numpy as np
from gymnasium import spaces
from tables import table_head, table_row

from algorithms.dqn import DQNModelConfig
from algorithms.sac import SACModelConfig
from catalog import DefaultModelConfig, action_converter_rules, action_distribution_rules, encoder_rules
from catalog.checks import type_text
from catalog.rules import RuleTable
from catalog.settings import Setting, settings_of

SECTIONS = {
    "fcnet_hiddens": ("Dense nets", "The MLP of vectors and choices: [observations](observations.md#vectors)."),
    "discrete_embedding_dim": ("How spaces are read", "Which net a space gets: [observations](observations.md)."),
    "conv_filters": ("Images", "The CNN: [observations](observations.md#images)."),
    "fusionnet_hiddens": (
        "Several parts",
        "What joins the encoders of a Dict or Tuple: [observations](observations.md#nested-observations).",
    ),
    "use_lstm": ("Memory", "LSTM and GRU: [recurrent nets](recurrent.md). Attention: [attention](attention.md)."),
    "head_fcnet_hiddens": ("Heads", "The layers between a latent and an output: [functions](functions.md)."),
    "vf_share_layers": ("Functions", "Who shares an encoder, and further outputs: [functions](functions.md)."),
    "free_log_std": ("Actions", "Distributions, masks, the way to the environment: [actions](actions.md)."),
    "normalize_observations": ("Running statistics", "Buffers of the module: [the loop](the-loop.md#normalisers)."),
    "custom_model": ("Nets of your own", "By setting: [observations](observations.md#an-encoder-by-setting)."),
}
"""First field of each section → its title, and a sentence that leads to where it is explained."""

INTRODUCTION = """\
# Model settings

<!-- Written by `python docs/generated.py` from catalog/model_config.py and the rules; do not edit. -->

The fields of [`DefaultModelConfig`](../catalog/model_config.py). Give them as a dict of those that differ from the
default, or as the class: `.rl_module(model_config={"fcnet_hiddens": [256, 256]})`. In a shell each is a flag:
`--fcnet-hiddens 256 256`. An unknown name or a wrong value raises an error that says what fits. Both forms mean the
same: settings that are not given have the algorithm's defaults.

```python
from algorithms.ppo import PPOConfig

config = PPOConfig().rl_module(model_config={"fcnet_hiddens": [256, 256], "fcnet_activation": "relu"})
```

![The parts of a module, observation, encoder, memory, heads, each with settings that shape
it.](pictures/model-settings.png)

A setting that differs from its default and has **no effect** with these spaces and the other settings, such as
`lstm_cell_size` without a memory or `conv_dense_dim` without an image, is named in one warning when the nets are built,
and under *without effect* by `explain()`. So a grid over `use_lstm` may keep `lstm_cell_size`. A hook or a
custom module may read any setting: no warning names those, but `explain()` lists the settings of encoders that
are *left to* your `build_encoder()`.

*Shapes* says what a setting is about. Settings of an **encoder** may differ by part of the observation
(`leaf_overrides`) and by function (`functions`), those of a **head** by function. Settings of the **module** hold for
the whole. `use_lstm`, `use_gru` and `use_attention` cannot differ by part.
"""

DQN = """\
## DQN's

[`DQNModelConfig`](../algorithms/dqn/module.py) adds settings of its own, which `DQNConfig().training(...)` sets too,
and has other defaults for some of those above ([why](dqn.md#defaults-and-rllibs)). A dict is filled up with its
defaults, and so is a `DefaultModelConfig`: what it was not given is DQN's.
"""

SAC = """\
## SAC's

[`SACModelConfig`](../algorithms/sac/module.py), in the same way: `SACConfig().training(...)` sets `num_critics` and
`initial_alpha`. TD3 and DDPG have [`ActionCriticModelConfig`](../catalog/critics.py), without `initial_alpha`.
"""

RULES = """\
## Which rule reads which setting

The rules of the tree in the order in which they are asked, and the settings that shape what they choose. `explain()`
shows the rule that fired, those skipped, and the values of these settings. Initialisers take their `_kwargs` along.
"""


VECTOR = spaces.Box(-1, 1, (4,))
MATRIX = spaces.Box(-1, 1, (4, 4))
EXAMPLES: list[tuple[spaces.Space, dict[str, Any]]] = [
    (VECTOR, {}),
    (VECTOR, {"custom_model": lambda space: None}),
    (MATRIX, {}),
    (MATRIX, {"matrix_observations": "image"}),
    (MATRIX, {"matrix_observations": "sequence"}),
    (spaces.Box(0, 1, (16, 16, 3)), {}),
    (spaces.Box(0, 1, (4, 16, 16, 3)), {}),
    (spaces.Box(0, 9, (4,), np.int64), {}),
    (spaces.Discrete(3), {}),
    (spaces.Discrete(3), {"discrete_embedding_dim": 2}),
    (spaces.MultiDiscrete([3, 3]), {}),
    (spaces.MultiBinary(3), {}),
    (spaces.Dict(a=VECTOR, b=VECTOR), {}),
    (spaces.Dict(a=VECTOR, b=VECTOR), {"flatten_observations": True}),
    (spaces.Tuple([VECTOR, VECTOR]), {}),
    (spaces.Tuple([VECTOR, VECTOR]), {"flatten_observations": True}),
]
"""Spaces and settings to which each rule applies at least once."""


def page() -> str:
    """The text of the page."""
    return "\n".join(
        [INTRODUCTION, *_settings(), DQN, *_own(DQNModelConfig), SAC, *_own(SACModelConfig), RULES, *_rules()]
    )


def _settings() -> list[str]:
    lines: list[str] = []
    for item in settings_of(DefaultModelConfig).values():
        if item.name in SECTIONS:
            title, sentence = SECTIONS[item.name]
            lines += ["", f"## {title}", "", sentence, ""] if lines else [f"## {title}", "", sentence, ""]
            lines += table_head("Setting", "Default", "Takes", "Shapes", "What it is")
        lines.append(_setting(item))
    return [*lines, ""]


def _own(config: type[DefaultModelConfig]) -> list[str]:
    shared = settings_of(DefaultModelConfig)
    items = settings_of(config).values()
    own = [item for item in items if item.name not in shared or item.default != shared[item.name].default]
    own.sort(key=lambda item: item.name in shared)
    return [*table_head("Setting", "Default", "Takes", "Shapes", "What it is"), *map(_setting, own), ""]


def _setting(item: Setting) -> str:
    takes = ", ".join(filter(None, (type_text(item.hint), str(item.bounds))))
    return table_row(f"`{item.name}`", f"`{_default(item)!r}`", f"`{takes}`", item.part, item.doc)


def _rules() -> list[str]:
    lines = table_head("Decides", "Rule", "Settings")
    for table in (encoder_rules, action_distribution_rules, action_converter_rules):
        reads = _reads_by_rule(table)
        for rule in table:
            settings = [name for name in reads[rule.name] if not name.endswith("_kwargs")]
            lines.append(table_row(table.what, rule.name, ", ".join(f"`{name}`" for name in settings) or "none"))
    return [*lines, ""]


def _reads_by_rule(table: RuleTable) -> dict[str, list[str]]:
    """The settings that each rule of the table reads, by the name of the rule, from deciding about the examples."""
    reads: dict[str, list[str]] = {}
    for space, settings in EXAMPLES:
        try:
            root = table.root(space, DefaultModelConfig(**settings), "space")
            root.run()
        except ValueError:  # as an action space, an image has no rule, say
            continue
        for node in root.walk():
            assert node.rule is not None
            reads[node.rule.name] = node.reads
    return reads


def _default(item: Setting) -> object:
    """The default as a user would write it: lists for tuples."""
    return [*item.default] if isinstance(item.default, tuple) else item.default
