"""An iteration of PPO stays short enough to be read, and CONTRIBUTING has its figures."""

import re
from pathlib import Path

from benchmarks.house import reading_set

ROOT = Path(__file__).resolve().parents[2]


def test_an_iteration_of_ppo_can_be_read() -> None:
    read = reading_set()
    frames = [name for name in read.frames if not name.startswith("<")]  # comprehensions are none from Python 3.12 on
    files, lines = len(read.lines), sum(read.functions.values())
    assert files <= 24, sorted(read.lines)
    assert lines <= 1500
    assert len(frames) <= 7, frames
    told = re.findall(r"^\| .* iteration of PPO \| ([\d,]+) \|", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.M)
    assert int(told[0]) == files
