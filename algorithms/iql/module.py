"""IQL's nets: the catalog that chooses them and the module that assembles them."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from catalog.base import Tree
from catalog.critics import ActionCriticCatalog, ActionCriticConfig, ActionCriticModelConfig
from catalog.distributions.autoregressive import AutoregressiveDistribution
from catalog.distributions.deterministic import DeterministicAction
from catalog.distributions.nested import leaf_classes
from catalog.hooks import refuses_foreign
from rlmodule.modules.action_critic import ActionCriticModule
from rlmodule.modules.apis import StateValueAPI


class IQLModelConfig(ActionCriticModelConfig):
    """Settings of IQL's nets: those of :class:`ActionCriticModelConfig`. The log standard deviations of the policy do
    not depend on the state."""

    free_log_std = True


class IQLCatalog(ActionCriticCatalog):
    """Chooses IQL's nets: a policy, critics, and a net of state values, which has the layers of a critic without the
    action.

    Override points, in addition to those of :class:`ActionCriticCatalog`: ``build_vf``.

    Raises:
        ValueError: As :class:`Catalog`. Also if an action has a :class:`DeterministicAction`, which has no
            log-probability.
    """

    model_config_class = IQLModelConfig

    def _open_settings(self) -> dict[str, tuple[Any, str]]:
        return super()._open_settings() | {"normalize_observations": self._normalizes_for_box_actions("IQL")}

    @refuses_foreign
    def build_vf(self) -> nn.Module:
        """Build the net of state values, from the critics' latent ``[..., D]`` to ``[..., 1]``. Call
        :meth:`build_actor_critic_encoder` first, which sets the width of that latent."""
        return StateValue(self.critic_config())

    def _check_functions(self) -> None:
        super()._check_functions()
        dist_cls = self.bound_dist_cls
        if issubclass(dist_cls, AutoregressiveDistribution):
            dist_cls = dist_cls.independent
        for _, leaf in leaf_classes(dist_cls):
            if issubclass(leaf, DeterministicAction):
                raise ValueError(
                    f"distribution of the actions of {type(self).__name__}: expected one with log-probabilities, by "
                    "which the policy learns, got DeterministicAction. Leave custom_action_dist out; for bounded boxes "
                    "alone, there is TD3Config.td3_bc()."
                )

    def _explain_further_parts(self) -> dict[str, nn.Module]:
        return super()._explain_further_parts() | {"value net": self.build_vf()}


class StateValue(nn.Module):
    """The layers of a critic without the action.

    Args:
        config: Config of the critics.
    """

    def __init__(self, config: ActionCriticConfig) -> None:
        super().__init__()
        self.body = config.body.build()
        head = dataclasses.replace(config.head, input_dims=config.body.output_dims, output_layer_dim=1)
        self.head = head.build()

    def forward(self, latent: Tensor) -> Tensor:
        """Map latents ``[..., D]`` to values ``[..., 1]``."""
        return self.head(self.body(latent).latent)


class IQLModule(ActionCriticModule, StateValueAPI):
    """IQL's network: the policy and critics of :class:`ActionCriticModule`, and a net of state values."""

    def setup(self) -> None:
        self._check_catalog(IQLModule, IQLCatalog)
        super().setup()

    def setup_heads(self) -> None:
        super().setup_heads()
        assert isinstance(self.catalog, IQLCatalog)
        self.vf = self.catalog.build_vf()

    def get_non_inference_attributes(self) -> list[str]:
        return [*super().get_non_inference_attributes(), "vf"]

    def net_names(self) -> dict[str, str]:
        return super().net_names() | {"value net": "vf"}

    def value_names(self) -> tuple[str, ...]:
        return ("vf",)

    def compute_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        return self.vf(self._critic_latents(batch, embeddings)).squeeze(-1)
