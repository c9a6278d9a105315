"""Shared and separate encoders: which gradients go where, whose states they have, what an inference-only copy lacks."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from catalog.activations import Init
from catalog.base import Encoder, EncoderOutput, ModuleEncoder, as_encoder
from catalog.encoders.actor_critic import ActorCriticEncoder, ActorCriticEncoderConfig
from catalog.encoders.mlp import MLPEncoderConfig
from catalog.encoders.recurrent import RecurrentEncoderConfig

BASE = MLPEncoderConfig(input_dims=(3,), hidden_layer_dims=(8,))
RECURRENT = RecurrentEncoderConfig(
    tokenizer_config=BASE, hidden_dim=8, init=Init(kernel="normal_", bias="normal_"), recurrent_layer_type="lstm"
)
SEQUENCES = torch.randn(6, 4, 3, generator=torch.Generator().manual_seed(1))
STARTS = torch.rand(6, 4, generator=torch.Generator().manual_seed(2)) < 0.3
OBS = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def encoder(shared: bool) -> ActorCriticEncoder:
    config = ActorCriticEncoderConfig(base_encoder_config=BASE, shared=shared)
    assert config.output_dims == (8,)
    return config.build()


def has_gradient(net: nn.Module) -> bool:
    grads = [p.grad is not None and bool(p.grad.abs().sum() > 0) for p in net.parameters()]
    assert len(set(grads)) == 1
    return grads[0]


def test_a_shared_trunk_exists_once_and_is_reached_by_both_heads() -> None:
    net, policy, value = encoder(shared=True), nn.Linear(8, 2), nn.Linear(8, 1)
    assert sum(p.numel() for p in net.parameters()) == 3 * 8 + 8
    grads = []
    for use in ("policy", "value", "both"):
        net.zero_grad()
        out = net(OBS)
        assert out.critic is out.actor
        loss = torch.zeros(())
        if use != "value":
            loss = loss + policy(out.actor).square().sum()
        if use != "policy":
            loss = loss + value(out.critic).square().sum()
        loss.backward()
        grads.append(torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]))
    assert all(bool(grad.abs().sum() > 0) for grad in grads)
    torch.testing.assert_close(grads[0] + grads[1], grads[2])


@pytest.mark.parametrize("use", ["actor", "critic"])
def test_separate_encoders_do_not_hear_each_other(use: str) -> None:
    net = encoder(shared=False)
    assert net.critic_encoder is not None
    getattr(net(OBS), use).square().sum().backward()
    assert has_gradient(net.actor_encoder) is (use == "actor")
    assert has_gradient(net.critic_encoder) is (use == "critic")


@pytest.mark.parametrize("shared", [True, False])
def test_either_latent_alone_is_the_one_of_both(shared: bool) -> None:
    net = encoder(shared)
    both = net(OBS)
    torch.testing.assert_close(net.actor_encoder(OBS).latent, both.actor)
    torch.testing.assert_close(net.encode_critic(OBS), both.critic)
    assert torch.equal(both.actor, both.critic) is shared


def test_interleaved_passes_do_not_disturb_each_other() -> None:
    net = encoder(shared=False)
    first = net(OBS)
    net(OBS + 1)
    torch.testing.assert_close(first.critic, net.encode_critic(OBS))


def test_an_inference_only_copy_has_no_critic_and_does_not_pass_off_the_actor_as_one() -> None:
    net = encoder(shared=False)
    net.critic_encoder = None
    assert net(OBS).critic is None
    with pytest.raises(RuntimeError, match=r"ActorCriticEncoder: expected an encoder with a critic"):
        net.encode_critic(OBS)
    torch.testing.assert_close(net.encode_actor(OBS).latent, net(OBS).actor)


@pytest.mark.parametrize("shared", [True, False])
def test_stateless_encoders_have_no_state(shared: bool) -> None:
    net = encoder(shared)
    assert net.get_initial_state() is None
    assert net(OBS).state is None
    assert net.encode_actor(OBS).state is None
    assert not net.critic_is_stateful


class Counter(Encoder):
    """Adds its state, the number of steps so far; counts its calls."""

    def __init__(self, by: float = 1.0) -> None:
        super().__init__()
        self.by, self.calls = by, 0

    def get_initial_state(self) -> Tensor:
        return torch.zeros(1)

    def forward(self, obs: Tensor, state: Any = None, *, starts: Tensor | None = None) -> EncoderOutput:
        self.calls += 1
        state = torch.zeros(obs.shape[1], 1) if state is None else state
        return EncoderOutput(obs + state, state + self.by * len(obs))


def test_a_shared_state_is_that_of_the_encoder() -> None:
    net = ActorCriticEncoder(Counter(), None)
    assert net.get_initial_state() == torch.zeros(1)
    out = net(torch.zeros(1, 2, 1), torch.tensor([[3.0], [4.0]]))
    assert out.critic is not None
    assert (out.actor.tolist(), out.critic.tolist(), out.state.tolist()) == ([[[3], [4]]], [[[3], [4]]], [[4], [5]])
    assert not net.critic_is_stateful  # so an inference-only copy may drop what is not there


@pytest.mark.parametrize("actor", ["stateful", "stateless"])
@pytest.mark.parametrize("critic", ["stateful", "stateless"])
def test_the_state_of_separate_encoders_names_those_that_are_stateful(actor: str, critic: str) -> None:
    def make(kind: str) -> Encoder:
        return Counter() if kind == "stateful" else ModuleEncoder(nn.Identity())

    net = ActorCriticEncoder(make(actor), make(critic))
    names = [name for name, kind in (("actor", actor), ("critic", critic)) if kind == "stateful"]
    initial = net.get_initial_state()
    assert (initial is None) == (not names)
    assert list(initial or {}) == names
    assert net.critic_is_stateful is (critic == "stateful")
    obs, batched = torch.zeros(1, 2, 1), {name: torch.zeros(2, 1) for name in names} or None
    for out in (net(obs, batched), net.encode_actor(obs, batched), net(obs), net.encode_actor(obs)):
        state = {name: part.tolist() for name, part in (out.state or {}).items()}
        assert state == {name: [[1], [1]] for name in names}


def test_acting_advances_a_critic_that_is_stateful_and_spares_one_that_is_not() -> None:
    actor, critic = Counter(), Counter(by=10)
    net = ActorCriticEncoder(actor, critic)
    state = None
    for _ in range(3):
        state = net.encode_actor(torch.zeros(1, 2, 1), state).state
    assert state is not None
    assert (state["actor"].tolist(), state["critic"].tolist()) == ([[3], [3]], [[30], [30]])
    assert net.encode_critic(torch.zeros(1, 2, 1), state).tolist() == [[[30], [30]]]
    assert (actor.calls, critic.calls) == (3, 4)

    class Untouchable(Encoder):
        def forward(self, obs: Tensor, state: Any = None, *, starts: Tensor | None = None) -> EncoderOutput:
            raise AssertionError("acting needs no stateless critic")

    out = ActorCriticEncoder(Counter(), Untouchable()).encode_actor(torch.zeros(1, 2, 1))
    assert out.latent.tolist() == [[[0], [0]]]


class Rows(nn.Module):
    """Takes rows [B, 1] alone."""

    def forward(self, obs: Tensor) -> Tensor:
        assert obs.dim() == 2
        return obs + 5


@pytest.mark.parametrize("stateful", ["actor", "critic"])
def test_beside_a_stateful_encoder_the_other_one_gets_the_steps_as_one_batch(stateful: str) -> None:
    rows = ModuleEncoder(Rows())
    net = ActorCriticEncoder(*((Counter(), rows) if stateful == "actor" else (rows, Counter())))
    obs, starts = torch.arange(6.0).view(3, 2, 1), torch.zeros(3, 2, dtype=torch.bool)
    for given in (None, starts):
        out = net(obs, starts=given)
        actor, critic = net.encode_actor(obs, starts=given).latent, net.encode_critic(obs, starts=given)
        assert torch.equal(out.critic if stateful == "actor" else out.actor, obs + 5)
        assert torch.equal(actor, out.actor)
        assert torch.equal(critic, out.critic)


CONFIGS = {
    "shared": ActorCriticEncoderConfig(base_encoder_config=RECURRENT, shared=True),
    "separate": ActorCriticEncoderConfig(base_encoder_config=RECURRENT),
    "a stateful critic": ActorCriticEncoderConfig(base_encoder_config=BASE, critic_encoder_config=RECURRENT),
    "a stateful actor": ActorCriticEncoderConfig(base_encoder_config=RECURRENT, critic_encoder_config=BASE),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_acting_step_by_step_equals_training_on_the_sequence(name: str) -> None:
    net = CONFIGS[name].build()
    whole = net(SEQUENCES, starts=STARTS)
    state, latents = None, []
    for t in range(6):
        critic = net.encode_critic(SEQUENCES[t : t + 1], state, starts=STARTS[t : t + 1])
        torch.testing.assert_close(critic[0], whole.critic[t], atol=1e-5, rtol=1e-5)
        latent, state = net.encode_actor(SEQUENCES[t : t + 1], state, starts=STARTS[t : t + 1])
        latents.append(latent)
    torch.testing.assert_close(torch.cat(latents), whole.actor, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(state, whole.state, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(net.encode_critic(SEQUENCES, starts=STARTS), whole.critic)


@pytest.mark.parametrize("name", CONFIGS)
def test_interleaved_passes_over_sequences_do_not_disturb_each_other(name: str) -> None:
    net = CONFIGS[name].build()

    def gradients(disturbed: bool) -> list[Tensor]:
        net.zero_grad()
        out = net(SEQUENCES, starts=STARTS)
        if disturbed:
            net(SEQUENCES + 1, out.state)
            net.encode_actor(SEQUENCES * 2, out.state, starts=STARTS)
        (out.actor.square().sum() + out.critic.square().sum()).backward()
        return [p.grad.clone() for p in net.parameters() if p.grad is not None]

    for alone, compared in zip(gradients(False), gradients(True), strict=True):
        assert torch.equal(alone, compared)


def test_separate_recurrent_encoders_do_not_hear_each_other() -> None:
    net = CONFIGS["separate"].build()
    assert net.critic_encoder is not None
    out = net(SEQUENCES, starts=STARTS)
    (out.actor.square().sum() + out.state["actor"]["c"].sum()).backward()
    assert has_gradient(net.actor_encoder)
    assert not has_gradient(net.critic_encoder)


def test_a_critic_of_another_kind_has_its_own_config() -> None:
    wide = MLPEncoderConfig(input_dims=(3,), hidden_layer_dims=(16,))
    config = ActorCriticEncoderConfig(base_encoder_config=BASE, critic_encoder_config=wide)
    out = config.build()(OBS)
    assert config.output_dims == (8,)
    assert out.critic is not None
    assert (out.actor.shape, out.critic.shape) == ((4, 8), (4, 16))
    with pytest.raises(ValueError, match=r"critic_encoder_config: expected None, since shared is True, got MLPEnc"):
        ActorCriticEncoderConfig(base_encoder_config=BASE, critic_encoder_config=wide, shared=True)


def test_any_module_becomes_an_encoder_once() -> None:
    linear = nn.Linear(3, 2)
    wrapped = as_encoder(linear)
    assert isinstance(wrapped, ModuleEncoder)
    assert as_encoder(wrapped) is wrapped
    out = wrapped(OBS)
    torch.testing.assert_close(out.latent, linear(OBS))
    assert out.state is None
    assert wrapped.get_initial_state() is None


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"build_encoder\(\): expected an nn\.Module"):
        as_encoder(lambda obs: obs)  # type: ignore[arg-type]
