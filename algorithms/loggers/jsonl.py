"""JSON lines: one per iteration, appended as it goes; the record that pictures are drawn from."""

import json
from collections.abc import Iterator, Mapping
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
        self.path.touch()
        text = _text_of(self.path)
        kept = "".join(f"{line}\n" for line, row in _parsed(text) if row.get(STEPS, 0) <= run.env_steps)
        if kept != text:
            replace_file(self.path, kept)

    def log(self, values: Mapping[str, Any], env_steps: int) -> None:
        """See :meth:`Logger.log`; the line is in the file when this returns."""
        line = json.dumps(values, default=str, allow_nan=False)
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """What a progress.jsonl holds, one flat dict per iteration; a line that was cut off is left out."""
    return [row for _, row in _parsed(_text_of(path))]


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")  # what a crash of the machine left is not always text


def _parsed(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:  # cut off by a crash
            continue
        if isinstance(row, dict):
            yield line, row
