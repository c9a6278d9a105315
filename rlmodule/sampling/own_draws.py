"""OwnDraws: random numbers on a device for envs that do not all act in the same steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from catalog.base import Tree
from catalog.distributions.base import Distribution

SPARE_ROWS = 64
"""Rows that memory is allocated for beyond those that a fragment needs."""
MOST_ROWS = 1024
"""An env that has acted this many times less often than another skips the rows it has not used."""

_DRAWS = (torch.randn, torch.rand, Tensor.exponential_, Tensor.normal_, Tensor.uniform_)


class OwnDraws(TorchFunctionMode):
    """Samples actions such that each env is given the random numbers of its own next action.

    A distribution draws for all envs of a device at once, from one generator. With next-step autoreset some of them
    only reset, and must not use up any numbers: only then are their actions those of same-step autoreset. So every row
    of numbers is kept until all envs have used it. This is a mode because it needs the numbers inside ``sample()``,
    which alone knows what to draw. Draws that depend on parameters (gamma variates) are left as they are.

    Args:
        num_envs: ``N``.
        device: Where actions are sampled.
    """

    def __init__(self, num_envs: int, device: torch.device) -> None:
        super().__init__()
        self._envs = torch.arange(num_envs, device=device)
        self._used = torch.zeros_like(self._envs)  # rows that each env has used
        self._kept: list[Tensor] = []  # one tensor [R, N, ...] for each draw of a sample
        self._num_rows = self._room = 0  # of them, drawn and in all
        self._foremost = 0  # no env has used more rows than this
        self._draw = 0

    def begin_fragment(self, num_steps: int) -> None:
        """Make room for the rows of ``num_steps``. Waits for the device."""
        used = self._used.tolist()
        self._foremost = max(used)
        if self._foremost + num_steps <= self._room:
            return
        first = max(min(used), self._foremost - MOST_ROWS)
        self._used = (self._used - first).clamp_min(0)
        self._foremost, self._num_rows = self._foremost - first, self._num_rows - first
        self._room = self._foremost + num_steps + SPARE_ROWS
        kept = self._kept
        self._kept = [rows.new_empty(self._room, *rows.shape[1:]) for rows in kept]
        for new, old in zip(self._kept, kept, strict=True):
            new[: self._num_rows] = old[first : first + self._num_rows]

    def sample(self, dist: Distribution, generator: torch.Generator, acting: Tensor) -> Tree:
        """Actions ``[N, ...]``. Only envs that are ``acting`` ``[N]`` use up their numbers."""
        self._draw = 0
        with self:
            action = dist.sample(generator)
        self._used += acting
        self._foremost += 1
        self._num_rows = max(self._num_rows, self._foremost)
        return action

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _DRAWS or kwargs.get("generator") is None:
            return func(*args, **kwargs)
        draw, self._draw = self._draw, self._draw + 1
        if self._foremost == self._num_rows:  # an env may be ahead of all rows that were drawn
            drawn = func(*args, **kwargs)
            if draw == len(self._kept):
                self._kept.append(drawn.new_empty(self._room, *drawn.shape))
            self._kept[draw][self._num_rows] = drawn
        own = self._kept[draw][self._used, self._envs]
        return args[0].copy_(own) if func.__name__.endswith("_") else own
