"""JSON lines: one per iteration, appended as it goes; the record that pictures are drawn from."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from algorithms.loggers.base import STEPS, LoggedRun, Logger, replace_file


class JsonlLogger(Logger):
    """Appends to ``progress.jsonl``, which a strict reader can read. Rows of steps that a resumed run has not seen are
    dropped."""

    needs_folder = True

    def __init__(self, run: LoggedRun) -> None:
        super().__init__(run)
        assert run.folder is not None
        self.path = run.folder / "progress.jsonl"
        rows = read_rows(self.path) if self.path.exists() else []
        kept = [json.dumps(row) + "\n" for row in rows if row.get(STEPS, 0) <= run.env_steps]
        replace_file(self.path, "".join(kept))

    def log(self, values: Mapping[str, Any], env_steps: int) -> None:
        """See :meth:`Logger.log`; the line is in the file when this returns."""
        line = json.dumps(values, default=str, allow_nan=False)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """What a progress.jsonl holds, one flat dict per iteration; a line that was cut off is left out."""
    rows = []
    # what a crash of the machine left is not always text
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError):  # cut off by a crash
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]
