"""Each planted fault is found by the test that is named for it, which passes without the fault.

The faults are planted one at a time in a copy of the tree: all of them by ``make test-matrix``, and a few, drawn by a
seed, in the second stage. ``PLANTED_FAULTS_SEED`` repeats a draw.
"""

from __future__ import annotations

import datetime
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.planted_faults.table import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("catalog", "rlmodule", "algorithms", "tests", "catalog_rl.py", "pyproject.toml")
LEAST_FOUND = 28
FEW = 2


@pytest.fixture(scope="module")
def copied_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the packages and the tests, in which faults can be planted."""
    copy = tmp_path_factory.mktemp("tree")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    return copy


def run(tree: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    """Run ``tests`` in ``tree``."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
    # no byte code: it is trusted by seconds, in which a fault can come and go
    env = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, timeout=600, check=False)


def is_found(fault: Fault, tree: Path) -> bool:
    """Return whether the named test fails with ``fault`` in ``tree``, which is left as it was."""
    path = tree / fault.path
    text = path.read_text(encoding="utf-8")
    assert text.count(fault.line) == 1, f"{fault.path}: expected the line once:\n{fault.line}\nRewrite the fault."
    try:
        path.write_text(text.replace(fault.line, fault.faulty), encoding="utf-8")
        finished = run(tree, fault.test)
    finally:
        path.write_text(text, encoding="utf-8")
    # 1: a test failed. Anything else but 0 says that no test ran, such as one of another name.
    assert finished.returncode in (0, 1), f"{fault.test} did not run:\n{finished.stdout[-2000:]}{finished.stderr}"
    return finished.returncode == 1


def report_missed(names: list[str]) -> str:
    """Return a text that lists the faults ``names``."""
    missed = [f"{name}: {FAULTS[name].suffered} ({FAULTS[name].test} passed)" for name in names]
    return "\n".join(["missed faults:", *missed])


@pytest.mark.matrix
@pytest.mark.faults
def test_original_lines_stand() -> None:
    lost = [
        f"{name}: {fault.path}: {fault.line}"
        for name, fault in FAULTS.items()
        if (ROOT / fault.path).read_text(encoding="utf-8").count(fault.line) != 1
    ]
    assert not lost, "\n".join(["expected these lines once; rewrite their faults:", *lost])


@pytest.mark.matrix
@pytest.mark.faults
def test_tests_pass_without_faults(copied_tree: Path) -> None:
    finished = run(copied_tree, *{fault.test: None for fault in FAULTS.values()})
    assert finished.returncode == 0, finished.stdout[-4000:] + finished.stderr


@pytest.mark.matrix
@pytest.mark.faults
def test_nearly_all_faults_are_found(copied_tree: Path) -> None:
    missed = [name for name, fault in FAULTS.items() if not is_found(fault, copied_tree)]
    assert len(FAULTS) >= 30
    assert len(FAULTS) - len(missed) >= max(LEAST_FOUND, len(FAULTS) - 2), report_missed(missed)


@pytest.mark.end_to_end
def test_a_few_drawn_faults_are_found(copied_tree: Path) -> None:
    seed = os.environ.get("PLANTED_FAULTS_SEED", datetime.date.today().isoformat())
    drawn = random.Random(seed).sample([*FAULTS], FEW)
    missed = [name for name in drawn if not is_found(FAULTS[name], copied_tree)]
    assert not missed, f"PLANTED_FAULTS_SEED={seed}: {report_missed(missed)}"
