"""Where the results of a run go: files, TensorBoard, and services."""

from algorithms.loggers.base import LOGGERS, LoggedRun, Logger, LoggerGroup, check_loggers

__all__ = ["LOGGERS", "LoggedRun", "Logger", "LoggerGroup", "check_loggers"]
