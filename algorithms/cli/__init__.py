"""The ``rlmodule`` command, with a Python module for each subcommand."""

from algorithms.cli.main import main

__all__ = ["main"]
