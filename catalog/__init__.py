"""Builds encoders, heads and action distributions from spaces and a model config. Needs only torch and gymnasium."""

from catalog_rl import check_siblings

check_siblings(__file__)

from catalog.actions.converters import ActionConverter, action_converter_rules
from catalog.actions.embeddings import ActionEmbeddings
from catalog.actions.masks import ActionMask
from catalog.activations import Init
from catalog.base import ActorCriticOutput, Encoder, EncoderOutput, ModelConfig, Tree, encoder_rules
from catalog.catalog import Catalog
from catalog.critics import ActionCriticCatalog
from catalog.distributions.action_models import MADE, ActionModel
from catalog.distributions.autoregressive import AutoregressiveDistribution
from catalog.distributions.base import Deterministic, Distribution, action_distribution_rules
from catalog.distributions.beta import Beta
from catalog.distributions.categorical import Bernoulli, Categorical, MultiCategorical
from catalog.distributions.deterministic import DeterministicAction, ExplorationNoise
from catalog.distributions.gaussian import DiagGaussian, SquashedGaussian
from catalog.distributions.nested import MultiDistribution
from catalog.encoders.actor_critic import ActorCriticEncoder, ActorCriticEncoderConfig
from catalog.encoders.attention import AttentionEncoderConfig
from catalog.encoders.cnn import CNNEncoderConfig, ImpalaEncoderConfig
from catalog.encoders.cnn_transpose import CNNTransposeHeadConfig
from catalog.encoders.mlp import FreeLogStdMLPHeadConfig, MLPEncoderConfig, MLPHeadConfig
from catalog.encoders.multi_stream import MultiStreamEncoderConfig
from catalog.encoders.noisy import NoisyHeadConfig
from catalog.encoders.preprocessing import ObservationNormalizer, RunningMoments
from catalog.encoders.recurrent import RecurrentEncoderConfig
from catalog.encoders.sequence import SequenceEncoderConfig
from catalog.model_config import DefaultModelConfig
from catalog.past import PastView
from catalog.registry import register_distribution, register_model
from catalog.rules import RuleTable

# After all other encoders, since the newest rule is asked first: custom_model takes precedence over the other rules.
from catalog.encoders.custom import CustomEncoderConfig  # isort: skip

__all__ = [
    "ActionConverter",
    "ActionCriticCatalog",
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
    "DeterministicAction",
    "DiagGaussian",
    "Distribution",
    "Encoder",
    "EncoderOutput",
    "ExplorationNoise",
    "FreeLogStdMLPHeadConfig",
    "ImpalaEncoderConfig",
    "Init",
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
    "Tree",
    "action_converter_rules",
    "action_distribution_rules",
    "encoder_rules",
    "register_distribution",
    "register_model",
]
