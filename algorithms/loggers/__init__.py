"""Loggers write the results of a run to files, to TensorBoard, or to services."""

from algorithms.loggers.base import LOGGERS, LoggedRun, Logger, LoggerGroup, check_loggers

__all__ = ["LOGGERS", "LoggedRun", "Logger", "LoggerGroup", "check_loggers"]
