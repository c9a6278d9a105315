"""The stubs are up to date, and hold what their modules offer."""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest

from algorithms import stubs
from algorithms.config import AlgorithmConfig
from algorithms.settings.fields import settings_of

SOURCE = '''
"""A module with everything a stub has to deal with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from algorithms.config import AlgorithmConfig
from algorithms.settings import setting, settings

if TYPE_CHECKING:
    from pathlib import Path

Kind: TypeAlias = Literal["a", "b"]
LIMIT: int = 3


class _Base:
    pass


class _Unused:
    pass


class Thing(_Base):
    """A class."""

    count: int = 0

    def __init__(self, path: Path, /, size: int = 3, *rest: int, x: bool = False, **more: Any) -> None:
        self.path = path
        self.names: list[str] = []
        self.secret = math.pi

    @staticmethod
    async def wait(seconds: "list[Kind] | Literal['b']") -> "Thing":
        """Wait."""

    class Inner:
        x: int = 0


@settings
class ThingConfig(AlgorithmConfig):
    gamma = 0.5
    kind: Kind = setting("a", "training", "Which kind.")

    @property
    def algo_class(self) -> Any:
        return Thing


def public(
    long_parameter_name: int = 1, *, another_long_parameter_name: str = "x", a_third_long_parameter_name: float = 2.0
) -> None:
    pass


def _private() -> None:
    pass
'''


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    (tmp_path / "thing_for_stubs.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "thing_for_stubs", raising=False)
    monkeypatch.setattr(stubs, "MODULES", ("thing_for_stubs",))
    return importlib.import_module("thing_for_stubs")


def methods(tree: ast.Module, name: str) -> dict[str, ast.FunctionDef]:
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}


def test_stubs_are_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    assert stubs.main(["--check"]) == 0, capsys.readouterr().err


def test_stub_of_the_base_config_has_every_setting_and_method() -> None:
    tree = ast.parse(stubs.stub_of(importlib.import_module("algorithms.config")))
    found = methods(tree, "AlgorithmConfig")
    for section in {known.section for known in settings_of(AlgorithmConfig).values()}:
        signature = found[section].args
        names = [arg.arg for arg in [*signature.args, *signature.kwonlyargs]]
        assert names == list(inspect.signature(getattr(AlgorithmConfig, section)).parameters)
        assert all(arg.annotation is not None for arg in [*signature.args[1:], *signature.kwonlyargs])
        assert ast.get_docstring(found[section]) == inspect.getdoc(getattr(AlgorithmConfig, section))
    assert {"build", "validate", "get_rollout_fragment_length", "algo_class", "from_dict"} <= found.keys()


def test_stub_repeats_what_a_module_offers(made: ModuleType) -> None:
    text = stubs.stub_of(made)
    for line in (
        "from pathlib import Path",
        "from algorithms.settings.checks import Schedule",  # for the type of an inherited setting
        'Kind: TypeAlias = Literal["a", "b"]',
        "LIMIT: int",
        "class _Base: ...",
        "class Thing(_Base):",
        "    def __init__(self, path: Path, /, size: int = ..., *rest: int, x: bool = ..., **more: Any) -> None: ...",
        "    path: Path",
        "    names: list[str]",
        "    async def wait(seconds: list[Kind] | Literal['b']) -> Thing: ...",
        "    class Inner:",
        "@settings",
        "    kind: Kind = ...",
        "        kind: Kind = ...,",
        "        lr: Schedule = ...,",
        "    another_long_parameter_name: str = ...,",
    ):
        assert line in text.splitlines(), line
    for absent in ("_private", "_Unused", "import math", "secret", "gamma = "):
        assert absent not in text
    ast.parse(text)
    assert max(map(len, text.splitlines())) <= 120


def test_check_notices_stale_stubs(made: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert made.__file__ is not None
    stub = Path(made.__file__).with_suffix(".pyi")
    assert stubs.main(["--check"]) == 1
    assert str(stub) in capsys.readouterr().err
    assert not stub.exists()
    assert stubs.main([]) == 0
    assert stubs.main(["--check"]) == 0
    stub.write_text(stub.read_text() + "x: int\n")
    assert stubs.main(["--check"]) == 1
    assert "Run python -m algorithms.stubs" in capsys.readouterr().err
