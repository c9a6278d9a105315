"""``rlmodule explain``: what the catalog decides for an environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import tyro

from algorithms.cli.exits import OK
from algorithms.cli.flags import algorithm_config, apply, parse_settings, words_after
from algorithms.cli.values import environment
from catalog.explain.explain import Format
from catalog.settings import settings_of
from rlmodule.envs.make import make_vector_env

DEFAULT_ALGO = "ppo"
_EXPLAINED = ("env_config", "gym_env_vectorize_mode", "rl_module_spec")
"""Settings besides the model's and those of the nets on which it depends what the catalog decides."""


@dataclass(kw_only=True)
class ExplainFlags:
    """Show the networks that an env gets, and why. Their settings are flags, too."""

    env: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="ENV")]
    """Gymnasium id, or a class or factory of yours as my_module:name."""
    algo: str = DEFAULT_ALGO
    """The algorithm whose catalog decides."""
    format: Format = "text"
    """An outline, or the same as a flowchart for Mermaid."""
    debug: bool = False
    """Show the traceback of an error."""


def explain(args: Sequence[str]) -> int:
    """Show which networks are chosen for ENV, and why."""
    algo = algorithm_config(next(iter(words_after("--algo", args)), DEFAULT_ALGO))
    known = {name: known for name, known in settings_of(algo).items() if name in (*_EXPLAINED, *algo.net_settings)}
    flags, typed = parse_settings(ExplainFlags, "rlmodule explain", args, algo(), known)
    config = apply(typed, algo())
    env = make_vector_env(environment(flags.env), config.env_config, 1, config.gym_env_vectorize_mode)
    try:
        spaces = env.single_observation_space, env.single_action_space
        spec = config.get_rl_module_spec(*spaces)
        print(spec.build().explain(flags.format))
    finally:
        env.close()
    return OK
