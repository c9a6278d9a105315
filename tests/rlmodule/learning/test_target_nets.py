"""Target nets: how far and when they move, and what they share with the nets in training."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from rlmodule.learning.flat_optimizer import FlatParameters, Part, parameters_by_part
from rlmodule.learning.target_nets import TargetNets
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.testing.data import clone, differences
from tests.rlmodule.toys import Small

SPEC = RLModuleSpec(Small, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3), {"fcnet_hiddens": [8]})
PARTS = {"policy": Part(("encoder", "pi", "trained_on"), 0.1, None), "values": Part(("vf",), 0.1, None)}


def make(followed: Collection[str] | None = None, ids: tuple[str, ...] = ("a",)) -> tuple[TargetNets, dict[str, Any]]:
    """Target nets and the modules in training."""
    targets, modules = TargetNets(followed), {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for module_id in ids:
            net, modules[module_id] = SPEC.build(), SPEC.build()
            flat = FlatParameters(parameters_by_part(modules[module_id], PARTS, "here"))
            targets.add(module_id, net, modules[module_id], flat, PARTS, env_steps=0)
    return targets, modules


def shift(module: Any) -> None:
    with torch.no_grad():
        for p in module.parameters():
            p.add_(1.0)
        module.trained_on.add_(1)


def test_a_target_net_begins_with_the_weights_in_training_and_is_in_eval_mode() -> None:
    targets, modules = make()
    assert differences(targets.nets["a"].get_state(), modules["a"].get_state()) == []
    assert not targets.nets["a"].training
    shift(modules["a"])
    assert differences(targets.nets["a"].get_state(), modules["a"].get_state())


@pytest.mark.parametrize("followed", [None, ("policy", "values")])
def test_it_moves_by_tau_and_copies_buffers(followed: Any) -> None:
    targets, modules = make(followed)
    before = clone(targets.nets["a"].get_state())
    shift(modules["a"])
    targets.update("a", env_steps=1, every=1, tau=0.25)
    for name, value in targets.nets["a"].get_state().items():
        expected = before[name] + (1 if name == "trained_on" else 0.25)
        torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)


def test_each_net_has_its_own_clock() -> None:
    targets, modules = make(ids=("a", "b"))
    moves = []
    for env_steps, module_id in ((5, "a"), (10, "a"), (10, "b"), (19, "a"), (20, "b"), (20, "b"), (20, "a")):
        shift(modules[module_id])
        before = sum(targets.num_updates.values())
        targets.update(module_id, env_steps=env_steps, every=10, tau=1.0)
        moves.append(sum(targets.num_updates.values()) - before)
    assert moves == [0, 1, 1, 0, 1, 0, 1]
    assert targets.last_update == {"a": 20, "b": 20}


@pytest.mark.parametrize(
    ("steps_per_call", "every", "expected"),
    [
        pytest.param(64, 200, [256, 448, 640, 832], id="the period is no multiple of the steps of a call"),
        pytest.param(8, 7, [*range(8, 1024, 8)], id="a call has more steps than the period"),
        pytest.param(50, 100, [*range(100, 1024, 100)], id="the period is a multiple"),
    ],
)
def test_a_late_move_does_not_delay_the_next_ones(steps_per_call: int, every: int, expected: list[int]) -> None:
    targets, _ = make()
    moves = list[int]()
    for env_steps in range(steps_per_call, 1024, steps_per_call):
        if env_steps == 5 * steps_per_call:  # resumed between two moves
            state = clone(targets.get_state())
            targets, _ = make()
            targets.set_state(state)
        before = targets.num_updates["a"]
        targets.update("a", env_steps=env_steps, every=every, tau=1.0)
        if targets.num_updates["a"] > before:
            moves.append(env_steps)
    assert moves == expected


def test_zero_steps_move_it_at_each_call() -> None:
    targets, _ = make()
    for _ in range(3):
        targets.update("a", env_steps=7, every=0, tau=0.5)
    assert targets.num_updates == {"a": 3}


def test_parts_without_copies_are_those_in_training() -> None:
    targets, modules = make(("values",))
    net, module = targets.nets["a"], modules["a"]
    assert net.pi.weight is module.pi.weight
    assert net.trained_on is module.trained_on
    assert net.vf.weight is not module.vf.weight
    old = net.vf.weight.detach().clone()
    shift(module)
    assert torch.equal(net.pi.weight, module.pi.weight)
    assert torch.equal(net.vf.weight, old)
    targets.update("a", env_steps=1, every=0, tau=0.5)
    torch.testing.assert_close(net.vf.weight, old + 0.5)
    assert targets.get_state()["target"]["a"].keys() == {"vf.weight", "vf.bias"}


@pytest.mark.parametrize("followed", [None, ("values",)])
def test_the_state_comes_back(followed: Any) -> None:
    (targets, modules), (other, others) = make(followed), make(followed)
    shift(modules["a"])
    targets.update("a", env_steps=30, every=10, tau=0.5)
    others["a"].set_state(modules["a"].get_state())
    other.set_state(clone(targets.get_state()))
    assert differences(other.get_state(), targets.get_state()) == []
    assert differences(other.nets["a"].get_state(), targets.nets["a"].get_state()) == []
    for each, those in ((targets, modules), (other, others)):
        shift(those["a"])
        each.update("a", env_steps=39, every=10, tau=0.5)
        each.update("a", env_steps=40, every=10, tau=0.5)
    assert differences(other.get_state(), targets.get_state()) == []


def test_a_state_of_other_nets_restores_those_that_are_here() -> None:
    (targets, modules), (other, _) = make(ids=("a", "b")), make(ids=("b", "c"))
    shift(modules["b"])
    for module_id in ("a", "b"):
        targets.update(module_id, env_steps=30, every=0, tau=0.5)
    before, state = clone(other.nets["c"].get_state()), clone(targets.get_state())
    other.set_state(state)
    assert differences(other.nets["b"].get_state(), state["target"]["b"]) == []
    assert differences(other.nets["c"].get_state(), before) == []
    assert (other.last_update, other.num_updates) == ({"b": 30, "c": 0}, {"b": 1, "c": 0})


def test_a_removed_net_is_gone() -> None:
    targets, _ = make(ids=("a", "b"))
    targets.remove("a")
    targets.remove("a")
    state = targets.get_state()
    assert all(state[name].keys() == {"b"} for name in state)


def test_loaded_weights_reach_it() -> None:
    targets, modules = make()
    shift(modules["a"])
    targets.copy_weights("a", modules["a"])
    assert differences(targets.nets["a"].get_state(), modules["a"].get_state()) == []
    assert targets.num_updates == {"a": 0}


def test_a_part_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="expected parts among policy, values, got critic"):
        make(("critic",))


def test_a_net_in_training_is_no_target_net() -> None:
    shared = nn.Linear(8, 1)

    class Sharing(Small):
        def setup(self) -> None:
            super().setup()
            self.vf = shared

    spec = replace(SPEC, module_class=Sharing)
    module = spec.build()
    flat = FlatParameters(parameters_by_part(module, PARTS, "here"))
    with pytest.raises(
        ValueError, match=r"target net of module 'a': expected .* got vf.weight, vf.bias, which the mod"
    ):
        TargetNets().add("a", spec.build(), module, flat, PARTS, env_steps=0)
    shared.requires_grad_(False)
    TargetNets().add("a", spec.build(), module, flat, PARTS, env_steps=0)
