"""Run tests in forks of a process that has imported what the project needs, but nothing of the project.

Reads lists of tests from the standard input, in JSON, and writes the exit code of pytest for each. The only argument
is the file for the output of the latest tests.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback

# what takes long to import, and is the same for every tree
for name in ("gymnasium", "numpy", "pytest", "torch", "tree"):
    importlib.import_module(name)


def run(tests: list[str]) -> int:
    import pytest

    return int(pytest.main(["-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]))


def main() -> None:
    log = sys.argv[1]
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1)
            os.dup2(file, 2)
            code = 3
            try:
                code = run(json.loads(line))
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush()
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
