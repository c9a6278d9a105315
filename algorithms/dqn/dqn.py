"""DQN: its settings, including those of Rainbow, and one iteration of training."""

from typing import Any, Literal

from algorithms.dqn.learner import DQNLearner
from algorithms.dqn.module import DQNCatalog, DQNModule, DQNNetSettings, check_exploration
from algorithms.dqn.presets import PRESETS
from algorithms.off_policy.algorithm import PRIORITIZED_SETTINGS, ReplayConfig, ReplayTraining
from algorithms.off_policy.exploration import ExploringAlgorithm
from algorithms.settings.base import on_the_class
from catalog.checks import Schedule
from catalog.settings import Section, setting
from rlmodule.learning.schedules import value_at
from rlmodule.modules.spec import RLModuleSpec


class DQNTraining(DQNNetSettings, ReplayTraining):
    """Settings of DQN's loss, targets and exploration."""

    lr = 5e-4
    grad_clip = 10.0
    train_batch_size_per_learner = 128
    training_intensity = 32.0
    n_step = 3
    target_network_update_freq = 200
    tau = 1.0
    double_q: bool = setting(
        True, "Whether the online net chooses the action that the target net values (double Q-learning)."
    )
    epsilon: Schedule | None = setting(
        None,
        "Share of random actions: a number, or points [[0, value], [env_step, value], ...]; None falls from 1 to 0.05 "
        "over 10,000 env steps, or is 0 for noisy nets.",
        ge=0,
        le=1,
    )
    td_error_loss_fn: Literal["huber", "mse"] = setting(
        "huber",
        "Loss of TD errors without atoms and quantiles: squared up to 1 and linear above it (huber), or squared (mse).",
    )
    cql_alpha: float = setting(
        0.0, "Weight of the loss that lowers values of actions which the data lack (CQL); 0 leaves it out.", ge=0
    )


class DQNConfig(DQNTraining, ReplayConfig):
    """Settings of :class:`DQN`. Each part of Rainbow has its own setting; :meth:`rainbow` turns all of them on."""

    training = Section(DQNTraining)
    presets = PRESETS
    default_search = (
        "lr=log:1e-5..2e-3",
        "gamma=1-log:1e-4..0.03",
        "train_batch_size_per_learner=64|128|256|512",
        "n_step=1|3|5",
        "training_intensity=8.0|32.0|128.0",
        "target_network_update_freq=100|500|2000",
        "model_config.fcnet_hiddens=[64,64]|[256,256]|[400,300]",
    )

    @on_the_class
    def rainbow(cls, **values: Any) -> "DQNConfig":
        """Return a new config with all parts of Rainbow (Hessel et al. 2018).

        These are double Q-learning, dueling nets, 3-step windows, prioritized replay, 51 atoms and noisy nets.

        Args:
            **values: Additional settings, or values that replace those of Rainbow. Set ``v_min`` and ``v_max`` here or
                with ``training()`` before ``build()``, because the range of discounted returns depends on the task.
        """
        parts = {
            "double_q": True,
            "dueling": True,
            "n_step": 3,
            "prioritized_replay": True,
            "prioritized_replay_alpha": 0.5,
            "prioritized_replay_beta": [[0, 0.4], [100_000, 1.0]],
            "num_atoms": 51,
            "noisy": True,
        } | values
        if not parts["prioritized_replay"]:
            parts = {name: value for name, value in parts.items() if name in values or name not in PRIORITIZED_SETTINGS}
        return cls().update(parts)

    @on_the_class
    def cql(cls, **values: Any) -> "DQNConfig":
        """Return a new config with conservative Q-learning (CQL, Kumar et al. 2020), for data sets.

        Args:
            **values: Additional settings, or values that replace those of CQL.
        """
        return cls().update({"cql_alpha": 1.0} | values)

    @property
    def algo_class(self) -> type["DQN"]:
        return DQN

    @property
    def epsilon_schedule(self) -> Schedule:
        """The setting ``epsilon``, or the default schedule if ``epsilon`` is None."""
        if self.epsilon is not None:
            return self.epsilon
        return 0.0 if self.noisy else [[0, 1.0], [10_000, 0.05]]

    def default_learner_class(self) -> type[DQNLearner]:
        return DQNLearner

    def default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=DQNModule, catalog_class=DQNCatalog)

    def validate(self) -> None:
        super().validate()
        self.check_nets(type(self).__name__)
        if self.td_error_loss_fn != "huber":
            if self.num_atoms > 1:
                expected = "its default with num_atoms > 1, whose loss is KL"
                raise self._invalid("td_error_loss_fn", expected, "Leave it out.")
            if self.num_quantiles > 1:
                expected = "its default with num_quantiles > 1, whose loss is the quantile Huber loss"
                raise self._invalid("td_error_loss_fn", expected, "Leave it out.")


class DQN(ExploringAlgorithm):
    """Deep Q-learning (Mnih et al. 2015): act ε-greedily, store transitions, and learn from batches drawn from them."""

    config: DQNConfig
    exploration_name = "epsilon"

    def __init__(self, config: DQNConfig) -> None:
        super().__init__(config)
        try:
            for module_id in self.replays:
                check_exploration(self.get_module(module_id), self.policies[module_id].module)
        except BaseException:
            self.stop()
            raise

    def exploration_of(self, module_id: str) -> float:
        return value_at(self.configs[module_id].epsilon_schedule, self.clock)
