"""Type checkers complete and check the methods of configs from their source."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

TYPED = Path(__file__).with_name("typed_configs.py")


def test_checkers_find_every_mistake_and_nothing_else() -> None:
    pytest.importorskip("pyright")
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", str(TYPED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = {each["range"]["start"]["line"]: each["message"] for each in found}
    marked = {line for line, text in enumerate(TYPED.read_text().splitlines()) if text.endswith("# error")}
    assert errors.keys() == marked, errors
