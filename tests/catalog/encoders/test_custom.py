"""Encoders of a user's own by setting, for the whole observation or a part of it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from catalog.base import Encoder, EncoderOutput, ModelConfig, ModuleEncoder, Tree, encoder_rules
from catalog.encoders.custom import CustomEncoderConfig
from catalog.encoders.mlp import MLPEncoderConfig
from catalog.model_config import DefaultModelConfig
from catalog.registry import models, register_model
from catalog.rules import Node

VECTOR = spaces.Box(2, 5, (4,))
NESTED = spaces.Dict({"a.b": spaces.Dict({"x": VECTOR}), "n": spaces.Discrete(3)})


class Wide(nn.Module):
    """Counts its instances; draws from torch's random state."""

    made = 0

    def __init__(self, space: Space, width: int = 6) -> None:
        super().__init__()
        Wide.made += 1
        assert space.shape is not None
        self.net = nn.Sequential(nn.Linear(space.shape[0], width), nn.BatchNorm1d(width))

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(obs.log())


class Recall(Encoder):
    """Stateful: hands back what it saw last."""

    def __init__(self, space: Space) -> None:
        super().__init__()

    def get_initial_state(self) -> Tree:
        return torch.zeros(4)

    def forward(self, obs: Tree, state: Tree | None = None, *, starts: Tensor | None = None) -> EncoderOutput:
        assert obs.dim() == 3
        return EncoderOutput(obs, obs[-1])


class Plain(nn.Module):
    """Takes a space, returns its argument."""

    def __init__(self, space: Space, out: Any = None) -> None:
        super().__init__()
        self.out = out

    def forward(self, obs: Tree) -> Any:
        if isinstance(self.out, Exception):
            raise self.out
        return self.out


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Names and rules registered in the test are forgotten after it."""
    rules, names = list(encoder_rules._rules), dict(models._known)
    yield
    encoder_rules._rules[:] = rules
    models._known.clear()
    models._known.update(names)


def decide(space: spaces.Space, **settings: Any) -> tuple[ModelConfig, Node[ModelConfig]]:
    node = encoder_rules.root(space, DefaultModelConfig.from_any(settings), "observation_space")
    return node.run(), node


def test_a_class_in_the_settings_takes_the_place_of_the_default() -> None:
    config, node = decide(VECTOR, custom_model=Wide, custom_model_config={"width": 7})
    assert node.rule is not None
    assert node.rule.name == "custom_model"
    assert set(node.reads) == {"custom_model", "custom_model_config"}
    assert config.output_dims == (7,)
    encoder = config.build()
    assert isinstance(encoder, ModuleEncoder)
    assert isinstance(encoder.net, Wide)
    assert encoder(torch.full((5, 4), 3.0)).latent.shape == (5, 7)


def test_without_the_setting_the_rule_is_skipped() -> None:
    config, node = decide(VECTOR)
    assert isinstance(config, MLPEncoderConfig)
    assert "custom_model" in [rule.name for rule in node.passed]


@pytest.mark.parametrize("space", [spaces.Discrete(3), NESTED, spaces.Box(-1, 1, (1, 1, 1, 1, 1))])
def test_any_space_may_have_a_custom_model(space: spaces.Space) -> None:
    config, node = decide(space, custom_model=lambda space: Plain(space, torch.zeros(2, 2)))
    assert isinstance(config, CustomEncoderConfig)
    assert config.output_dims == (2,)
    assert not node.children


def test_a_registered_name_and_an_import_path_are_found() -> None:
    register_model("wide")(Wide)
    assert decide(VECTOR, custom_model="wide")[0].output_dims == (6,)
    path = "torch.nn:Linear"  # whose first argument is no space
    with pytest.raises(
        ValueError, match=r"custom_model at observation_space: expected .*\(observation_space\), got .*Linear"
    ):
        decide(VECTOR, custom_model=path)


def test_an_unknown_name_says_where_it_was_asked_for() -> None:
    register_model("wide")(Wide)
    with pytest.raises(ValueError, match=r"custom_model at observation_space\['n'\]: .*'wid'.*Did you mean 'wide'\?"):
        decide(NESTED, leaf_overrides={"n": {"custom_model": "wid"}})


def test_a_part_of_the_observation_may_have_a_custom_model() -> None:
    overrides = {"a.b": {"fcnet_hiddens": (8,)}, "a.b.x": {"custom_model": Wide, "custom_model_config": {"width": 9}}}
    config, node = decide(NESTED, leaf_overrides=overrides)
    leaves = {child.name: type(child.result) for child in node.walk() if not child.children}
    assert leaves == {"a.b.x": CustomEncoderConfig, "n": MLPEncoderConfig}
    obs = {"a.b": {"x": torch.full((5, 4), 3.0)}, "n": torch.tensor([0, 1, 2, 0, 1])}
    assert config.build()(obs).latent.shape == (5, *config.output_dims)


def test_the_width_is_found_by_one_build_that_leaves_no_trace() -> None:
    config = CustomEncoderConfig(space=VECTOR, model=Wide)
    torch.manual_seed(0)
    before, Wide.made = torch.get_rng_state(), 0
    assert config.output_dims == config.output_dims == (6,)
    assert Wide.made == 1
    assert torch.equal(torch.get_rng_state(), before)
    net = config.build()
    assert net.training
    assert net.net.net[1].num_batches_tracked == 0  # type: ignore[union-attr]


def test_a_stateful_encoder_is_asked_in_time_major_order() -> None:
    config, _ = decide(VECTOR, custom_model=Recall)
    assert config.output_dims == (4,)
    assert isinstance(config.build(), Recall)


def test_a_user_s_rule_comes_before_the_setting() -> None:
    @encoder_rules.register(spaces.Box, name="mine")
    def _(space: spaces.Box, model_config: DefaultModelConfig, node: Node[ModelConfig]) -> ModelConfig:
        return MLPEncoderConfig(input_space=space, hidden_layer_dims=(3,))

    assert decide(VECTOR, custom_model=Wide)[0].output_dims == (3,)


@pytest.mark.parametrize(
    ("model", "options", "match"),
    [
        (Wide, {"widht": 3}, r"can be called as \(observation_space, widht=\.\.\.\), got .*'widht'"),
        (lambda: nn.Identity(), {}, r"can be called as \(observation_space\), got .*too many positional"),
        (lambda space: 3, {}, r"expected an nn\.Module from batched observations to latents, got 3"),
        (
            Plain,
            {"out": torch.zeros(3)},
            r"expected latents of shape \(2, D\) for observations of shape \(2, \.\.\.\), got shape \(3,\)",
        ),
        (Plain, {"out": "text"}, r"expected one tensor of latents, got an EncoderOutput of str"),
        (
            Plain,
            {"out": torch.zeros(2, 3, dtype=torch.uint8)},
            r"expected latents of .*got shape \(.*\) of torch\.uint8",
        ),
        (Plain, {"out": RuntimeError("no")}, r"expected a module that takes observations .*got RuntimeError: no"),
    ],
)
def test_a_model_that_does_not_fit_is_explained(model: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^custom_model at observation_space: .*{match}"):
        _ = decide(VECTOR, custom_model=model, custom_model_config=options)[0].output_dims


def test_a_space_without_array_form_is_refused_by_its_path() -> None:
    space = spaces.Dict({"x": spaces.Text(3)})
    with pytest.raises(ValueError, match=r"custom_model at observation_space\['x'\]: expected a space of arrays"):
        _ = decide(space, custom_model=Plain)[0].output_dims


def test_the_setting_is_asked_before_every_built_in_rule() -> None:
    assert encoder_rules._rules[-1].name == "custom_model"
