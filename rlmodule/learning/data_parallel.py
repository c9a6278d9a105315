"""Data parallelism: several learners, each with a share of the data, take the gradient steps that one learner would
take with all the data."""

import dataclasses
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from catalog.encoders.preprocessing import RunningMoments
from rlmodule.collective import Collective
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import Rollout
from rlmodule.data.sequences import num_rows
from rlmodule.learning.compilation import GradientPass
from rlmodule.learning.flat_optimizer import FlatParameters
from rlmodule.learning.reports import ROWS, Metrics, merge_parts, part_of
from rlmodule.learning.sharding import Share, nothing_like
from rlmodule.modules.apis import ExplorationAPI
from rlmodule.modules.rl_module import MultiRLModule

# A number greater than the index of any env, so that `time · _MOST_ENVS + env` orders rows by time first.
_MOST_ENVS = 2**32


class DataParallel:
    """Keeps the weights and buffers of one learner equal to those of the other learners during an update.

    An update calls :meth:`sync_rollout`, :meth:`number`, :meth:`share_of`, :meth:`gradient` (once per gradient step),
    :meth:`join_metrics` and :meth:`average_buffers`, in this order.

    Override points: none.

    Args:
        collective: The learners that train together.
        modules: The modules of this learner; all learners have the same modules.
    """

    def __init__(self, collective: Collective, modules: MultiRLModule) -> None:
        self._collective = collective
        self.pool_moments(modules)

    def pool_moments(self, modules: nn.Module) -> None:
        """Make all ``modules`` compute their running moments over the rows of all learners from now on."""
        for moments in _moments_of(modules):
            moments.pool = self._collective.all_reduce

    def gradient(self, compute: GradientPass, parameters: FlatParameters, batch: Batch) -> tuple[Tensor, Metrics]:
        """Store the gradient of the mean loss over the rows of all learners in ``parameters``. Return that loss, and
        the metrics of the rows in ``batch``, which are this learner's. If ``batch`` has no rows, do not call
        ``compute``, but take part in the all-reduce."""
        parameters.zero_grad()
        rows, loss, metrics = num_rows(batch) if batch else 0, parameters.grad.new_zeros(()), Metrics()
        if rows:
            loss, metrics = compute(batch)
        loss = parameters.pool(self._collective, loss.detach(), rows)
        return loss, metrics | {ROWS: torch.tensor(float(rows))}

    def leave(self, modules: nn.Module) -> None:
        """Make all ``modules`` compute their running moments over the rows of this learner alone from now on."""
        for moments in _moments_of(modules):
            moments.pool = None

    def sync_rollout(
        self, rollout: Rollout | None, generator: torch.Generator, num_updates: int, env_steps: int
    ) -> Rollout | None:
        """Give learners without data one row, so that they can take part in all collective operations.

        Returns:
            ``rollout`` if this learner has data. Otherwise a rollout of one row of another learner, marked invalid, or
            None if no learner has data.

        Raises:
            RuntimeError: If ``generator``, ``num_updates`` or ``env_steps`` differ between learners.
        """
        here = 0 if rollout is None else rollout.shape[1]
        state = (zlib.crc32(generator.get_state().numpy().tobytes()), num_updates, env_steps)
        everywhere = self._each(torch.tensor([here, *state]))
        names = ("the random numbers of `generator`", "num_updates", "env_steps")
        for rank, differs in enumerate((everywhere != everywhere[0])[:, 1:].tolist()):
            if any(differs):
                raise RuntimeError(
                    f"an update of several learners: expected the same state on all, but learner {rank} differs "
                    f"from learner 0 in {names[differs.index(True)]}. Give all of them the same state, and draw "
                    "from `generator` only in code that all of them run."
                )
        num_slots = everywhere[:, 0].tolist()
        if all(num_slots) or not any(num_slots):
            return rollout
        giver = num_slots.index(max(num_slots))
        row: dict[str, Any] | None = None
        if rollout is not None and self._collective.rank == giver:
            row = dict(vars(nothing_like(rollout)))
            del row["views"]  # the other learner makes its own
        given = self._collective.all_gather_object(row)[giver]
        return Rollout(**given) if rollout is None else rollout

    def number(self, rollout: Rollout) -> Rollout:
        """Return ``rollout`` with the column ``order``, which defines the order of the rows of all learners: by time,
        and then by the index of the rollout's first env. Rows with equal entries are ordered by learner and then by
        slot."""
        times = torch.arange(rollout.shape[0], device=rollout.valid.device)[:, None]
        order = times.expand(rollout.shape) * _MOST_ENVS + rollout.first_env_index
        return dataclasses.replace(rollout, columns=rollout.columns | {Columns.ORDER: order})

    def share_of(self, batch: Batch) -> Share:
        """Return the :class:`Share` that describes which of the rows or sequences of all learners are in ``batch``.
        Remove the column that :meth:`number` added from ``batch``."""
        in_sequences = Columns.STATE_IN in batch
        length, count = batch[Columns.STARTS].shape if in_sequences else (1, num_rows(batch))
        keys = batch.pop(Columns.ORDER, None)
        if keys is None:  # the batch was not made by pack()
            keys = torch.arange(count)
        return Share(keys[0] if keys.dim() > 1 else keys, length, self._collective)

    def join_metrics(self, history: Sequence[Metrics], extra: frozenset[str]) -> tuple[Metrics, frozenset[str]]:
        """Join the metrics of several minibatches and of all learners.

        Args:
            history: The metrics of each minibatch, over the rows of this learner.
            extra: Names of the metrics that the module's own losses report. A learner that has had no rows does not
                know them yet.

        Returns:
            The joined metrics, and the union of ``extra`` over all learners.
        """
        parts = self._collective.all_gather_object(part_of(history) | {"extra": sorted(extra)})
        scalars, per_row = merge_parts(parts)
        metrics = scalars | {name: torch.cat(values) for name, values in per_row.items()}
        return metrics, extra.union(*(part["extra"] for part in parts))

    def average_buffers(self, module: nn.Module, rows: int) -> None:
        """Replace the floating-point buffers of ``module`` with their average over all learners, weighted by ``rows``,
        this learner's number of rows. Replace other buffers with their maximum. Leave out buffers that are not saved,
        those for exploration, and running moments, which are computed over the rows of all learners.

        Without this, statistics that the nets update themselves, such as those of batch norm, would differ between
        learners.
        """
        floats, others = list[Tensor](), list[Tensor]()
        saved = module.state_dict().keys()
        equal = module.exploration_buffers if isinstance(module, ExplorationAPI) else ()
        pooled = {id(buffer) for moments in _moments_of(module) for buffer in moments.buffers()}
        for name, buffer in module.named_buffers():
            if name in saved and name not in equal and id(buffer) not in pooled:
                (floats if buffer.is_floating_point() else others).append(buffer)
        if floats:
            here = torch.cat([buffer.double().flatten() for buffer in floats])
            here = torch.cat([here * rows if rows else torch.zeros_like(here), here.new_full((1,), rows)])
            # equal buffers stay as they are, to the last bit: float64 holds a float32 times an integer exactly
            total = self._collective.all_reduce(here)
            _scatter(total[:-1] / total[-1], floats)
        if others:
            here = torch.cat([buffer.to(torch.int64).flatten() for buffer in others])
            _scatter(self._each(here).amax(0), others)

    def _each(self, row: Tensor) -> Tensor:
        """Gather the integers ``row`` ``[n]`` of all learners, and return them in order of rank as ``[size, n]``."""
        # cheaper than all_gather, which first exchanges the lengths; here they are equal
        table = row.new_zeros(self._collective.size, len(row))
        table[self._collective.rank] = row
        return self._collective.all_reduce(table)


def no_data(got: str = "None") -> ValueError:
    """Return the error to raise in an update for which no learner has data. ``got`` describes what was passed
    instead."""
    return ValueError(f"an update: expected data for at least one learner, got {got}. Leave out updates without data.")


def _moments_of(module: nn.Module) -> Iterator[RunningMoments]:
    return (part for part in module.modules() if isinstance(part, RunningMoments))


def _scatter(values: Tensor, buffers: Sequence[Tensor]) -> None:
    """Copy consecutive parts of the 1-D tensor ``values`` into ``buffers``, in order."""
    for buffer, part in zip(buffers, values.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(part.view_as(buffer))
