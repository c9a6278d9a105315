"""Ring: store the newest transitions of many columns, and read them.

The ring has ``R`` rows and ``N`` columns, one for each env, or in multi-agent runs for each pair of env and agent. A
*place* is the flat index ``row * N + column``, which ``take()`` of an array ``[R, N]`` expects.

Only transitions are stored: the valid rows of a rollout. Each column has its own cursor, which advances by the number
of valid rows of its slot. The observation after the last of them goes into the next row, where the next rollout
continues. So the observation after a step is always in the next row, and is never stored twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from gymnasium import Space
from torch import from_numpy

from algorithms.replay.draws import ColumnIndex
from algorithms.replay.layout import ReplayLayout
from algorithms.replay.observations import Index, ObservationRows, TreeRows
from catalog.base import Tree
from catalog.past import sampled_space
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout

START, TERMINATED, CUT = 1, 2, 4
"""Flags of a row: it is the first of an episode; its step ended the episode by termination; its episode ends here, or
the row after it belongs to another one."""


class _Rows(NamedTuple):
    """The contents of a rollout: leaves ``[T, n, ...]`` of observations and actions, other columns ``[T, n]``, leaves
    ``[n, ...]`` of the observations after the last row, and those of the true final observations."""

    obs: list[np.ndarray]
    actions: list[np.ndarray]
    rewards: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    flags: np.ndarray
    last_obs: list[np.ndarray]
    finals: list[np.ndarray]


class Ring:
    """Keeps transitions in a ring ``[R, N]``.

    Args:
        layout: Shapes and sizes.
        observation_space: The space of the observations.
        action_space: The env's action space.

    Attributes:
        rows: ``R``.
        num_columns: ``N``.
        written: int64 ``[N]``: the number of transitions that were ever written to each column. The next one goes to
            row ``written % R``, which already holds the observation.
        flags: uint8 ``[R, N]``: :data:`START`, :data:`TERMINATED` and :data:`CUT`. Rows not written yet have ``CUT``.
        rewards: float32 ``[R, N]``.
        obs, actions: The observations and actions.
    """

    def __init__(self, layout: ReplayLayout, observation_space: Space, action_space: Space) -> None:
        self.rows, self.num_columns = shape = layout.rows, layout.num_envs
        self.num_places = layout.rows * layout.num_envs
        self.obs = ObservationRows(layout.obs, observation_space, *shape)
        self.actions = TreeRows(layout.actions, sampled_space(action_space), *shape)
        self.rewards = np.zeros(shape, np.float32)
        self.flags = np.full(shape, CUT, np.uint8)
        self.written = np.zeros(layout.num_envs, np.int64)

    # ------------------------------------------------------------------------------------------------ writing

    def add(self, rollout: Rollout, columns: ColumnIndex) -> None:
        """Store the valid rows of a rollout ``[T, n]`` in ``n`` columns.

        A slot goes on with the episode of the rows that were added to its column before, unless this episode ended or
        the first valid row of the slot starts another. Between valid rows, invalid rows only follow ends of episodes.

        Raises:
            ValueError: If the rollout is too long, a column does not exist, or the data do not fit. The ring is then
                unchanged.
        """
        valid = rollout.valid.numpy()
        steps = len(valid)
        self._check_fit(columns, steps)
        data = self._read(rollout)  # everything that can be refused is read before the first write
        all_valid = np.count_nonzero(valid) == valid.size
        self.obs.check_stacks(columns, data.obs, data.last_obs, data.ends if all_valid else data.ends | ~valid)
        if not valid.size:
            return
        heads = self.written[columns]
        row = int(heads[0]) % self.rows
        # Rows that lie together are written as a block, which is faster. `rows` and `into` index the ring, `part` and
        # `slots` the rollout: its rows, and the slots that have a valid one.
        head: int | np.ndarray
        rows: Index
        into, first, lengths, part, slots = columns, 0, steps, slice(None), slice(None)
        if all_valid and isinstance(columns, slice) and row + steps < self.rows and _are_equal(heads):
            head, rows, next_rows = row, slice(row, row + steps), slice(row + 1, row + steps + 1)
            acting = columns
        else:
            part = valid.nonzero()
            slots = np.flatnonzero(valid.any(0))
            if not len(slots):
                return
            rows, into = np.divmod(self._places(valid, columns, *part), self.num_columns)
            next_rows = (rows + 1) % self.rows
            head, first, lengths = heads[slots] % self.rows, valid.argmax(0)[slots], valid.sum(0)[slots]
            acting = np.arange(self.num_columns)[columns][slots]
        cut_before = self._close(head, acting, data.starts[first, slots])
        self.obs.release(next_rows, into)
        self.obs.write(rows, into, data.obs, part)
        self.actions.write(rows, into, data.actions, part)
        self.rewards[rows, into] = data.rewards[part]
        self.flags[rows, into] = data.flags[part]
        self.obs.write((head + lengths) % self.rows, acting, data.last_obs, slots)
        if data.finals:
            places = self._places(valid, columns, *rollout.final_index.numpy().T)
            self.obs.finals.insert(places, data.finals)
        if self.obs.has_stacks:
            begins = data.starts & valid
            begins[first, slots] |= cut_before
            at = begins.nonzero()
            self.obs.begin_stacks(self._places(valid, columns, *at), data.obs, at)
        self.written[acting] += lengths

    def numbers(self, valid: np.ndarray, columns: ColumnIndex) -> np.ndarray:
        """Return how many transitions were ever written to each column when the rows of a rollout will be: before each
        of ``T`` rows and after the last, int64 ``[T + 1, n]``. ``valid`` ``[T, n]`` marks those that are written."""
        heads = self.written[columns]
        return np.concatenate([heads[None], heads + np.cumsum(valid, 0, np.int64)])

    def _places(self, valid: np.ndarray, columns: ColumnIndex, row: np.ndarray, slot: np.ndarray) -> np.ndarray:
        """Return the places ``[K]`` of ``K`` valid rows of a rollout that is being added, by their row and slot."""
        rows = self.numbers(valid, columns)[row, slot] % self.rows
        return rows * self.num_columns + np.arange(self.num_columns)[columns][slot]

    def _close(self, head: int | np.ndarray, columns: ColumnIndex, begins: np.ndarray) -> np.ndarray:
        """Return whether the episode of the newest row of each column is over, bool ``[n]``.

        If a new episode ``begins`` though the last one did not end, the last one was truncated. The observation that is
        still in row ``head`` is its true final one.
        """
        newest = (head - 1) % self.rows
        is_over = self.flags[newest, columns] & CUT > 0
        broken = begins > is_over
        if np.count_nonzero(broken):
            numbers = np.arange(self.num_columns)[columns]
            finals = self.obs.take((head * self.num_columns + numbers)[broken])
            self.obs.finals.insert((newest * self.num_columns + numbers)[broken], finals)
            self.flags[newest, columns] |= broken * np.uint8(CUT)
        return is_over | broken

    def _check_fit(self, columns: ColumnIndex, steps: int) -> None:
        """Raise ``ValueError`` if a column does not exist, or a rollout of ``steps`` rows is too long."""
        if isinstance(columns, slice):
            first, end = columns.start, columns.stop
        else:
            first, end = int(columns.min()), int(columns.max()) + 1
        if first < 0 or end > self.num_columns:
            expected, got = f"envs 0 to {self.num_columns - 1}", f"envs {first} to {end - 1}"
            remedy = "Make num_envs the number of envs of all rollouts together."
        elif steps >= self.rows:
            expected, got = f"a rollout of at most {self.rows - 1} rows", f"{steps} rows"
            remedy = "Add it in parts, or raise the capacity."
        else:
            return
        raise ValueError(f"ReplayBuffer.add(): expected {expected}, got {got}. {remedy}")

    def _read(self, rollout: Rollout) -> _Rows:
        """Return the contents of a rollout. Raise ``ValueError`` if they do not fit the spaces."""
        stored, shape = rollout.columns, rollout.shape
        if Columns.STARTS not in stored:
            raise ValueError(
                f"Rollout: expected the column 'starts', got {', '.join(stored)}. Say which rows "
                "are the first of an episode."
            )
        obs = self.obs.read("Rollout['obs']", stored[Columns.OBS], shape)
        last_obs = self.obs.read("Rollout.last_obs", rollout.last_obs, shape[1:])
        actions = self.actions.read("Rollout['actions']", stored[Columns.ACTIONS], shape)
        terminateds, truncateds, rewards, starts = [stored[name].numpy() for name in _NUMBERS]
        ends: np.ndarray = np.bitwise_or(terminateds, truncateds)
        flags = starts * np.uint8(START) | terminateds * np.uint8(TERMINATED) | ends * np.uint8(CUT)
        finals = self._read_finals(rollout, ends, terminateds)
        return _Rows(obs, actions, rewards, starts, ends, flags, last_obs, finals)

    def _read_finals(self, rollout: Rollout, ends: np.ndarray, terminateds: np.ndarray) -> list[np.ndarray]:
        """Return the leaves ``[K, ...]`` of the true final observations. Raise ``ValueError`` unless the rollout lists
        those of all truncated steps, and no others but those of terminated ones."""
        truncated = ends > terminateds
        index = rollout.final_index.numpy()
        at = tuple(index.T)
        num = np.count_nonzero(truncated)
        if not len(index) == np.count_nonzero(ends[at]) or np.count_nonzero(truncated[at]) != num:
            raise ValueError(
                f"Rollout.final_index: expected the row and slot of each of the {num} truncated steps, got "
                f"{len(index)} rows. List each truncated step once, and its true final observation in final_obs."
            )
        return self.obs.read("Rollout.final_obs", rollout.final_obs, (len(index),)) if len(index) else []

    # ------------------------------------------------------------------------------------------------ reading

    @property
    def num_bytes(self) -> int:
        """Bytes of the observations kept apart from the rows."""
        return self.obs.finals.num_bytes + self.obs.older.num_bytes

    @property
    def heads(self) -> np.ndarray:
        """The row in which the next step of each column is stored, int64 ``[N]``."""
        return self.written % self.rows

    def steps_after(self, places: np.ndarray) -> np.ndarray:
        """Return the number of rows of the same column that were written after those at ``places``, int64 of the same
        shape."""
        rows, columns = np.divmod(places, self.num_columns)
        return (self.written.take(columns) - 1 - rows) % self.rows

    def has(self, flag: int, places: np.ndarray) -> np.ndarray:
        """Return which rows at ``places`` have a ``flag``, bool of the same shape."""
        return self.flags.take(places) & flag > 0

    def observations(self, places: np.ndarray) -> Tree:
        """Return the observations in the rows at ``places`` ``[B]``, a tree of tensors ``[B, ...]``."""
        return self.obs.build(self.obs.take(places))

    def actions_at(self, places: np.ndarray) -> Tree:
        """Return the actions in the rows at ``places`` ``[B]``, a tree of tensors ``[B, ...]``."""
        return self.actions.build(self.actions.take(places))

    def following_observations(self, places: np.ndarray) -> Tree:
        """Return the observations after the steps at ``places`` ``[B]``, a tree of tensors ``[B, ...]``.

        After a truncated step, the result is the true final observation. After a terminated step, it is arbitrary,
        unless the rollout had its final observation.
        """
        return self.obs.build(self.obs.take_following(places))

    # -------------------------------------------------------------------------------------------------- state

    def get_state(self) -> dict[str, Any]:
        """Return everything in the rows that were written, as tensors that share the ring's memory."""
        rows = min(self.rows, int(self.written.max()) + 1)  # one more holds the newest observation
        return {
            "obs": self.obs.get_state(rows),
            "actions": self.actions.get_rows(rows),
            "rewards": from_numpy(self.rewards[:rows]),
            "flags": from_numpy(self.flags[:rows]),
            "written": from_numpy(self.written),
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`get_state` of a ring of the same layout."""
        self.flags[:] = CUT
        self.obs.release(slice(None), slice(None))
        self.obs.set_state(state["obs"])
        self.actions.set_rows(state["actions"])
        for array, saved in ((self.rewards, state["rewards"]), (self.flags, state["flags"])):
            array[: len(saved)] = saved.numpy()
        self.written[:] = state["written"].numpy()


def _are_equal(numbers: np.ndarray) -> bool:
    """Return whether all ``numbers`` are the same."""
    as_list = numbers.tolist()  # faster than NumPy for a few
    return as_list.count(as_list[0]) == len(as_list)


_NUMBERS = (Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.REWARDS, Columns.STARTS)
