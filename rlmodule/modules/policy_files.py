"""Save the neural modules of policies as a folder, and load them from such a folder, a checkpoint or a run.

Layout of the folder::

    policy.json            how to build the module: an RLModuleSpec, with its spaces and settings; for a multi-agent
                           policy, a spec of each module, the agents, and the mapping of agents to modules
    policy.safetensors     weights and buffers, without the parts that only learning needs
    manifest.json          see rlmodule.sealed_folder

Loading imports only the classes that ``policy.json`` names, and only from this library and from Python modules that the
caller allows. It runs no code of envs or learners.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from catalog.activations import without_initialisers
from catalog_rl import closest, printable
from rlmodule.checkpoint import holds_checkpoint, join_tensors, load_checkpoint, save_folder, split_tensors
from rlmodule.encoding import Decoder, NotReadable, encode
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID, RLModule
from rlmodule.modules.spec import RLModuleSpec, largest_setting, modules_up_to, most_units, most_weights
from rlmodule.sealed_folder import (
    DamagedFolder,
    StrPath,
    parse_json,
    parse_tensors,
    read_folder,
    standing_in,
)

KIND, SPEC, WEIGHTS = "policy", "policy.json", "policy.safetensors"
FILM = "replay.mp4"
CARD = ("README.md", ".gitattributes", ".git", ".cache", FILM)
"""What a model repository, or a copy of it, may add to the folder. Loading neither verifies nor reads it."""


def save_policy(module: RLModule, path: StrPath) -> Path:
    """Write ``module`` as the folder ``path``, and return the absolute path; see :meth:`Policy.save`."""
    content = {"spec": encode(RLModuleSpec.of(module))}
    return _write(f"Policy.save({str(path)!r})", path, content, module.get_state(inference_only=True))


def save_policies(modules: Mapping[str, RLModule], path: StrPath, about: Mapping[str, Any]) -> Path:
    """Write several modules as the folder ``path``. Encode each value in ``about`` with :func:`encode`, and write it
    under its name into the same file as the specs. Return the absolute path. See :meth:`MultiAgentPolicy.save`."""
    tensors: dict[str, Tensor] = {}
    content = {
        "modules": {name: {"spec": encode(RLModuleSpec.of(module))} for name, module in modules.items()},
        "state": {
            name: split_tensors(module.get_state(inference_only=True), name, tensors)
            for name, module in modules.items()
        },
        **{name: encode(value) for name, value in about.items()},
    }
    return _write(f"MultiAgentPolicy.save({str(path)!r})", path, content, tensors)


def _write(where: str, path: StrPath, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    text = json.dumps(content, indent=1)
    # a mapping of agents that the file cannot hold, such as a lambda, can be passed again to load()
    nets = text if "modules" not in content else json.dumps(content["modules"], indent=1)
    if lost := re.findall(r'"__pass_again__": (".*")', nets):
        raise TypeError(
            f"{where}: expected settings made of plain values, and of classes and functions that can be imported, got "
            f"{' and '.join(lost)}. Define it at the top level of a module."
        )
    files = {SPEC: text.encode(), WEIGHTS: tensors}
    # a clone of a repository has commits, which must not be lost
    return save_folder(
        where, path, KIND, files, lambda folder: (folder / SPEC).exists() and not (folder / ".git").exists()
    )


def load_module(path: StrPath, module_id: str | None, allow: Sequence[str]) -> RLModule:
    """Build an inference-only module from the folder of a policy, a checkpoint or a run; see :meth:`Policy.load`."""
    where = f"Policy.load({str(path)!r})"
    content = read_policies(path, where)
    modules = content["modules"]
    if module_id is None and len(modules) == 1:
        module_id = next(iter(modules))
    if module_id is None or module_id not in modules:
        raise ValueError(
            f"{where}: expected the id of one of its modules, {', '.join(map(repr, modules))}, got {module_id!r}. Pass "
            f"module_id=.{closest(str(module_id), modules)}"
        )
    return build_module(content, module_id, Decoder(where, allow), where)


def read_policies(path: StrPath, where: str) -> dict[str, Any]:
    """Read the specs and weights of all modules in the folder of a policy, a checkpoint or a run. Error messages begin
    with ``where``.

    Returns:
        A dict with ``modules``, the encoded specs by module id; ``state``, the weights by module id; and for a
        multi-agent policy, ``agents`` and ``policy_mapping_fn``, both encoded.

    Raises:
        FileNotFoundError: If ``path`` is not such a folder.
        ValueError: If the folder is damaged.
    """
    folders = [Path(path) / name for name in ("", "best_checkpoint", "checkpoint")]
    folder = next((found for found in map(standing_in, folders) if holds_checkpoint(found)), None)
    if folder is None:
        raise FileNotFoundError(
            f"{where}: expected a folder that policy.save(path) wrote, a checkpoint, or a run with one, got none. Pass "
            "such a folder."
        )
    is_policy = (folder / SPEC).exists()
    try:
        content = _of_policy(folder) if is_policy else _of_checkpoint(folder)
        content["modules"] = {name: module["spec"] for name, module in content["modules"].items()}
        content["state"] = {name: dict(content["state"][name]) for name in content["modules"]}
    except (DamagedFolder, AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{where}: expected a folder that {'policy' if is_policy else 'algo'}.save(path) wrote, got one that "
            f"cannot be read ({error}). Copy it again, or save the policy again."
        ) from error
    return content


def build_module(content: Mapping[str, Any], module_id: str, decoder: Decoder, where: str) -> RLModule:
    """Build the inference-only module ``module_id`` from ``content``, the result of :func:`read_policies`. Error
    messages begin with ``where``.

    Raises:
        ValueError: If the spec is damaged, or names code that ``decoder`` does not allow.
    """
    spec = content["modules"][module_id]
    try:
        decoded = decoder.read(spec, "spec", RLModuleSpec)
        if modules := decoder.modules_to_allow:
            remedy = f"If you trust it, pass allow={[*modules]}."
            if decoder.names_another_script:
                remedy = (
                    "It was defined in another script: load it there with allow=['__main__'], or move it to a module "
                    "and save again."
                )
            raise NotReadable(
                f"{where}: expected a policy of classes of this library or of modules that you allow, got code of "
                f"{', '.join(modules)}. {remedy}",
                dict.fromkeys(modules, ()),  # no setting of a config names it
            )
        decoder.refuse_missing()
        if not isinstance(decoded, RLModuleSpec):
            raise ValueError(f"{where}: expected the description of a module, got {spec!r}. Save the policy again.")
        return _built(decoded, spec["fields"].get("model_config"), content["state"][module_id])
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, MemoryError, RuntimeError) as error:
        if str(error).startswith(where):
            raise
        got = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise ValueError(
            f"{where}: expected the settings and weights of module {module_id!r}, got what does not fit. "
            f"{printable(got).rstrip('.')}. Load another file, or save the policy again."
        ) from error


def _built(spec: RLModuleSpec, settings: Any, weights: Mapping[str, Tensor]) -> RLModule:
    """Build the module that ``spec`` describes with the weights of its file, whose encoded model settings are
    ``settings``. The file must not ask for more memory than its own weights need.

    Raises:
        ValueError: If a setting is larger than any layer of the file, if the nets are, or if a weight is missing, has
            another shape, or is NaN or infinite.
    """
    if (largest := largest_setting(settings)) > (most := most_units(weights.values())):
        raise ValueError(f"expected model_config of at most {most:,}, got {largest:,}")
    with without_initialisers(), modules_up_to(most_weights(weights.values())):
        module = spec.build_with(weights)
    if broken := [name for name, weight in module.named_parameters() if not weight.isfinite().all()]:
        raise ValueError(f"expected finite weights, got NaN or infinite ones in {', '.join(broken[:3])}")
    return module


def _of_policy(folder: Path) -> dict[str, Any]:
    files = read_folder(folder, KIND, others=CARD)
    content, tensors = parse_json(files[SPEC], SPEC), parse_tensors(files[WEIGHTS], WEIGHTS)
    if "modules" in content:
        try:
            return {**content, "state": join_tensors(content["state"], tensors)}
        except ValueError as error:
            raise DamagedFolder(f"{SPEC}: {error}") from error
    return {"modules": {DEFAULT_MODULE_ID: content}, "state": {DEFAULT_MODULE_ID: tensors}}


def _of_checkpoint(folder: Path) -> dict[str, Any]:
    content = load_checkpoint(folder, replay=False)
    of_agents = {name: content[name] for name in ("agents",) if name in content}
    of_agents["policy_mapping_fn"] = content.get("policy_mapping", content["config"].get("policy_mapping_fn"))
    return {"modules": content["modules"], "state": content["state"]["learners"]["module"], **of_agents}
