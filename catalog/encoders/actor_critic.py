"""The actor-critic encoder, which is one encoder for both policy and value function, or one for each."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from catalog.base import ActorCriticOutput, Encoder, EncoderOutput, ModelConfig, Tree, as_encoder, explain_input
from catalog.encoders.memory import encode_steps

# Function that calls an inner encoder with its forward hooks, but without the explanation of errors that
# `Encoder.__call__` adds.
_call = nn.Module.__call__


@dataclass(frozen=True, kw_only=True)
class ActorCriticEncoderConfig(ModelConfig):
    """Config of an actor and a critic encoder. ``output_dims`` are those of the actor.

    Attributes:
        base_encoder_config: Config of the actor's encoder, and of a separate critic's encoder unless
            ``critic_encoder_config`` is set.
        shared: Whether policy and value function share one encoder.
        critic_encoder_config: Config of a separate critic's encoder, if it differs from the actor's.

    Raises:
        ValueError: If ``critic_encoder_config`` is set although the encoder is shared.
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
    """Encodes observations for the policy and the value function.

    With a shared encoder, the state is that of the encoder. With separate encoders, it is a dict with the states of the
    stateful ones, ``{"actor": ..., "critic": ...}``, or None if neither is stateful.

    Args:
        actor: The actor's encoder.
        critic: The encoder of a separate critic; None shares the actor's.

    Attributes:
        is_stateful: Whether at least one of two separate encoders has a state; False for a shared encoder.
        critic_is_stateful: Whether a separate critic has a state. If so, the critic's encoder also runs when the policy
            acts, and inference-only copies keep ``critic_encoder``.
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

    if not TYPE_CHECKING:  # type checkers must see the signature of nn.Module

        def __call__(self, obs: Tree, *args: Any, **kwargs: Any) -> Any:
            try:
                return _call(self, obs, *args, **kwargs)
            except (AttributeError, KeyError, TypeError) as error:
                explain_input(self, obs, error)
                raise

    def forward(
        self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None, critic_obs: Tree | None = None
    ) -> ActorCriticOutput:
        """Return the latents of actor and critic (None without a critic encoder), and the next state.

        Args:
            obs: Observations, with the leading dims that :class:`Encoder` describes.
            state: The recurrent state before the first step, ``[B, ...]``; None for the initial state.
            starts: Steps that start an episode, bool ``[T, B]``; None for no such step.
            critic_obs: Observations for a separate critic; None gives it ``obs``.
        """
        actor = self._run("actor", obs, state, starts)
        if self.shared:
            return ActorCriticOutput(actor.latent, actor.latent, actor.state)
        if self.critic_encoder is None:
            return ActorCriticOutput(actor.latent, None, self._joined(actor.state, None))
        critic = self._run("critic", obs if critic_obs is None else critic_obs, state, starts)
        return ActorCriticOutput(actor.latent, critic.latent, self._joined(actor.state, critic.state))

    def encode_actor(
        self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None, critic_obs: Tree | None = None
    ) -> EncoderOutput:
        """Return the actor's latent and the next state of both encoders; arguments as in :meth:`forward`.

        The critic's encoder runs only if it is separate and stateful. The actor's forward hooks do not run, because
        checking for them takes as long as a small layer.
        """
        actor = self._run("actor", obs, state, starts, with_hooks=False)
        if self.shared:
            return actor
        critic_state = None
        if self.critic_is_stateful:
            critic_state = self._run("critic", obs if critic_obs is None else critic_obs, state, starts).state
        return EncoderOutput(actor.latent, self._joined(actor.state, critic_state))

    def encode_critic(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> Tensor:
        """Return the critic's latent without running a separate actor. Raise RuntimeError if an inference-only copy has
        no critic encoder."""
        return self._run("actor" if self.shared else "critic", obs, state, starts).latent

    def _run(
        self, function: str, obs: Tree, state: Tree | None, starts: Tensor | None, with_hooks: bool = True
    ) -> EncoderOutput:
        """Run the encoder of ``function``, which is "actor" or "critic".

        Of two separate encoders, a stateful one gets its own part of ``state``. If only the other encoder is stateful,
        this encoder gets the sequences ``[T, B, ...]`` as one batch of steps. ``with_hooks`` says whether its forward
        hooks run.
        """
        encoder = self._modules[function + "_encoder"]  # an attribute would be searched for in three dicts
        if encoder is None:
            raise RuntimeError(
                "ActorCriticEncoder: expected an encoder with a critic, got an inference-only "
                "copy. Compute values with the learner's module."
            )
        run = partial(_call, encoder) if with_hooks else encoder.forward
        if self.shared:
            return run(obs, state, starts=starts)
        if not self.is_stateful:
            return run(obs)
        if not (self.actor_is_stateful if function == "actor" else self.critic_is_stateful):
            return EncoderOutput(encode_steps(run, obs))
        return run(obs, None if state is None else state[function], starts=starts)

    def _joined(self, actor: Tree | None, critic: Tree | None) -> dict[str, Tree] | None:
        """Join the states of both encoders into one dict; return None if neither is stateful."""
        states = {"actor": actor} if self.actor_is_stateful else {}
        if self.critic_is_stateful:
            states["critic"] = critic
        return states or None
