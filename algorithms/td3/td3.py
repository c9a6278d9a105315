"""The settings and the exploration of TD3."""

from typing import Any

from typing_extensions import Self

from algorithms.off_policy.action_critic import ActionCriticTraining
from algorithms.off_policy.algorithm import ReplayConfig
from algorithms.off_policy.exploration import ExploringAlgorithm
from algorithms.replay.buffer import ReplayBuffer
from algorithms.settings.base import on_the_class, with_values
from algorithms.td3.learner import TD3Learner
from algorithms.td3.module import TD3Catalog, TD3Module
from algorithms.td3.presets import PRESETS
from catalog.checks import Schedule
from catalog.distributions.deterministic import SCALE
from catalog.settings import Section, setting
from rlmodule.data.dataset import Dataset
from rlmodule.learning.schedules import value_at
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.spec import RLModuleSpec

TD3_BC: dict[str, Any] = {
    "bc_coeff": 0.4,
    "normalize_q": True,
    "lr": 3e-4,
    "train_batch_size_per_learner": 256,
    "model_config": {"fcnet_hiddens": [256, 256], "normalize_observations": True},
}
"""The published settings, for :meth:`TD3Config.td3_bc`."""

REBRAC: dict[str, Any] = {
    "bc_coeff": 0.05,
    "normalize_q": True,
    "critic_bc_coeff": 0.05,
    "lr": 1e-3,
    "train_batch_size_per_learner": 1024,
    "num_steps_sampled_before_learning_starts": 1024,
    "model_config": {
        "fcnet_hiddens": [256, 256, 256],
        "functions": {"value": {"fcnet_norm": "layer"}},
    },
}
"""The published nets, batches and learning rate, for :meth:`TD3Config.rebrac`."""


class TD3Training(ActionCriticTraining):
    """Settings of TD3's losses, targets and exploration."""

    lr = 1e-3
    policy_delay: int = setting(
        2, "Gradient steps of the critics per gradient step of the policy and move of the target nets.", ge=1
    )
    target_noise: float = setting(
        0.2, "Standard deviation of the noise on target actions, which lie in [-1, 1]; 0 adds none.", ge=0
    )
    target_noise_clip: float = setting(0.5, "Largest magnitude of the noise on target actions.", gt=0)
    exploration_noise: Schedule | None = setting(
        None,
        "Standard deviation of the noise on sampled actions, which lie in [-1, 1]: a number, or points [[0, value], "
        "[env_step, value], ...]; None is 1 before learning starts, and 0.1 from then on.",
        ge=0,
    )

    bc_coeff: float | None = setting(
        None,
        "Weight of the mean squared distance of the policy's actions from those of the batch, in its loss; None leaves "
        "it out.",
        gt=0,
    )
    normalize_q: bool = setting(
        False, "Whether values in the policy's loss are divided by the mean of their magnitudes (TD3+BC)."
    )
    critic_bc_coeff: float = setting(
        0.0,
        "Weight of the mean squared distance between the target policy's action and the next one in the data, which "
        "targets subtract (ReBRAC).",
        ge=0,
    )


class TD3Config(TD3Training, ReplayConfig):
    """Settings of :class:`TD3`."""

    training = Section(TD3Training)
    presets = PRESETS
    default_search = (
        "lr=log:1e-5..2e-3",
        "gamma=1-log:1e-4..0.03",
        "train_batch_size_per_learner=64|128|256|512",
        "tau=log:1e-3..0.08",
        "exploration_noise=0.0..0.5",
        "model_config.fcnet_hiddens=[64,64]|[256,256]|[400,300]",
    )
    replay_capacity = 1_000_000

    @on_the_class
    def td3_bc(cls, **values: Any) -> Self:
        """Return a new config with TD3+BC (Fujimoto and Gu 2021, "A Minimalist Approach to Offline Reinforcement
        Learning"), for data sets. Its ``λ = 2.5 / mean|Q|`` is ``1 / bc_coeff`` and ``normalize_q``.

        Args:
            **values: Additional settings, or values that replace those of TD3+BC. A dict ``model_config`` replaces
                single settings of the nets.
        """
        return cls().update(with_values(TD3_BC, values))

    @on_the_class
    def rebrac(cls, **values: Any) -> Self:
        """Return a new config with ReBRAC (Tarasov et al. 2023, "Revisiting the Minimalist Approach to Offline
        Reinforcement Learning"), for data sets. Its two coefficients depend on the task.

        Args:
            **values: Additional settings, or values that replace those of ReBRAC. A dict ``model_config`` replaces
                single settings of the nets.
        """
        return cls().update(with_values(REBRAC, values))

    @property
    def algo_class(self) -> type["TD3"]:
        return TD3

    def noise_at(self, env_steps: int, sampled: int) -> float:
        """Return the standard deviation of a policy's exploration noise after ``env_steps`` env steps of the run.

        If ``exploration_noise`` is set, the result is its value at ``env_steps``, and ``sampled`` is ignored. If it is
        None, the result is 1 until the policy has acted in ``num_steps_sampled_before_learning_starts`` steps, and 0.1
        from then on.

        Args:
            env_steps: Number of env steps in the run so far.
            sampled: Number of steps in which the policy acted.
        """
        if self.exploration_noise is None:
            return 1.0 if sampled < self.num_steps_sampled_before_learning_starts else SCALE
        return value_at(self.exploration_noise, env_steps)

    def default_learner_class(self) -> type[TD3Learner]:
        return TD3Learner

    def default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=TD3Module, catalog_class=TD3Catalog)

    def validate(self) -> None:
        super().validate()
        self.check_critics()
        if not self.target_noise:
            self._check_left_out(["target_noise_clip"], "its default without target_noise", "Leave it out.")
        if self.normalize_q and self.bc_coeff is None:
            raise self._invalid("normalize_q", "False without bc_coeff, which it weighs against", "Set bc_coeff.")
        if self.normalize_q and self.num_learners > 1:
            expected = "False with several learners, of which none knows the mean over all rows of a batch"
            raise self._invalid("normalize_q", expected, "Leave it out, or train with one learner.")


class TD3(ExploringAlgorithm):
    """Twin delayed deep deterministic policy gradients (Fujimoto et al. 2018).

    Act with noise, store transitions, and learn from batches drawn from them.
    """

    config: TD3Config
    exploration_name = "exploration_noise"

    def _buffer_settings(self, config: Any, module: RLModule) -> dict[str, Any]:
        return super()._buffer_settings(config, module) | {"next_actions": config.critic_bc_coeff > 0}

    def _stored(self, dataset: Dataset, module_id: str, settings: dict[str, Any]) -> ReplayBuffer:
        if settings["next_actions"] and dataset.num_steps == dataset.num_episodes:
            raise ValueError(
                f"data of {module_id!r}: expected episodes of several steps, since critic_bc_coeff reads the action "
                f"after each step, got {dataset.num_episodes:,} episodes of one step. Keep the order of steps, or "
                "leave critic_bc_coeff out."
            )
        return super()._stored(dataset, module_id, settings)

    def exploration_of(self, module_id: str) -> float:
        return self.configs[module_id].noise_at(self.clock, self.metrics.steps_of(module_id))
