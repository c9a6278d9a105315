"""Custom encoders that a setting names, for the whole observation or a part of it."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from gymnasium import Space
from torch import nn

from catalog.base import Encoder, ModelConfig, as_encoder, encoder_rules
from catalog.encoders.shape_checks import check_encoder
from catalog.model_config import DefaultModelConfig
from catalog.registry import models
from catalog.rules import Node


@dataclass(frozen=True, kw_only=True)
class CustomEncoderConfig(ModelConfig):
    """Config of a custom encoder. ``model(space, **options)`` returns an :class:`Encoder`, or any other module from
    batched raw observations to latents.

    Attributes:
        space: Space of one observation.
        model: Class or function that returns the module.
        options: Keyword arguments for ``model``.
        where: Name of the model in error messages.

    Raises:
        ValueError: If ``model`` does not accept these arguments.
    """

    space: Space
    model: Callable[..., nn.Module]
    options: Mapping[str, Any] = field(default_factory=dict)
    where: str = field(default="CustomEncoderConfig.model", repr=False)

    def __post_init__(self) -> None:
        try:
            inspect.signature(self.model).bind(self.space, **self.options)
        except (TypeError, ValueError) as error:  # ValueError: some callables, such as dict, have no signature
            keywords = "".join(f", {name}=..." for name in self.options)
            raise ValueError(
                f"{self.where}: expected a class or function that can be called as (observation_space{keywords}), got "
                f"{self.model!r}: {error}. Change its arguments, or custom_model_config."
            ) from error

    @cached_property
    def output_dims(self) -> tuple[int, ...]:  # type: ignore[override]  # a property, computed once
        """Shape of one latent. To find it, the property builds the model and calls it once, but leaves torch's random
        state as it was.

        Raises:
            ValueError: If the model does not accept observations, or does not return one latent for each.
        """
        with torch.random.fork_rng(devices=[]):
            return check_encoder(self.build(), self.space, self.where, path=self.where)

    def build(self) -> Encoder:
        """Build a new encoder.

        Raises:
            TypeError: If ``model`` does not return a module.
        """
        return as_encoder(self.model(self.space, **self.options), self.where)


@encoder_rules.register(
    Space,
    name="custom_model",
    when=lambda space, model_config: model_config.custom_model is not None,
)
def _(space: Space, model_config: DefaultModelConfig, node: Node[ModelConfig]) -> CustomEncoderConfig:
    where = f"custom_model at {node.path}"
    model = models.find(model_config.custom_model, where)  # type: ignore[arg-type]  # the rule applies only if it is not None
    return CustomEncoderConfig(space=space, model=model, options=model_config.custom_model_config, where=where)
