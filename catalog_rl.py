"""The ground floor of the three packages of `catalog-rl`, which imports nothing heavy: lazy imports, texts of errors,
names from other libraries, and the check that nothing hides a package.

The names of these packages (`catalog`, `rlmodule`, `algorithms`) are plain words. A user's `algorithms/` folder or
`catalog.py` next to the script, or the package of another distribution, may come first on `sys.path` and hide ours. A
program that imports modules of both would fail in a puzzling place. The check raises a clear error at import instead.
"""

import ast
import logging
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGES = ("catalog", "rlmodule", "algorithms")


class _Warnings(logging.Handler):
    """Prints warnings of the packages on stderr, so that nobody takes one for an error. Does nothing in a program that
    has set up logging, for all loggers or for that of the package."""

    def emit(self, record: logging.LogRecord) -> None:
        of_package = logging.getLogger(record.name.partition(".")[0])
        if [*logging.getLogger().handlers, *of_package.handlers] == [self]:
            with suppress(OSError):  # as of a full disk
                print(f"Warning, the program goes on: {self.format(record)}", file=sys.stderr)


_warnings = _Warnings(logging.WARNING)
for _package in PACKAGES:
    logging.getLogger(_package).addHandler(_warnings)


def lazily(package: str, package_file: str) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package, which imports each name that the package offers on first use.

    It raises ``AttributeError`` for other names. With it, loading a policy imports the module of its algorithm and what
    that module needs, but not the rest of the packages. ``dir()`` of the package lists all names.

    Args:
        package: The ``__name__`` of the calling package.
        package_file: The ``__file__`` of that package, which offers the names that its block ``if TYPE_CHECKING:``
            imports.
    """
    # The block is the only list of these names, and type checkers read it. A table of them here would be a second one.
    module_of: dict[str, str] = {}
    for block in ast.parse(Path(package_file).read_text(encoding="utf-8")).body:
        if isinstance(block, ast.If):
            for statement in block.body:
                if isinstance(statement, ast.ImportFrom):
                    module_of |= {alias.name: str(statement.module) for alias in statement.names}
    names = vars(sys.modules[package])

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        names[name] = getattr(import_module(module_of[name]), name)  # found there from now on
        return names[name]

    names["__dir__"] = lambda: sorted({*names, *module_of})  # notebooks complete what it lists
    return find


def check_siblings(package_file: str) -> None:
    """Check that no other module or package hides one of our packages.

    Each package calls this function before it imports anything else. The check only asks the import system where it
    finds each name, and imports nothing. A package that it finds nowhere is fine. So is a folder without `__init__.py`
    (a namespace package) that comes after ours.

    Args:
        package_file: The `__file__` of the calling package: `<root>/<package>/__init__.py`.

    Raises:
        ImportError: If the name of one of our packages leads to another file or folder; names both places.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(package_file)))
    for name in PACKAGES:
        ours = os.path.join(root, name)
        other = _hiding(name, ours)
        if other is not None:
            raise ImportError(
                f"The package `{name}` of catalog-rl is hidden: ours is {ours}, but `import {name}` finds {other}. "
                f"Rename that file or folder (for example to my_{name}), or, if another installed distribution "
                f"brings it, uninstall it or use a separate environment.",
                name=name,
                path=other,
            )


def _hiding(name: str, ours: str) -> str | None:
    """Return the file or folder that `import name` finds; None if it finds the folder `ours` or nothing."""
    try:
        spec = find_spec(name)
    except ValueError:  # a program put a module without a spec into sys.modules
        module = sys.modules[name].__dict__
        file, folders = module.get("__file__"), module.get("__path__")
    else:
        if spec is None:
            return None
        file, folders = spec.origin, spec.submodule_search_locations
    if folders is None:
        return file or "a module without a file"
    # A folder without `__init__.py` is found where ours is missing, or by a finder that is asked before ours.
    if file is None and not os.path.isfile(os.path.join(ours, "__init__.py")):
        return None
    return next((folder for folder in folders if os.path.realpath(folder) != os.path.realpath(ours)), None)


# --- texts of errors: ``where: expected …, got …. Remedy.`` ----------------------------------------------------------


def closest(name: Any, known: Iterable[Any]) -> str:
    """Return a hint such as `` Did you mean 'lr'?`` with the name in ``known`` closest to ``name``; empty if none is
    close. Names that are no texts are compared as text."""
    name, by_text = str(name), {str(other): other for other in known}
    longer = [other for other in by_text if len(name) > 2 and other.startswith(name)]
    matches = longer or get_close_matches(name, by_text, n=1, cutoff=0.6)
    return f" Did you mean {by_text[matches[0]]!r}?" if matches else ""


def printable(text: str) -> str:
    """Return ``text``, which may come from a file, with each character that a terminal would act on replaced by its
    escape sequence, such as ``\\x1b``: control characters, line breaks and marks that change the direction."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def unknown(where: str, what: str, known: Iterable[Any], got: Any, remedy: str) -> ValueError:
    """Return the ValueError for a name that is not in ``known``. Its text suggests the closest known name.

    Args:
        where: Where the name was found.
        what: Kind of the known names, in the plural, such as "agents".
        known: The known names.
        got: The unknown name.
        remedy: Sentence that says what to do.
    """
    names = list(known)
    return ValueError(
        f"{where}: expected one of the {what} {listed(names)}, got {got!r}. {remedy}{closest(got, names)}"
    )


def listed(names: Iterable[Any]) -> str:
    """Return ``names`` as a bracketed list, cut off after 200 characters."""
    text = ", ".join(map(repr, names))
    return f"[{text}]" if len(text) <= 200 else f"[{text[:200]}...]"


# --- names from other libraries, and what to write here instead -------------------------------------------------------


@cache
def remedies() -> dict[str, dict[str, str]]:
    """Return the remedies in ``catalog/migration.txt``, by the place where users type a name of another library and by
    that name. For a hook, the place is the class that users derive from here, which does not have that hook.

    The file is the only list of such names. Each line of it has the names that share a remedy, a colon, and the remedy.
    """
    read: dict[str, dict[str, str]] = {}
    table = Path(__file__).with_name("catalog") / "migration.txt"
    for part in table.read_text(encoding="utf-8").strip().split("\n\n"):
        place, *lines = part.splitlines()
        rows = read[place.strip("[]")] = {}
        for line in lines:
            words, remedy = line.split(": ", 1)
            rows |= dict.fromkeys(words.split(), remedy)
    return read


def remedy_for(place: str, word: object) -> str:
    """Return what to write instead of ``word`` at ``place``, which is a heading of ``migration.txt`` such as "flag";
    empty if unknown."""
    return remedies().get(place, {}).get(str(word), "")


def remedy_for_algorithm(name: str) -> str:
    """Return what to use instead of an algorithm of another library, such as ``A2C`` or ``apex_dqn``; empty if
    unknown."""
    return remedy_for("algorithm name", name.lower().replace("-", "").replace("_", ""))
