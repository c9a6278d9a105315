"""The ``rlmodule`` command, a module for each subcommand."""

from algorithms.cli.main import COMMANDS, main
from algorithms.cli.train import train_config

__all__ = ["COMMANDS", "main", "train_config"]
