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
from torch import Tensor, from_numpy

from algorithms.replay.draws import ColumnIndex
from algorithms.replay.layout import ReplayLayout
from algorithms.replay.observations import Index, ObservationRows, TreeRows
from catalog.base import Tree
from catalog.past import sampled_space
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout, map_leaves

START, TRUNCATED, TERMINATED = 1, 2, 4
"""Flags of a row: it is the first of an episode; its step truncated the episode; its step terminated the episode."""
CUT = TRUNCATED | TERMINATED
"""No n-step window goes on after a row with one of these flags."""


class _Rows(NamedTuple):
    """The contents of a rollout: leaves ``[T, n, ...]`` of observations and actions, other columns ``[T, n]``, leaves
    ``[n, ...]`` of the observations after the last row, and those of the true final observations."""

    obs: list[np.ndarray]
    actions: list[np.ndarray]
    rewards: np.ndarray
    starts: np.ndarray
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
        flags: uint8 ``[R, N]``: sums of :data:`START`, :data:`TRUNCATED` and :data:`TERMINATED`. Rows not written yet
            are marked as truncated.
        rewards: float32 ``[R, N]``.
        obs, actions: The observations and actions.
    """

    def __init__(self, layout: ReplayLayout, observation_space: Space, action_space: Space) -> None:
        self.rows, self.num_columns = shape = layout.rows, layout.num_envs
        self.num_places = layout.rows * layout.num_envs
        self.obs = ObservationRows(layout.obs, observation_space, *shape)
        self.actions = TreeRows(layout.actions, sampled_space(action_space), *shape)
        self.rewards = np.zeros(shape, np.float32)
        self.flags = np.full(shape, TRUNCATED, np.uint8)
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
        valid: Any = rollout.numpy(Columns.VALID)
        steps = len(valid)
        self._check_fit(columns, steps)
        data = self._read(rollout, valid.shape)  # everything that can be refused is read before the first write
        if self.obs.has_stacks:
            self.obs.check_stacks(columns, data.obs, data.last_obs, ~valid | (data.flags & CUT > 0))
        if not valid.size:
            return
        heads = self.written[columns]
        first_head = int(heads[0]) % self.rows
        all_valid = np.count_nonzero(valid) == valid.size
        as_list = heads.tolist()  # faster than NumPy for a few
        are_aligned = isinstance(columns, slice) and as_list.count(as_list[0]) == len(as_list)
        # `part` of the rollout goes to `rows` and `into` in the ring. `slots` are those that have a valid row, `acting`
        # their columns, and `head` the first row that they write.
        if all_valid and are_aligned and first_head + steps < self.rows:
            # The rows lie together. Blocks are written faster than rows one by one.
            rows: Index = slice(first_head, first_head + steps)
            next_rows: Index = slice(first_head + 1, first_head + steps + 1)
            into = acting = columns
            part = slots = _ALL
            head = first_head
            first, lengths = 0, steps
        else:
            part = valid.nonzero()
            slots = np.flatnonzero(valid.any(0))
            if not len(slots):
                return
            rows, into = np.divmod(self._places(valid, columns, *part), self.num_columns)
            next_rows = (rows + 1) % self.rows
            acting = np.arange(self.num_columns)[columns][slots]
            head = heads[slots] % self.rows
            first, lengths = valid.argmax(0)[slots], valid.sum(0)[slots]
        self._close(head, acting, data.starts[first, slots])
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
            begins[first, slots] |= self.flags[(head - 1) % self.rows, acting] & CUT > 0
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

    def _close(self, head: int | np.ndarray, columns: ColumnIndex, begins: np.ndarray) -> None:
        """Mark the newest row of a column as truncated if a new episode ``begins``, bool ``[n]``, though the last one
        did not end. The observation that is still in row ``head`` is the true final one of the last episode."""
        if not np.count_nonzero(begins):
            return
        newest = (head - 1) % self.rows
        broken = begins & (self.flags[newest, columns] & CUT == 0)
        if np.count_nonzero(broken):
            numbers = np.arange(self.num_columns)[columns]
            finals = self.obs.take((head * self.num_columns + numbers)[broken])
            self.obs.finals.insert((newest * self.num_columns + numbers)[broken], finals)
            self.flags[newest, columns] |= broken * np.uint8(TRUNCATED)

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

    def _read(self, rollout: Rollout, shape: tuple[int, ...]) -> _Rows:
        """Return the contents of a rollout of ``shape`` ``[T, n]``. Raise ``ValueError`` if they do not fit."""
        if Columns.STARTS not in rollout:
            raise ValueError(
                f"Rollout: expected the column 'starts', got {', '.join(rollout.columns)}. Say which rows "
                "are the first of an episode."
            )
        obs = self.obs.read("Rollout['obs']", rollout.numpy(Columns.OBS), shape)
        last_obs = self.obs.read("Rollout.last_obs", rollout.numpy("last_obs"), shape[1:])
        actions = self.actions.read("Rollout['actions']", rollout.numpy(Columns.ACTIONS), shape)
        numbers: list[Any] = [rollout.numpy(name) for name in _NUMBERS]
        terminateds, truncateds, rewards, starts = numbers
        # The sum of the two is 0, TRUNCATED or TERMINATED, halved: a step that does both terminates.
        ends = terminateds.view(np.uint8) + np.bitwise_or(terminateds, truncateds)
        flags = starts.view(np.uint8) + (ends + ends)
        finals = self._read_finals(rollout, flags)
        return _Rows(obs, actions, rewards, starts, flags, last_obs, finals)

    def _read_finals(self, rollout: Rollout, flags: np.ndarray) -> list[np.ndarray]:
        """Return the leaves ``[K, ...]`` of the true final observations. Raise ``ValueError`` unless the rollout lists
        those of all truncated steps, and no others but those of terminated ones."""
        num = np.count_nonzero(flags & TRUNCATED)
        num_listed = rollout.final_index.shape[0]
        if not num_listed and not num:
            return []
        listed = flags[tuple(rollout.final_index.numpy().T)]
        if np.count_nonzero(listed & CUT) < num_listed or np.count_nonzero(listed & TRUNCATED) != num:
            raise ValueError(
                f"Rollout.final_index: expected the row and slot of each of the {num} truncated steps, got "
                f"{num_listed} rows. List each truncated step once, and its true final observation in final_obs."
            )
        finals = map_leaves(Tensor.numpy, rollout.final_obs)
        return self.obs.read("Rollout.final_obs", finals, (num_listed,))

    # ------------------------------------------------------------------------------------------------ reading

    @property
    def num_bytes(self) -> int:
        """Bytes of the observations kept apart from the rows."""
        return self.obs.finals.num_bytes + self.obs.older.num_bytes

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
        self.flags[:] = TRUNCATED
        self.obs.release(slice(None), slice(None))
        self.obs.set_state(state["obs"])
        self.actions.set_rows(state["actions"])
        for array, saved in ((self.rewards, state["rewards"]), (self.flags, state["flags"])):
            array[: len(saved)] = saved.numpy()
        self.written[:] = state["written"].numpy()


_ALL = slice(None)
_NUMBERS = (Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.REWARDS, Columns.STARTS)
