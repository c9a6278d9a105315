"""On what PPO was measured to learn: with its defaults, which need no tuning, and for how long."""

from algorithms.presets import Preset

PRESETS = {
    "CartPole-v1": Preset(100_000, "500 at the end, median of 5 seeds"),
    "Acrobot-v1": Preset(300_000, "-80 at the end, median of 5 seeds"),
    "Pendulum-v1": Preset(300_000, "-143 at the end, median of 5 seeds"),
    "LunarLander-v3": Preset(1_000_000, "265 at the end, median of 5 seeds"),
    "HalfCheetah-v5": Preset(500_000, "2,022 at the end, median of 5 seeds"),
}
