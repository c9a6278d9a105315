"""Base class of neural modules with a policy and critics."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn

from catalog.base import Tree
from catalog.encoders.actor_critic import ActorCriticEncoder
from rlmodule.data.columns import Batch, Columns
from rlmodule.modules.apis import InferenceOnlyAPI
from rlmodule.modules.rl_module import RLModule


class ActorCriticModule(RLModule, InferenceOnlyAPI):
    """Base class of modules with a policy and critics: observation normaliser → encoders → policy head, critics, and
    optional heads for additional outputs.

    ``forward_inference`` and ``forward_exploration`` return the inputs of the action distribution. ``forward_train``
    also returns the critics' latents as ``embeddings``, from which the critics compute values.

    Override points, in addition to those of :class:`RLModule`: ``setup_heads``.

    Attributes:
        policy_trains_shared_encoder: Whether the policy's loss trains an encoder that the policy shares with the
            critics.
    """

    policy_trains_shared_encoder: ClassVar[bool] = True
    pi_head: nn.Module

    def setup(self) -> None:
        catalog = self.catalog
        self.observation_normalizer = catalog.build_observation_normalizer()
        self.encoder = catalog.build_actor_critic_encoder()
        if not isinstance(self.encoder, ActorCriticEncoder):
            raise TypeError(
                f"{type(catalog).__name__}.build_actor_critic_encoder(): expected an "
                f"ActorCriticEncoder, got {type(self.encoder).__name__}. To use a custom encoder, "
                "override build_encoder(); this hook joins an actor's encoder and a critic's."
            )
        self.critic_reads_raw = catalog.reads_raw("value")
        self.setup_heads()
        self.extra_outputs = catalog.build_extra_outputs()

    @abstractmethod
    def setup_heads(self) -> None:
        """Create the policy head ``pi_head``, and then the nets that read the critics' latents. Called by :meth:`setup`
        after it has built the encoders."""

    def get_non_inference_attributes(self) -> list[str]:
        critic = [] if self.encoder.critic_is_stateful else ["encoder.critic_encoder"]
        return [*critic, "extra_outputs"]

    def net_names(self) -> dict[str, str]:
        critic = "actor" if self.catalog.model_config.vf_share_layers else "critic"
        encoders = {"actor encoder": "encoder.actor_encoder", "critic encoder": f"encoder.{critic}_encoder"}
        return encoders | {"policy head": "pi_head"}

    def get_initial_state(self) -> Tree | None:
        return self.encoder.get_initial_state()

    def _forward(self, batch: Mapping[str, Tree]) -> Batch:
        obs, state, starts = self._normalized(batch), batch.get(Columns.STATE_IN), batch.get(Columns.STARTS)
        of_critic = batch[Columns.OBS] if self.critic_reads_raw else obs
        latent, state = self.encoder.encode_actor(obs, state, starts=starts, critic_obs=of_critic)
        # forward() skips the hooks of Module.__call__, which cost time at each env step
        return self._policy(batch, self.pi_head.forward(latent), state)

    def _forward_train(self, batch: Mapping[str, Tree]) -> Batch:
        obs, state, starts = self._normalized(batch), batch.get(Columns.STATE_IN), batch.get(Columns.STARTS)
        of_critic = batch[Columns.OBS] if self.critic_reads_raw else obs
        latents = self.encoder(obs, state, starts=starts, critic_obs=of_critic)
        latent = latents.actor
        if self.encoder.shared and not self.policy_trains_shared_encoder:
            latent = latent.detach()
        out = self._policy(batch, self.pi_head(latent), latents.state) | {Columns.EMBEDDINGS: latents.critic}
        if self.extra_outputs is not None:
            by_function = {"policy": latents.actor, "value": latents.critic}
            raw = self.env_part(batch[Columns.OBS])
            out[Columns.EXTRA_OUTPUTS] = self.extra_outputs(self.env_part(obs), by_function, raw)
        return out

    def _critic_latents(self, batch: Mapping[str, Tree], embeddings: Tensor | None) -> Tensor:
        """Return the latents that the critics read: ``embeddings``, or if that is None, those of ``batch``."""
        if embeddings is not None:
            return embeddings
        obs = batch[Columns.OBS] if self.critic_reads_raw else self._normalized(batch)
        return self.encoder.encode_critic(obs, batch.get(Columns.STATE_IN), starts=batch.get(Columns.STARTS))
