"""APPO's presets: for each env, the settings that differ from the defaults, the env steps to train for, and the
result."""

from algorithms.presets import Preset

PRESETS = {
    "CartPole-v1": Preset(200_000, "500 at the end, median of 5 seeds", {"num_env_runners": 1}),
    "Pendulum-v1": Preset(300_000, "-168 at the end, median of 5 seeds", {"num_env_runners": 1}),
}
