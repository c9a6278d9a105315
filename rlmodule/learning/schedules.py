"""Values that change with the number of env steps sampled."""

from collections.abc import Sequence

import numpy as np


def value_at(schedule: float | Sequence[Sequence[float]], env_steps: int) -> float:
    """The value of ``schedule`` after ``env_steps``: a constant, or straight lines between ``[env_step, value]``
    points and the last value ever after."""
    if isinstance(schedule, int | float):
        return float(schedule)
    steps, values = zip(*schedule, strict=True)
    return float(np.interp(env_steps, steps, values))


def scaled(initial: float, schedule: Sequence[Sequence[float]], env_steps: int) -> float:
    """``initial`` times the value of ``schedule`` after ``env_steps`` over its first value that is not 0: its value at
    step 0, unless it warms up from there."""
    value = value_at(schedule, env_steps)
    if initial == schedule[0][1]:
        return value  # the schedule's own number, to the last bit
    return initial * value / next((point for _, point in schedule if point), 1.0)
