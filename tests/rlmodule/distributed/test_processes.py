"""Processes of this machine: who is ended, and what is left of who was."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlmodule.distributed.processes import Process, file_prefix, remove_leftovers, wait_for_end


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def found(pid: int) -> Process:
    told = Path(f"/proc/{pid}/stat").read_text()
    return Process(pid, told.split(") ")[1].split()[19])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell when a process began")
def test_only_the_very_process_is_ended(sleeper: subprocess.Popen[bytes]) -> None:
    assert found(Process.this().pid) == Process.this()
    process = found(sleeper.pid)
    for other in (Process(sleeper.pid, process.started + "1"), Process(sleeper.pid, "")):
        assert not other.is_there()
        other.kill()
        assert wait_for_end([other], 10.0) == []
    assert wait_for_end([process], 0.05) == [process]
    process.kill()
    assert sleeper.wait(10) == -9
    assert wait_for_end([process], 10.0) == []


def test_files_of_processes_that_ended_are_removed_and_no_others(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    kept = {f"{file_prefix()}a", f"rlmodule-{sleeper.pid}-a", "rlmodule-a", "other", f"other-{done.pid}-a"}
    for name in kept | {f"rlmodule-{done.pid}-a-0-0", f"rlmodule-{done.pid}-b.log"}:
        (tmp_path / name).touch()
    remove_leftovers(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == kept
