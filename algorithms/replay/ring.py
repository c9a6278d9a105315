"""Ring: store the newest transitions of many columns, and read them.

The ring has ``R`` rows and ``N`` columns, one for each env, or in multi-agent runs for each pair of env and agent. A
*place* is the flat index ``row * N + column``, which ``take()`` of an array ``[R, N]`` expects.

Only transitions are stored: the valid rows of a rollout. Each column has its own cursor, which advances by the number
of valid rows of its slot. The observation after the last of them goes into the next row, where the next rollout
continues. So the observation after a step is always in the next row, and is never stored twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import tree
from gymnasium import Space
from torch import Tensor, from_numpy

from algorithms.replay.layout import ReplayLayout
from algorithms.replay.observations import CHECKED_ROWS, Arrays, Index, TreeRows
from catalog.base import Tree
from catalog.past import sampled_space
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout, map_leaves

START, TRUNCATED, TERMINATED = np.uint8(1), np.uint8(2), np.uint8(4)
"""Flags of a row: it is the first of an episode; its step truncated the episode; its step terminated the episode."""
CUT = TRUNCATED | TERMINATED
"""No n-step window goes on after a row with one of these flags."""

ColumnIndex: TypeAlias = "slice | np.ndarray"
"""Columns of a ring, no two of them the same."""


class Ring:
    """Keeps transitions in a ring ``[R, N]``.

    Args:
        layout: Shapes and sizes.
        observation_space: The space of the observations.
        action_space: The env's action space.
        ends_with_finals: Flags of the steps whose true final observation is needed: :data:`TRUNCATED`, or :data:`CUT`
            for those of all ends of episodes.

    Attributes:
        rows: ``R``.
        num_columns: ``N``.
        written: int64 ``[N]``: the number of transitions that were ever written to each column. The next one goes to
            row ``written % R``, which already holds the observation.
        flags: uint8 ``[R, N]``: sums of :data:`START`, :data:`TRUNCATED` and :data:`TERMINATED`. Rows not written yet
            are marked as truncated.
        rewards: float32 ``[R, N]``.
        obs, actions: The observations and actions.
        ends_with_finals: As above.
    """

    def __init__(
        self, layout: ReplayLayout, observation_space: Space, action_space: Space, ends_with_finals: np.uint8
    ) -> None:
        self.ends_with_finals = ends_with_finals
        self.rows, self.num_columns = shape = layout.rows, layout.num_envs
        self.num_places = layout.rows * layout.num_envs
        self.obs = TreeRows(layout.obs, observation_space, *shape, have_finals=True)
        self.actions = TreeRows(layout.actions, sampled_space(action_space), *shape, have_finals=False)
        self.rewards = np.zeros(shape, np.float32)
        self.flags = np.full(shape, TRUNCATED)
        self.written = np.zeros(layout.num_envs, np.int64)
        self._arrays = [*self.obs.arrays, *self.actions.arrays, self.rewards, self.flags]

    # ------------------------------------------------------------------------------------------------ writing

    def add(self, rollout: Rollout, columns: ColumnIndex) -> None:
        """Store the valid rows of a rollout ``[T, n]`` in ``n`` columns.

        A slot goes on with the episode of the rows that were added to its column before, unless this episode ended or
        the first valid row of the slot starts another. Between valid rows, invalid rows only follow ends of episodes.

        Raises:
            ValueError: If the rollout is too long, a column does not exist, or the data do not fit. The ring is then
                unchanged.
        """
        # Everything that can be refused is read before the first write.
        valid: Any = rollout.numpy(Columns.VALID)
        steps = len(valid)
        self._check_fit(columns, steps)
        obs = self.obs.read("Rollout['obs']", rollout.numpy(Columns.OBS), valid.shape)
        last_obs = self.obs.read("Rollout.last_obs", rollout.numpy("last_obs"), valid.shape[1:])
        actions = self.actions.read("Rollout['actions']", rollout.numpy(Columns.ACTIONS), valid.shape)
        rewards: Any = rollout.numpy(Columns.REWARDS)
        starts, flags, final_index, finals = self._read_ends(rollout)
        heads = self.written[columns]
        if self.obs.has_stacks and (unchecked := CHECKED_ROWS - int(heads.min())) > 0:
            cuts = ~valid | (flags & CUT > 0)
            self.obs.check_stacks(obs, last_obs, cuts[:unchecked], np.arange(self.num_columns)[columns])
        num_valid = np.count_nonzero(valid)
        if not num_valid:
            return
        first_head = int(heads[0]) % self.rows
        as_list = heads.tolist()  # faster than NumPy for a few
        are_aligned = isinstance(columns, slice) and as_list.count(as_list[0]) == len(as_list)
        # `part` of the rollout goes to `rows` and `into` in the ring. `slots` are those that have a valid row: each one
        # writes `lengths` rows from `head` on to the column in `acting`, and its first valid row is `first`.
        if num_valid == valid.size and are_aligned and first_head + steps < self.rows:
            # The rows lie together. Blocks are written faster than rows one by one.
            rows: Index = slice(first_head, first_head + steps)
            next_rows: Index = slice(first_head + 1, first_head + steps + 1)
            into = acting = columns
            part = slots = _ALL
            first, head, lengths = 0, first_head, steps
        else:
            part = valid.nonzero()
            rows, into = np.divmod(self._places(valid, columns)[part], self.num_columns)
            next_rows = (rows + 1) % self.rows
            slots = np.flatnonzero(valid.any(0))
            acting = np.arange(self.num_columns)[columns][slots]
            first, head, lengths = valid.argmax(0)[slots], heads[slots] % self.rows, valid.sum(0)[slots]
        newest = (head - 1) % self.rows
        begins = starts[first, slots]
        if np.count_nonzero(begins):
            self._close((newest * self.num_columns + np.arange(self.num_columns)[acting])[begins])
        self.obs.release(next_rows, into)
        values = (*self.obs.newest(obs), *actions, rewards, flags)
        if part is not _ALL:  # an index that leaves nothing out still costs time
            values = tuple(column[part] for column in values)
        for array, column in zip(self._arrays, values, strict=True):
            array[rows, into] = column
        after = (head + lengths) % self.rows
        for array, column in zip(self.obs.arrays, self.obs.newest(last_obs), strict=True):
            array[after, acting] = column[slots]
        if len(final_index):
            self.obs.finals.insert(self._places(valid, columns)[final_index], finals)
        if self.obs.has_stacks:
            begins = starts & valid
            begins[first, slots] |= self.flags[newest, acting] & CUT > 0
            self.obs.begin_stacks(self._places(valid, columns)[begins], [column[begins] for column in obs])
        self.written[acting] += lengths

    def numbers(self, valid: np.ndarray, columns: ColumnIndex) -> np.ndarray:
        """Return how many transitions were ever written to each column when the rows of a rollout will be: before each
        of ``T`` rows and after the last, int64 ``[T + 1, n]``. ``valid`` ``[T, n]`` marks those that are written."""
        heads = self.written[columns]
        return np.concatenate([heads[None], heads + np.cumsum(valid, 0, np.int64)])

    def _places(self, valid: np.ndarray, columns: ColumnIndex) -> np.ndarray:
        """Return the places of the valid rows of a rollout that is being added, int64 ``[T, n]``."""
        rows = self.numbers(valid, columns)[:-1] % self.rows
        return rows * self.num_columns + np.arange(self.num_columns)[columns]

    def _close(self, places: np.ndarray) -> None:
        """Mark the newest rows of some columns, at ``places`` ``[k]``, as truncated unless they ended their episodes,
        since the next row starts another. The observation that is still in that row is the true final one."""
        places = places[~self.has(CUT, places)]
        if len(places):
            self.obs.end(places)
            self.flags.put(places, self.flags.take(places) | TRUNCATED)

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

    def _read_ends(self, rollout: Rollout) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...], Arrays]:
        """Return where episodes of a rollout begin and end.

        Returns:
            The column ``starts``, the flags of each row, uint8 ``[T, n]``, the row and slot of each true final
            observation, ``[K]`` each, and the leaves of these observations, ``[K, ...]``. A step that both truncates
            and terminates its episode terminates it.

        Raises:
            ValueError: If the rollout has no ``starts``, or does not list the true final observations of all steps in
                ``ends_with_finals``, and no others but those of terminated ones.
        """
        if Columns.STARTS not in rollout:
            raise ValueError(
                f"Rollout: expected the column 'starts', got {', '.join(rollout.columns)}. Say which rows "
                "are the first of an episode."
            )
        starts: Any = rollout.numpy(Columns.STARTS)
        terminateds: Any = rollout.numpy(Columns.TERMINATEDS)
        truncateds: Any = rollout.numpy(Columns.TRUNCATEDS)
        flags, num, num_listed = starts.view(np.uint8), 0, rollout.final_index.shape[0]
        if np.count_nonzero(terminateds) or np.count_nonzero(truncateds):  # most steps end no episode
            flags = flags + TERMINATED * terminateds + TRUNCATED * (truncateds > terminateds)
            num = np.count_nonzero(flags & self.ends_with_finals)
        if not num and not num_listed:
            return starts, flags, (), []
        index = tuple(rollout.final_index.numpy().T)
        listed = flags[index]
        if np.count_nonzero(listed & CUT) < num_listed or np.count_nonzero(listed & self.ends_with_finals) != num:
            which = "truncated steps"
            remedy = "List each truncated step once, and its true final observation in final_obs."
            if self.ends_with_finals == CUT:
                which, remedy = "steps that end an episode", 'Sample with settings whose records_final_obs is "ended".'
            raise ValueError(
                f"Rollout.final_index: expected the row and slot of each of the {num} {which}, got {num_listed} rows. "
                f"{remedy}"
            )
        finals = map_leaves(Tensor.numpy, rollout.final_obs)
        return starts, flags, index, self.obs.read("Rollout.final_obs", finals, (num_listed,))

    # ------------------------------------------------------------------------------------------------ reading

    @property
    def num_bytes(self) -> int:
        """Bytes of the observations kept apart from the rows."""
        return sum(table.nbytes for rows in (self.obs.finals, self.obs.older) for table in rows.tables)

    def steps_after(self, places: np.ndarray) -> np.ndarray:
        """Return the number of rows of the same column that were written after those at ``places``, int64 of the same
        shape."""
        rows, columns = np.divmod(places, self.num_columns)
        return (self.written.take(columns) - 1 - rows) % self.rows

    def has(self, flag: np.uint8, places: np.ndarray) -> np.ndarray:
        """Return which rows at ``places`` have a ``flag``, bool of the same shape."""
        return self.flags.take(places) & flag > 0

    def actions_after(self, places: np.ndarray) -> tuple[Tree, np.ndarray]:
        """Return the actions of the rows after ``places`` ``[B]``, and whether they are known, bool ``[B]``. After the
        last step of an episode, and after the newest row, they are zeros."""
        is_known = ~self.has(CUT, places) & (self.steps_after(places) > 0)
        actions = self.actions.at(places + self.num_columns)
        for leaf in tree.flatten(actions):
            leaf[from_numpy(~is_known)] = 0
        return actions, is_known

    # -------------------------------------------------------------------------------------------------- state

    def get_state(self) -> dict[str, Any]:
        """Return everything in the rows that were written. Tensors of rows share the ring's memory."""
        rows = min(self.rows, int(self.written.max()) + 1)  # one more holds the newest observation
        *leaves, rewards, flags = [from_numpy(array[:rows]) for array in self._arrays]
        num_obs = len(self.obs.arrays)
        obs = {
            "columns": leaves[:num_obs],
            "finals": self.obs.finals.get_state(),
            "older": self.obs.older.get_state() if self.obs.has_stacks else None,
        }
        written = from_numpy(self.written)
        return {"obs": obs, "actions": leaves[num_obs:], "rewards": rewards, "flags": flags, "written": written}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`get_state` of a ring of the same layout."""
        obs = state["obs"]
        self.flags[:] = TRUNCATED
        for array, saved in zip(
            self._arrays, [*obs["columns"], *state["actions"], state["rewards"], state["flags"]], strict=True
        ):
            array[: len(saved)] = saved.numpy()
        self.obs.release(_ALL, _ALL)
        self.obs.finals.set_state(obs["finals"])
        if self.obs.has_stacks:
            self.obs.older.set_state(obs["older"])
        self.written[:] = state["written"].numpy()


_ALL = slice(None)
