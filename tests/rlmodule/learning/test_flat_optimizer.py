"""One tensor for all parameters: the arithmetic stays that of the list of them."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlmodule.learning.flat_optimizer import (
    FlatAdam,
    FlatParameters,
    Part,
    TrainedPart,
    load_optimizer_state,
    optimizer_state,
)
from rlmodule.testing.data import differences


@pytest.fixture(autouse=True)
def own_random_numbers() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def make() -> tuple[nn.Sequential, nn.Sequential, FlatParameters]:
    """A net, the same net with flat parameters, and these."""
    plain = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3), nn.LayerNorm(3))
    plain[2].bias.requires_grad_(False)
    moved = copy.deepcopy(plain)
    return plain, moved, FlatParameters({"all": moved.parameters()})


def backward(net: nn.Module, scale: float = 1.0) -> None:
    x = torch.linspace(-1, 1, 20).view(5, 4)
    (net(x) * torch.arange(15.0).view(5, 3) * scale).sum().backward()


def equal(one: nn.Module, two: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def gradients(net: nn.Module) -> list[Tensor]:
    return [p.grad for p in net.parameters() if p.grad is not None]


def test_moving_changes_no_value() -> None:
    plain, moved, flat = make()
    assert equal(plain, moved)
    assert flat.tensor.numel() == sum(p.numel() for p in plain.parameters() if p.requires_grad)


def test_parameters_and_gradients_are_views() -> None:
    _, moved, flat = make()
    backward(moved)
    assert torch.equal(flat.grad, torch.cat([g.flatten() for g in gradients(moved)]))
    part = flat.parts["all"]
    assert part.tensor.grad is part.grad
    assert torch.equal(part.grad, flat.grad)
    with torch.no_grad():
        part.tensor.zero_()
    flat.zero_grad()
    assert not any(p.any() for p in moved.parameters() if p.requires_grad)
    assert not any(g.any() for g in gradients(moved))
    with torch.no_grad():
        moved[0].bias.fill_(2)
    assert int((flat.tensor == 2).sum()) == 8


def test_backward_adds_up_until_cleared() -> None:
    plain, moved, flat = make()
    for _ in range(2):
        backward(plain)
        backward(moved)
    assert all(torch.equal(a, b) for a, b in zip(gradients(plain), gradients(moved), strict=True))
    flat.zero_grad()
    backward(moved)
    plain.zero_grad()
    backward(plain)
    assert all(torch.equal(a, b) for a, b in zip(gradients(plain), gradients(moved), strict=True))


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_steps_are_those_of_the_list(optimizer: type[torch.optim.Optimizer]) -> None:
    plain, moved, flat = make()
    settings = {"lr": 0.1, "weight_decay": 0.01}
    trained = [p for p in plain.parameters() if p.requires_grad]
    one, two = optimizer(trained, **settings), optimizer([flat.parts["all"].tensor], **settings)  # type: ignore[call-arg]
    for _ in range(5):
        plain.zero_grad()
        flat.zero_grad()
        backward(plain)
        backward(moved)
        one.step()
        two.step()
    for a, b in zip(plain.parameters(), moved.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    assert not torch.equal(moved[0].weight, make()[0][0].weight)


def test_frozen_parameters_are_left_alone() -> None:
    _, moved, flat = make()
    frozen, before = moved[2].bias, moved[2].bias.clone()
    backward(moved)
    torch.optim.SGD([flat.parts["all"].tensor], lr=1.0).step()
    assert torch.equal(frozen, before)
    assert frozen.grad is None
    assert all(p is not frozen for p in flat.views)


def trained_part(flat: FlatParameters, limit: float | None, by: str) -> TrainedPart:
    part = flat.parts["all"]
    return TrainedPart(Part(("",), 0.1, limit), part, torch.optim.SGD([part.tensor]), by)


@pytest.mark.parametrize("scale", [1e-4, 1.0, 100.0])
@pytest.mark.parametrize("limit", [0.05, 2.0])
@pytest.mark.parametrize("by", ["global_norm", "norm", "value"])
def test_clipping_is_torchs(by: str, limit: float, scale: float) -> None:
    plain, moved, flat = make()
    backward(plain, scale)
    backward(moved, scale)
    wanted = torch.cat([g.flatten() for g in gradients(plain)]).norm()
    trained = [p for p in plain.parameters() if p.requires_grad]
    if by == "global_norm":
        nn.utils.clip_grad_norm_(trained, limit)
    elif by == "value":
        nn.utils.clip_grad_value_(trained, limit)
    else:
        for p in trained:
            nn.utils.clip_grad_norm_([p], limit)
    norm = trained_part(flat, limit, by).clip()
    torch.testing.assert_close(norm, wanted)
    for a, b in zip(gradients(plain), gradients(moved), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_no_limit_only_measures() -> None:
    plain, moved, flat = make()
    backward(plain)
    backward(moved)
    norm = trained_part(flat, None, "global_norm").clip()
    torch.testing.assert_close(norm, torch.cat([g.flatten() for g in gradients(plain)]).norm())
    assert all(torch.equal(a, b) for a, b in zip(gradients(plain), gradients(moved), strict=True))


def test_loading_a_state_keeps_the_views() -> None:
    _, moved, flat = make()
    moved.load_state_dict({name: torch.ones_like(value) for name, value in moved.state_dict().items()})
    assert bool((flat.tensor == 1).all())


def test_a_parameter_used_twice_is_held_once() -> None:
    layer = nn.Linear(3, 3)
    flat = FlatParameters({"all": nn.Sequential(layer, layer).parameters()})
    assert flat.tensor.numel() == 12


def test_what_cannot_be_flat() -> None:
    with pytest.raises(ValueError, match="got none"):
        FlatParameters({"all": [nn.Parameter(torch.zeros(2), requires_grad=False)]})
    with pytest.raises(ValueError, match=r"float32 on cpu.*float64 on cpu"):
        FlatParameters({n: [nn.Parameter(torch.zeros(2, dtype=getattr(torch, n)))] for n in ("float32", "float64")})


@pytest.mark.parametrize("changed", [{}, {"weight_decay": 0.1}, {"maximize": True}, {"betas": (0.5, 0.9)}])
def test_the_flat_adam_is_torchs_adam(changed: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(0)
    mine, theirs = (nn.Parameter(torch.ones(50)) for _ in range(2))
    ours, reference = FlatAdam(mine, lr=0.1, eps=1e-5), torch.optim.Adam([theirs], lr=0.1, eps=1e-5, fused=True)
    for lr in (0.1, 0.1, 0.01, 0.3):
        gradient = torch.randn(50, generator=generator)
        for parameters, optimizer in ((mine, ours), (theirs, reference)):
            optimizer.param_groups[0].update(changed, lr=lr)
            parameters.grad = gradient.clone()
        ours.step_unless(torch.zeros(()))
        reference.step()
        assert torch.equal(mine, theirs)
    assert differences(optimizer_state(ours), optimizer_state(reference)) == []


@pytest.mark.parametrize("flushes", [False, True])
def test_moments_never_stay_denormal(flushes: bool) -> None:
    """Denormal moments would slow down every later step: 0.9 of the least denormal number rounds to itself."""
    weights = torch.nn.Parameter(torch.ones(3))
    ours, least = FlatAdam(weights, lr=0.1, eps=1e-5), torch.finfo(torch.float32).tiny
    ours.state[weights]["exp_avg"].fill_(least)
    ours.state[weights]["exp_avg_sq"].fill_(least)
    weights.grad = torch.tensor([0.0, 0.0, 1.0])
    torch.set_flush_denormal(flushes)
    try:
        ours.step_unless(torch.zeros(()))
        assert (torch.tensor([1e-40]) * 2 == 0).item() is flushes  # outside the step, all is as before
    finally:
        torch.set_flush_denormal(False)
    for moments in (ours.state[weights]["exp_avg"], ours.state[weights]["exp_avg_sq"]):
        assert moments[:2].tolist() == [0.0, 0.0]
        assert moments[2] > 1e-4


def test_the_flat_adam_goes_on_from_a_state_of_either() -> None:
    first = nn.Parameter(torch.ones(5))
    optimizer = torch.optim.Adam([first], lr=0.1, eps=1e-5, fused=True)
    first.grad = torch.arange(5.0)
    optimizer.step()
    second = nn.Parameter(first.detach().clone())
    ours = FlatAdam(second, lr=0.1, eps=1e-5)
    load_optimizer_state(ours, copy.deepcopy(optimizer_state(optimizer)))
    first.grad = second.grad = torch.arange(5.0).flip(0)
    optimizer.step()
    ours.step_unless(torch.zeros(()))
    assert torch.equal(first, second)
