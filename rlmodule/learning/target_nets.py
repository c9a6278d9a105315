"""Target nets: copies of neural modules whose weights follow the weights in training."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

from torch import Tensor

from rlmodule.learning.flat_optimizer import FlatParameters, Part
from rlmodule.learning.learner import Learner
from rlmodule.learning.trained_module import check_nets_apart
from rlmodule.modules.rl_module import MultiRLModule, RLModule
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec


class TargetNets:
    """Copies of modules, in eval mode, whose weights move towards the weights in training (Mnih et al. 2015; Lillicrap
    et al. 2016, Algorithm 1). Each target net is moved by its own calls of :meth:`update`.

    Override points: none.

    Args:
        followed: Names of the parts that a target net copies; None copies all parts. A target net shares all other
            tensors with the module in training.

    Attributes:
        nets: The target nets, by module id.
        last_update: Env steps at which each net's last move was due, or at which it was added, by module id.
        num_updates: Number of times that each net has moved, by module id.
    """

    def __init__(self, followed: Collection[str] | None = None) -> None:
        self._followed = followed
        self.nets = MultiRLModule({}).eval()
        self.last_update: dict[str, int] = {}
        self.num_updates: dict[str, int] = {}
        self._own: dict[str, set[str]] = {}  # names of the tensors that a target net does not share
        self._pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}  # flat slices: the target's, and those in training
        self._buffers: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def add(
        self,
        module_id: str,
        net: RLModule,
        module: RLModule,
        parameters: FlatParameters,
        parts: Mapping[str, Part],
        env_steps: int,
    ) -> None:
        """Make ``net`` the target net of a module, and copy the module's current weights into it.

        Args:
            module_id: Id of the module.
            net: A module built from the same spec, on the same device. It becomes the target net.
            module: The module in training.
            parameters: The parameters of ``module``.
            parts: The parts of ``module``, by name.
            env_steps: Env steps sampled in the run so far.

        Raises:
            ValueError: If the id is in use, or ``parts`` lacks a name in ``followed``.
        """
        followed = {name: part for name, part in parts.items() if self._followed is None or name in self._followed}
        if self._followed is not None and len(followed) < len(self._followed):
            raise ValueError(
                f"target net of module {module_id!r}: expected parts among {', '.join(parts)}, got "
                f"{', '.join(self._followed)}. Set target_parts of the learner to names that parts_of() returns."
            )
        everything = len(followed) == len(parts)
        check_nets_apart(f"target net of module {module_id!r}", net, [("the module", module)])

        def has_copy(name: str) -> bool:
            return everything or any(part.covers(name) for part in followed.values())

        self.nets.add(module_id, net)
        net.set_state(module.get_state())
        if not everything:
            net.share_tensors_of(module, but=has_copy)
        by_part = {name: [p for n, p in net.named_parameters() if part.covers(n)] for name, part in followed.items()}
        flat = FlatParameters(by_part)
        for p in flat.views:
            p.grad = None  # frees the memory of gradients, which a target net never gets
        self._pairs[module_id] = [
            (part.tensor.detach(), parameters.parts[name].tensor.detach()) for name, part in flat.parts.items()
        ]
        theirs = dict(module.named_buffers())
        self._buffers[module_id] = [(x, theirs[name]) for name, x in net.named_buffers() if has_copy(name)]
        self._own[module_id] = {name for name in net.state_dict() if has_copy(name)}
        self.last_update[module_id], self.num_updates[module_id] = env_steps, 0

    def remove(self, module_id: str) -> None:
        """Remove the target net of module ``module_id``, if it has one."""
        if module_id in self.nets:
            self.nets.remove(module_id)
        for by_id in (self._own, self._pairs, self._buffers, self.last_update, self.num_updates):
            by_id.pop(module_id, None)

    def copy_weights(self, module_id: str, module: RLModule) -> None:
        """Copy all weights and buffers of ``module``, the module in training with the id ``module_id``, into its target
        net."""
        self.nets[module_id].set_state(module.get_state())

    def update(self, module_id: str, *, env_steps: int, every: int, tau: float) -> None:
        """If the target net of a module is due to move, move its weights towards the weights in training by the
        fraction ``tau`` of the difference, and copy the buffers. Otherwise do nothing.

        Moves are due at multiples of ``every`` env steps, counted from when the net was added. A call that comes late,
        because several envs step at once, does not delay later moves. If several moves are overdue, the net moves once.

        Args:
            module_id: Id of the module.
            env_steps: Number of env steps in the run so far.
            every: Number of env steps between moves; 0 moves the net at each call.
            tau: Fraction of the difference.
        """
        elapsed = env_steps - self.last_update[module_id]
        if elapsed < every:
            return
        for theirs, mine in self._pairs[module_id]:
            theirs.lerp_(mine, tau)
        for theirs, mine in self._buffers[module_id]:
            theirs.copy_(mine)
        late = elapsed % every if every else 0
        self.last_update[module_id] = env_steps - late
        self.num_updates[module_id] += 1

    def get_state(self) -> dict[str, Any]:
        """Return the state that :meth:`set_state` restores: the tensors that the target nets do not share with the
        modules in training, ``last_update`` and ``num_updates``."""
        nets = {
            module_id: {name: x for name, x in net.get_state().items() if name in self._own[module_id]}
            for module_id, net in self.nets.items()
        }
        return {
            "target": nets,
            "last_target_update": self.last_update.copy(),
            "num_target_updates": self.num_updates.copy(),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`get_state` in place. Restore only those nets that both the state and this object
        have.

        Raises:
            ValueError: If the names or shapes do not match a target net.
        """
        for module_id, saved in state["target"].items():
            if module_id in self.nets:  # other modules may be trained now
                net = self.nets[module_id]
                net.set_state(net.get_state() | saved)
                self.last_update[module_id] = state["last_target_update"][module_id]
                self.num_updates[module_id] = state["num_target_updates"][module_id]


class TargetedLearner(Learner):
    """Base class of learners that have a target net of each module that they train.

    A subclass calls :meth:`move_target` when a move may be due. Its settings have ``target_network_update_freq`` and
    ``tau``.

    Override points, in addition to those of :class:`Learner`:
        ``target_parts``: names of the optimizer parts that a target net copies; None, the default, copies all. The
        target net shares the tensors of other parts with the module in training.

    Attributes:
        targets: The :class:`TargetNets`: the target nets, the number of moves of each, and the env steps at which its
            last move was due.
        target: The target nets by module id, in eval mode.
    """

    target_parts: ClassVar[tuple[str, ...] | None] = None
    settings: Any

    def __init__(self, settings: Any, spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        self.targets = TargetNets(self.target_parts)
        self.target = self.targets.nets
        super().__init__(settings, spec, run_seed=run_seed)

    def _register_module(self, module_id: str, spec: RLModuleSpec, *, train: bool) -> None:
        super()._register_module(module_id, spec, train=train)
        if train:  # a module that is not trained has no target net
            net, trained = spec.build().to(self.device), self.trained[module_id]
            parts = {name: of_part.part for name, of_part in trained.parts.items()}
            self.targets.add(module_id, net, self.module[module_id], trained.parameters, parts, self.env_steps)

    def _forget_module(self, module_id: str) -> None:
        super()._forget_module(module_id)
        self.targets.remove(module_id)

    def load_module_state(self, module_id: str, state: Mapping[str, Tensor]) -> None:
        """Load ``state`` into the module, and copy its weights to the target net."""
        super().load_module_state(module_id, state)
        if module_id in self.target:
            self.targets.copy_weights(module_id, self.module[module_id])

    def move_target(self, module_id: str) -> None:
        """Move the target net towards the online net by the fraction ``tau``, once per ``target_network_update_freq``
        env steps."""
        every, tau = self.settings.target_network_update_freq, self.settings.tau
        self.targets.update(module_id, env_steps=self.env_steps, every=every, tau=tau)

    def summarize(self, module_id: str, metrics: Mapping[str, Tensor]) -> dict[str, float]:
        moves = float(self.targets.num_updates[module_id])
        return super().summarize(module_id, metrics) | {"num_target_updates": moves}

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | self.targets.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        super().set_state(state)
        for module_id in set(self.target) - state["target"].keys():  # not trained when the state was saved
            self.targets.copy_weights(module_id, self.module[module_id])
        self.targets.set_state(state)
