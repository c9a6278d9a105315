"""The actor-critic encoder: one net for both functions, or one each."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from catalog.base import ActorCriticOutput, Encoder, EncoderOutput, ModelConfig, Tree, as_encoder, explain_input
from catalog.encoders.memory import encode_steps

_call = nn.Module.__call__
"""Calls an encoder and its hooks; the one that is called from outside explains wrong inputs."""


@dataclass(frozen=True, kw_only=True)
class ActorCriticEncoderConfig(ModelConfig):
    """An actor and a critic encoder; ``output_dims`` are the actor's.

    Attributes:
        base_encoder_config: The actor's, and the critic's unless it has its own.
        shared: Whether both functions use the same net.
        critic_encoder_config: A critic of another kind.

    Raises:
        ValueError: If a shared encoder is given a critic's own config.
    """

    base_encoder_config: ModelConfig
    shared: bool = False
    critic_encoder_config: ModelConfig | None = None

    def __post_init__(self) -> None:
        if self.shared and self.critic_encoder_config is not None:
            raise ValueError(
                "ActorCriticEncoderConfig.critic_encoder_config: expected None, since shared is "
                f"True, got {type(self.critic_encoder_config).__name__}. Set shared=False, or "
                "leave it out."
            )

    @property
    def output_dims(self) -> tuple[int, ...]:
        return self.base_encoder_config.output_dims

    def build(self) -> "ActorCriticEncoder":
        actor = as_encoder(self.base_encoder_config.build())
        if self.shared:
            return ActorCriticEncoder(actor, None)
        critic_config = self.critic_encoder_config or self.base_encoder_config
        return ActorCriticEncoder(actor, as_encoder(critic_config.build()))


class ActorCriticEncoder(nn.Module):
    """Latents for the policy and the value function.

    The state of a shared encoder is that encoder's own. Separate ones have a dict of the states of those that are
    stateful, ``{"actor": ..., "critic": ...}``; None if neither is.

    Args:
        actor: The actor's encoder.
        critic: The critic's own encoder; None shares the actor's.

    Attributes:
        is_stateful: Whether one of separate encoders has a state.
        critic_is_stateful: Whether the critic has a state of its own, so that it has to run with the env: only if it
            has not may an inference-only copy go without ``critic_encoder``.
    """

    def __init__(self, actor: Encoder, critic: Encoder | None) -> None:
        super().__init__()
        self.actor_encoder = actor
        self.critic_encoder: Encoder | None = critic
        self.shared = critic is None
        self.actor_is_stateful = actor.get_initial_state() is not None
        self.critic_is_stateful = critic is not None and critic.get_initial_state() is not None
        self.is_stateful = critic is not None and (self.actor_is_stateful or self.critic_is_stateful)

    def get_initial_state(self) -> Tree | None:
        """Return the state of one sequence before its first step, without a batch dim; None if stateless."""
        actor = self.actor_encoder.get_initial_state()
        if self.shared:
            return actor
        critic = self.critic_encoder
        return self._joined(actor, None if critic is None else critic.get_initial_state())

    if not TYPE_CHECKING:  # checkers must keep on seeing nn.Module's

        def __call__(self, obs: Tree, *args: Any, **kwargs: Any) -> Any:
            try:
                return _call(self, obs, *args, **kwargs)
            except (AttributeError, KeyError, TypeError) as error:
                explain_input(self, obs, error)
                raise

    def forward(
        self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None, critic_obs: Tree | None = None
    ) -> ActorCriticOutput:
        """Return both latents; ``critic`` is None in an inference-only copy, whose critic encoder is gone.

        Args:
            obs: Observations.
            state: The recurrent state, if there is one.
            starts: Where episodes start.
            critic_obs: The observations as a critic's own encoder reads them; None for ``obs``.
        """
        if self.shared:
            latent, state = _call(self.actor_encoder, obs, state, starts=starts)
            return ActorCriticOutput(latent, latent, state)
        actor = self._run("actor", obs, state, starts)
        if self.critic_encoder is None and not self.critic_is_stateful:
            return ActorCriticOutput(actor.latent, None, self._joined(actor.state, None))
        critic = self._run("critic", obs if critic_obs is None else critic_obs, state, starts)
        return ActorCriticOutput(actor.latent, critic.latent, self._joined(actor.state, critic.state))

    def encode_actor(
        self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None, critic_obs: Tree | None = None
    ) -> EncoderOutput:
        """Return the actor's latent, for acting, and the whole next state: a critic runs only if it is stateful.

        Forward hooks of the actor's encoder are not called: asking for them costs as much as a small layer.
        """
        if self.shared:
            encoder = self._modules["actor_encoder"]  # attribute access to a submodule searches three dicts
            assert encoder is not None
            return encoder.forward(obs, state, starts=starts)
        actor = self._run("actor", obs, state, starts, with_hooks=False)
        critic_state = None
        if self.critic_is_stateful:
            critic_state = self._run("critic", obs if critic_obs is None else critic_obs, state, starts).state
        return EncoderOutput(actor.latent, self._joined(actor.state, critic_state))

    def encode_critic(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> Tensor:
        """Return the critic's latent alone, without running a separate actor.

        Raises:
            RuntimeError: If this is an inference-only copy, whose own critic encoder is gone.
        """
        if self.shared:
            return _call(self.actor_encoder, obs, state, starts=starts).latent
        return self._run("critic", obs, state, starts).latent

    def _run(
        self, function: str, obs: Tree, state: Tree | None, starts: Tensor | None, with_hooks: bool = True
    ) -> EncoderOutput:
        """Run one of two encoders with its part of the state or, if the other one is stateful, on all steps at once."""
        encoder = self._modules[function + "_encoder"]
        if encoder is None:
            raise RuntimeError(
                "ActorCriticEncoder: expected an encoder with a critic, got an inference-only "
                "copy. Compute values with the learner's module."
            )
        run = partial(_call, encoder) if with_hooks else encoder.forward
        if not self.is_stateful:
            return run(obs)
        if not (self.actor_is_stateful if function == "actor" else self.critic_is_stateful):
            return EncoderOutput(encode_steps(run, obs))
        return run(obs, None if state is None else state[function], starts=starts)

    def _joined(self, actor: Tree | None, critic: Tree | None) -> dict[str, Tree] | None:
        """Return the state of separate encoders from theirs."""
        states = {"actor": actor} if self.actor_is_stateful else {}
        if self.critic_is_stateful:
            states["critic"] = critic
        return states or None
