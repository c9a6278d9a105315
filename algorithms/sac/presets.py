"""SAC's presets: for each env, the settings that differ from the defaults, the env steps to train for, and the
result."""

from typing import Any

from algorithms.presets import Preset

# Smaller nets and batches, and a larger lr, reach the same return as the defaults in a quarter of the time, both on one
# thread.
_SMALL: dict[str, Any] = {
    "model_config": {"fcnet_hiddens": [64, 64]},
    "train_batch_size_per_learner": 128,
    "training_intensity": 128.0,
    "lr": 1e-3,
}

# 'auto', 0.98 of the entropy of uniform choices, is too random where a few wrong choices end an episode.
_CARTPOLE = _SMALL | {"training_intensity": 64.0, "target_entropy": 0.5, "n_step": 3}

# Observations are small already: standardised, they reach -161.
_PENDULUM = _SMALL | {"model_config": {"fcnet_hiddens": [64, 64], "normalize_observations": False}}

_LUNAR_LANDER = _SMALL | {"n_step": 3}

# One net sees the state and the goal together. Rewards come soon, so a short horizon learns faster.
_FETCH_REACH: dict[str, Any] = {
    "num_envs_per_env_runner": 4,
    "gamma": 0.95,
    "lr": 1e-3,
    "model_config": {"fcnet_hiddens": [64, 64], "flatten_observations": True},
    "her_ratio": 0.8,
}

PRESETS = {
    "CartPole-v1": Preset(50_000, "500 at the end, median of 5 seeds", _CARTPOLE),
    "Pendulum-v1": Preset(20_000, "-157 at the end, median of 5 seeds", _PENDULUM),
    "LunarLanderContinuous-v3": Preset(100_000, "217 at the end, median of 3 seeds", _LUNAR_LANDER),
    "HalfCheetah-v5": Preset(100_000, "5,780 at the end, median of 3 seeds"),
    "Hopper-v5": Preset(100_000, "1,915 at the end, median of 5 seeds"),
    "FetchReach-v*": Preset(20_000, "-1.7 on one seed, with MuJoCo 3.3", _FETCH_REACH, measured=False),
}
