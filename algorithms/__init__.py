"""Algorithms: the base classes of algorithms and configs, callbacks, and plots of runs."""

import sys
from typing import TYPE_CHECKING, Any

from catalog_rl import check_siblings, lazily

check_siblings(__file__)

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm
    from algorithms.config import AlgorithmConfig
    from algorithms.episode_config import EpisodeLearnerConfig
    from algorithms.registry import register_algorithm
    from algorithms.run.callbacks import Callbacks, FinishedEpisode
    from algorithms.run.league import League
    from algorithms.run.plotting import plot_runs, table_of
    from algorithms.run.run_folder import new_run_dir
    from algorithms.tuning.tuning import tune
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
    "tune",
]


class _MissingAlgorithms:
    """The finder that Python asks after all others have failed to import a name of this package. If the name is that of
    an algorithm, the error says what to write."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        package, _, word = name.rpartition(".")
        if package != __name__:
            return
        from algorithms.registry import ALGORITHMS
        from catalog_rl import remedy_for_algorithm

        algorithm = word.removesuffix("Config")
        remedy = remedy_for_algorithm(algorithm)
        if algorithm.upper() in ALGORITHMS:
            remedy = f"Write from {__name__}.{algorithm.lower()} import {word}."
        if remedy:
            names = ", ".join(map(str.lower, ALGORITHMS))
            # without the argument name=, for which `from algorithms import A2C` would hide this error
            raise ModuleNotFoundError(f"{name}: expected one of the algorithms {names}, got {word!r}. {remedy}")


sys.meta_path.append(_MissingAlgorithms)
