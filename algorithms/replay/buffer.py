"""ReplayBuffer: store transitions in a ring, and sample n-step batches of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import Space
from torch import Tensor

from algorithms.replay.draws import Draws
from algorithms.replay.hindsight import EpisodeEnds, Hindsight, HindsightReplay
from algorithms.replay.layout import ReplayLayout, StackAxes, checked_n_step
from algorithms.replay.prioritized import Priorities, PrioritizedReplay
from algorithms.replay.reward_scale import RewardScale
from algorithms.replay.ring import CUT, TRUNCATED, Ring
from algorithms.replay.sequences import Anchors, SequenceReplay, gather_sequences
from algorithms.replay.windows import Windows
from catalog.checks import Bounds, check_value
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import Rollout

FORMAT = 2
"""Format of the states of buffers. States of format 1 did not name theirs."""


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

    @property
    def num_rows(self) -> int:
        """Number of rows that are trained on."""
        return len(self.indices if self.owners is None else self.owners)


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
        hindsight: Settings for giving sampled steps new goals; None leaves the goals as they are.
        normalize_rewards: Whether a :class:`RewardScale` divides the rewards in samples.
        next_actions: Whether samples have the columns ``next_actions`` and ``has_next_action``.
        frame_stack_axis: Axis along which one observation stacks frames, oldest first. For a Dict or Tuple, a mapping
            from the paths of leaves to their axes. Only the newest frame of each stack is then stored.
        whole_episodes: Whether all is added at once, and ends with the end of an episode. Then the steps at the end are
            in sequences, too: windows end with the episode, and the last sequence overlaps the one before.
        seed: Seed of the random stream of the draws, or the stream itself.

    Attributes:
        ring: Holds the transitions. It has a column for each env.
        rows: ``R``, the number of rows of the ring.
        kept_rows: Number of rows that hold transitions. The others hold the newest observation and older frames.
        num_envs: ``N``.
        priorities: The priority of each place of the ring, or of each anchor if ``sequences`` is set. None for uniform
            draws.

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
        hindsight: HindsightReplay | None = None,
        normalize_rewards: bool = False,
        next_actions: bool = False,
        frame_stack_axis: StackAxes | None = None,
        whole_episodes: bool = False,
        seed: np.random.SeedSequence | np.random.Generator,
    ) -> None:
        self._layout = layout = ReplayLayout(
            observation_space, action_space, capacity, num_envs, prioritized, sequences, frame_stack_axis
        )
        least, most = checked_n_step(n_step, layout.kept_rows)
        check_value("ReplayBuffer(gamma)", gamma, float, Bounds(ge=0, le=1), "Discount per step.")
        layout.check_memory()  # before anything large is allocated
        self.rows, self.kept_rows, self.num_envs = layout.rows, layout.kept_rows, num_envs
        # a new goal may let the episode go on after its end
        ends_with_finals = TRUNCATED if hindsight is None else CUT
        self.ring = Ring(layout, observation_space, action_space, ends_with_finals)
        self._windows = Windows(least, most, gamma, next_actions)
        # without an open episode, no window waits for later steps
        self._is_whole, awaited = whole_episodes, 1 if whole_episodes else most
        self._anchors = None if sequences is None else Anchors(sequences, layout, awaited)
        self._hindsight = None
        if hindsight is not None:
            self._hindsight = Hindsight(hindsight, self.ring, observation_space, most, gamma)
        self._reward_scale = RewardScale(num_envs, gamma) if normalize_rewards else None
        self._rng = np.random.default_rng(seed)
        # With anchors, nothing is drawn from these, and the anchors have the priorities.
        self._transitions = Draws(self.rows, num_envs, prioritized if self._anchors is None else None)
        self._is_behind = True  # whether they do not know of the newest transitions yet

    @property
    def _draws(self) -> Draws:
        """What is drawn: transitions or anchors."""
        if self._anchors is not None:
            return self._anchors.draws
        if self._is_behind:
            self._is_behind = False
            written = self.ring.written
            self._transitions.move(np.maximum(written - self.kept_rows, 0), written.copy())
        return self._transitions

    @property
    def priorities(self) -> Priorities | None:
        return self._draws.priorities

    @property
    def num_transitions(self) -> int:
        """Number of transitions stored."""
        return int(np.minimum(self.ring.written, self.kept_rows).sum())

    @property
    def num_drawable(self) -> int:
        """Number of steps that :meth:`sample` can draw: those of all transitions, or if it draws sequences, those of
        all complete sequences."""
        return self._draws.num * self._length

    @property
    def max_steps(self) -> int:
        """Number of steps of the longest n-step window."""
        return self._windows.most

    @property
    def is_full(self) -> bool:
        """Whether the column that has advanced the most is full, so that its new transitions replace older ones."""
        return int(self.ring.written.max()) >= self.kept_rows

    @property
    def sampleable(self) -> np.ndarray:
        """bool ``[R, N]``: the row holds one of the newest ``kept_rows`` transitions, so that a window may begin there.
        A new array."""
        steps_after = self.ring.steps_after(np.arange(self.ring.num_places)).reshape(self.rows, self.num_envs)
        return steps_after < np.minimum(self.ring.written, self.kept_rows)

    def add(self, rollout: Rollout, first_slot: int | np.ndarray = 0) -> None:
        """Store the valid rows of a rollout ``[T, n]``, those of each slot in a column of its own.

        A slot continues the episode of the rows that were added to its column before, unless this episode ended or the
        first valid row of the slot starts a new one. Between valid rows, invalid rows may only follow the end of an
        episode. A full column overwrites its oldest rows.

        Args:
            rollout: A rollout on the CPU, with fewer rows than a column of the buffer.
            first_slot: The column of the rollout's first slot, if the others follow it; or the column of each slot,
                int64 ``[n]``, no two of them the same.

        Raises:
            ValueError: If the rollout is too long, or its slots or data do not fit the buffer. The buffer is then
                unchanged.
        """
        valid: Any = rollout.numpy(Columns.VALID)
        columns = first_slot
        if not isinstance(columns, np.ndarray):
            columns = slice(columns, columns + valid.shape[1])
        ring, anchors = self.ring, self._anchors
        if anchors is None:
            ring.add(rollout, columns)
        else:
            states = anchors.read_states(rollout)
            numbers = ring.numbers(valid, columns)
            ring.add(rollout, columns)
            anchors.add(states, numbers, columns, ring.written)
            if self._is_whole:
                anchors.complete_last(ring.written)
        if self._reward_scale is not None:
            self._reward_scale.update(rollout, columns)
        self._is_behind = True

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
        length, draws = self._length, self._draws
        if batch_size < 1 or not draws.num:
            what = "transition" if self._anchors is None else f"complete sequence of {length} steps"
            raise ValueError(
                f"ReplayBuffer.sample(batch_size): expected at least 1, and at least one {what} to draw from, got "
                f"{batch_size}, and {draws.num} to draw from ({self.num_transitions} steps are stored). Add rollouts "
                "first."
            )
        drawn, weights = draws.sample(max(1, batch_size // length), beta, self._rng)
        if self._anchors is None:
            batch, owners = self.gather_rows(drawn), None
            if self._hindsight is not None:
                self._hindsight.relabel_rows(batch, drawn, self._rng)
            if weights is not None:
                batch[Columns.WEIGHTS] = torch.from_numpy(weights)
        else:
            batch, owners = gather_sequences(self.ring, self._windows, self._anchors, drawn, self._rng)
            if self._hindsight is not None:
                places, burn_in = self._anchors.places(drawn, self.ring), self._anchors.settings.burn_in
                self._hindsight.relabel_sequences(batch, places, burn_in, length, self._rng)
            if weights is not None:
                # Rows that only warm up the memory, and padding, are not trained on: their weight stays 0.
                batch[Columns.WEIGHTS] = column = torch.zeros_like(batch[Columns.REWARDS])
                column.view(-1)[batch[Columns.VALID_ROWS]] = torch.from_numpy(weights[owners])
        if self._reward_scale is not None:
            self._reward_scale.divide(batch[Columns.REWARDS])
        return ReplaySample(batch, drawn, owners)

    def update_priorities(self, sample: ReplaySample, td_errors: Tensor | np.ndarray) -> None:
        """Set the priorities of the rows or sequences in ``sample`` from their TD errors. Do nothing if draws are
        uniform. Call it before the next :meth:`add`, after which other rows may be at their places.

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
            The columns of :meth:`Windows.take`; ``obs``, the observation before the window, and ``next_obs``, that
            after it.
        """
        columns, last, _ = self._windows.take(self.ring, places, self._rng)
        obs = self.ring.obs
        return {Columns.OBS: obs.at(places), **columns, Columns.NEXT_OBS: obs.following(last)}

    # -------------------------------------------------------------------------------------------------- state

    @property
    def _length(self) -> int:
        """Number of steps of a sample."""
        return 1 if self._anchors is None else self._anchors.settings.length

    @property
    def num_bytes(self) -> int:
        """Bytes allocated: the result of :func:`replay_bytes`, plus the bytes of observations kept apart from the
        ring, and of the ends of episodes for hindsight."""
        ends = 0 if self._hindsight is None else self._hindsight.ends.num_bytes
        return self._layout.num_bytes + self.ring.num_bytes + ends

    def get_state(self) -> dict[str, Any]:
        """Return everything that later samples depend on, as tensors and JSON values. The tensors share the buffer's
        memory."""
        state = {"layout": self._describe(), **self.ring.get_state(), **self.get_draws()}
        if self._anchors is not None:
            state["sequences"] = self._anchors.get_state()
        if self._reward_scale is not None:
            state["reward_scale"] = dict(self._reward_scale.state_dict())
        return state

    def get_draws(self) -> dict[str, Any]:
        """Return the part of :meth:`get_state` that changes when nothing is added: what later draws depend on."""
        state: dict[str, Any] = {"rng": self._rng.bit_generator.state}
        if self.priorities is not None:
            state["priorities"] = self.priorities.get_state()
        return state

    def set_draws(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`get_draws` of a buffer with the same steps. Without priorities in it, all steps
        keep the same one."""
        self._rng.bit_generator.state = state["rng"]
        if self.priorities is not None and "priorities" in state:
            self.priorities.set_state(state["priorities"])

    def _describe(self) -> dict[str, Any]:
        """Return the properties that two buffers must share before one can load the state of the other."""
        finals = {} if self._hindsight is None else {"final observations": "of all ends of episodes"}
        if self._reward_scale is not None:
            finals["rewards"] = "divided"
        return {
            **finals,
            "format": FORMAT,
            "capacity": self._layout.capacity,
            "num_envs": self.num_envs,
            "observations": ", ".join(map(str, self._layout.obs)),
            "actions": ", ".join(map(str, self._layout.actions)),
            "sequences": "none" if self._anchors is None else self._anchors.describe(),
            "prioritized": self.priorities is not None,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`get_state`. Later samples then equal those of the saved buffer bit for bit.

        Args:
            state: State of a buffer with the same spaces and settings.

        Raises:
            ValueError: If spaces or settings differ. The buffer is then unchanged.
        """
        here, there = self._describe(), state["layout"]
        differing = [name for name, value in here.items() if value != there.get(name)]
        if differing:
            expected = ", ".join(f"{name} {here[name]}" for name in differing)
            got = ", ".join(f"{name} {there.get(name)}" for name in differing)
            raise ValueError(
                f"state of a replay buffer: expected {expected}, got {got}. Load it into a buffer "
                "of the same spaces, envs and settings, or begin with an empty one: "
                "from_checkpoint(..., replay_in_checkpoints=False)."
            )
        self.ring.set_state(state)
        self._is_behind = True
        if self._hindsight is not None:
            self._hindsight.ends = EpisodeEnds(self.ring)
        if self._anchors is not None:
            self._anchors.set_state(state["sequences"])
        self.set_draws(state)
        if self._reward_scale is not None:
            self._reward_scale.load_state_dict(state["reward_scale"])
