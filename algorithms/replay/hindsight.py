"""Hindsight replay (HER, Andrychowicz et al. 2017): learn from a failed episode as if its goal had been one that it did
achieve.

Nothing is stored twice. A drawn batch is changed instead: some of its steps get a goal that was achieved later in their
episode, and the rewards that follow from it. So hindsight composes with everything that stores and draws steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from algorithms.ops.rewards import clipped
from algorithms.replay.ring import CUT, Ring
from catalog.base import Tree
from catalog.checks import Bounds, check_value
from catalog.distributions.nested import at
from catalog.spaces import space_parts
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import random_observations

GoalFn: TypeAlias = Callable[[np.ndarray, np.ndarray, Any], Any]
"""``fn(achieved_goals, desired_goals, infos)``: an answer for each of ``K`` pairs of goals ``[K, ...]``. The infos are
empty dicts, one for each pair."""

ACHIEVED, DESIRED = "achieved_goal", "desired_goal"

logger = logging.getLogger("algorithms.replay")


@dataclass(frozen=True, kw_only=True, eq=False)
class HindsightReplay:
    """Settings of a buffer that gives sampled steps new goals.

    Attributes:
        ratio: Share of the sampled steps, or of the episodes in sampled sequences, that get a new goal.
        reward: Returns the rewards of steps from the goals achieved after them and the goals desired.
        terminated: Returns in the same way whether steps terminate their episode; it may also take one pair of goals
            only. None keeps what the env said under the old goal.
        strategy: "future" takes the goal that was achieved after a random step from the sampled one to the end of its
            episode, "final" takes that after the last step.
        clip: Clip rewards as :func:`algorithms.ops.rewards.clipped` does; None leaves them as they are.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a value is out of range.
    """

    ratio: float
    reward: GoalFn
    terminated: GoalFn | None = None
    strategy: Literal["future", "final"] = "future"
    clip: Literal["sign"] | float | None = None

    def __post_init__(self) -> None:
        check_value("HindsightReplay.ratio", self.ratio, float, Bounds(gt=0, le=1), "0.8 is usual.")


class EpisodeEnds:
    """Knows where the episode of each transition of a ring ends, so that nobody searches for it when steps are drawn.

    The transitions of a column are numbered from 0 on, as :attr:`Ring.written` counts them.

    Args:
        ring: The ring.
    """

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        # The number of the last transition of the episode, at the place of each transition. A number below that of the
        # transition itself is one of an earlier transition at the same place: the episode has not ended yet.
        self._last = np.full((ring.rows, ring.num_columns), -1, np.int64)
        self._begins = np.zeros(ring.num_columns, np.int64)  # first transition of the episode that has not ended yet
        self._seen = np.zeros(ring.num_columns, np.int64)  # transitions of each column that were looked at

    @property
    def num_bytes(self) -> int:
        """Bytes allocated."""
        return self._last.nbytes

    def update(self) -> None:
        """Take note of the transitions that were added since the last call."""
        ring = self._ring
        if np.array_equal(self._seen, ring.written):
            return
        # The newest transition of the last call is looked at again, since its episode may have been cut after it.
        first = np.maximum(self._seen - 1, np.maximum(ring.written - ring.rows, 0))
        numbers = first + np.arange((ring.written - first).max())[:, None]
        columns = np.arange(ring.num_columns)
        ends = ring.flags[numbers % ring.rows, columns] & CUT > 0
        ends &= numbers < ring.written
        for step, column in np.argwhere(ends).tolist():
            end = numbers[step, column]
            begin = max(self._begins[column], end - ring.rows + 1)
            self._last[np.arange(begin, end + 1) % ring.rows, column] = end
            self._begins[column] = end + 1
        self._seen = ring.written.copy()

    def steps_left(self, places: np.ndarray) -> np.ndarray:
        """Return the number of transitions of the same episode that are stored after those at ``places``, int64 of the
        same shape."""
        ring = self._ring
        after = ring.steps_after(places)
        numbers = ring.written.take(places % ring.num_columns) - 1 - after
        last = self._last.take(places)
        return np.where(last < numbers, after, last - numbers)


class Hindsight:
    """Gives steps of a batch goals that were achieved later in their episodes, with the rewards that follow.

    Args:
        settings: Ratio, reward function and strategy.
        ring: The ring from which batches are drawn.
        observation_space: The module's ``input_space``, which holds a Dict with ``achieved_goal`` and ``desired_goal``.
        n_step: The greatest number of steps of an n-step window, which must be 1.
        gamma: Discount per step.

    Raises:
        ValueError: If observations have no such goals, frames of goals are stacked, windows have several steps, or
            ``settings.reward`` does not answer for several goals at once.
    """

    def __init__(
        self, settings: HindsightReplay, ring: Ring, observation_space: Space, n_step: int, gamma: float
    ) -> None:
        self._settings, self._ring = settings, ring
        self.ends = EpisodeEnds(ring)
        path = _path_of_goals(observation_space)
        if path is None:
            raise ValueError(
                f"her_ratio: expected 0 for observations without {ACHIEVED} and {DESIRED}, got {settings.ratio} for "
                f"{observation_space}. Let the env return a Dict that has both, or leave her_ratio out."
            )
        if n_step > 1:
            raise ValueError(
                f"n_step: expected 1 with her_ratio > 0, since a new goal changes every reward of a window, got "
                f"{n_step}. Set it to 1."
            )
        self._path, self._gamma = path, gamma
        self._achieved, self._desired = (self._leaf(name) for name in (ACHIEVED, DESIRED))
        goal, wanted = (ring.obs.leaves[leaf] for leaf in (self._achieved, self._desired))
        if (goal.shape, goal.dtype) != (wanted.shape, wanted.dtype):
            raise ValueError(
                f"her_ratio: expected an {ACHIEVED} like the {DESIRED}, {wanted.dtype} shaped {wanted.shape}, got "
                f"{goal.dtype} shaped {goal.shape}. Give both the same space."
            )
        # A function that takes one pair of goals only would be wrong without an error for many.
        goals: Any = random_observations(at(observation_space, (*path, DESIRED)), 2).numpy()
        if got := _other_than_two(settings.reward, goals):
            raise ValueError(
                f"compute_reward, or her_reward_fn: expected a reward for each pair of goals, shape (2,) for goals "
                f"shaped {goals.shape}, got {got}. Compute along the last axis, as np.linalg.norm(a - b, axis=-1) does."
            )
        self._terminated = settings.terminated
        if self._terminated is not None and _other_than_two(self._terminated, goals):
            self._terminated = _one_by_one(self._terminated)
        self._after = ring.obs.leaf_following  # of the steps at places
        self._is_checked = False

    def _leaf(self, name: str) -> int:
        """Return the number of the leaf of an observation that holds the goal ``name``."""
        path = ".".join(map(str, (*self._path, name)))
        number = next((i for i, leaf in enumerate(self._ring.obs.leaves) if leaf.path == path), None)
        if number is None:
            raise ValueError(
                f"her_ratio: expected goals that are single arrays, got a nested {name}. Let the env return "
                "the parts of a goal in one array."
            )
        if (axis := self._ring.obs.leaves[number].axis) is not None:
            raise ValueError(
                f"frame_stack_axis[{path!r}]: expected whole goals with her_ratio > 0, got axis {axis}. Leave it out."
            )
        return number

    def relabel_rows(self, batch: Batch, places: np.ndarray, rng: np.random.Generator) -> None:
        """Change a batch of the steps at ``places`` ``[B]``."""
        self._begin(places)
        rows = np.flatnonzero(rng.random(len(places)) < self._settings.ratio)
        places = places[rows]
        left = self.ends.steps_left(places)
        goals = self._after(self._achieved, self._goal_places(places, left, rng))
        for name in (Columns.OBS, Columns.NEXT_OBS):
            self._desired_in(batch[name])[rows] = goals
        self._write_rewards(batch, rows, places, goals)

    def relabel_sequences(
        self, batch: Batch, places: np.ndarray, burn_in: int, length: int, rng: np.random.Generator
    ) -> None:
        """Change a batch of sequences. All steps of a sequence that belong to the same episode get the same goal, or
        all keep theirs.

        Args:
            batch: The result of :func:`~algorithms.replay.sequences.gather_sequences`.
            places: The place of the first row of each sequence, including the burn-in, int64 ``[B]``.
            burn_in, length: Number of rows of a sequence that only warm up the memory, and that are trained on.
            rng: Random stream of the goals.
        """
        steps, sequences = np.arange(burn_in + length)[:, None], np.arange(len(places))
        places = (places + steps * self._ring.num_columns) % self._ring.num_places  # [T, B]
        self._begin(places[burn_in:].reshape(-1))
        left = self.ends.steps_left(places)
        begins = np.ones_like(places, bool)
        begins[1:] = left[1:] != left[:-1] - 1  # another episode than that of the row before
        first = np.maximum.accumulate(np.where(begins, steps, 0), 0)  # the first row of the episode, by step
        goal_places = self._goal_places(places, left, rng)[first, sequences]
        picked = (rng.random(places.shape) < self._settings.ratio)[first, sequences]
        goals = self._after(self._achieved, goal_places)  # [T, B, ...]
        if burn_in:
            self._desired_in(batch[Columns.BURN_IN][Columns.OBS])[picked[:burn_in]] = goals[:burn_in][picked[:burn_in]]
        # The batch has further rows: final observations, and those after the last row. They belong to the row before.
        rows = batch[Columns.VALID_ROWS].numpy()
        step_of = np.zeros(batch[Columns.REWARDS].shape, np.int64)
        step_of.put(rows, np.repeat(np.arange(burn_in, burn_in + length), len(sequences)))
        step_of = np.maximum.accumulate(step_of, 0)
        of_rows = picked[step_of, sequences]
        self._desired_in(batch[Columns.OBS])[of_rows] = goals[step_of, sequences][of_rows]
        trained = picked[burn_in:]
        self._write_rewards(batch, rows[trained.reshape(-1)], places[burn_in:][trained], goals[burn_in:][trained])

    def _begin(self, places: np.ndarray) -> None:
        """Prepare to change a batch of the steps at ``places`` ``[K]``."""
        self.ends.update()
        if not self._is_checked:
            self._check_rewards(places)
            self._is_checked = True

    def _goal_places(self, places: np.ndarray, left: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Return the places of the steps that achieved the new goals of the steps at ``places``, which have ``left``
        more steps in their episodes."""
        if self._settings.strategy == "future":
            left = (rng.random(places.shape) * (left + 1)).astype(np.int64)
        return (places + left * self._ring.num_columns) % self._ring.num_places

    def _desired_in(self, obs: Tree) -> np.ndarray:
        """Return the desired goals in a batch of observations, as an array that shares their memory."""
        goals: Tensor = at(obs, (*self._path, DESIRED))
        return goals.numpy()

    def _rewards(self, achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
        """Return the rewards ``[K]`` of ``K`` pairs of goals as they would be stored, float32."""
        answer = self._settings.reward(achieved, desired, [{} for _ in achieved])
        rewards = np.asarray(answer, np.float32)
        clip = self._settings.clip
        return rewards if clip is None else clipped(torch.from_numpy(rewards), clip).numpy()

    def _write_rewards(self, batch: Batch, rows: np.ndarray, places: np.ndarray, goals: np.ndarray) -> None:
        """Write the rewards and discounts of steps under new goals to ``K`` rows of a batch.

        Args:
            batch: The batch, whose rewards and discounts count as flat.
            rows: The rows to write, int64 ``[K]``.
            places: The places of the steps.
            goals: The new goals, ``[K, ...]``.
        """
        if not len(rows):
            return
        achieved = self._after(self._achieved, places)
        batch[Columns.REWARDS].view(-1).numpy()[rows] = self._rewards(achieved, goals)
        if self._terminated is not None:
            ends = np.asarray(self._terminated(achieved, goals, [{} for _ in rows]), bool)
            batch[Columns.DISCOUNTS].view(-1).numpy()[rows] = np.where(ends, 0.0, self._gamma)

    def _check_rewards(self, places: np.ndarray) -> None:
        """Compare the rewards of the steps at ``places`` with those that the reward function gives for their own goals.
        Warn if more than one in a hundred differs.

        Raises:
            ValueError: If all differ.
        """
        stored = self._ring.rewards.take(places)
        given = self._rewards(self._after(self._achieved, places), self._after(self._desired, places))
        differs = ~np.isclose(given, stored, rtol=1e-3, atol=1e-5)
        if not (share := np.mean(differs)) > 0.01:
            return
        row = int(differs.argmax())
        text = (
            "her_ratio: expected the rewards of the env from compute_reward, or her_reward_fn, got another one for "
            f"{share:.0%} of the steps in the first batch, such as {given[row]:g} instead of {stored[row]:g}."
        )
        if share == 1.0:
            raise ValueError(f"{text} Give it the goals as they are after a step, or pass a her_reward_fn that fits.")
        logger.warning("%s Steps with new goals get what it returns.", text)


def _path_of_goals(space: Space) -> tuple[Any, ...] | None:
    """Return the keys that lead to the first Dict in ``space`` with both goals, or None if there is none."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return None
    parts = space_parts(space)
    if {ACHIEVED, DESIRED} <= parts.keys():
        return ()
    found = ((key, _path_of_goals(part)) for key, part in parts.items())
    return next(((key, *path) for key, path in found if path is not None), None)


def _other_than_two(function: GoalFn, goals: np.ndarray) -> str:
    """Describe what ``function`` returns for two pairs of goals, unless it is an answer for each. Then return ""."""
    try:
        shape = np.shape(function(goals, goals[::-1], [{}, {}]))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if shape == (2,) else f"shape {shape}"


def _one_by_one(function: GoalFn) -> GoalFn:
    """Return a function that asks ``function`` for each pair of goals alone."""
    return lambda achieved, desired, infos: [*map(function, achieved, desired, infos)]
