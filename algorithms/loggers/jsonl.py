"""JsonlLogger: append one line of JSON per iteration. ``plot`` and the progress pages read this file."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from algorithms.loggers.base import LoggedRun, Logger, append_whole, is_result, replace_file


class JsonlLogger(Logger):
    """Appends a line per iteration to ``progress.jsonl``, in strict JSON, which has no NaN.

    A resumed run drops the lines after the env step at which it resumes. A line that cannot be written, as on a full
    disk, is written with the next one.
    """

    needs_folder = True

    def __init__(self, run: LoggedRun) -> None:
        super().__init__(run)
        assert run.folder is not None
        self.path = run.folder / "progress.jsonl"
        self._waiting = b""
        replace_file(self.path, "".join(json.dumps(row) + "\n" for row in read_rows(self.path) if run.includes(row)))

    def log(self, values: Mapping[str, Any], env_steps: int) -> None:
        """Append a line. The line is in the file when this returns."""
        self._waiting += json.dumps(values, default=str, allow_nan=False).encode() + b"\n"
        self._write()

    def _write(self) -> None:
        append_whole(self.path, self._waiting)
        self._waiting = b""

    def close(self) -> None:
        if self._waiting:
            self._write()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a progress.jsonl, one flat dict per iteration, without lines that a crash cut off or whose
    clock or seconds are no number. Return an empty list if the file does not exist."""
    rows = []
    # errors="replace": a crash of the machine may leave bytes that are no text
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    for line in text.splitlines():
        with suppress(ValueError):
            rows.append(json.loads(line))
    return [row for row in rows if is_result(row)]
