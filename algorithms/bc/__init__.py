"""BC: clone the actions of a data set."""

from algorithms.bc.bc import BC, BCConfig

__all__ = ["BC", "BCConfig"]
