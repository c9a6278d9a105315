"""Algorithms: the base classes of algorithms and configs, callbacks, and plots of runs."""

from typing import TYPE_CHECKING

from catalog_rl import check_siblings, lazily

check_siblings(__file__)

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm
    from algorithms.config import AlgorithmConfig, EpisodeLearnerConfig
    from algorithms.registry import register_algorithm
    from algorithms.run.callbacks import Callbacks, FinishedEpisode
    from algorithms.run.league import League
    from algorithms.run.plotting import plot_runs, table_of
    from algorithms.run.run_folder import new_run_dir
else:
    __getattr__ = lazily(__name__, __file__)

__all__ = [
    "Algorithm",
    "AlgorithmConfig",
    "Callbacks",
    "EpisodeLearnerConfig",
    "FinishedEpisode",
    "League",
    "new_run_dir",
    "plot_runs",
    "register_algorithm",
    "table_of",
]
