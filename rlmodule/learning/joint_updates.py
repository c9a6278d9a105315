"""Decide which modules of a learner are updated together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlmodule.learning.families import Family
from rlmodule.learning.flat_optimizer import FlatAdam
from rlmodule.learning.stacks import Stack, StackedPass
from rlmodule.modules.apis import ExtraLossAPI
from rlmodule.modules.module_stack import stack_of, structure_of

if TYPE_CHECKING:
    from rlmodule.learning.episode_learner import EpisodeLearner


def divide(learner: EpisodeLearner, module_ids: Sequence[str], *, may_stack: bool) -> list[str | Family | Stack]:
    """Divide modules into those that are updated together and those that are updated alone.

    Modules that share parts, directly or through other modules, form a :class:`Family`. If ``may_stack``, modules that
    differ only in their weights form a :class:`Stack` if the loss allows it (:meth:`EpisodeLearner.can_stack`) and if
    each module has a single part with the default optimizer.

    Args:
        learner: The learner that trains the modules.
        module_ids: The ids of the modules, in sorted order.
        may_stack: Whether modules may form stacks.

    Returns:
        Families, stacks, and the ids of modules that are updated alone, in the order of the updates.
    """
    # Only neighbours in sorted order are stacked: then each minibatch gets the same random numbers as in separate
    # updates, which are made in that order.
    updates: list[str | Family | Stack] = []
    apart = [module_id for module_id in module_ids if not learner.trained[module_id].shared]
    for _, neighbours in itertools.groupby(apart, lambda module_id: _stack_key(learner, module_id)):
        ids = list(neighbours)
        stacked = _stacked_pass(learner, ids) if may_stack else None
        updates += ids if stacked is None else [Stack(learner, ids, stacked)]
    families: list[set[str]] = []
    for module_id in module_ids:
        shared = set(learner.trained[module_id].shared)
        if not shared:
            continue
        # a module that shares parts with several families joins them to one
        relatives = [family for family in families if any(shared & {*learner.trained[x].shared} for x in family)]
        families = [family for family in families if family not in relatives]
        families.append({module_id}.union(*relatives))
    for family in families:
        ids = sorted(family)
        is_alike = may_stack and len({_stack_key(learner, module_id) for module_id in ids}) == 1
        updates.append(Family(learner, ids, _stacked_pass(learner, ids) if is_alike else None))
    return updates


def _stacked_pass(learner: EpisodeLearner, module_ids: list[str]) -> StackedPass | None:
    """Return a pass of modules whose keys from :func:`_stack_key` are equal. Return None if there is only one, or if
    the results would differ from those of separate passes."""
    modules = stack_of([learner.module[module_id] for module_id in module_ids])
    return None if modules is None else StackedPass(learner, module_ids, modules)


def _stack_key(learner: EpisodeLearner, module_id: str) -> object:
    """Return a key that is equal for modules whose losses may be computed in a :class:`StackedPass`. If those of the
    module may not, return its id."""
    module, trained = learner.module[module_id], learner.trained[module_id]
    settings = learner.use_settings_of(module_id)
    if not learner.can_stack(module_id) or learner.may_stop() or isinstance(module, ExtraLossAPI):
        return module_id
    if len(trained.parts) > 1 or settings.grad_clip_by != "global_norm":
        return module_id
    [part] = trained.parts.values()
    parts = [part, *(learner.shared_parts[name] for name in trained.shared)]
    num_trained = sum(len(part.flat.views) for part in parts)
    if num_trained < len([*module.parameters()]) or any(type(part.optimizer) is not FlatAdam for part in parts):
        return module_id
    return structure_of(module), id(settings), part.part.grad_clip
