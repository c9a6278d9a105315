"""TD3's nets: the catalog that chooses them and the module that assembles them."""

from gymnasium import Space, spaces

from catalog.critics import ActionCriticCatalog
from catalog.distributions.base import Distribution
from catalog.distributions.deterministic import DeterministicAction, ExplorationNoise
from catalog.distributions.nested import leaf_classes
from rlmodule.modules.action_critic import ActionCriticModule
from rlmodule.modules.apis import ExplorationAPI


class TD3Catalog(ActionCriticCatalog):
    """Chooses TD3's nets: a policy with the distribution :class:`DeterministicAction`, and critics.

    Override points: those of :class:`ActionCriticCatalog`.

    Raises:
        ValueError: As :class:`Catalog`. Also if an action, or a part of it, is not a Box of floats with finite bounds.
    """

    def _get_dist_cls_from_action_space(self, action_space: Space) -> type[Distribution]:
        if isinstance(action_space, spaces.Dict | spaces.Tuple):
            return super()._get_dist_cls_from_action_space(action_space)
        if not DeterministicAction.fits(action_space):
            path = self._node.path if self._node else "action_space"
            others = "DQN, PPO or SAC" if isinstance(self.action_space, spaces.Discrete) else "PPO or SAC"
            raise ValueError(
                f"{path} of TD3 and DDPG: expected a Box of floats with finite bounds on all sides, got "
                f"{action_space}. Use {others} for such actions."
            )
        return DeterministicAction

    def _check_functions(self) -> None:
        super()._check_functions()
        wrong = [leaf for _, leaf in leaf_classes(self.bound_dist_cls) if not issubclass(leaf, DeterministicAction)]
        if wrong:
            raise ValueError(
                f"distribution of the actions of {type(self).__name__}: expected DeterministicAction for each part, "
                f"since its policy supports no other, got {wrong[0].__name__}. Leave custom_action_dist and "
                "autoregressive_actions out, or use SAC."
            )


class TD3Module(ActionCriticModule, ExplorationAPI):
    """TD3's network: the policy and critics of :class:`ActionCriticModule`, and the scale of the exploration noise."""

    exploration_buffers = ("exploration_noise.scale",)

    def setup(self) -> None:
        self._check_catalog(TD3Module, TD3Catalog)
        super().setup()
        self.exploration_noise = ExplorationNoise()

    def set_exploration(self, value: float) -> None:
        """Set the standard deviation of the noise, which is added to actions in [-1, 1]."""
        self.exploration_noise.scale.fill_(value)
