"""Action noise: random numbers for actions, drawn ahead of time from one stream per env."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
    :meth:`take_own`.

    Args:
        streams: One for each env.
    """

    def __init__(self, streams: Sequence[np.random.Generator]) -> None:
        self._streams = streams
        self.is_drawn = False
        """Whether the distribution takes noise that was drawn; else it draws for itself."""
        self._block_starts = self._positions()
        self._rows: Sequence[Tensor] = ()  # of the block, once it is drawn
        self._used: int | np.ndarray = 0  # of these, by all envs or by each

    def use(self, dist_cls: type[Distribution], width: int) -> None:
        """Draw for distributions of ``width`` inputs from now on. Noise that was drawn and not used is drawn again."""
        self._dist_cls, self._width = dist_cls, width
        self._block_rows = max(1, min(BLOCK_ROWS, BLOCK_NUMBERS // width))
        self.is_drawn = dist_cls.draw_noise(np.random.default_rng(0), 1, width) is not None
        self._rewind()

    def take(self, num: int) -> Sequence[Tensor]:
        """The next ``num`` rows ``[N, ...]``.

        Envs at different places all continue from the furthest one, so that no noise is used twice.
        """
        if isinstance(self._used, np.ndarray):
            self._used = int(self._used.max())
        taken = self._rows[self._used : self._used + num]
        self._used += len(taken)
        while len(taken) < num:
            self._used -= len(self._rows)
            self._draw()
            more = self._rows[self._used : self._used + num - len(taken)]
            self._used += len(more)
            taken = [*taken, *more]
        return taken

    def take_own(self, acting: np.ndarray) -> Tensor:
        """The next row ``[N, ...]`` of each env. Only envs that are ``acting`` ``[N]`` use theirs up."""
        if not isinstance(self._used, np.ndarray):
            self._used = np.full(len(self._streams), self._used)
        if not self._rows:
            self._draw()
        while np.count_nonzero(spent := self._used >= self._block_rows):
            for env in np.flatnonzero(spent).tolist():
                self._block_starts[env] = self._streams[env].bit_generator.state
                self._block[:, env] = self._block_of(self._streams[env])
            self._used[spent] -= self._block_rows
        row = self._block[torch.from_numpy(self._used), torch.arange(len(self._used))]
        self._used += acting
        return row

    def _draw(self) -> None:
        self._block_starts = self._positions()
        self._block = torch.stack([self._block_of(stream) for stream in self._streams], dim=1)
        self._rows = self._block.unbind()

    def _block_of(self, stream: np.random.Generator) -> Tensor:
        noise = self._dist_cls.draw_noise(stream, self._block_rows, self._width)
        assert noise is not None
        return noise

    def _positions(self) -> list[Any]:
        return [stream.bit_generator.state for stream in self._streams]

    def _rewind(self) -> None:
        """Return to the start of the block, but keep the place in it."""
        for stream, position in zip(self._streams, self._block_starts, strict=True):
            stream.bit_generator.state = position
        self._rows = ()

    def get_state(self) -> dict[str, Any]:
        """For each env, where its block starts and how many rows of it are used; JSON-able."""
        used = np.broadcast_to(self._used, len(self._streams)).tolist()
        return {"block_starts": [*self._block_starts], "used": used}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`get_state` gave for as many streams."""
        first, *others = used = state["used"]
        self._used = np.array(used) if any(other != first for other in others) else first
        self._block_starts = [*state["block_starts"]]
        self._rewind()
