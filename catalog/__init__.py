"""From spaces and a model config to encoders, heads and action distributions. Needs torch and gymnasium only."""

from catalog_rl import check_siblings

check_siblings(__file__)

from catalog.actions import ActionConverter, action_converter_rules
from catalog.actor_critic import ActorCriticEncoder, ActorCriticEncoderConfig
from catalog.base import ActorCriticOutput, Encoder, EncoderOutput, ModelConfig, encoder_rules
from catalog.catalog import Catalog
from catalog.distributions import (
    Categorical,
    Deterministic,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    SquashedGaussian,
    action_distribution_rules,
)
from catalog.mlp import FreeLogStdMLPHeadConfig, MLPEncoderConfig, MLPHeadConfig
from catalog.model_config import DefaultModelConfig
from catalog.preprocessing import ObservationNormalizer, RunningMoments
from catalog.rules import RuleTable

__all__ = [
    "ActionConverter",
    "ActorCriticEncoder",
    "ActorCriticEncoderConfig",
    "ActorCriticOutput",
    "Catalog",
    "Categorical",
    "DefaultModelConfig",
    "Deterministic",
    "DiagGaussian",
    "Distribution",
    "Encoder",
    "EncoderOutput",
    "FreeLogStdMLPHeadConfig",
    "MLPEncoderConfig",
    "MLPHeadConfig",
    "ModelConfig",
    "MultiCategorical",
    "ObservationNormalizer",
    "RuleTable",
    "RunningMoments",
    "SquashedGaussian",
    "action_converter_rules",
    "action_distribution_rules",
    "encoder_rules",
]
