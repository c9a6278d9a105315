"""Processes of this machine: what is left of those that ended."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlmodule.distributed import processes
from rlmodule.distributed.processes import file_prefix, remove_leftovers


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_files_of_processes_that_ended_are_removed_and_no_others(
    tmp_path: Path, sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SHARED_FOLDER", str(tmp_path))
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    kept = {f"{file_prefix()}a", f"rlmodule-{sleeper.pid}-a", "rlmodule-a", "other", f"other-{done.pid}-a"}
    for name in kept | {f"rlmodule-{done.pid}-a-0-0", f"rlmodule-{done.pid}-b.log"}:
        (tmp_path / name).touch()
    remove_leftovers()
    assert {path.name for path in tmp_path.iterdir()} == kept
