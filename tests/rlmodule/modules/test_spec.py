"""Specs: filling up, and building."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from catalog import Catalog
from rlmodule import DEFAULT_MODULE_ID, MultiRLModule, MultiRLModuleSpec, QNetAPI, RLModuleSpec
from tests.rlmodule.toys import NoNets, Scripted, Small

OBS, ACTIONS = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
FULL = RLModuleSpec(module_class=Small, observation_space=OBS, action_space=ACTIONS)


def test_filled_takes_the_default_only_where_nothing_is_said() -> None:
    other = spaces.Discrete(5)
    mine = RLModuleSpec(module_class=Scripted, action_space=other, model_config={})
    filled = mine.filled(RLModuleSpec(Small, OBS, ACTIONS, {"fcnet_hiddens": [3]}, NoNets))
    # an empty dict is something said
    assert filled == RLModuleSpec(Scripted, OBS, other, {}, NoNets)
    assert RLModuleSpec().filled(FULL) == FULL
    assert mine == RLModuleSpec(module_class=Scripted, action_space=other, model_config={})


def test_inference_only_is_kept_when_filled() -> None:
    assert RLModuleSpec(inference_only=True).filled(FULL).inference_only


@pytest.mark.parametrize("missing", ["module_class", "observation_space", "action_space"])
def test_build_names_what_is_missing(missing: str) -> None:
    settings = vars(FULL) | {missing: None}
    with pytest.raises(ValueError, match=f"got None for {missing}"):
        RLModuleSpec(**settings).build()


def test_build_hands_everything_on() -> None:
    class Mine(Catalog):
        pass

    module = RLModuleSpec(Small, OBS, ACTIONS, {"fcnet_hiddens": [3]}, Mine).build()
    assert type(module) is Small
    assert type(module.catalog) is Mine
    assert module.catalog.latent_dims == (3,)
    assert (module.observation_space, module.action_space) == (OBS, ACTIONS)
    assert not module.inference_only


@pytest.mark.parametrize(("spec", "asked", "built"), [(False, None, False), (True, None, True), (True, False, False)])
def test_build_may_overrule_inference_only(spec: bool, asked: bool | None, built: bool) -> None:
    module = RLModuleSpec(Small, OBS, ACTIONS, inference_only=spec).build(inference_only=asked)
    assert module.inference_only is built
    assert (module.vf is None) is built  # type: ignore[attr-defined]


def test_multi_spec_builds_each() -> None:
    wide = RLModuleSpec(Small, OBS, spaces.Discrete(7))
    multi = MultiRLModuleSpec({"one": FULL, "two": wide}).build(inference_only=True)
    assert isinstance(multi, MultiRLModule)
    assert [module.action_space.n for _, module in multi.items()] == [2, 7]  # type: ignore[attr-defined]
    assert all(module.inference_only for _, module in multi.items())
    assert list(FULL.as_multi().build()) == [DEFAULT_MODULE_ID]
    assert list(FULL.as_multi("other").build()) == ["other"]


def test_each_build_is_new() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        one, two = FULL.build(), FULL.build()
    assert not torch.equal(one.get_state()["pi.weight"], two.get_state()["pi.weight"])


@pytest.mark.parametrize("name", ["module_class", "catalog_class"])
@pytest.mark.parametrize("wrong", [torch.nn.Linear, "my_nets:Net", 3], ids=str)
def test_a_class_of_another_kind_is_refused_at_once(name: str, wrong: object) -> None:
    with pytest.raises(TypeError, match=rf"RLModuleSpec\.{name}: expected a subclass of (RLModule|Catalog)"):
        RLModuleSpec(**{name: wrong})  # type: ignore[arg-type]


def test_a_class_without_a_method_of_its_bases_is_refused_at_once() -> None:
    with pytest.warns(UserWarning, match=r"Did you mean compute_q_values\(\)\?"):

        class Misspelt(Small, QNetAPI):
            def compute_q_value(self) -> None: ...

    message = "RLModuleSpec.module_class: expected a class with every method .*Misspelt without compute_q_values. Write"
    with pytest.raises(TypeError, match=message):
        RLModuleSpec(Misspelt)


def test_a_constructor_that_does_not_call_that_of_its_base_is_refused_at_once() -> None:
    class Forgets(Small):
        def __init__(self, **kwargs: object) -> None:
            self.scale = 2.0

    class Inherits(Forgets):
        pass

    class ForgetsToo(Catalog):
        def __init__(self, observation_space: object, action_space: object, *args: object, **kwargs: object) -> None:
            self.scale = 2.0

    class Calls(Small):
        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            self.scale = 2.0

    expected = r"Forgets\.__init__\(\): expected one that calls super\(\)\.__init__\(\) .* Or override setup\(\)"
    with pytest.raises(TypeError, match=expected):
        RLModuleSpec(Forgets)
    with pytest.raises(TypeError, match=r"Inherits\.__init__\(\): expected one that calls"):
        RLModuleSpec(Inherits)
    with pytest.raises(TypeError, match=r"ForgetsToo\.__init__\(\): .* Or override _determine_components_hook\(\)"):
        RLModuleSpec(catalog_class=ForgetsToo)
    assert RLModuleSpec(Calls, OBS, ACTIONS).build().scale == 2.0  # type: ignore[comparison-overlap]
