"""AgentColumns: the rollout rows of one module, with one column for each of its agents in each env, filled while the
agents act.

The rows of a column are the steps in which its agent acted, without gaps. A row opens when the agent acts, and is
complete when the agent next observes or ends. The rewards in between belong to that row. A row that is open at the end
of a fragment becomes row 0 of the next fragment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import tree
from torch import Tensor

from catalog.base import Tree
from rlmodule.agents.multi_agent_env import AgentID
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import (
    Rollout,
    allocate_observations,
    as_tensors,
    entry_of,
    map_leaves,
    stacked,
    unbind_rows,
    write_row,
)
from rlmodule.envs.checks import not_finite, wrong_numbers
from rlmodule.modules.apis import NoisyNetAPI
from rlmodule.modules.past_rows import PastRows, past_column
from rlmodule.modules.recurrent import initial_states, state_out_of
from rlmodule.modules.rl_module import RLModule, nothing_to_choose
from rlmodule.sampling.open_episodes import fill, leaves_of
from rlmodule.sampling.random_streams import ActionNoise
from rlmodule.settings import FinalObs

_INPUTS = Columns.ACTION_DIST_INPUTS
_NONE = np.empty(0, np.int64)
# What AgentColumns.open_row() returns for an agent that was never in play.
_ABSENT: Mapping[str, Any] = {"row": {}, "memory": ((), ()), "length": 0, "is_ready": False}


class AgentColumns:
    """Acts with one module for all its agents, and collects their rows.

    Each column belongs to a slot: one agent of one env. In every env step, the runner appends new observations to
    ``observers`` and ``seen`` and ends of episodes to ``ended`` and ``flags``, and then calls :meth:`advance` and
    :meth:`act`.

    Args:
        module: The module.
        slots: Slot of each of the ``S`` columns, ``[S]``.
        owners: Env (its index in the run) and agent of each column.
        noise: The action noise of each column.
        records_action_dist: Whether rollouts have the columns ``action_dist_inputs`` and ``action_logp``.
        records_final_obs: Which steps have their true final observation in rollouts.

    Attributes:
        column_of: Maps each slot to its column.
        cursor: Number of complete rows of each column, ``[S]``. This is also the index of the column's current row.
        began: Row at which the agent's current or last episode began, ``[S]``; negative if that was in an earlier
            fragment.
        in_play: Whether the agent of each column is in play, ``[S]``.
        ready: Columns of the agents that act next.
        observers, seen: Columns and observations of the agents that observed in this env step.
        ended, flags: Columns of the agents that end in this env step, each with ``(terminated, truncated)``.
    """

    def __init__(
        self,
        module: RLModule,
        slots: np.ndarray,
        owners: Sequence[tuple[int, AgentID]],
        noise: ActionNoise,
        records_action_dist: bool,
        records_final_obs: FinalObs,
    ) -> None:
        self.module, self.slots, self.owners, self.noise = module.eval(), slots, owners, noise
        self._records_action_dist = records_action_dist
        self._records_terminal_obs = records_final_obs == "ended"
        self.column_of = {slot: column for column, slot in enumerate(slots.tolist())}
        num, converter = len(slots), module.action_converter
        self._convert = None if converter.is_identity else converter.forward
        self._is_stateful = module.is_stateful()
        noise.use(module.action_dist_cls, module.num_dist_inputs)
        self.cursor, self.began = np.zeros(num, np.int64), np.zeros(num, np.int64)
        self.in_play = np.zeros(num, bool)
        # built once, since in most steps all agents of all envs observe and act
        self._all, self._every = np.arange(num), list(range(num))
        self.observers, self.seen = list[int](), list[Tree]()
        self.ended, self.flags = list[int](), list[tuple[bool, bool]]()
        no_inputs = torch.zeros(1, module.num_dist_inputs)
        action = module.action_dist_cls.from_logits(no_inputs).to_deterministic().sample()
        flags = np.empty((0, num), bool)
        # columns without rows, which show begin() what to allocate
        self._rows: dict[str, Tree] = {
            Columns.OBS: allocate_observations(module.input_space, 0, num),
            Columns.STARTS: flags,
            Columns.REWARDS: np.empty((0, num), np.float32),
            Columns.TERMINATEDS: flags,
            Columns.TRUNCATEDS: flags,
            Columns.ACTIONS: map_leaves(lambda x: np.empty((0, num, *x.shape[1:]), x.numpy().dtype), action),
        }
        if records_action_dist:
            self._rows[_INPUTS] = np.empty((0, num, module.num_dist_inputs), np.float32)
        self.clear()

    def clear(self) -> None:
        """Take all agents out of play, and reset the recurrent states, before all envs start new episodes."""
        self.in_play[:] = False
        self.cursor[:] = 0
        self.ready = _NONE
        self._carried: dict[str, Tree] = {}
        if self._is_stateful:
            self._state, self._before = (initial_states(self.module, len(self.slots)) for _ in range(2))
        self._empty_lists()

    def _empty_lists(self) -> None:
        for entries in (self.observers, self.seen, self.ended, self.flags):
            entries.clear()

    def begin(self, num_steps: int) -> None:
        """Allocate ``num_steps`` rows, and copy the current rows, which :meth:`carry` kept, to row 0."""
        length, num, module = num_steps + 1, len(self.slots), self.module
        self._rows = map_leaves(lambda x: np.zeros((length, num, *x.shape[2:]), x.dtype), self._rows)
        if self._carried:
            write_row(self._rows, 0, self._carried)
        self._obs = self._rows[Columns.OBS]
        self._env_obs = module.env_part(self._obs)
        self._past = PastRows.of(module, self._obs)
        self.began -= self.cursor
        self.cursor[:] = 0
        self._is_aligned = True  # all columns are at the same row
        self._finals: list[tuple[np.ndarray, np.ndarray, Tree]] = []
        if self._is_stateful:
            count = -(-num_steps // module.max_seq_len)
            self._state_in = map_leaves(lambda x: x.new_zeros(count, *x.shape), self._state)
            # record states of agents with an open row; agents that are ready record theirs when they act
            who = torch.from_numpy(np.flatnonzero(self.in_play))
            self._record_states(torch.zeros_like(who), who, entry_of(self._before, who))

    # --- step by step -------------------------------------------------------------------------------------------------

    def advance(self, step: int, earned: np.ndarray) -> None:
        """Process what one env step added to ``observers``, ``seen``, ``ended`` and ``flags``, and clear these lists.
        An agent that received an observation completes its current row and begins the next one. If it has no current
        row, it starts an episode.

        Args:
            step: Number of steps of each env so far, including this one.
            earned: For each slot of the runner, the sum of rewards since that slot's last complete row. Entries of
                slots whose row is completed are set to 0 in place.

        Raises:
            ValueError: If an observation is not finite; names env, step and agent.
        """
        if not self.observers:
            return
        who = self._all if self.observers == self._every else np.array(self.observers)
        acted = self.in_play[who]
        waiting = who if acted.all() else who[acted]
        slots, before = self.slots[waiting], self._at(waiting)
        self._rows[Columns.REWARDS][before] = earned[slots]
        earned[slots] = 0.0
        self.cursor[waiting] += 1
        # while all cursors are equal, rows are views and not gathered copies
        if len(waiting) < len(self.slots):
            self._is_aligned = self.cursor.min() == self.cursor.max()
        at = self._at(who)
        write_row(self._env_obs, at, stacked(self.module.observation_space, self.seen))
        # check what was stored, since a finite float64 may be too large for float32
        for path, number, (i, *inner) in wrong_numbers(entry_of(self._env_obs, at)):
            raise not_finite(self._where(int(who[i]), step) + path, number, inner)
        for name, part in self._past.items() if len(waiting) else ():
            column = past_column(name, self._rows[Columns.ACTIONS], self._env_obs, self._rows[Columns.REWARDS])
            part.write(self._at(waiting), entry_of(column, before), before)
        if len(waiting) < len(who):
            self._start(who[~acted])
        if self.ended:
            self._end()
            who = who[self.in_play[who]]
        who = np.concatenate([self.ready, who]) if len(self.ready) else who
        self.ready = self._all if len(who) == len(self._all) else np.sort(who)
        self._empty_lists()

    def _where(self, column: int, step: int) -> str:
        """Name the observation of the agent in ``column`` after ``step`` steps of its env, for error texts."""
        env, agent = self.owners[column]
        return f"env {env}, step {step}, agent {agent!r}, obs"

    def _at(self, who: np.ndarray) -> Any:
        """Return the index of the current rows of the columns ``who``. It is a single row number if ``who`` is all
        columns and all are at the same row, so that indexing returns a view. Otherwise it is a pair of row and column
        arrays."""
        return int(self.cursor[0]) if self._is_aligned and who is self._all else (self.cursor[who], who)

    def _start(self, who: np.ndarray) -> None:
        """Start episodes in the columns ``who`` at their current rows, and set the fields for earlier steps to zero
        there."""
        at = self.cursor[who], who
        self.in_play[who], self.began[who] = True, self.cursor[who]
        self._rows[Columns.STARTS][at] = True
        for part in self._past.values():
            part.clear(at)

    def _end(self) -> None:
        """End the episodes of the agents in ``ended``. Keep the final observations of agents that
        were truncated and not terminated, or of all if terminal observations are recorded."""
        ended, (terminated, truncated) = np.array(self.ended), np.array(self.flags).T
        self.in_play[ended] = False
        acted = self.cursor[ended] > self.began[ended]  # an agent may end in the step in which it starts
        last = self.cursor[ended[acted]] - 1, ended[acted]
        self._rows[Columns.TERMINATEDS][last] = terminated[acted]
        self._rows[Columns.TRUNCATEDS][last] = truncated[acted]
        has_final = acted if self._records_terminal_obs else acted & truncated & ~terminated
        if has_final.any():
            self._keep_finals(ended[has_final])

    def cut(self, column: int) -> None:
        """End the episode of the agent in ``column``, because its env raised, and drop the agent's open row. Mark the
        row before it as truncated, and keep the last observation as the final observation of the episode. If that row
        is in the previous rollout, leave it unchanged."""
        self.in_play[column] = False
        row = self.cursor[column]
        if row > max(self.began[column], 0):
            self._rows[Columns.TRUNCATEDS][row - 1, column] = True
            self._keep_finals(np.array([column]))

    def _keep_finals(self, who: np.ndarray) -> None:
        """Store the current observations of the columns ``who`` as final observations of their episodes."""
        rows = self.cursor[who]
        self._finals.append((rows - 1, who, entry_of(self._obs, (rows, who))))

    def act(self, explore: bool, generator: torch.Generator, step: int) -> tuple[list[int], Sequence[Any]]:
        """Choose the actions of the agents that are ready, and record them. Return the columns of these agents, and for
        each agent the action to pass to its env.

        Raises:
            ValueError: If a mask allows no action; names env, agent and ``step``, the number of steps so far.
        """
        who, module = self.ready, self.module
        at = self._at(who)
        batch = {Columns.OBS: as_tensors(entry_of(self._obs, at))}
        if module.action_mask is not None:
            stuck = module.action_mask.rows_without_choice(module.env_part(batch[Columns.OBS]))
            for (i,) in stuck.nonzero()[:1].tolist():
                raise nothing_to_choose(self._where(int(who[i]), step), module.action_mask)
        if explore and isinstance(module, NoisyNetAPI):
            module.resample_noise(generator)
        forward = module._forward_exploration if explore else module._forward_inference
        logits = self._step_states(forward, batch, who) if self._is_stateful else forward(batch)[_INPUTS]
        dist = module.action_dist_cls.from_logits(logits)
        if not explore:
            action = dist.to_deterministic().sample()
        elif self.noise.is_drawn:
            # from the stream of each slot, so that an action does not depend on which agents act at the same time
            action = dist.sample_from(self.noise.take_of(who))
        else:
            action = dist.sample(generator)
        write_row(self._rows[Columns.ACTIONS], at, map_leaves(Tensor.numpy, action))
        if self._records_action_dist:
            self._rows[_INPUTS][at] = logits.numpy()
        self.ready = _NONE
        sent = action if self._convert is None else self._convert(action)
        return who.tolist(), unbind_rows(map_leaves(Tensor.numpy, sent))

    def _step_states(self, forward: Any, batch: dict[str, Tree], who: np.ndarray) -> Tensor:
        """Run ``forward`` of a recurrent module from the states of the columns ``who``, and keep the new states. At
        rows where a training sequence starts, record the states before the row. Return the action distribution inputs
        ``[k, ...]``."""
        acts_in_every_column = who is self._all
        index = torch.from_numpy(who)
        states = self._state if acts_in_every_column else entry_of(self._state, index)
        rows = torch.from_numpy(self.cursor[who])
        length = self.module.max_seq_len
        starting = (rows % length == 0).nonzero().squeeze(1)
        self._record_states(rows[starting] // length, index[starting], entry_of(states, starting))
        out = forward(
            {
                Columns.OBS: entry_of(batch[Columns.OBS], None),
                Columns.STARTS: torch.from_numpy(self._rows[Columns.STARTS][self._at(who)])[None],
                Columns.STATE_IN: states,
            }
        )
        states_after = state_out_of(self.module, out)
        if acts_in_every_column:
            self._before = states
            self._state = states_after
        else:
            # Make new tensors: rollouts and saved states may share the memory of the old ones.
            self._before = _replaced(self._before, index, states)
            self._state = _replaced(self._state, index, states_after)
        return out[_INPUTS][0]

    def _record_states(self, rows: Tensor, who: Tensor, states: Tree) -> None:
        """Record ``states`` ``[k, ...]`` of the columns ``who`` ``[k]`` as the initial states of training sequences.
        ``rows`` ``[k]`` has the number of each sequence within its column."""
        if len(who):
            map_leaves(lambda kept, new: kept.index_put_((rows, who), new), self._state_in, states)

    # --- after the last step ------------------------------------------------------------------------------------------

    def carry(self) -> None:
        """Keep the current rows. Those of agents in play still wait for an action or for its reward. The next fragment
        begins with these rows."""
        self._carried = entry_of(self._rows, (self.cursor, self._all))

    def open_row(self, column: int) -> dict[str, Any]:
        """Return the state of the agent in ``column`` for :meth:`resume`. Call :meth:`carry` first.

        The entries are ``row`` (the leaves of the agent's current row by name; empty if it is not in play), ``memory``
        (the leaves of its recurrent states, even if it is not in play, because rollouts contain the memory of all
        columns), ``length`` (complete rows in the current episode) and ``is_ready`` (whether it acts next).
        """
        memory = (self._state, self._before) if self._is_stateful else ()
        return {
            "row": {name: leaves_of(rows, column) for name, rows in self._carried.items() if self.in_play[column]},
            "memory": [leaves_of(states, column) for states in memory],
            "length": int(self.cursor[column] - self.began[column]) if self.in_play[column] else 0,
            "is_ready": column in self.ready.tolist(),
        }

    def resume(self, agents: Mapping[int, Mapping[str, Any]]) -> None:
        """Restore the agents whose :meth:`open_row` results ``agents`` has, by column. All other agents are not in
        play."""
        self.clear()
        saved = [agents.get(column, _ABSENT) for column in self._every]
        for i, states in enumerate((self._state, self._before) if self._is_stateful else ()):
            fill(states, [agent["memory"][i] for agent in saved])
        self.in_play[:] = [bool(agent["row"]) for agent in saved]
        self.began[:] = [-agent["length"] for agent in saved]
        ready = np.flatnonzero([agent["is_ready"] for agent in saved])
        self.ready = self._all if len(ready) == len(self._all) else ready
        for name, column in self._rows.items():
            rows = map_leaves(lambda x: np.zeros(x.shape[1:], x.dtype), column)
            fill(rows, [agent["row"].get(name, ()) for agent in saved])
            self._carried[name] = rows

    def finish(self, explore: bool) -> tuple[Rollout, np.ndarray] | None:
        """Return a rollout of the complete rows. Call :meth:`carry` first, because this method overwrites the rows that
        are not complete.

        Args:
            explore: Whether the actions were sampled. If so, and if the distribution inputs were recorded, the rollout
                includes the log-probabilities of the actions.

        Returns:
            The rollout ``[T, n]`` of the ``n`` columns that have a complete row, and the slot of each of these columns,
            ``[n]``. ``T`` is the greatest number of complete rows; columns with fewer end with invalid rows. None if no
            row is complete.
        """
        used = np.flatnonzero(self.cursor)
        if not len(used):
            return None
        length = int(self.cursor.max())
        # A slice gives views of the columns; an index array, which leaves columns out, copies them.
        which = slice(None) if len(used) == len(self.slots) else used
        valid = np.arange(length)[:, None] < self.cursor
        if not valid.all():
            self._fill_behind(valid)
        tensors = map_leaves(lambda x: torch.from_numpy(x[: length + 1, which]), self._rows)
        columns = entry_of(tensors, slice(length))
        columns[Columns.VALID] = torch.from_numpy(valid[:, which])
        if explore and self._records_action_dist:
            with torch.no_grad():
                logp = self.module.action_dist_cls.from_logits(columns[_INPUTS]).logp(columns[Columns.ACTIONS])
            columns[Columns.ACTION_LOGP] = logp.masked_fill_(~columns[Columns.VALID], 0.0)
        final_index, final_obs = self._all_finals(used)
        state_in = None
        if self._is_stateful:
            num_sequences = -(-length // self.module.max_seq_len)
            state_in = entry_of(self._state_in, (slice(num_sequences), which))
        rollout = Rollout(
            columns=columns,
            last_obs=entry_of(tensors[Columns.OBS], length),
            final_index=final_index,
            final_obs=final_obs,
            state_in=state_in,
        )
        return rollout, self.slots[used]

    def _fill_behind(self, valid: np.ndarray) -> None:
        """Fill the rows after the last complete row of each column: observations with the column's current observation,
        all else with zeros. ``valid`` ``[T, S]`` marks the complete rows."""
        rows, columns = (np.arange(len(valid) + 1)[:, None] > self.cursor).nonzero()
        for leaf in tree.flatten(self._obs):
            leaf[rows, columns] = leaf[self.cursor[columns], columns]
        for name, column in self._rows.items():
            for leaf in tree.flatten(column) if name != Columns.OBS else ():
                leaf[: len(valid)][~valid] = 0

    def _all_finals(self, used: np.ndarray) -> tuple[Tensor, Tree]:
        """Return the row and the column of each step with a final observation, ``[K, 2]`` in ascending order, and the
        final observations ``[K, ...]``. Columns are numbered by their position in ``used``."""
        if not self._finals:
            none = map_leaves(lambda x: torch.from_numpy(x[0, :0]), self._obs)
            return torch.empty(0, 2, dtype=torch.int64), none
        rows, who, obs = zip(*self._finals, strict=True)
        index = np.stack([np.concatenate(rows), np.searchsorted(used, np.concatenate(who))], 1)
        order = np.lexsort(index.T[::-1])
        final_obs = tree.map_structure(lambda *x: torch.from_numpy(np.concatenate(x)[order]), *obs)
        return torch.from_numpy(index[order]), final_obs


def _replaced(states: Tree, index: Tensor, changed: Tree) -> Tree:
    """Return ``states`` ``[n, ...]`` with ``changed`` ``[k, ...]`` at ``index`` ``[k]``, in new tensors."""
    return map_leaves(lambda x, new: x.index_copy(0, index, new), states, changed)
