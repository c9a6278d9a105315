"""Deep deterministic policy gradients: TD3 without its three additions."""

from algorithms.ddpg.ddpg import DDPG, DDPGConfig

__all__ = ["DDPG", "DDPGConfig"]
