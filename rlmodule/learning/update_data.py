"""The data of an update, and checks on the data that users pass to it. Every error names a remedy."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tree
from torch import Tensor

from rlmodule.data.columns import Batch, Columns
from rlmodule.data.episode import Episode
from rlmodule.data.rollout import Rollout
from rlmodule.learning.sharding import Share
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID

_NAMES = {name for attribute, name in vars(Columns).items() if attribute.isupper()}


ModuleData = Rollout | Sequence[Episode] | None
"""The data of one module in an update. None means no data."""


@dataclass(frozen=True)
class TrainData:
    """What one module is trained on in an update of an :class:`EpisodeLearner`.

    Attributes:
        batch: The train batch of this learner.
        share: This learner's share of the rows of all learners; None if it trains alone.
        num_epochs: Number of passes over the batch.
        minibatch_size: Number of rows in a minibatch of all learners; None takes all rows.
        reported: Numbers to report, by name.
    """

    batch: Batch
    share: Share | None
    num_epochs: int
    minibatch_size: int | None
    reported: dict[str, float]


def num_steps_in(data: ModuleData | Mapping[str, ModuleData]) -> int:
    """Return the number of steps in a rollout, in a sequence of episodes, or in a dict of either by module id. Invalid
    rows of a rollout do not count."""
    if isinstance(data, Mapping):
        return sum(map(num_steps_in, data.values()))
    return data.num_env_steps if isinstance(data, Rollout) else sum(map(len, data or ()))


def check_episodes(data: Any, where: str, module_id: str = DEFAULT_MODULE_ID) -> None:
    """Check that ``data`` is a rollout, a sequence of episodes, None, or a dict of these by module id.

    Raises:
        TypeError: If ``data`` is anything else. The message begins with ``where`` and names a remedy.
        ValueError: If ``data`` is a dict and ``module_id`` is not the default.
    """
    if isinstance(data, Mapping) and module_id != DEFAULT_MODULE_ID:
        ids = ", ".join(map(repr, data))
        raise ValueError(
            f"{where}: expected ids in one place, got data of {ids} and module_id={module_id!r}. Leave it out."
        )
    if data is None or isinstance(data, Rollout):
        return
    if isinstance(data, Sequence) and all(isinstance(episode, Episode) for episode in data):
        return
    if isinstance(data, Mapping) and all(one is None or isinstance(one, Rollout | Sequence) for one in data.values()):
        for module_id, one in data.items():
            check_episodes(one, f"{where}, module {module_id!r}")
        return
    got, remedy = type(data).__name__, "Pass what algo.sample() returns, or a list of episodes."
    if isinstance(data, Mapping):
        got = f"a dict with {', '.join(map(repr, data)) or 'nothing'}"
        remedy = (
            "Pass the data of several modules by their ids; pass rows that are ready to train on to the "
            "update_from_batch() of a BatchLearner."
        )
    elif isinstance(data, Sequence):
        kinds = dict.fromkeys(type(item).__name__ for item in data)
        got = f"a {type(data).__name__} of {', '.join(kinds)}"
        if "Rollout" in kinds:
            remedy = "Put rollouts side by side: Rollout.concat([...])."
    raise TypeError(f"{where}: expected a Rollout or a list of episodes, got {got}. {remedy}")


def check_counts(counts: Mapping[str, int | None], where: str) -> None:
    """Raise ValueError, which begins with ``where``, unless all ``counts`` by name are at least 1 or None."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{where}: expected {name} of at least 1, got {count}. Leave it out to use the setting.")


def check_batch(batch: Any, where: str) -> None:
    """Check that ``batch`` is None or a dict of columns, which are trees of tensors with equal numbers of rows.

    Raises:
        TypeError: If ``batch`` is anything else. The message begins with ``where`` and names a remedy.
        ValueError: If columns have different numbers of rows.
    """
    if batch is None:
        return
    if not isinstance(batch, Mapping):
        got, remedy = type(batch).__name__, "Pass {'obs': tensor, ...}."
        if isinstance(batch, Rollout):
            remedy = "Pass its rows: rollout.valid_rows(rollout.columns)."
        raise TypeError(f"{where}: expected a dict of columns [B, ...], got {got}. {remedy}")
    for name, column in batch.items():
        for leaf in tree.flatten(column):
            if not isinstance(leaf, Tensor):
                raise TypeError(
                    f"{where}: expected columns of tensors, got {type(leaf).__name__} in {name!r}. "
                    "Convert it: torch.as_tensor(array)."
                )
    rows = [(name, leaf.shape[:1]) for name, column in batch.items() for leaf in tree.flatten(column)]
    if Columns.STATE_IN not in batch and len({shape for _, shape in rows}) > 1:  # states have no time dim
        got = ", ".join(f"{name} {tuple(shape)}" for name, shape in rows)
        raise ValueError(f"{where}: expected columns of equal length, got {got}. Give each one entry per row.")


def check_preprocessed(rollout: Any, known: Collection[str], learner: str) -> list[str]:
    """Check the result of the method ``preprocess_train_data`` of the class named ``learner``. Return the names of the
    columns that it added to the ``known`` columns.

    Raises:
        TypeError: If ``rollout``, the result, is not a rollout.
        ValueError: If an added column is not a tree of tensors ``[T, N, ...]``.
    """
    where = f"{learner}.preprocess_train_data()"
    if not isinstance(rollout, Rollout):
        raise TypeError(
            f"{where}: expected a Rollout, got {type(rollout).__name__}. Return the rollout, "
            "unchanged or changed by dataclasses.replace()."
        )
    added = [name for name in rollout.columns if name not in known]
    for name in added:
        for leaf in tree.flatten(rollout[name]):
            if not isinstance(leaf, Tensor) or leaf.shape[:2] != rollout.shape:
                expected = f"a tensor shaped {rollout.shape} or {(*rollout.shape, '...')} in the new column {name!r}"
                got = f"shape {tuple(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__
                raise ValueError(f"{where}: expected {expected}, got {got}. Add one entry for each step of each env.")
    return added


def explain_missing_column(error: KeyError, where: str, columns: Collection[str]) -> None:
    """If ``error`` was caused by a name in :class:`Columns` that is missing from ``columns``, raise a KeyError that
    explains it. Otherwise do nothing, so that the caller raises ``error`` again. ``where`` begins the message."""
    name = error.args[0] if len(error.args) == 1 else None
    if name in _NAMES and name not in columns:
        raise KeyError(
            f"{where}: expected the column {name!r}, which the learner reads, got "
            f"{', '.join(columns)}. Add it to the data."
        ) from error


def warn_of_update(owner: type, right: str) -> None:
    """Warn that ``owner.update()`` is deprecated and that the method ``right`` replaces it."""
    warnings.warn(f"{owner.__name__}.update() is deprecated: call {right}().", DeprecationWarning, stacklevel=3)
