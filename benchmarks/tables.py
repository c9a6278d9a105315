"""List the rows of our tables that other code has measured than today's, and how to measure them again.

    make tables    # the same as python -m benchmarks.tables

A row is kept with a digest of the files that it depends on (`code`) and with the command that was typed (`command`). It
is *stale* once that digest is another one. Rows from before digests were kept have none, and are listed as such.

What a row depends on is chosen by its kind, from whole folders of `catalog` and `rlmodule`. In `algorithms` it is the
algorithm's own folder and what that imports, so that PPO's loss is nothing to DQN's rows. What stands around a run
(`AROUND`) is left out, and so are presets: their settings are part of what decides whether a run has been made.

The digest is of the syntax tree, without comments, docstrings, imports for type checkers and layout. It is the same in
every Python that reads the file.
"""

import ast
import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
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
AROUND = (
    "algorithms/loggers",
    "algorithms/registry.py",
    "algorithms/run",
    "algorithms/sections.py",
    "algorithms/settings",
)
"""What algorithms import, and what computes nothing that they learn from."""


# --- digests ----------------------------------------------------------------------------------------------------------


def digest(places: Iterable[str]) -> str:
    """Return 16 hexadecimal digits that change with the code of `places` and with what these import.

    Args:
        places: Files and folders, relative to the root. Imports are followed into `algorithms` and `benchmarks` alone.
    """
    hashed = sha256()
    for file in sorted(reached(places)):
        hashed.update(file.encode() + b"\0" + _meaning((ROOT / file).read_text(encoding="utf-8"), file)[0])
    return hashed.hexdigest()[:16]


def reached(places: Iterable[str]) -> set[str]:
    """Return the files of `places` and those that they import, relative to the root.

    Raises:
        FileNotFoundError: If a place does not exist.
    """
    found = set[str]()
    ahead = [file for place in places for file in _files(place)]
    while ahead:
        if (file := ahead.pop()) in found:
            continue
        found.add(file)
        for name in _meaning((ROOT / file).read_text(encoding="utf-8"), file)[1]:
            place = name.replace(".", "/")
            if (ROOT / f"{place}.py").is_file():
                place += ".py"
            # `algorithms` and `benchmarks` themselves hold too much: who imports from them names what he needs
            elif "/" not in place or not (ROOT / place).is_dir():
                continue
            if not place.startswith(AROUND):
                ahead += _files(place)
    return found


def _files(place: str) -> list[str]:
    path = ROOT / place
    if not path.exists():
        raise FileNotFoundError(f"place: expected a file or folder in {ROOT}, got {place!r}. Name one that exists.")
    found = path.rglob("*.py") if path.is_dir() else [path]
    return [file.relative_to(ROOT).as_posix() for file in found if file.name != "presets.py"]


@cache
def _meaning(source: str, file: str) -> tuple[bytes, tuple[str, ...]]:
    """Return the hash of a source without what changes nothing, and the modules of ours that it imports.

    Raises:
        SyntaxError: If a file of Python is none.
    """
    if not file.endswith(".py"):
        return sha256(source.encode()).digest(), ()
    words, imported = list[str](), list[str]()
    _spell(ast.parse(source, file), words, imported)
    ours = (name for name in imported if name.partition(".")[0] in ("algorithms", "benchmarks"))
    return sha256("\0".join(words).encode()).digest(), tuple(ours)


def _spell(value: Any, words: list[str], imported: list[str]) -> None:
    """Append the tree to `words`, and the names of imported modules to `imported`.

    `ast.dump` would do if all versions of Python wrote the same. They differ in fields that are empty, which are left
    out here.
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
        _spell(value.orelse, words, imported)
        return
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

STALE, UNDATED, FRESH = "measured with other code than today's", "measured before digests were kept", "up to date"


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        name: Of the row.
        kept: The digest that each of its measurements was kept with; None if that was before digests were kept.
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
    yield from _learning_rows()
    yield from _offline_rows()
    yield from _speed_rows()


# The functions below import late, since these modules take their digests from here.


def _learning_rows() -> Iterator[Row]:
    from benchmarks import learning

    for table, goals in learning.GOALS.items():
        for goal in sorted(goals.values(), key=lambda goal: goal.env_id):
            if runs := learning.stored(goal):
                command = f"python -m benchmarks.learning --algo {table} --envs {goal.env_id} --stale"
                yield Row(f"{table}: {goal}", tuple(run.code for run in runs), digest(learning.sources(goal)), command)


def _offline_rows() -> Iterator[Row]:
    from benchmarks import offline, offline_values

    for name, (_, config, *_) in offline.ROWS.items():
        codes = tuple(score.get("code") for score in offline.kept({"data": name}).values())
        command = f"python -m benchmarks.offline --only {shlex.quote(name)}"
        yield Row(name, codes or (None,), digest(offline.sources(config())), command)
    for option, listed in (("", offline_values.SHORT_ROWS), ("--long ", offline_values.LONG_ROWS)):
        for row in listed:
            if scores := offline.kept(row.key()):
                command = f"python -m benchmarks.offline_values {option}--only {shlex.quote(row.data)} --stale"
                codes = tuple(score.get("code") for score in scores.values())
                yield Row(f"{row.name}, {row.data}", codes, digest(offline.sources(row.config())), command)


def _speed_rows() -> Iterator[Row]:
    from benchmarks import run
    from benchmarks.peers import run as peers

    for job, kept in run.kept().items():
        for row in kept["rows"]:
            command = f"python -m benchmarks.run --jobs {job} --write"
            yield Row(row["name"], (kept.get("code"),), digest(run.sources(job)), command)
    for job, kept in peers.kept().items():
        command = f"python -m benchmarks.peers.run --jobs {job} --write"
        yield Row(peers.CONTESTS[job].title, (kept.get("code"),), digest(peers.sources(job)), command)


def text_of(found: Iterable[Row]) -> str:
    """Return how many rows are in each state, and below each command the rows that it would measure again."""
    by_state = {state: list[Row]() for state in (STALE, UNDATED, FRESH)}
    for row in found:
        by_state[row.state].append(row)
    lines = list[str]()
    for state, together in by_state.items():
        lines.append(f"{len(together)} {'row' if len(together) == 1 else 'rows'} {state}{':' if together else ''}")
        for command, measured in groupby(together if state != FRESH else (), lambda row: row.command):
            lines += [f"  {command}", *(f"    {row.name}" for row in measured)]
    return "\n".join(lines).replace(f"{FRESH}:", FRESH)


if __name__ == "__main__":
    print(text_of(rows()))
