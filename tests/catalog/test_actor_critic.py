"""Shared and separate encoders: which gradients go where, and what an inference-only copy lacks."""

import pytest
import torch
from torch import Tensor, nn

from catalog import ActorCriticEncoder, Encoder, EncoderOutput, MLPEncoderConfig
from catalog.actor_critic import ActorCriticEncoderConfig
from catalog.base import ModuleEncoder, as_encoder

BASE = MLPEncoderConfig(input_dims=(3,), hidden_layer_dims=(8,))
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
    with pytest.raises(RuntimeError, match=r"encode_critic: expected an encoder with a critic"):
        net.encode_critic(OBS)


def test_states_go_through() -> None:
    class Counter(Encoder):
        def forward(self, obs: Tensor, state: Tensor | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
            assert state is not None
            return EncoderOutput(obs + state, state + 1)

    out = ActorCriticEncoder(Counter(), None)(torch.zeros(2, 1), torch.tensor([[3.0], [4.0]]))
    assert out.critic is not None
    assert (out.actor.tolist(), out.critic.tolist(), out.state.tolist()) == ([[3], [4]], [[3], [4]], [[4], [5]])


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
