"""The settings and the exploration of TD3."""

from algorithms.off_policy.action_critic import ActionCriticTraining
from algorithms.off_policy.algorithm import ReplayConfig
from algorithms.off_policy.exploration import ExploringAlgorithm
from algorithms.td3.learner import TD3Learner
from algorithms.td3.module import TD3Catalog, TD3Module
from algorithms.td3.presets import PRESETS
from catalog.checks import Schedule
from catalog.distributions.deterministic import SCALE
from catalog.settings import Section, setting, settings_of
from rlmodule.learning.schedules import value_at
from rlmodule.modules.spec import RLModuleSpec


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


class TD3Config(TD3Training, ReplayConfig):
    """Settings of :class:`TD3`."""

    training = Section(TD3Training)
    presets = PRESETS
    replay_capacity = 1_000_000

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
        if not self.target_noise and self.target_noise_clip != settings_of(type(self))["target_noise_clip"].default:
            raise self._invalid("target_noise_clip", "its default without target_noise", "Leave it out.")


class TD3(ExploringAlgorithm):
    """Twin delayed deep deterministic policy gradients (Fujimoto et al. 2018).

    Act with noise, store transitions, and learn from batches drawn from them.
    """

    config: TD3Config
    exploration_name = "exploration_noise"

    def exploration_of(self, module_id: str) -> float:
        return self.configs[module_id].noise_at(self.clock, self.metrics.steps_of(module_id))
