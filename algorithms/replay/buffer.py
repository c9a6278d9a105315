"""ReplayBuffer: transitions in a ring of rows and envs, and n-step batches of them.

The ring has ``R`` rows and ``N`` columns, one per env; a place in it is ``row * N + column``. A rollout is written as
it is, whole arrays at a time; the observation after its last row goes into the row that the next one begins with. So
what followed a step stands in the next row and nothing is stored twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from algorithms.replay.candidates import Candidates, spans
from algorithms.replay.layout import ReplayLayout, checked_n_step
from algorithms.replay.memory import check_memory
from algorithms.replay.observations import ObservationRows, TreeRows
from algorithms.replay.prioritized import PrioritizedReplay
from algorithms.replay.resize import take_over
from algorithms.replay.sequences import Anchors, SequenceReplay, gather_sequences
from catalog.base import Tree
from catalog.checks import Bounds, check_value
from catalog.past import sampled_space
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout, map_leaves


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
        kept: dict[str, Any] = {"prioritized": prioritized, "frame_stack_axis": frame_stack_axis}
        spaces = (observation_space, action_space)
        self._layout = layout = ReplayLayout(*spaces, capacity, num_envs, sequences=sequences, **kept)
        self._of_shape = partial(ReplayBuffer, *spaces, gamma=gamma, **kept)
        self._min_steps, self.max_steps = checked_n_step(n_step, layout.kept_rows)
        check_value("ReplayBuffer(gamma)", gamma, float, Bounds(ge=0, le=1), "Discount per step.")
        check_memory(layout.num_bytes, capacity, layout.largest_capacity)
        self.rows, self.kept_rows, self.num_envs = layout.rows, layout.kept_rows, num_envs
        shape, self._num_places = (self.rows, num_envs), self.rows * num_envs
        self._obs = ObservationRows(layout.obs, observation_space, *shape)
        self._actions = TreeRows(layout.actions, sampled_space(action_space), *shape)
        kinds = {"rewards": np.float32, "terminateds": np.bool_, "starts": np.bool_, "cuts": np.bool_}
        self._per_row: dict[str, np.ndarray] = {n: np.zeros(shape, kind) for n, kind in kinds.items()}
        self.rewards, self.terminateds, self.starts, self.cuts = self._per_row.values()
        self.cuts[:] = True
        self._anchors = None
        if sequences is not None:
            self._anchors = Anchors(sequences, layout, self.max_steps, prioritized)
        self._transitions = Candidates(*shape, prioritized if sequences is None else None)
        self._candidates = self._anchors or self._transitions
        self.sampleable, self.priorities = self._transitions.sampleable, self._candidates.priorities
        self._flat_rewards = self.rewards.reshape(-1)
        self._flat_terminateds = self.terminateds.reshape(-1)
        self.heads = np.zeros(num_envs, np.int64)
        self._groups: dict[int, int] = {}  # first columns of rollouts that came, and their numbers of envs
        self._rows_in_use = 0  # from here on no row has been written
        self._powers = np.power(float(gamma), np.arange(self.max_steps + 1)).astype(np.float32)
        self._offsets = np.arange(self.max_steps)
        self._rng = np.random.default_rng(seed)

    @property
    def num_transitions(self) -> int:
        """Valid transitions stored."""
        return self._transitions.num

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
        valid, unit = rollout.valid.numpy(), self._layout.row_unit
        if is_too_long := len(valid) >= self.rows:
            rollout = _last_rows(rollout, (self.rows - 1) // unit * unit, unit)
            valid = rollout.valid.numpy()
        stored, (steps, slots) = rollout.columns, valid.shape
        if Columns.STARTS not in stored:
            raise ValueError(
                f"Rollout: expected the column 'starts', got {', '.join(stored)}. Say which rows "
                "are the first of an episode."
            )
        columns = slice(first_slot, first_slot + slots)
        if self._groups.get(first_slot) != slots:
            self._check_columns(columns)
        head = int(self.heads[first_slot])
        obs = self._obs.read("Rollout['obs']", stored[Columns.OBS], (steps, slots))
        last_obs = self._obs.read("Rollout.last_obs", rollout.last_obs, (slots,))
        actions = self._actions.read("Rollout['actions']", stored[Columns.ACTIONS], (steps, slots))
        terminateds, truncateds, rewards, starts = (stored[name].numpy() for name in _NUMBERS)
        final_index, finals = self._read_finals(rollout, terminateds, truncateds)
        all_valid = np.count_nonzero(valid) == valid.size
        cuts = np.bitwise_or(terminateds, truncateds)
        if not all_valid:
            cuts |= ~valid
            cuts[:-1] |= ~valid[1:]
        self._obs.check_stacks(columns, obs, last_obs, cuts)
        if not steps:
            return
        states = None if self._anchors is None else self._anchors.read_states(rollout, head)
        if is_too_long:
            self._forget(columns)
        cut_before = self.cuts[(head - 1) % self.rows, columns]
        broken = starts[0] > cut_before
        if np.count_nonzero(broken):
            self._truncate(head, np.flatnonzero(broken) + first_slot)
            cut_before |= broken
        if not all_valid:
            cut_before |= ~valid[0]
        self._transitions.withdraw(head + self.rows - self.kept_rows, steps, columns)
        for rows, _ in spans(head + 1, steps, self.rows):
            self._obs.release(rows, columns)
        for rows, part in spans(head, steps, self.rows):
            self._obs.write(rows, columns, obs, part)
            self._actions.write(rows, columns, actions, part)
            self.rewards[rows, columns] = rewards[part]
            self.terminateds[rows, columns] = terminateds[part]
            self.starts[rows, columns] = starts[part]
            self.cuts[rows, columns] = cuts[part]
        after = (head + steps) % self.rows
        self._obs.write(after, columns, last_obs, slice(None))
        if len(final_index):
            rows, slots = final_index.T
            places = (head + rows) % self.rows * self.num_envs + first_slot + slots
            self._obs.finals.insert(places, finals)
        self._obs.begin_stacks(head, columns, obs, starts, cut_before)
        self.heads[columns] = after
        self._rows_in_use = min(self.rows, max(self._rows_in_use, head + steps))
        kept = valid[-self.kept_rows :]  # rows before them serve as older frames alone
        self._transitions.offer(after - len(kept), columns, kept)
        if self._anchors is not None:
            self._anchors.advance(head, steps, columns, states, self.sampleable)

    def _check_columns(self, columns: slice) -> None:
        heads = self.heads[columns]
        if columns.start < 0 or columns.stop > self.num_envs:
            expected = f"envs 0 to {self.num_envs - 1}"
            remedy = "Give the buffer as many envs as all rollouts have together."
        elif np.count_nonzero(heads != heads[0]):
            expected = "envs that always come together"
            remedy = "Give the rollouts of one runner the same first_slot each time."
        else:
            begin, end = columns.start, columns.stop
            apart = {n: num for n, num in self._groups.items() if n + num <= begin or end <= n}
            self._groups = apart | {begin: end - begin}
            return
        got = f"envs {columns.start} to {columns.stop - 1}"
        raise ValueError(f"ReplayBuffer.add(): expected {expected}, got {got}. {remedy}")

    def _read_finals(
        self, rollout: Rollout, terminateds: np.ndarray, truncateds: np.ndarray
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Row and slot of each truncated step, and the leaves of what was observed after it."""
        if not np.count_nonzero(truncateds):
            return _NO_FINALS, []
        index, num = rollout.final_index.numpy(), np.count_nonzero(truncateds > terminateds)
        finals = self._obs.read("Rollout.final_obs", rollout.final_obs, (len(index),))
        if num != len(index):
            raise ValueError(
                "Rollout.final_index: expected the true final observation of every truncated step, "
                f"got {len(index)} for {num}. Add its row and slot, and it to final_obs."
            )
        return index, finals

    def _truncate(self, head: int, envs: np.ndarray) -> None:
        """Take the last episodes of ``envs`` to have been truncated, since others start at ``head``: what was observed
        last, which stands there still, is their true final observation."""
        last = (head - 1) % self.rows * self.num_envs + envs
        self._obs.finals.insert(last, self._obs.take(head * self.num_envs + envs))

    def _forget(self, columns: slice) -> None:
        """Empty these columns."""
        self._transitions.withdraw(0, self.rows, columns)
        if self._anchors is not None:
            self._anchors.forget(columns)
        self.cuts[:, columns] = True
        self._obs.release(slice(0, self.rows), columns)

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
        length, there = self._layout.row_unit, self._candidates.num
        num = max(1, batch_size // length)
        if batch_size < 1 or num > there:
            what = "" if self._anchors is None else f" in {there} complete sequences of {length}"
            raise ValueError(
                "ReplayBuffer.sample(batch_size): expected a positive number of steps, at most the "
                f"{there * length} that can be drawn{what}, got {batch_size} ({self.num_transitions} "
                f"are stored, capacity {self._layout.capacity}). Raise "
                "num_steps_sampled_before_learning_starts or replay_capacity, or lower "
                "train_batch_size_per_learner."
            )
        rows_in_use = -(-self._rows_in_use // length)
        drawn, weights = self._candidates.sample(num, beta, rows_in_use, self._rng)
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
        """Set the priorities of ``sample`` by its TD errors ``[B]``, for sequences those ``[R]`` of its valid rows;
        nothing to do where draws are uniform.

        Raises:
            ValueError: If one is NaN or infinite.
        """
        if self.priorities is not None:
            errors = torch.as_tensor(td_errors).detach().cpu().numpy()
            self.priorities.update(sample.indices, errors, sample.owners)

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
        most = self.max_steps
        if most == 1:
            last, steps, power = places, np.ones_like(places), self._powers[1]
            rewards = self._flat_rewards.take(places)
        else:
            window = (places[:, None] + self._offsets * self.num_envs) % self._num_places
            if self._min_steps < most:
                most = self._rng.integers(self._min_steps, most + 1, len(places))
            cuts = self.cuts.reshape(-1).take(window)
            cuts[:, -1] = True
            steps = np.minimum(self.newest_distance(places) + 1, most)
            np.minimum(steps, cuts.argmax(1) + 1, out=steps)
            last = (places + (steps - 1) * self.num_envs) % self._num_places
            rewards = self._flat_rewards.take(window)
            rewards *= self._powers[:-1]
            rewards *= self._offsets < steps[:, None]
            rewards, power = rewards.sum(1), self._powers.take(steps)
        going = ~self._flat_terminateds.take(last)
        return last, steps, rewards, np.multiply(going, power, dtype=np.float32)

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
        return self._layout.num_bytes + self._obs.num_table_bytes

    def get_state(self) -> dict[str, Any]:
        """All that later samples depend on, of the rows written so far; tensors that share the buffer's memory."""
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
        """What two buffers must have in common to exchange their states."""
        return {
            "rows": self.rows,
            "num_envs": self.num_envs,
            "observations": ", ".join(map(str, self._layout.obs)),
            "actions": ", ".join(map(str, self._layout.actions)),
            "sequences": "none" if self._anchors is None else self._anchors.describe(),
        }

    def set_state(self, state: Mapping[str, Any], *, together: int = 1) -> None:
        """Restore what :meth:`get_state` gave: later samples are the same bit for bit. Of a buffer of another capacity
        or number of envs the transitions are taken over, as many as there is room for; see :func:`take_over`.

        Args:
            state: Of a buffer.
            together: Envs of which rollouts will come side by side.

        Raises:
            ValueError: If it is of a buffer with other contents, or of sequences and of another shape.
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
            old.set_state(state)  # and the draws go on
            self._forget(slice(0, self.num_envs))
            self.heads[:] = self._rows_in_use = 0
            take_over(self, old)
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
        self._actions.set_rows(state["actions"])
        for name, column in self._per_row.items():
            column[: len(state[name])] = state[name].numpy()
        self.heads[:] = heads
        self._rows_in_use = state["rows_in_use"]
        self._rng.bit_generator.state = state["rng"]
        self._transitions.restore(state["sampleable"].numpy())
        if self._anchors is not None:
            self._anchors.set_state(state["sequences"])
        if self.priorities is not None:
            self.priorities.set_state(state["priorities"])


_NUMBERS = (Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.REWARDS, Columns.STARTS)
_SHAPE = frozenset({"rows", "num_envs", "next_rows"})
_NO_FINALS = np.empty((0, 2), np.int64)


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
