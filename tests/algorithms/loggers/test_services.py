"""W&B offline and MLflow with a local store: what was logged, read back."""

from __future__ import annotations

import functools
import json
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from algorithms.loggers import LoggedRun, LoggerGroup
from algorithms.loggers.base import CLOCK, STEPS
from algorithms.loggers.mlflow import MlflowLogger
from algorithms.loggers.wandb import WandbLogger

Begin = Callable[..., LoggedRun]


@pytest.mark.parametrize(("make", "extra"), [(WandbLogger, "wandb"), (MlflowLogger, "mlflow")])
def test_a_missing_package_is_told_with_what_to_install(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, make: Any, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, extra, None)
    match = rf"^loggers: '{extra}': expected the package {extra}, got .*pip install \"catalog-rl\[{extra}\]\"\.$"
    with pytest.raises(ImportError, match=match):
        LoggerGroup([make], begin())


# --- W&B --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    import wandb

    wandb.teardown()  # it looks at the environment once per process
    folder = tmp_path / "service"
    folder.mkdir()
    for name, value in {"MODE": "offline", "DIR": str(folder), "SILENT": "true", "PROJECT": "from-outside"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    yield folder
    wandb.teardown()


def records(path: Path) -> Iterator[Any]:
    """The records of a W&B file: LevelDB's log format, after seven bytes of W&B's own."""
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]

    data, block, at, whole = path.read_bytes(), 32768, 7, b""
    while at < len(data):
        if block - at % block < 7:  # too little for a header: filled up with zeros
            at += block - at % block
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole, at = whole + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def sent(folder: Path) -> dict[str, list[Any]]:
    """What the W&B runs below ``folder`` hold, in order of time: ``runs``, rows of ``history`` and ``metrics``."""
    import wandb

    wandb.teardown()  # its process may still be writing
    found: dict[str, list[Any]] = {"runs": [], "history": [], "metrics": []}
    for path in sorted(folder.rglob("*.wandb"), key=lambda path: path.stat().st_mtime_ns):
        for record in records(path):
            match record.WhichOneof("record_type"):
                case "run":
                    found["runs"].append(record.run)
                case "metric":
                    found["metrics"].append(record.metric)
                case "history":
                    items = [(item.key or "/".join(item.nested_key), item.value_json) for item in record.history.item]
                    found["history"].append({key: json.loads(text) for key, text in items if key[0] != "_"})
    return found


def test_wandb_is_told_numbers_against_env_steps_and_the_settings(begin: Begin, offline: Path) -> None:
    run = begin()
    logger = WandbLogger(run, group="tuning")
    logger.log({STEPS: 64, "a/b": 0.5, "none": None, "text": "x"}, 64)
    logger.log({STEPS: 128, "a/b": 1.5}, 128)
    logger.close()
    message = sent(offline)
    (about,) = message["runs"]
    assert (about.display_name, about.project, about.run_group) == (f"{run.name}, seed 7", "from-outside", "tuning")
    config = {item.key: json.loads(item.value_json) for item in about.config.update if item.key != "_wandb"}
    assert config == run.config
    assert message["history"] == [{STEPS: 64, "a/b": 0.5}, {STEPS: 128, "a/b": 1.5}]
    assert any(metric.step_metric == STEPS for metric in message["metrics"])


def test_wandb_is_told_numbers_of_a_run_from_data_against_its_clock(begin: Begin, offline: Path) -> None:
    logger = WandbLogger(begin())
    logger.log({CLOCK: 50, STEPS: 0, "a/b": 0.5}, 50)
    logger.log({CLOCK: 114, STEPS: 64, "a/b": 1.5}, 114)
    logger.close()
    message = sent(offline)
    assert message["history"] == [{CLOCK: 50, STEPS: 0, "a/b": 0.5}, {CLOCK: 114, STEPS: 64, "a/b": 1.5}]
    assert message["metrics"][-1].step_metric == CLOCK


def test_wandb_goes_on_with_its_run_when_ours_does(begin: Begin, offline: Path) -> None:
    for steps in (0, 64):
        logger = WandbLogger(begin(steps))
        logger.log({"a": steps}, steps + 64)
        logger.close()
    first, second = sent(offline)["runs"]
    assert first.run_id == second.run_id
    WandbLogger(begin()).close()  # a new run in the same place
    assert len({run.run_id for run in sent(offline)["runs"]}) == 2


def test_two_algorithms_in_one_process_are_two_wandb_runs(begin: Begin, offline: Path) -> None:
    make = functools.partial(WandbLogger, project="mine", mode="offline")
    one, two = LoggerGroup([make], begin(folder=None)), LoggerGroup([make], begin(folder=None))
    one.log({"a": 1}, 1)
    two.log({"a": 2}, 1)
    one.close()
    two.log({"a": 3}, 2)
    two.close()
    message = sent(offline)
    assert [run.project for run in message["runs"]] == ["mine", "mine"]
    assert message["runs"][0].run_id != message["runs"][1].run_id
    assert sorted(row["a"] for row in message["history"]) == [1, 2, 3]


def test_wandb_gets_the_videos_of_evaluations(begin: Begin, offline: Path, tmp_path: Path) -> None:
    video = tmp_path / "episode.mp4"
    video.write_bytes(b"not really one")
    logger = WandbLogger(begin())
    logger.log({"evaluation/videos": [{"path": str(video), "episode_return": 9.0, "episode_len": 9}]}, 64)
    logger.close()
    (row,) = sent(offline)["history"]
    assert row["evaluation/videos/captions"] == ["return 9"]
    (copy,) = offline.rglob("*.mp4")
    assert copy.read_bytes() == video.read_bytes()


def test_wandb_ends_what_it_cannot_begin(begin: Begin, offline: Path, tmp_path: Path) -> None:
    (tmp_path / "wandb_run_id").mkdir()
    with pytest.raises(OSError, match="wandb_run_id"):
        WandbLogger(begin())
    import wandb

    assert wandb.setup().most_recent_active_run is None


# --- MLflow -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What reads from a store on disk, which MLflow calls outdated and no server is needed for."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    for name in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
        monkeypatch.delenv(name, raising=False)
    from mlflow import MlflowClient

    return MlflowClient()


def only_run(client: Any, experiment: str = "Default") -> Any:
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return run


def test_mlflow_is_told_numbers_by_env_step_and_the_settings(begin: Begin, client: Any) -> None:
    run = begin()
    logger = MlflowLogger(run)
    logger.log({"a/b": 0.5, "none": None, "videos": [{}], "50%=half": 2}, 64)
    assert only_run(client).info.status == "RUNNING"
    logger.log({"a/b": 1.5}, 128)
    logger.close()
    message = only_run(client)
    assert (message.info.status, message.info.run_name) == ("FINISHED", f"{run.name}, seed 7")
    assert message.data.metrics == {"a/b": 1.5, "50__half": 2.0}
    history = client.get_metric_history(message.info.run_id, "a/b")
    assert [(metric.step, metric.value) for metric in history] == [(64, 0.5), (128, 1.5)]
    assert message.data.params == {
        "lr": "0.5",
        "env": "CartPole-v1",
        "model_config/fcnet_hiddens": "[8, 8]",
        "seed": "null",
    }


def test_mlflow_goes_on_with_its_run_when_ours_does(begin: Begin, client: Any) -> None:
    for steps in (0, 64):
        logger = MlflowLogger(begin(steps))
        assert only_run(client).info.status == "RUNNING"
        logger.log({"a": steps}, steps + 64)
        logger.close()
    message = only_run(client)
    assert [metric.step for metric in client.get_metric_history(message.info.run_id, "a")] == [64, 128]
    assert message.info.status == "FINISHED"


def test_mlflow_experiments_are_named_by_argument_or_from_outside(
    begin: Begin, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    MlflowLogger(begin(), experiment="mine").close()
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "theirs")
    MlflowLogger(begin()).close()
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", client.create_experiment("by-id"))
    MlflowLogger(begin()).close()
    assert all(only_run(client, name) for name in ("mine", "theirs", "by-id"))
    monkeypatch.delenv("MLFLOW_EXPERIMENT_ID")
    again = MlflowLogger(begin(), experiment="mine")
    again.close()
    assert len(client.search_runs([client.get_experiment_by_name("mine").experiment_id])) == 2


def test_mlflow_takes_more_settings_and_longer_ones_than_a_server_does_at_once(begin: Begin, client: Any) -> None:
    run = begin()
    logger = MlflowLogger(LoggedRun(run.name, run.folder, 0, 7, {f"setting_{i}": "x" * 7000 for i in range(101)}))
    logger.log({f"metric_{i}": i for i in range(1001)}, 1)
    logger.close()
    message = only_run(client)
    assert (len(message.data.params), len(message.data.metrics)) == (101, 1001)


def test_a_store_that_mlflow_cannot_use_is_explained(begin: Begin, client: Any) -> None:
    match = r"^loggers: 'mlflow': expected a server that accepts runs, got (?s:.)*MLFLOW_TRACKING_URI=http"
    with pytest.raises(RuntimeError, match=match):
        LoggerGroup([functools.partial(MlflowLogger, tracking_uri="carrier-pigeon://x")], begin())


def test_mlflow_marks_what_it_cannot_begin_as_failed(begin: Begin, client: Any, tmp_path: Path) -> None:
    (tmp_path / "mlflow_run_id").mkdir()
    with pytest.raises(OSError, match="mlflow_run_id"):
        MlflowLogger(begin())
    assert only_run(client).info.status == "FAILED"
