"""The Catalog: runs the decision tree over spaces and model config, builds what it decided, and says why."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import Space
from gymnasium.spaces import Box
from torch import nn

from catalog.actions import ActionConverter, action_converter
from catalog.actor_critic import ActorCriticEncoder
from catalog.base import Encoder, ModelConfig, as_encoder, encoder_rules
from catalog.distributions import Distribution, action_distribution_rules
from catalog.errors import explain_error
from catalog.explain import explain
from catalog.model_config import DefaultModelConfig
from catalog.preprocessing import ObservationNormalizer, can_normalize
from catalog.spaces import zero_batch


class Catalog:
    """Decides encoders and distributions for a pair of spaces; subclasses add an algorithm's heads.

    The tree runs at construction. Nets are built by the ``build_*`` methods, as many as asked for; distributions are
    classes and never built.

    Override points, each complete in itself:
        ``_get_encoder_config``: another encoder config for (some) observation spaces.
        ``_get_dist_cls_from_action_space``: another distribution for (some) action spaces.
        ``_determine_components_hook``: what is decided at construction at all.
        ``build_encoder``: any ``nn.Module`` from batched raw observations to latents ``[B, D]``.

    Args:
        observation_space: Space of one observation.
        action_space: Space of one action.
        model_config: A :class:`DefaultModelConfig`, a partial dict of its fields, or None for the defaults.

    Raises:
        ValueError: If a space has no branch (the path into the space is named), or a model setting is wrong.
    """

    encoder_config: ModelConfig | None = None
    _latent_dims: tuple[int, ...] | None = None
    action_dist_cls: type[Distribution]

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        model_config: DefaultModelConfig | Mapping[str, Any] | None = None,
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.model_config = DefaultModelConfig.from_any(model_config)
        if self.model_config.normalize_observations and not can_normalize(observation_space):
            raise ValueError(
                explain_error(
                    "model_config.normalize_observations",
                    expected="a Box of floats to standardise",
                    got=str(observation_space),
                    remedy="Leave it None, which standardises where that makes sense, or set it to False.",
                )
            )
        open_settings = self._open_settings()
        self.setting_reasons = {
            name: reason for name, (_, reason) in open_settings.items() if getattr(self.model_config, name) is None
        }
        chosen = {name: open_settings[name][0] for name in self.setting_reasons}
        self.model_config = dataclasses.replace(self.model_config, **chosen)
        self._determine_components_hook()

    def _open_settings(self) -> dict[str, tuple[Any, str]]:
        """Value of each model setting that may be left open (None), and the reason :meth:`explain` gives for it."""
        return {
            "vf_share_layers": (False, "the default"),
            "normalize_observations": (False, "the default"),
        }

    def _determine_components_hook(self) -> None:
        """Run the tree: encoder config, latent dims, distribution class."""
        try:
            self.encoder_config = self._get_encoder_config(self.observation_space, self.model_config)
        except ValueError:
            if not self.has_custom_encoder:  # which needs the table only where it falls through to it
                raise
        if self.encoder_config is not None and not self.has_custom_encoder:
            self._latent_dims = tuple(self.encoder_config.output_dims)
        self.action_dist_cls = self._get_dist_cls_from_action_space(self.action_space)

    @property
    def has_custom_encoder(self) -> bool:
        """Whether :meth:`build_encoder` is overridden, so that the encoder's width is known only once it is built."""
        return type(self).build_encoder is not Catalog.build_encoder

    @property
    def latent_dims(self) -> tuple[int, ...]:
        """Shape of one latent, what heads are built on: known once the tree has run or a custom encoder was built.

        Raises:
            RuntimeError: If a custom encoder has not been built yet.
        """
        if self._latent_dims is None:
            raise RuntimeError(
                explain_error(
                    f"{type(self).__name__}.latent_dims",
                    expected="the width of the encoder's output",
                    got="None, since the custom encoder has not been built",
                    remedy="Call build_actor_critic_encoder() before building heads.",
                )
            )
        return self._latent_dims

    def _get_encoder_config(self, observation_space: Space, model_config: DefaultModelConfig) -> ModelConfig:
        """Encoder config for ``observation_space``; by default what the encoder table says."""
        return encoder_rules.resolve(observation_space, model_config, "observation_space")

    def _get_dist_cls_from_action_space(self, action_space: Space) -> type[Distribution]:
        """Distribution class for ``action_space``; by default what the distribution table says."""
        return action_distribution_rules.resolve(action_space, self.model_config, "action_space")

    def get_action_dist_cls(self) -> type[Distribution]:
        """The class whose instances are made by ``from_logits(head_output)``."""
        return self.action_dist_cls

    def build_encoder(self) -> nn.Module:
        """A new encoder, ``encoder(obs) → EncoderOutput(latent, state)``."""
        if self.encoder_config is None:
            self.encoder_config = self._get_encoder_config(self.observation_space, self.model_config)
        return self.encoder_config.build()

    def build_actor_critic_encoder(self) -> ActorCriticEncoder:
        """Actor and critic encoders from :meth:`build_encoder`, called once if shared and twice if not.

        Each is tried on one zero observation, which sets ``latent_dims``; build heads after encoders.

        Raises:
            ValueError: If the encoder's output is not ``[1, D]`` or differs from its config's ``output_dims``.
        """
        actor = self._build_probed_encoder()
        return ActorCriticEncoder(actor, None if self.model_config.vf_share_layers else self._build_probed_encoder())

    def _build_probed_encoder(self) -> Encoder:
        encoder = as_encoder(self.build_encoder())
        modes = {module: module.training for module in encoder.modules()}
        encoder.eval()  # one sample must not touch running statistics of batch norm
        with torch.no_grad():
            latent = encoder(zero_batch(self.observation_space)).latent
        for module, training in modes.items():
            module.training = training
        dims = tuple(latent.shape[1:])
        config = None if self.has_custom_encoder else self.encoder_config
        declared = None if config is None else tuple(config.output_dims)
        if latent.shape[0] != 1 or len(dims) != 1 or declared not in (None, dims):
            width = declared[0] if declared is not None and len(declared) == 1 else "D"
            raise ValueError(
                explain_error(
                    f"{type(self).__name__}.build_encoder()",
                    expected=f"latents of shape (1, {width}) for one observation",
                    got=f"shape {tuple(latent.shape)}",
                    remedy="Flatten the output, keep the batch dim, and let output_dims say its width.",
                )
            )
        self._latent_dims = dims
        return encoder

    @property
    def normalizes_observations(self) -> bool:
        """Whether the module standardises observations before the encoder sees them."""
        return bool(self.model_config.normalize_observations) and can_normalize(self.observation_space)

    def build_observation_normalizer(self) -> ObservationNormalizer | None:
        """An :class:`ObservationNormalizer`, or None where the settings or the space want none."""
        space = self.observation_space
        return ObservationNormalizer(space) if self.normalizes_observations and isinstance(space, Box) else None

    def build_action_converter(self) -> ActionConverter:
        """The module that maps sampled actions into the action space."""
        return action_converter(self.action_space, self.model_config)

    def explain(self) -> str:
        """The path taken through the tree, as readable text: spaces, rules, settings, overrides, nets and their sizes.

        Builds the nets once, which sets ``latent_dims``; torch's random state stays as it was.
        """
        return explain(self)

    def _explain_parts(self) -> dict[str, nn.Module]:
        """The nets :meth:`explain` lists, by name; a net listed twice is shown as shared. Subclasses add theirs."""
        return {"encoder": self._build_probed_encoder()}
