"""Errors for wrong calls of an algorithm, most of them calls in the style of another library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from algorithms.settings.base import SettingsBase
from catalog_rl import remedy_for

if TYPE_CHECKING:
    from algorithms.algorithm import Algorithm
    from algorithms.run.goal import Budget


def check_has_config(algorithm_class: type, args: Sequence[object], keywords: Mapping[str, object]) -> None:
    """Raise ``TypeError`` if no argument of ``algorithm_class`` is a config, as in ``PPO("MlpPolicy", env)``."""
    values = [*args, *keywords.values()]
    if any(isinstance(value, SettingsBase) for value in values):
        return
    name = algorithm_class.__name__
    got = ", ".join(map(repr, values)) or "nothing"
    env_ids = [repr(value) for value in values if isinstance(value, str) and not value.endswith("Policy")]
    env = env_ids[0] if env_ids else "..."
    raise TypeError(f"{name}(): expected a config, got {got}. Write {name}Config().environment({env}).build().")


def cannot_load(algorithm_class: type, method: str) -> AttributeError:
    """Return the error for a call of ``method``, which loads a checkpoint in other libraries."""
    return AttributeError(
        f"{algorithm_class.__name__}.{method}: expected one of its methods or attributes, got {method!r}. "
        f"{remedy_for('algorithm', method)}"
    )


def wrong_learn(
    algorithm: object, num_env_steps: object, args: Sequence[object], foreign: Mapping[str, object]
) -> TypeError:
    """Return the error for a call of ``learn`` with further positional or with unknown arguments, such as those of
    other libraries."""
    steps = num_env_steps or foreign.get("total_timesteps", "...")
    remedies = (f"Call learn(num_env_steps={steps}).", *(remedy_for("learn", name) for name in foreign))
    got, remedy = ", ".join([*map(repr, args), *(f"{name}=" for name in foreign)]), " ".join(filter(None, remedies))
    return TypeError(f"{type(algorithm).__name__}.learn(): expected its documented arguments, got {got}. {remedy}")


def check_budget(algorithm: Algorithm, given: Mapping[Budget, int | None]) -> tuple[Budget, int]:
    """Return the argument in ``given`` that says how long ``algorithm`` is to learn, and its value.

    Raises:
        ValueError: If not exactly one argument was given, or the algorithm cannot count its steps.
    """
    asked = {budget: amount for budget, amount in given.items() if amount is not None}
    name, why, steps = type(algorithm).__name__, "", "..."
    if len(asked) == 1:
        ((budget, amount),) = asked.items()
        if budget in algorithm.budgets:
            return budget, amount
        steps = str(amount)
        why = f"{name} learns from {'env steps' if budget == 'num_updates' else 'data'} alone. "
    got = " and ".join(f"{budget}={amount!r}" for budget, amount in asked.items()) or "nothing"
    raise ValueError(
        f"{name}.learn(): expected {' or '.join(algorithm.budgets)}, got {got}. {why}Call "
        f"learn({algorithm.budgets[0]}={steps})."
    )


def no_sections(algorithm: object, got: object) -> TypeError:
    """Return the error for a ``training_step`` that returns ``got``, which is not a dict."""
    return TypeError(
        f"{type(algorithm).__name__}.training_step(): expected a dict of sections of the result, "
        f"got {type(got).__name__}. Return {{'learners': ...}}."
    )


def already_stopped(algorithm: object, method: str) -> RuntimeError:
    """Return the error for a call of ``method`` after ``algorithm.stop()``."""
    return RuntimeError(
        f"{type(algorithm).__name__}.{method}(): expected a running algorithm, got a stopped "
        "one. Build another, or load one: from_checkpoint(path). Callbacks end learn() by "
        "stop_learning()."
    )


def not_several(algorithm: object, method: str) -> ValueError:
    """Return the error for a call of ``method``, which needs a multi-agent run, in a single-agent run."""
    return ValueError(
        f"{type(algorithm).__name__}.{method}(): expected a run with several agents, got one with one agent. Set "
        ".multi_agent(policies=...)."
    )
