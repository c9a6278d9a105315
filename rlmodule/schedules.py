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
