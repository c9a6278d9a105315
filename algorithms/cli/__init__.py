"""The ``rlmodule`` command, with a Python module for each subcommand."""

from algorithms.cli.main import COMMANDS, main

__all__ = ["COMMANDS", "main"]
