"""Apply the values of a search to a config, by dotted names."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from algorithms.config import AlgorithmConfig
from catalog.model_config import DefaultModelConfig
from catalog.settings import settings_of


def applied(config: AlgorithmConfig, point: Mapping[str, Any]) -> AlgorithmConfig:
    """Return a copy of ``config`` with the values of ``point``, and check that all settings fit together.

    Args:
        config: The config to copy.
        point: A value for each dotted name in a search space, such as ``{"env_config.num_agents": 3}``.

    Raises:
        TypeError, ValueError: If a name does not exist, or a value does not fit it or the other settings.
    """
    changed = config.copy()
    for name, value in point.items():
        setting, *path = name.split(".")
        if setting in settings_of(DefaultModelConfig) and setting not in vars(changed):
            raise ValueError(f"{name!r}: expected a setting, got a model setting. Search 'model_config.{name}'.")
        changed.update({setting: _replaced(name, vars(changed).get(setting), path, value)})
    changed.validate()
    return changed


def _replaced(name: str, whole: Any, path: Sequence[str], value: Any) -> Any:
    """Return a copy of the nested dict or model settings ``whole`` with ``value`` at the keys ``path``. Errors
    quote ``name``, the full dotted name."""
    if not path:
        return value
    if isinstance(whole, DefaultModelConfig):
        return replace(whole, **{path[0]: _replaced(name, vars(whole).get(path[0]), path[1:], value)})
    if not isinstance(whole, Mapping | None):
        above = name.removesuffix(".".join(["", *path]))
        raise ValueError(
            f"{name!r}: expected a setting with entries, got {above} = {whole!r}. Search {above!r} itself."
        )
    entries = dict(whole or {})
    return entries | {path[0]: _replaced(name, entries.get(path[0]), path[1:], value)}
