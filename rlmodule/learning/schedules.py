"""Values that change with the number of env steps sampled in the run."""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor


def value_at(schedule: float | Sequence[Sequence[float]], env_steps: int) -> float:
    """Return the value of ``schedule`` after ``env_steps`` env steps. A number is a constant schedule. Between
    ``[env_step, value]`` points the value is interpolated linearly, and after the last point it stays at the last
    value."""
    if isinstance(schedule, int | float):
        return float(schedule)
    for (before, low), (after, high) in itertools.pairwise(schedule):
        if env_steps < after:
            return low + (high - low) * max(0, env_steps - before) / (after - before)
    return float(schedule[-1][1])


def scaled(initial: float, schedule: Sequence[Sequence[float]], env_steps: int) -> float:
    """Return ``initial``, such as an optimizer's initial learning rate, multiplied by the value of ``schedule`` after
    ``env_steps`` env steps, and divided by the first value in ``schedule`` that is not 0. That is the value at step 0,
    unless the schedule warms up from 0."""
    value = value_at(schedule, env_steps)
    if initial == schedule[0][1]:
        return value  # exactly, without the rounding of the division
    return initial * value / next((point for _, point in schedule if point), 1.0)


class Coefficient(dict[str, Tensor]):
    """A number per module that a loss reads and that changes between updates, such as a scheduled weight of a loss
    term.

    Assign and read the number by module id (``self.kl_coeff[module_id] = 0.2``). Reading always returns the same scalar
    tensor on the learner's device, and assigning fills that tensor in place. So a compiled or captured loss uses the
    current value, whereas a Python number would force a new compilation or capture at each change. To report the
    number, use :meth:`number`.

    Args:
        device: The learner's device.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self._as_set: dict[str, float | Tensor] = {}

    def __setitem__(self, module_id: str, value: float | Tensor) -> None:
        if module_id not in self:
            super().__setitem__(module_id, torch.zeros((), device=self._device))
        kept = self[module_id].fill_(value)
        self._as_set[module_id] = kept if isinstance(value, Tensor) else value

    def number(self, module_id: str) -> float:
        """Return the number assigned last, in full precision. This waits for the device only if a tensor was
        assigned."""
        return float(self._as_set[module_id])
