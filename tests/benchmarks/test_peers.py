"""The table of peers: what is measured in turn, what is left out, and what the figures come to."""

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.peers import run

SPEEDS = {"ours_ppo": 1000.0, "bare_ppo": 800.0, "peers.sb3": 500.0, "peers.rllib": 250.0}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The scripts that are run, each of which answers at once; that of Tianshou fails."""
    called: list[str] = []

    def child(*args: str, python: str) -> dict[str, Any]:
        script = args[1].removeprefix("benchmarks.")
        called.append(script)
        if script == "peers.tianshou":
            raise SystemExit("it fell over")
        return {"steps_per_s": SPEEDS[script] * len(called)}

    monkeypatch.setattr(run, "child", child)
    return called


def test_all_run_in_turn_and_one_that_fails_is_told_and_left_out(calls: list[str]) -> None:
    printed: list[str] = []
    figures = run.measure("cartpole", {"sb3": "/a", "tianshou": "/b"}, 2, printed.append)
    assert calls == ["ours_ppo", "bare_ppo", "peers.sb3", "peers.tianshou", "ours_ppo", "bare_ppo", "peers.sb3"]
    assert figures == {"ours": [1000.0, 5000.0], "bare": [1600.0, 4800.0], "sb3": [1500.0, 3500.0]}
    assert [text for text in printed if "left out" in text] == ["cartpole: tianshou is left out. it fell over"]


def test_a_failure_of_ours_is_none_to_leave_out(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SPEEDS, "ours_ppo", float("nan"))

    def child(*args: str, python: str) -> dict[str, Any]:
        raise SystemExit("broken")

    monkeypatch.setattr(run, "child", child)
    with pytest.raises(SystemExit, match="broken"):
        run.measure("cartpole", {}, 1, lambda text: None)


def test_ratios_are_those_of_neighbours() -> None:
    assert run.ratio([10.0, 20.0, 40.0], [5.0, 5.0, 80.0], "cartpole") == 2.0
    assert run.ratio([2.0], [3.0], "import") == 1.5  # seconds: less is faster


def test_the_table_says_which_floors_are_reached() -> None:
    figures = {"ours": [100.0], "bare": [100.0], "sb3": [50.0], "rllib": [50.0]}
    row = run.table({"cartpole": {"machine": "here", "figures": figures}}).splitlines()[2]
    assert "| 100 | 100 (1.00 ×) | 50 (2.00 ×) | 50 (2.00 ×) | – |" in row
    assert "bare 0.9: yes" in row
    assert "SB3 1.8: yes" in row
    assert "RLlib 4: no" in row


def test_a_job_that_only_peers_were_measured_in_stands_without_ratios_or_a_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {"agents-own": {"machine": "here", "figures": {"rllib": [900.0, 1000.0, 1100.0]}}}
    row = run.table(kept).splitlines()[2]
    assert (
        row == "| PPO CartPole, 4 agents, 4 modules | – | – | – | 1,000 | – | – | – | – | RLlib 5: not measured yet |"
    )
    monkeypatch.setattr(run, "PICTURE", tmp_path / "peers.png")
    run.draw(kept)
    assert not run.PICTURE.exists()


def test_a_peer_that_cannot_be_installed_is_told_and_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "HOMES", tmp_path)
    monkeypatch.setattr(run.sys, "executable", "/bin/false")
    assert run.python_of("sb3", Console(width=200)) is None
    assert "SB3 is left out, since `/bin/false -m venv" in capsys.readouterr().out
    assert not (tmp_path / "sb3" / ".installed").exists()


def test_every_version_that_is_told_is_pinned() -> None:
    assert "?" not in run.versions()


def test_the_page_has_what_was_kept() -> None:
    kept = json.loads(run.KEPT.read_text(encoding="utf-8"))
    assert run.table(kept) in run.README.read_text(encoding="utf-8")
