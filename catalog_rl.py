"""What the three packages of `catalog-rl` share: the check that they are the ones imported, and the command's entry.

Their names (`catalog`, `rlmodule`, `algorithms`) are plain words, so a user's own `algorithms/` folder or `catalog.py`
beside their script, or another distribution's package, may come first on `sys.path` and hide ours. Half of one and half
of the other then fails in a puzzling place; this module makes it fail at import, in one sentence.
"""

import os
import signal
import sys
from importlib.util import find_spec

PACKAGES = ("catalog", "rlmodule", "algorithms")


def shell() -> int:
    """The ``rlmodule`` command. Ctrl-C while it is still being imported ends it in one line, with exit code 130.

    An interrupt inside an import of a compiled package may come out as any error, so it does not become one.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _end_at_once)
    from algorithms.cli import main

    signal.signal(signal.SIGINT, before)
    return main()


def _end_at_once(number: int, frame: object) -> None:
    os.write(2, b"\nInterrupted.\n")
    os._exit(128 + number)


def check_siblings(package_file: str) -> None:
    """Raise `ImportError` if one of our packages is hidden by something else of the same name.

    Each package calls it first, with its own `__file__`. Nothing is imported: it asks the import system where each name
    would come from. A sibling found nowhere is fine, and so is a folder without `__init__.py` (a namespace package)
    that comes after ours.

    Args:
        package_file: The `__file__` of the calling package: `<root>/<package>/__init__.py`.
    """
    root = os.path.dirname(os.path.dirname(os.path.abspath(package_file)))
    for name in PACKAGES:
        ours = os.path.join(root, name)
        other = _hiding(name, ours)
        if other is not None:
            raise ImportError(
                f"The package `{name}` of catalog-rl is hidden: ours is {ours}, but `import {name}` finds {other}. "
                f"Rename that file or folder (for example to my_{name}), or, if another installed distribution "
                f"brings it, uninstall it or use an environment of its own.",
                name=name,
                path=other,
            )


def _hiding(name: str, ours: str) -> str | None:
    """Where `import name` leads if that is not the folder `ours`; None if it is ours or if there is nothing."""
    try:
        spec = find_spec(name)
    except ValueError:  # it stands in sys.modules without a spec: someone put it there by hand
        module = sys.modules[name]
        file = getattr(module, "__file__", None)
        return repr(module) if file is None else _unless_ours(file, ours)
    if spec is None:
        return None
    if spec.has_location and spec.origin is not None:
        return _unless_ours(spec.origin, ours)
    if spec.submodule_search_locations is None:
        return spec.origin or repr(spec)  # built in, or made in memory
    # A namespace package: found only where no regular one is, or by a finder that is asked before ours.
    if not os.path.isfile(os.path.join(ours, "__init__.py")):
        return None
    return next((found for found in spec.submodule_search_locations if not _same(found, ours)), None)


def _unless_ours(file: str, ours: str) -> str | None:
    """`file`, as its folder if it is a package's `__init__`, unless it is the package in the folder `ours`."""
    folder, base = os.path.split(file)
    if not base.startswith("__init__."):
        return file
    return None if _same(folder, ours) else folder


def _same(one: str, other: str) -> bool:
    return one == other or os.path.realpath(one) == os.path.realpath(other)
