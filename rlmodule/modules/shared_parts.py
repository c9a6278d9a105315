"""Parts that several neural modules share, so that all of them have the same tensors there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from rlmodule.modules.rl_module import MultiRLModule

SharedParts = Mapping[str, str | list[str]]
"""Name of a part → its path in every module, such as ``"encoder"``, or its places in some modules, each a module id and
a path, such as ``["a.encoder", "b.encoder"]``."""


def places_of(shared_parts: SharedParts, module_ids: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return where each shared part is, as a dict: name of the part → id of the module → path in the module.

    Raises:
        ValueError: If a part has an empty path, or several places in one module.
    """
    ids, places = list(module_ids), dict[str, dict[str, str]]()
    for name, where in shared_parts.items():
        paths = dict[str, str]()
        if isinstance(where, str):
            paths = dict.fromkeys(ids, where)
        else:
            for place in where:
                module_id, _, path = place.partition(".")
                paths[module_id] = path
        has_module_twice = not isinstance(where, str) and len(paths) < len(where)
        if not all(paths.values()) or has_module_twice:
            raise ValueError(
                f"shared_parts[{name!r}]: expected a path, or one place 'policy.path' in each of some policies, got "
                f"{where!r}. Write 'encoder', or ['a.encoder', 'b.encoder']."
            )
        # in the order of the modules: those added later come last, and the first one's tensors are kept
        places[name] = {module_id: paths[module_id] for module_id in ids if module_id in paths}
    return places


def tensors_at(module: nn.Module, path: str) -> dict[str, tuple[dict[str, Any], str]]:
    """Return where the parameters and buffers of ``module`` at or below ``path`` (``""`` for the whole module) are
    stored, so that they can be replaced.

    Returns:
        Name of the tensor below ``path`` → the dict in which torch stores it, and its key there.
    """
    places: dict[str, tuple[dict[str, Any], str]] = {}
    # a tensor that two submodules share has two names
    for owner, submodule in module.named_modules(remove_duplicate=False):
        for tensors in (submodule._parameters, submodule._buffers):
            for key, tensor in tensors.items():
                name = f"{owner}.{key}" if owner else key
                if tensor is not None and (not path or f"{name}.".startswith(f"{path}.")):
                    places[name[len(path) :]] = tensors, key
    return places


def share_parts(modules: Mapping[str, nn.Module], shared_parts: SharedParts, *, may_lack: bool = False) -> None:
    """For each shared part, replace the tensors of all ``modules`` that share it with the tensors of the first such
    module.

    Args:
        modules: The modules by id.
        shared_parts: The shared parts.
        may_lack: Whether a part may be missing in all modules, as in inference-only copies.

    Raises:
        ValueError: If a part is missing in a module, or differs in class or shapes between modules.
    """
    for name, places in places_of(shared_parts, modules).items():
        tensors_of = {module_id: tensors_at(modules[module_id], path) for module_id, path in places.items()}
        first = next(iter(places), "")
        for module_id, path in places.items():
            tensors = tensors_of[module_id]
            if not (tensors or may_lack):
                raise ValueError(
                    f"shared_parts[{name!r}]: expected a part with parameters at {module_id}.{path}, got none. Correct "
                    "the path: it is that of named_modules() of the policy's module."
                )
            description = _described(modules[module_id], path, tensors)
            expected = _described(modules[first], places[first], tensors_of[first])
            if description != expected:
                got = ", ".join(sorted(description ^ expected)[:4])
                raise ValueError(
                    f"shared_parts[{name!r}]: expected parts of one class and the same shapes at "
                    f"{first}.{places[first]} and at {module_id}.{path}, got {got}. Correct the path, or give the "
                    "policies equal nets there."
                )
            for suffix, (owner, key) in tensors.items():
                owner_in_first, key_in_first = tensors_of[first][suffix]
                owner[key] = owner_in_first[key_in_first]


def check_nothing_shared(module_id: str, modules: MultiRLModule) -> None:
    """Raise ValueError if module ``module_id``, which is not trained, shares a part with other modules of the
    MultiRLModule ``modules``."""
    for name, places in places_of(modules.shared_parts, modules).items():
        if module_id in places:
            raise ValueError(
                f"shared_parts[{name!r}]: expected policies that are trained, got {module_id!r}, which only acts. Name "
                f"the places of the part in those that are trained: {{{name!r}: ['a.encoder', 'b.encoder']}}."
            )


def _described(module: nn.Module, path: str, tensors: Mapping[str, tuple[dict[str, Any], str]]) -> set[str]:
    """Return a description of the part of ``module`` at ``path``: its class name, and the name and shape of each
    tensor. Two parts can be shared if their descriptions are equal."""
    shapes = {f"{suffix.removeprefix('.')} {tuple(owner[key].shape)}" for suffix, (owner, key) in tensors.items()}
    return shapes | {type(part).__name__ for name, part in module.named_modules() if name == path}
