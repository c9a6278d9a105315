"""SAC: its settings."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from algorithms.off_policy.action_critic import ActionCriticTraining
from algorithms.off_policy.algorithm import ReplayAlgorithm, ReplayConfig
from algorithms.sac.conservative import NUM_ACTIONS
from algorithms.sac.learner import SACLearner
from algorithms.sac.module import SACCatalog, SACModule, SACNetSettings
from algorithms.sac.presets import PRESETS
from algorithms.settings.base import on_the_class, with_values
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

FLASH: dict[str, Any] = {
    "num_atoms": 101,
    "v_min": -5.0,
    "v_max": 5.0,
    "normalize_rewards": True,
    "initial_alpha": 0.01,
    "model_config": {
        "fcnet_hiddens": [64, 64, 64],
        "fcnet_blocks": "simba",
        "fcnet_norm": "batch",
        "functions": {"value": {"fcnet_hiddens": [128, 128, 128]}},
    },
}
"""A narrow FlashSAC, for :meth:`SACConfig.flash`."""


CQL: dict[str, Any] = {
    "cql_alpha": 5.0,
    "actor_lr": 1e-4,
    "model_config": {"fcnet_hiddens": [256, 256, 256]},
}
"""Settings of conservative Q-learning, for :meth:`SACConfig.cql`."""


class SACTraining(SACNetSettings, ActionCriticTraining):
    """Settings of SAC's losses and targets."""

    alpha_lr: Schedule | None = setting(
        None, "Learning rate of the temperature; None takes lr, 0 keeps initial_alpha.", ge=0
    )
    target_entropy: float | Literal["auto"] = setting(
        "auto",
        "Entropy of the policy in nats that the temperature aims at; 'auto' is -1 for each number of an action plus "
        "0.98 of the entropy of uniform choices.",
    )
    policy_value: Literal["min", "mean"] | None = setting(
        None,
        "Which value of several critics the policy maximises: the least or their mean; None takes the mean of critics "
        "with quantiles, else the least.",
    )

    cql_alpha: float = setting(
        0.0,
        "Weight of the loss that lowers values of actions which the data lack (CQL); 0 leaves it out.",
        ge=0,
    )
    cql_num_actions: int = setting(
        NUM_ACTIONS,
        "Actions of a Box that the CQL loss draws for each row: as many uniform ones, of the policy, and of the policy "
        "at the next observation.",
        ge=1,
    )

    @property
    def policy_reads_mean(self) -> bool:
        """Whether the policy maximises the mean of the critics' values, and not the least."""
        if self.policy_value is None:
            return self.num_quantiles > 1
        return self.policy_value == "mean"


class SACConfig(SACTraining, ReplayConfig):
    """Settings of :class:`SAC`."""

    training = Section(SACTraining)
    presets = PRESETS
    default_search = (
        "lr=log:1e-5..2e-3",
        "gamma=1-log:1e-4..0.03",
        "train_batch_size_per_learner=64|128|256|512",
        "tau=log:1e-3..0.08",
        "model_config.fcnet_hiddens=[64,64]|[256,256]|[400,300]",
    )
    replay_capacity = 1_000_000

    @on_the_class
    def plain(cls, **values: Any) -> "SACConfig":
        """Return a new config with the published settings (Haarnoja et al. 2018).

        Args:
            **values: Additional settings, or values that replace the published ones. A dict ``model_config`` replaces
                single settings of the nets.
        """
        return cls().update(with_values(PLAIN, values))

    @on_the_class
    def tqc(cls, **values: Any) -> "SACConfig":
        """Return a new config with truncated quantile critics (TQC, Kuznetsov et al. 2020): five critics of 25
        quantiles, of which targets leave out the two largest per critic.

        Args:
            **values: Additional settings, or values that replace those of TQC.
        """
        return cls().update({"num_critics": 5, "num_quantiles": 25, "drop_quantiles": 2} | values)

    @on_the_class
    def redq(cls, **values: Any) -> "SACConfig":
        """Return a new config with randomized ensembled double Q-learning (REDQ, Chen et al. 2021): ten critics, two
        of them drawn for each target, and 20 updates per env step.

        Args:
            **values: Additional settings, or values that replace those of REDQ.
        """
        parts = {"num_critics": 10, "target_critics": 2, "policy_value": "mean"}
        return cls().update(with_values(parts | _updates_per_step(20, values), values))

    @on_the_class
    def droq(cls, **values: Any) -> "SACConfig":
        """Return a new config with dropout Q-functions (DroQ, Hiraoka et al. 2022): two critics with dropout and layer
        norm, and 20 updates per env step.

        Args:
            **values: Additional settings, or values that replace those of DroQ. A dict ``model_config`` replaces
                single settings of the nets.
        """
        critics = {"fcnet_dropout": 0.01, "fcnet_norm": "layer"}
        parts = {"policy_value": "mean", "model_config": {"functions": {"value": critics}}}
        return cls().update(with_values(parts | _updates_per_step(20, values), values))

    @on_the_class
    def cql(cls, **values: Any) -> "SACConfig":
        """Return a new config with conservative Q-learning (CQL, Kumar et al. 2020), for data sets.

        Args:
            **values: Additional settings, or values that replace those of CQL. A dict ``model_config`` replaces
                single settings of the nets.
        """
        return cls().update(with_values(CQL, values))

    @on_the_class
    def rlpd(cls, **values: Any) -> "SACConfig":
        """Return a new config with reinforcement learning with prior data (RLPD, Ball et al. 2023): half of each batch
        from a data set, ten critics with layer norm, two of them drawn for each target, and 20 updates per env step.

        Args:
            **values: Additional settings, or values that replace those of RLPD. Set ``data`` here or with
                ``offline()``. A dict ``model_config`` replaces single settings of the nets.
        """
        critics = {"fcnet_norm": "layer"}
        parts = {"num_critics": 10, "target_critics": 2, "policy_value": "mean"}
        parts["model_config"] = {"functions": {"value": critics}}
        return cls().update(with_values(parts | _updates_per_step(20, values), values))

    @on_the_class
    def flash(cls, **values: Any) -> "SACConfig":
        """Return a new config with parts of FlashSAC in narrow nets: residual blocks with batch norm, critics of 101
        atoms, and rewards that are divided so that returns fit the atoms.

        Args:
            **values: Additional settings, or values that replace those of FlashSAC. A dict ``model_config`` replaces
                single settings of the nets.
        """
        return cls().update(with_values(FLASH, values))

    @property
    def algo_class(self) -> type["SAC"]:
        return SAC

    def validate(self) -> None:
        super().validate()
        self.check_critics()
        if self.policy_value is not None and self.num_critics == 1:
            raise self._invalid("policy_value", "None with num_critics=1", "Leave it out.")
        if not self.cql_alpha:
            remedy = "Set cql_alpha, or leave this out."
            self._check_left_out(["cql_num_actions"], "its default with cql_alpha=0", remedy)
        if self.alpha_lr == 0 and self.target_entropy != "auto":
            raise self._invalid(
                "target_entropy", "'auto' with alpha_lr=0, which fixes the temperature", "Leave it out."
            )

    def default_learner_class(self) -> type[SACLearner]:
        return SACLearner

    def default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=SACModule, catalog_class=SACCatalog)


def _updates_per_step(updates: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the setting that makes a number of ``updates`` per env step, with the batch size in ``values``."""
    batch_size = values.get("train_batch_size_per_learner", SACConfig.train_batch_size_per_learner)
    return {"training_intensity": float(updates * batch_size)}


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
