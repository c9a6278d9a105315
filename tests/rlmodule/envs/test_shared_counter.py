"""The tally: counted by one process, read by another, whatever becomes of the first."""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlmodule.envs.shared_counter import Tally

COUNTS = """
import os, signal, sys
from rlmodule.tally import Tally
tally = Tally.create(sys.argv[1])
for _ in range(1234):
    tally.cell[0] += 1
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_tally_without_a_file_counts() -> None:
    tally = Tally()
    tally.cell[0] += 3
    assert (tally.count, tally.path) == (3, None)
    tally.close()
    assert tally.count == 3


def test_what_was_counted_is_there_after_the_process_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "tally"
    done = subprocess.run([sys.executable, "-c", COUNTS, str(path)], check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL
    tally = Tally.attach(str(path))
    assert tally is not None
    assert tally.count == 1234


def test_both_see_each_count_and_nothing_is_left_of_the_file() -> None:
    here = Tally.create()
    assert here.path is not None
    there = Tally.attach(here.path)
    assert there is not None
    here.cell[0] += 2**40
    assert there.count == 2**40
    assert not os.path.exists(here.path)
    there.close()
    here.cell[0] += 1
    assert (here.count, there.count) == (2**40 + 1, 2**40)
    here.close()
    assert here.count == 2**40 + 1


def test_a_file_on_another_machine_is_none_and_one_that_is_there_is_not_taken(tmp_path: Path) -> None:
    assert Tally.attach(str(tmp_path / "tally")) is None
    Tally.create(str(tmp_path / "tally"))
    with pytest.raises(FileExistsError):
        Tally.create(str(tmp_path / "tally"))


def test_a_tally_is_not_sent_by_mistake() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(Tally())
