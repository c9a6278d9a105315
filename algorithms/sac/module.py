"""SAC's nets: the catalog that chooses them and the module that assembles them."""

import math
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from catalog.critics import ActionCriticCatalog, ActionCriticModelConfig, CriticSettings, num_joint_actions
from catalog.distributions.base import Distribution
from catalog.distributions.categorical import Choices
from catalog.distributions.deterministic import DeterministicAction
from catalog.distributions.gaussian import SquashedGaussian, is_float_box
from catalog.distributions.nested import leaf_classes
from catalog.settings import setting
from rlmodule.modules.action_critic import ActionCriticModule
from rlmodule.modules.apis import TemperatureAPI


class SACNetSettings(CriticSettings):
    """Settings of SAC's nets, shared by the algorithm's config and the model config."""

    initial_alpha: float = setting(
        1.0, "Initial temperature: the weight of the policy's entropy, in units of reward per nat.", gt=0
    )


class SACModelConfig(SACNetSettings, ActionCriticModelConfig):
    """Settings of SAC's nets: those of :class:`ActionCriticModelConfig`, and the initial temperature."""


class SACCatalog(ActionCriticCatalog):
    """Chooses SAC's nets: a policy and critics. Actions of a bounded Box have a :class:`SquashedGaussian`.

    The critics predict the values of all joint actions of a Discrete or MultiDiscrete at once, if there are at most
    256 of them. All other critics get the action as an input.

    Override points: those of :class:`ActionCriticCatalog`.

    Raises:
        ValueError: As :class:`Catalog`. Also if a Box of actions has no bounds, if ``autoregressive_actions`` or
            ``action_embeddings_key`` is set, or if an action has a :class:`DeterministicAction`, which has no entropy.
        TypeError: If the distribution cannot draw samples with a gradient from given noise.
    """

    model_config_class = SACModelConfig

    def _open_settings(self) -> dict[str, tuple[Any, str]]:
        return super()._open_settings() | {"normalize_observations": self._normalizes_for_box_actions("SAC")}

    def _get_dist_cls_from_action_space(self, action_space: Space) -> type[Distribution]:
        if isinstance(action_space, spaces.Box) and is_float_box(action_space):
            return SquashedGaussian
        return super()._get_dist_cls_from_action_space(action_space)

    def build_temperature(self) -> "Temperature":
        """Build the temperature, which starts at the setting ``initial_alpha``."""
        config = self.model_config
        assert isinstance(config, SACModelConfig)
        return Temperature(config.initial_alpha)

    def _explain_further_parts(self) -> dict[str, nn.Module]:
        return super()._explain_further_parts() | {"temperature": self.build_temperature()}

    @property
    def values_all(self) -> bool:
        """Whether the critics predict the values of all joint actions in one pass. Distributions of returns of several
        actions have no common quantiles, so critics that predict distributions read the action."""
        if self.model_config.outputs_per_value > 1:
            return False
        return num_joint_actions(self.action_space) > 0 and issubclass(self.bound_dist_cls, Choices)

    def _check_functions(self) -> None:
        super()._check_functions()
        name, dist_cls = type(self).__name__, self.bound_dist_cls
        for setting_name, is_used, off in (
            ("autoregressive_actions", self.model_config.autoregressive_actions, "False"),
            ("action_embeddings_key", self.action_embeddings is not None, "None"),
        ):
            if is_used:
                raise ValueError(
                    f"model_config.{setting_name}: expected {off}, since the critics of {name} rate whole "
                    f"actions, got {getattr(self.model_config, setting_name)!r}. Set it to {off}, or use PPO."
                )
        if fixed := [keys for keys, leaf in leaf_classes(dist_cls) if issubclass(leaf, DeterministicAction)]:
            path = "".join(f"[{key!r}]" for key in fixed[0])
            raise ValueError(
                f"distribution of actions{path} of {name}: expected one with entropy, which the temperature weighs, "
                "got DeterministicAction. Leave custom_action_dist out; for bounded boxes alone, there is TD3."
            )
        width = dist_cls.required_input_dim(self.action_space)
        noise = dist_cls.draw_noise(np.random.default_rng(0), 1, width)
        if noise is None:
            raise TypeError(
                f"distribution of the actions of {name}: expected one with draw_noise() and rsample_with_logp(), got "
                f"{dist_cls.__name__}, which cannot sample from noise. Leave custom_action_dist out, or write both."
            )
        if not self.values_all:
            dist_cls.from_logits(torch.zeros(1, width)).rsample_with_logp(noise)  # raises if there is no gradient


class Temperature(nn.Module):
    """Holds the temperature α as the scalar parameter ``log_alpha``, its logarithm.

    Args:
        initial: The initial temperature.
    """

    def __init__(self, initial: float) -> None:
        super().__init__()
        self.log_alpha = nn.Parameter(torch.tensor(math.log(initial)))


class SACModule(ActionCriticModule, TemperatureAPI):
    """SAC's network: the policy and critics of :class:`ActionCriticModule`, and the temperature."""

    def setup(self) -> None:
        self._check_catalog(SACModule, SACCatalog)
        super().setup()
        assert isinstance(self.catalog, SACCatalog)
        self.temperature = self.catalog.build_temperature()

    def get_non_inference_attributes(self) -> list[str]:
        return [*super().get_non_inference_attributes(), "temperature"]

    def log_temperature(self) -> Tensor:
        return self.temperature.log_alpha
