"""The ``rlmodule`` command, with a Python module for each subcommand."""

from algorithms.cli.main import COMMANDS, main
from algorithms.cli.train import train_plan

__all__ = ["COMMANDS", "main", "train_plan"]
