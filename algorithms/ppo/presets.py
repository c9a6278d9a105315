"""PPO's presets: for each env it was measured on, the settings that differ from the defaults, env steps and result."""

from typing import Any

from algorithms.presets import Preset

_ATARI_STEPS = 10_000_000
_ATARI: dict[str, Any] = {
    "train_batch_size_per_learner": 1024,
    "minibatch_size": 256,
    "num_epochs": 4,
    "lr": [[0, 2.5e-4], [_ATARI_STEPS, 0.0]],
    "clip_param": 0.1,
    "entropy_coeff": 0.01,
    "clip_rewards": "sign",
    "model_config": {"conv_filters": "nature", "vf_share_layers": True},
}

PRESETS = {
    "CartPole-v1": Preset(100_000, "500 at the end, median of 5 seeds"),
    "Acrobot-v1": Preset(300_000, "-80 at the end, median of 5 seeds"),
    "Pendulum-v1": Preset(300_000, "-143 at the end, median of 5 seeds"),
    "LunarLander-v3": Preset(1_000_000, "265 at the end, median of 5 seeds"),
    "HalfCheetah-v5": Preset(500_000, "2,022 at the end, median of 5 seeds"),
    "ALE/*": Preset(_ATARI_STEPS, "as published (Schulman et al. 2017), not measured here", _ATARI, measured=False),
}
