"""DQN: its settings, including those of Rainbow, and one iteration of training."""

from typing import Any, Literal

from algorithms.dqn.learner import DQNLearner
from algorithms.dqn.module import DQNCatalog, DQNModelConfig, DQNModule, DQNNetSettings, check_exploration
from algorithms.dqn.presets import PRESETS
from algorithms.off_policy.algorithm import PRIORITIZED_SETTINGS, ReplayAlgorithm, ReplayConfig, ReplayTraining
from algorithms.settings.base import on_the_class
from catalog.checks import Schedule
from catalog.settings import Section, setting, settings_of
from rlmodule.learning.schedules import value_at
from rlmodule.modules.apis import EpsilonGreedyAPI
from rlmodule.modules.spec import RLModuleSpec

NET_SETTINGS = tuple(settings_of(DQNNetSettings))
"""Names of the settings of :class:`DQNConfig` that describe the nets. Their values go to :class:`DQNModelConfig`."""


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
        "huber", "Loss of TD errors without atoms: squared up to 1 and linear above it (huber), or squared (mse)."
    )


class DQNConfig(DQNTraining, ReplayConfig):
    """Settings of :class:`DQN`. Each part of Rainbow has its own setting; :meth:`rainbow` turns all of them on."""

    training = Section(DQNTraining)
    net_settings = NET_SETTINGS
    presets = PRESETS

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
        try:
            DQNModelConfig(**{name: getattr(self, name) for name in NET_SETTINGS})
        except ValueError as error:  # the user set them on this config, so name it and not model_config
            message = str(error).replace("model_config.", f"{type(self).__name__}.", 1)
            raise ValueError(message) from None
        if self.num_atoms > 1 and self.td_error_loss_fn != "huber":
            raise self._invalid("td_error_loss_fn", "its default with num_atoms > 1, whose loss is KL", "Leave it out.")


class DQN(ReplayAlgorithm):
    """Deep Q-learning (Mnih et al. 2015): act ε-greedily, store transitions, and learn from batches drawn from them."""

    config: DQNConfig

    def __init__(self, config: DQNConfig) -> None:
        super().__init__(config)
        self._epsilon: dict[str, float] = {}
        try:
            for module_id in self.replays:
                check_exploration(self.get_module(module_id), self.policies[module_id].module)
        except BaseException:
            self.stop()
            raise

    def before_sampling(self) -> None:
        for module_id, config in self.configs.items():
            epsilon = value_at(config.epsilon_schedule, self.env_steps)
            # setting it takes as long as stepping an env; states from learners in other processes replace it
            if self.config.num_learners or epsilon != self._epsilon.get(module_id):
                self._set_epsilon(module_id, epsilon)

    def training_step(self) -> dict[str, dict[str, Any]]:
        self._epsilon.clear()  # between iterations, a loaded state or a user may have changed the modules
        result = super().training_step()
        for module_id in self.configs.keys() & self._epsilon:  # a callback may have changed the policies
            # the state from learners in other processes has replaced it, and they do not know it
            self._set_epsilon(module_id, self._epsilon[module_id])
            if module_id in result["learners"]:
                result["learners"][module_id]["epsilon"] = self._epsilon[module_id]
        return result

    def _set_epsilon(self, module_id: str, epsilon: float) -> None:
        module = self.get_module(module_id)
        assert isinstance(module, EpsilonGreedyAPI)  # the learner requires this API
        module.set_epsilon(epsilon)
        self._epsilon[module_id] = epsilon
