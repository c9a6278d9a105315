"""Files that somebody else wrote: no text in them is imported, called, opened or connected to, by any reader."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.end_to_end
def test_no_text_of_a_file_is_imported_called_or_opened() -> None:
    """The table in ``hostile_files.py`` has a row for each field of each kind of file, and says what becomes of a text
    there. To read a file that is allowed to import shows that the hook sees it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
    words = [sys.executable, "-m", "tests.hostile_files"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report.pop("num_read") > 2000
    assert report == {
        "seen": [],
        "fields_without_a_row": [],
        "rows_without_a_field": [],
        "against_the_table": [],
        "not_seen_though_allowed": [],
    }
