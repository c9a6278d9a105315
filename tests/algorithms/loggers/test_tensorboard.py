"""TensorBoard's event files, read back by TensorBoard itself."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from algorithms.loggers import LoggedRun
from algorithms.loggers.tensorboard import TensorBoardLogger

Begin = Callable[..., LoggedRun]


def read(folder: Path) -> Any:
    """The folder's data, as TensorBoard holds it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it logs what it drops
    held = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    held.Reload()
    return held


def points(held: Any, tag: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in held.Scalars(tag)]


def test_numbers_are_scalars_tagged_by_path_against_env_steps(begin: Begin, tmp_path: Path) -> None:
    logger = TensorBoardLogger(begin())
    logger.log({"timers/update": 0.5, "training_iteration": 1, "evaluation/videos": [{"path": "x"}]}, 2048)
    logger.log({"timers/update": None, "training_iteration": 2, "custom_metrics/huge": 1e300}, 4096)
    logger.close()
    held = read(tmp_path)
    assert sorted(held.Tags()["scalars"]) == ["custom_metrics/huge", "timers/update", "training_iteration"]
    assert points(held, "timers/update") == [(2048, 0.5)]
    assert points(held, "training_iteration") == [(2048, 1.0), (4096, 2.0)]


def test_the_settings_are_there_as_text(begin: Begin, tmp_path: Path) -> None:
    run = begin()
    TensorBoardLogger(run).close()
    (text,) = read(tmp_path).Tensors("config")
    shown = text.tensor_proto.string_val[0].decode()
    assert all(line.startswith("    ") for line in shown.splitlines())
    assert json.loads(shown) == run.config


def test_a_resumed_run_takes_back_what_was_logged_after_its_checkpoint(begin: Begin, tmp_path: Path) -> None:
    before = TensorBoardLogger(begin())
    for steps in (10, 20, 21, 30):
        before.log({"a": steps}, steps)
    before.close()
    after = TensorBoardLogger(begin(env_steps=20))
    after.log({"b": 1}, 25)
    after.log({"a": -30}, 30)
    after.close()
    held = read(tmp_path)
    assert points(held, "a") == [(10, 10.0), (20, 20.0), (30, -30.0)]
    assert points(held, "b") == [(25, 1.0)]


def test_a_run_that_begins_again_takes_back_all_that_was_logged(begin: Begin, tmp_path: Path) -> None:
    TensorBoardLogger(begin()).log({"a": 1}, 10)
    TensorBoardLogger(begin()).log({"a": 2}, 20)
    assert points(read(tmp_path), "a") == [(20, 2.0)]


def test_a_killed_run_loses_nothing(begin: Begin, tmp_path: Path) -> None:
    code = f"""
import os
from pathlib import Path
from algorithms.loggers import LoggedRun
from algorithms.loggers.tensorboard import TensorBoardLogger
logger = TensorBoardLogger(LoggedRun("PPO on X", Path({str(tmp_path)!r}), 0, 0, {{}}))
logger.log({{"a": 1}}, 10)
os._exit(9)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], timeout=120, check=False)
    assert done.returncode == 9
    assert points(read(tmp_path), "a") == [(10, 1.0)]


def test_a_missing_package_is_explained(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with pytest.raises(
        ImportError, match=r"^loggers: 'tensorboard': expected .* Install it: pip install tensorboard\.$"
    ):
        TensorBoardLogger(begin())


def test_what_cannot_be_begun_leaves_no_open_file(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(TensorBoardLogger, "_write", fail)
    with pytest.raises(OSError, match="disk full"):  # an open file would end as a ResourceWarning, which is an error
        TensorBoardLogger(begin())
