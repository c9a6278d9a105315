"""Search settings with Ray Tune: each trial trains a copy of a config in which the searched settings differ.

A search space is a dict from dotted names to Tune's search objects. It is never a part of the config::

    space = {"lr": tune.loguniform(1e-5, 1e-2), "env_config.num_agents": tune.grid_search([2, 3, 4])}
    results = tuner(config, space, num_env_steps=20_000).fit()

Needs the extra ``catalog-rl[tune]``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from algorithms.config import AlgorithmConfig
from algorithms.loggers.base import flatten
from algorithms.run.checkpoints import read_checkpoint
from algorithms.tuning.point import applied
from catalog.checks import Bounds, check_value
from catalog_rl import closest
from rlmodule.distributed.ray_actor import get_registered, set_registered
from rlmodule.distributed.ray_cluster import check_resources
from rlmodule.envs.make import spec_to_send

if TYPE_CHECKING:
    from ray import tune


def tuner(
    config: AlgorithmConfig,
    param_space: Mapping[str, Any],
    *,
    num_env_steps: int,
    checkpoint_interval: int | None = None,
    tune_config: tune.TuneConfig | None = None,
    run_config: tune.RunConfig | None = None,
) -> tune.Tuner:
    """Return a Tuner that searches ``param_space``; its ``fit()`` starts the trials.

    Every point of the grid is checked now, each with a value drawn for every random setting. If a searched name belongs
    to the env, one env is made as well.

    Args:
        config: The settings of all trials.
        param_space: What to search, by name: a setting (``"lr"``), or an entry of one (``"env_config.num_agents"``,
            ``"model_config.fcnet_hiddens"``).
        num_env_steps, checkpoint_interval: See :func:`trainable`.
        tune_config, run_config: Passed to ``ray.tune.Tuner``.

    Raises:
        TypeError, ValueError: If a name does not exist, or a value does not fit it or the other settings; or if the
            cluster has too few CPUs or GPUs for a trial, or for ``max_concurrent_trials`` of them.
    """
    from ray import tune
    from ray.tune.search.variant_generator import generate_variants

    train = trainable(config, num_env_steps=num_env_steps, checkpoint_interval=checkpoint_interval)
    variants = generate_variants({"config": dict(param_space)}, random_state=0)
    configs = [applied(config, variant["config"]) for _, variant in variants]
    if config.env is None or any(name.startswith("env") for name in param_space):
        _make_env(configs[0])
    at_once = tune_config.max_concurrent_trials if tune_config else None
    trials = "a trial" if at_once is None else f"max_concurrent_trials={at_once}"
    for variant in configs:
        where = f"{trials} with num_env_runners={variant.num_env_runners}, num_learners={variant.num_learners}"
        check_resources(where, *((at_once or 1, bundle) for bundle in resources(variant).bundles))
    return tune.Tuner(train, param_space=dict(param_space), tune_config=tune_config, run_config=run_config)


def trainable(
    config: AlgorithmConfig, *, num_env_steps: int, checkpoint_interval: int | None = None
) -> Callable[[dict[str, Any]], None]:
    """Return a function for ``ray.tune.Tuner`` that trains one trial, with the resources it needs.

    It reports the result of each iteration by path, such as ``env_runners/episode_return_mean``. A trial that Tune
    paused, or starts again after a failure, continues from its last checkpoint as if it had not been interrupted.

    Args:
        config: The settings of all trials.
        num_env_steps: Env steps of each trial.
        checkpoint_interval: Iterations between checkpoints; None writes one at the end. Each is a folder for
            :meth:`algorithms.Algorithm.from_checkpoint`.
    """
    from ray import tune

    steps, interval = "Env steps of each trial.", "Iterations between checkpoints; None writes one at the end."
    check_value("num_env_steps", num_env_steps, int, Bounds(ge=1), steps)
    check_value("checkpoint_interval", checkpoint_interval, int | None, Bounds(ge=1), interval)
    config = config.copy()
    # the process of a trial does not run the script, which may have registered or changed the env and more
    registered = get_registered()
    env_spec = None if config.env is None or config.is_multi_agent else spec_to_send(config.env)

    def train(point: dict[str, Any]) -> None:
        set_registered(registered)
        if env_spec is not None:
            gym.registry[env_spec.id] = env_spec
        changed, state = applied(config, point), None
        if (saved := tune.get_checkpoint()) is not None:
            with saved.as_directory() as folder:
                content = read_checkpoint(Path(folder))
            changed.seed, state = content["run_seed"], content["state"]
        with changed.build() as algo:
            if state is not None:
                algo.set_state(state)
            while algo.env_steps < num_env_steps:
                # NaN instead of None: Tune's schedulers compare metrics with numbers
                metrics = {name: math.nan if value is None else value for name, value in flatten(algo.train())}
                due = checkpoint_interval and algo.metrics.iterations % checkpoint_interval == 0
                with TemporaryDirectory() as folder:
                    written = None
                    if due or algo.env_steps >= num_env_steps:
                        written = tune.Checkpoint.from_directory(algo.save(Path(folder) / "checkpoint"))
                    tune.report(metrics, checkpoint=written)

    return tune.with_resources(train, lambda point: resources(applied(config, point)))


def resources(config: AlgorithmConfig) -> tune.PlacementGroupFactory:
    """Return the CPUs and GPUs of a trial: a CPU for the trial itself, and what its env runners and learners ask for.

    Tune reserves all of them before the trial starts, so no trial waits for CPUs that another one holds.
    """
    from ray import tune

    learner = {"CPU": config.num_cpus_per_learner, "GPU": config.num_gpus_per_learner}
    bundles = [{"CPU": 1.0, "GPU": 0.0 if config.num_learners else config.num_gpus_per_learner}]
    bundles += [{"CPU": config.num_cpus_per_env_runner}] * config.num_env_runners + [learner] * config.num_learners
    asked = [{name: number for name, number in bundle.items() if number} for bundle in bundles]
    return tune.PlacementGroupFactory([bundle for bundle in asked if bundle])


def _make_env(config: AlgorithmConfig) -> None:
    """Make the env once, to raise for an ``env_config`` that it does not accept."""
    takes = inspect.signature(env).parameters if isinstance(env := config.env, type) else {}
    if takes and not any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):
        for name in config.env_config.keys() - takes.keys():
            raise ValueError(
                f"env_config: expected arguments of the env, {', '.join(takes)}, got {name!r}. "
                f"Use one of them.{closest(name, takes)}"
            )
    config.spaces_of()
