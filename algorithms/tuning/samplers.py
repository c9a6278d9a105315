"""Samplers: the next point of a search, given the trials so far.

A point depends on the seed of the study, the number of the trial and the trials so far alone, so a study that goes on
asks for the same points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from algorithms.tuning.search import Choices, Search, random_shares
from algorithms.tuning.study import Trial

SamplerName = Literal["tpe", "random"]
Sampler: TypeAlias = Callable[[Search, Sequence[Trial], int], dict[str, float]]
"""A function of the search, the trials so far and the seed of the study, which returns the shares of the next trial."""


def sampler_named(name: SamplerName) -> Sampler:
    """Return a sampler.

    Raises:
        ImportError: If it needs Optuna, which is not installed.
    """
    if name == "random":
        return _random
    try:
        import optuna
    except ImportError as error:
        raise ImportError(
            "sampler: expected Optuna for 'tpe', got no such package. Install it with "
            "`pip install \"catalog-rl[tune]\"`, or choose the sampler 'random'."
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return _tpe


def _random(search: Search, trials: Sequence[Trial], seed: int) -> dict[str, float]:
    return random_shares(search, np.random.default_rng((seed, len(trials))))


def _tpe(search: Search, trials: Sequence[Trial], seed: int) -> dict[str, float]:
    """Propose a point by a tree-structured Parzen estimator (Bergstra et al. 2011), after ten random ones."""
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
    from optuna.trial import TrialState, create_trial

    distributions: dict[str, BaseDistribution] = {}
    for name, dimension in search.items():
        if isinstance(dimension, Choices):
            distributions[name] = CategoricalDistribution(range(len(dimension.values)))
        else:
            distributions[name] = FloatDistribution(0.0, 1.0)

    sampler_seed = int(np.random.SeedSequence((seed, len(trials))).generate_state(1)[0])
    sampler = optuna.samplers.TPESampler(seed=sampler_seed, constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    worst = min((trial.value for trial in trials if trial.value is not None), default=0.0)
    states = {"pruned": TrialState.PRUNED, "running": TrialState.RUNNING}
    for trial in trials:
        params: dict[str, Any] = dict(trial.shares)
        for name, dimension in search.items():
            if isinstance(dimension, Choices):
                params[name] = dimension.index_at(params[name])
        reached = trial.last_value
        # a trial that failed is as bad as the worst, so that the sampler leaves that region
        value = worst if trial.state == "failed" else trial.value
        study.add_trial(
            create_trial(
                params=params,
                distributions=distributions,
                value=value,
                state=states.get(trial.state, TrialState.COMPLETE),
                intermediate_values={} if reached is None else {trial.num_rungs: reached},
            )
        )
    asked = study.ask(distributions)
    found = {}
    for name, dimension in search.items():
        value = asked.params[name]
        found[name] = dimension.share_of(value) if isinstance(dimension, Choices) else round(value, 6)
    return found
