"""TrainedModule: what a learner keeps for each module that it trains."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

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
        tensors: The parameters and saved buffers of the module by name, each with whether it needs a gradient.
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
    tensors: dict[str, tuple[Tensor, bool]]
    gradient_pass: GradientPass = field(init=False)
    stepping: tuple[str, ...] = field(init=False)
    num_gradient_steps: int = 0
    skipped_in_a_row: int = 0
    extra_metrics: frozenset[str] | None = None

    def __post_init__(self) -> None:
        self.stepping = tuple(self.parts)


def not_trained(module_id: str, trained: Iterable[str]) -> ValueError:
    """Return the error to raise if module ``module_id`` is to be trained, but is not among those that are."""
    return ValueError(
        f"module {module_id!r}: expected one that is trained ({', '.join(trained) or 'none'}), got one that is not. "
        "Name it in policies_to_train, or leave out its data."
    )


def tensor_changed(module_id: str, name: str, *, is_same: bool, is_trained: bool) -> ValueError:
    """Return the error to raise if a module no longer has one of its :attr:`TrainedModule.tensors`, which optimizers
    update and the copies that act share, or if it was frozen or unfrozen.

    Args:
        module_id: Id of the module.
        name: Name of the tensor.
        is_same: Whether the module still has the tensor.
        is_trained: Whether optimizers update the tensor.
    """
    what, remedy = "replaced", "Change it in place, as tensor.copy_(...) does."
    if is_same:
        what = "frozen" if is_trained else "unfrozen"
        remedy = "Call requires_grad_() in build_encoder() or setup(); later, parts_to_step() can leave a part out."
    return ValueError(
        f"module {module_id!r}: expected the tensors that it was built with, got {name!r}, which was {what} later. "
        f"{remedy}"
    )


def check_nets_apart(
    where: str, module: nn.Module, others: Iterable[tuple[str, nn.Module]], but: Collection[int] = ()
) -> None:
    """Raise ValueError if ``module`` and one of ``others`` have a trainable parameter in common. Two optimizers would
    each update a copy of it, a target net would be the net in training, and freezing one module would freeze the other.

    Args:
        where: The name of the module, for the error message.
        module: The module.
        others: Pairs of a name and a module.
        but: The ``id()`` of each parameter that they may have in common.
    """
    mine = {id(p): name for name, p in module.named_parameters() if p.requires_grad and id(p) not in but}
    for other, of_other in others:
        if shared := [mine[id(p)] for p in of_other.parameters() if id(p) in mine]:
            raise ValueError(
                f"{where}: expected trainable parameters that no other module has, got {', '.join(shared[:5])}, which "
                f"{other} has, too. Make them in build_encoder() or setup(), so that each module gets its own, name "
                "them in shared_parts, or freeze them with requires_grad_(False)."
            )


def check_parts_to_step(names: tuple[str, ...], parts: Collection[str], where: str) -> None:
    """Raise ValueError, which begins with ``where``, if ``names`` is empty or has a name that is not in ``parts``."""
    if not names or not set(names) <= set(parts):
        raise ValueError(
            f"{where}: expected one or more of {', '.join(parts)}, got {names}. Name parts that parts_of() returns."
        )
