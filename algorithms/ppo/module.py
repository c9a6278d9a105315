"""PPO's nets: the catalog that chooses them and the module that assembles them."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from catalog.activations import Init
from catalog.base import Tree
from catalog.catalog import Catalog
from catalog.encoders.preprocessing import RunningMoments
from catalog.hooks import refuses_foreign
from catalog.model_config import DefaultModelConfig
from rlmodule.data.columns import Columns
from rlmodule.modules.actor_critic import ActorCriticModule
from rlmodule.modules.apis import ValueFunctionAPI

POLICY_INIT = Init(kernel="orthogonal_", kernel_kwargs={"gain": 0.01}, bias="zeros_")
"""Initialisation of policy heads, with weights so small that the first policy hardly depends on the observation."""
VALUE_INIT = Init(kernel="orthogonal_", kernel_kwargs={"gain": 1.0}, bias="zeros_")
PREDICTED, PREDICTION = "rnd_target", "rnd"
"""Names of the outputs for random network distillation: of a net that stays as it began, and of the one that learns to
predict its outputs."""


def distills(model_config: DefaultModelConfig) -> bool:
    """Return whether nets with ``model_config`` have the outputs for random network distillation."""
    return {PREDICTED, PREDICTION} <= model_config.functions.keys()


class PPOCatalog(Catalog):
    """Chooses PPO's nets: an actor-critic encoder, a policy head and a value head.

    Override points, in addition to those of :class:`Catalog`: ``build_pi_head``, ``build_vf_head``.
    """

    functions = ("policy", "value")

    def _open_settings(self) -> dict[str, tuple[Any, str]]:
        config = self.model_config
        policy, value = config.for_function("policy"), config.for_function("value")
        if policy.is_recurrent and policy.encoder_settings() == value.encoder_settings():
            share = (True, "PPO's default for recurrent nets: a critic's own would have to run with the env")
        else:
            share = (False, "the default")
        # otherwise, what is new in a field of small numbers would hardly count
        normalize = self._normalizes_for_box_actions("PPO", "with rnd_coeff" if distills(config) else "")
        return {"normalize_observations": normalize, "vf_share_layers": share}

    @refuses_foreign
    def build_pi_head(self) -> nn.Module:
        """Build the policy head, from the actor's latent to the inputs of the action distribution.

        With action embeddings, the head outputs an intent vector instead. Its dot product with an action's embedding is
        the action's logit.
        """
        dist_cls, config = self.bound_dist_cls, self.for_function("policy").model_config
        log_stds = dist_cls.log_std_indices(self.action_space)
        return self.head_config("policy", self.action_head_dim, POLICY_INIT).with_log_stds(log_stds, config).build()

    @refuses_foreign
    def build_vf_head(self) -> nn.Module:
        """Build the value head, from the critic's latent to one value ``[..., 1]``, in the value normaliser's units."""
        return self.head_config("value", 1, VALUE_INIT).build()

    def _explain_parts(self) -> dict[str, nn.Module]:
        encoders = self._explain_actor_critic_encoder()
        heads = {"policy head": self.build_pi_head(), "value head": self.build_vf_head()}
        return encoders | heads | self._explain_further_parts()


class PPOModule(ActorCriticModule, ValueFunctionAPI):
    """PPO's network: observation normaliser → actor-critic encoder → policy head, value head and any extra outputs.

    ``forward_inference`` and ``forward_exploration`` return the inputs of the action distribution. ``forward_train``
    returns them together with the critic's latents, from which :meth:`compute_values` computes values.
    """

    catalog: PPOCatalog

    def setup(self) -> None:
        self._check_catalog(PPOModule, PPOCatalog)
        super().setup()
        normalize_values = self.catalog.model_config.normalize_values
        self.value_normalizer = RunningMoments(decay=0.9) if normalize_values else None
        self.novelty_moments: RunningMoments | None = None
        if self.extra_outputs is not None and distills(self.given_config):
            self.extra_outputs.freeze(PREDICTED)
            self.extra_outputs.apart = frozenset({PREDICTED, PREDICTION})
            self.novelty_moments = RunningMoments()

    def setup_heads(self) -> None:
        catalog = self.catalog
        self.pi_head = self._probed(catalog.build_pi_head(), "policy", catalog.action_head_dim, "build_pi_head()")
        self.vf_head = self._probed(catalog.build_vf_head(), "value", 1, "build_vf_head()")

    def get_non_inference_attributes(self) -> list[str]:
        return [*super().get_non_inference_attributes(), "vf_head", "value_normalizer", "novelty_moments"]

    def net_names(self) -> dict[str, str]:
        return super().net_names() | {"value head": "vf_head"}

    def compute_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        values = self.vf_head(self._critic_latents(batch, embeddings)).squeeze(-1)
        normalizer = self.value_normalizer
        if normalizer is None:
            return values
        # in float32: 16 bits are too few for a mean far from zero
        return torch.addcmul(normalizer.mean.float(), values.float(), normalizer.std.float())

    def compute_novelty(self, obs: Tree) -> Tensor:
        """Return how new observations ``[B, *obs_shape]`` are, ``[B]``: the mean squared error of the net that predicts
        the outputs of the one that stays as it began (random network distillation, Burda et al. 2018, section 2.2)."""
        nets = self.extra_outputs
        assert nets is not None
        seen, raw = self.env_part(self._normalized({Columns.OBS: obs})), self.env_part(obs)
        predicted, prediction = (nets.output_of(name, seen, raw) for name in (PREDICTED, PREDICTION))
        return (prediction - predicted).square().mean(-1)

    def value_scale(self) -> Tensor:
        return super().value_scale() if self.value_normalizer is None else self.value_normalizer.std.float()

    def has_value_statistics(self) -> Tensor:
        return super().has_value_statistics() if self.value_normalizer is None else self.value_normalizer.count > 0

    def update_value_statistics(self, targets: Tensor) -> None:
        if self.value_normalizer is not None:
            self.value_normalizer.update(targets)
