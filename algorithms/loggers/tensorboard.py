"""TensorBoardLogger: write a curve for every number, against env steps."""

import io
import json
import os
import textwrap
import time
from collections.abc import Mapping
from typing import Any

from algorithms.loggers.base import LoggedRun, Logger, append_whole, needed_package, numbers_of


class TensorBoardLogger(Logger):
    """Writes an event file ``events.out.tfevents…``, with a scalar for each number and the settings as text.

    The tag of a scalar is its path in the result. A resumed run writes a new file, which makes TensorBoard discard the
    events of earlier files after the env step at which the run resumes. Events that cannot be written, as on a full
    disk, are written with the next ones.
    """

    needs_folder = True

    def __init__(self, run: LoggedRun) -> None:
        super().__init__(run)
        assert run.folder is not None
        with needed_package("loggers: 'tensorboard'", "tensorboard", "Install it: pip install tensorboard."):
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.plugins.text.summary_v2 import text_pb
            from tensorboard.summary.writer.record_writer import RecordWriter

        # Any, since the classes of these modules are created on import, where type checkers do not see them
        self._events: Any = event_pb2
        self._summaries: Any = summary_pb2
        # No SummaryWriter: it imports TensorFlow if that is installed, and its thread buffers events for minutes, which
        # a killed run would lose.
        self._waiting = io.BytesIO()
        self._writer = RecordWriter(self._waiting)
        is_first = not any(run.folder.glob("events.out.tfevents.*"))
        # TensorBoard reads files in order of name
        self.path = run.folder / f"events.out.tfevents.{time.time():.6f}.{os.getpid()}"
        settings = textwrap.indent(json.dumps(dict(run.config), indent=1, default=str), "    ")  # a Markdown code block
        self._write(file_version="brain.Event:2")
        if not is_first:
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            self._write(step=run.env_steps + 1, session_log=start)
        self._write(step=run.env_steps, summary=text_pb("config", settings))

    def log(self, values: Mapping[str, Any], env_steps: int) -> None:
        """Write an event with all numbers. The event is in the file when this returns."""
        value_of = self._summaries.Summary.Value
        scalars = [value_of(tag=path, simple_value=value) for path, value in numbers_of(values).items()]
        self._write(step=env_steps, summary=self._summaries.Summary(value=scalars))

    def _write(self, **content: Any) -> None:
        event = self._events.Event(wall_time=time.time(), **content)
        self._writer.write(event.SerializeToString())
        self._flush()

    def close(self) -> None:
        if self._waiting.tell():
            self._flush()

    def _flush(self) -> None:
        append_whole(self.path, self._waiting.getvalue())
        self._waiting.seek(0)
        self._waiting.truncate()
