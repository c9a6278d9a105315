"""CsvLogger: write a table for spreadsheets and pandas, with a row per iteration and a column per number."""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from algorithms.loggers.base import STEPS, LoggedRun, Logger, numbers_of, replace_file


class CsvLogger(Logger):
    """Appends a row per iteration to ``progress.csv``. A field is empty if the iteration did not report its number.

    A number that no earlier row had, such as one of the first evaluation, adds a column, for which the whole file is
    rewritten. A resumed run drops the rows after the env step at which it resumes.
    """

    needs_folder = True

    def __init__(self, run: LoggedRun) -> None:
        super().__init__(run)
        assert run.folder is not None
        self.path = run.folder / "progress.csv"
        self._columns: dict[str, None] = {}  # used as an ordered set
        if self.path.exists():
            columns, rows = read_table(self.path)
            self._columns = dict.fromkeys(columns)
            self._rewrite(row for row in rows if float(row.get(STEPS) or 0) <= run.env_steps)

    def log(self, values: Mapping[str, Any], env_steps: int) -> None:
        """Append a row. The row is in the file when this returns."""
        row = numbers_of(values)
        if not row.keys() <= self._columns.keys():
            rows = read_table(self.path)[1] if self._columns else []
            self._columns |= dict.fromkeys(row)
            self._rewrite(rows)
        with open(self.path, "a", encoding="utf-8", newline="") as file:
            file.write(self._lines([row]))

    def _rewrite(self, rows: Iterable[Mapping[str, Any]]) -> None:
        replace_file(self.path, self._lines([{name: name for name in self._columns}, *rows]))

    def _lines(self, rows: Iterable[Mapping[str, Any]]) -> str:
        text = io.StringIO(newline="")
        csv.DictWriter(text, list(self._columns), restval="", lineterminator="\n").writerows(rows)
        return text.getvalue()


def read_table(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Return the column names and the rows of a progress.csv. Lines that a crash cut off are left out."""
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        text = file.read()
    table = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
    rows = [row for row in table if None not in row and None not in row.values()]
    return list(table.fieldnames or []), rows
