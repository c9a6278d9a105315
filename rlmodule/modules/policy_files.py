"""Save the module of a policy as a folder, and load it from one, from a checkpoint or from a run.

Layout of the folder::

    policy.json            how to build the module: an RLModuleSpec, with its spaces and settings
    policy.safetensors     its weights and buffers, without the parts that only learning needs
    manifest.json          see rlmodule.sealed_folder

Loading imports only the classes that ``policy.json`` names, and only from this library and from allowed modules. It
runs no code of envs or learners.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from catalog.errors import closest
from rlmodule.checkpoint import holds_checkpoint, load_checkpoint
from rlmodule.encoding import Decoder, NotReadable, encode
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.sealed_folder import (
    DamagedFolder,
    StrPath,
    parse_json,
    parse_tensors,
    read_folder,
    standing_in,
    write_folder,
)

KIND, SPEC, WEIGHTS = "policy", "policy.json", "policy.safetensors"
CARD = ("README.md", ".gitattributes")
"""Files that a model repository may add to the folder; they are not verified."""


def save_policy(module: RLModule, path: StrPath) -> Path:
    """Write ``module`` as a folder; see :meth:`Policy.save`."""
    target, where = Path(path).absolute(), f"Policy.save({str(path)!r})"
    if target.exists() and not ((target / SPEC).exists() or (target.is_dir() and not any(target.iterdir()))):
        raise FileExistsError(
            f"{where}: expected a new folder, an empty one or an earlier policy, got something else of that name. "
            "Choose another path."
        )
    text = json.dumps({"spec": encode(RLModuleSpec.of(module))}, indent=1)
    if lost := re.findall(r'"__pass_again__": (".*")', text):
        raise TypeError(
            f"{where}: expected settings made of plain values, and of classes and functions that can be imported, got "
            f"{' and '.join(lost)}. Define it at the top level of a module."
        )
    try:
        write_folder(target, KIND, {SPEC: text.encode(), WEIGHTS: module.get_state(inference_only=True)})
    except OSError as error:
        raise OSError(
            f"{where}: expected a folder to write to, got {error.strerror or error}. Choose another path, or free disk "
            "space or get permission there."
        ) from error
    return target


def load_module(path: StrPath, module_id: str | None, allow: Sequence[str]) -> RLModule:
    """Build the inference-only module of a policy, a checkpoint or a run; see :meth:`Policy.load`."""
    where, folders = (
        f"Policy.load({str(path)!r})",
        [Path(path) / name for name in ("", "best_checkpoint", "checkpoint")],
    )
    folder = next((one for one in map(standing_in, folders) if holds_checkpoint(one)), None)
    if folder is None:
        raise FileNotFoundError(
            f"{where}: expected a folder that policy.save(path) wrote, a checkpoint, or a run with one, got none. Pass "
            "such a folder."
        )
    spec, weights = _of_policy(folder, where) if (folder / SPEC).exists() else _of_checkpoint(folder, where, module_id)
    decoder = Decoder(where, allow)
    decoded = decoder.read(spec, "spec", RLModuleSpec)
    if modules := decoder.modules_to_allow:
        raise NotReadable(
            f"{where}: expected a policy of classes of this library or of modules that you allow, got code of "
            f"{', '.join(modules)}. If you trust it, pass allow={[*modules]}.",
            modules,
        )
    decoder.refuse_missing()
    if not isinstance(decoded, RLModuleSpec):
        raise ValueError(f"{where}: expected the description of a module, got {spec!r}. Save the policy again.")
    return decoded.build_with(weights)


def _of_policy(folder: Path, where: str) -> tuple[Any, Mapping[str, Tensor]]:
    """Return the encoded spec and the weights in a folder of :func:`save_policy`."""
    try:
        files = read_folder(folder, KIND, others=CARD)
        return parse_json(files[SPEC], SPEC)["spec"], parse_tensors(files[WEIGHTS], WEIGHTS)
    except (DamagedFolder, KeyError, TypeError) as error:
        raise ValueError(
            f"{where}: expected a folder that policy.save(path) wrote, got one that cannot be read ({error}). Copy it "
            "again, or save the policy again."
        ) from error


def _of_checkpoint(folder: Path, where: str, module_id: str | None) -> tuple[Any, Mapping[str, Tensor]]:
    """Return the encoded spec and the weights of a module in a checkpoint."""
    content = load_checkpoint(folder, replay=False)
    modules = content["modules"]
    if module_id is None and len(modules) == 1:
        module_id = next(iter(modules))
    if module_id not in modules:
        raise ValueError(
            f"{where}: expected the id of one of its modules, {', '.join(map(repr, modules))}, got {module_id!r}. Pass "
            f"module_id=.{closest(str(module_id), modules)}"
        )
    return modules[module_id]["spec"], content["state"]["learners"]["module"][module_id]
