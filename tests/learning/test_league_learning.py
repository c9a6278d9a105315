"""Leagues reach the equilibrium of a game that no single strategy wins."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "multi_agent" / "rock_paper_scissors.py"


@pytest.mark.slow
def test_a_league_plays_each_move_a_third_of_the_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("rock_paper_scissors", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    shares = [float(share) for share in re.findall(r": (0\.\d+)$", capsys.readouterr().out, re.M)]
    assert shares == pytest.approx([1 / 3] * 3, abs=0.1)
