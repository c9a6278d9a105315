"""DQN's presets: for each env, the settings that differ from the defaults, the env steps to train for, and the
result."""

from typing import Any

from algorithms.presets import Preset

# Only a policy that repeats an action for a while reaches the goal. New nets with a large lr happen to act that way.
_MOUNTAIN_CAR: dict[str, Any] = {
    "num_envs_per_env_runner": 1,
    "rollout_fragment_length": 16,
    "training_intensity": 64.0,
    "lr": 4e-3,
    "gamma": 0.98,
    "double_q": False,
    "n_step": 1,
    "target_network_update_freq": 600,
    "epsilon": [[0, 1.0], [24_000, 0.07]],
    "replay_capacity": 10_000,
}

# Without norm and decay, the last policy is often a bad one, although a good one was found on the way.
_LUNAR_LANDER: dict[str, Any] = {"lr": [[0, 5e-4], [300_000, 0.0]], "model_config": {"fcnet_norm": "layer"}}

# One step is four frames. The steps before learning starts and between target updates are from Hessel et al. 2018
# (table 1), who used Adam too. The replay holds a tenth of the published million steps, in 0.7 GB.
_ATARI: dict[str, Any] = {
    "lr": 1e-4,
    "train_batch_size_per_learner": 32,
    "double_q": False,
    "n_step": 1,
    "training_intensity": 8.0,
    "epsilon": [[0, 1.0], [250_000, 0.01]],
    "num_steps_sampled_before_learning_starts": 20_000,
    "target_network_update_freq": 8_000,
    "replay_capacity": 100_000,
    "frame_stack_axis": 0,
    "replay_in_checkpoints": False,
    "clip_rewards": "sign",
    "model_config": {"conv_filters": "nature"},
}

PRESETS = {
    "CartPole-v1": Preset(50_000, "500 at best, median of 5 seeds"),
    "Acrobot-v1": Preset(100_000, "-74 at best, median of 5 seeds"),
    "MountainCar-v0": Preset(150_000, "-99 at best, median of 5 seeds", _MOUNTAIN_CAR),
    "LunarLander-v3": Preset(300_000, "277 at best, median of 5 seeds", _LUNAR_LANDER),
    "ALE/*": Preset(10_000_000, "as published (Mnih et al. 2015), not measured here", _ATARI, measured=False),
}
