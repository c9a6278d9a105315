"""TrainedModule: what a learner keeps for each module that it trains."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from rlmodule.learning.compilation import GradientPass
from rlmodule.learning.flat_optimizer import FlatParameters, TrainedPart


@dataclass(eq=False)
class TrainedModule:
    """What a learner keeps for one module that it trains.

    Attributes:
        settings: The settings of the run, changed by the module's ``policy_overrides``.
        parameters: The trainable parameters that only this module has.
        parts: The parts of these parameters, each with its optimizer, by name.
        shared: The names of the parts that the module shares with other modules.
        is_stateful: Whether the module is recurrent.
        gradient_pass: Computes the loss and gradient of a minibatch; may be compiled or captured.
        stepping: The names of the parts that the current or latest gradient step updates; all parts before the first
            step.
        num_gradient_steps: Number of gradient steps in the whole run.
        skipped_in_a_row: Number of the latest gradient steps that were skipped, since the last one that was not.
        extra_metrics: The names of the metrics that the module's own losses report; None before their first call.
    """

    settings: Any
    parameters: FlatParameters
    parts: dict[str, TrainedPart]
    shared: list[str]
    is_stateful: bool
    gradient_pass: GradientPass = field(init=False)
    stepping: tuple[str, ...] = field(init=False)
    num_gradient_steps: int = 0
    skipped_in_a_row: int = 0
    extra_metrics: frozenset[str] | None = None

    def __post_init__(self) -> None:
        self.stepping = tuple(self.parts)


def check_not_trained_yet(
    module_id: str, module: nn.Module, but: Collection[int], trained: Mapping[str, TrainedModule], learner: str
) -> None:
    """Raise ValueError if a parameter of ``module``, except those whose ``id()`` is in ``but``, already belongs to one
    of the modules ``trained`` by id, because each optimizer would update its own copy of it. ``learner`` is the name of
    the learner's class."""
    mine = {id(p): name for name, p in module.named_parameters() if id(p) not in but}
    for other, of_other in trained.items():
        if shared := [mine[id(p)] for p in of_other.parameters.views if id(p) in mine]:
            raise ValueError(
                f"module {module_id!r} of {learner}: expected trainable parameters "
                f"that no other module trains, got {', '.join(shared[:5])}, which module {other!r} "
                "trains, too. Build them in setup() of each module, name them in shared_parts, or freeze them with "
                "requires_grad_(False)."
            )


def check_parts_to_step(names: tuple[str, ...], parts: Collection[str], where: str) -> None:
    """Raise ValueError, which begins with ``where``, if ``names`` is empty or has a name that is not in ``parts``."""
    if not names or not set(names) <= set(parts):
        raise ValueError(
            f"{where}: expected one or more of {', '.join(parts)}, got {names}. Name parts that parts_of() returns."
        )
