"""The shared counter: counted by one process, read by another, whatever becomes of the first."""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlmodule.envs.shared_counter import SharedCounter

COUNTS = """
import os, signal, sys
from rlmodule.envs.shared_counter import SharedCounter
counter = SharedCounter.create(sys.argv[1])
for _ in range(1234):
    counter.cell[0] += 1
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_tally_without_a_file_counts() -> None:
    step_counter = SharedCounter()
    step_counter.cell[0] += 3
    assert step_counter.count == 3


def test_what_was_counted_is_there_after_the_process_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "step_counter"
    done = subprocess.run([sys.executable, "-c", COUNTS, str(path)], check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL
    step_counter = SharedCounter.attach(str(path))
    assert step_counter is not None
    assert step_counter.count == 1234


def test_both_see_each_count_and_nothing_is_left_of_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "step_counter")
    here = SharedCounter.create(path)
    assert os.stat(path).st_mode & 0o777 == 0o600  # nobody else reads it, whatever the umask
    there = SharedCounter.attach(path)
    assert there is not None
    here.cell[0] += 2**40
    assert there.count == 2**40
    assert not os.path.exists(path)


def test_a_file_on_another_machine_is_none_and_one_that_is_there_is_not_taken(tmp_path: Path) -> None:
    assert SharedCounter.attach(str(tmp_path / "step_counter")) is None
    SharedCounter.create(str(tmp_path / "step_counter"))
    with pytest.raises(FileExistsError):
        SharedCounter.create(str(tmp_path / "step_counter"))


def test_a_tally_is_not_sent_by_mistake() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(SharedCounter())
