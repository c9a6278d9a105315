"""Each planted fault is found by the test that is named for it, which passes without the fault.

The faults are planted one at a time in a copy of the tree: all of them by ``make test-matrix``, and a few, drawn by a
seed, in the second stage. ``PLANTED_FAULTS_SEED`` repeats a draw.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.planted_faults.table import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("catalog", "rlmodule", "algorithms", "tests", "catalog_rl.py", "pyproject.toml")
LEAST_FOUND = 28
FEW = 2


class Tree:
    """Runs tests in a copy of the repository, each time in a new process, which has imported nothing of the project."""

    def __init__(self, path: Path) -> None:
        self.path, self._log = path, path / "log.txt"
        # no byte code: it is trusted by seconds, in which a fault can come and go
        more = {"PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(Path(__file__).parent / "forks.py"), str(self._log)]
        pipe = subprocess.PIPE
        self._forks = subprocess.Popen(command, cwd=path, env=os.environ | more, stdin=pipe, stdout=pipe, text=True)

    def run(self, *tests: str) -> int:
        """Return the exit code of pytest."""
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        self._forks.stdin.write(json.dumps(tests) + "\n")
        self._forks.stdin.flush()
        return int(self._forks.stdout.readline())

    @property
    def output(self) -> str:
        """The end of what the last run wrote."""
        return self._log.read_text(encoding="utf-8")[-4000:]

    def close(self) -> None:
        self._forks.communicate()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """Tests in a copy of the packages and tests, in which faults can be planted."""
    copy = tmp_path_factory.mktemp("tree")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    with closing(Tree(copy)) as tree:
        yield tree


def is_found(fault: Fault, tree: Tree) -> bool:
    """Return whether the named test fails with ``fault`` in the tree, which is left as it was."""
    path = tree.path / fault.path
    text = path.read_text(encoding="utf-8")
    assert text.count(fault.line) == 1, f"{fault.path}: expected the line once:\n{fault.line}\nRewrite the fault."
    try:
        path.write_text(text.replace(fault.line, fault.faulty), encoding="utf-8")
        code = tree.run(fault.test)
    finally:
        path.write_text(text, encoding="utf-8")
    # 1: a test failed. Anything else but 0 says that no test ran, such as one of another name.
    assert code in (0, 1), f"{fault.test} did not run:\n{tree.output}"
    return code == 1


def report_missed(names: list[str]) -> str:
    """Return a text that lists the faults ``names``."""
    missed = [f"{name}: {FAULTS[name].suffered} ({FAULTS[name].test} passed)" for name in names]
    return "\n".join(["missed faults:", *missed])


def test_original_lines_stand() -> None:
    lost = [
        f"{name}: {fault.path}: {fault.line}"
        for name, fault in FAULTS.items()
        if (ROOT / fault.path).read_text(encoding="utf-8").count(fault.line) != 1
    ]
    assert not lost, "\n".join(["expected these lines once; rewrite their faults:", *lost])


@pytest.mark.matrix
@pytest.mark.slow
def test_tests_pass_without_faults(tree: Tree) -> None:
    assert tree.run(*{fault.test: None for fault in FAULTS.values()}) == 0, tree.output


@pytest.mark.matrix
@pytest.mark.slow
def test_nearly_all_faults_are_found(tree: Tree) -> None:
    missed = [name for name, fault in FAULTS.items() if not is_found(fault, tree)]
    assert len(FAULTS) >= 30
    assert len(FAULTS) - len(missed) >= max(LEAST_FOUND, len(FAULTS) - 2), report_missed(missed)


@pytest.mark.end_to_end
def test_a_few_drawn_faults_are_found(tree: Tree) -> None:
    seed = os.environ.get("PLANTED_FAULTS_SEED", datetime.date.today().isoformat())
    drawn = random.Random(seed).sample([*FAULTS], FEW)
    missed = [name for name in drawn if not is_found(FAULTS[name], tree)]
    assert not missed, f"PLANTED_FAULTS_SEED={seed}: {report_missed(missed)}"
