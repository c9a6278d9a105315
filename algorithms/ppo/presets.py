"""PPO's presets: for each env, the settings that differ from the defaults, the env steps to train for, and the
result."""

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
_PONG: dict[str, Any] = {  # the smaller net of Mnih et al. 2016, and many gradient steps per env step
    "env_config": {"repeat_action_probability": 0.0},  # no sticky actions, as in PongNoFrameskip-v4
    "train_batch_size_per_learner": 1024,
    "minibatch_size": 32,
    "num_epochs": 3,
    "lr": [[0, 2.5e-4], [1_500_000, 2.5e-4], [2_500_000, 0.0]],
    "entropy_coeff": 0.01,
    "clip_rewards": "sign",
    "model_config": {
        "conv_filters": [[16, 8, 4], [32, 4, 2]],
        "conv_padding": "valid",
        "conv_dense_dim": 256,
        "vf_share_layers": True,
    },
}
_AGENTS: dict[str, Any] = {"policies": "shared", "num_envs_per_env_runner": 32}
_CONNECT_FOUR: dict[str, Any] = {
    **_AGENTS,
    "train_batch_size_per_learner": 8192,
    "minibatch_size": 512,
    "num_epochs": 8,
    "lr": [[0, 1e-3], [1_000_000, 0.0]],
    "entropy_coeff": 0.05,
    "model_config": {"flatten_observations": True, "fcnet_hiddens": [256, 256], "fcnet_activation": "relu"},
}
_SPREAD: dict[str, Any] = {
    **_AGENTS,
    "train_batch_size_per_learner": 4000,
    "minibatch_size": 1000,
    "lr": 7e-4,
    "entropy_coeff": 0.01,
}
# Found by rlmodule tune ppo MountainCarContinuous-v0 --preset none --trials 20 --seeds 2 --num-env-steps 100000
# --search lr=log:1e-5..2e-3 num_epochs=1..20 gamma=1-log:1e-3..0.1 lambda_=1-log:1e-2..0.2
# "minibatch_size=64|128|256|512" "train_batch_size_per_learner=1024|2048|4096" entropy_coeff=log:1e-6..0.05
# "clip_param=0.1|0.2|0.3"
_CAR: dict[str, Any] = {
    "train_batch_size_per_learner": 1024,
    "minibatch_size": 256,
    "num_epochs": 19,
    "lr": 5.261e-4,
    "gamma": 0.998666,
    "lambda_": 0.95955,
    "entropy_coeff": 7.513e-5,
    "clip_param": 0.3,
}

PRESETS = {
    "CartPole-v1": Preset(100_000, "500 at the end, median of 5 seeds"),
    "Acrobot-v1": Preset(300_000, "-74 at the end, median of 5 seeds"),
    "MountainCarContinuous-v0": Preset(100_000, "95 at the end, median of 5 seeds", _CAR),
    "Pendulum-v1": Preset(300_000, "-181 at the end, median of 5 seeds"),
    "LunarLander-v3": Preset(1_000_000, "278 at the end, median of 5 seeds"),
    "HalfCheetah-v5": Preset(500_000, "4,160 at the end, median of 5 seeds"),
    "rlmodule.agents.cartpoles": Preset(
        300_000, "500 per agent at the end, median of 5 seeds", {"policies": "shared", "minibatch_size": 256}
    ),
    "mpe2.simple_spread_v3": Preset(3_000_000, "-9.1 per agent at the end, median of 3 seeds", _SPREAD),
    "classic/connect_four-v3": Preset(1_000_000, "98 % of games won at the end, median of 3 seeds", _CONNECT_FOUR),
    "ALE/Pong-v5": Preset(2_500_000, "21.0 at the end, one seed", _PONG),
    "ALE/*": Preset(_ATARI_STEPS, "as published (Schulman et al. 2017), not measured here", _ATARI, measured=False),
}
