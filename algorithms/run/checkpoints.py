"""Save an algorithm to a checkpoint, and load it from a checkpoint."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
import tree

from algorithms.loggers.base import needs_folder
from algorithms.registry import ALGORITHMS, config_class, name_of, registered_at
from algorithms.run.metrics import LATER_COUNTERS
from algorithms.run.saved_settings import SavedSettings
from algorithms.settings.base import SettingsBase
from catalog.activations import without_initialisers
from catalog.errors import printable
from rlmodule.checkpoint import holds_checkpoint, load_checkpoint, prepare_checkpoint, verify_checkpoint
from rlmodule.encoding import Decoder, NotReadable, encode, import_path
from rlmodule.modules.spec import MOST_COPIES, RLModuleSpec, modules_up_to, most_units, most_weights
from rlmodule.sealed_folder import MANIFEST, StrPath

logger = logging.getLogger(__name__)

# Largest number of envs that a checkpoint may ask for if the envs return tensors.
MOST_TENSOR_ENVS = 1_000_000

# Setting that no saved state limits → the largest value that a checkpoint may have for it.
MOST = {"torch_num_threads": 1_000, "num_learners": 1_000, "evaluation_num_envs": 10_000}
MOST_AGENTS = 10_000

# Largest count of steps, updates or episodes of a run, at which 64-bit floats still tell neighbours apart.
MOST_STEPS = 2**53

# What the state of an open episode has, which a new algorithm has none of: before its first step, of one env, and of
# several agents.
EPISODE: dict[str, Any] = {"seed": 0, "number": 0}
EPISODE_OF_ENV = EPISODE | {"obs": [], "return": 0.0, "length": 0}
EPISODE_OF_AGENTS = EPISODE | {"length": 0, "return": 0.0, "returns": [0.0], "earned": [0.0]}
EPISODE_OF_AGENTS |= {name: [] for name in ("in_play", "policies", "finished", "rows")}

# What is raised while a state is restored that does not fit.
DOES_NOT_FIT = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, MemoryError)

# Model settings that shape only the initial weights of nets, as all initialisers do.
FOR_NEW_NETS = ("sigma0",)

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm
    from algorithms.config import AlgorithmConfig

_saved: WeakSet[Algorithm] = WeakSet()


class NotFinite(ValueError):
    """Raised instead of saving weights that are NaN or infinite."""


# --- find -------------------------------------------------------------------------------------------------------------


def history_of(run: Path) -> list[Path]:
    """Return the earlier checkpoints in the run folder ``run``, which are in its folder ``checkpoints``, newest
    first."""
    return sorted(
        (found.parent for found in run.glob(f"checkpoints/*/{MANIFEST}")),
        key=lambda folder: (folder / MANIFEST).stat().st_mtime_ns,
        reverse=True,
    )


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


def save_algorithm(algorithm: Algorithm, path: StrPath) -> Path:
    """Write a checkpoint; see :meth:`algorithms.Algorithm.save`."""
    return prepare_content(checkpoint_content(algorithm))(path)


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
    about = {name: metrics[name] for name in ("env_steps", "iterations", "last_evaluation")}
    return prepare_checkpoint(content, about={"algorithm": content["algorithm"], **about}, copy=copy)


def _warn_of_script(config: AlgorithmConfig) -> None:
    """Warn the caller of ``algorithm.save()`` if a setting names a class or function of the running script, which other
    programs cannot import."""
    if names := config.modules_to_allow().get("__main__", []):
        warnings.warn(
            f"save(): expected code in modules, which other programs can import, got {', '.join(names)} of this "
            "script. Move it to a module that can be imported, or pass it again: "
            f"from_checkpoint(path, {', '.join(f'{name}=...' for name in names)}).",
            stacklevel=5,
        )


# --- load -------------------------------------------------------------------------------------------------------------


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """Return the content of the checkpoint that :meth:`algorithms.Algorithm.save` wrote to ``folder``.

    Raises:
        FileNotFoundError: If ``folder`` holds no checkpoint.
        ValueError: If the checkpoint is damaged, or does not hold an algorithm.
    """
    content = load_checkpoint(folder)
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


def load_algorithm(path: StrPath, allow: Sequence[str], objects: Mapping[str, Any]) -> Algorithm:
    """Load an algorithm; see :meth:`algorithms.Algorithm.from_checkpoint`."""
    folder = checkpoint_in(path)
    content = read_checkpoint(folder)
    state = content["state"]
    config = _saved_config(content, folder, allow, objects)
    lost_run_dir = "" if config.run_dir is None or "run_dir" in objects else _restrict_run_dir(config, folder)
    algorithm = None
    try:
        weights = _check_weights(content)
        _check_sizes(content, config, objects, weights)
        _tell_what_differs(content["config"], folder, config)
        # Policies that the run removed are built, too, and removed again; the file has no weights of them.
        num_copies = MOST_COPIES * (1 + len(state.get("policies", {}).get("removed", ())))
        with without_initialisers(), modules_up_to(most_weights(weights, num_copies)):
            algorithm = config.build()
            algorithm.lost_run_dir = lost_run_dir
            algorithm.set_policies(state, list(allow))
        _check_state(content, algorithm, objects)
        if objects:
            saved = SavedSettings(content)
            algorithm.adapt_state(state, saved)
            _tell_what_has_no_effect(saved, folder, algorithm, objects)
        algorithm.set_state(state)
    except BaseException as error:
        if algorithm is not None:
            algorithm.stop()
        # torch raises RuntimeError itself for content that does not fit; its subclasses tell of workers
        if not isinstance(error, DOES_NOT_FIT) and type(error) is not RuntimeError:
            raise
        if algorithm is not None and objects.keys() & {"env", "env_config"}:
            raise ValueError(
                "from_checkpoint(env=): expected an env with the spaces of the one that was "
                f"trained on, got {config.env!r}. For another env, begin another run: "
                f"{type(config).__name__}(env=...).build(). {error}"
            ) from error
        got = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"checkpoint {str(folder)!r}: expected the settings and state of a run of {content['algorithm']}, got what "
            f"does not fit. {printable(got).rstrip('.')}. Load another checkpoint, or pass the setting by keyword."
        ) from error
    return algorithm


def _saved_config(
    content: dict[str, Any], folder: Path, allow: Sequence[str], objects: Mapping[str, Any]
) -> AlgorithmConfig:
    """Return the config of the run that goes on: the saved settings, except those in ``objects``. If it has another
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
        changed = saved.changed_in_net(module_id, module)
        if named := [path for path, name in changed.items() if name in FOR_NEW_NETS or "_initializer" in name]:
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


def _check_weights(content: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return all tensors of the modules in ``content``, which was read from a checkpoint.

    Raises:
        KeyError: If a module that ``content["modules"]`` lists has no state.
        ValueError: If a weight that is listed there is missing, or is NaN or infinite; names it.
    """
    state = content["state"]
    saved = state["learners"]["module"]
    for module_id in content["modules"] | state.get("policies", {"added": {}})["added"]:
        state_of_module = saved[module_id]
        for name in content["modules"][module_id]["parameters"]:
            weights = state_of_module.get(name)
            if weights is None or not weights.isfinite().all():
                got = "none" if weights is None else "NaN or infinite ones"
                raise ValueError(f"{name} of {module_id!r}: expected finite weights, got {got}")
    return [leaf for leaf in tree.flatten(saved) if isinstance(leaf, torch.Tensor)]


def _check_sizes(
    content: Mapping[str, Any], config: AlgorithmConfig, given: Mapping[str, Any], weights: Sequence[torch.Tensor]
) -> None:
    """Check that the saved settings do not ask for more envs than the checkpoint has state for, for wider layers than
    its own (see :func:`rlmodule.modules.spec.most_units`), or for more agents, threads or processes than
    :data:`MOST_AGENTS` and :data:`MOST` allow.

    Args:
        content: The content of the checkpoint.
        config: The settings to check.
        given: Settings that the caller passed, which are not checked.
        weights: All tensors of the checkpoint's modules.

    Raises:
        ValueError: If a setting asks for more; names it.
    """
    state, settings = content["state"], vars(config)
    got = {name: (settings[name] or 0, most) for name, most in MOST.items()}
    if "num_env_runners" not in given:
        envs = max(1, config.num_env_runners) * config.num_envs_per_env_runner
        got["num_envs_per_env_runner"] = envs, _num_envs(state["env_runners"])
    if state["evaluation"] is not None:
        got["evaluation_num_envs"] = config.evaluation_num_envs or 0, _num_envs(state["evaluation"])
    for name in {"env_config", "evaluation_env_config"} - given.keys() if "agents" in content else ():
        if isinstance(num_agents := (settings[name] or {}).get("num_agents"), int):  # the env decides what it means
            got[f"{name}['num_agents']"] = num_agents, MOST_AGENTS
    for name in ("model_config", "rl_module_spec", *config.net_settings):
        numbers = [leaf for leaf in tree.flatten(content["config"].get(name)) if isinstance(leaf, int)]
        got[name] = max(numbers, default=0), most_units(weights)
    for name, (count, most) in got.items():
        if name not in given and count > most:
            raise ValueError(f"expected {name} of at most {most:,}, got {count:,}")


def _num_envs(state: Mapping[str, Mapping[str, Any]]) -> int:
    """Return the largest number of envs that settings may ask for if ``state`` holds the state of each env by index:
    as many as it holds, or :data:`MOST_TENSOR_ENVS` if the envs return tensors."""
    on_device = any(env.get("generator", {}).get("draws", "arrays") != "arrays" for env in state.values())
    return MOST_TENSOR_ENVS if on_device else len(state)  # envs that return tensors share one state


def _check_state(content: Mapping[str, Any], algorithm: Algorithm, given: Mapping[str, Any]) -> None:
    """Check the saved state before any of it is restored, against the state of ``algorithm``, which is new.

    The check is here and not where each part is restored, because those restore what fits and leave the rest: other
    modules may be trained now, and runners may have other envs.

    Args:
        content: The content of the checkpoint.
        algorithm: The algorithm that was built from it.
        given: Settings that the caller passed.

    Raises:
        ValueError: If an entry is missing or of another kind; names the first.
    """
    state = content["state"]
    for module_id, module in algorithm.learner_group.module.items():
        module.check_state(state["learners"]["module"][module_id])
    built = algorithm.get_state()
    started: frozenset[str] = frozenset()
    if "policies_to_train" in given:
        started = frozenset(built["learners"]["num_gradient_steps"]) - state["learners"]["num_gradient_steps"].keys()
    _check_kinds(state, built, "state", started)
    for index, env in state["env_runners"].items():
        episode: Mapping[str, Any] = EPISODE_OF_ENV
        if "agents" in content:
            has_begun = "obs" in env.get("episode", {})
            episode = EPISODE_OF_AGENTS if has_begun else EPISODE
        _check_kinds(env, {"episode": episode}, f"state/env_runners/{index}")


def _check_kinds(saved: Any, built: Any, path: str, started: frozenset[str] = frozenset()) -> None:
    """Check that ``saved``, the part at ``path`` of a saved state, fits ``built``, the same part of a new state.

    Args:
        saved: A part of a saved state.
        built: The same part of the state of a new run.
        path: Where the part is, for error messages.
        started: Ids of policies that the caller trains from now on, which have no state of a learner yet.

    Raises:
        ValueError: If a type differs, a number is no possible count, or an entry is missing that every state has; names
            the first such entry.
    """
    in_optimizer = path.startswith("state/learners/optimizers/")
    is_bool = isinstance(built, bool)
    # what may be None has numbers or names
    kind: Any = Mapping | int | float | None
    for possible in (torch.Tensor, Mapping, list | tuple, int | float, str):
        if isinstance(built, possible):
            kind = possible
    if not isinstance(saved, kind) or isinstance(saved, bool) != is_bool:
        raise ValueError(f"{path}: expected a value like {built!s:.50}, got {saved!s:.50}")
    if isinstance(built, torch.Tensor):
        # modules check the tensors of their own state
        in_module = path.startswith(("state/learners/module/", "state/learners/target/"))
        if (saved.dtype != built.dtype and not in_module) or (in_optimizer and saved.shape != built.shape):
            expected, got = (f"{tensor.dtype} of shape {tuple(tensor.shape)}" for tensor in (built, saved))
            raise ValueError(f"{path}: expected {expected}, got {got}")
    elif isinstance(built, Mapping):
        for name, part in built.items():
            if name == "replay":  # the buffer checks its own state
                continue
            if str(name) in saved:
                _check_kinds(saved[str(name)], part, f"{path}/{name}", started)
            elif _has_all_entries(path) and str(name).partition(".")[0] not in started:
                raise ValueError(f"{path}/{name}: expected a value like {part!s:.50}, got nothing")
    elif isinstance(built, list | tuple):
        if in_optimizer and len(saved) != len(built):
            raise ValueError(f"{path}: expected {len(built)} values, got {len(saved)}")
        for i, (saved_item, built_item) in enumerate(zip(saved, built, strict=False)):
            _check_kinds(saved_item, built_item, f"{path}/{i}", started)
    elif isinstance(built, int | float) and not is_bool:
        _check_number(saved, built, path)


def _has_all_entries(path: str) -> bool:
    """Return whether the saved state at ``path`` must have each entry that a new state has there. In other places, the
    entries depend on the envs, or on what has happened in the run."""
    if path.startswith("state/learners"):
        return "param_groups" not in path
    return path in ("state", "state/metrics") or path.endswith("/episode")


def _check_number(saved: float, built: float, path: str) -> None:
    """Check a number of a saved state. A count, which is an int in ``built``, must be one in ``saved``, too, of at most
    :data:`MOST_STEPS`. Any other number must be finite.

    Raises:
        ValueError: If the number is another; names ``path``.
    """
    if "/block_start/" in path:  # words of a random generator, which checks them
        return
    is_count = isinstance(built, int)
    if is_count and not (isinstance(saved, int) and abs(saved) <= MOST_STEPS):
        raise ValueError(f"{path}: expected an int of at most {MOST_STEPS:,}, got {saved!s:.50}")
    if not math.isfinite(saved):
        raise ValueError(f"{path}: expected a finite number, got {saved}")


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


def _restrict_run_dir(config: AlgorithmConfig, checkpoint: Path) -> str:
    """Set ``run_dir`` to the run folder that holds the checkpoint, because a checkpoint must not choose where a run
    writes. If it is in no run folder, set ``run_dir`` to None, and drop the settings that need a ``run_dir``.

    Returns:
        The warning to log before training if the checkpoint is in no run folder; else an empty string.
    """
    folder, lost = run_folder_of(checkpoint), ""
    if folder is None:
        lost = (
            f"{checkpoint} names the run_dir {config.run_dir!r}, but is not in it. Nothing is written there "
            f"unless you pass run_dir={config.run_dir!r}."
        )
        loggers = [name for name in config.loggers or () if not needs_folder(name)]
        config.update({"checkpoint_interval": None, "evaluation_num_videos": 0, "loggers": loggers})
    config.run_dir = None if folder is None else str(folder)
    return lost
