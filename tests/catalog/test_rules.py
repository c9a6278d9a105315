"""The tables: the newest rule that knows a space wins, and a missing one is explained."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from catalog import (
    Catalog,
    Categorical,
    DefaultModelConfig,
    MLPEncoderConfig,
    ModelConfig,
    RuleTable,
    action_distribution_rules,
    encoder_rules,
)
from catalog.distributions import Distribution

ACT = spaces.Discrete(2)
CONFIG = DefaultModelConfig()


@pytest.fixture
def tables() -> Iterator[None]:
    """Rules registered in the test are forgotten after it."""
    kept = {table: list(table._rules) for table in (encoder_rules, action_distribution_rules)}
    yield
    for table, rules in kept.items():
        table._rules[:] = rules


class Graph(spaces.Box):
    """A space class of a user's own."""


def table() -> RuleTable[str]:
    return RuleTable("toy")


def test_the_newest_matching_rule_wins_and_those_before_are_passed_over() -> None:
    rules = table()
    rules.register(spaces.Discrete, name="first")(lambda space, config, path: "first")
    rules.register(spaces.Discrete, name="big", when=lambda space, config: space.n > 5)(lambda *_: "big")
    rules.register(spaces.Box, name="other")(lambda *_: "other")
    rules.register(spaces.Discrete, name="huge", when=lambda space, config: space.n > 50)(lambda *_: "huge")
    assert rules.resolve(spaces.Discrete(3), CONFIG, "s") == "first"
    assert rules.resolve(spaces.Discrete(10), CONFIG, "s") == "big"
    rule, passed = rules.decide(spaces.Discrete(10), CONFIG, "s")
    assert (rule.name, [other.name for other in passed]) == ("big", ["huge"])


def test_a_rule_sees_space_config_and_path() -> None:
    rules = table()
    rules.register(spaces.Discrete, name="all")(lambda space, config, path: f"{path} {space.n} {config.fcnet_hiddens}")
    assert rules.resolve(spaces.Discrete(3), CONFIG, "obs['x']") == "obs['x'] 3 (64, 64)"


def test_a_space_without_a_branch_names_path_table_and_rules() -> None:
    rules = table()
    rules.register(spaces.Discrete, name="Discrete → one")(lambda *_: "one")
    rules.register(spaces.Box, name="Box → two")(lambda *_: "two")
    with pytest.raises(ValueError, match=r"obs\['x'\]: .*toy table \(Discrete → one; Box → two\), got Text") as error:
        rules.resolve(spaces.Text(5), CONFIG, "obs['x']")
    assert "@toy_rules.register(Text, ...)" in str(error.value)


@pytest.mark.parametrize(
    "space", [spaces.Text(5), spaces.MultiBinary(3), spaces.Box(-1, 1, (2, 3)), spaces.Box(0, 9, (2,), np.int64)]
)
def test_a_catalog_refuses_an_observation_space_without_a_branch(space: spaces.Space) -> None:
    with pytest.raises(ValueError, match=r"observation_space: .*float Box of rank 1 → MLP"):
        Catalog(space, ACT)


@pytest.mark.parametrize("space", [spaces.Text(5), spaces.Box(0, 9, (2,), np.int64)])
def test_a_catalog_refuses_an_action_space_without_a_branch(space: spaces.Space) -> None:
    with pytest.raises(ValueError, match=r"action_space: .*float Box → DiagGaussian"):
        Catalog(spaces.Discrete(2), space)


@pytest.mark.usefixtures("tables")
def test_a_user_s_rule_wins_over_the_built_in_one() -> None:
    @encoder_rules.register(spaces.Box, name="short vectors → tiny MLP", when=lambda space, _: space.shape == (2,))
    def _(space: spaces.Box, model_config: DefaultModelConfig, path: str) -> ModelConfig:
        return MLPEncoderConfig(input_dims=space.shape, hidden_layer_dims=(3,))

    catalog = Catalog(spaces.Box(-1, 1, (2,)), ACT)
    assert catalog.latent_dims == (3,)
    assert "short vectors → tiny MLP" in catalog.explain()
    longer = Catalog(spaces.Box(-1, 1, (4,)), ACT)
    assert longer.latent_dims == (64,)
    assert "passed over        short vectors → tiny MLP" in longer.explain()


@pytest.mark.usefixtures("tables")
def test_a_new_space_class_gets_its_own_rules() -> None:
    class Mine(Categorical):
        @staticmethod
        def required_input_dim(space: spaces.Space) -> int:
            return 7

    class MineConfig(ModelConfig):
        output_dims = (5,)

        def build(self) -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(6, 5))

    @encoder_rules.register(Graph, name="Graph → mine")
    def _(space: Graph, model_config: DefaultModelConfig, path: str) -> ModelConfig:
        return MineConfig()

    @action_distribution_rules.register(Graph, name="Graph → Mine")
    def _(space: Graph, model_config: DefaultModelConfig, path: str) -> type[Distribution]:
        return Mine

    space = Graph(-1, 1, (2, 3))
    catalog = Catalog(space, space)
    assert catalog.get_action_dist_cls() is Mine
    assert catalog.build_actor_critic_encoder()(torch.zeros(4, 2, 3)).actor.shape == (4, 5)
    assert {"Graph → mine", "MineConfig", "Mine, 7 inputs"} <= {
        part.strip() for line in catalog.explain().splitlines() for part in (line, line[25:])
    }
