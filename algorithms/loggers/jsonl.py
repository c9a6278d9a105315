"""JSON lines: one per iteration, appended as it goes; the record that pictures are drawn from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from algorithms.loggers.base import LoggedRun, Logger

STEPS = "env_runners/num_env_steps_sampled_lifetime"
"""The metric that counts a run's env steps."""


class JsonlLogger(Logger):
    """Appends to ``progress.jsonl``. Rows of steps that a resumed run has not seen are dropped."""

    needs_folder = True

    def __init__(self, run: LoggedRun) -> None:
        super().__init__(run)
        assert run.folder is not None
        self.path = run.folder / "progress.jsonl"
        self.path.touch()
        text = self.path.read_text(encoding="utf-8")
        kept = "".join(f"{line}\n" for line, row in _parsed(text) if row.get(STEPS, 0) <= run.env_steps)
        if kept != text:
            self.path.write_text(kept, encoding="utf-8")

    def log(self, values: Mapping[str, Any], env_steps: int) -> None:
        """See :meth:`Logger.log`; the line is on disk when this returns."""
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(dict(values), default=str) + "\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """What a progress.jsonl holds, one flat dict per iteration; a line that was cut off is left out."""
    return [row for _, row in _parsed(path.read_text(encoding="utf-8"))]


def _parsed(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # cut off by a crash
            continue
        if isinstance(row, dict):
            yield line, row
