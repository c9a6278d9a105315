"""Write the checkpoint of an algorithm, and load the algorithm from it."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from algorithms.loggers.base import needs_folder
from algorithms.registry import ALGORITHMS, config_class, name_of, registered_at
from algorithms.run.run_folder import checkpoint_in, run_folder_of
from algorithms.settings.base import SettingsBase
from algorithms.settings.encoding import Decoder, NotReadable, import_path
from rlmodule.checkpoint import StrPath, load_checkpoint, save_checkpoint

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm
    from algorithms.config import AlgorithmConfig

_saved: WeakSet[Algorithm] = WeakSet()


def save_algorithm(algorithm: Algorithm, path: StrPath) -> Path:
    """Write a checkpoint; see :meth:`algorithms.Algorithm.save`."""
    if algorithm not in _saved:
        _saved.add(algorithm)
        _warn_of_script(algorithm.config)
    modules = {
        # tensors that are no parameters are buffers
        module_id: {"class": type(module).__name__, "parameters": [name for name, _ in module.named_parameters()]}
        for module_id, module in algorithm.learner_group.module.items()
    }
    content = {
        "algorithm": name_of(algorithm.config),
        "config_module": type(algorithm.config).__module__,  # for errors only
        "run_seed": algorithm.run_seed,
        "config": algorithm.config.to_dict(),
        "modules": modules,
        "state": algorithm.get_state(),
    }
    own = import_path(type(algorithm.config))
    if own is not None and registered_at(own) is None:
        content["config_class"] = own
    return save_checkpoint(path, content)


def _warn_of_script(config: AlgorithmConfig) -> None:
    """Warn the caller of ``algorithm.save()`` if a setting names code of the running script."""
    if names := config.modules_to_allow().get("__main__", []):
        warnings.warn(
            f"save(): expected code in modules, which other programs can import, got {', '.join(names)} of this "
            "script. Move it to a module of its own, or pass it again: "
            f"from_checkpoint(path, {', '.join(f'{name}=...' for name in names)}).",
            stacklevel=4,
        )


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """Read the state that :meth:`algorithms.Algorithm.save` wrote to ``folder``.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If the checkpoint is damaged, or does not hold an algorithm.
    """
    content = load_checkpoint(folder)
    if missing := {"algorithm", "run_seed", "config", "modules", "state"} - content.keys():
        raise ValueError(
            f"checkpoint {str(folder)!r}: expected what algo.save(path) writes, got one without "
            f"{', '.join(sorted(missing))}. Pass the folder of an algorithm, or load it with the version that wrote it."
        )
    return content


def load_algorithm(path: StrPath, allow: Sequence[str], objects: Mapping[str, Any]) -> Algorithm:
    """Load an algorithm; see :meth:`algorithms.Algorithm.from_checkpoint`."""
    folder = checkpoint_in(path)
    content = read_checkpoint(folder)
    own = _config_class(content, folder, allow)
    config = own.from_dict(content["config"], allow=list(allow), **objects)
    lost = ""
    if config.run_dir is not None and "run_dir" not in objects:
        lost = _write_only_where_it_lies(config, folder)
    if config.seed is None:
        config.seed = content["run_seed"]
    if config.seed != content["run_seed"]:  # the saved evaluation envs belong to another seed
        content["state"]["evaluation"] = None
    algorithm = config.build()
    algorithm.lost_run_dir = lost
    try:
        algorithm.set_state(content["state"])
    except BaseException as error:
        algorithm.stop()
        if isinstance(error, ValueError) and objects.keys() & {"env", "env_config"}:
            raise ValueError(
                "from_checkpoint(env=): expected an env with the spaces of the one that was "
                f"trained on, got {config.env!r}. For another env, begin another run: "
                f"{type(config).__name__}(env=...).build(). {error}"
            ) from error
        raise
    return algorithm


def _config_class(content: Mapping[str, Any], folder: Path, allow: Sequence[str]) -> type[AlgorithmConfig]:
    """Return the config class of a checkpoint: the one registered under its name, or an unregistered one, which must
    be allowed."""
    if "config_class" in content:
        if (registered := registered_at(content["config_class"])) is not None:
            return registered
        decoder = Decoder(f"checkpoint {str(folder)!r}", list(allow))
        found = decoder.read({"__import__": content["config_class"]}, "config_class", type[SettingsBase])
        if modules := decoder.modules_to_allow:
            raise NotReadable(
                f"checkpoint {str(folder)!r}: expected a config class that is registered or allowed, got "
                f"{content['config_class']!r}. If you trust it, pass allow={[*modules]}, "
                "or import its module, which calls register_algorithm(name, config_class).",
                modules,
            )
        return found
    if content["algorithm"].upper() not in ALGORITHMS:
        for module in (one.partition(":")[0] for one in allow):  # one of them may register the algorithm
            try:
                import_module(module)
            except ImportError as error:
                raise ValueError(
                    f"from_checkpoint(allow=): expected modules that can be imported, got {module!r} ({error}). Run "
                    "from its folder, or set PYTHONPATH to that."
                ) from error
    return config_class(content["algorithm"])


def _write_only_where_it_lies(config: AlgorithmConfig, checkpoint: Path) -> str:
    """Set ``run_dir`` to the run folder that holds the checkpoint; a file must not choose where to write.

    Returns:
        The warning to log before training if the checkpoint is in no run folder; else an empty text.
    """
    folder, lost = run_folder_of(checkpoint), ""
    if folder is None:
        lost = (
            f"{checkpoint} has a run_dir of {config.run_dir!r}, in which it does not lie. Nothing is written there "
            f"unless you pass run_dir={config.run_dir!r}."
        )
        loggers = [one for one in config.loggers or () if not needs_folder(one)]
        config.update({"checkpoint_interval": None, "evaluation_num_videos": 0, "loggers": loggers})
    config.run_dir = None if folder is None else str(folder)
    return lost
