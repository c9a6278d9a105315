"""The random streams of a runner's envs: seeds, action noise that is drawn ahead of time, and a shared generator."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from catalog.distributions.base import Distribution
from rlmodule.seeding import int_seed, numpy_stream

BLOCK_ROWS = 128
"""Largest number of rows of noise in a block. A block is drawn at once."""
BLOCK_NUMBERS = 2**16
"""Largest number of random numbers per env in a block. If rows are wide, a block has fewer rows."""


class RandomStreams:
    """Provides the seeds of resets, the action noise, and a generator for draws shared by all envs of a runner.

    Each env has its own seeds and noise, which depend on its index in the run. The generator depends on the runner's
    first env. A state can be restored by runners that group the envs differently. Even then, no number is drawn twice,
    because envs of one runner that advance together all continue from the position of the env that has used most of its
    stream.

    Args:
        run_seed: Seed of the run.
        role: ``"env"`` or ``"evaluation_env"``.
        envs: Indices of the envs in the run.
        incarnation: Number of earlier runners of the same envs. The streams of each incarnation differ.
        device: For envs that return tensors, their device, on which the generator draws all numbers. None for envs that
            return arrays.

    Attributes:
        noise: The action noise of each env; without streams for envs that return tensors.
        generator: Draws for all envs at once.
    """

    def __init__(
        self, run_seed: int, role: str, envs: range, *, incarnation: int = 0, device: torch.device | None = None
    ) -> None:
        self._run_seed, self._role, self._envs = run_seed, role, envs
        self._action_role = "action" if role == "env" else "evaluation_action"
        self._kind = "arrays" if device is None else device.type
        self._own = envs if device is None else envs[:1]  # envs with their own seeds: all, or the first for all
        self._incarnation, self._resets = incarnation, 0
        self.noise = ActionNoise([self.new_stream(index) for index in envs] if device is None else [])
        self.generator = torch.Generator(device or "cpu")
        self._begin_generator()

    def _key(self, *index: int) -> tuple[int, ...]:
        return (*index, self._incarnation) if self._incarnation else index

    def new_stream(self, *index: int) -> np.random.Generator:
        """Return the generator of an action noise stream, at its start. Its seed depends only on ``index``, the run
        seed, the role and the incarnation.

        Args:
            *index: Number of the stream: the env's index in the run, or for multi-agent envs the agent's slot in the
                run, followed by a number for the module if a function maps agents to modules.
        """
        return numpy_stream(self._run_seed, self._action_role, *self._key(*index))

    def _begin_generator(self) -> None:
        self.generator.manual_seed(int_seed(self._run_seed, self._action_role, *self._key(self._envs[0])))

    def next_seeds(self) -> list[int]:
        """Return the seeds of the next reset: one for each env, or a single seed if the envs return tensors. No seed is
        returned twice, even if the reset fails."""
        seeds = [int_seed(self._run_seed, self._role, *self._key(index, self._resets)) for index in self._own]
        self._resets += 1
        return seeds

    def get_state(self) -> dict[str, dict[str, Any]]:
        """Return the state of each env's streams, by the env's index in the run. The entry of the first env also has
        the state of the generator."""
        state: dict[str, dict[str, Any]] = {
            str(index): {"incarnation": self._incarnation, "resets": self._resets} for index in self._own
        }
        for of_env, noise in zip(state.values(), self.noise.get_state(), strict=False):
            of_env["noise"] = noise
        state[str(self._envs[0])]["generator"] = {"draws": self._kind, "state": self.generator.get_state()}
        return state

    def set_state(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore states from :meth:`get_state` of this or other runners. The noise of an env without a state starts
        over. The generator starts over if the first env has no state.

        Raises:
            ValueError: If the state is of envs on a different kind of device, which draw different random numbers.
        """
        saved = {index: state.get(str(index), {}) for index in self._envs}
        generator = saved[self._envs[0]].get("generator", {"draws": self._kind})
        if generator["draws"] != self._kind:
            raise ValueError(
                f"state of an env runner: expected random numbers for {self._kind!r}, got those for "
                f"{generator['draws']!r}. Resume with the env on the device that it was on."
            )
        self._incarnation = last_incarnation(saved.values())
        self._resets = max(of_env.get("resets", 0) for of_env in saved.values())
        if "state" in generator:
            self.generator.set_state(generator["state"])
        else:
            self._begin_generator()
        if self._kind == "arrays":
            fresh = ActionNoise([self.new_stream(index) for index in saved]).get_state()
            self.noise.set_state(
                [of_env.get("noise") or new for of_env, new in zip(saved.values(), fresh, strict=True)]
            )


def last_incarnation(envs: Iterable[Mapping[str, Any]]) -> int:
    """Return the highest incarnation among the states of ``envs``, each from :meth:`RandomStreams.get_state`."""
    return max((of_env.get("incarnation", 0) for of_env in envs), default=0)


class ActionNoise:
    """Draws noise for the actions of several envs, one row for each action.

    Noise is drawn in blocks whose size depends only on the distribution. So the noise of an env depends neither on the
    length of fragments nor on the other envs. :meth:`take` uses up the same rows of all envs, and :meth:`take_of` a row
    only of the envs that act.

    Args:
        streams: The stream of each env.
    """

    def __init__(self, streams: Sequence[np.random.Generator]) -> None:
        self._streams = streams
        self.is_drawn = False
        """Whether the distribution accepts noise. If not, it draws from a generator when it samples."""
        self._block_starts = self._positions()
        self._rows: Sequence[Tensor] = ()  # rows of the block; empty until it is drawn
        self._used: int | np.ndarray = 0  # number of used rows: one number for all envs, or one for each

    def use(self, dist_cls: type[Distribution], width: int) -> None:
        """Draw noise for distributions of class ``dist_cls`` with ``width`` inputs from now on. Rows that were drawn
        but not used are drawn again."""
        self._dist_cls, self._width = dist_cls, width
        self._block_rows = max(1, min(BLOCK_ROWS, BLOCK_NUMBERS // width))
        self.is_drawn = dist_cls.draw_noise(np.random.default_rng(0), 1, width) is not None
        self._rewind()

    def take(self, num: int) -> Sequence[Tensor]:
        """Return the next ``num`` rows ``[N, ...]``. Envs at different positions all continue from the furthest
        position, so that no noise is used twice."""
        if isinstance(self._used, np.ndarray):
            self._used = int(self._used.max())
        taken: list[Tensor] = []
        while True:
            more = self._rows[self._used : self._used + num - len(taken)]
            self._used += len(more)
            taken += more
            if len(taken) == num:
                return taken
            self._used -= len(self._rows)
            self._draw()

    def take_of(self, who: np.ndarray, acting: np.ndarray | None = None) -> Tensor:
        """Return the next row of noise ``[K, ...]`` for the ``K`` envs in ``who``, whose indices are in ascending
        order. Only these envs use up their row, or only those that ``acting`` ``[K]`` marks."""
        if not isinstance(self._used, np.ndarray):
            if len(who) == len(self._streams) and acting is None:
                return self.take(1)[0]
            self._used = np.full(len(self._streams), self._used)
        if not self._rows:
            self._draw()
        # draw a new block for each env that has used up its own
        while np.count_nonzero(spent := self._used >= self._block_rows):
            for env in np.flatnonzero(spent).tolist():
                self._block_starts[env] = self._streams[env].bit_generator.state
                self._block[:, env] = self._block_of(self._streams[env])
            self._used[spent] -= self._block_rows
        rows = torch.from_numpy(self._block.numpy()[self._used[who], who])  # NumPy takes half as long to index as torch
        self._used[who] += 1 if acting is None else acting
        return rows

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
        """Set the streams back to the start of the block, to draw its rows again; keep the number of used rows."""
        for stream, position in zip(self._streams, self._block_starts, strict=True):
            stream.bit_generator.state = position
        self._rows = ()

    def get_state(self) -> list[dict[str, Any]]:
        """Return the state of each env as JSON values: the stream at the start of the current block, and the number of
        used rows."""
        used = np.broadcast_to(self._used, len(self._streams)).tolist()
        places = zip(self._block_starts, used, strict=True)
        return [{"block_start": start, "used": num} for start, num in places]

    def set_state(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Restore a state from :meth:`get_state` of the same number of streams.

        Raises:
            ValueError: If a number of used rows is not from 0 to :data:`BLOCK_ROWS`.
        """
        used = [of_env["used"] for of_env in state]
        if used and not 0 <= min(used) <= max(used) <= BLOCK_ROWS:
            raise ValueError(f"state of action noise: expected 0 to {BLOCK_ROWS} used rows, got {used}")
        self._used = used[0] if len({*used}) == 1 else np.array(used)
        self._block_starts = [of_env["block_start"] for of_env in state]
        self._rewind()
