"""Class for the data that an env runner returns and a learner consumes, as columns over time and envs.

A rollout has ``T`` time steps, ``N`` slots (one per env), and ``K`` true final observations.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import tree
from gymnasium import Space, spaces
from torch import Tensor

from catalog.base import Tree
from catalog.spaces import ArraySpace, kept_dtype, map_spaces
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.device import moved
from rlmodule.data.episode import RESERVED, Episode, concatenated

if TYPE_CHECKING:
    from rlmodule.learning.sharding import Share

_LEAF = (Tensor, np.ndarray)


@dataclass(kw_only=True)
class Rollout:
    """Stores columns ``[T, N, ...]``, the observations after the last step, and the true final observations of
    episodes.

    Attributes:
        columns: Column name → tree of tensors ``[T, N, ...]``; see :class:`Columns`.
        last_obs: Observations after the last step, a tree of tensors ``[N, ...]``.
        final_index: ``[K, 2]`` int64: time and slot of every step that truncated, and did not terminate, an episode. If
            the settings ask for it (``records_final_obs``), also of every step that terminated one.
        final_obs: The true final observations of those episodes, a tree of tensors ``[K, ...]``. If ``finals_known`` is
            False, each step's own observation.
        state_in: States of a recurrent module before the time steps ``0, L, 2L, …``, ``[ceil(T / L), N, ...]``, where
            ``L`` is the module's ``max_seq_len``. None if the module is not recurrent or the states are unknown.
        policy_version: Number of updates that the weights had received when they chose the actions.
        first_env_index: Index of the env in slot 0 among all envs of the run.
        stats: Measurements of the env runner, such as returns and lengths of finished episodes, and seconds per phase.
        finals_known: Whether the env returns true final observations. If it does not, the observation ``s_t`` of each
            truncated step stands in for the one after it, as in rsl_rl. This adds
            ``gamma * (V(s_t) - V(s_t+1))`` to the advantage of that step, and the same times ``gamma * lambda`` for
            each step further back.
    """

    columns: dict[str, Tree]
    last_obs: Tree
    final_index: Tensor
    final_obs: Tree
    state_in: Tree | None = None
    policy_version: int = 0
    first_env_index: int = 0
    stats: dict[str, Any] = field(default_factory=dict)
    finals_known: bool = True
    views: dict[str, tuple[Tree, Tree]] = field(default_factory=dict, init=False, repr=False)
    """Columns and the NumPy arrays that :meth:`numpy` made of them. Rollouts that use the same memory, one after
    another, may share this dict."""

    def __getitem__(self, name: str) -> Tree:
        """Return the column ``name``."""
        return self.columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    @classmethod
    def concat(cls, rollouts: Sequence[Rollout]) -> Rollout:
        """Join rollouts of equal length by slot; keep the lowest policy version, and ``stats`` only of a single one."""
        if len(rollouts) == 1:
            return rollouts[0]
        offsets = np.cumsum([0] + [rollout.shape[1] for rollout in rollouts[:-1]])
        shifted = [r.final_index + r.final_index.new_tensor([0, n]) for r, n in zip(rollouts, offsets, strict=True)]
        return cls(
            columns=_cat([r.columns for r in rollouts], 1),
            last_obs=_cat([r.last_obs for r in rollouts], 0),
            final_index=torch.cat(shifted),
            final_obs=_cat([r.final_obs for r in rollouts], 0),
            state_in=None if rollouts[0].state_in is None else _cat([r.state_in for r in rollouts], 1),
            policy_version=min(r.policy_version for r in rollouts),
            first_env_index=rollouts[0].first_env_index,
            finals_known=rollouts[0].finals_known,
        )

    def map(self, function: Callable[[Rollout], Rollout]) -> Rollout:
        """Return ``function(self)``. In a multi-agent rollout, this method applies ``function`` to each module's
        rollout instead."""
        return function(self)

    def to(self, device: torch.device) -> Rollout:
        """Return a rollout on ``device``, or this rollout if it is there already. Copies to a GPU are asynchronous."""
        if self.valid.device == device == self.final_index.device:
            return self
        names = ("columns", "last_obs", "final_index", "final_obs", "state_in")
        return dataclasses.replace(self, **{name: moved(getattr(self, name), device) for name in names})

    def numpy(self, name: str) -> Tree:
        """Return the column ``name``, or ``"last_obs"``, as NumPy arrays that share its memory. The rollout must be on
        the CPU. Arrays are made once for each column, since that takes torch longer than reading them."""
        column = self.last_obs if name == "last_obs" else self.columns[name]
        view = self.views.get(name)
        if view is None or view[0] is not column:
            self.views[name] = view = column, map_leaves(Tensor.numpy, column)
        return view[1]

    @property
    def valid(self) -> Tensor:
        """True for real transitions, bool ``[T, N]``. Statistics and losses use only these rows."""
        return self.columns[Columns.VALID]

    @property
    def shape(self) -> tuple[int, int]:
        """``(T, N)``: number of time steps and number of slots."""
        return self.valid.shape[0], self.valid.shape[1]

    @property
    def num_env_steps(self) -> int:
        """Number of transitions, which are the valid rows."""
        return int(np.count_nonzero(self.valid.numpy(force=True)))  # torch takes five times as long on the CPU

    def valid_rows(self, names: Iterable[str]) -> Batch:
        """Return the named columns of the ``B`` valid rows, ``[B, ...]``, in order of time and then of slots."""
        keep = self.valid.flatten()
        rows = slice(None) if keep.all() else keep
        return {name: map_leaves(lambda x: x.flatten(0, 1)[rows], self.columns[name]) for name in names}

    def rows_to_value(self) -> Tree:
        """Return all observations whose values are needed, as one batch ``[T·N + N + K, ...]``: each row's, those after
        the last row, and the ``K`` in ``final_obs``. Pass their values to :meth:`split_values`."""
        return _cat([map_leaves(lambda x: x.flatten(0, 1), self[Columns.OBS]), self.last_obs, self.final_obs], 0)

    def split_values(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Split the values of :meth:`rows_to_value` into those before and those after each step, each ``[T, N]``. After
        a truncated step, that is the value of the true final observation, not of the next episode's first one. After a
        terminated step, it is meaningless and the caller must ignore it."""
        steps, slots = self.shape
        of_rows, last, finals = values.split([steps * slots, slots, len(self.final_index)])
        of_rows = of_rows.view(steps, slots)
        return of_rows, self._following(of_rows, last, finals)

    @classmethod
    def from_episodes(cls, episodes: Sequence[Episode]) -> Rollout:
        """Pack episodes or chunks of episodes into a rollout, one per slot. ``T`` is the length of the longest of them.

        The rows of a slot after the end of its episode are invalid. They repeat the last observation of the episode,
        from which an unfinished chunk bootstraps, and all other columns are zero there. Actions and rewards become
        float32 or int64; other columns get the dtype of :func:`kept_dtype`. ``stats`` is empty and ``policy_version``
        is 0.

        Row 0 of a slot starts an episode unless ``t_started`` of its chunk is greater than 0. A recurrent module begins
        such a chunk with its initial state, because the state that it had there is unknown.

        Raises:
            ValueError: If ``episodes`` is empty, an episode has no steps, or the episodes have different columns.
        """
        lengths = [len(episode) for episode in episodes]
        names = {tuple(episode.column_names) for episode in episodes}
        if not lengths or not all(lengths) or len(names) > 1:
            raise ValueError(
                "Rollout.from_episodes(): expected one or more episodes with steps and the same columns, got "
                f"{list(episodes)} with the columns {sorted(names)}. Leave out those without a step."
            )
        rows = np.arange(max(lengths))[:, None]
        is_last = rows == np.array(lengths) - 1
        # one row more than the other columns: it holds the observation after the last step
        obs = _pack(Columns.OBS, episodes, max(lengths) + 1)
        columns: dict[str, Tree] = {
            Columns.OBS: entry_of(obs, slice(-1)),
            Columns.VALID: torch.from_numpy(rows < lengths),
            Columns.STARTS: torch.from_numpy((rows == 0) & [e.t_started == 0 for e in episodes]),
            Columns.TERMINATEDS: torch.from_numpy(is_last & [e.terminated for e in episodes]),
            Columns.TRUNCATEDS: torch.from_numpy(is_last & [e.truncated for e in episodes]),
        }
        for name in (Columns.ACTIONS, Columns.REWARDS, *episodes[0].column_names):
            columns[name] = _pack(name, episodes, max(lengths))
        final_index = (columns[Columns.TRUNCATEDS] & ~columns[Columns.TERMINATEDS]).nonzero()
        return cls(
            columns=columns,
            last_obs=entry_of(obs, -1),
            final_index=final_index,
            final_obs=entry_of(obs, (final_index[:, 0] + 1, final_index[:, 1])),
        )

    def to_episodes(self) -> list[Episode]:
        """Return the episodes and chunks of episodes in this rollout without invalid rows, slot by slot, and in order
        of time within a slot.

        Observations are copies; other columns are views if the rollout is on the CPU. The last observation of an
        episode that is unfinished at the end of the rollout is from ``last_obs``. **The observation after a terminated
        step is only known** if ``final_index`` has the step or an invalid row follows. Otherwise the episode ends with
        a repetition of the observation before the step, since no training target may depend on it. The rollout does not
        store how many steps precede its row 0, so every ``t_started`` is 0 and every id is new.

        Raises:
            ValueError: If the true final observation of a truncated step is missing.
        """
        columns: Any = tree.map_structure(lambda x: x.numpy(force=True), self.columns)
        following = tree.map_structure(lambda x: x.numpy(force=True), self.following_observations())
        ended = columns[Columns.TERMINATEDS] | columns[Columns.TRUNCATEDS]
        episodes = []
        for slot, valid in enumerate(columns[Columns.VALID].T):
            rows = np.flatnonzero(valid)
            # a chunk ends where its episode does, and where invalid rows interrupt the slot
            cuts = np.flatnonzero((np.diff(rows) > 1) | ended[rows[:-1], slot]) + 1
            for part in filter(len, np.split(rows, cuts)):
                steps = entry_of(columns, (slice(part[0], part[-1] + 1), slot))
                after = entry_of(following, (part[-1:], slot))
                further = {name: column for name, column in steps.items() if name not in RESERVED}
                episode = Episode(
                    concatenated([steps[Columns.OBS], after]),
                    steps[Columns.ACTIONS],
                    steps[Columns.REWARDS],
                    columns=further,
                    terminated=steps[Columns.TERMINATEDS][-1],
                    truncated=steps[Columns.TRUNCATEDS][-1],
                )
                episodes.append(episode)
        return episodes

    def cut_before_unknown(self) -> Rollout:
        """Return a rollout in which each episode whose true final observation is unknown ends one step earlier, and
        the step after which it is unknown is invalid. So all final observations are known, and targets are unbiased.

        No step is truncated instead if that step is in row 0, since the rollout before ends with its observation, or
        if it is the only one of its episode.
        """
        if self.finals_known:
            return self
        rows, slots = self.final_index.unbind(1)
        has_earlier = (rows > 0) & ~self[Columns.STARTS][rows, slots]
        valid, truncateds = self.valid.clone(), self[Columns.TRUNCATEDS].clone()
        valid[rows, slots] = truncateds[rows, slots] = False
        earlier = self.final_index[has_earlier] - self.final_index.new_tensor([1, 0])
        truncateds[earlier.unbind(1)] = True
        return dataclasses.replace(
            self,
            columns={**self.columns, Columns.VALID: valid, Columns.TRUNCATEDS: truncateds},
            final_index=earlier,
            final_obs=entry_of(self.final_obs, has_earlier),
            finals_known=True,
        )

    def following_observations(self) -> Tree:
        """Return the observation that followed each step, as a tree of tensors ``[T, N, ...]``. Where an episode was
        truncated, it is the true final observation. **The observation after a terminated
        step is only known** if ``final_index`` has the step or an invalid row follows within the rollout. Otherwise the
        result repeats the observation before the step.

        Raises:
            ValueError: If the true final observation of a truncated step is missing or unknown.
        """
        if not self.finals_known:
            raise ValueError(
                "Rollout.following_observations(): expected true final observations, got a rollout of an env that "
                "returns none. Call cut_before_unknown() first."
            )
        terminated, valid = self.columns[Columns.TERMINATEDS], self.valid
        stored = torch.zeros_like(valid)
        stored[self.final_index.unbind(1)] = True
        stored[:-1] |= ~valid[1:]  # an invalid row holds the observation that followed the row before
        lost = valid & (terminated | self.columns[Columns.TRUNCATEDS]) & ~stored
        if (lost & ~terminated).any():
            raise ValueError(
                "Rollout.final_index: expected the row and slot of every truncated step, got no "
                f"{tuple((lost & ~terminated).nonzero()[0].tolist())}. Add them there, "
                "and the observation to final_obs."
            )

        def follow(obs: Tensor, last: Tensor, finals: Tensor) -> Tensor:
            following = self._following(obs, last, finals)
            following[lost] = obs[lost]  # not zeros, which may lie outside the space
            return following

        return tree.map_structure(follow, self.columns[Columns.OBS], self.last_obs, self.final_obs)

    def _following(self, column: Tensor, last: Tensor, finals: Tensor) -> Tensor:
        """Return what followed each row of ``column`` ``[T, N, ...]``, in the same shape: at truncations the entries of
        ``finals`` ``[K, ...]``, otherwise the next row, and ``last`` ``[N, ...]`` after the last row."""
        following = torch.cat([column[1:], last[None]])
        following[self.final_index.unbind(1)] = finals
        return following


def _cat(parts: Sequence[Tree], dim: int) -> Tree:
    """Concatenate trees of tensors along ``dim``."""
    return tree.map_structure(lambda *tensors: torch.cat(tensors, dim), *parts)


def map_leaves(function: Callable[..., Any], column: Tree, *others: Tree) -> Tree:
    """Apply ``function`` to each leaf of ``column`` and those of ``others``; return None if ``column`` is None. Faster
    than ``tree.map_structure``."""
    if isinstance(column, _LEAF):
        return function(column, *others)
    if type(column) is dict:
        return {key: map_leaves(function, part, *(other[key] for other in others)) for key, part in column.items()}
    if type(column) is tuple:
        return tuple(map_leaves(function, *parts) for parts in zip(column, *others, strict=True))
    return None if column is None else tree.map_structure(function, column, *others)


def allocate_observations(space: Space, *leading: int) -> Tree:
    """Return a tree of new uninitialised arrays ``[*leading, ...]`` for observations of ``space``, in the dtypes that
    rollouts use."""
    return map_spaces(lambda leaf: np.empty((*leading, *(leaf.shape or ())), kept_dtype(leaf.dtype)), space)


def stacked(space: Space, values: Sequence[Any]) -> Tree:
    """Stack ``k`` observations of ``space`` into a tree of arrays ``[k, ...]``. Where the space has arrays, they may
    have lists."""
    if isinstance(space, spaces.Dict):
        return {key: stacked(child, [value[key] for value in values]) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stacked(child, [value[i] for value in values]) for i, child in enumerate(space.spaces))
    return np.array(values)


def bounds_of(space: ArraySpace) -> tuple[Any, Any]:
    """Return the smallest and the largest valid number of each entry of a member of ``space``, as numbers or arrays."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiBinary):
        return 0, 1
    counts = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return space.start, space.start + counts - 1


def write_row(buffer: Tree, row: Any, obs: Tree) -> None:
    """Copy each leaf of ``obs`` into ``leaf[row]`` of the same leaf of ``buffer``; ``row`` is any NumPy index."""
    if isinstance(buffer, dict):
        for key in buffer:
            write_row(buffer[key], row, obs[key])
    elif isinstance(buffer, tuple):
        for part, value in zip(buffer, obs, strict=True):
            write_row(part, row, value)
    else:
        buffer[row] = obs


def unbind_rows(column: Tree) -> list[Tree]:
    """Return the ``T`` rows of a tree of arrays or tensors ``[T, ...]`` as views, faster than by indexing."""
    if isinstance(column, dict):
        parts = [unbind_rows(child) for child in column.values()]
        return [dict(zip(column, row, strict=True)) for row in zip(*parts, strict=True)]
    if isinstance(column, tuple):
        return list(zip(*(unbind_rows(child) for child in column), strict=True))
    return list(column)


def entry_of(column: Tree, index: Any) -> Tree:
    """Return a tree with ``x[index]`` for each leaf ``x`` of the tree ``column`` of arrays or tensors. An object array
    of observations is one leaf."""
    return map_leaves(lambda x: x[index], column)


def as_tensors(arrays: Tree) -> Tree:
    """Return a tree of tensors that share the memory of the numpy ``arrays``. Tensors in the tree stay as they are."""
    return map_leaves(torch.as_tensor, arrays)


def random_observations(space: Space, num: int, seed: int = 0) -> Tree:
    """Draw ``num`` samples of ``space`` and return them as a tree of tensors ``[num, ...]``, in the dtypes that
    rollouts use. The same ``seed`` gives the same samples."""
    space = copy.deepcopy(space)  # leave the random stream of the given space alone
    space.seed(seed)
    rows = allocate_observations(space, num)
    for row in range(num):
        write_row(rows, row, space.sample())
    return as_tensors(rows)


def row_minibatches(
    batch: Batch, size: int | None, generator: torch.Generator, share: Share | None = None
) -> Iterator[Batch]:
    """Draw an order of the rows of ``batch`` ``[B, ...]``, and return an iterator over minibatches of ``size`` rows, or
    over a single one if ``size`` is None. A single row at the end joins the minibatch before it, because batch norm
    needs two rows.

    With a ``share``, the minibatches are of the rows of all learners, without the rows that are not in ``batch``.
    """
    first = tree.flatten(batch)[0]
    rows = len(first) if share is None else share.total
    order = torch.randperm(rows, generator=generator)
    bounds = [start for start in range(0, rows, size or rows or 1) if start == 0 or rows - start > 1] + [rows]
    if share is not None:
        order, bounds = share.of(order, bounds)
    if first.device.type != "cpu":
        order = moved(order, first.device)

    def cut() -> Iterator[Batch]:
        # gather once per column and epoch, so that the minibatches are views
        shuffled = entry_of(batch, order)
        for start, stop in itertools.pairwise(bounds):
            yield entry_of(shuffled, slice(start, stop))

    return cut()


def _pack(name: str, episodes: Sequence[Episode], rows: int) -> Tree:
    """Return column ``name`` of all ``N`` episodes as a tree of tensors ``[rows, N, ...]``. Pad observations with the
    last observation, and other columns with zeros."""

    def pack(*arrays: np.ndarray) -> Tensor:
        dtype = np.result_type(*arrays)
        if name in (Columns.ACTIONS, Columns.REWARDS) and dtype.kind in "iuf":
            dtype = np.dtype(np.float32 if dtype.kind == "f" else np.int64)
        column = np.zeros((rows, len(arrays), *arrays[0].shape[1:]), kept_dtype(dtype))
        for slot, array in enumerate(arrays):
            column[: len(array), slot] = array
            if name == Columns.OBS:
                column[len(array) :, slot] = array[-1]
        return torch.from_numpy(column)

    return tree.map_structure(pack, *(episode.get_columns(name) for episode in episodes))
