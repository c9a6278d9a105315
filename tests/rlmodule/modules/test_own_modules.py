"""Modules that make their nets themselves: what the catalog leaves to them."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from algorithms.dqn import DQNCatalog, DQNModule
from algorithms.ppo import PPOCatalog, PPOModule
from catalog.base import Tree
from rlmodule import Columns, ExtraLossAPI, QNetAPI, RLModule, RLModuleSpec, ValueFunctionAPI

BOX, TWO = spaces.Box(-1, 1, (1, 2, 2, 2, 3), np.float32), spaces.Discrete(2)


class Flat(RLModule):
    """One layer over all numbers, or as many more as its options say."""

    def setup(self) -> None:
        depth = self.model_config.custom_model_config.get("depth", 1)
        self.net = nn.Sequential(nn.Flatten(), nn.LazyLinear(2), *(nn.Linear(2, 2) for _ in range(depth - 1)))

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        return {Columns.ACTION_DIST_INPUTS: self.net(self.env_part(batch[Columns.OBS]))}


@pytest.mark.parametrize("kind", [PPOCatalog, DQNCatalog])
def test_a_module_with_nets_of_its_own_takes_a_space_that_no_table_knows(kind: Any) -> None:
    module = RLModuleSpec(Flat, BOX, TWO, {"leaf_overrides": {"eye": {}}}, kind).build()
    out = module.forward_inference({Columns.OBS: torch.zeros(3, *BOX.shape)})[Columns.ACTION_DIST_INPUTS]
    assert isinstance(out, Tensor)
    assert out.shape == (3, 2)


@pytest.mark.parametrize(("module", "kind"), [(PPOModule, PPOCatalog), (DQNModule, DQNCatalog)])
def test_a_module_whose_nets_are_the_catalogs_says_which_space_that_is(module: Any, kind: Any) -> None:
    with pytest.raises(ValueError, match=r"^observation_space: expected a space with a branch in the encoder table"):
        RLModuleSpec(module, BOX, TWO, {}, kind).build()
    with pytest.raises(ValueError, match=r"^observation_space: expected a space with a branch in the encoder table"):
        kind(BOX, TWO)


def test_options_without_a_custom_model_are_for_a_module_of_ones_own() -> None:
    options = {"custom_model_config": {"depth": 3}}
    module = RLModuleSpec(Flat, BOX, TWO, options).build()
    assert isinstance(module, Flat)
    assert len(module.net) == 4
    vector = spaces.Box(-1, 1, (4,), np.float32)
    for default, kind in ((PPOModule, PPOCatalog), (DQNModule, DQNCatalog)):
        with pytest.raises(ValueError, match=r"custom_model_config: expected \{\}, since custom_model is None, got"):
            RLModuleSpec(default, vector, TWO, options, kind).build()


class Blind(Flat):
    """Another class, since each warning is logged once."""


class Remembering(Flat):
    """Keeps a state of its own."""

    def get_initial_state(self) -> Any:
        return torch.zeros(2)


def test_a_memory_that_a_module_does_not_build_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    vector, expected = spaces.Box(-1, 1, (4,), np.float32), "use_gru = True has no effect in Blind, which has no recurr"
    with caplog.at_level(logging.WARNING, "catalog"):
        RLModuleSpec(Remembering, vector, TWO, {"use_gru": True}).build()
        RLModuleSpec(PPOModule, vector, TWO, {"use_gru": True}, PPOCatalog).build()
        assert not caplog.messages
        for _ in range(2):
            RLModuleSpec(Blind, vector, TWO, {"use_gru": True}).build()
    (message,) = caplog.messages
    assert message.startswith(f"model_config: {expected}")


def test_options_go_to_a_custom_model_if_there_is_one() -> None:
    seen = []

    class Mine(nn.Linear):
        def __init__(self, space: spaces.Box, depth: int) -> None:
            seen.append(depth)
            super().__init__(4, 8)

    settings = {"custom_model": Mine, "custom_model_config": {"depth": 3}, "vf_share_layers": True}
    RLModuleSpec(PPOModule, spaces.Box(-1, 1, (4,), np.float32), TWO, settings, PPOCatalog).build()
    assert set(seen) == {3}


@pytest.mark.parametrize(
    ("ability", "method"),
    [(ValueFunctionAPI, "compute_values"), (QNetAPI, "compute_q_values"), (ExtraLossAPI, "compute_extra_losses")],
)
def test_a_method_of_an_ability_with_other_arguments_is_named_where_it_is_defined(ability: Any, method: str) -> None:
    with pytest.raises(TypeError, match=rf"Mine\.{method}\(\): expected the arguments \(self, batch, "):
        type("Mine", (Flat, ability), {method: lambda self, batch: batch})
