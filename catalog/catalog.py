"""The Catalog: runs the decision tree over spaces and model config, builds what it decided, and says why."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from gymnasium import Space
from gymnasium.spaces import Box
from torch import nn

from catalog.actions import ActionConverter, action_converter, action_converter_rules
from catalog.actor_critic import ActorCriticEncoder
from catalog.base import Encoder, ModelConfig, as_encoder, encoder_rules
from catalog.distributions import Distribution, action_distribution_rules
from catalog.errors import explain_error
from catalog.model_config import DefaultModelConfig
from catalog.preprocessing import ObservationNormalizer, can_normalize
from catalog.rules import RuleTable
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

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        model_config: DefaultModelConfig | Mapping[str, Any] | None = None,
    ) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
        self.model_config = DefaultModelConfig.from_any(model_config)
        self._determine_components_hook()

    def _determine_components_hook(self) -> None:
        """Run the tree: encoder config, latent dims, distribution class."""
        self.encoder_config: ModelConfig | None = None
        self.latent_dims: tuple[int, ...] | None = None
        try:
            self.encoder_config = self._get_encoder_config(self.observation_space, self.model_config)
        except ValueError:
            if not self.has_custom_encoder:  # which needs the table only where it falls through to it
                raise
        if self.encoder_config is not None and not self.has_custom_encoder:
            self.latent_dims = self.encoder_config.output_dims
        self.action_dist_cls = self._get_dist_cls_from_action_space(self.action_space)

    @property
    def has_custom_encoder(self) -> bool:
        """Whether :meth:`build_encoder` is overridden, so that the encoder's width is known only once it is built."""
        return type(self).build_encoder is not Catalog.build_encoder

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
        shared = bool(self.model_config.vf_share_layers)
        return ActorCriticEncoder(actor, None if shared else self._build_probed_encoder())

    def _build_probed_encoder(self) -> Encoder:
        encoder = as_encoder(self.build_encoder())
        was_training = encoder.training
        encoder.eval()  # one sample must not touch running statistics of batch norm
        with torch.no_grad():
            latent = encoder(zero_batch(self.observation_space)).latent
        encoder.train(was_training)
        dims = tuple(latent.shape[1:])
        custom = self.has_custom_encoder or self.encoder_config is None
        declared = None if custom else self.encoder_config.output_dims
        if latent.shape[0] != 1 or len(dims) != 1 or declared not in (None, dims):
            raise ValueError(
                explain_error(
                    f"{type(self).__name__}.build_encoder()",
                    expected=f"latents of shape (1, {'D' if declared is None else declared[0]}) for one observation",
                    got=f"shape {tuple(latent.shape)}",
                    remedy="Flatten the output, keep the batch dim, and let output_dims say its width.",
                )
            )
        self.latent_dims = dims
        return encoder

    def required_latent_dims(self) -> tuple[int, ...]:
        """``latent_dims``, known once the tree has run or a custom encoder was built.

        Raises:
            RuntimeError: If a custom encoder has not been built yet.
        """
        if self.latent_dims is None:
            raise RuntimeError(
                explain_error(
                    f"{type(self).__name__}.latent_dims",
                    expected="the width of the encoder's output",
                    got="None, since the custom encoder has not been built",
                    remedy="Call build_actor_critic_encoder() before building heads.",
                )
            )
        return self.latent_dims

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
        """The path taken through the tree, as readable text: spaces, rules, settings, nets and parameter counts."""
        lines = [f"{type(self).__name__}", f"  observation space  {self.observation_space}"]
        if not self.has_custom_encoder:
            lines += self._explain_table(encoder_rules, self.observation_space, "_get_encoder_config")
            lines += [f"    config   {_one_line(self.encoder_config)}", f"    latent   {self.latent_dims}"]
        else:
            lines += [f"    encoder  {type(self).__qualname__}.build_encoder() replaces the table"]
        lines += [f"    standardised by running mean/std: {'yes' if self.normalizes_observations else 'no'}"]
        lines += [f"  action space       {self.action_space}"]
        lines += self._explain_table(action_distribution_rules, self.action_space, "_get_dist_cls_from_action_space")
        dist = self.action_dist_cls
        lines += [f"    class    {dist.__name__}, {dist.required_input_dim(self.action_space)} inputs"]
        lines += self._explain_table(action_converter_rules, self.action_space, None)
        lines += ["  parts"]
        lines += [f"    {name:<22} {text}" for name, text in self._explain_parts().items()]
        return "\n".join(lines)

    def _explain_table(self, table: RuleTable[Any], space: Space, hook: str | None) -> list[str]:
        owner = next((c for c in type(self).__mro__ if hook is not None and hook in vars(c)), Catalog)
        if owner is not Catalog:
            return [f"    {table.what}: decided by {owner.__qualname__}.{hook}()"]
        rule, passed = table.decide(space, self.model_config, "space")
        lines = [f"    {table.what}: {rule.name}"]
        lines += [f"    passed over: {other.name}" for other in passed]
        lines += [f"    setting  {name} = {vars(self.model_config)[name]!r}" for name in rule.settings]
        return lines

    def _explain_parts(self) -> dict[str, str]:
        """Name → description of each net :meth:`explain` lists; subclasses add theirs."""
        with torch.random.fork_rng(devices=[]):
            return {"encoder": describe(as_encoder(self.build_encoder()))}


def describe(net: nn.Module) -> str:
    """Class, number of parameters and layers of ``net``, on one line."""
    count = sum(p.numel() for p in net.parameters())
    layers = [f"{m.in_features}→{m.out_features}" for m in net.modules() if isinstance(m, nn.Linear)]
    return f"{type(net).__name__}, {count:,} parameters" + (f": {' '.join(layers)}" if layers else "")


def _one_line(config: ModelConfig) -> str:
    if not dataclasses.is_dataclass(config):
        return repr(config)
    shown = {f.name: vars(config)[f.name] for f in dataclasses.fields(config) if f.repr and f.name != "init"}
    return f"{type(config).__name__}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"
