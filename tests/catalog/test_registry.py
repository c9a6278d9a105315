"""Encoders and distributions by name, by import path, or as they are."""

import collections
import math
from collections.abc import Iterator
from typing import Any

import pytest
from torch import nn

from catalog.registry import Registry, distributions, models, register_distribution, register_model


@pytest.fixture
def registry() -> Registry[Any]:
    registry: Registry[Any] = Registry("model")
    registry.register("counter")(collections.Counter)
    registry.register("dotted.name")(dict)
    return registry


@pytest.fixture
def registries() -> Iterator[None]:
    """Names registered in the test are forgotten after it."""
    kept = {registry: dict(registry._known) for registry in (models, distributions)}
    yield
    for registry, known in kept.items():
        registry._known.clear()
        registry._known.update(known)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("counter", collections.Counter),
        ("dotted.name", dict),
        ("math:sqrt", math.sqrt),
        ("math.sqrt", math.sqrt),
        ("collections:Counter.fromkeys", collections.Counter.fromkeys),
        (collections.OrderedDict, collections.OrderedDict),
        (len, len),
    ],
)
def test_names_paths_and_objects_are_found(registry: Registry[Any], given: Any, expected: Any) -> None:
    assert registry.find(given, "model_config.custom_model") == expected


@pytest.mark.parametrize(
    ("given", "got"),
    [
        ("conter", r"the unknown name 'conter'.*Did you mean 'counter'\?"),
        ("nowhere_at_all.Net", "'nowhere_at_all.Net', which says: No module named 'nowhere_at_all'"),
        ("math:sqroot", "'math:sqroot', which says: .*no attribute 'sqroot'"),
        ("math:pi", r"'math:pi', which is 3\.14"),
        ("not a path.x", "'not a path.x', which says"),
        (3, "got 3"),
    ],
)
def test_what_is_not_found_is_explained(registry: Registry[Any], given: Any, got: str) -> None:
    where = r"^model_config\.custom_model: expected .*a registered model \(counter, dotted\.name\), .*"
    with pytest.raises(ValueError, match=where + got):
        registry.find(given, "model_config.custom_model")


def test_an_unknown_name_imports_nothing(registry: Registry[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("catalog.registry.resolve_name", lambda name: pytest.fail("imported"))
    with pytest.raises(ValueError, match="the unknown name 'json'"):
        registry.find("json", "x")


def test_a_name_belongs_to_one(registry: Registry[Any]) -> None:
    assert registry.register("counter")(collections.Counter) is collections.Counter
    with pytest.raises(ValueError, match=r"register_model\('counter'\): expected an unused name, got .*Counter"):
        registry.register("counter")(dict)
    assert registry.find("counter", "x") is collections.Counter


@pytest.mark.usefixtures("registries")
def test_models_and_distributions_are_registered_by_decorators() -> None:
    @register_model("mine")
    class Mine:
        pass

    @register_distribution("mine")
    class Other:
        pass

    assert models.find("mine", "x") is Mine
    assert distributions.find("mine", "x") is Other


def test_a_name_is_needed() -> None:
    with pytest.raises(TypeError, match=r"register_model\(\): expected a name.*@register_model\('name'\)"):

        @register_model  # type: ignore[arg-type]
        class Net(nn.Module):
            pass
