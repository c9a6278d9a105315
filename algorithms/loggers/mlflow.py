"""MlflowLogger: log to an MLflow tracking server, which compares runs."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from algorithms.loggers.base import LoggedRun, Logger, ServiceRun, flatten, needed_package, numbers_of

if TYPE_CHECKING:
    from mlflow import MlflowClient


class MlflowLogger(Logger):
    """Logs to a new MLflow run: numbers as metrics by env step, settings as params.

    A run that resumes from a checkpoint in its folder continues its MLflow run. That run keeps everything that was
    logged before.

    Args:
        run: The run to log.
        tracking_uri: The server, such as ``http://localhost:5000``. None uses ``MLFLOW_TRACKING_URI``.
        experiment: Name of the experiment, which is created if it does not exist. None uses
            ``MLFLOW_EXPERIMENT_NAME``, or else ``MLFLOW_EXPERIMENT_ID``.

    Raises:
        RuntimeError: If the server does not accept a run.
    """

    def __init__(self, run: LoggedRun, *, tracking_uri: str | None = None, experiment: str | None = None) -> None:
        super().__init__(run)
        with needed_package("loggers: 'mlflow'", "mlflow", 'Install it: pip install "catalog-rl[mlflow]".'):
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param
            from mlflow.exceptions import MlflowException

        self._metric = Metric
        earlier = ServiceRun(run, "mlflow")
        try:
            self._client = MlflowClient(tracking_uri)
            if earlier.known is None:
                name, where = f"{run.name}, seed {run.seed}", _experiment_id(self._client, experiment)
                self._id: str = self._client.create_run(where, run_name=name).info.run_id
            else:
                self._id = earlier.known
                self._client.update_run(self._id, status="RUNNING")
        except MlflowException as error:
            raise RuntimeError(
                f"loggers: 'mlflow': expected a server that accepts runs, got {error}. Set one: "
                "MLFLOW_TRACKING_URI=http://localhost:5000, for example, or pass tracking_uri=."
            ) from error
        try:
            earlier.keep(self._id)
            if earlier.known is None:  # MLflow refuses to change the params of a run
                params = [Param(_name(path), _text(value)) for path, value in flatten(run.config)]
                self._client.log_batch(self._id, params=params)
        except BaseException:
            self._client.set_terminated(self._id, "FAILED")
            raise

    def log(self, values: Mapping[str, Any], env_steps: int) -> None:
        """Log each number as a metric at ``env_steps``."""
        now, numbers = int(time.time() * 1000), numbers_of(values).items()
        metrics = [self._metric(_name(path), value, timestamp=now, step=env_steps) for path, value in numbers]
        self._client.log_batch(self._id, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._id)


def _experiment_id(client: MlflowClient, name: str | None) -> str:
    name = name or os.environ.get("MLFLOW_EXPERIMENT_NAME")
    if name is None:
        return os.environ.get("MLFLOW_EXPERIMENT_ID", "0")  # 0 is MLflow's default experiment
    known = client.get_experiment_by_name(name)
    return client.create_experiment(name) if known is None else known.experiment_id


def _name(path: str) -> str:
    """Return ``path`` with an underscore for each character that MLflow does not allow in names."""
    return re.sub(r"[^\w\-. /]", "_", path)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
