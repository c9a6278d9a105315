"""Action noise: what random actions are drawn with, ahead of time and each env's from a stream of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from catalog import Distribution

BLOCK_ROWS = 128
"""Vector steps whose noise is drawn at once;"""
BLOCK_NUMBERS = 2**16
"""fewer where that would be more numbers per env than these."""


class ActionNoise:
    """Noise for the actions of one env after another, row by row.

    It is drawn in blocks of a size that the distribution alone decides, so that what an action comes to depends neither
    on the length of fragments nor on the envs beside.

    Args:
        streams: One for each env.
    """

    def __init__(self, streams: Sequence[np.random.Generator]) -> None:
        self._streams = streams
        self._block_starts = self._positions()
        self._rows: Sequence[Tensor] = ()
        self._used = 0

    def use(self, dist_cls: type[Distribution], width: int) -> None:
        """Draw for distributions of ``width`` inputs from now on; what was drawn and not used is drawn anew."""
        self._dist_cls, self._width = dist_cls, width
        self._block_rows = max(1, min(BLOCK_ROWS, BLOCK_NUMBERS // width))
        self._is_drawn = dist_cls.draw_noise(np.random.default_rng(0), 1, width) is not None
        self._rewind()

    def take(self, num: int) -> Sequence[Tensor] | None:
        """The next ``num`` rows ``[N, ...]``; None if the distribution draws for itself."""
        if not self._is_drawn:
            return None
        taken = self._rows[self._used : self._used + num]
        self._used += len(taken)
        while len(taken) < num:
            self._used -= len(self._rows)
            self._draw()
            more = self._rows[self._used : self._used + num - len(taken)]
            self._used += len(more)
            taken = [*taken, *more]
        return taken

    def _draw(self) -> None:
        self._block_starts = self._positions()
        blocks = [self._dist_cls.draw_noise(stream, self._block_rows, self._width) for stream in self._streams]
        self._rows = torch.stack([block for block in blocks if block is not None], dim=1).unbind()

    def _positions(self) -> list[Any]:
        return [stream.bit_generator.state for stream in self._streams]

    def _rewind(self) -> None:
        """Back to where the block starts, the place in it kept."""
        for stream, position in zip(self._streams, self._block_starts, strict=True):
            stream.bit_generator.state = position
        self._rows = ()

    def get_state(self) -> dict[str, Any]:
        """Where the block of each stream starts, and how many of its rows were used; JSON-able."""
        return {"block_starts": self._block_starts, "used": self._used}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`get_state` gave, of as many streams."""
        self._block_starts, self._used = state["block_starts"], state["used"]
        self._rewind()
