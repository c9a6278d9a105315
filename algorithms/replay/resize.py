"""Copy the transitions of a replay buffer to a buffer of a different shape, for a run that resumes with a different
capacity or number of envs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout, map_leaves

if TYPE_CHECKING:
    from algorithms.replay.buffer import ReplayBuffer

# Number of transitions copied at a time, to limit the memory that the copies take.
_PLACES = 1024


def copy_transitions(new: ReplayBuffer, old: ReplayBuffer) -> None:
    """Fill the empty buffer ``new`` with the transitions of ``old`` and their priorities.

    The columns of ``old``, each from its oldest row to its newest, are joined end to end, and the result is divided
    into equal parts, one for each column of ``new``. The first few transitions are dropped if they do not divide
    evenly. If a division falls within an episode, the step before it is stored as truncated, with the observation
    after it.
    """
    # A place table [depth, columns of new] says where each new row comes from. Transposing makes each part a column.
    rows = (old.heads + np.arange(old.rows)[:, None]) % old.rows
    places = (rows * old.num_envs + np.arange(old.num_envs)).T.reshape(-1)
    places = places[old.sampleable.take(places)]
    depth = len(places) // new.num_envs
    places = places[len(places) - depth * new.num_envs :].reshape(new.num_envs, depth).T
    # A step continues if the row below it comes from the next row of the same old column, and no window was cut there.
    goes_on = np.zeros(places.shape, dtype=bool)
    goes_on[:-1] = places[1:] == (places[:-1] + old.num_envs) % (old.rows * old.num_envs)
    goes_on &= ~old.cuts.take(places)
    starts = np.ones_like(goes_on)
    starts[1:] = ~goes_on[:-1]
    step = max(1, min(_PLACES // new.num_envs, new.rows - 1))
    for begin in range(0, depth, step):
        part = slice(begin, begin + step)
        new.add(_rollout(old, places[part], goes_on[part], starts[part]))
    if new.priorities is not None and old.priorities is not None:
        kept = places[-new.kept_rows :]  # the new ring may be smaller, and has then overwritten the others
        rows = np.arange(depth - len(kept), depth)[:, None] % new.rows
        leaves = rows * new.num_envs + np.arange(new.num_envs)
        new.priorities.copy_from(old.priorities, kept.reshape(-1), leaves.reshape(-1))


def _rollout(old: ReplayBuffer, places: np.ndarray, goes_on: np.ndarray, starts: np.ndarray) -> Rollout:
    """Return the steps of ``old`` at ``places`` as a rollout for the new buffer. A step becomes truncated if it does
    not terminate its episode and the next row does not continue it.

    Args:
        old: The buffer to read.
        places: Places in ``old``, int64 ``[T, N]``, for the ``N`` columns of the new buffer.
        goes_on: bool ``[T, N]``: the next row continues the episode.
        starts: bool ``[T, N]``: the row begins an episode, or does not continue the row before it.
    """
    terminateds = old.terminateds.take(places)
    truncateds = ~goes_on & ~terminateds
    shape, flat = places.shape, places.reshape(-1)
    return Rollout(
        columns={
            Columns.OBS: map_leaves(lambda x: x.unflatten(0, shape), old.observations(flat)),
            Columns.ACTIONS: map_leaves(lambda x: x.unflatten(0, shape), old.actions(flat)),
            Columns.REWARDS: torch.from_numpy(old.rewards.take(places)),
            Columns.TERMINATEDS: torch.from_numpy(terminateds),
            Columns.TRUNCATEDS: torch.from_numpy(truncateds),
            Columns.STARTS: torch.from_numpy(starts),
            Columns.VALID: torch.ones(places.shape, dtype=torch.bool),
        },
        last_obs=old.following_observations(places[-1]),
        final_index=torch.from_numpy(np.argwhere(truncateds)),
        final_obs=old.following_observations(places[truncateds]),
    )
