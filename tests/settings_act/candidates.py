"""Other values for a setting, made from its annotation and bounds."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Literal, Union

import numpy as np

from algorithms import AlgorithmConfig, Callbacks
from algorithms.loggers.base import Logger
from catalog import Catalog
from catalog.settings import Setting
from rlmodule.data.dataset import Dataset
from rlmodule.learning.learner import Learner
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.spec import RLModuleSpec
from tests.settings_act.footprint import CALLS, Slope, Track, recorded


def called(*args: Any, **kwargs: Any) -> None:
    """Count a call."""
    CALLS["function"] += 1


def chosen(*args: Any, **kwargs: Any) -> str:
    """Choose a policy of the scenes with several agents."""
    called()
    return "cart_0"


def rewarded(achieved_goals: Any = (), desired_goals: Any = (), *args: Any, **kwargs: Any) -> Any:
    """Reward the goals of an env with goals: half of them as the env does."""
    called()
    rewards = -np.abs(np.subtract(achieved_goals, desired_goals))[..., 0]
    return np.maximum(rewards, -1.0)


class Counting(Callbacks):
    """Callbacks that count."""

    def on_train_result(self, **kwargs: Any) -> None:
        called()


class Listening(Logger):
    """A logger that counts."""

    def __init__(self, run: Any) -> None:
        called()

    def log(self, *args: Any, **kwargs: Any) -> None:
        called()


def candidates(item: Setting, config: type[AlgorithmConfig]) -> list[Any]:
    """Return values of the setting ``item`` of ``config`` other than its default."""
    values = [*_values(item.hint, item.default, item, config)]
    found: list[Any] = []
    for value in values:
        if value != item.default and value not in found and _is_allowed(item, value):
            found.append(value)
    return found


def _is_allowed(item: Setting, value: Any) -> bool:
    try:
        item.check(value, item.name)
    except (TypeError, ValueError):
        return False
    return True


def _values(hint: Any, default: Any, item: Setting, config: type[AlgorithmConfig]) -> Iterator[Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        for argument in arguments:
            yield from _values(argument, default, item, config)
    elif origin is Literal:
        yield from arguments
    elif origin is typing.Annotated:
        yield from _values(arguments[0], default, item, config)
    elif hint is bool:
        yield from (True, False)
    elif hint is int:
        base = default if isinstance(default, int) else 0
        yield from (1, 2, 3, 4, 8, 0, base + 1, base * 2)
    elif hint is float:
        base = default if isinstance(default, float) else 0.0
        yield from (base * 0.5, base * 2.0, base + 0.25, 0.25, 0.9, 2.0, 1e-3)
    elif hint is str:
        yield from ("written", "auto")
    elif hint is type(None):
        yield None
    elif origin is type or hint is type:
        yield from _classes(arguments[0] if arguments else object, config)
    elif origin is not None and isinstance(origin, type) and issubclass(origin, Callable):  # type: ignore[arg-type]
        yield from (called, chosen, Listening, rewarded)
    elif origin is list:
        for value in _values(arguments[0], None, item, config):
            yield [value]
        yield from (["jsonl"], ["csv"])
    elif origin is tuple:
        yield (1, 3)
    elif origin is dict and arguments[1] == str | list[str]:
        yield {"nets": "encoder"}
    elif origin is dict or hint is dict:
        yield from ({"length": 1}, {"fcnet_hiddens": [5]}, {"default_policy": {"lr": 0.1}}, {"every": 1})
    elif hint is Dataset:
        yield from (recorded(Track).best(0.5), recorded(Slope).best(0.5))
    elif hint is RLModuleSpec:
        yield RLModuleSpec(model_config={"fcnet_hiddens": [4]})


def _classes(base: Any, config: type[AlgorithmConfig]) -> Iterator[Any]:
    """Return a class derived from ``base`` that does something else."""
    if base is Callbacks:
        yield Counting
    elif base is Logger:
        yield Listening
    elif base is Learner:
        default = config().default_learner_class()

        def begin(self: Any, *args: Any, **kwargs: Any) -> None:
            called()
            default.__init__(self, *args, **kwargs)

        yield type("Counted", (default,), {"__init__": begin})
    elif base in (RLModule, Catalog):
        return
    elif isinstance(base, type):
        yield from (Track, Slope)
