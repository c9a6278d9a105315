"""Class for recorded steps of episodes, from which algorithms learn without an env."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tree
from gymnasium import Space
from numpy.typing import ArrayLike

from catalog.base import Tree
from catalog.explain.explain import short_space
from rlmodule.data import dataset_files, minari
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
from rlmodule.data.episode import Episode
from rlmodule.data.rollout import map_leaves
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
    must allow the actions. Arrays that fit are not copied; do not change them later.

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
        self.offsets = as_offsets(where, offsets, _num_steps(where, rewards))
        steps = Rows(where, self.offsets)
        self.rewards: np.ndarray = fitted(REWARD_SPACE, rewards, steps, "rewards")
        self.terminated = as_flags(where, "terminated", terminated, self.num_episodes)
        self.truncated = as_flags(where, "truncated", truncated, self.num_episodes)
        episodes = steps._replace(are_steps=False)
        if (open_ends := np.flatnonzero(~(self.terminated | self.truncated))).size:
            remedy = "Call an episode truncated whose recording just stops."
            raise episodes.wrong("truncated", int(open_ends[0]), "True unless it is terminated", "False", remedy)
        self.observations = fitted(observation_space, observations, steps, "observations")
        self.final_observations = fitted(observation_space, final_observations, episodes, "final_observations")
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
                episode is dropped, because what followed it has a value that counts. A log line says how many. What
                followed the last step of a terminated episode has none: its last observation is repeated.
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

        # Whole columns are checked first, so that errors name the caller's rows.
        rows = Rows(where, offsets)
        observation_space = space_for(where, "observations", observation_space, observations)
        action_space = space_for(where, "actions", action_space, actions)
        observations = fitted(observation_space, observations, rows, "observations")
        actions = fitted(action_space, actions, rows, "actions")
        check_mask(observation_space, action_space, observations, actions, rows)
        rewards = fitted(REWARD_SPACE, rewards, rows, "rewards")

        keep = np.ones(num_steps, bool)
        following = observations
        if next_observations is not None:
            following = fitted(observation_space, next_observations, rows, "next_observations")
            _check_order(observation_space, observations, following, rows)
        elif not terminated.all():
            keep[ends[~terminated]] = False
            logger.warning(
                f"{where}: dropped the last step of {np.count_nonzero(~keep):,} truncated episodes, because what "
                "followed it is unknown. Pass next_observations to keep it."
            )
        lengths = np.add.reduceat(keep, offsets[:-1], dtype=np.int64)
        whole = lengths > 0
        if not whole.any():
            remedy = "Pass next_observations."
            raise misfit(where, "observations", "an episode of two steps or more", "none", remedy)
        return cls(
            map_leaves(lambda x: x[keep], observations),
            map_leaves(lambda x: x[ends[whole]], following),
            map_leaves(lambda x: x[keep], actions),
            rewards[keep],
            np.append(0, np.cumsum(lengths[whole])),
            terminated[whole],
            (timeout_rows[ends] | ~terminated)[whole],
            observation_space=observation_space,
            action_space=action_space,
            env=env,
            where=where,
        )

    @classmethod
    def from_episodes(
        cls,
        episodes: Sequence[Episode],
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
        for index, episode in enumerate(episodes):
            if not len(episode):
                raise misfit(where, f"episode {index}", "at least one step", "none", "Leave it out.")
        if not episodes:
            raise misfit(where, "episodes", "at least one", "none", "Pass episodes that env.step() has filled.")
        observations = [episode.get_observations() for episode in episodes]
        terminated = np.array([episode.terminated for episode in episodes], bool)
        return cls(
            tree.map_structure(lambda *parts: np.concatenate([part[:-1] for part in parts]), *observations),
            tree.map_structure(lambda *parts: np.stack([part[-1] for part in parts]), *observations),
            tree.map_structure(lambda *parts: np.concatenate(parts), *[episode.get_actions() for episode in episodes]),
            np.concatenate([episode.get_rewards() for episode in episodes]),
            np.cumsum([0, *map(len, episodes)]),
            terminated,
            ~terminated,
            observation_space=observation_space,
            action_space=action_space,
            env=env,
            where=where,
        )

    # --- files --------------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, path: StrPath) -> Dataset:
        """Read the data set in the folder ``path``: one that :meth:`save` wrote, or one of Minari.

        Raises:
            FileNotFoundError: If neither is there.
            ValueError: If a file is damaged, or the data do not fit their spaces.
        """
        if minari.is_minari(path):
            return cls.from_minari(path)
        where = f"Dataset.load({str(path)!r})"
        return cls(**dataset_files.read(where, path), where=where)

    def save(self, path: StrPath) -> Path:
        """Write the data set to the folder ``path``, and return its absolute path. A data set that is there already is
        replaced in one step.

        Raises:
            FileExistsError: If something else is there.
            OSError: If the folder cannot be written.
        """
        return dataset_files.write(f"Dataset.save({str(path)!r})", path, self._fields())

    @classmethod
    def from_minari(cls, path: StrPath) -> Dataset:
        """Read a data set of Minari: its folder, such as ``~/.minari/datasets/D4RL/pen/human-v2``.

        Raises:
            FileNotFoundError: If no such data set is there.
            ImportError: If the package ``h5py`` is missing.
            ValueError: If a file is damaged, or the data do not fit their spaces.
        """
        where = f"Dataset.from_minari({str(path)!r})"
        return cls(**minari.read(where, path), where=where)

    def to_minari(self, path: StrPath, *, dataset_id: str) -> Path:
        """Write the data set to a new folder ``path``, as Minari does, and return the absolute path.

        ``minari.load_dataset(dataset_id)`` opens it if ``path`` is ``<MINARI_DATASETS_PATH>/<dataset_id>``.

        Args:
            path: The folder, which must not exist or be empty.
            dataset_id: Id of the data set, such as ``"cartpole/expert-v0"``.

        Raises:
            FileExistsError: If something is there.
            ImportError: If the package ``h5py`` is missing.
        """
        return minari.write(f"Dataset.to_minari({str(path)!r})", path, dataset_id, self._fields(), self.episodes())

    @classmethod
    def from_hdf5(
        cls,
        path: StrPath,
        *,
        timeouts: str | Literal["ask"] | None = "ask",
        observation_space: Space | None = None,
        action_space: Space | None = None,
        env: str | None = None,
    ) -> Dataset:
        """Read an HDF5 file with the arrays ``observations``, ``actions``, ``rewards`` and ``terminals`` of
        :meth:`from_arrays`, and ``next_observations`` if it has them, as those of D4RL.

        Args:
            path: The file.
            timeouts: Name of the array of time-outs, usually ``"timeouts"``, or None if every end is terminal.
            observation_space, action_space, env: See :meth:`from_arrays`.

        Raises:
            FileNotFoundError: If there is no such file.
            ImportError: If the package ``h5py`` is missing.
            ValueError: As for :meth:`from_arrays`; also if an array is missing or the file is damaged.
        """
        where = f"Dataset.from_hdf5({str(path)!r})"
        columns = dataset_files.read_hdf5(where, path, timeouts)
        spaces = {"observation_space": observation_space, "action_space": action_space}
        return cls.from_arrays(**columns, **spaces, env=env, where=where)

    @classmethod
    def from_table(
        cls,
        path: StrPath,
        columns: Mapping[str, str | Sequence[str] | None],
        *,
        observation_space: Space | None = None,
        action_space: Space | None = None,
        env: str | None = None,
    ) -> Dataset:
        """Read a CSV or Parquet file with one step per row, one episode after another.

        Args:
            path: The file, whose name ends in ``.csv`` or ``.parquet``.
            columns: Names of the file's columns: of ``observations`` and ``actions`` one name, or a list of names of
                numbers; of ``rewards`` and ``terminals`` one name; of ``timeouts`` one, or None if every end is
                terminal. ``next_observations`` may be left out. ``episodes`` may name a column that numbers the
                episodes: where its value changes, an episode that is not terminal has timed out.
            observation_space, action_space, env: See :meth:`from_arrays`.

        Raises:
            FileNotFoundError: If there is no such file.
            ImportError: If the package ``pyarrow`` is missing.
            ValueError: As for :meth:`from_arrays`; also if a column is missing, or the file is damaged.
        """
        where = f"Dataset.from_table({str(path)!r})"
        arrays = dataset_files.read_table(where, path, columns)
        spaces = {"observation_space": observation_space, "action_space": action_space}
        return cls.from_arrays(**arrays, **spaces, env=env, where=where)

    # --- parts --------------------------------------------------------------------------------------------------------

    @property
    def num_steps(self) -> int:
        return int(self.offsets[-1])

    @property
    def num_episodes(self) -> int:
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
        """SHA-256 of everything that learning depends on: steps, ends and spaces."""
        fields = self._fields()
        spaces = [encode(fields.pop(name)) for name in ("observation_space", "action_space")]
        fields.pop("env")
        result = hashlib.sha256(json.dumps(spaces).encode())
        for leaf in tree.flatten([fields[name] for name in sorted(fields)]):
            result.update(np.ascontiguousarray(leaf).data)
        return result.hexdigest()

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes. Their actions and rewards are views, and their actions are those of the env."""
        for index, (begin, end) in enumerate(itertools.pairwise(self.offsets.tolist())):
            observations = map_leaves(
                lambda steps, final, begin=begin, end=end, index=index: np.append(
                    steps[begin:end], final[index][None], axis=0
                ),
                self.observations,
                self.final_observations,
            )
            yield Episode(
                observations,
                map_leaves(lambda steps, begin=begin, end=end: steps[begin:end], self.actions),
                self.rewards[begin:end],
                terminated=self.terminated[index],
                truncated=self.truncated[index],
                id=str(index),
            )

    def filter(self, function: Callable[[Episode], bool]) -> Dataset:
        """Return the data set of the episodes for which ``function(episode)`` is true.

        Raises:
            ValueError: If it is true for none.
        """
        return self._of("Dataset.filter()", np.array([bool(function(episode)) for episode in self.episodes()]))

    def best(self, share: float = 0.1) -> Dataset:
        """Return the data set of the episodes with the greatest returns, a ``share`` of them, but at least one. They
        keep their order.

        Raises:
            ValueError: If ``share`` is not above 0 and at most 1.
        """
        if not 0 < share <= 1:
            raise misfit("Dataset.best()", "share", "a number above 0 and at most 1", share, "0.1 is usual.")
        keep = np.zeros(self.num_episodes, bool)
        keep[np.argsort(-self.returns, kind="stable")[: max(1, round(share * self.num_episodes))]] = True
        return self._of("Dataset.best()", keep)

    def _of(self, where: str, keep: np.ndarray) -> Dataset:
        """Return the data set of the episodes that ``keep`` ``[E]`` marks."""
        if not keep.any():
            raise misfit(where, "episodes", "at least one to keep", "none", "Look at describe().")
        steps = np.repeat(keep, self.lengths)
        return Dataset(
            map_leaves(lambda x: x[steps], self.observations),
            map_leaves(lambda x: x[keep], self.final_observations),
            map_leaves(lambda x: x[steps], self.actions),
            self.rewards[steps],
            np.append(0, np.cumsum(self.lengths[keep])),
            self.terminated[keep],
            self.truncated[keep],
            observation_space=self.observation_space,
            action_space=self.action_space,
            env=self.env,
            where=where,
        )

    def with_spaces(self, observation_space: Space, action_space: Space) -> Dataset:
        """Return the same steps as those of other spaces, such as those of the env to act in.

        Raises:
            ValueError: If a step does not fit them.
        """
        fields = self._fields() | {"observation_space": observation_space, "action_space": action_space}
        return Dataset(**fields, where="Dataset.with_spaces()")

    def describe(self, picture: StrPath | None = None) -> str:
        """Return a text about the steps, returns, lengths and ends of the episodes.

        Args:
            picture: Path of a picture to write, of the returns and lengths; None writes none.
        """
        returns, lengths = self.returns, self.lengths
        if picture is not None:
            dataset_files.draw(picture, returns, lengths)
        lines = [
            f"{self.num_steps:,} steps in {self.num_episodes:,} episodes" + (f" of {self.env}" if self.env else ""),
            f"  returns       {returns.min():g} to {returns.max():g}, mean {returns.mean():g}",
            f"  lengths       {lengths.min():,} to {lengths.max():,}, mean {lengths.mean():,.1f}",
            f"  ends          {self.terminated.sum():,} terminated, {(~self.terminated).sum():,} truncated",
            f"  observations  {short_space(self.observation_space)}",
            f"  actions       {short_space(self.action_space)}",
            f"  digest        {self.digest[:12]}",
        ]
        return "\n".join(lines)

    def _fields(self) -> dict[str, Any]:
        """Return the arguments of the constructor."""
        names = ("observations", "final_observations", "actions", "rewards", "offsets", "terminated", "truncated")
        return {name: vars(self)[name] for name in (*names, "observation_space", "action_space", "env")}

    def __repr__(self) -> str:
        return f"Dataset({self.num_steps:,} steps, {self.num_episodes:,} episodes, {self.digest[:12]})"


def _num_steps(where: str, rewards: ArrayLike) -> int:
    """Return the number of rewards, with which the lengths of all other columns must agree.

    Raises:
        ValueError: If there is none, or ``rewards`` have another number of dimensions than 1.
    """
    array = as_array(where, "rewards", rewards)
    if array.ndim != 1 or not len(array):
        raise misfit(where, "rewards", "shape [S], for one step or more", array.shape, "Give one number per step.")
    return len(array)


def _check_order(space: Space, observations: Tree, following: Tree, rows: Rows) -> None:
    """Raise ValueError with the first row, within an episode, whose next observation is not that of the next row."""
    differs = np.zeros(rows.num - 1, bool)
    for now, after in zip(leaves_of(space, observations), leaves_of(space, following), strict=True):
        differs |= (now[1:] != after[:-1]).reshape(rows.num - 1, -1).any(1)
    differs[rows.offsets[1:-1] - 1] = False
    if (wrong := np.flatnonzero(differs)).size:
        remedy = "Sort the rows by episode and step, and say where episodes end."
        expected = "the observation of the next row"
        raise rows.wrong("next_observations", int(wrong[0]), expected, "another", remedy)
