"""The entry point of the ``rlmodule`` command."""

import os
import signal
import sys


def shell() -> int:
    """Run the ``rlmodule`` command and return its exit code.

    Ctrl-C while the command imports its modules prints one line and exits with code 130 at once, because a
    ``KeyboardInterrupt`` inside the import of a compiled package could turn into any other error.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _end_at_once)
    from algorithms.cli.main import COMMANDS, function_of, main

    for command in COMMANDS.keys() & sys.argv[1:2]:
        function_of(command)  # imports what takes long
    signal.signal(signal.SIGINT, before)
    return main()


def _end_at_once(number: int, frame: object) -> None:
    """Handle a signal during the imports: print one line and exit with code 128 + ``number``."""
    os.write(2, b"\nInterrupted.\n")
    os._exit(128 + number)
