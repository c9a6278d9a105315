"""Action noise: random numbers for actions, drawn ahead of time from one stream per env."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from catalog.distributions.base import Distribution

BLOCK_ROWS = 128
"""Rows of noise that are drawn at once,"""
BLOCK_NUMBERS = 2**16
"""or fewer, so that a block has at most this many numbers per env."""


class ActionNoise:
    """Noise for the actions of several envs, one row for each action.

    It is drawn in blocks whose size depends on the distribution alone. So an env's noise depends neither on the length
    of fragments nor on the other envs. Envs advance together by :meth:`take`, or each at its own pace by
    :meth:`take_own`; a runner uses one of the two.

    Args:
        streams: One for each env.

    Attributes:
        is_drawn: Whether the distribution takes noise that was drawn; else it draws for itself.
    """

    def __init__(self, streams: Sequence[np.random.Generator]) -> None:
        self.is_drawn = False
        self.begin(streams)

    def begin(self, streams: Sequence[np.random.Generator]) -> None:
        """Draw from ``streams`` from now on."""
        self._streams = streams
        self._rows: list[Tensor] = []  # what take() has left of a block, the last one first
        self._block: Tensor | None = None  # that of take_own(),
        self._places = np.zeros(len(streams), np.int64)  # which has used so many rows of it for each env

    def use(self, dist_cls: type[Distribution], width: int) -> None:
        """Draw for distributions of ``width`` inputs from now on."""
        self._dist_cls, self._width = dist_cls, width
        self._block_rows = max(1, min(BLOCK_ROWS, BLOCK_NUMBERS // width))
        self.is_drawn = dist_cls.draw_noise(np.random.default_rng(0), 1, width) is not None
        self.begin(self._streams)

    def take(self) -> Tensor:
        """The next row ``[N, ...]`` of all envs."""
        if not self._rows:
            self._rows = [*reversed(self._next_block().unbind())]
        return self._rows.pop()

    def take_own(self, acting: np.ndarray) -> Tensor:
        """The next row ``[N, ...]`` of each env. Only envs that are ``acting`` ``[N]`` use theirs up."""
        if self._block is None:
            self._block = self._next_block()
        for env in np.flatnonzero(self._places == self._block_rows).tolist():
            self._block[:, env] = self._draw(self._streams[env])
            self._places[env] = 0
        row = self._block[torch.from_numpy(self._places), torch.arange(len(self._places))]
        self._places += acting
        return row

    def _next_block(self) -> Tensor:
        return torch.stack([self._draw(stream) for stream in self._streams], dim=1)

    def _draw(self, stream: np.random.Generator) -> Tensor:
        noise = self._dist_cls.draw_noise(stream, self._block_rows, self._width)
        assert noise is not None
        return noise
