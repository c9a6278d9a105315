"""MARWIL: its settings, and the algorithm, which learns from a data set alone."""

from __future__ import annotations

from typing import Any

from algorithms.data_algorithm import DataAlgorithm, DataConfig, DataTraining
from algorithms.marwil.learner import MARWILLearner
from algorithms.ppo.module import PPOCatalog, PPOModule
from algorithms.replay.data_rollout import inside_bounds
from catalog.settings import Section, setting, settings_of
from rlmodule.data.dataset import Dataset
from rlmodule.data.rollout import Rollout
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.spec import RLModuleSpec

REWARD_SETTINGS = ("gamma", "n_step", "clip_rewards", "vf_loss_coeff", "norm_rate")
"""Settings that only have an effect with ``beta > 0``."""


SAMPLING_SETTINGS = (
    "num_env_runners",
    "rollout_fragment_length",
    "sample_ahead",
    "num_cpus_per_env_runner",
    "env_step_timeout_s",
    "metrics_num_episodes_for_smoothing",
    "restart_failed_env_runners",
    "ignore_env_runner_failures",
    "on_sample_end",
)
"""Settings that only have an effect on env steps to learn from."""


class MARWILTraining(DataTraining):
    """Settings of MARWIL's loss and advantages."""

    n_step = 100
    beta: float = setting(
        1.0, "How much better actions count for more: 0 clones all alike, 1 weighs by exp(advantage).", ge=0
    )
    vf_loss_coeff: float = setting(0.5, "Weight of the value loss.", ge=0)
    norm_rate: float = setting(
        0.01, "Rate of the moving average of squared advantages, by whose root advantages are divided.", gt=0, le=1
    )


class MARWILConfig(MARWILTraining, DataConfig):
    """Settings of :class:`MARWIL`."""

    training = Section(MARWILTraining)
    default_search = ("lr=log:1e-5..2e-3", "gamma=1-log:1e-3..0.03", "beta=log:0.1..10.0")
    can_sample = False

    @property
    def algo_class(self) -> type[MARWIL]:
        return MARWIL

    def default_learner_class(self) -> type[MARWILLearner]:
        return MARWILLearner

    def default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=PPOModule, catalog_class=PPOCatalog)

    def validate(self) -> None:
        super().validate()
        known = settings_of(type(self))
        for settings in (vars(self), *self.policy_overrides.values()):
            for name in REWARD_SETTINGS:
                if (
                    not settings.get("beta", self.beta)
                    and settings.get(name, known[name].default) != known[name].default
                ):
                    expected = "its default with beta=0, which reads no rewards"
                    changed = self.copy().update({name: settings[name]})
                    raise changed._invalid(name, expected, "Leave it out, or set beta.")
        for name in SAMPLING_SETTINGS:
            if vars(self)[name] != known[name].default:
                expected = f"{known[name].default}, since {self.algo_class.__name__} samples no env steps"
                raise self._invalid(name, expected, "Leave it out.")


class MARWIL(DataAlgorithm):
    """Clones the actions of a data set, and the better ones more (Wang et al. 2018).

    The name stands for monotonic advantage re-weighted imitation learning.
    """

    config: MARWILConfig

    def _buffer_settings(self, config: Any, module: RLModule) -> dict[str, Any]:
        settings = super()._buffer_settings(config, module)
        return settings if config.beta else settings | {"n_step": 1}  # no reward is read

    def _rollout_of(self, dataset: Dataset, module: RLModule) -> Rollout:
        return inside_bounds(super()._rollout_of(dataset, module), module.action_dist_cls)
