"""ReplayLearner: the learner of an algorithm with a replay buffer and target nets."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from rlmodule.learning.batch_learner import BatchLearner
from rlmodule.learning.target_nets import TargetNets
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec

if TYPE_CHECKING:
    from algorithms.off_policy.algorithm import ReplayConfig


class ReplayLearner(BatchLearner):
    """Takes a gradient step on each replayed batch, and moves the target nets after it.

    Override points, in addition to those of :class:`BatchLearner`:
        ``target_parts``: names of the parts whose target nets are copies; None, the default, is all. In other parts,
        a target net has the tensors that are in training.

    Attributes:
        targets: The target nets and their clocks.
        target: The target nets by module id, in eval mode.
    """

    target_parts: ClassVar[tuple[str, ...] | None] = None
    settings: Any

    def __init__(self, settings: "ReplayConfig", spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        self.targets = TargetNets(self.target_parts)
        self.target = self.targets.nets
        super().__init__(settings, spec, run_seed=run_seed)

    def _register_module(self, module_id: str, spec: RLModuleSpec) -> None:
        net = spec.build().to(self.device)
        super()._register_module(module_id, spec)
        if module_id in self.parameters:  # a module that is not trained has no target net
            parts = {name: each.part for name, each in self._parts[module_id].items()}
            flat = self.parameters[module_id]
            self.targets.add(module_id, net, self.module[module_id], flat, parts, self.env_steps)

    def _forget_module(self, module_id: str) -> None:
        super()._forget_module(module_id)
        self.targets.remove(module_id)

    def load_module_state(self, module_id: str, state: Mapping[str, Tensor]) -> None:
        """Load a state into the module and its target net."""
        super().load_module_state(module_id, state)
        if module_id in self.target:
            self.targets.copy_weights(module_id, self.module[module_id])

    def after_gradient_step(self, module_id: str) -> None:
        """Move the target net by the fraction ``tau`` once every ``target_network_update_freq`` env steps."""
        every, tau = self.settings.target_network_update_freq, self.settings.tau
        self.targets.update(module_id, env_steps=self.env_steps, every=every, tau=tau)

    def summarize(self, module_id: str, metrics: Mapping[str, Tensor]) -> dict[str, float]:
        return super().summarize(module_id, metrics) | {
            "num_target_updates": float(self.targets.num_updates[module_id])
        }

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | self.targets.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        self.targets.set_state(state)
