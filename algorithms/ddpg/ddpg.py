"""DDPG, as settings of TD3."""

from algorithms.td3.presets import DDPG_PRESETS
from algorithms.td3.td3 import TD3, TD3Config


class DDPGConfig(TD3Config):
    """Settings of :class:`DDPG`: those of TD3, with one critic, a policy update in every gradient step, and no noise on
    target actions."""

    num_critics = 1
    policy_delay = 1
    target_noise = 0.0
    presets = DDPG_PRESETS

    @property
    def algo_class(self) -> type["DDPG"]:
        return DDPG


class DDPG(TD3):
    """Deep deterministic policy gradients (Lillicrap et al. 2016), with Gaussian noise for exploration.

    Source: "Continuous control with deep reinforcement learning".
    """
