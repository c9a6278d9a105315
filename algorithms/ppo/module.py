"""PPO's nets: the catalog that decides them and the module that assembles them."""

from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from catalog import (
    Catalog,
    DiagGaussian,
    FreeLogStdMLPHeadConfig,
    MLPHeadConfig,
    RunningMoments,
)
from catalog.base import Tree
from catalog.mlp import encoder_init
from catalog.nn import Init
from rlmodule import Columns, InferenceOnlyAPI, RLModule, ValueFunctionAPI

POLICY_INIT = Init(kernel="orthogonal_", kernel_kwargs={"gain": 0.01}, bias="zeros_")
"""A first policy that is near uniform, whatever the observation."""
VALUE_INIT = Init(kernel="orthogonal_", kernel_kwargs={"gain": 1.0}, bias="zeros_")


class PPOCatalog(Catalog):
    """Adds PPO's policy and value heads.

    Override points, besides those of :class:`Catalog`: ``build_pi_head``, ``build_vf_head``.
    """

    def _open_settings(self) -> dict[str, tuple[Any, str]]:
        if self.has_custom_encoder:
            standardise = (False, "since a custom encoder gets raw observations")
        elif isinstance(self.action_space, spaces.Box):
            standardise = (True, "PPO's default for Box actions")
        else:
            standardise = (False, f"PPO's default for {type(self.action_space).__name__} actions")
        return super()._open_settings() | {"normalize_observations": standardise}

    def build_pi_head(self) -> nn.Module:
        """From the actor's latent to the inputs of the action distribution."""
        config, dist_cls = self.model_config, self.get_action_dist_cls()
        gaussian = issubclass(dist_cls, DiagGaussian)
        head_class = FreeLogStdMLPHeadConfig if gaussian and config.free_log_std else MLPHeadConfig
        return head_class(
            input_dims=self.latent_dims,
            output_layer_dim=dist_cls.required_input_dim(self.action_space),
            hidden_layer_dims=config.head_fcnet_hiddens,
            hidden_layer_activation=config.head_fcnet_activation,
            init=encoder_init(config),
            output_init=POLICY_INIT,
            clip_log_std=gaussian and not config.free_log_std,
            log_std_clip_param=config.log_std_clip_param,
        ).build()

    def build_vf_head(self) -> nn.Module:
        """From the critic's latent to one value ``[..., 1]``, in units of the value normaliser."""
        config = self.model_config
        return MLPHeadConfig(
            input_dims=self.latent_dims,
            output_layer_dim=1,
            hidden_layer_dims=config.head_fcnet_hiddens,
            hidden_layer_activation=config.head_fcnet_activation,
            init=encoder_init(config),
            output_init=VALUE_INIT,
        ).build()

    def _explain_parts(self) -> dict[str, nn.Module]:
        encoder = self.build_actor_critic_encoder()
        return {
            "actor encoder": encoder.actor_encoder,
            "critic encoder": encoder.critic_encoder or encoder.actor_encoder,
            "policy head": self.build_pi_head(),
            "value head": self.build_vf_head(),
        }


class PPOModule(RLModule, ValueFunctionAPI, InferenceOnlyAPI):
    """Observation normaliser → actor-critic encoder → policy and value heads."""

    catalog: PPOCatalog

    def setup(self) -> None:
        self.observation_normalizer = self.catalog.build_observation_normalizer()
        self.encoder = self.catalog.build_actor_critic_encoder()
        self.pi_head = self.catalog.build_pi_head()
        self.vf_head = self.catalog.build_vf_head()
        normalize_values = self.catalog.model_config.normalize_values
        self.value_normalizer = RunningMoments(decay=0.9) if normalize_values else None

    def get_non_inference_attributes(self) -> list[str]:
        return ["encoder.critic_encoder", "vf_head", "value_normalizer"]

    def _normalized(self, batch: Mapping[str, Tree]) -> Tree:
        normalizer = self.observation_normalizer
        return batch[Columns.OBS] if normalizer is None else normalizer(batch[Columns.OBS])

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        latent = self.encoder.actor_encoder(self._normalized(batch)).latent
        return {Columns.ACTION_DIST_INPUTS: self.pi_head(latent)}

    def _forward_train(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        latents = self.encoder(self._normalized(batch))
        return {Columns.ACTION_DIST_INPUTS: self.pi_head(latents.actor), Columns.EMBEDDINGS: latents.critic}

    def compute_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        if embeddings is None:
            embeddings = self.encoder.encode_critic(self._normalized(batch))
        values = self.vf_head(embeddings).squeeze(-1)
        normalizer = self.value_normalizer
        return values if normalizer is None else torch.addcmul(normalizer.mean, values, normalizer.std)

    def value_scale(self) -> Tensor:
        return super().value_scale() if self.value_normalizer is None else self.value_normalizer.std

    def update_value_statistics(self, targets: Tensor) -> None:
        if self.value_normalizer is not None:
            self.value_normalizer.update(targets)

    def update_observation_statistics(self, obs: Tree) -> None:
        if self.observation_normalizer is not None:
            self.observation_normalizer.update(obs)
