"""PPO: its settings, and one iteration of training."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gymnasium import Space

from algorithms.actor_critic import ActorCriticTraining, OnPolicyAlgorithm
from algorithms.episode_config import EpisodeLearnerConfig
from algorithms.ppo.learner import PPOLearner
from algorithms.ppo.module import PREDICTED, PREDICTION, PPOCatalog, PPOModule
from algorithms.ppo.presets import PRESETS
from algorithms.settings.base import on_the_class, with_values
from catalog.settings import Section, setting, settings_of
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.settings import FinalObs

if TYPE_CHECKING:
    from algorithms.run.saved_settings import SavedSettings

MAPPO: dict[str, Any] = {
    "policies": "shared",
    "minibatch_size": 3000,
    "lr": 7e-4,
    "vf_clip_param": 0.2,
    "vf_huber_delta": 10.0,
    "entropy_coeff": 0.01,
    "grad_clip": 10.0,
    "model_config": {"critic_only_keys": ["state"], "flatten_observations": True},
}
"""The published settings of MAPPO (Yu et al. 2022), except for the batch size."""


class PPOTraining(ActorCriticTraining):
    """Settings of PPO's loss and advantages."""

    minibatch_size = 64
    num_epochs = 10
    clip_param: float = setting(
        0.2, "The surrogate objective stops growing once the probability ratio leaves 1 ± clip_param.", gt=0
    )
    vf_clip_param: float | None = setting(
        None,
        "How far a value may move from its old prediction before the value loss stops shrinking, in standard "
        "deviations of the returns; None does not clip.",
        gt=0,
    )
    use_kl_loss: bool = setting(False, "Whether to add a penalty on KL(old policy, new policy) to the loss.")
    kl_coeff: float = setting(0.2, "Initial weight of the KL penalty; adapted after every iteration.", ge=0)
    kl_target: float = setting(0.01, "KL per iteration that kl_coeff is adapted to reach, in nats.", gt=0)
    target_kl: float | None = setting(
        None, "Skip the remaining epochs after an epoch whose mean KL exceeds this, in nats; None never skips.", gt=0
    )
    adaptive_lr_kl: float | None = setting(
        None,
        "KL per update that lr is adapted to reach, in nats: after an update whose KL is more than twice this, lr is "
        "divided by 1.5, and if it is less than half, multiplied, from 1e-5 to 1e-2. None keeps lr.",
        gt=0,
    )
    rnd_coeff: float = setting(
        0.0,
        "Reward for reaching an observation that is as new as the average one so far, by random network distillation "
        "(RND); 0 gives none.",
        ge=0,
    )
    rnd_dim: int = setting(64, "Number of outputs of the two nets of random network distillation.", ge=1)


class PPOConfig(PPOTraining, EpisodeLearnerConfig):
    """Settings of :class:`PPO`. The defaults learn classic control and MuJoCo tasks without tuning."""

    training = Section(PPOTraining)
    presets = PRESETS
    default_search = (
        "lr=log:1e-5..2e-3",
        "train_batch_size_per_learner=512|1024|2048|4096",
        "minibatch_size=32|64|128|256|512",
        "num_epochs=1|5|10|20",
        "clip_param=0.1|0.2|0.3|0.4",
        "gamma=1-log:1e-4..0.03",
        "lambda_=1-log:1e-4..0.1",
        "entropy_coeff=log:1e-8..0.1",
        "grad_clip=0.3..2.0",
        "model_config.fcnet_hiddens=[64,64]|[256,256]",
        "model_config.fcnet_activation=tanh|relu",
    )

    @on_the_class
    def mappo(cls, **values: Any) -> "PPOConfig":
        """Return a new config with the settings of MAPPO: agents share a policy, and its critic sees the state of the
        whole env, which :class:`WithState` adds to observations (Yu et al. 2022).

        Args:
            **values: Additional settings, or values that replace those of MAPPO. A dict ``model_config`` replaces
                single settings of MAPPO's.
        """
        return cls().update(with_values(MAPPO, values))

    @property
    def algo_class(self) -> type["PPO"]:
        return PPO

    def default_learner_class(self) -> type[PPOLearner]:
        return PPOLearner

    def default_rl_module_spec(self) -> RLModuleSpec:
        return RLModuleSpec(module_class=PPOModule, catalog_class=PPOCatalog)

    @property
    def records_final_obs(self) -> FinalObs:
        return "ended" if self.is_on("rnd_coeff") else "truncated"

    def get_rl_module_spec(
        self, observation_space: Space, action_space: Space, spec: RLModuleSpec | None = None
    ) -> RLModuleSpec:
        spec = super().get_rl_module_spec(observation_space, action_space, spec)
        if not self.rnd_coeff:
            return spec
        config = (spec.catalog_class or PPOCatalog).model_config_class.from_any(spec.model_config)
        functions = dict(config.functions)
        for name in (PREDICTED, PREDICTION):
            # the user may have chosen other layers for it
            functions[name] = {**functions.get(name, {}), "output_dim": self.rnd_dim, "trunk": "own"}
        return replace(spec, model_config=replace(config, functions=functions))

    def validate(self) -> None:
        super().validate()
        for settings in (vars(self), *self.policy_overrides.values()):
            if settings.get("use_kl_loss", self.use_kl_loss) and not settings.get("kl_coeff", self.kl_coeff):
                expected = "more than 0 with use_kl_loss, since factors adapt it"
                raise self._invalid("kl_coeff", expected, "Set it, or leave use_kl_loss out.")
            lr, adapts = settings.get("lr", self.lr), settings.get("adaptive_lr_kl", self.adaptive_lr_kl)
            if adapts and not isinstance(lr, int | float):
                changed = self.copy().update({"lr": lr})
                raise changed._invalid("lr", "a number with adaptive_lr_kl", "Set its first value alone.")
        remedy = "Set that to True in the same place, or leave this out. target_kl ends the epochs without it."
        for name in ("kl_coeff", "kl_target"):
            self._check_needs(name, "use_kl_loss", remedy)
        self._check_needs("rnd_dim", "rnd_coeff", "Set that, too, or leave this out.")

    def _check_needs(self, name: str, switch: str, remedy: str) -> None:
        """Raise ValueError, which ends with ``remedy``, if the setting ``name`` was changed where ``switch`` is off."""
        is_on, default = vars(self)[switch], settings_of(type(self))[name].default
        without = [changed for changed in self.policy_overrides.values() if not changed.get(switch, is_on)]
        if not is_on and len(without) == len(self.policy_overrides):
            without.append(vars(self))  # no policy reads those of the run
        for settings in without:
            if settings.get(name, default) != default:
                changed = self.copy().update({name: settings[name]})
                raise changed._invalid(name, f"its default without {switch}", remedy)


class PPO(OnPolicyAlgorithm):
    """Proximal policy optimisation (Schulman et al. 2017): sample a rollout, then learn from it for several epochs."""

    config: PPOConfig

    def adapt_state(self, state: dict[str, Any], saved: "SavedSettings") -> None:
        """Begin again with a ``kl_coeff`` that differs from that of the saved run."""
        super().adapt_state(state, saved)
        coefficients = state["learners"]["kl_coeff"]
        for module_id in coefficients:
            coefficient = self.config.for_module(module_id).kl_coeff
            if coefficient != saved.get("kl_coeff", module_id, default=coefficient):
                coefficients[module_id] = coefficient
