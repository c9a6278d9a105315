"""The tables: the newest rule that knows a space wins, and a missing one is explained."""

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from gymnasium import spaces
from torch import nn

from catalog import (
    Catalog,
    Categorical,
    DefaultModelConfig,
    Distribution,
    MLPEncoderConfig,
    ModelConfig,
    RuleTable,
    action_distribution_rules,
    encoder_rules,
)
from catalog.rules import Node

TWO = spaces.Discrete(2)
CONFIG = DefaultModelConfig()


@pytest.fixture
def tables() -> Iterator[None]:
    """Rules registered in the test are forgotten after it."""
    kept = {table: list(table._rules) for table in (encoder_rules, action_distribution_rules)}
    yield
    for table, rules in kept.items():
        table._rules[:] = rules


class Points(spaces.Box):
    """A space class of a user's own."""


def table() -> RuleTable[str]:
    return RuleTable("toy")


def test_the_newest_matching_rule_wins_and_those_before_are_skipped() -> None:
    rules = table()
    rules.register(spaces.Discrete, name="first")(lambda *_: "first")
    rules.register(spaces.Discrete, name="big", when=lambda space, config: space.n > 5)(lambda *_: "big")
    rules.register(spaces.Box, name="other")(lambda *_: "other")
    rules.register(spaces.Discrete, name="huge", when=lambda space, config: space.n > 50)(lambda *_: "huge")
    assert rules.root(spaces.Discrete(3), CONFIG, "s").run() == "first"
    node = rules.root(spaces.Discrete(10), CONFIG, "s")
    assert node.run() == "big"
    assert node.rule is not None
    assert (node.rule.name, [other.name for other in node.passed]) == ("big", ["huge"])


def test_a_rule_sees_space_config_and_node() -> None:
    rules = table()
    rules.register(spaces.Discrete, name="all")(
        lambda space, config, node: f"{node.path} {space.n} {config.fcnet_hiddens}"
    )
    assert rules.root(spaces.Discrete(3), CONFIG, "obs").run() == "obs 3 (64, 64)"


def words() -> RuleTable[str]:
    """A table for Dicts of Discretes that spells out what it is asked."""
    rules = table()
    rules.register(spaces.Discrete, name="leaf")(lambda space, config, node: f"{node.name}:{config.fcnet_hiddens[0]}")

    @rules.register(spaces.Dict, name="Dict")
    def _(space: spaces.Dict, config: DefaultModelConfig, node: Node[str]) -> str:
        return " ".join(node.child(key, child) for key, child in space.spaces.items())

    @rules.register(spaces.Tuple, name="Tuple")
    def _(space: spaces.Tuple, config: DefaultModelConfig, node: Node[str]) -> str:
        return " ".join(node.child(index, child) for index, child in enumerate(space.spaces))

    return rules


NESTED = spaces.Dict(a=spaces.Dict(b=TWO, c=TWO), d=spaces.Tuple([TWO, TWO]))


def test_parts_are_decided_below_and_leave_a_record() -> None:
    root = words().root(NESTED, CONFIG, "obs")
    assert root.run() == "a.b:64 a.c:64 d.0:64 d.1:64"
    assert [node.path for node in root.walk()] == [
        "obs", "obs['a']", "obs['a']['b']", "obs['a']['c']", "obs['d']", "obs['d'][0]", "obs['d'][1]"
    ]  # fmt: skip
    assert [node.result for node in root.children] == ["a.b:64 a.c:64", "d.0:64 d.1:64"]
    root.run()
    assert len(list(root.walk())) == 7, "a second run must not pile up records"


def test_settings_by_path_reach_a_part_and_all_below_it() -> None:
    config = DefaultModelConfig(leaf_overrides={"a": {"fcnet_hiddens": [8]}, "a.c": {"fcnet_hiddens": [4]}})
    assert words().root(NESTED, config, "obs").run() == "a.b:8 a.c:4 d.0:64 d.1:64"


def test_whoever_decides_the_root_decides_the_parts() -> None:
    rules = words()

    def hook(node: Node[str]) -> str:
        return "mine" if node.name == "a.b" else rules.resolve(node.space, node.model_config, node)

    assert Node(NESTED, CONFIG, "obs", hook).run() == "mine a.c:64 d.0:64 d.1:64"


def test_settings_that_a_hook_passes_on_reach_the_parts() -> None:
    rules = words()

    def hook(node: Node[str]) -> str:
        config = node.model_config
        widths = (*config.fcnet_hiddens[:1], 2) if node.keys else (7,)
        return rules.resolve(node.space, dataclasses.replace(config, fcnet_hiddens=widths), node)

    config = DefaultModelConfig(leaf_overrides={"a.c": {"fcnet_hiddens": [4]}})
    root = Node(NESTED, config, "obs", hook)
    assert root.run() == "a.b:7 a.c:4 d.0:7 d.1:7"
    assert [node.model_config.fcnet_hiddens for node in root.walk()][:3] == [(7,), (7, 2), (7, 2)]


def test_a_space_without_a_branch_names_path_table_and_rules() -> None:
    rules = table()
    rules.register(spaces.Discrete, name="Discrete → one")(lambda *_: "one")
    rules.register(spaces.Box, name="Box → two")(lambda *_: "two")
    rules.register(spaces.Dict, name="Dict → x")(lambda space, config, node: node.child("x", space["x"]))
    with pytest.raises(
        ValueError, match=r"obs\['x'\]: .*toy table \(Discrete → one; Box → two; Dict → x\), got Text"
    ) as error:
        rules.root(spaces.Dict(x=spaces.Text(5)), CONFIG, "obs").run()
    assert "@toy_rules.register(Text, ...)" in str(error.value)


UNKNOWN = [spaces.Text(5), spaces.Sequence(TWO), spaces.Graph(TWO, None), spaces.OneOf([TWO, TWO])]


@pytest.mark.parametrize("space", UNKNOWN, ids=lambda space: type(space).__name__)
def test_a_catalog_refuses_spaces_without_a_branch_and_says_where(space: spaces.Space) -> None:
    with pytest.raises(ValueError, match=r"^observation_space: expected .*Discrete.*, got .*wrapper|register"):
        Catalog(space, TWO)
    with pytest.raises(ValueError, match=r"^observation_space\['a'\]\[1\]: expected "):
        Catalog(spaces.Dict(a=spaces.Tuple([TWO, space]), b=TWO), TWO)
    with pytest.raises(ValueError, match=r"^action_space: expected "):
        Catalog(TWO, space)
    with pytest.raises(ValueError, match=r"^action_space\['a'\]\[1\]: expected "):
        Catalog(TWO, spaces.Dict(a=spaces.Tuple([TWO, space]), b=TWO))


@pytest.mark.usefixtures("tables")
def test_a_user_s_rule_wins_over_the_built_in_one() -> None:
    @encoder_rules.register(spaces.Box, name="short vectors → tiny MLP", when=lambda space, _: space.shape == (2,))
    def _(space: spaces.Box, model_config: DefaultModelConfig, node: Node) -> ModelConfig:
        return MLPEncoderConfig(input_dims=space.shape, hidden_layer_dims=(3,))

    catalog = Catalog(spaces.Box(-1, 1, (2,)), TWO)
    assert catalog.latent_dims == (3,)
    assert "short vectors → tiny MLP" in catalog.explain()
    longer = Catalog(spaces.Box(-1, 1, (4,)), TWO)
    assert longer.latent_dims == (64,)
    assert "skipped            short vectors → tiny MLP" in longer.explain()


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

    @encoder_rules.register(Points, name="Points → mine")
    def _(space: Points, model_config: DefaultModelConfig, node: Node) -> ModelConfig:
        return MineConfig()

    @action_distribution_rules.register(Points, name="Points → Mine")
    def _(space: Points, model_config: DefaultModelConfig, node: Node) -> type[Distribution]:
        return Mine

    space = Points(-1, 1, (2, 3))
    catalog = Catalog(space, space)
    assert catalog.get_action_dist_cls() is Mine
    assert catalog.build_actor_critic_encoder()(torch.zeros(4, 2, 3)).actor.shape == (4, 5)
    assert {"Points → mine", "MineConfig", "Mine, 7 inputs"} <= {
        part.strip() for line in catalog.explain().splitlines() for part in (line, line[25:])
    }


def test_a_rule_is_for_a_class_of_spaces() -> None:
    with pytest.raises(TypeError, match=r"toy_rules\.register\(\): expected a class of gymnasium\.Space, got 'Text'"):
        table().register("Text", name="text")  # type: ignore[arg-type]
