"""Twin delayed deep deterministic policy gradients."""

from typing import TYPE_CHECKING

from catalog_rl import lazily

if TYPE_CHECKING:
    from algorithms.td3.learner import TD3Learner
    from algorithms.td3.module import TD3Catalog, TD3Module
    from algorithms.td3.td3 import TD3, TD3Config, TD3Training
else:
    __getattr__ = lazily(__name__, __file__)

__all__ = ["TD3", "TD3Catalog", "TD3Config", "TD3Learner", "TD3Module", "TD3Training"]
