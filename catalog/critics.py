"""Action critics, which are ensembles of Q-functions Q(s, a), and the catalog that chooses their nets."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from gymnasium import Space
from torch import Tensor, nn

from catalog.activations import Init
from catalog.base import Encoder, ModelConfig, Tree, as_encoder
from catalog.catalog import Catalog
from catalog.distributions.categorical import choice_counts
from catalog.encoders.dense import DenseEnsemble
from catalog.encoders.mlp import MLPEncoderConfig, MLPHeadConfig, encoder_layers, fcnet_layers, head_layers
from catalog.encoders.preprocessing import Vectorize
from catalog.encoders.shape_checks import check_encoder
from catalog.hooks import refuses_foreign
from catalog.model_config import ActionValueModelConfig, settings_about
from catalog.past import sampled_space
from catalog.return_heads import ReturnSettings
from catalog.settings import setting

MOST_JOINT_ACTIONS = 256
"""Largest number of joint actions of a space of choices for which a critic can have one output per joint action."""
MAX_LOG_STD = 2.0
"""Upper bound of the log standard deviations of a policy that is trained through its samples, as published for SAC."""


class CriticSettings(ReturnSettings):
    """Settings of critics, which both the config of an algorithm and its model config have."""

    num_critics: int = setting(
        2, "Number of critics. Targets use the least of their values (clipped double Q-learning).", ge=1
    )

    @classmethod
    def from_earlier(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        if "twin_q" not in values:
            return values
        others = {name: value for name, value in values.items() if name != "twin_q"}
        return {"num_critics": 2 if values["twin_q"] else 1, **others}


class ActionCriticModelConfig(CriticSettings, ActionValueModelConfig):
    """Settings of the nets of algorithms that have a policy, and critics of state and action. The log standard
    deviations of the policy depend on the state."""

    free_log_std = False

    def _check_together(self) -> None:
        super()._check_together()
        self.check_returns("model_config")


def num_joint_actions(action_space: Space) -> int:
    """Return the number of joint actions of a space of choices; 0 for other spaces, and for more than 256 actions."""
    count = math.prod(choice_counts(action_space) or (0,))
    return count if count <= MOST_JOINT_ACTIONS else 0


@dataclass(frozen=True, kw_only=True)
class ActionCriticConfig(ModelConfig):
    """Config of an :class:`ActionCritic`.

    Attributes:
        action_space: The env's action space.
        members: Number of nets in the ensemble.
        body: Config of the layers over latent and action, whose ``input_dims`` are those of the latent of an
            observation. The critic adds the width of the action.
        head: Config of the layers after the body. The critic replaces its ``input_dims`` and ``output_layer_dim``.
        values_all: Whether one pass predicts the values of all joint actions, from the latent alone.
        return_shape: The shape of the outputs for each value: ``()`` or ``(K,)``.
    """

    action_space: Space
    members: int
    body: MLPEncoderConfig
    head: MLPHeadConfig
    values_all: bool = False
    return_shape: tuple[int, ...] = ()

    @property
    def output_dims(self) -> tuple[int, ...]:
        if self.values_all:
            return (num_joint_actions(self.action_space),)
        return self.return_shape

    def build(self) -> "ActionCritic":
        return ActionCritic(self)


class ActionCritic(nn.Module):
    """Ensemble of nets that predict the value of an action, given the latent of an observation.

    One pass computes all members. If ``values_all``, each net has one output for every joint action, in the order in
    which the last choice varies fastest (Christodoulou 2019, "Soft actor-critic for discrete action settings").
    Otherwise each net reads the action together with the latent.
    """

    strides: Tensor | None

    def __init__(self, config: ActionCriticConfig) -> None:
        super().__init__()
        (latent_dim,) = config.body.input_dims
        self.code = None if config.values_all else Vectorize(sampled_space(config.action_space), "action_space")
        self.has_several_outputs = len(config.return_shape) > 0
        width = latent_dim + (0 if self.code is None else self.code.width)
        body = dataclasses.replace(config.body, input_space=None, embedding_dim=None, input_dims=(width,))
        self.body = DenseEnsemble(config.members, **encoder_layers(body))
        head = dataclasses.replace(config.head, input_dims=body.output_dims)
        self.head = DenseEnsemble(config.members, **head_layers(head, math.prod(config.output_dims)))
        counts = choice_counts(config.action_space) if config.values_all else ()
        strides = torch.tensor([math.prod(counts[i + 1 :]) for i in range(len(counts))]) if counts else None
        self.register_buffer("strides", strides, persistent=False)

    def forward(
        self, latent: Tensor, actions: Tree | None = None, *, frozen: bool = False, num_critics: int | None = None
    ) -> Tensor:
        """Return the values of the members, in units of reward.

        Args:
            latent: Latents of the observations, ``[B, D]``.
            actions: Sampled actions ``[B, *shape]``. Choices are numbers or, unless ``values_all``, one-hot codes.
                None stands for every joint action and needs ``values_all``.
            frozen: If True, gradients reach the actions only; latents and weights count as constants.
            num_critics: Number of members to compute, the first ones; None computes all.

        Returns:
            Values ``[members, B]``, or with several outputs per value ``[members, B, outputs]``; without ``actions``
            ``[members, B, number of joint actions]``.
        """
        x = latent.detach() if frozen else latent
        if self.code is not None:
            x = torch.cat([x, self.code.forward(actions)], -1)  # without the hooks of Module.__call__, which take time
        x = x.expand(num_critics or self.body.members, *x.shape)
        x = self.body.run(x, self.body.layers_of(num_critics, frozen=frozen))
        values = self.head.run(x, self.head.layers_of(num_critics, frozen=frozen))
        if self.code is not None:
            return values if self.has_several_outputs else values.squeeze(-1)
        return values if actions is None else self._taken(values, actions)

    def _taken(self, values: Tensor, actions: Tensor) -> Tensor:
        """Select ``[members, B]`` for ``actions`` ``[B, *shape]`` from ``values`` ``[members, B, joint actions]``."""
        assert self.strides is not None
        joint = (actions.reshape(len(actions), -1) * self.strides).sum(-1)
        return values.gather(-1, joint.expand(len(values), -1).unsqueeze(-1)).squeeze(-1)


class ActionCriticCatalog(Catalog):
    """Chooses the nets of algorithms with a policy and critics that predict action values.

    Each critic reads a vector observation together with the action. If the observation is not a vector, if the nets
    are recurrent, or if a hook chose another encoder, the critics share an encoder and read its latent together with
    the action. With ``vf_share_layers``, this encoder is the policy's, for vector observations too.

    Override points, in addition to those of :class:`Catalog`: ``build_pi_head``, ``build_qf``, ``critic_config``.
    """

    functions = ("policy", "value")
    further_settings = settings_about("fcnet_")
    model_config_class = ActionCriticModelConfig
    model_config: ActionCriticModelConfig
    _critic_dims: tuple[int, ...] = ()

    def _open_settings(self) -> dict[str, tuple[Any, str]]:
        policy, value = self.model_config.for_function("policy"), self.model_config.for_function("value")
        shaping = policy.encoder_settings().keys() - {*self.further_settings}  # which critics read after the action
        share = False, "the default"
        if policy.is_recurrent and all(vars(policy)[name] == vars(value)[name] for name in shaping):
            share = True, "the default for recurrent nets: env runners would have to run a separate encoder, too"
        return {"normalize_observations": (False, "the default"), "vf_share_layers": share}

    @property
    def values_all(self) -> bool:
        """Whether the critics predict the values of all joint actions in one pass: False, unless a subclass overrides
        this property."""
        return False

    def head_config(self, function: str, output_dim: int, output_init: Init | None = None) -> MLPHeadConfig:
        config = super().head_config(function, output_dim, output_init)
        reads_critic = self._functions.trunk_of(function) == "value" and not self.model_config.vf_share_layers
        return dataclasses.replace(config, input_dims=self._critic_dims) if reads_critic else config

    def _build_critic_trunk(self) -> Encoder:
        """Build the encoder that all critics share. The dense layers of the ``fcnet_*`` settings, which the tree
        chooses for vectors, are left out, because the critics have them after the action."""
        view = self.for_function("value")._trunk
        config = None if view.has_custom_encoder else view.encoder_config
        layers = fcnet_layers(view.model_config)
        if type(config) is MLPEncoderConfig and config == dataclasses.replace(config, **layers):
            encoder = as_encoder(dataclasses.replace(config, hidden_layer_dims=(), hidden_layer_blocks=None).build())
        else:
            encoder = super()._build_critic_trunk()
        self._critic_dims = check_encoder(encoder, self.input_space, f"{type(view).__name__}.build_encoder()")
        return encoder

    @refuses_foreign
    def build_pi_head(self) -> nn.Module:
        """Build the policy head, from the policy's latent to the inputs of the action distribution.

        It clamps state-dependent log standard deviations to ``±log_std_clip_param`` and to at most 2.
        """
        log_stds = self.bound_dist_cls.log_std_indices(self.action_space)
        config = self.for_function("policy").model_config
        head = self.head_config("policy", self.action_head_dim).with_log_stds(log_stds, config)
        net = head.build()
        if head.clip_log_std:
            net.bound_outputs(head.log_stds, head.log_std_clip_param, MAX_LOG_STD)
        return net

    @refuses_foreign
    def build_qf(self) -> nn.Module:
        """Build the ensemble of critics. Call :meth:`build_actor_critic_encoder` first, which sets the width of their
        latent."""
        return self.critic_config().build()

    def critic_config(self) -> ActionCriticConfig:
        """Return the config of the critics, from the ``fcnet_*`` and ``head_*`` settings of ``functions['value']``."""
        assert isinstance(self.model_config, ActionCriticModelConfig)
        config, head = self.for_function("value").model_config, self.head_config("value", 1)
        return ActionCriticConfig(
            action_space=self.action_space,
            members=self.model_config.num_critics,
            body=MLPEncoderConfig(input_dims=head.input_dims, **fcnet_layers(config)),
            head=head,
            values_all=self.values_all,
            return_shape=self.model_config.return_shape,
        )

    def _explain_parts(self) -> dict[str, nn.Module]:
        encoders = self._explain_actor_critic_encoder()
        heads = {"policy head": self.build_pi_head(), "critics": self.build_qf()}
        return encoders | heads | self._explain_further_parts()
