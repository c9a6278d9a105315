"""List the rows of our tables that other code has measured than today's, and how to measure them again.

    make tables    # the same as python -m benchmarks.tables

A row is kept with a digest of the files that it depends on (`code`) and with the command that was typed (`command`). It
is *stale* once that digest is another one. Rows from before digests were kept have none, and are listed as such.

What a row depends on is chosen by its kind, from whole folders of `catalog` and `rlmodule`. In `algorithms` it is the
algorithm's own folder and what that imports, so that PPO's loss is nothing to DQN's rows. What stands around a run
(`AROUND`) is left out, and so are presets: their settings are part of what decides whether a run has been made.

The digest is of the syntax tree, without comments, docstrings, imports for type checkers and layout. It is the same in
Python 3.10 to 3.13.
"""

import ast
import json
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

COMPUTING = ("catalog", "rlmodule/data", "rlmodule/learning", "rlmodule/modules")
"""What every update depends on."""
SAMPLING = ("rlmodule/envs", "rlmodule/sampling")
"""What is needed where an env is played, too."""
AGENTS = ("rlmodule/agents",)
"""What is needed where an env has several agents, too."""
SPEED = (*COMPUTING, *SAMPLING, "rlmodule/distributed", "rlmodule/groups")
"""What the speed of a run depends on."""
AROUND = tuple(f"algorithms/{name}" for name in ("loggers", "registry", "run", "sections", "settings"))
"""What algorithms import, and what computes nothing that they learn from."""

FEWEST_FOR_INTERVAL = 5
"""Seeds from which on a row has an interval. One of fewer seeds shows each of them."""


# --- digests ----------------------------------------------------------------------------------------------------------


def digest(places: Iterable[str]) -> str:
    """Return 16 hexadecimal digits that change with the code of `places` and with that of what they import.

    Args:
        places: Files and folders, relative to the root. Imports are followed into `algorithms` and `benchmarks` alone.
    """
    return Code(ROOT).digest(places)


class Code:
    """The code of a tree at one moment: each file is read once.

    Args:
        root: Folder of the packages.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[str, list[str]] = {}
        self._read: dict[str, tuple[bytes, list[str]]] = {}

    def digest(self, places: Iterable[str]) -> str:
        """Return the digest of `places`; see :func:`digest`."""
        hashed = sha256()
        for file in sorted(self.reached(places)):
            hashed.update(file.encode() + b"\0" + self._meaning(file)[0])
        return hashed.hexdigest()[:16]

    def reached(self, places: Iterable[str]) -> set[str]:
        """Return the files of `places`, and those that they import, relative to the root.

        Raises:
            FileNotFoundError: If a place does not exist.
        """
        found = set[str]()
        ahead = [file for place in places for file in self._files_of(place)]
        while ahead:
            if (file := ahead.pop()) not in found:
                found.add(file)
                ahead += (other for place in self._meaning(file)[1] for other in self._files_of(place))
        return found

    def _files_of(self, place: str) -> list[str]:
        if place not in self._files:
            path = self._root / place
            if not path.exists():
                raise FileNotFoundError(f"place: expected a file or folder in {self._root}, got {place!r}. Correct it.")
            found = path.rglob("*.py") if path.is_dir() else [path]
            self._files[place] = [
                file.relative_to(self._root).as_posix() for file in found if file.name != "presets.py"
            ]
        return self._files[place]

    def _meaning(self, file: str) -> tuple[bytes, list[str]]:
        """Return the hash of a file, without what changes nothing, and the places that it imports."""
        if file not in self._read:
            source = (self._root / file).read_text(encoding="utf-8")
            words, modules = [source], list[str]()
            if file.endswith(".py"):
                words.clear()
                _spell(ast.parse(source, file), words, modules)
            places = [place for module in modules if (place := self._place(module))]
            self._read[file] = sha256("\0".join(words).encode()).digest(), places
        return self._read[file]

    def _place(self, module: str) -> str | None:
        """Return the file or folder of an imported module that is followed."""
        place = module.replace(".", "/")
        # the packages themselves hold too much: who imports from them names the module, too
        if not place.startswith(("algorithms/", "benchmarks/")):
            return None
        if (self._root / f"{place}.py").is_file():
            place += ".py"
        elif not (self._root / place).is_dir():
            return None  # a name in a module
        return None if place.startswith(AROUND) else place


def _spell(value: Any, words: list[str], imported: list[str]) -> None:
    """Append the tree to `words`, and the names of imported modules to `imported`.

    `ast.dump` would do if all versions of Python wrote the same. They differ in empty fields, and in empty strings
    within f-strings, which are left out here.
    """
    if isinstance(value, list):
        words.append("[")
        for item in value:
            _spell(item, words, imported)
        words.append("]")
        return
    if not isinstance(value, ast.AST):
        words.append(repr(value))
        return
    if isinstance(value, ast.Expr) and isinstance(value.value, ast.Constant) and isinstance(value.value.value, str):
        return  # a docstring, or a string below an attribute
    if isinstance(value, ast.If) and isinstance(value.test, ast.Name) and value.test.id == "TYPE_CHECKING":
        for other in value.orelse:
            _spell(other, words, imported)
        return
    if isinstance(value, ast.JoinedStr):
        value.values = [part for part in value.values if not (isinstance(part, ast.Constant) and part.value == "")]
    if isinstance(value, ast.Import):
        imported += [alias.name for alias in value.names]
    elif isinstance(value, ast.ImportFrom) and value.module is not None:
        imported += [value.module, *(f"{value.module}.{alias.name}" for alias in value.names)]
    words.append(type(value).__name__)
    for name, part in ast.iter_fields(value):
        if part is not None and part != [] and name != "ctx":
            words.append(name)
            _spell(part, words, imported)


def typed() -> str:
    """Return the command that started this process."""
    return shlex.join(["python", *sys.orig_argv[1:]])


# --- rows -------------------------------------------------------------------------------------------------------------

STALE, UNDATED = "measured with other code than today's", "measured before digests were kept"
FRESH = "measured with today's code"


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        name: Of the row.
        kept: The digest that each of its measurements was kept with, at least one; None if it was kept before digests.
        today: The digest of today's code.
        command: Measures it again.
    """

    name: str
    kept: tuple[str | None, ...]
    today: str
    command: str

    @property
    def state(self) -> str:
        """The head of the list that it belongs in."""
        if any(code not in (None, self.today) for code in self.kept):
            return STALE
        return UNDATED if None in self.kept else FRESH


def rows() -> Iterator[Row]:
    """Yield the rows of all tables, those of one command after each other."""
    code = Code(ROOT)
    yield from _learning_rows(code)
    yield from _offline_rows(code)
    yield from _peer_rows(code)
    yield _scale_row(code)


# The functions below import late, since these modules take their digests from here.


def _learning_rows(code: Code) -> Iterator[Row]:
    from benchmarks import learning

    for table, goals in learning.GOALS.items():
        for goal in sorted(goals.values(), key=lambda goal: goal.env_id):
            if runs := learning.stored(goal):
                command = f"python -m benchmarks.learning --algo {table} --envs {goal.env_id} --stale"
                codes = tuple(run.code for run in runs)
                yield Row(f"{table}: {goal}", codes, code.digest(learning.sources(goal)), command)


def _offline_rows(code: Code) -> Iterator[Row]:
    from benchmarks import offline, offline_values

    for name, (_, config, *_) in offline.ROWS.items():
        codes = tuple(score.get("code") for score in offline.kept({"data": name}).values())
        command = f"python -m benchmarks.offline --only {shlex.quote(name)}"
        yield Row(name, codes or (None,), code.digest(offline.sources(config())), command)
    for option, listed in (("", offline_values.SHORT_ROWS), ("--long ", offline_values.LONG_ROWS)):
        for row in listed:
            if scores := offline.kept(row.key()):
                command = f"python -m benchmarks.offline_values {option}--only {shlex.quote(row.data)} --stale"
                codes = tuple(score.get("code") for score in scores.values())
                yield Row(f"{row.name}, {row.data}", codes, code.digest(offline.sources(row.config())), command)


def _peer_rows(code: Code) -> Iterator[Row]:
    from benchmarks import run
    from benchmarks.peers import run as peers
    from benchmarks.peers import scores

    for job, kept in run.kept().items():
        for row in kept["rows"]:
            command = f"python -m benchmarks.run --jobs {job} --write"
            yield Row(row["name"], (kept.get("code"),), code.digest(run.sources(job)), command)
    for job, kept in peers.kept().items():
        command = f"python -m benchmarks.peers.run --jobs {job} --write"
        yield Row(peers.CONTESTS[job].title, (kept.get("code"),), code.digest(peers.sources(job)), command)
    for jobs in scores.TABLES.values():
        command = f"python -m benchmarks.peers.scores --jobs {' '.join(jobs)} --stale --write"
        for job in jobs:
            codes = tuple(run.get("code") for run in scores.kept_of(job)) or (None,)
            yield Row(f"scores: {job}", codes, code.digest(scores.sources(job)), command)


def _scale_row(code: Code) -> Row:
    from benchmarks import scale

    kept = json.loads(scale.DATA.read_text(encoding="utf-8"))
    return Row("scale", (kept.get("code"),), code.digest(SPEED), "python -m benchmarks.scale --write")


def text_of(found: Iterable[Row]) -> str:
    """Return how many rows are in each state, and below each command the rows that it measures again."""
    by_state = {state: list[Row]() for state in (STALE, UNDATED, FRESH)}
    for row in found:
        by_state[row.state].append(row)
    lines = list[str]()
    for state, together in by_state.items():
        lines.append(f"{state}: {len(together)} row{'' if len(together) == 1 else 's'}")
        if state != FRESH:
            for command, measured in groupby(together, lambda row: row.command):
                lines += [f"  {command}", *(f"    {row.name}" for row in measured)]
    return "\n".join(lines)


if __name__ == "__main__":
    print(text_of(rows()))
