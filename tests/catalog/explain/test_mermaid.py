"""explain(format="mermaid") is the outline as a flowchart that Mermaid can read."""

from __future__ import annotations

import html
import re
from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from algorithms.cli.main import main
from algorithms.ppo import PPOCatalog
from catalog import Catalog
from catalog.explain.mermaid import Line, flowchart

VECTOR, TWO = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)
NODE = re.compile(r'    (n\d+)\["([^"]*)"\]')
EDGE = re.compile(r"    (n\d+) --> (n\d+)")
ENTITY = re.compile(r"#(?:(\d+)|([a-z]+));")


def parse(chart: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Words of each box, label and text, and its parent; asserts that every line is a box or an arrow between two."""
    first, *rest = chart.split("\n")
    assert first == "flowchart LR"
    boxes: dict[str, list[str]] = {}
    parents: dict[str, str] = {}
    for line in rest:
        if found := NODE.fullmatch(line):
            assert found[1] not in boxes
            boxes[found[1]] = [unescaped(part) for part in found[2].split("<br/>")]
        else:
            found = EDGE.fullmatch(line)
            assert found is not None, line
            assert found[2] not in parents
            parents[found[2]] = found[1]
    assert {*parents} | {*parents.values()} <= {*boxes}
    return boxes, parents


def unescaped(label: str) -> str:
    assert not set(label) & set('"<>&`\\')
    assert "#" not in ENTITY.sub("", label)
    return ENTITY.sub(lambda found: chr(int(found[1])) if found[1] else html.unescape(f"&{found[2]};"), label)


def depths(parents: dict[str, str], boxes: dict[str, list[str]]) -> dict[str, int]:
    def depth(name: str) -> int:
        return 1 + depth(parents[name]) if name in parents else 0

    return {name: depth(name) for name in boxes}


SPACES = {
    "vector": (VECTOR, TWO, {}),
    "images and a vector": (
        spaces.Dict({"camera": spaces.Box(0, 255, (16, 16, 3), np.uint8), 'the "arm" [m] #1 <b>&': VECTOR}),
        spaces.Tuple([TWO, spaces.Box(0, 1, (2,))]),
        {"use_lstm": True, "lstm_use_prev_action": True, "conv_dense_dim": 8},
    ),
    "a critic of its own": (VECTOR, TWO, {"functions": {"value": {"fcnet_hiddens": [8]}}, "vf_share_layers": False}),
}


@pytest.mark.parametrize("name", SPACES)
def test_the_flowchart_says_what_the_text_says(name: str) -> None:
    catalog = PPOCatalog(*SPACES[name])
    boxes, parents = parse(catalog.explain(format="mermaid"))
    said = [" ".join(" ".join(words).split()) for words in boxes.values()]
    # numbers of parameters stand apart in the text
    assert " ".join(said) == " ".join(catalog.explain().split())
    (root,) = {*boxes} - {*parents}
    assert boxes[root] == ["PPOCatalog"]
    assert catalog.explain("text") == catalog.explain()


def test_what_belongs_to_a_line_hangs_on_it() -> None:
    boxes, parents = parse(PPOCatalog(*SPACES["images and a vector"]).explain("mermaid"))
    of = {words[0]: name for name, words in boxes.items()}
    assert boxes[parents[of["camera"]]][0] == "tokenizer"
    assert boxes[parents[of['the "arm" [m] #1 <b>&']]][0] == "tokenizer"
    assert boxes[parents[of["policy head"]]][0] == "parameters"
    assert boxes[parents[of["action space"]]][0] == "PPOCatalog"


def test_overridden_hooks_are_boxes_too() -> None:
    class Mine(Catalog):
        def build_encoder(self) -> nn.Module:
            return super().build_encoder()

    boxes, parents = parse(Mine(VECTOR, TWO).explain("mermaid"))
    (mine,) = [
        name for name, words in boxes.items() if words == ["Mine.build_encoder() in place of Catalog.build_encoder()"]
    ]
    assert boxes[parents[mine]] == ["overridden"]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.text(), st.text(min_size=1)), min_size=1, max_size=12))
def test_any_words_and_any_depths_make_a_chart_that_can_be_read(lines: list[tuple[int, str, str]]) -> None:
    drawn = [Line(depth, label, text) for depth, label, text in lines]
    boxes, parents = parse(flowchart(drawn))
    assert len(boxes) == len(lines)
    for number, (depth, label, text) in enumerate(lines):
        parts = [" ".join(part.split()) for part in (label, text) if part]
        assert boxes[f"n{number}"] == parts
        further_out = [n for n in range(number) if lines[n][0] < depth]
        assert parents.get(f"n{number}") == (f"n{further_out[-1]}" if further_out else None)


def test_an_unknown_format_is_told_the_closest() -> None:
    with pytest.raises(
        ValueError, match=r"explain\(format=\): expected one of the formats \['text', 'mermaid'\], .* mean 'mermaid'\?"
    ):
        PPOCatalog(VECTOR, TWO).explain(format="mermade")  # type: ignore[arg-type]


def test_the_page_shows_one_that_is_current() -> None:
    page = (Path(__file__).parents[3] / "docs" / "catalog.md").read_text("utf-8")
    shown = page.partition("```mermaid\n")[2].partition("\n```")[0]
    catalog = Catalog(spaces.MultiBinary(4), spaces.Discrete(2), {"fcnet_hiddens": [32]})
    parse(shown)
    assert shown == catalog.explain(format="mermaid")


def test_the_shell_writes_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "CartPole-v1", "--format", "mermaid"]) == 0
    boxes, _ = parse(capsys.readouterr().out.rstrip("\n"))
    assert ["encoder", "Box of rank 0 or 1 → MLP"] in boxes.values()
