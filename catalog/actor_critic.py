"""The actor-critic encoder: one net for both functions, or one each."""

from dataclasses import dataclass

from torch import Tensor, nn

from catalog.base import ActorCriticOutput, Encoder, ModelConfig, Tree, as_encoder
from catalog.errors import explain_error


@dataclass(frozen=True, kw_only=True)
class ActorCriticEncoderConfig(ModelConfig):
    """An actor and a critic encoder from one config; ``shared`` makes them the same net."""

    base_encoder_config: ModelConfig
    shared: bool = False

    @property
    def output_dims(self) -> tuple[int, ...]:
        return self.base_encoder_config.output_dims

    def build(self) -> "ActorCriticEncoder":
        actor = as_encoder(self.base_encoder_config.build())
        return ActorCriticEncoder(actor, None if self.shared else as_encoder(self.base_encoder_config.build()))


class ActorCriticEncoder(nn.Module):
    """Latents for the policy and the value function.

    Args:
        actor: The actor's encoder.
        critic: The critic's own encoder; None shares the actor's.
    """

    def __init__(self, actor: Encoder, critic: Encoder | None) -> None:
        super().__init__()
        self.actor_encoder = actor
        self.critic_encoder: Encoder | None = critic
        self.shared = critic is None

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> ActorCriticOutput:
        """Both latents; ``critic`` is None in an inference-only copy, whose critic encoder is gone."""
        actor = self.actor_encoder(obs, state, starts=starts)
        if self.shared:
            return ActorCriticOutput(actor.latent, actor.latent, actor.state)
        critic = None if self.critic_encoder is None else self.critic_encoder(obs, starts=starts).latent
        return ActorCriticOutput(actor.latent, critic, actor.state)

    def encode_critic(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> Tensor:
        """The critic's latent alone, without running a separate actor.

        Raises:
            RuntimeError: If this is an inference-only copy, whose own critic encoder is gone.
        """
        encoder = self.actor_encoder if self.shared else self.critic_encoder
        if encoder is None:
            raise RuntimeError(
                explain_error(
                    "ActorCriticEncoder.encode_critic",
                    expected="an encoder with a critic",
                    got="an inference-only copy",
                    remedy="Compute values with the learner's module.",
                )
            )
        return encoder(obs, state, starts=starts).latent
