"""From spaces and a model config to encoders, heads and action distributions. Needs torch and gymnasium only."""

from catalog_rl import check_siblings

check_siblings(__file__)

from catalog.action_embeddings import ActionEmbeddings
from catalog.action_model import MADE, ActionModel
from catalog.actions import ActionConverter, action_converter_rules
from catalog.actor_critic import ActorCriticEncoder, ActorCriticEncoderConfig
from catalog.attention import AttentionEncoderConfig
from catalog.base import ActorCriticOutput, Encoder, EncoderOutput, ModelConfig, encoder_rules
from catalog.catalog import Catalog
from catalog.cnn import CNNEncoderConfig, ImpalaEncoderConfig
from catalog.cnn_transpose import CNNTransposeHeadConfig
from catalog.custom import CustomEncoderConfig  # after the other encoders: the rule asked first comes last
from catalog.distributions import (
    AutoregressiveDistribution,
    Bernoulli,
    Beta,
    Categorical,
    Deterministic,
    DiagGaussian,
    Distribution,
    MultiCategorical,
    MultiDistribution,
    SquashedGaussian,
    action_distribution_rules,
)
from catalog.masks import ActionMask
from catalog.mlp import (
    EmbeddingEncoderConfig,
    FreeLogStdMLPHeadConfig,
    MLPEncoderConfig,
    MLPHeadConfig,
    VectorEncoderConfig,
)
from catalog.model_config import DefaultModelConfig
from catalog.multi_stream import MultiStreamEncoderConfig
from catalog.noisy import NoisyHeadConfig
from catalog.past import PastView
from catalog.preprocessing import ObservationNormalizer, RunningMoments
from catalog.recurrent import RecurrentEncoderConfig, SequenceEncoderConfig
from catalog.registry import register_distribution, register_model
from catalog.rules import RuleTable

__all__ = [
    "ActionConverter",
    "ActionEmbeddings",
    "ActionMask",
    "ActionModel",
    "ActorCriticEncoder",
    "ActorCriticEncoderConfig",
    "ActorCriticOutput",
    "AttentionEncoderConfig",
    "AutoregressiveDistribution",
    "Bernoulli",
    "Beta",
    "CNNEncoderConfig",
    "CNNTransposeHeadConfig",
    "Catalog",
    "Categorical",
    "CustomEncoderConfig",
    "DefaultModelConfig",
    "Deterministic",
    "DiagGaussian",
    "Distribution",
    "EmbeddingEncoderConfig",
    "Encoder",
    "EncoderOutput",
    "FreeLogStdMLPHeadConfig",
    "ImpalaEncoderConfig",
    "MADE",
    "MLPEncoderConfig",
    "MLPHeadConfig",
    "ModelConfig",
    "MultiCategorical",
    "MultiDistribution",
    "MultiStreamEncoderConfig",
    "NoisyHeadConfig",
    "ObservationNormalizer",
    "PastView",
    "RecurrentEncoderConfig",
    "RuleTable",
    "RunningMoments",
    "SequenceEncoderConfig",
    "SquashedGaussian",
    "VectorEncoderConfig",
    "action_converter_rules",
    "action_distribution_rules",
    "encoder_rules",
    "register_distribution",
    "register_model",
]
