"""Values that change with the number of env steps sampled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def value_at(schedule: float | Sequence[Sequence[float]], env_steps: int) -> float:
    """The value of ``schedule`` after ``env_steps``: a constant, or straight lines between ``[env_step, value]``
    points, and the last value after the last point."""
    if isinstance(schedule, int | float):
        return float(schedule)
    steps, values = zip(*schedule, strict=True)
    return float(np.interp(env_steps, steps, values))


def scaled(initial: float, schedule: Sequence[Sequence[float]], env_steps: int) -> float:
    """Scale ``initial`` by the value of ``schedule`` after ``env_steps`` over its first value that is not 0, which is
    its value at step 0 unless it warms up from 0."""
    value = value_at(schedule, env_steps)
    if initial == schedule[0][1]:
        return value  # the schedule's own number, to the last bit
    return initial * value / next((point for _, point in schedule if point), 1.0)


class Coefficient:
    """A number per module that a loss reads and that changes from update to update, such as a scheduled weight.

    Assign and read it by module id (``self.entropy_coeff[module_id]``). Reading returns a scalar tensor on the
    learner's device, always the same one, which each assignment fills: a compiled or captured loss sees the present
    value, where a Python number would have it compiled again. Use :meth:`number` for a result.

    Args:
        device: The learner's.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tensors: dict[str, Tensor] = {}
        self._as_set: dict[str, float | Tensor] = {}

    def __getitem__(self, module_id: str) -> Tensor:
        return self._tensors[module_id]

    def __setitem__(self, module_id: str, value: float | Tensor) -> None:
        if module_id not in self._tensors:
            self._tensors[module_id] = torch.zeros((), device=self._device)
        kept = self._tensors[module_id].fill_(value)
        self._as_set[module_id] = kept if isinstance(value, Tensor) else value

    def number(self, module_id: str) -> float:
        """The number assigned last, in full precision; waits for the device only if it was a tensor."""
        return float(self._as_set[module_id])
