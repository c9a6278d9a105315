"""Which modules may be stacked."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from algorithms.ppo import PPOCatalog, PPOConfig
from catalog import DefaultModelConfig
from rlmodule.modules.module_stack import structure_of

NETS: dict[str, Any] = {"fcnet_hiddens": [8]}


class Other(PPOCatalog):
    """A catalog that could choose another distribution."""


def structure(model: Any, catalog: type[PPOCatalog] = PPOCatalog) -> Any:
    spec = PPOConfig(model_config=model).get_rl_module_spec(
        spaces.Box(-1, 1, (3,), np.float32), spaces.Box(-2, 2, (1,), np.float32)
    )
    return structure_of(replace(spec, catalog_class=catalog).build())


@pytest.mark.parametrize(
    "change", [{"custom_action_dist": "SquashedGaussian"}, {"normalize_actions": False}, {"log_std_clip_param": 0.1}]
)
def test_modules_with_other_settings_have_another_structure(change: dict[str, Any]) -> None:
    assert structure(NETS | change) != structure(NETS)


def test_modules_of_another_catalog_have_another_structure() -> None:
    assert structure(NETS, Other) != structure(NETS)


def test_equal_settings_in_any_form_have_the_same_structure() -> None:
    expected = structure(NETS)
    assert structure({"fcnet_hiddens": (8,), "normalize_actions": True}) == expected
    assert structure(DefaultModelConfig(fcnet_hiddens=(8,))) == expected
