"""Read saved settings as plain JSON, without importing the code that they name.

:class:`rlmodule.encoding.Decoder` restores the objects. This module only shows and compares settings, so it
works for code that is missing or not trusted.
"""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from algorithms.registry import ALGORITHMS, config_class
from catalog.settings import settings_of
from rlmodule.encoding import encode
from rlmodule.modules.rl_module import MultiRLModule, RLModule
from rlmodule.modules.spec import RLModuleSpec

MODEL, SPEC = "model_config", "rl_module_spec"
ASIDE = ("evaluation", "callbacks", "reporting", "checkpointing", "debugging")
"""Sections whose settings do not affect learning, except through random numbers."""


def plain_settings(algorithm: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings by name, and the model settings by path: ``model_config.fcnet_hiddens``.

    Args:
        algorithm: Name of the algorithm. If it is registered, missing model settings get its defaults.
        config: A dict from ``config.to_dict()``.

    Returns:
        JSON values, with import paths in place of classes and functions, and descriptions in place of objects that were
        not saved.
    """
    found = {name: _plain(value) for name, value in config.items()}
    spec, model = found.pop(SPEC, None) or _plain(encode(RLModuleSpec())), found.pop(MODEL, None)
    if isinstance(spec, Mapping):
        model = model or spec.get(MODEL)  # a valid config has them in only one of the two places
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
    """Return :func:`plain_settings` of a new config; an empty dict if the algorithm is not registered."""
    return plain_settings(algorithm, config_class(algorithm)().to_dict()) if algorithm in ALGORITHMS else {}


def learning_settings(algorithm: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of :func:`plain_settings` that affect learning: without seed, evaluation, logs and so on."""
    known = settings_of(config_class(algorithm)) if algorithm in ALGORITHMS else {}
    aside = {name for name, item in known.items() if item.section in ASIDE}
    aside |= {"seed", "run_dir", f"{SPEC}.inference_only"}
    return {name: value for name, value in plain_settings(algorithm, config).items() if name not in aside}


def setting_text(value: Any) -> str:
    """Return a value of :func:`plain_settings` as text: a string as it is, any other value as its ``repr``."""
    return value if isinstance(value, str) else repr(value)


def _plain(value: Any) -> Any:
    """Turn a result of :func:`rlmodule.encoding.encode` into plain JSON: replace tagged dicts, such as
    ``{"__tuple__": [1, 2]}``, with their content."""
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


class SavedSettings:
    """The settings of a saved run, to compare with those of the run that continues it.

    Args:
        content: The content of a checkpoint.

    Attributes:
        run_seed: The seed of the saved run.
    """

    def __init__(self, content: Mapping[str, Any]) -> None:
        self.run_seed: int = content["run_seed"]
        self._config: dict[str, Any] = _plain(content["config"])
        self._encoded_specs = {module_id: saved.get("spec") for module_id, saved in content["modules"].items()}

    def get(self, name: str, module_id: str, default: Any) -> Any:
        """Return the setting ``name`` of the module ``module_id``. Return ``default`` if the checkpoint is older than
        the setting."""
        overrides = self._config.get("policy_overrides", {}).get(module_id, {})
        return overrides.get(name, self._config.get(name, default))

    def has_other_spaces(self, modules: MultiRLModule) -> bool:
        """Return whether one of ``modules`` has other spaces than it was saved with."""
        for module_id, module in modules.items():
            spec = self._encoded_specs.get(module_id)
            if spec is not None and _spaces_in(spec) != _spaces_in(encode(RLModuleSpec.of(module))):
                return True
        return False

    def changed_in_net(self, module_id: str, module: RLModule) -> dict[str, str]:
        """Return the model settings of ``module`` that differ from those that ``module_id`` was saved with: the path of
        each, such as ``functions['value']['fcnet_hiddens']``, and its name."""
        saved = self._encoded_specs.get(module_id)
        if saved is None:
            return {}
        specs = saved, encode(RLModuleSpec.of(module))
        before, after = (dict(_model_settings(_plain(spec)[MODEL] or {})) for spec in specs)
        return {path: name for path, (name, _) in (before | after).items() if before.get(path) != after.get(path)}


def _spaces_in(spec: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return the spaces of ``spec``, an encoded :class:`RLModuleSpec`."""
    return spec["fields"]["observation_space"], spec["fields"]["action_space"]


def _model_settings(given: Mapping[str, Any], place: str = "") -> Iterator[tuple[str, tuple[str, Any]]]:
    """Yield the path, name and value of each model setting in ``given``, also of those by leaf and by function."""
    for name, value in given.items():
        path = f"{place}[{name!r}]" if place else name
        if name in ("functions", "leaf_overrides"):
            for key, settings in value.items():
                yield from _model_settings(settings, f"{path}[{key!r}]")
        else:
            yield path, (name, value)


def folders_below(path: Path, file: str) -> list[Path]:
    """Return the folders at most two levels below ``path`` that hold ``file``, sorted by path."""
    return sorted(found.parent for pattern in ("*", "*/*") for found in path.glob(f"{pattern}/{file}"))


def read_about(run: Path) -> dict[str, Any] | None:
    """Return the content of run.json in the run folder ``run``, or None if the file is missing or damaged."""
    try:
        about = json.loads((run / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a run that is starting has not written it yet
        return None
    return about if isinstance(about, dict) and about.keys() >= {"algorithm", "name", "seed", "config"} else None
