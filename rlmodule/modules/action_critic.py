"""Base class of neural modules with a policy and critics that predict the value of an observation and an action."""

from collections.abc import Mapping

from torch import Tensor

from catalog.base import Tree
from catalog.critics import ActionCriticCatalog
from rlmodule.data.columns import Batch, Columns
from rlmodule.modules.apis import ActionValueAPI, InferenceOnlyAPI
from rlmodule.modules.rl_module import RLModule


class ActionCriticModule(RLModule, ActionValueAPI, InferenceOnlyAPI):
    """Base class of modules with a policy and critics: observation normaliser → encoders → policy head, critics, and
    optional heads for additional outputs.

    ``forward_inference`` and ``forward_exploration`` return the inputs of the action distribution. ``forward_train``
    also returns the critics' latents as ``embeddings``, from which :meth:`compute_action_values` computes values. If
    the policy and the critics share an encoder, the policy's loss does not train it.
    """

    catalog: ActionCriticCatalog

    def setup(self) -> None:
        catalog = self.catalog
        self.observation_normalizer = catalog.build_observation_normalizer()
        self.encoder = catalog.build_actor_critic_encoder()
        self.critic_reads_raw = catalog.reads_raw("value")
        self.pi_head = self._probed(catalog.build_pi_head(), "policy", catalog.action_head_dim, "build_pi_head()")
        self.qf = catalog.build_qf()
        self.extra_outputs = catalog.build_extra_outputs()

    def get_non_inference_attributes(self) -> list[str]:
        critic = [] if self.encoder.critic_is_stateful else ["encoder.critic_encoder"]
        return [*critic, "qf", "extra_outputs"]

    def net_names(self) -> dict[str, str]:
        critic = "actor" if self.catalog.model_config.vf_share_layers else "critic"
        encoders = {"actor encoder": "encoder.actor_encoder", "critic encoder": f"encoder.{critic}_encoder"}
        return encoders | {"policy head": "pi_head", "critics": "qf"}

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
        latent = latents.actor.detach() if self.encoder.shared else latents.actor
        out = self._policy(batch, self.pi_head(latent), latents.state) | {Columns.EMBEDDINGS: latents.critic}
        if self.extra_outputs is not None:
            by_function, raw = {"policy": latents.actor, "value": latents.critic}, self.env_part(batch[Columns.OBS])
            out[Columns.EXTRA_OUTPUTS] = self.extra_outputs(self.env_part(obs), by_function, raw)
        return out

    @property
    def values_all_actions(self) -> bool:
        return self.catalog.values_all

    def critic_names(self) -> tuple[str, ...]:
        return ("qf", "encoder" if self.encoder.shared else "encoder.critic_encoder")

    def compute_action_values(
        self,
        batch: Mapping[str, Tree],
        actions: Tree | None,
        embeddings: Tensor | None = None,
        *,
        frozen: bool = False,
        num_critics: int | None = None,
    ) -> Tensor:
        if embeddings is None:
            state, starts = batch.get(Columns.STATE_IN), batch.get(Columns.STARTS)
            obs = batch[Columns.OBS] if self.critic_reads_raw else self._normalized(batch)
            embeddings = self.encoder.encode_critic(obs, state, starts=starts)
        if embeddings.dim() > 2:
            raise ValueError(
                f"{type(self).__name__}.compute_action_values(): expected rows, with embeddings [B, D], got sequences "
                f"with embeddings {tuple(embeddings.shape)}. Flatten both: embeddings.flatten(0, 1), and the actions."
            )
        return self.qf(embeddings, actions, frozen=frozen, num_critics=num_critics)
