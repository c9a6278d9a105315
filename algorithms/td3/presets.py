"""Presets of TD3 and DDPG: for each env, the settings that differ from the defaults, the env steps to train for, and
the result."""

from typing import Any

from algorithms.presets import Preset

_PENDULUM: dict[str, Any] = {
    "model_config": {"fcnet_hiddens": [64, 64]},
    "train_batch_size_per_learner": 128,
    "training_intensity": 128.0,
}

PRESETS = {
    "Pendulum-v1": Preset(20_000, "-158 at the end, median of 5 seeds", _PENDULUM | {"lr": [[0, 1e-3], [20_000, 0.0]]})
}
DDPG_PRESETS = {"Pendulum-v1": Preset(20_000, "-159 at the end, median of 5 seeds", _PENDULUM)}
