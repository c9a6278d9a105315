"""Decide which modules of a learner are updated together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlmodule.learning.families import Family, Group
from rlmodule.learning.flat_optimizer import FlatParameters, Part, TrainedPart
from rlmodule.learning.stacks import Stack, stack_key, stacked_pass
from rlmodule.modules.shared_parts import places_of, tensors_at

if TYPE_CHECKING:
    from rlmodule.learning.episode_learner import EpisodeLearner

Divided = list[tuple[tuple[str, ...], Group | None]]


class Groups:
    """Divides the modules of a learner into those that are updated together and those that are updated alone.

    Modules that share parts, directly or through other modules, form a :class:`Family`. Modules that differ only in
    their weights form a :class:`Stack` if the loss allows it (:meth:`Learner.can_stack`) and if each module has a
    single part with the default optimizer. A stack gives the same results as separate updates, up to rounding. Only
    modules whose ids are neighbours in sorted order are stacked, because only then does each minibatch get the same
    random numbers as in separate updates.

    Args:
        learner: The learner whose modules are divided.
    """

    def __init__(self, learner: EpisodeLearner) -> None:
        self._learner = learner
        self._known: tuple[bool, list[FlatParameters]] = False, []  # what was divided last, and whether into stacks
        self._divided: Divided = []

    def take_shared_parts(self, module_id: str) -> set[int]:
        """Register the parts that a module shares with other modules in ``shared_parts`` and ``sharing`` of the
        learner, unless another module has registered them. Return ``id(parameter)`` of all their trainable parameters.

        Raises:
            ValueError: If a shared part has the same name as a module, or if the loss is compiled, captured in a CUDA
                graph, or computed in bfloat16.
        """
        learner, shared, names = self._learner, set[int](), list[str]()
        modules, settings = learner.module, learner.run_settings
        is_plain = not (settings.torch_autocast or settings.torch_compile_learner or settings.torch_cuda_graphs)
        for name, places in places_of(modules.shared_parts, modules).items():
            if module_id not in places:
                continue
            if name in modules or not is_plain:
                raise ValueError(
                    f"shared_parts[{name!r}]: expected a name that no policy has, and a loss that is neither compiled, "
                    f"captured nor in bfloat16, got policies {', '.join(modules)} and torch_compile_learner="
                    f"{settings.torch_compile_learner}, torch_cuda_graphs={settings.torch_cuda_graphs}, "
                    f"torch_autocast={settings.torch_autocast}. Choose another name, or leave these settings out."
                )
            tensors = tensors_at(modules[module_id], places[module_id]).values()
            parameters = {id(own[key]): own[key] for own, key in tensors if own[key].requires_grad}
            if not parameters:
                raise ValueError(
                    f"shared_parts[{name!r}]: expected a part with trainable parameters, got none in "
                    f"{places[module_id]!r} of {module_id!r}. Share another part, and let each policy have its own "
                    "statistics."
                )
            if name not in learner.shared_parts:
                flat = FlatParameters({name: parameters.values()}).parts[name]
                part = Part((places[module_id],), settings.lr, settings.grad_clip)
                with learner.using(settings):
                    optimizer = learner._make_optimizer(name, part, flat.tensor)
                learner.shared_parts[name] = TrainedPart(part, flat, optimizer)
            shared |= parameters.keys()
            names.append(name)
        if names:
            learner.sharing[module_id] = names
        return shared

    def divide(self, module_ids: Sequence[str], *, stacks: bool) -> Divided:
        """Divide ``module_ids`` into tuples of ids that are updated together. Pair each tuple with its :class:`Group`,
        or with None if it has a single module without shared parts. Without ``stacks``, only modules that share parts
        are updated together."""
        learner = self._learner
        if (asked := (stacks, [learner.parameters[module_id] for module_id in module_ids])) == self._known:
            return self._divided
        self._known, self._divided = asked, []
        for _, group in itertools.groupby(module_ids, lambda x: x if x in learner.sharing else stack_key(learner, x)):
            ids = tuple(group)
            if ids[0] in learner.sharing:
                continue
            compute = stacked_pass(learner, ids) if stacks else None
            apart: Divided = [((one,), None) for one in ids]
            self._divided += apart if compute is None else [(ids, Stack(learner, ids, compute))]
        families: list[set[str]] = []
        for module_id in filter(learner.sharing.__contains__, module_ids):
            near = [x for x in families if any({*learner.sharing[module_id]} & {*learner.sharing[y]} for y in x)]
            families = [x for x in families if x not in near] + [{module_id}.union(*near)]
        for family in families:
            ids = tuple(sorted(family))
            same = stacks and len({stack_key(learner, one) for one in ids}) == 1
            self._divided.append((ids, Family(learner, ids, stacked_pass(learner, ids) if same else None)))
        return self._divided
