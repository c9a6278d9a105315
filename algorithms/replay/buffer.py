"""ReplayBuffer: store transitions in a ring, and sample n-step batches of them.

The ring has ``R`` rows and ``N`` columns, one for each env, or in multi-agent runs for each pair of env and agent. A
*place* is the flat index ``row * N + column``, which ``take()`` of an array ``[R, N]`` expects.

Adding a rollout copies whole arrays into consecutive rows. The observation after its last step goes into the next row,
where the next rollout begins. So the observation after a step is always in the next row, and is never stored twice.
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

from algorithms.replay.candidates import Candidates, spans
from algorithms.replay.layout import ReplayLayout, StackAxes, checked_n_step
from algorithms.replay.observations import Index, ObservationRows, TreeRows
from algorithms.replay.prioritized import PrioritizedReplay
from algorithms.replay.resize import copy_transitions
from algorithms.replay.sequences import Anchors, SequenceReplay, gather_sequences
from catalog.base import Tree
from catalog.checks import Bounds, check_value
from catalog.past import sampled_space
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import Rollout


@dataclass(frozen=True)
class ReplaySample:
    """A batch from :meth:`ReplayBuffer.sample`, and where it comes from, for :meth:`ReplayBuffer.update_priorities`.

    Attributes:
        batch: Columns for a learner, each a tree of tensors.
        indices: int64 ``[B]``: the places of the sampled rows, or the anchors of the sampled sequences.
        owners: For sequences, int64 ``[V]``: the index in ``[0, B)`` of the sequence to which each of the ``V`` valid
            rows belongs. None if rows were sampled.
    """

    batch: Batch
    indices: np.ndarray
    owners: np.ndarray | None = None


class _Rows(NamedTuple):
    """The rows of a rollout: leaves ``[T, n, ...]`` of observations and actions, and the other columns ``[T, n]``."""

    obs: list[np.ndarray]
    actions: list[np.ndarray]
    rewards: np.ndarray
    terminateds: np.ndarray
    starts: np.ndarray
    cuts: np.ndarray


class ReplayBuffer:
    """Keeps the newest ``capacity`` transitions of ``num_envs`` envs, and draws batches of rows or sequences.

    Override points: none.

    Args:
        observation_space: The module's ``input_space``.
        action_space: The env's action space.
        capacity: Number of transitions, over all envs.
        num_envs: ``N``, the number of envs of all env runners together.
        gamma: Discount per step.
        n_step: Number of steps whose rewards are summed before ``next_obs``. If this is a range ``(low, high)``, a
            number in it is drawn for each sampled row.
        prioritized: Settings for drawing in proportion to TD errors; None draws uniformly.
        sequences: Settings for drawing sequences, for a recurrent module; None draws rows.
        frame_stack_axis: Axis along which one observation stacks frames, oldest first. For a Dict or Tuple, a mapping
            from the paths of leaves to their axes. Only the newest frame of each stack is then stored.
        seed: Seed of the random stream of the draws, or the stream itself.

    Attributes:
        rows: ``R``, the number of rows of the ring. The ring has a column for each env.
        kept_rows: Number of rows that hold transitions. The other rows hold the newest observation and older frames.
        num_envs: ``N``.
        heads: int64 ``[N]``: the row in which the next step of each env is stored. The row already holds the
            observation.
        sampleable: bool ``[R, N]``: the row may begin a sample, because it is valid and among the newest ``kept_rows``.
        starts: bool ``[R, N]``: the row is the first of an episode.
        terminateds: bool ``[R, N]``: the step ended its episode by termination.
        cuts: bool ``[R, N]``: no n-step window goes on after this row, because its episode ends here or the next row is
            not a transition. Also True for rows not written yet.
        rewards: float32 ``[R, N]``.
        max_steps: Number of steps in the longest n-step window.
        priorities: The priority of each entry of the ring, or of each possible start of a sequence if ``sequences`` is
            set. None for uniform draws.

    Raises:
        ValueError, TypeError: If an argument is invalid.
        MemoryError: If the machine or its control group has less memory than the buffer needs.
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
        frame_stack_axis: StackAxes | None = None,
        seed: np.random.SeedSequence | np.random.Generator,
    ) -> None:
        kept: dict[str, Any] = {"prioritized": prioritized, "frame_stack_axis": frame_stack_axis}
        spaces = (observation_space, action_space)
        self._layout = layout = ReplayLayout(*spaces, capacity, num_envs, sequences=sequences, **kept)
        self._of_shape = partial(ReplayBuffer, *spaces, gamma=gamma, **kept)
        self._min_steps, self.max_steps = checked_n_step(n_step, layout.kept_rows)
        check_value("ReplayBuffer(gamma)", gamma, float, Bounds(ge=0, le=1), "Discount per step.")
        layout.check_memory()
        self.rows, self.kept_rows, self.num_envs = layout.rows, layout.kept_rows, num_envs
        shape, self._num_places = (self.rows, num_envs), self.rows * num_envs

        self._obs = ObservationRows(layout.obs, observation_space, *shape)
        self._actions = TreeRows(layout.actions, sampled_space(action_space), *shape)
        kinds = {"rewards": np.float32, "terminateds": np.bool_, "starts": np.bool_, "cuts": np.bool_}
        self._per_row: dict[str, np.ndarray] = {n: np.zeros(shape, kind) for n, kind in kinds.items()}
        self.rewards, self.terminateds, self.starts, self.cuts = self._per_row.values()
        self.cuts[:] = True
        self._anchors = None if sequences is None else Anchors(sequences, layout, self.max_steps)
        # Rows are tracked for sequences too: a sequence trains those of its rows that are sampleable.
        self._transitions = Candidates(*shape, prioritized if sequences is None else None)
        self._candidates = self._anchors or self._transitions
        self.sampleable, self.priorities = self._transitions.sampleable, self._candidates.priorities
        self.heads = np.zeros(num_envs, np.int64)
        self._rows_in_use = 0  # all written rows come before this one, so draws can skip the rest of a ring not full
        self._powers = np.power(float(gamma), np.arange(self.max_steps + 1)).astype(np.float32)
        self._offsets = np.arange(self.max_steps)
        self._rng = np.random.default_rng(seed)

    @property
    def num_transitions(self) -> int:
        """Number of valid transitions stored."""
        return self._transitions.num

    @property
    def num_drawable(self) -> int:
        """Number of steps that :meth:`sample` can draw: those of all transitions, or if it draws sequences, those of
        all complete sequences."""
        return self._candidates.num * self._layout.row_unit

    @property
    def is_full(self) -> bool:
        """Whether the column that has advanced the most is full, so that its new transitions replace older ones."""
        return self._rows_in_use >= self.kept_rows

    # ------------------------------------------------------------------------------------------------ writing

    def add(self, rollout: Rollout, first_slot: int = 0) -> None:
        """Store a rollout ``[T, n]`` in columns ``first_slot`` to ``first_slot + n - 1``.

        Always add the same envs together, to the same columns. Row 0 continues the episodes of the rows added before,
        unless these episodes ended or row 0 starts new episodes. A full buffer overwrites its oldest rows.

        Args:
            rollout: A rollout on the CPU, with fewer rows than a column of the buffer.
            first_slot: Column of the rollout's first env.

        Raises:
            ValueError: If the rollout is too long, or its envs or data do not fit the buffer. The buffer is then
                unchanged.
        """
        valid = rollout.valid.numpy()
        steps, slots = valid.shape
        columns = slice(first_slot, first_slot + slots)
        head = self._check_fit(columns, steps)
        # Everything that can be refused is read before the first write.
        data, last_obs, finals = self._read(rollout)
        obs, starts, cuts, all_valid = data.obs, data.starts, data.cuts, np.count_nonzero(valid) == valid.size
        if not all_valid:  # no window may reach into an invalid row
            cuts |= ~valid
            cuts[:-1] |= ~valid[1:]
        self._obs.check_stacks(columns, obs, last_obs, cuts)
        if not steps:
            return
        states = None if self._anchors is None else self._anchors.read_states(rollout, head)
        cut_before = self.cuts[(head - 1) % self.rows, columns]  # a view: changes reach the row before the rollout
        broken = starts[0] > cut_before
        if np.count_nonzero(broken):
            # New episodes start at head though the last ones did not end, so these were truncated. The observation
            # that is still at head is their true final one.
            envs = np.flatnonzero(broken) + first_slot
            last = (head - 1) % self.rows * self.num_envs + envs
            self._obs.finals.insert(last, self._obs.take(head * self.num_envs + envs))
            cut_before |= broken
        if not all_valid:
            cut_before |= ~valid[0]
        # Withdraw the oldest rows before they are overwritten, or are only kept as older frames.
        self._transitions.withdraw(head + self.rows - self.kept_rows, steps, columns)
        for rows, _ in spans(head + 1, steps, self.rows):
            self._obs.release(rows, columns)
        for rows, part in spans(head, steps, self.rows):
            self._write(rows, columns, data, part)
        after = (head + steps) % self.rows
        self._obs.write(after, columns, last_obs, slice(None))
        if finals:
            row, slot = rollout.final_index.numpy().T
            self._obs.finals.insert((head + row) % self.rows * self.num_envs + first_slot + slot, finals)
        self._obs.begin_stacks(head, columns, obs, starts, cut_before)
        self.heads[columns] = after
        self._rows_in_use = min(self.rows, max(self._rows_in_use, head + steps))
        kept = valid[-self.kept_rows :]  # the rows before these are only kept as older frames
        self._transitions.offer(after - len(kept), columns, kept)
        if self._anchors is not None:
            self._anchors.advance(head, steps, columns, states, self.sampleable)

    def add_apart(self, rollout: Rollout, columns: np.ndarray) -> None:
        """Store a rollout ``[T, n]`` whose slots advance apart: they have different numbers of steps, as in multi-agent
        runs.

        Column ``columns[i]`` advances by the number of valid rows of slot ``i``. The invalid rows after them are not
        stored, and do not cut n-step windows.

        Args:
            rollout: A rollout on the CPU. Each slot has at least one valid row and fewer than ``R``, and all of them
                come before its invalid rows. The observation after the last valid row is in the next row, and in
                ``last_obs``.
            columns: int64 ``[n]``: the column of each slot. No two are the same.

        Raises:
            ValueError: If the rollout is too long, or its columns or data do not fit the buffer. The buffer is then
                unchanged.
        """
        valid, size = rollout.valid.numpy(), self.num_envs
        self._check_fit(slice(int(columns.min()), int(columns.max()) + 1), len(valid), together=False)
        data, last_obs, finals = self._read(rollout)
        self._obs.check_stacks(columns, data.obs, last_obs, data.cuts | ~valid)
        heads, lengths, (steps, slots) = self.heads[columns], valid.sum(0), valid.nonzero()
        # For each valid row: its row before and after wrapping at the ring's end, and its column.
        counted, where = heads[slots] + steps, columns[slots]
        rows = counted % self.rows
        states = None if self._anchors is None else self._anchors.read_states_at(rollout, counted, steps, slots)
        before = (heads - 1) % self.rows * size + columns
        cut_before = self.cuts.take(before)
        broken = data.starts[0] > cut_before  # see add()
        if np.count_nonzero(broken):
            self._obs.finals.insert(before[broken], self._obs.take(heads[broken] * size + columns[broken]))
            self.cuts.put(before[broken], True)
        self._transitions.withdraw_at((rows - self.kept_rows) % self.rows * size + where)
        self._obs.release((rows + 1) % self.rows, where)
        self._write(rows, where, data, (steps, slots))
        after = heads + lengths
        self._obs.write(after % self.rows, columns, last_obs, slice(None))
        if finals:
            row, slot = rollout.final_index.numpy().T
            self._obs.finals.insert((heads[slot] + row) % self.rows * size + columns[slot], finals)
        self._obs.begin_stacks(heads, columns, data.obs, data.starts, cut_before)
        self.heads[columns] = after % self.rows
        self._rows_in_use = min(self.rows, max(self._rows_in_use, int(after.max())))
        kept = steps >= lengths[slots] - self.kept_rows
        self._transitions.offer_at(rows[kept] * size + where[kept])
        if self._anchors is not None and states is not None:
            self._anchors.advance_at(counted, where, after[slots], columns, lengths, states, self.sampleable)

    def _read(self, rollout: Rollout) -> tuple[_Rows, list[np.ndarray], list[np.ndarray]]:
        """Return the rows of a rollout, the leaves of its ``last_obs``, and the leaves of its true final observations.
        Raise ``ValueError`` if they do not fit the buffer's spaces."""
        stored, shape = rollout.columns, rollout.shape
        if Columns.STARTS not in stored:
            raise ValueError(
                f"Rollout: expected the column 'starts', got {', '.join(stored)}. Say which rows "
                "are the first of an episode."
            )
        obs = self._obs.read("Rollout['obs']", stored[Columns.OBS], shape)
        last_obs = self._obs.read("Rollout.last_obs", rollout.last_obs, shape[1:])
        actions = self._actions.read("Rollout['actions']", stored[Columns.ACTIONS], shape)
        terminateds, truncateds, rewards, starts = [stored[name].numpy() for name in _NUMBERS]
        finals = self._read_finals(rollout, int(np.count_nonzero(truncateds > terminateds)))
        cuts = np.bitwise_or(terminateds, truncateds)
        return _Rows(obs, actions, rewards, terminateds, starts, cuts), last_obs, finals

    def _write(self, rows: Index, columns: Index, data: _Rows, part: Any) -> None:
        """Write the rows of ``data`` that the NumPy index ``part`` selects to ``rows`` and ``columns`` of the ring."""
        self._obs.write(rows, columns, data.obs, part)
        self._actions.write(rows, columns, data.actions, part)
        self.rewards[rows, columns] = data.rewards[part]
        self.terminateds[rows, columns] = data.terminateds[part]
        self.starts[rows, columns] = data.starts[part]
        self.cuts[rows, columns] = data.cuts[part]

    def _check_fit(self, columns: slice, steps: int, together: bool = True) -> int:
        """Return the ring row at which a rollout of ``steps`` rows begins in ``columns``. Raise ``ValueError`` if the
        rollout is too long, a column does not exist, or columns that advance ``together`` are not at the same row."""
        heads, are_envs = self.heads[columns].tolist(), columns.start >= 0 and columns.stop <= self.num_envs
        if are_envs and steps < self.rows and (not together or heads.count(heads[0]) == len(heads)):
            return heads[0]
        got = f"envs {columns.start} to {columns.stop - 1}"
        if not are_envs:
            expected = f"envs 0 to {self.num_envs - 1}"
            remedy = "Make num_envs the number of envs of all rollouts together."
        elif steps < self.rows:
            expected = "envs that are always added together"
            remedy = "Use the same first_slot for every rollout of one runner."
        else:
            expected, got = f"a rollout of at most {self.rows - 1} rows", f"{steps} rows"
            remedy = "Add it in parts, or raise the capacity."
        raise ValueError(f"ReplayBuffer.add(): expected {expected}, got {got}. {remedy}")

    def _read_finals(self, rollout: Rollout, num: int) -> list[np.ndarray]:
        """Return the leaves ``[num, ...]`` of the true final observations after the ``num`` truncated steps. Raise
        ``ValueError`` if the rollout lists a different number of them."""
        if (listed := rollout.final_index.shape[0]) != num:
            raise ValueError(
                f"Rollout.final_index: expected the row and slot of each of the {num} truncated steps, got "
                f"{listed} rows. List each truncated step once, and its true final observation in final_obs."
            )
        return self._obs.read("Rollout.final_obs", rollout.final_obs, (num,)) if num else []

    def _clear(self) -> None:
        """Remove all transitions, and the observations kept apart from the ring."""
        self._transitions.withdraw(0, self.rows, slice(0, self.num_envs))
        if self._anchors is not None:
            self._anchors.clear()
        self.cuts[:] = True
        self._obs.release(slice(None), slice(None))

    # ------------------------------------------------------------------------------------------------ reading

    def sample(self, batch_size: int, *, beta: float = 1.0) -> ReplaySample:
        """Draw rows, or sequences of ``L`` steps, with replacement.

        Args:
            batch_size: Number of steps to draw: ``B`` rows, or ``B·L`` steps in ``B`` sequences. For sequences, this is
                rounded down to whole sequences, but to one at least. It may exceed the number of steps stored.
            beta: Exponent of the importance weights of prioritized draws. 0 corrects none of the bias, 1 all of it.

        Returns:
            For rows, the columns of :meth:`gather_rows`. For sequences, the columns of :func:`gather_sequences`. If
            draws are prioritized, also importance ``weights``: ``[B]`` for rows; ``[L', B]`` for sequences, 0 in rows
            that are not trained on.

        Raises:
            ValueError: If ``batch_size`` is below 1, or nothing can be drawn.
        """
        length, there = self._layout.row_unit, self._candidates.num
        if batch_size < 1 or not there:
            what = "transition" if self._anchors is None else f"complete sequence of {length} steps"
            raise ValueError(
                f"ReplayBuffer.sample(batch_size): expected at least 1, and at least one {what} to draw from, got "
                f"{batch_size}, and {there} to draw from ({self.num_transitions} steps are stored). Add rollouts first."
            )
        rows_in_use = -(-self._rows_in_use // length)
        drawn, weights = self._candidates.sample(max(1, batch_size // length), beta, rows_in_use, self._rng)
        if self._anchors is None:
            batch, owners = self.gather_rows(drawn), None
            if weights is not None:
                batch[Columns.WEIGHTS] = torch.from_numpy(weights)
        else:
            batch, owners = gather_sequences(self, self._anchors, drawn)
            if weights is not None:
                batch[Columns.WEIGHTS] = column = torch.zeros_like(batch[Columns.REWARDS])
                column.view(-1)[batch[Columns.VALID_ROWS]] = torch.from_numpy(weights[owners])
        return ReplaySample(batch, drawn, owners)

    def update_priorities(self, sample: ReplaySample, td_errors: Tensor | np.ndarray) -> None:
        """Set the priorities of the rows or sequences in ``sample`` from their TD errors. Do nothing if draws are
        uniform.

        Args:
            sample: A result of :meth:`sample`.
            td_errors: One per row ``[B]``; for sequences one per valid row ``[V]``.

        Raises:
            ValueError: If an error is NaN or infinite.
        """
        if self.priorities is not None:
            errors = torch.as_tensor(td_errors).detach().cpu().numpy()
            self.priorities.update(sample.indices, errors, sample.owners)

    def gather_rows(self, places: np.ndarray) -> Batch:
        """Return the n-step transitions that begin at ``places`` ``[B]``, which must be ``sampleable``.

        A window has fewer than n steps if its episode ends, an invalid row follows or the newest row is reached.

        Returns:
            ``obs`` and ``actions`` of the window's first step; ``rewards`` ``[B]``, the discounted sum over the window;
            ``next_obs``, the observation after the window; ``discounts`` ``[B]``, gamma to the power of the window's
            number of steps, or 0 if the window ends with termination.
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
        """Return the n-step windows that begin at ``places`` ``[B]``.

        Returns:
            Four arrays ``[B]``: the place of each window's last row and its number of steps, int64; the discounted sum
            of its rewards, and the discount of the value of the observation after it, float32.
        """
        most = self.max_steps
        if most == 1:
            last, steps, power = places, np.ones_like(places), self._powers[1]
            rewards = self.rewards.take(places)
        else:
            window = (places[:, None] + self._offsets * self.num_envs) % self._num_places
            if self._min_steps < most:
                most = self._rng.integers(self._min_steps, most + 1, len(places))
            cuts = self.cuts.take(window)
            cuts[:, -1] = True  # so that argmax finds one in every window
            rows, columns = np.divmod(places, self.num_envs)
            behind = (self.heads.take(columns) - 1 - rows) % self.rows  # the newest row of the column
            steps = np.minimum(np.minimum(behind, cuts.argmax(1)) + 1, most)
            last = (places + (steps - 1) * self.num_envs) % self._num_places
            rewards = self.rewards.take(window)
            rewards *= self._powers[:-1]
            rewards *= self._offsets < steps[:, None]
            rewards, power = rewards.sum(1), self._powers.take(steps)
        going = ~self.terminateds.take(last)
        return last, steps, rewards, np.multiply(going, power, dtype=np.float32)

    def observations(self, places: np.ndarray) -> Tree:
        """Return the observations in the rows with flat indices ``places`` ``[B]``, a tree of tensors ``[B, ...]``."""
        return self._obs.build(self._obs.take(places))

    def actions(self, places: np.ndarray) -> Tree:
        """Return the actions in the rows with flat indices ``places`` ``[B]``, a tree of tensors ``[B, ...]``."""
        return self._actions.build(self._actions.take(places))

    def following_observations(self, last_places: np.ndarray) -> Tree:
        """Return the observations after the steps at ``last_places`` ``[B]``, a tree of tensors ``[B, ...]``.

        After a truncated step, the result is the true final observation; after a terminated step, it is arbitrary.
        """
        return self._obs.build(self._obs.take_following(last_places))

    def has_final(self, places: np.ndarray) -> np.ndarray:
        """Return a bool array of the shape of ``places``, True where the step was truncated."""
        return self._obs.finals.index.take(places) >= 0

    # -------------------------------------------------------------------------------------------------- state

    @property
    def num_bytes(self) -> int:
        """Bytes allocated: the result of :func:`replay_bytes`, plus the bytes of observations kept apart from the
        ring."""
        return self._layout.num_bytes + self._obs.finals.num_bytes + self._obs.older.num_bytes

    def get_state(self) -> dict[str, Any]:
        """Return everything that later samples depend on, as tensors and JSON values. The tensors share the buffer's
        memory."""
        rows = min(self.rows, self._rows_in_use + 1)
        state = {
            "layout": self._describe(),
            "obs": self._obs.get_state(rows),
            "actions": self._actions.get_rows(rows),
            "heads": torch.from_numpy(self.heads),
            "rows_in_use": self._rows_in_use,
            "rng": self._rng.bit_generator.state,
            "sampleable": torch.from_numpy(self.sampleable[:rows]),
        }
        state |= {name: torch.from_numpy(column[:rows]) for name, column in self._per_row.items()}
        if self._anchors is not None:
            state["sequences"] = self._anchors.get_state(rows)
        if self.priorities is not None:
            state["priorities"] = self.priorities.get_state()
        return state

    def _describe(self) -> dict[str, Any]:
        """Return the properties that two buffers must share before one can load the state of the other."""
        return {
            "rows": self.rows,
            "num_envs": self.num_envs,
            "observations": ", ".join(map(str, self._layout.obs)),
            "actions": ", ".join(map(str, self._layout.actions)),
            "sequences": "none" if self._anchors is None else self._anchors.describe(),
        }

    def set_state(self, state: Mapping[str, Any], *, together: int = 1) -> None:
        """Restore a state from :meth:`get_state`. Later samples then equal those of the saved buffer bit for bit.

        For this, capacity and number of envs must be equal, and columns that will be written together must have equal
        ``heads`` in ``state``. Otherwise, copy as many transitions as fit, with :func:`copy_transitions`. Later samples
        then differ.

        Args:
            state: State of a buffer with the same spaces and settings.
            together: Number of envs in each rollout that will be added to this buffer, always to the same consecutive
                columns.

        Raises:
            ValueError: If spaces or settings differ, or if transitions would be copied but ``sequences`` is set.
        """
        heads = state["heads"].numpy()
        apart = len(heads) == self.num_envs and np.any(np.ptp(heads.reshape(-1, together), 1))
        equal = "equal in a rollout"
        here = {"prioritized": self.priorities is not None, "next_rows": equal, **self._describe()}
        there = {"prioritized": "priorities" in state, "next_rows": "unequal" if apart else equal}
        there |= state["layout"]
        differing = [name for name, value in here.items() if value != there.get(name)]
        if differing and self._anchors is None and _SHAPE.issuperset(differing):
            kept_rows = there["rows"] - (self.rows - self.kept_rows)
            num_envs = there["num_envs"]
            old = self._of_shape(capacity=kept_rows * num_envs, num_envs=num_envs, seed=self._rng)
            old.set_state(state)  # restores the random stream too, which both buffers share
            self._clear()
            self.heads[:] = self._rows_in_use = 0
            copy_transitions(self, old)
            return
        if differing:
            expected = ", ".join(f"{name} {here[name]}" for name in differing)
            got = ", ".join(f"{name} {there.get(name)}" for name in differing)
            raise ValueError(
                f"state of a replay buffer: expected {expected}, got {got}. Load it into a buffer "
                "of the same spaces, envs and settings, or begin with an empty one: "
                "from_checkpoint(..., replay_in_checkpoints=False)."
            )
        self._clear()
        self._obs.set_state(state["obs"])
        self._actions.set_rows(state["actions"])
        for name, column in self._per_row.items():
            column[: len(state[name])] = state[name].numpy()
        self.heads[:] = heads
        self._rows_in_use = int(state["rows_in_use"])
        self._rng.bit_generator.state = state["rng"]
        self._transitions.offer(0, slice(0, self.num_envs), state["sampleable"].numpy())
        if self._anchors is not None:
            self._anchors.set_state(state["sequences"])
        if self.priorities is not None:  # after offer(), which gave every candidate the greatest priority
            self.priorities.set_state(state["priorities"])


_NUMBERS = (Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.REWARDS, Columns.STARTS)
_SHAPE = frozenset({"rows", "num_envs", "next_rows"})
