"""What the pages on the catalog list is what the code has: rules, hooks, settings, sizes."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest
from PIL import Image

import catalog
from algorithms.ppo import PPOCatalog
from catalog import (
    CNNEncoderConfig,
    DefaultModelConfig,
    Distribution,
    action_converter_rules,
    action_distribution_rules,
    encoder_rules,
)
from catalog.rules import RuleTable

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of all table rows below a heading, without the heads of the tables."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = re.split(r"^## ", text.partition(f"\n## {heading}\n")[2], maxsplit=1, flags=re.M)[0]
    assert section, heading
    tables = re.findall(r"^\|.*\n\|[ |-]+\|\n((?:\|.*\n)+)", section, re.M)
    return [[cell.strip() for cell in row[1:-1].split("|")] for table in tables for row in table.splitlines()]


@pytest.mark.parametrize(
    ("page", "heading", "table"),
    [
        ("observations.md", "From space to net", encoder_rules),
        ("actions.md", "From space to distribution", action_distribution_rules),
        ("actions.md", "On the way to the environment", action_converter_rules),
    ],
    ids=["encoders", "distributions", "converters"],
)
def test_every_rule_is_listed_and_every_listed_rule_is_there(page: str, heading: str, table: RuleTable) -> None:
    listed = {row[1] for row in rows(page, heading) if "→" in row[1] or row[1] == "custom_model"}
    assert listed == {rule.name for rule in table._rules}


def test_every_hook_is_listed_and_every_listed_hook_is_there() -> None:
    beginnings = ("build_", "get_", "_get_", "_determine_")
    there = {name for name in dir(PPOCatalog) if name.startswith(beginnings)}
    table = " ".join(row[0] for row in rows("catalog.md", "Overriding a hook"))
    assert set(re.findall(r"`(\w+)\(", table)) == there


def test_every_method_of_a_distribution_is_listed() -> None:
    table = " ".join(row[0] for row in rows("actions.md", "A distribution from scratch"))
    methods = {name for name, value in vars(Distribution).items() if not name.startswith("_") and value is not None}
    assert set(re.findall(r"`(\w+)[`(]", table)) == methods


@pytest.mark.parametrize("row", [row for row in rows("observations.md", "Images") if "×" in row[0]], ids=str)
def test_sizes_behind_the_default_filters(row: list[str]) -> None:
    height, width = map(int, row[0].split(" × "))
    for padding, shown in zip(("same", "valid"), row[1:], strict=True):
        config = CNNEncoderConfig(input_dims=(height, width, 3), padding=padding)
        assert shown == ", ".join(f"{h}×{w}" for _, h, w in config.layer_dims[1:])


@pytest.mark.parametrize("row", [row for row in rows("observations.md", "Images") if row[0].startswith("`(")], ids=str)
def test_channels_of_the_shapes_that_are_shown(row: list[str]) -> None:
    config = CNNEncoderConfig(input_dims=ast.literal_eval(row[0].strip("`")))
    assert config.channels == ("last" if "[H, W, C]" in row[1] else "first")


def test_the_picture_of_the_tree_shows_every_distribution_and_option() -> None:
    """By what was written into the picture when it was drawn."""
    with Image.open(DOCS / "pictures/tree.png") as picture:
        said = picture.info["Description"]
    classes = [item for name in catalog.__all__ if isinstance(item := getattr(catalog, name), type)]
    named = {cls.__name__ for cls in classes if issubclass(cls, Distribution)} - {"Distribution"}
    settings = [field.name for field in dataclasses.fields(DefaultModelConfig)]
    named |= {name for name in settings if name.startswith("use_") or name in ("custom_model", "custom_action_dist")}
    named |= {str(getattr(DefaultModelConfig(), name)) for name in settings if name.endswith("_key")}
    assert [name for name in sorted({*named, "autoregressive_actions"}) if name not in said] == []
