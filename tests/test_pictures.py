"""The pictures that are drawn from the code show the code as it is: each holds the text that it was drawn from."""

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

import algorithms.ppo  # noqa: F401  (first, since a script beside the pictures is called tree, as a package is)

PICTURES = Path(__file__).parents[1] / "docs" / "pictures"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(PICTURES)
    return import_module


def text_in(picture: str) -> str:
    with Image.open(PICTURES / picture) as image:
        return image.info["Description"]


def test_the_iteration_is_drawn_as_it_runs(script: Any) -> None:
    drawing: ModuleType = script("iteration")
    assert text_in("iteration.png") == drawing.text_of(drawing.outline()), "run python docs/pictures/iteration.py"


def test_the_rooms_are_drawn_as_they_are(script: Any) -> None:
    drawing: ModuleType = script("rooms")
    assert text_in("rooms.png") == drawing.text_of(drawing.imports_between_rooms()), "run python docs/pictures/rooms.py"
