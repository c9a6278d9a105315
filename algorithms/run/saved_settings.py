"""Read settings as a file holds them, without importing what they name.

:class:`algorithms.settings.encoding.Decoder` restores the objects themselves. This is for looking at them, or comparing
runs, where the code that they name may be missing or not be trusted.
"""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from algorithms.registry import ALGORITHMS, config_class
from algorithms.settings.encoding import encode
from catalog.settings import settings_of
from rlmodule.modules.spec import RLModuleSpec

MODEL, SPEC = "model_config", "rl_module_spec"
ASIDE = ("evaluation", "callbacks", "reporting", "checkpointing", "debugging")
"""Sections of settings that do not change what is learned, except for chance."""


def plain_settings(algorithm: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting by name, and those of the nets by path: ``model_config.fcnet_hiddens``.

    Args:
        algorithm: Name of the algorithm; if it is one of ours, model settings that nobody wrote get their defaults.
        config: What ``config.to_dict()`` gave.

    Returns:
        JSON values; classes and functions are import paths, what could not be saved is its description.
    """
    found = {name: _plain(value) for name, value in config.items()}
    spec, model = found.pop(SPEC, None) or _plain(encode(RLModuleSpec())), found.pop(MODEL, None)
    if isinstance(spec, Mapping):
        model = model or spec.get(MODEL)  # a config has them in one of the two places
        found |= {f"{SPEC}.{name}": value for name, value in spec.items() if name != MODEL}
    else:
        found[SPEC] = spec
    if model is not None and not isinstance(model, Mapping):
        return found | {MODEL: model}
    nets: dict[str, Any] = {}
    if algorithm in ALGORITHMS:
        default = config_class(algorithm)().model_config_class()
        nets = {item.name: _plain(encode(getattr(default, item.name))) for item in dataclasses.fields(default)}
    return found | {f"{MODEL}.{name}": value for name, value in {**nets, **(model or {})}.items()}


def default_settings(algorithm: str) -> dict[str, Any]:
    """:func:`plain_settings` of a new config; empty for an algorithm that is not registered here."""
    return plain_settings(algorithm, config_class(algorithm)().to_dict()) if algorithm in ALGORITHMS else {}


def learning_settings(algorithm: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Those of :func:`plain_settings` that change what is learned: without seed, evaluation, logs and the like."""
    known = settings_of(config_class(algorithm)) if algorithm in ALGORITHMS else {}
    aside = {name for name, item in known.items() if item.section in ASIDE}
    aside |= {"seed", "run_dir", f"{SPEC}.inference_only"}
    return {name: value for name, value in plain_settings(algorithm, config).items() if name not in aside}


def setting_text(value: Any) -> str:
    """A setting's value as a reader sees it."""
    return value if isinstance(value, str) else repr(value)


def _plain(value: Any) -> Any:
    """One of the forms of :mod:`algorithms.settings.encoding` as plain JSON."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    match value:
        case {"__items__": list(pairs)}:
            return {setting_text(_plain(key)): _plain(inner) for key, inner in pairs}
        case {"__dataclass__": _, "fields": dict(fields)}:
            return _plain(fields)
        case {"__tuple__": inner} | {"__float__": inner} | {"__import__": inner} | {"__space__": inner}:
            return _plain(inner)
        case {"__pass_again__": what}:
            return f"{what} (not saved)"
        case dict():
            return {key: _plain(inner) for key, inner in value.items()}
    return value


def read_about(run: Path) -> dict[str, Any] | None:
    """Read the run.json of a folder; None if there is none that can be read."""
    try:
        about = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a run that is just beginning has none
        return None
    return about if isinstance(about, dict) and about.keys() >= {"algorithm", "name", "seed", "config"} else None
