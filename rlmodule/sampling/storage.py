"""RolloutStorage and TensorStorage: memory for one fragment. It consists of arrays or tensors, like the env's
observations."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import tree
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import Tensor

from catalog.base import Tree
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import as_tensors, entry_of, map_leaves, unbind_rows, write_row
from rlmodule.envs.checks import check_finite
from rlmodule.envs.infos import last_infos
from rlmodule.envs.restarting import FAULT
from rlmodule.modules.past_rows import PastRows, past_column
from rlmodule.modules.rl_module import RLModule, nothing_to_choose
from rlmodule.sampling.devices import check_device
from rlmodule.settings import FinalObs

logger = logging.getLogger("rlmodule.envs.make")


class RolloutStorage:
    """Holds ``T`` rows of ``N`` envs, which an env runner fills. Fields with ``T+1`` rows end with the row after the
    last step.

    The arrays share their memory with the tensors of the rollout. :class:`TensorStorage` does the same for envs that
    return tensors.

    Args:
        module: The module that acts.
        template: Observations of the module ``[0, ...]``, tensors that give the shapes, the dtypes and the device.
        num_steps: Number of rows, ``T``.
        env: The vector env.
        mode: The autoreset mode of the env.
        records_final_obs: Which steps have their true final observation in the rollout.

    Attributes:
        module, mode, records_final_obs: As given.
        env_name: Class of the env, for error texts.
        env_obs: Observations of the env ``[T+1, N, ...]``.
        previous: The earlier observations, actions and rewards that the module sees, by name.
        starts: Whether a row is the first row of an episode, ``[T+1, N]``.
        ended: Whether the previous row was the last of an episode, ``[T+1, N]``. With next-step autoreset, the row
            itself then only resets the env, and ``starts`` marks the row after it.
        rewards, terminateds, truncateds, valid: ``[T, N]``; ``valid`` marks the rows that are transitions.
        seen: Observations of the module, a list of ``T+1`` tensors ``[N, ...]``.
        columns: The columns of the rollout that are allocated in advance, tensors that share this memory.
        actions: Actions as the distribution sampled them, ``[T, N, ...]``; None before the first action.
        dist_inputs: Inputs of the action distribution, one tensor ``[N, ...]`` per filled row.
        final_obs: True final observations ``[T, N, ...]`` after the steps of :meth:`has_final`; None before the first
            is stored.
        rows_with_finals: Rows in which the env returned final observations.
        infos: The parts of ``info`` from which :meth:`episode_infos` is computed.
        faults: Row and slot of each step that raised. The step is marked as truncated until :meth:`cut_at_faults` is
            called.
        state_in: States of a recurrent module before rows ``0, L, 2L, …``, where ``L`` is the length of training
            sequences.
        filled: Number of complete rows.
        views: The ``views`` of rollouts of these rows.
    """

    columns: dict[str, Tree]
    actions: Tree | None = None
    state_in: Tree | None = None
    dist_inputs: list[Tensor]
    final_obs: Tree | None
    rows_with_finals: list[int]
    infos: list[dict[str, Any]]
    faults: list[tuple[int, int]]

    def __init__(
        self,
        module: RLModule,
        template: Tree,
        num_steps: int,
        env: VectorEnv,
        mode: AutoresetMode,
        records_final_obs: FinalObs,
    ) -> None:
        self.module, self.mode, self.records_final_obs = module, mode, records_final_obs
        self.env_name = type(env.unwrapped).__name__
        shape = num_steps + 1, env.num_envs
        device = tree.flatten(template)[0].device
        # Observations and starts have a row more: the observation after the last step begins the next rollout.
        obs = map_leaves(lambda x: x.new_empty(*shape, *x.shape[1:]), template)
        starts, ended, terminateds, truncateds = torch.zeros(4, *shape, dtype=torch.bool, device=device)
        self.seen: list[Tree] = unbind_rows(obs)
        rows = {
            Columns.OBS: obs,
            Columns.STARTS: starts,
            Columns.REWARDS: torch.zeros(shape, device=device),
            Columns.TERMINATEDS: terminateds,
            Columns.TRUNCATEDS: truncateds,
            Columns.VALID: torch.ones(shape, dtype=torch.bool, device=device),
        }
        self.columns = entry_of(rows, slice(-1))
        views: Any = self._as_env_gives((obs, starts, ended, self.columns))
        view_of_obs, self.starts, self.ended, columns = views
        _, _, self.rewards, self.terminateds, self.truncateds, self.valid = columns.values()
        self.env_obs = module.env_part(view_of_obs)
        self.previous = PastRows.of(module, view_of_obs) if module.sees_more_than_the_env else {}
        self.views: dict[str, tuple[Tree, Tree]] = {}

    @staticmethod
    def _as_env_gives(tensors: Tree) -> Tree:
        """Return ``tensors`` in the form that the env uses: here, NumPy arrays that share their memory."""
        return map_leaves(Tensor.numpy, tensors)

    def begin(self, row: Mapping[str, Any]) -> None:
        """Forget earlier rows. Fill the first row with the :meth:`last_row` of the rollout before, or with the start of
        new episodes."""
        self.dist_inputs, self.rows_with_finals, self.infos, self.faults = [], [], [], []
        self.final_obs, self.filled = None, 0
        self.valid[:] = True
        write_row(self.env_obs, 0, row["obs"])
        self.starts[0], self.ended[0] = row["starts"], row["ended"]
        for name, part in self.previous.items():
            if name in row["previous"]:
                write_row(part.whole, 0, row["previous"][name])
            else:
                part.clear(0)

    def last_row(self) -> Tree:
        """Return a copy of the row after the last step, as the argument of :meth:`begin`."""
        previous = {name: part.whole for name, part in self.previous.items()}
        rows = {"obs": self.env_obs, "starts": self.starts, "ended": self.ended, "previous": previous}
        return map_leaves(lambda x: _copy(x[-1]), rows)

    # --- row by row ---------------------------------------------------------------------------------------------------

    def write_action(self, t: int, action: Tree, fitted: Tree) -> Any:
        """Store the sampled ``action`` of row ``t``. Return a copy of ``fitted``, the converted action, for the env."""
        if self.actions is None:
            self.columns[Columns.ACTIONS] = map_leaves(lambda x: x.new_empty(len(self.rewards), *x.shape), action)
            self.actions = self._as_env_gives(self.columns[Columns.ACTIONS])
        sampled = self._as_env_gives(action)
        write_row(self.actions, t, sampled)
        return map_leaves(_copy, sampled if fitted is action else self._as_env_gives(fitted))

    def write_step(self, t: int, obs: Tree, rewards: Any, terminateds: Any, truncateds: Any) -> None:
        """Store the results of the actions of row ``t``: ``obs`` in row ``t + 1``, all other results in row ``t``."""
        self.rewards[t], self.terminateds[t], self.truncateds[t] = rewards, terminateds, truncateds
        write_row(self.env_obs, t + 1, obs)
        self.filled = t + 1

    def has_final(self, terminateds: np.ndarray, truncateds: np.ndarray) -> np.ndarray:
        """Return whether the rollout has the true final observation after each step with these flags, ``[..., N]``."""
        return terminateds | truncateds if self.records_final_obs == "ended" else truncateds & ~terminateds

    def note_finals(self, t: int, info: Mapping[str, Any]) -> None:
        """Store the true final observations in ``info``, if it has any, of the episodes that row ``t`` ended."""
        if "final_obs" not in info:
            return
        self.rows_with_finals.append(t)
        slots = np.flatnonzero(self.has_final(self.terminateds[t], self.truncateds[t])).tolist()
        if slots and self.final_obs is None:
            self.final_obs = tree.map_structure(lambda x: np.empty_like(x[1:]), self.env_obs)
        for slot in slots:
            write_row(self.final_obs, (t, slot), entry_of(info["final_obs"], slot))

    def note_faults(self, t: int, info: Mapping[str, Any]) -> None:
        """Do the same as :meth:`note_finals` for envs that are restarted if a step raises. Also record each step that
        raised in ``faults``, and log it. Such a step returned no observation, so write the observation before it into
        ``info["final_obs"]`` first."""
        if "final_obs" not in info:
            return
        ended = self.terminateds[t] | self.truncateds[t]
        for slot, of_env in zip(np.flatnonzero(ended).tolist(), last_infos(info, ended, True), strict=True):
            if FAULT in of_env:
                self.faults.append((t, slot))
                info["final_obs"][slot] = entry_of(self.env_obs, (t, slot))
                logger.warning("%s. It is restarted.", of_env[FAULT].partition("\n\n")[0])
        self.note_finals(t, info)

    def note_infos(self, t: int, info: Mapping[str, Any]) -> None:
        """Store the parts of the ``info`` of row ``t`` that :meth:`episode_infos` needs."""
        ended = self.terminateds[t] | self.truncateds[t]
        of_ended = last_infos(info, ended, self.mode is AutoresetMode.SAME_STEP)
        self.infos += [info for info in of_ended if FAULT not in info]

    def write_previous(self, t: int) -> None:
        """Add the observation, action and reward of row ``t`` to the earlier steps that the module sees in the next
        row. Set the earlier steps to zero where an episode starts."""
        for name, part in self.previous.items():
            part.write(t + 1, entry_of(past_column(name, self.actions, self.env_obs, self.rewards), t))
            part.clear((t + 1, self.starts[t + 1]))

    def mark(self, begin: int, end: int) -> None:
        """Set ``ended`` and ``starts`` of rows ``begin + 1`` to ``end`` (inclusive) from ``terminateds`` and
        ``truncateds`` of the rows before them. With next-step autoreset, ``ended`` of row ``begin`` is also read."""
        rows, after = slice(begin, end), slice(begin + 1, end + 1)
        self.ended[after] = self.terminateds[rows] | self.truncateds[rows]
        # the reset is part of the step that ends the episode, or is the step after it
        self.starts[after] = self.ended[rows if self.mode is AutoresetMode.NEXT_STEP else after]

    # --- once all rows are there --------------------------------------------------------------------------------------

    def settle(self, first_step: int, first_env: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mark the rows in which an env only resets as invalid, with reward 0, and check all filled rows. Return
        rewards, terminateds and truncateds ``[T, N]``: the storage's own arrays, or array copies of its tensors.

        Args:
            first_step: Number of steps of each env before row 0, for error texts.
            first_env: Index, among all envs of the run, of the env in slot 0, for error texts.

        Raises:
            ValueError: If an observation or a reward is not finite, or a mask allows no action.
        """
        if self.mode is AutoresetMode.NEXT_STEP:  # the step after an end resets the env and is no transition
            resets = self.ended[:-1]
            self.valid[:] = ~resets
            self.rewards[resets] = 0.0
        return self._check(first_step, first_env)

    def _check(self, first_step: int, first_env: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Raise as :meth:`settle` documents if a value is wrong. Return rewards, terminateds and truncateds."""
        self.check(first_step, first_env)
        return self.rewards, self.terminateds, self.truncateds

    def check(self, first_step: int, first_env: int) -> None:
        """Raise as :meth:`settle` does if a filled row, or the observation after the last filled row, has a wrong
        value. Change nothing. Arguments as for :meth:`settle`."""
        acted = min(self.filled + 1, len(self.rewards))
        check_finite(entry_of(self.env_obs, slice(self.filled + 1)), "obs", first_step, first_env)
        check_finite(self.rewards[: self.filled], "reward", first_step + 1, first_env)
        if (mask := self.module.action_mask) is None:
            return
        stuck = mask.rows_without_choice(as_tensors(entry_of(self.env_obs, slice(acted))))
        if self.mode is AutoresetMode.NEXT_STEP:
            stuck &= ~torch.as_tensor(self.ended[:acted])
        for row, slot in stuck.nonzero()[:1].tolist():
            raise nothing_to_choose(f"env {first_env + slot}, step {first_step + row}, obs", mask)

    def episode_infos(self, ended: np.ndarray) -> dict[str, Any]:
        """Return the last ``info`` of each episode in order of time as ``episode_infos``, or an empty dict if there are
        none. ``ended`` ``[T, N]`` marks the last rows."""
        return {"episode_infos": self.infos} if self.infos else {}

    def finals(self, found: np.ndarray, index: Tensor) -> Tree:
        """Return the final observations of episodes as the module would see them, a tree of tensors ``[K, ...]``. If
        the module also sees earlier steps, the tree is a dict of ``obs``, from the env, and the earlier steps under the
        names in ``previous``.

        Args:
            found: Row and slot (index of the env) of the last step of each episode, ``[K, 2]``.
            index: The same as a tensor on the device of the rows.

        Raises:
            ValueError: If the env did not return a true final observation.
        """
        rows, slots = index.unbind(1)
        source, at = self.final_obs, rows
        if self.mode is AutoresetMode.NEXT_STEP:
            source, at = self.env_obs, rows + 1
        elif missing := np.count_nonzero(~np.isin(found[:, 0], self.rows_with_finals)):
            lacking = "An env that does not have them says so with info['time_outs'], or metadata['final_obs'] = False."
            if self.records_final_obs == "ended":
                lacking = "An env that does not have them cannot be recorded, nor trained with rnd_coeff or her_ratio."
            raise ValueError(
                f"info of {self.env_name}.step(): expected final_obs whenever an episode ends, as "
                f"same-step autoreset has it, got {missing} {self.records_final_obs} episodes without it. Put the "
                "last observation of each ended episode into info['final_obs'], or declare "
                f"another autoreset mode in the env's metadata. {lacking}"
            )
        final_obs = tree.map_structure(lambda x: torch.as_tensor(x)[at, slots], source)
        if not self.module.sees_more_than_the_env:
            return final_obs
        past = {
            name: part.after(rows, slots, past_column(name, self.actions, self.env_obs, self.rewards))
            for name, part in self.previous.items()
        }
        return {Columns.OBS: final_obs, **past}

    def cut_at_faults(self) -> None:
        """Mark the row of each step that raised (see ``faults``) as invalid, and truncate its episode one row earlier.

        The true final observation of the episode is then the observation before the step that raised. Nothing is
        truncated if that step is in row 0, since the previous rollout already ends with that observation, or if it is
        the first step of its episode, which then leaves no row.
        """
        raised = np.zeros_like(self.valid)
        raised[tuple(np.transpose(self.faults))] = True
        self.valid[raised] = self.truncateds[raised] = False
        for t, slot in self.faults:
            if t and not self.starts[t, slot]:
                self.truncateds[t - 1, slot] = True
                write_row(self.final_obs, (t - 1, slot), entry_of(self.final_obs, (t, slot)))
                self.rows_with_finals.append(t - 1)


class TensorStorage(RolloutStorage):
    """Holds the rows of envs that return tensors, on their device.

    Filling the rows only queues work, so the CPU runs ahead of a GPU and does not wait for it. At the end, a single
    copy brings all that the CPU needs: rewards, terminateds, truncateds, and whether all values are finite and each
    mask allows an action. With same-step autoreset, the runner also copies the true final observations of the
    rollout, if there are any, and checks them.
    """

    @staticmethod
    def _as_env_gives(tensors: Tree) -> Tree:
        return tensors

    def write_step(self, t: int, obs: Tree, rewards: Any, terminateds: Any, truncateds: Any) -> None:
        if t == 0:
            check_device(f"{self.env_name}.step()", (obs, rewards, terminateds, truncateds), self.rewards.device)
        RolloutStorage.write_step(self, t, obs, rewards, terminateds, truncateds)

    def note_finals(self, t: int, info: Mapping[str, Any]) -> None:
        # store them in every step, since the CPU does not know whether an episode ended
        if "final_obs" not in info:
            return
        self.rows_with_finals.append(t)
        if self.final_obs is None:
            check_device(f"{self.env_name}.step(), info['final_obs']", info["final_obs"], self.rewards.device)
            self.final_obs = map_leaves(lambda x: torch.empty_like(x[1:]), self.env_obs)
        write_row(self.final_obs, t, info["final_obs"])

    def note_infos(self, t: int, info: Mapping[str, Any]) -> None:
        names = info.keys() if self.mode is AutoresetMode.NEXT_STEP else info.keys() & {"final_info"}
        self.infos.append({name: tree.map_structure(_copy, info[name]) for name in names})

    def episode_infos(self, ended: np.ndarray) -> dict[str, Any]:
        infos: list[dict[str, Any]] = []
        for row in np.flatnonzero(ended.any(1)) if self.infos else ():
            info: Any = tree.map_structure(_as_array, self.infos[row])
            infos += last_infos(info, ended[row], self.mode is AutoresetMode.SAME_STEP)
        return {"episode_infos": infos} if infos else {}

    def _check(self, first_step: int, first_env: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        # The GPU computes whether anything is wrong; a single copy brings this and the rewards and flags to the CPU.
        # Only if something is wrong, `check` finds out where, for the error.
        floats = [leaf for leaf in tree.flatten(self.env_obs) if leaf.is_floating_point()]
        stuck = self.valid.new_zeros(1, 1)
        if (mask := self.module.action_mask) is not None:
            stuck = mask.rows_without_choice(entry_of(self.env_obs, slice(-1))) & self.valid
        wrong = torch.stack([stuck.any(), *(~leaf.isfinite().all() for leaf in (*floats, self.rewards))]).any()
        parts = [self.rewards, self.terminateds, self.truncateds, wrong.expand_as(self.rewards)]
        on_host = torch.stack([part.float() for part in parts]).cpu().numpy()
        if on_host[3].any():
            self.check(first_step, first_env)
        return on_host[0], on_host[1].astype(bool), on_host[2].astype(bool)


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    return value.detach().clone() if isinstance(value, Tensor) else value


def _as_array(value: Any) -> Any:
    return value.numpy(force=True) if isinstance(value, Tensor) else value
