"""Save an algorithm to a checkpoint, and load it from a checkpoint."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch

from algorithms.loggers.base import needs_folder
from algorithms.registry import ALGORITHMS, config_class, name_of, registered_at
from algorithms.run.checkpoint_checks import check_sizes, check_state, check_weights
from algorithms.run.metrics import LATER_COUNTERS
from algorithms.run.saved_settings import SavedSettings
from algorithms.settings.base import SettingsBase
from catalog.activations import without_initialisers
from catalog.settings import settings_of
from catalog_rl import printable
from rlmodule.checkpoint import KIND, holds_checkpoint, load_checkpoint, prepare_checkpoint, verify_checkpoint
from rlmodule.encoding import Decoder, NotReadable, encode, import_path
from rlmodule.modules.spec import MOST_COPIES, RLModuleSpec, modules_up_to, most_weights
from rlmodule.sealed_folder import MANIFEST, DamagedFolder, StrPath, read_manifest

# Sections of settings that fit any saved state.
UNRELATED_TO_STATE = ("reporting", "checkpointing", "callbacks")

logger = logging.getLogger(__name__)

# What is raised while a state is restored that does not fit.
DOES_NOT_FIT = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, MemoryError)

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm
    from algorithms.config import AlgorithmConfig

_saved: WeakSet[Algorithm] = WeakSet()


class NotFinite(ValueError):
    """Raised instead of saving weights that are NaN or infinite."""


# --- find -------------------------------------------------------------------------------------------------------------


def history_of(run: Path) -> list[Path]:
    """Return the earlier checkpoints in the run folder ``run``, which are in its folder ``checkpoints``, newest first.

    They are ordered by their clocks, as copies have other times of files. Those from before the run went back to an
    earlier checkpoint, whose clocks are not below that of the last one, are last."""
    last = saved_clock(run / "checkpoint")
    clocks = {found.parent: saved_clock(found.parent) for found in run.glob(f"checkpoints/*/{MANIFEST}")}
    return sorted(clocks, key=lambda folder: (clocks[folder] < last, clocks[folder]), reverse=True)


def saved_clock(checkpoint: Path) -> float:
    """Return the clock of the run when it wrote ``checkpoint``; infinity if that cannot be read."""
    with suppress(DamagedFolder, KeyError, TypeError):
        about = read_manifest(checkpoint, KIND)["about"]
        return sum((about["env_steps"], about.get("updates", 0)))  # earlier versions wrote no updates
    return math.inf


def checkpoint_in(path: StrPath, *, best_first: bool = False) -> Path:
    """Return the first undamaged checkpoint of the run folder ``path``. Try the last checkpoint, earlier checkpoints
    from the newest to the oldest, and the best checkpoint, in this order. Log the checkpoints that are skipped.

    If all are damaged, return the first that exists. If ``path`` is not a run folder, return ``path``.

    Args:
        path: A run folder, or a checkpoint.
        best_first: Try the best checkpoint before all others.
    """
    run = Path(path)
    last, best = [run / "checkpoint", *history_of(run)], [run / "best_checkpoint"]
    there = [folder for folder in (best + last if best_first else last + best) if holds_checkpoint(folder)]
    for folder in there:
        try:
            verify_checkpoint(folder)
        except ValueError as error:
            logger.warning("%s is skipped: %s", folder, error)
        else:
            return folder
    return next(iter(there), run)


def run_folder_of(checkpoint: Path) -> Path | None:
    """Return the run folder that holds ``checkpoint``, or None if it is in no run folder."""
    folder = checkpoint.parent if checkpoint.name not in ("", "..") else checkpoint.resolve().parent
    folder = folder.parent if folder.name == "checkpoints" else folder
    return folder if (folder / "run.json").is_file() else None


# --- save -------------------------------------------------------------------------------------------------------------


def checkpoint_content(algorithm: Algorithm) -> dict[str, Any]:
    """Return the content of a checkpoint of ``algorithm``. The tensors share the algorithm's memory. The first time for
    an algorithm, warn if a setting names a class or function of the running script, which other programs cannot import.

    Raises:
        NotFinite: If a weight is NaN or infinite; names it.
    """
    if algorithm not in _saved:
        _saved.add(algorithm)
        _warn_of_script(algorithm.config)
    modules = {}
    for module_id, module in algorithm.learner_group.module.items():
        named = dict(module.named_parameters())
        suspects = {name: weight for name, weight in named.items() if not weight.sum().isfinite()}  # one fast pass
        if broken := [name for name, weight in suspects.items() if not torch.isfinite(weight).all()]:
            raise NotFinite(
                f"save(): expected finite weights, got NaN or infinite ones in {', '.join(broken[:3])} of "
                f"{module_id!r}. Load an earlier checkpoint."
            )
        spec = encode(RLModuleSpec.of(module))  # Policy.load() builds the module from it alone
        # tensors that are not parameters are buffers
        modules[module_id] = {"class": type(module).__name__, "parameters": [*named], "spec": spec}
    content = {
        "algorithm": name_of(algorithm.config),
        "config_module": type(algorithm.config).__module__,  # for errors only
        "run_seed": algorithm.run_seed,
        "config": algorithm.config.to_dict(),
        "modules": modules,
        "state": algorithm.get_state(),
    }
    if algorithm.config.is_multi_agent:
        spaces: Any = algorithm.env_runner_group.observation_space
        content["agents"] = [*spaces]  # these two are for MultiAgentPolicy.load()
        if (by_agent := algorithm.policies.policy_map.static) is not None:
            content["policy_mapping"] = encode(by_agent)
    config_path = import_path(type(algorithm.config))
    if config_path is not None and registered_at(config_path) is None:
        content["config_class"] = config_path
    if "replay" in content["state"]:  # the replay buffer gets a separate file
        content["replay"] = content["state"].pop("replay")
    return content


def prepare_content(content: Mapping[str, Any], *, copy: bool = False) -> Callable[..., Path]:
    """Return a function ``write(path, keep=None)`` that writes ``content``, from :func:`checkpoint_content`, as a
    checkpoint to ``path`` and moves an earlier checkpoint from there to ``keep``, if given. With ``copy``, copy the
    tensors now, so that they may change before ``write`` is called."""
    metrics = content["state"]["metrics"]
    about = {name: metrics[name] for name in ("env_steps", "updates", "iterations", "last_evaluation")}
    return prepare_checkpoint(content, about={"algorithm": content["algorithm"], **about}, copy=copy)


def _warn_of_script(config: AlgorithmConfig) -> None:
    """Log a warning if a setting names a class or function of the running script, which other programs cannot
    import."""
    if names := config.modules_to_allow().get("__main__", []):
        keywords = ", ".join(f"{name}=..." for name in names)
        logger.warning(
            "save(): expected code in modules, which other programs can import, got %s of this script. Move it to a "
            "module that can be imported, or pass it again: from_checkpoint(path, %s).",
            ", ".join(names),
            keywords,
        )


# --- load -------------------------------------------------------------------------------------------------------------


def read_checkpoint(folder: Path, *, replay: bool = True) -> dict[str, Any]:
    """Return the content of the checkpoint that :meth:`algorithms.Algorithm.save` wrote to ``folder``. If ``replay`` is
    False, do not read the replay buffer, which may take most of the time and memory.

    Raises:
        FileNotFoundError: If ``folder`` holds no checkpoint.
        ValueError: If the checkpoint is damaged, or does not hold an algorithm.
    """
    content = load_checkpoint(folder, replay=replay)
    kinds = {"algorithm": str, "run_seed": int, "config": dict, "modules": dict, "state": dict}
    if wrong := [name for name, kind in kinds.items() if not isinstance(content.get(name), kind)]:
        raise ValueError(
            f"checkpoint {str(folder)!r}: expected what algo.save(path) writes, got one without "
            f"{', '.join(sorted(wrong))}. Pass the folder of an algorithm, or load it with the version that wrote it."
        )
    if "replay" in content:
        content["state"]["replay"] = content.pop("replay")
    if isinstance(metrics := content["state"].get("metrics"), dict):
        content["state"]["metrics"] = LATER_COUNTERS | metrics
    return content


def load_algorithm(
    path: StrPath, allow: Sequence[str], objects: Mapping[str, Any], *, trains: bool = True
) -> Algorithm:
    """Load an algorithm; see :meth:`algorithms.Algorithm.from_checkpoint`. If it only acts, and ``trains`` is False, do
    not log in what its further training would differ."""
    folder = checkpoint_in(path)
    content = read_checkpoint(folder, replay=objects.get("replay_in_checkpoints", True))
    state = content["state"]
    config = _saved_config(content, folder, allow, objects)
    lost_run_dir = _restrict_run_dir(config, folder, objects)
    algorithm = saved = None
    try:
        weights = check_weights(content)
        check_sizes(content, config, objects, weights)
        saved = SavedSettings(content)
        if trains:
            _tell_what_differs(content["config"], folder, config)
        # Policies that the run removed are built, too, and removed again; the file has no weights of them.
        num_copies = MOST_COPIES * (1 + len(state.get("policies", {}).get("removed", ())))
        with without_initialisers(), modules_up_to(most_weights(weights, num_copies)):
            algorithm = config.build()
            algorithm.lost_run_dir = lost_run_dir
            algorithm.changes_run_dir = _is_another_folder(objects.get("run_dir"), folder, content["config"])
            algorithm.set_policies(state, list(allow))
        state.setdefault("num_threads", algorithm.num_threads)  # earlier versions did not save it
        check_state(content, algorithm, objects)
        if objects:
            algorithm.adapt_state(state, saved)
        if objects and trains:
            _tell_what_has_no_effect(saved, folder, algorithm, objects)
        algorithm.set_state(state)
    except BaseException as error:
        if algorithm is not None:
            algorithm.stop()
        # torch raises RuntimeError itself for content that does not fit; its subclasses tell of workers
        if not isinstance(error, DOES_NOT_FIT) and type(error) is not RuntimeError:
            raise
        is_other_env = False
        if algorithm is not None and saved is not None and objects.keys() & {"env", "env_config"}:
            is_other_env = saved.has_other_spaces(algorithm.learner_group.module)
        if is_other_env:
            raise ValueError(
                "from_checkpoint(env=): expected an env with the spaces of the one that was "
                f"trained on, got {config.env!r}. For another env, begin another run: "
                f"{type(config).__name__}(env=...).build(). {error}"
            ) from error
        got = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        settings, known = config.to_dict(), settings_of(type(config))
        changed = [
            f"{name}="
            for name in objects
            if settings[name] != content["config"].get(name) and known[name].section not in UNRELATED_TO_STATE
        ]
        remedy = f"leave out {', '.join(changed)}" if changed else "pass the setting by keyword"
        raise ValueError(
            f"checkpoint {str(folder)!r}: expected the settings and state of a run of {content['algorithm']}, got what "
            f"does not fit. {printable(got).rstrip('.')}. Load another checkpoint, or {remedy}."
        ) from error
    return algorithm


def _saved_config(
    content: dict[str, Any], folder: Path, allow: Sequence[str], objects: Mapping[str, Any]
) -> AlgorithmConfig:
    """Return the config of the resumed run: the saved settings, except those in ``objects``. If it has another
    seed than the saved run, drop the state of the evaluation from ``content``.

    Raises:
        ValueError: If a saved setting cannot be read, or a setting in ``objects`` is only for a new run.
    """
    where = f"checkpoint {str(folder)!r}"
    try:
        config = _config_class(content, allow).from_dict(content["config"], allow=list(allow), **objects)
    except NotReadable as error:
        raise NotReadable(f"{where}: {error}", error.modules) from error
    except (TypeError, ValueError) as error:
        if objects:  # the mistake may be the caller's
            raise
        raise ValueError(f"{where}: {error}") from error
    if (league := objects.get("league")) and not content["config"].get("league"):
        expected, remedy = "None, since the saved run has no league", "Begin another run with it."
        raise ValueError(f"from_checkpoint(league=): expected {expected}, got {league!r}. {remedy}")
    if config.seed is None:
        config.seed = content["run_seed"]
    if config.seed != content["run_seed"]:  # the saved evaluation envs belong to another seed
        content["state"]["evaluation"] = None
    return config


def _tell_what_differs(saved: Mapping[str, Any], folder: Path, config: AlgorithmConfig) -> None:
    """Log a warning that names the settings because of which the resumed run differs by rounding from a run that was
    not interrupted. Log nothing if there are no such settings."""
    named = [name for name in ("torch_compile_learner", "num_gpus_per_learner") if vars(config)[name]]
    numbers = ("num_env_runners", "num_envs_per_env_runner", "num_learners")
    named += [name for name in numbers if vars(config)[name] != saved.get(name, vars(config)[name])]
    if named:
        logger.warning("%s goes on up to rounding, not to the bit: %s.", folder, ", ".join(named))


def _tell_what_has_no_effect(
    saved: SavedSettings, folder: Path, algorithm: Algorithm, given: Mapping[str, Any]
) -> None:
    """Log a warning that names the settings in ``given`` that differ from those of the saved run and act on a new run
    only."""
    for module_id, module in algorithm.learner_group.module.items():
        changed, known = saved.changed_in_net(module_id, module), settings_of(type(module.model_config))
        if named := [path for path, name in changed.items() if known[name].for_new_runs]:
            logger.warning(
                "%s: %s of %r without effect: the run has the trained weights. Build a new run for other initial ones.",
                folder,
                printable(", ".join(f"model_config.{path}" for path in named)),
                module_id,
            )
    if "seed" in given and algorithm.run_seed != saved.run_seed:
        logger.warning(
            "%s: seed=%d acts on evaluation, and on envs and policies that are added. All other random streams "
            "continue from the checkpoint. Build a new run for others.",
            folder,
            algorithm.run_seed,
        )


def _config_class(content: Mapping[str, Any], allow: Sequence[str]) -> type[AlgorithmConfig]:
    """Return the config class of a checkpoint with ``content``: the class that is registered for its algorithm, or an
    unregistered class that ``allow``, a list of modules or of paths such as ``my_algos:MyConfig``, permits to import.
    If the algorithm is unknown, import the modules in ``allow``, which may register it.

    Raises:
        ValueError: If the algorithm is unknown, or its class or module cannot or may not be imported.
    """
    if "config_class" in content:
        if (registered := registered_at(content["config_class"])) is not None:
            return registered
        decoder = Decoder("checkpoint", list(allow))
        found = decoder.read({"__import__": content["config_class"]}, "config_class", type[SettingsBase])
        if modules := decoder.modules_to_allow:
            raise NotReadable(
                f"config_class: expected a config class that is registered or allowed, got "
                f"{content['config_class']!r}. If you trust it, pass allow={[*modules]}, "
                "or import its module, which calls register_algorithm(name, config_class).",
                modules,
            )
        return found
    if content["algorithm"].upper() not in ALGORITHMS:
        for module in (path.partition(":")[0] for path in allow):  # importing one of them may register the algorithm
            try:
                import_module(module)
            except ImportError as error:
                raise ValueError(
                    f"from_checkpoint(allow=): expected modules that can be imported, got {module!r} ({error}). Run "
                    "from its folder, or set PYTHONPATH to that."
                ) from error
    return config_class(content["algorithm"])


def _is_another_folder(run_dir: str | None, checkpoint: Path, saved: Mapping[str, Any]) -> bool:
    """Return whether ``run_dir`` is neither the run folder that holds the checkpoint nor that in the ``saved``
    settings, from which the checkpoint may have been moved."""
    if run_dir is None or run_dir == saved.get("run_dir"):
        return False
    return not checkpoint.resolve().is_relative_to(Path(run_dir).resolve())


def _restrict_run_dir(config: AlgorithmConfig, checkpoint: Path, given: Mapping[str, Any]) -> str:
    """Set ``run_dir`` to the run folder that holds the checkpoint, or to None if it is in no run folder, because a
    checkpoint must not choose where a run writes. Without a ``run_dir``, drop the saved settings that need one. The
    settings in ``given``, which the caller passed, stay as they are.

    Returns:
        The warning to log before training if the checkpoint is in no run folder; else an empty string.
    """
    lost = ""
    if config.run_dir is not None and "run_dir" not in given:
        folder, saved = run_folder_of(checkpoint), config.run_dir
        config.run_dir = None if folder is None else str(folder)
        if folder is None:
            lost = (
                f"{checkpoint} names the run_dir {saved!r}, but is not in it. Nothing is written there unless you pass "
                f"run_dir={saved!r}."
            )
    if config.run_dir is None:
        loggers = config.loggers and [name for name in config.loggers if not needs_folder(name)]
        without = {"checkpoint_interval": None, "evaluation_num_videos": 0, "loggers": loggers}
        config.update({name: value for name, value in without.items() if name not in given})
    return lost
