"""CsvLogger: write a table for spreadsheets and pandas, with a row per iteration and a column per number."""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from algorithms.loggers.base import LoggedRun, Logger, append_whole, numbers_of, replace_file


class CsvLogger(Logger):
    """Appends a row per iteration to ``progress.csv``. A field is empty if the iteration did not report its number.

    A number that no earlier row had, such as one of the first evaluation, adds a column, for which the whole file is
    rewritten. A resumed run drops the rows after the env step at which it resumes. A row that cannot be written, as on
    a full disk, is written with the next one.
    """

    needs_folder = True

    def __init__(self, run: LoggedRun) -> None:
        super().__init__(run)
        assert run.folder is not None
        self.path = run.folder / "progress.csv"
        self._columns: dict[str, None] = {}  # used as an ordered set
        self._waiting: list[Mapping[str, Any]] = []
        if self.path.exists():
            columns, rows = read_table(self.path)
            self._rewrite(dict.fromkeys(columns), filter(run.includes, rows))

    def log(self, values: Mapping[str, Any], env_steps: int) -> None:
        """Append a row. The row is in the file when this returns."""
        self._waiting.append(numbers_of(values))
        self._write()

    def _write(self) -> None:
        columns = self._columns | {name: None for row in self._waiting for name in row}
        if len(columns) > len(self._columns):
            rows = read_table(self.path)[1] if self._columns else []
            self._rewrite(columns, [*rows, *self._waiting])
        else:
            append_whole(self.path, _lines(columns, self._waiting).encode())
        self._waiting.clear()

    def close(self) -> None:
        if self._waiting:
            self._write()

    def _rewrite(self, columns: dict[str, None], rows: Iterable[Mapping[str, Any]]) -> None:
        replace_file(self.path, _lines(columns, [{name: name for name in columns}, *rows]))
        self._columns = columns


def _lines(columns: Iterable[str], rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO(newline="")
    csv.DictWriter(text, list(columns), restval="", lineterminator="\n").writerows(rows)
    return text.getvalue()


def read_table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the column names and the rows of a progress.csv. Lines that a crash cut off are left out."""
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        text = file.read()
    table = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
    rows = [row for row in table if None not in row and None not in row.values()]
    return list(table.fieldnames or []), rows
