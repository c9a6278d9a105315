"""``rlmodule explain``: what the catalog decides for an environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from algorithms.cli.exits import OK
from algorithms.cli.flags import algorithm_config, config_from, parse_settings, value_of
from algorithms.settings import settings_of
from catalog import Catalog
from rlmodule.envs import make_vector_env

DEFAULT_ALGO = "ppo"
_EXPLAINED = ("env_config", "gym_env_vectorize_mode")  # besides the model's, all that the catalog depends on


@dataclass(kw_only=True)
class ExplainFlags:
    """Show which networks and action distribution the catalog chooses for an environment, and why."""

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """Gymnasium id of the environment."""
    algo: str = DEFAULT_ALGO
    """The algorithm whose catalog decides."""
    debug: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Show the traceback of an error."""


def explain(args: Sequence[str]) -> int:
    """Show what the catalog decides for ENV, and why."""
    name = value_of("--algo", args)
    algo = algorithm_config(DEFAULT_ALGO if name is None else name)
    known = {name: known for name, known in settings_of(algo).items() if name in (*_EXPLAINED, *algo.net_settings)}
    flags = parse_settings(ExplainFlags, "rlmodule explain", args, algo(), known)
    config = config_from(algo(), flags)
    env = make_vector_env(flags.env, config.env_config, 1, config.gym_env_vectorize_mode)
    try:
        spaces = env.single_observation_space, env.single_action_space
        spec = config.get_rl_module_spec(*spaces)
        print((spec.catalog_class or Catalog)(*spaces, spec.model_config).explain())
    finally:
        env.close()
    return OK
