"""Class for recorded steps of episodes, from which algorithms learn without an env."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium import Space
from numpy.typing import ArrayLike

from catalog.base import Tree
from catalog.explain.explain import short_space
from catalog.spaces import map_spaces
from rlmodule.data import dataset_files, hdf5, minari
from rlmodule.data.columns import Columns
from rlmodule.data.dataset_checks import (
    REWARD_SPACE,
    Rows,
    as_array,
    as_flags,
    as_offsets,
    check_mask,
    fitted,
    leaves_of,
    misfit,
    space_for,
)
from rlmodule.data.episode import Episode, concatenated
from rlmodule.data.rollout import entry_of, map_leaves
from rlmodule.encoding import encode
from rlmodule.sealed_folder import StrPath

logger = logging.getLogger(__name__)

Timeouts = ArrayLike | None | Literal["ask"]
"""Where a time limit ended episodes: a bool per step, or None if every end is terminal. ``"ask"`` is refused, because
both readings give other values."""


class Dataset:
    """Stores steps of episodes, end to end, with the spaces that they come from.

    Actions are those of the env, as ``env.step`` takes them. Action masks are the field ``"action_mask"`` of Dict
    observations. Every column is checked once: its structure, length, dtype and numbers must fit the space, and masks
    must allow the actions. Observations beyond the bounds of a Box of floats are only logged, since envs may leave
    them. Arrays that fit are not copied; do not change them later.

    Args:
        observations: What the agent saw before each step: a tree of arrays ``[S, ...]``.
        final_observations: What followed the last step of each episode: a tree of arrays ``[E, ...]``.
        actions: Tree of arrays ``[S, ...]``.
        rewards: Rewards, ``[S]``.
        offsets: First step of each episode, and the number of steps, ``[E + 1]``: episode ``e`` has the steps
            ``offsets[e]:offsets[e + 1]``.
        terminated: Whether the last step ended the episode by the rules of the task, ``[E]``.
        truncated: Whether a cause outside the task, such as a time limit or the end of the recording, ended the
            episode, ``[E]``. One of both flags is True.
        observation_space: Space of one observation.
        action_space: Space of one action.
        env: Id of the env, if it is known. It is a text that nothing imports or makes.
        where: Text with which error messages begin.

    Attributes:
        observations: Arrays in the structure and dtypes of ``observation_space``; so are ``final_observations``.
        actions: Arrays in the structure and dtypes of ``action_space``.
        rewards: float32.
        offsets: int64.

    Raises:
        ValueError: If a column does not fit; names the row, the episode and the column.
    """

    def __init__(
        self,
        observations: Tree,
        final_observations: Tree,
        actions: Tree,
        rewards: ArrayLike,
        offsets: ArrayLike,
        terminated: ArrayLike,
        truncated: ArrayLike,
        *,
        observation_space: Space,
        action_space: Space,
        env: str | None = None,
        where: str = "Dataset",
    ) -> None:
        self.observation_space, self.action_space, self.env = observation_space, action_space, env
        # The offsets first: errors of all other columns name the episode.
        self.offsets = as_offsets(where, offsets, _num_steps(where, rewards))
        steps = Rows(where, self.offsets)
        self.rewards: np.ndarray = fitted(REWARD_SPACE, rewards, steps, "rewards")
        self.terminated = as_flags(where, "terminated", terminated, self.num_episodes)
        self.truncated = as_flags(where, "truncated", truncated, self.num_episodes)
        episodes = steps._replace(are_steps=False)
        if (open_ends := np.flatnonzero(~(self.terminated | self.truncated))).size:
            remedy = "Call an episode truncated whose recording just stops."
            raise episodes.wrong("truncated", int(open_ends[0]), "True unless it is terminated", "False", remedy)
        # an env may leave the bounds of its observations, which a run uses as they are
        seen, last = steps._replace(are_within=False), episodes._replace(are_within=False)
        self.observations = fitted(observation_space, observations, seen, "observations")
        self.final_observations = fitted(observation_space, final_observations, last, "final_observations")
        self.actions = fitted(action_space, actions, steps, "actions")
        check_mask(observation_space, action_space, self.observations, self.actions, steps)

    @classmethod
    def from_arrays(
        cls,
        observations: Tree,
        actions: Tree,
        rewards: ArrayLike,
        *,
        terminals: ArrayLike,
        timeouts: Timeouts = "ask",
        next_observations: Tree | None = None,
        observation_space: Space | None = None,
        action_space: Space | None = None,
        env: str | None = None,
        where: str = "Dataset.from_arrays()",
    ) -> Dataset:
        """Return the data set of arrays that hold one step per row, one episode after another.

        If the last row ends no episode, its episode counts as truncated there.

        Args:
            observations: See :class:`Dataset`.
            actions: See :class:`Dataset`.
            rewards: See :class:`Dataset`. A row has the reward that its action led to.
            terminals: Where episodes ended by the rules of the task, bools ``[S]``.
            timeouts: Where a time limit or another cause outside the task ended episodes, bools ``[S]``, or None if
                every end is terminal.
            next_observations: What followed each step, ``[S, ...]``. Without it, the last step of each truncated
                episode is dropped, because the value of what followed it counts. A log line says how many. For a
                terminated episode this value is 0, so its last observation is repeated instead.
            observation_space: None for the unbounded Box of observations that are floats.
            action_space: None for the unbounded Box of actions that are floats.
            env: See :class:`Dataset`.
            where: See :class:`Dataset`.

        Raises:
            ValueError: As for :class:`Dataset`; also if ``timeouts`` or a space is missing, or if
                ``next_observations`` are not the observations of the next rows.
        """
        num_steps = _num_steps(where, rewards)
        terminal_rows = as_flags(where, "terminals", terminals, num_steps)
        timeout_rows = np.zeros(num_steps, bool)
        if isinstance(timeouts, str):
            remedy = "Did a time limit end episodes? Then what followed their last steps has a value that counts."
            raise misfit(where, "timeouts", "a bool per step, or None if every end is terminal", "nothing", remedy)
        if timeouts is not None:
            timeout_rows = as_flags(where, "timeouts", timeouts, num_steps)
            if timeout_rows.any() and (timeout_rows == terminal_rows).all():
                remedy = "Pass as terminals only what the rules of the task ended."
                raise misfit(where, "timeouts", "other rows than terminals", "the same", remedy)
        is_end = terminal_rows | timeout_rows
        is_end[-1] = True
        ends = np.flatnonzero(is_end)
        offsets = np.append(0, ends + 1)
        terminated = terminal_rows[ends]

        rows = Rows(where, offsets)
        observation_space = space_for(where, "observations", observation_space, observations)
        action_space = space_for(where, "actions", action_space, actions)
        observations = fitted(observation_space, observations, rows, "observations")
        following = observations
        if next_observations is not None:
            following = fitted(observation_space, next_observations, rows, "next_observations")
            _check_order(observation_space, observations, following, rows)
        # All rows first, so that errors name the caller's rows.
        whole = cls(
            observations,
            entry_of(following, ends),
            actions,
            rewards,
            offsets,
            terminated,
            timeout_rows[ends] | ~terminated,
            observation_space=observation_space,
            action_space=action_space,
            env=env,
            where=where,
        )
        if next_observations is not None or terminated.all():
            return whole
        keep = np.ones(num_steps, bool)
        keep[ends[~terminated]] = False
        logger.warning(
            f"{where}: dropped the last step of {np.count_nonzero(~keep):,} truncated episodes, because what "
            "followed it is unknown. Pass next_observations to keep it."
        )
        if not keep.any():
            remedy = "Pass next_observations."
            raise misfit(where, "observations", "an episode of two steps or more", "none", remedy)
        # The observation of a step that is dropped is the final one of the episode that is left.
        return whole._with(keep)

    @classmethod
    def from_episodes(
        cls,
        episodes: Iterable[Episode],
        *,
        observation_space: Space,
        action_space: Space,
        env: str | None = None,
        where: str = "Dataset.from_episodes()",
    ) -> Dataset:
        """Return the data set of ``episodes``, whose actions are those of the env. An episode without an end counts as
        truncated. Additional columns are left out.

        Raises:
            ValueError: As for :class:`Dataset`; also if an episode has no steps.
        """
        episodes = [*episodes]
        spaces = {Columns.OBS: observation_space, Columns.ACTIONS: action_space}
        expected = {name: map_spaces(lambda leaf: leaf.shape, space) for name, space in spaces.items()}
        # Episodes are compared one by one before they are joined, so that an error names the one that differs.
        for index, episode in enumerate(episodes):
            if not len(episode):
                raise misfit(where, f"episode {index}", "at least one step", "none", "Leave it out.")
            for name, shapes in expected.items():
                got = map_leaves(lambda x: x.shape[1:], episode.get_columns(name))
                if got != shapes:
                    remedy = f"Give arrays in the structure and shapes of {spaces[name]}."
                    raise misfit(where, f"{name}, episode {index}", f"entries of shape {shapes}", got, remedy)
        if not episodes:
            raise misfit(where, "episodes", "at least one", "none", "Record some first.")
        terminated = np.array([episode.terminated for episode in episodes])
        return cls(
            concatenated(episode.get_observations(slice(-1)) for episode in episodes),
            concatenated(episode.get_observations(slice(-1, None)) for episode in episodes),
            concatenated(episode.get_actions() for episode in episodes),
            concatenated(episode.get_rewards() for episode in episodes),
            np.cumsum([0, *map(len, episodes)]),
            terminated,
            ~terminated | [episode.truncated for episode in episodes],
            observation_space=observation_space,
            action_space=action_space,
            env=env,
            where=where,
        )

    @classmethod
    def load(cls, path: StrPath) -> Dataset:
        """Return the data set in a folder that :meth:`save` or Minari wrote. Loading runs no code of the folder.

        Raises:
            FileNotFoundError: If ``path`` has no data set.
            ValueError: If the folder is damaged, or its content is no data set.
        """
        if minari.data_folder(path) is not None:
            return cls.from_minari(path)
        where = f"Dataset.load({str(path)!r})"
        return cls(**dataset_files.read(where, path), where=where)

    @classmethod
    def from_minari(cls, path: StrPath) -> Dataset:
        """Return the data set in a folder of Minari, or in the folder of an id in Minari's own store, such as
        ``"D4RL/pen/human-v2"``. Needs h5py, and not Minari.

        Raises:
            FileNotFoundError: If ``path`` is neither.
            ImportError: If h5py is not installed.
            ValueError: If a file is damaged, or its content is no data set.
        """
        where = f"Dataset.from_minari({str(path)!r})"
        return cls.from_episodes(**minari.read(where, path), where=where)

    @classmethod
    def from_hdf5(cls, path: StrPath, *, timeouts: Literal["ask"] | None = "ask", **spaces: Any) -> Dataset:
        """Return the data set in an HDF5 file with one array per column, as D4RL has them.

        Args:
            path: The file. Its arrays ``observations``, ``actions``, ``rewards``, ``terminals``, ``timeouts`` and
                ``next_observations`` (may be missing) are those of :meth:`from_arrays`. A nested column is a group.
            timeouts: None if the file has no ``timeouts`` and every end is terminal.
            **spaces: ``observation_space``, ``action_space`` and ``env`` of :meth:`from_arrays`.

        Raises:
            ImportError: If h5py is not installed.
            OSError: If the file cannot be read.
            ValueError: As for :meth:`from_arrays`; also if a column is missing.
        """
        where = f"Dataset.from_hdf5({str(path)!r})"
        columns = {"timeouts": timeouts, **hdf5.read(where, path), **spaces}
        return cls.from_arrays(**columns, where=where)

    @classmethod
    def from_table(cls, path: StrPath, columns: Mapping[str, Any], **spaces: Any) -> Dataset:
        """Return the data set in a table with one row per step, ``.csv`` or ``.parquet``.

        Args:
            path: The file.
            columns: Columns of the table by argument of :meth:`from_arrays`: the name of one column, a list of names
                for the numbers of a vector, or a dict or tuple of these for a nested space. ``"timeouts"`` may be None.
            **spaces: ``observation_space``, ``action_space`` and ``env`` of :meth:`from_arrays`.

        Raises:
            ImportError: If pyarrow is not installed.
            OSError: If the file cannot be read.
            ValueError: As for :meth:`from_arrays`; also if a column is missing.
        """
        where = f"Dataset.from_table({str(path)!r})"
        return cls.from_arrays(**dataset_files.read_table(where, path, columns), **spaces, where=where)

    def save(self, path: StrPath) -> Path:
        """Write the data set as the folder ``path``, in place of an earlier one, and return the absolute path.

        Raises:
            FileExistsError: If ``path`` exists and is not a data set.
            OSError: If the folder cannot be written; an earlier one is then unchanged.
            TypeError: If a space is of a class that files cannot hold.
        """
        return dataset_files.write(self, path)

    def to_minari(self, path: StrPath, dataset_id: str | None = None) -> Path:
        """Write the data set as the new folder ``path`` of Minari, and return the absolute path. Needs h5py.

        ``minari.load_dataset(dataset_id)`` finds it if ``path`` is the folder ``dataset_id`` of Minari's own store. Its
        ``recover_environment()`` works if :attr:`env` is registered.

        Args:
            path: The folder, new or empty.
            dataset_id: Id in Minari, ``"[namespace/]name-v0"``; None for the name of the folder.

        Raises:
            FileExistsError: If ``path`` is not new or empty.
            ImportError: If h5py is not installed.
            ValueError: If the id has another form.
        """
        return minari.write(self, path, dataset_id)

    @property
    def num_steps(self) -> int:
        """Number ``S`` of steps."""
        return len(self.rewards)

    @property
    def num_episodes(self) -> int:
        """Number ``E`` of episodes."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Number of steps of each episode, int64 ``[E]``."""
        return np.diff(self.offsets)

    @property
    def returns(self) -> np.ndarray:
        """Sum of the rewards of each episode, float64 ``[E]``."""
        return np.add.reduceat(self.rewards, self.offsets[:-1], dtype=np.float64)

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of all that learning depends on: the arrays and the spaces."""
        found = hashlib.sha256(json.dumps([encode(self.observation_space), encode(self.action_space)]).encode())
        for name, array in self.arrays().items():
            found.update(f"{name} {array.dtype} {array.shape}".encode())
            found.update(array.reshape(-1).view(np.uint8).data)
        return found.hexdigest()

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all arrays, contiguous, by name. The leaves of a tree are numbered in the order of its space."""
        named: dict[str, np.ndarray] = {}
        for name in ("rewards", "offsets", "terminated", "truncated"):
            named[name] = getattr(self, name)
        for name in ("observations", "final_observations", "actions"):
            space = self.action_space if name == "actions" else self.observation_space
            for index, leaf in enumerate(leaves_of(space, getattr(self, name))):
                named[f"{name}/{index}"] = leaf
        return map_leaves(np.ascontiguousarray, named)

    def episodes(self) -> Iterator[Episode]:
        """Yield each episode, with its number as its id. Observations are copies, other columns are views."""
        for index, (begin, end) in enumerate(itertools.pairwise(self.offsets)):
            steps = slice(begin, end)
            last = entry_of(self.final_observations, slice(index, index + 1))
            yield Episode(
                concatenated([entry_of(self.observations, steps), last]),
                entry_of(self.actions, steps),
                self.rewards[steps],
                terminated=self.terminated[index],
                truncated=self.truncated[index],
                id=str(index),
            )

    def filter(self, keeps: Callable[[Episode], bool]) -> Dataset:
        """Return the data set of the episodes for which ``keeps(episode)`` is True.

        Raises:
            ValueError: If none is left.
        """
        return self._with_episodes(np.array([bool(keeps(episode)) for episode in self.episodes()]))

    def best(self, share: float = 0.1) -> Dataset:
        """Return the data set of the episodes with the highest returns, ``share`` of all episodes, rounded up.

        Raises:
            ValueError: If ``share`` is not in (0, 1].
        """
        if not 0 < share <= 1:
            raise misfit("Dataset.best()", "share", "a number in (0, 1]", share, "Pass 0.1 for the best tenth.")
        num = math.ceil(share * self.num_episodes * (1 - 1e-12))  # 0.07 * 100 is slightly more than 7
        keep = np.zeros(self.num_episodes, bool)
        keep[np.argsort(-self.returns, kind="stable")[:num]] = True
        return self._with_episodes(keep)

    def _with_episodes(self, keep: np.ndarray) -> Dataset:
        """Return the data set of the episodes that ``keep`` ``[E]`` marks."""
        if not keep.any():
            raise misfit("Dataset.filter()", "episodes", "at least one that is kept", "none", "Look at describe().")
        return self._with(np.repeat(keep, self.lengths))

    def _with(self, keep: np.ndarray) -> Dataset:
        """Return the data set of the steps that ``keep`` ``[S]`` marks, and the final observations and ends of the
        episodes that have such steps."""
        lengths = np.add.reduceat(keep, self.offsets[:-1], dtype=np.int64)
        episodes = lengths > 0
        return Dataset(
            entry_of(self.observations, keep),
            entry_of(self.final_observations, episodes),
            entry_of(self.actions, keep),
            self.rewards[keep],
            np.append(0, np.cumsum(lengths[episodes])),
            self.terminated[episodes],
            self.truncated[episodes],
            observation_space=self.observation_space,
            action_space=self.action_space,
            env=self.env,
        )

    def with_spaces(self, observation_space: Space, action_space: Space) -> Dataset:
        """Return the same steps as members of other spaces, such as those of the env to act in.

        Raises:
            ValueError: If a step does not fit them.
        """
        names = ("observations", "final_observations", "actions", "rewards", "offsets", "terminated", "truncated")
        columns: dict[str, Any] = {name: vars(self)[name] for name in names}
        columns |= {"observation_space": observation_space, "action_space": action_space}
        return Dataset(**columns, env=self.env, where="Dataset.with_spaces()")

    def describe(self, picture: StrPath | None = None) -> str:
        """Return a few lines about the data set, and draw how its returns and lengths are spread.

        Args:
            picture: File to draw to, ``.png``, ``.pdf`` or ``.svg``; None for no picture.
        """
        ended = f"{np.count_nonzero(self.terminated):,} terminated"
        lines = [
            f"{self.env or 'unknown env'}: {self.num_steps:,} steps in {self.num_episodes:,} episodes, {ended}",
            f"observations: {short_space(self.observation_space)}",
            f"actions: {short_space(self.action_space)}",
        ]
        spread = {"return": self.returns, "length": self.lengths}
        for name, values in spread.items():
            least, middle, most = np.quantile(values, (0, 0.5, 1))
            lines.append(f"{name}: mean {values.mean():,.2f}, from {least:,g} to {most:,g}, median {middle:,g}")
        if picture is not None:
            from matplotlib.figure import Figure  # not pyplot, which would set the backend of the user's figures

            figure = Figure((8, 3), layout="constrained")
            for axes, (name, values) in zip(figure.subplots(1, 2), spread.items(), strict=True):
                axes.hist(values, bins=40, color="#0072B2")
                axes.set(xlabel=f"episode {name}", ylabel="episodes")
            figure.suptitle(lines[0])
            figure.savefig(picture)
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Dataset({self.env}, {self.num_steps} steps, {self.num_episodes} episodes)"


def _num_steps(where: str, rewards: ArrayLike) -> int:
    """Return the number of rewards, with which all other columns must agree."""
    array = as_array(where, "rewards", rewards)
    if not array.size:
        raise misfit(where, "rewards", "at least one step", "none", "Record some first.")
    return len(array) if array.ndim else 1


def _check_order(space: Space, observations: Tree, following: Tree, rows: Rows) -> None:
    """Raise ValueError with the first row within an episode that is not followed by its next observation."""
    within = np.ones(rows.num, bool)
    within[rows.offsets[1:] - 1] = False
    for before, after in zip(leaves_of(space, observations), leaves_of(space, following), strict=True):
        differs = (after[:-1] != before[1:]).any(axis=tuple(range(1, before.ndim))) & within[:-1]
        if differs.any():
            row = int(np.argmax(differs))
            remedy = "Put the rows in order of time, and mark every end of an episode."
            raise rows.wrong("next_observations", row, "the observation of the next row", "another one", remedy)
