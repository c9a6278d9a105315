"""SAC: its settings."""

from typing import TYPE_CHECKING, Any, Literal

from algorithms.off_policy.algorithm import ReplayAlgorithm, ReplayConfig, ReplayTraining
from algorithms.sac.learner import SACLearner
from algorithms.sac.module import SACCatalog, SACModule, SACNetSettings
from algorithms.sac.presets import PRESETS
from algorithms.settings.base import on_the_class
from catalog.checks import Schedule
from catalog.settings import Section, setting
from rlmodule.modules.apis import TemperatureAPI
from rlmodule.modules.spec import RLModuleSpec

if TYPE_CHECKING:
    from algorithms.run.saved_settings import SavedSettings

PLAIN: dict[str, Any] = {
    "lr": 3e-4,
    "train_batch_size_per_learner": 256,
    "training_intensity": 256.0,
    "tau": 0.005,
    "target_entropy": "auto",
    "model_config": {"fcnet_hiddens": [256, 256], "normalize_observations": False},
}
"""The published settings (Haarnoja et al. 2018, table 1), for :meth:`SACConfig.plain`. The defaults are the same but
standardise observations where actions are a Box."""


class SACTraining(SACNetSettings, ReplayTraining):
    """Settings of SAC's losses and targets."""

    grad_clip = None
    actor_lr: Schedule | None = setting(None, "Learning rate of the policy; None takes lr.", ge=0)
    critic_lr: Schedule | None = setting(None, "Learning rate of the critics; None takes lr.", ge=0)
    alpha_lr: Schedule | None = setting(
        None, "Learning rate of the temperature; None takes lr, 0 keeps initial_alpha.", ge=0
    )
    target_entropy: float | Literal["auto"] = setting(
        "auto",
        "Entropy of the policy in nats that the temperature aims at; 'auto' is -1 for each number of an action plus "
        "0.98 of the entropy of uniform choices.",
    )


class SACConfig(SACTraining, ReplayConfig):
    """Settings of :class:`SAC`."""

    training = Section(SACTraining)
    presets = PRESETS
    replay_capacity = 1_000_000

    @on_the_class
    def plain(cls, **values: Any) -> "SACConfig":
        """Return a new config with the published settings (Haarnoja et al. 2018).

        Args:
            **values: Additional settings, or values that replace the published ones.
        """
        return cls().update(PLAIN | values)

    @property
    def algo_class(self) -> type["SAC"]:
        return SAC

    def validate(self) -> None:
        super().validate()
        if self.alpha_lr == 0 and self.target_entropy != "auto":
            raise self._invalid(
                "target_entropy", "'auto' with alpha_lr=0, which fixes the temperature", "Leave it out."
            )

    def default_learner_class(self) -> type[SACLearner]:
        return SACLearner

    def default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=SACModule, catalog_class=SACCatalog)


class SAC(ReplayAlgorithm):
    """Soft actor-critic (Haarnoja et al. 2018).

    Act with a high-entropy policy, store transitions, and learn from batches drawn from them.
    """

    config: SACConfig

    def adapt_state(self, state: dict[str, Any], saved: "SavedSettings") -> None:
        """Begin again with an ``initial_alpha`` that differs from that of the saved run."""
        super().adapt_state(state, saved)
        for module_id, module in self.learner_group.module.items():
            if "initial_alpha" in saved.changed_in_net(module_id, module):
                assert isinstance(module, TemperatureAPI)
                log_alpha = module.log_temperature()
                [name] = [name for name, parameter in module.named_parameters() if parameter is log_alpha]
                state["learners"]["module"][module_id][name] = log_alpha.detach().clone()
