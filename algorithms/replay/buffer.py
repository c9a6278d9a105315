"""ReplayBuffer: transitions in a ring of rows and envs, and n-step batches of them.

The ring has ``R`` rows and ``N`` columns, one per env; a place in it is ``row * N + column``. A rollout is written as
it is, whole arrays at a time; the observation after its last row goes into the row that the next one begins with. So
what followed a step stands in the next row and nothing is stored twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from algorithms.replay.layout import ReplayLayout, checked_n_step, wrong_setting
from algorithms.replay.memory import check_memory
from algorithms.replay.observations import ObservationRows, TreeRows
from algorithms.replay.prioritized import Priorities, PrioritizedReplay
from algorithms.replay.resize import take_over
from algorithms.replay.sequences import Anchors, SequenceReplay, gather_sequences
from catalog.base import Tree
from catalog.past import sampled_space
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout, map_leaves

Spans = list[tuple[slice, slice]]
"""Slices of the ring's rows and the slices of a rollout's rows that go there: one pair, or two where the ring ends."""

_MAX_DRAWS = 1 << 20


@dataclass(frozen=True)
class ReplaySample:
    """What :meth:`ReplayBuffer.sample` drew.

    Attributes:
        batch: Columns for a learner, trees of tensors.
        indices: What the priorities belong to, int64: the places of the rows, or the sequences.
        owners: Of sequences: which of ``indices`` each valid row of the batch belongs to. None for rows.
    """

    batch: dict[str, Tree]
    indices: np.ndarray
    owners: np.ndarray | None = None


class ReplayBuffer:
    """The last ``capacity`` transitions of ``num_envs`` envs.

    Override points: none.

    Args:
        observation_space: What the module observes: its ``input_space``.
        action_space: Of the env.
        capacity: Transitions in all.
        num_envs: ``N``.
        gamma: Discount per step.
        n_step: Rewards summed up before ``next_obs``; of a range ``(low, high)`` each sampled row draws its own.
        prioritized: Draw by TD error; None draws uniformly.
        sequences: Draw sequences for a recurrent module; None draws rows.
        frame_stack_axis: Axis of one observation that stacks frames, oldest first, or a mapping from the paths of
            leaves of a Dict or Tuple to theirs. Only the newest frame of each stack is stored then.
        seed: Random stream of the draws.

    Attributes:
        rows: ``R``.
        kept_rows: How many of them hold transitions; the others hold ``last_obs``, and older frames.
        num_envs: ``N``.
        heads: int64 ``[N]``: the row that the next step of each env goes to; what it begins with stands there.
        sampleable: bool ``[R, N]``: rows a sample may begin with: valid transitions among the newest ``kept_rows``.
        starts: bool ``[R, N]``: the row is the first of an episode.
        terminateds: bool ``[R, N]``.
        cuts: bool ``[R, N]``: no window goes on past this row. True also where nothing is written.
        rewards: float32 ``[R, N]``.
        num_transitions: Valid transitions stored.
        max_steps: Of the longest window.
        priorities: By place, or of sequences by anchor, if ``prioritized``.

    Raises:
        ValueError, TypeError: If a setting is wrong.
        MemoryError: If there is not enough memory.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        *,
        capacity: int,
        num_envs: int,
        gamma: float,
        n_step: int | tuple[int, int] = 1,
        prioritized: PrioritizedReplay | None = None,
        sequences: SequenceReplay | None = None,
        frame_stack_axis: int | Mapping[str, int] | None = None,
        seed: np.random.SeedSequence | np.random.Generator,
    ) -> None:
        layout = ReplayLayout.of(observation_space, action_space, capacity, num_envs, sequences, frame_stack_axis)
        self._min_steps, self.max_steps = checked_n_step(n_step, layout.kept_rows)
        if not 0 <= gamma <= 1:
            raise wrong_setting("gamma", "a number from 0 to 1", gamma, "0.99 is usual.")
        check_memory(layout.num_bytes(prioritized), capacity, lambda n: layout.largest_capacity(n, prioritized))
        self.rows, self.kept_rows, self.num_envs = layout.rows, layout.kept_rows, num_envs
        shape, self._num_places = (self.rows, num_envs), self.rows * num_envs
        self._layout, self._fixed_bytes = layout, layout.num_bytes(prioritized)
        same: dict[str, Any] = {"gamma": gamma, "prioritized": prioritized, "frame_stack_axis": frame_stack_axis}
        self._of_shape = partial(ReplayBuffer, observation_space, action_space, **same)
        self._obs = ObservationRows(observation_space, layout.obs, *shape)
        self._actions = TreeRows(layout.actions, sampled_space(action_space), *shape)
        self.rewards = np.zeros(shape, np.float32)
        self.terminateds, self.starts, self.sampleable = (np.zeros(shape, dtype=bool) for _ in range(3))
        self.cuts = np.ones(shape, dtype=bool)
        self._flat_rewards, self._flat_terminateds = self.rewards.reshape(-1), self.terminateds.reshape(-1)
        self._flat_sampleable = self.sampleable.reshape(-1)
        self.heads = np.zeros(num_envs, np.int64)
        self.num_transitions = 0
        self._groups: dict[int, int] = {}  # first columns of rollouts that came, and their numbers of envs
        self._rows_in_use = 0  # from here on no row has been written
        self._powers = np.power(float(gamma), np.arange(self.max_steps + 1)).astype(np.float32)
        self._offsets = np.arange(self.max_steps)
        self._rng = np.random.default_rng(seed)
        self._anchors, leaves = None, self._num_places
        if sequences is not None:
            self._anchors = Anchors(
                sequences, rows=self.rows, kept_rows=self.kept_rows, num_envs=num_envs, n_step=self.max_steps
            )
            leaves = self._anchors.sampleable.size
        self.priorities = None if prioritized is None else Priorities(prioritized, leaves)
        self._row_priorities = self.priorities if sequences is None else None

    @property
    def is_full(self) -> bool:
        """Whether what is added takes the place of older transitions."""
        return self._rows_in_use >= self.kept_rows

    # ------------------------------------------------------------------------------------------------ writing

    def add(self, rollout: Rollout, first_slot: int = 0) -> None:
        """Store the rows of ``rollout``, or its last ``R - 1`` or so, in the columns from ``first_slot`` on.

        The envs of one rollout must always come together, in the same columns. Their rows go on from those that were
        added before, unless these ended or row 0 starts an episode.

        Raises:
            ValueError: If the rollout does not fit; nothing is changed then.
        """
        new, anew, unit = self._read(rollout, first_slot), False, self._layout.row_unit
        if new.steps >= self.rows:
            rollout = _last_rows(rollout, (self.rows - 1) // unit * unit, unit)
            new, anew = self._read(rollout, first_slot), True
        steps, columns = new.steps, new.columns
        if not steps:
            return
        head = int(self.heads[first_slot])
        states = None if self._anchors is None else self._anchors.read_states(rollout, head)
        if anew:
            self._forget(columns)
        self._cut_before(head, columns, new)
        self._withdraw(head + self.rows - self.kept_rows, steps, columns)
        for rows, _ in self._spans(head + 1, steps):
            self._obs.release(rows, columns)
        for rows, part in self._spans(head, steps):
            self._obs.write(rows, columns, new.obs, part)
            self._actions.write(rows, columns, new.actions, part)
            self.rewards[rows, columns] = new.rewards[part]
            self.terminateds[rows, columns] = new.terminateds[part]
            self.starts[rows, columns] = new.starts[part]
            self.cuts[rows, columns] = new.cuts[part]
        after = (head + steps) % self.rows
        self._obs.write(after, columns, new.last_obs)
        if new.final_index is not None:
            rows, slots = new.final_index.T
            places = (head + rows) % self.rows * self.num_envs + columns.start + slots
            self._obs.finals.insert(places, new.final_obs)
        self._obs.begin_stacks(head, columns, new.obs, new.starts)
        self.heads[columns] = after
        self._rows_in_use = min(self.rows, max(self._rows_in_use, head + steps))
        self._offer(head, steps, columns, new.valid)
        if self._anchors is not None:
            self._exchange(*self._anchors.advance(head, steps, columns, states, self.sampleable))

    def _read(self, rollout: Rollout, first_slot: int) -> _Rows:
        """The arrays of ``rollout``, checked."""
        stored = rollout.columns
        if Columns.STARTS not in stored:
            raise ValueError(
                f"Rollout: expected the column 'starts', got {', '.join(stored)}. Say which rows "
                "are the first of an episode."
            )
        valid = stored[Columns.VALID].numpy()
        steps, slots = valid.shape
        columns = slice(first_slot, first_slot + slots)
        if self._groups.get(first_slot) != slots:
            self._check_columns(columns)
        terminateds, truncateds = stored[Columns.TERMINATEDS].numpy(), stored[Columns.TRUNCATEDS].numpy()
        all_valid = np.count_nonzero(valid) == valid.size
        obs = self._obs.read("Rollout['obs']", stored[Columns.OBS], valid.shape)
        last = self._obs.read("Rollout.last_obs", rollout.last_obs, (slots,))
        actions = self._actions.read("Rollout['actions']", stored[Columns.ACTIONS], valid.shape)
        index, finals = None, []
        if np.count_nonzero(truncateds):
            index = rollout.final_index.numpy()
            finals = self._obs.read("Rollout.final_obs", rollout.final_obs, (len(index),))
            _check_finals(terminateds, truncateds, len(index))
        cuts = terminateds | truncateds
        if not all_valid:
            cuts |= ~valid
            cuts[:-1] |= ~valid[1:]
        self._obs.check_stacks(columns, obs, last, cuts)
        rewards, starts = stored[Columns.REWARDS].numpy(), stored[Columns.STARTS].numpy()
        return _Rows(
            steps, columns, obs, last, actions, rewards, terminateds, starts, valid, cuts, all_valid, index, finals
        )

    def _spans(self, begin: int, count: int) -> Spans:
        """``count`` rows of the ring from ``begin`` on."""
        begin %= self.rows
        end = begin + count
        if end <= self.rows:
            return [(slice(begin, end), slice(0, count))]
        first = self.rows - begin
        return [(slice(begin, self.rows), slice(0, first)), (slice(0, end - self.rows), slice(first, count))]

    def _check_columns(self, columns: slice) -> None:
        if columns.start < 0 or columns.stop > self.num_envs:
            raise ValueError(
                f"ReplayBuffer.add(): expected envs 0 to {self.num_envs - 1}, got envs "
                f"{columns.start} to {columns.stop - 1}. Give the buffer as many envs as all "
                "rollouts have together."
            )
        heads = self.heads[columns]
        if np.count_nonzero(heads != heads[0]):
            raise ValueError(
                "ReplayBuffer.add(): expected envs that always come together, got envs "
                f"{columns.start} to {columns.stop - 1}. Give the rollouts of one runner the same "
                "first_slot each time."
            )
        apart = {start: n for start, n in self._groups.items() if start + n <= columns.start or columns.stop <= start}
        self._groups = apart | {columns.start: columns.stop - columns.start}

    def _cut_before(self, head: int, columns: slice, new: _Rows) -> None:
        """Where an episode starts though the one before did not end, it is taken to have been truncated: what was
        observed last, which stands at the head still, is its true final observation."""
        before = (head - 1) % self.rows
        cuts = self.cuts[before, columns]
        broken = new.starts[0] > cuts
        if np.count_nonzero(broken):
            found = np.flatnonzero(broken) + columns.start
            self._obs.finals.insert(before * self.num_envs + found, self._obs.take(head * self.num_envs + found))
            cuts |= broken
        if not new.all_valid:
            cuts |= ~new.valid[0]

    def _withdraw(self, begin: int, count: int, columns: slice) -> None:
        """Let ``count`` rows from ``begin`` on be sampled no more."""
        for rows, _ in self._spans(begin, count):
            block = self.sampleable[rows, columns]
            num = np.count_nonzero(block)
            if num:
                self.num_transitions -= int(num)
                if self._row_priorities is not None:
                    self._row_priorities.remove(self._places(block, rows, columns))
                block[:] = False

    def _offer(self, begin: int, count: int, columns: slice, valid: np.ndarray) -> None:
        """Let the valid ones among ``count`` new rows from ``begin`` on be sampled."""
        if count > self.kept_rows:  # the first of them serve as older frames alone
            valid = valid & (np.arange(count) >= count - self.kept_rows)[:, None]
        self.num_transitions += int(np.count_nonzero(valid))
        for rows, part in self._spans(begin, count):
            self.sampleable[rows, columns] = valid[part]
            if self._row_priorities is not None:
                self._row_priorities.insert(self._places(valid[part], rows, columns))

    def _exchange(self, ceased: np.ndarray, came: np.ndarray) -> None:
        """Let the sequences that ``ceased`` be drawn no more, and those that ``came`` from now on."""
        if self.priorities is not None:
            if len(ceased):
                self.priorities.remove(ceased)
            if len(came):
                self.priorities.insert(came)

    def _places(self, block: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        """Places of what is true in ``block``, which lies at these rows and columns."""
        row, column = block.nonzero()
        return (row + rows.start) * self.num_envs + (column + columns.start)

    def _forget(self, columns: slice) -> None:
        """Empty these columns."""
        self._withdraw(0, self.rows, columns)
        if self._anchors is not None:
            self._exchange(self._anchors.forget(columns), np.empty(0, np.int64))
        self.cuts[:, columns] = True
        self._obs.forget(columns)

    # ------------------------------------------------------------------------------------------------ reading

    def sample(self, batch_size: int, *, beta: float = 1.0) -> ReplaySample:
        """Draw ``batch_size`` transitions, with replacement; or as many sequences as come to it, at least one.

        Args:
            batch_size: ``B``, for sequences ``B·L``.
            beta: How far the weights of prioritized draws make up for their unevenness: 0 not at all, 1 fully.

        Returns:
            ``obs, actions, rewards, next_obs, discounts`` of :meth:`gather_rows`, and ``weights`` ``[B]`` if
            prioritized. Of sequences what :func:`gather_sequences` gives, and ``weights`` ``[L', B]``, 0 at rows that
            are not trained.

        Raises:
            ValueError: If there are fewer transitions or sequences than that.
        """
        if self._anchors is not None:
            return self._sample_sequences(self._anchors, batch_size, beta)
        if not 0 < batch_size <= self.num_transitions:
            raise ValueError(
                f"ReplayBuffer.sample({batch_size}): expected a positive number of transitions, at "
                f"most as many as are stored, got {self.num_transitions} stored (capacity "
                f"{self._layout.capacity}). Raise num_steps_sampled_before_learning_starts or "
                "replay_capacity, or lower train_batch_size_per_learner."
            )
        if self.priorities is None:
            places = self._draw(batch_size, self.sampleable, self._rows_in_use, self.num_transitions)
            return ReplaySample(self.gather_rows(places), places)
        places, weights = self.priorities.sample(batch_size, beta, self._rng)
        return ReplaySample(self.gather_rows(places) | {Columns.WEIGHTS: torch.from_numpy(weights)}, places)

    def _sample_sequences(self, anchors: Anchors, batch_size: int, beta: float) -> ReplaySample:
        length, there = anchors.settings.length, anchors.num
        num = max(1, batch_size // length)
        if batch_size < 1 or num > there:
            raise ValueError(
                f"ReplayBuffer.sample({batch_size}): expected a positive number of steps, at most "
                f"the {there * length} of the complete sequences, got {there} sequences of "
                f"{length} steps ({self.num_transitions} transitions are stored). Raise "
                "num_steps_sampled_before_learning_starts or replay_capacity, or lower "
                "train_batch_size_per_learner."
            )
        weights = None
        if self.priorities is None:
            drawn = self._draw(num, anchors.sampleable, -(-self._rows_in_use // length), there)
        else:
            drawn, weights = self.priorities.sample(num, beta, self._rng)
        batch, owners = gather_sequences(self, anchors, drawn)
        if weights is not None:
            column = torch.zeros_like(batch[Columns.REWARDS])
            column.view(-1)[batch[Columns.VALID_ROWS]] = torch.from_numpy(weights[owners])
            batch[Columns.WEIGHTS] = column
        return ReplaySample(batch, drawn, owners)

    def update_priorities(self, sample: ReplaySample, td_errors: Tensor | np.ndarray) -> None:
        """Tell what the TD errors ``[B]`` of ``sample`` came to, for sequences those ``[R]`` of its valid rows; nothing
        to do where draws are uniform.

        Raises:
            ValueError: If one is NaN or infinite.
        """
        if self.priorities is not None:
            self.priorities.update(sample.indices, torch.as_tensor(td_errors).detach().cpu().numpy(), sample.owners)

    def _draw(self, num: int, flags: np.ndarray, rows_in_use: int, num_true: int) -> np.ndarray:
        """``num`` places at which ``flags`` ``[rows, N]`` are true, each equally likely: drawn among all, and again
        where they are not."""
        flags, total = flags.reshape(-1), rows_in_use * self.num_envs
        places = (self._rng.random(num) * total).astype(np.int64)
        good = flags.take(places)
        if np.count_nonzero(good) == num:
            return places
        drawn = [places[good]]
        missing = num - len(drawn[0])
        while missing:
            tries = min(_MAX_DRAWS, missing * total // num_true + 8)
            places = (self._rng.random(tries) * total).astype(np.int64)
            drawn.append(places[flags.take(places)][:missing])
            missing -= len(drawn[-1])
        return np.concatenate(drawn)

    def newest_distance(self, places: np.ndarray) -> np.ndarray:
        """How many rows lie between ``places`` and the newest row of their columns; 0 for the newest."""
        rows, columns = np.divmod(places, self.num_envs)
        return (self.heads.take(columns) - 1 - rows) % self.rows

    def gather_rows(self, places: np.ndarray) -> dict[str, Tree]:
        """The transitions that begin at ``places`` ``[B]``, where ``sampleable`` is True, over up to n steps.

        A window ends early with its episode, before a row that is no transition, and at the newest row.

        Returns:
            ``obs`` and ``actions`` at the first row; ``rewards`` ``[B]``, the discounted sum over the window;
            ``next_obs`` after it; ``discounts`` ``[B]``: gamma to the number of its steps, 0 if it terminated.
        """
        last, _, rewards, discounts = self.windows(places)
        return {
            Columns.OBS: self.observations(places),
            Columns.ACTIONS: self.actions(places),
            Columns.REWARDS: torch.from_numpy(rewards),
            Columns.NEXT_OBS: self.following_observations(last),
            Columns.DISCOUNTS: torch.from_numpy(discounts),
        }

    def windows(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Of the windows that begin at ``places`` ``[B]``: places of their last rows, numbers of steps (int64),
        discounted sums of rewards and discounts (float32)."""
        if self.max_steps == 1:
            last, steps, rewards = places, np.ones_like(places), self._flat_rewards.take(places)
        else:
            last, steps, rewards = self._long_windows(places)
        going = ~self._flat_terminateds.take(last)
        power = self._powers[1] if self.max_steps == 1 else self._powers.take(steps)
        return last, steps, rewards, np.multiply(going, power, dtype=np.float32)

    def _long_windows(self, places: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        window = (places[:, None] + self._offsets * self.num_envs) % self._num_places
        steps = self.newest_distance(places) + 1
        if self._min_steps == self.max_steps:
            np.minimum(steps, self.max_steps, out=steps)
        else:
            np.minimum(steps, self._rng.integers(self._min_steps, self.max_steps + 1, len(places)), out=steps)
        cuts = self.cuts.reshape(-1).take(window)
        cuts[:, -1] = True
        np.minimum(steps, cuts.argmax(1) + 1, out=steps)
        rewards = self._flat_rewards.take(window)
        rewards *= self._powers[:-1]
        rewards *= self._offsets < steps[:, None]
        last = (places + (steps - 1) * self.num_envs) % self._num_places
        return last, steps, rewards.sum(1)

    def observations(self, places: np.ndarray) -> Tree:
        """The observations at ``places`` ``[B]``: a tree of ``[B, ...]``."""
        return self._obs.build(self._obs.take(places))

    def actions(self, places: np.ndarray) -> Tree:
        """The actions at ``places`` ``[B]``: a tree of ``[B, ...]``."""
        return self._actions.build(self._actions.take(places))

    def following_observations(self, last_places: np.ndarray) -> Tree:
        """What was observed after each of the steps at ``last_places`` ``[B]``, the true final observation where it
        was truncated: a tree of ``[B, ...]``. After a terminated step: any observation."""
        return self._obs.build(self._obs.take_following(last_places))

    def has_final(self, places: np.ndarray) -> np.ndarray:
        """Whether what followed the steps at ``places`` is a true final observation kept aside; bool, shaped alike."""
        return self._obs.finals.index.reshape(-1).take(places) >= 0

    # -------------------------------------------------------------------------------------------------- state

    @property
    def num_bytes(self) -> int:
        """Bytes held: those of :func:`replay_bytes`, and what is kept aside."""
        return self._fixed_bytes + self._obs.num_table_bytes

    def get_state(self) -> dict[str, Any]:
        """All that later samples depend on, of the rows written so far; tensors that share the buffer's memory."""
        rows = min(self.rows, self._rows_in_use + 1)
        state = {
            "layout": self._describe(),
            "obs": self._obs.get_state(rows),
            "actions": self._actions.get_state(rows),
            "heads": torch.from_numpy(self.heads),
            "rows_in_use": self._rows_in_use,
            "rng": self._rng.bit_generator.state,
        }
        state |= {name: torch.from_numpy(getattr(self, name)[:rows]) for name in _PER_ROW}
        if self._anchors is not None:
            state["sequences"] = self._anchors.get_state(rows)
        return state | ({} if self.priorities is None else {"priorities": self.priorities.get_state()})

    def _describe(self) -> dict[str, Any]:
        return self._layout.describe() | {"sequences": "none" if self._anchors is None else self._anchors.describe()}

    def set_state(self, state: Mapping[str, Any], *, together: int = 1) -> None:
        """Restore what :meth:`get_state` gave: later samples are the same bit for bit. Of a buffer of another capacity
        or number of envs the transitions are taken over, as many as there is room for; see :func:`take_over`.

        Args:
            state: Of a buffer.
            together: Envs of which rollouts will come side by side.

        Raises:
            ValueError: If it is of a buffer with other contents, or of sequences and of another shape.
        """
        here, there, heads = self._describe(), state["layout"], state["heads"].numpy()
        if len(heads) == self.num_envs and np.any(heads != heads[::together].repeat(together)):
            here, there = here | {"next_rows": "equal in a rollout"}, there | {"next_rows": "unequal"}
        differing = [name for name, value in here.items() if value != there.get(name)]
        if ("priorities" in state) != (self.priorities is not None):
            differing.append("prioritized")
            here |= {"prioritized": self.priorities is not None}
            there = there | {"prioritized": "priorities" in state}
        if differing and self._anchors is None and _SHAPE.issuperset(differing):
            self._take_over(state)
            return
        if differing:
            expected = ", ".join(f"{name} {here[name]}" for name in differing)
            got = ", ".join(f"{name} {there.get(name)}" for name in differing)
            raise ValueError(
                f"state of a replay buffer: expected {expected}, got {got}. Load it into a buffer "
                "of the same spaces, envs and settings; or begin with an empty one: "
                "from_checkpoint(..., replay_in_checkpoints=False)."
            )
        self._forget(slice(0, self.num_envs))
        self._obs.set_state(state["obs"])
        self._actions.set_state(state["actions"])
        for name in _PER_ROW:
            getattr(self, name)[: len(state[name])] = state[name].numpy()
        self.heads[:] = state["heads"].numpy()
        self.num_transitions = int(np.count_nonzero(self.sampleable))
        self._rows_in_use = state["rows_in_use"]
        self._rng.bit_generator.state = state["rng"]
        if self._anchors is not None:
            self._anchors.set_state(state["sequences"])
        if self.priorities is not None:
            self.priorities.set_state(state["priorities"])

    def _take_over(self, state: Mapping[str, Any]) -> None:
        there = state["layout"]
        kept_rows = there["rows"] - (self.rows - self.kept_rows)
        old = self._of_shape(capacity=kept_rows * there["num_envs"], num_envs=there["num_envs"], seed=self._rng)
        old.set_state(state)  # and the draws go on
        self._forget(slice(0, self.num_envs))
        self.heads[:] = self._rows_in_use = 0
        take_over(self, old)


_SHAPE = frozenset({"rows", "num_envs", "next_rows"})
_PER_ROW = ("rewards", "terminateds", "starts", "sampleable", "cuts")


class _Rows(NamedTuple):
    """A rollout as arrays: columns ``[T, n, ...]``, observations after them ``[n, ...]``, final ones ``[K, ...]``.

    ``cuts`` are the rows that no window goes on past. ``final_index`` is None where nothing was truncated.
    """

    steps: int
    columns: slice
    obs: list[np.ndarray]
    last_obs: list[np.ndarray]
    actions: list[np.ndarray]
    rewards: np.ndarray
    terminateds: np.ndarray
    starts: np.ndarray
    valid: np.ndarray
    cuts: np.ndarray
    all_valid: bool
    final_index: np.ndarray | None
    final_obs: list[np.ndarray]


def _check_finals(terminateds: np.ndarray, truncateds: np.ndarray, given: int) -> None:
    num = np.count_nonzero(truncateds > terminateds)
    if num != given:
        raise ValueError(
            "Rollout.final_index: expected the true final observation of every truncated step, "
            f"got {given} for {num}. Add its row and slot, and it to final_obs."
        )


def _last_rows(rollout: Rollout, num: int, row_unit: int) -> Rollout:
    """Its last ``num`` rows; ``row_unit`` are those between its states."""
    skipped = rollout.shape[0] - num
    kept = rollout.final_index[:, 0] >= skipped
    states = rollout.state_in
    return Rollout(
        columns={name: map_leaves(lambda x: x[skipped:], column) for name, column in rollout.columns.items()},
        last_obs=rollout.last_obs,
        final_index=rollout.final_index[kept] - torch.tensor([skipped, 0]),
        final_obs=map_leaves(lambda x: x[kept], rollout.final_obs),
        state_in=None if states is None else map_leaves(lambda x: x[skipped // row_unit :], states),
    )
