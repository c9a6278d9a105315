"""The algorithms there are. A new one adds its line here."""

from importlib import import_module
from typing import TYPE_CHECKING

from catalog.errors import closest, explain_error

if TYPE_CHECKING:
    from algorithms.config import AlgorithmConfig

ALGORITHMS = {
    "DQN": "algorithms.dqn.dqn:DQNConfig",
    "PPO": "algorithms.ppo.ppo:PPOConfig",
}
"""Name → module and name of its config class."""


def config_class(name: str) -> "type[AlgorithmConfig]":
    """The config class of the algorithm called ``name``, in any case.

    Raises:
        ValueError: If there is none; names the closest.
    """
    if name.upper() not in ALGORITHMS:
        raise ValueError(
            explain_error(
                "algorithm",
                expected=f"one of {', '.join(ALGORITHMS)}",
                got=repr(name),
                remedy=f"Use a name from this list.{closest(name.upper(), ALGORITHMS)}",
            )
        )
    module, _, attribute = ALGORITHMS[name.upper()].partition(":")
    return vars(import_module(module))[attribute]
