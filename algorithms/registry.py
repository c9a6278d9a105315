"""The registered algorithms: those of this library, and custom ones after :func:`register_algorithm`."""

from pkgutil import resolve_name
from typing import TYPE_CHECKING

from catalog_rl import closest, remedy_for_algorithm

if TYPE_CHECKING:
    from algorithms.config import AlgorithmConfig

ALGORITHMS: "dict[str, str | type[AlgorithmConfig]]" = {
    "A2C": "algorithms.a2c.a2c:A2CConfig",
    "APPO": "algorithms.appo.appo:APPOConfig",
    "BC": "algorithms.bc.bc:BCConfig",
    "DDPG": "algorithms.ddpg.ddpg:DDPGConfig",
    "DQN": "algorithms.dqn.dqn:DQNConfig",
    "IMPALA": "algorithms.impala.impala:IMPALAConfig",
    "IQL": "algorithms.iql.iql:IQLConfig",
    "MARWIL": "algorithms.marwil.marwil:MARWILConfig",
    "PPO": "algorithms.ppo.ppo:PPOConfig",
    "SAC": "algorithms.sac.sac:SACConfig",
    "TD3": "algorithms.td3.td3:TD3Config",
}
"""Name in capitals → config class, or ``module:name`` of a config class that is imported on demand."""


# Name in capitals → the name as the user wrote it, for printed texts.
_AS_WRITTEN: dict[str, str] = {}


def register_algorithm(name: str, config_class: "type[AlgorithmConfig]") -> None:
    """Register a custom algorithm, so that checkpoints and the ``rlmodule`` command find it.

    Call it below the config class, so that it runs whenever the module is imported.

    Args:
        name: Any unused name; case does not matter.
        config_class: Config class of the algorithm. Registering the same class again is allowed, since notebooks do so.

    Raises:
        TypeError: If ``config_class`` is not a config class.
        ValueError: If another algorithm has the name.
    """
    from algorithms.settings.base import SettingsBase  # imports torch, which the overview of the shell does without

    where = f"register_algorithm({name!r})"
    if not (isinstance(config_class, type) and issubclass(config_class, SettingsBase)):
        raise TypeError(
            f"{where}: expected a class derived from AlgorithmConfig, got {config_class!r}. Pass "
            "the class itself, as in register_algorithm('MINE', MyConfig)."
        )
    taken = ALGORITHMS.get(name.upper())
    if taken is not None and _path(taken) != _path(config_class):
        raise ValueError(f"{where}: expected a free name, got that of {_path(taken)}. Choose another name.")
    ALGORITHMS[name.upper()] = config_class
    _AS_WRITTEN[name.upper()] = name


def config_class(name: str) -> "type[AlgorithmConfig]":
    """Return the config class of the algorithm ``name``; case does not matter.

    Raises:
        ValueError: If no such algorithm is registered; names the closest, or what replaces one of another library.
    """
    if name.upper() not in ALGORITHMS:
        remedy = remedy_for_algorithm(name) or (
            f"Use a name from this list.{closest(name.upper(), ALGORITHMS)} One of yours: import its module, which "
            "calls register_algorithm(name, config_class), or in a shell type my_module:MyConfig."
        )
        raise ValueError(f"algorithm: expected one of {', '.join(ALGORITHMS)}, got {name!r}. {remedy}")
    found = ALGORITHMS[name.upper()]
    return resolve_name(found) if isinstance(found, str) else found


def registered_at(path: str) -> "type[AlgorithmConfig] | None":
    """Return the registered config class with the import path ``path`` (``module:qualname``), or None if no such class
    is registered."""
    return next((config_class(name) for name, choice in ALGORITHMS.items() if _path(choice) == path), None)


def name_of(config: "AlgorithmConfig") -> str:
    """Return the name of a config's algorithm as it was registered, or the name of its class if it was not.

    Checkpoints store this name, by which the algorithm is found when they are loaded."""
    path = _path(type(config))
    name = next((name for name, choice in ALGORITHMS.items() if _path(choice) == path), config.algo_class.__name__)
    return _AS_WRITTEN.get(name, name)


def _path(registered: "str | type[AlgorithmConfig]") -> str:
    if isinstance(registered, str):
        return registered
    return f"{registered.__module__}:{registered.__qualname__}"
