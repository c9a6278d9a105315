"""What a package offers is listed in `__all__`, in order, and says what it is."""

import importlib
import inspect
import subprocess
import sys
from types import ModuleType

import pytest

PACKAGES = ["catalog", "rlmodule", "rlmodule.agents", "algorithms", "algorithms.ppo"]


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(request.param)


def own_doc(thing: object) -> str:
    """The docstring written for `thing` itself: not an inherited one, nor a dataclass's generated signature."""
    doc = thing.__dict__.get("__doc__") if isinstance(thing, type) else thing.__doc__
    return "" if doc is None or (isinstance(thing, type) and doc.startswith(f"{thing.__name__}(")) else doc.strip()


def test_all_is_sorted_and_without_doubles(package: ModuleType) -> None:
    names = package.__all__
    assert list(names) == sorted(set(names))


def test_every_name_resolves(package: ModuleType) -> None:
    missing = [name for name in package.__all__ if not hasattr(package, name)]
    assert package.__all__
    assert not missing


def test_every_class_and_function_has_a_docstring(package: ModuleType) -> None:
    things = {name: getattr(package, name) for name in package.__all__}
    bare = [
        n for n, thing in things.items() if isinstance(thing, type) or inspect.isroutine(thing) if not own_doc(thing)
    ]
    assert not bare


def test_nothing_private_is_offered(package: ModuleType) -> None:
    assert not [name for name in package.__all__ if name.startswith("_")]


def test_own_doc_sees_through_generated_ones() -> None:
    from dataclasses import dataclass

    @dataclass
    class Generated:
        field: int

    class Inherited(Exception):
        pass

    class Written:
        """Text."""

    assert [own_doc(thing) for thing in (Generated, Inherited, Written)] == ["", "", "Text."]


def test_packages_list_what_they_offer() -> None:
    """Notebooks complete what ``dir()`` lists. A new process has not used any of the names yet."""
    listing = "".join(
        f"import {name}; print(*dir({name}))\n" for name in PACKAGES
    )  # each package after those it imports
    done = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True, timeout=300)
    for name, listed in zip(PACKAGES, done.stdout.splitlines(), strict=True):
        assert {*importlib.import_module(name).__all__} <= {*listed.split()}, name
