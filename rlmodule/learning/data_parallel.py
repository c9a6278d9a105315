"""DataParallel: lets several learners, each with part of the data, step as one would with all of it."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from catalog.base import Tree
from catalog.encoders.preprocessing import RunningMoments
from rlmodule.collective import Collective
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout
from rlmodule.data.sequences import num_rows
from rlmodule.learning.compilation import GradientPass
from rlmodule.learning.flat_optimizer import FlatParameters
from rlmodule.learning.reports import ROWS, Metrics, merge_parts, part_of
from rlmodule.learning.sharding import Share, nothing_like
from rlmodule.modules.apis import EpsilonGreedyAPI


class DataParallel:
    """Several learners, as one of them sees it: its part of what they do together, in the order of an update.

    Override points: none.

    Args:
        collective: The learners.
    """

    def __init__(self, collective: Collective) -> None:
        self._collective = collective
        self._own_buffers: dict[str, list[Tensor]] = {}
        self._slots = 0, 0

    def register(self, module_id: str, module: nn.Module) -> None:
        """Have the running moments of a module taken over the rows of all, and know its other buffers."""
        alike = _set_by_who_samples(module)
        for moments in _moments_of(module):
            moments.pool = self._collective.all_reduce
            alike |= {id(buffer) for buffer in moments.buffers()}
        kept = module.state_dict()
        self._own_buffers[module_id] = [x for n, x in module.named_buffers() if n in kept and id(x) not in alike]

    def gradient(
        self, compute: GradientPass, parameters: FlatParameters, batch: dict[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        """Loss and gradient of the mean over the rows of all, and what ``compute`` reports of those in ``batch``.

        Without rows this learner only takes part in the all-reduce.
        """
        parameters.zero_grad()
        rows, loss, metrics = num_rows(batch) if batch else 0, parameters.grad.new_zeros(()), Metrics()
        if rows:
            loss, metrics = compute(batch)
        loss = parameters.pool(self._collective, loss.detach(), rows)
        return loss, metrics | {ROWS: torch.tensor(float(rows))}

    def forget(self, module_id: str) -> None:
        """Let go of a module."""
        del self._own_buffers[module_id]

    def leave(self, modules: nn.Module) -> None:
        """Let the running moments of all modules be those of one learner again."""
        for moments in _moments_of(modules):
            moments.pool = None

    def take_part(
        self, rollout: Rollout | None, generator: torch.Generator, num_updates: int, env_steps: int
    ) -> Rollout | None:
        """Find out where the slots of the data stand among those of all. None if nobody has data; if others have, one
        without gets a row of theirs, not valid, and so takes part in all that is done together.

        Raises:
            RuntimeError: If the learners do not stand at the same place.
        """
        here = (0, 0) if rollout is None else (rollout.shape[1], rollout.first_env_index)
        state = (zlib.crc32(generator.get_state().numpy().tobytes()), num_updates, env_steps)
        told = self._each(torch.tensor([*here, *state]))
        _check_alike(told[:, 2:])
        num_slots, firsts = told[:, 0].tolist(), told[:, 1].tolist()
        mine = firsts[self._collective.rank], self._collective.rank
        before = sum(n for rank, n in enumerate(num_slots) if (firsts[rank], rank) < mine)
        self._slots = before, sum(num_slots)
        if all(num_slots) or not any(num_slots):
            return rollout
        giver = int(told[:, 0].argmax())
        row = vars(nothing_like(rollout)) if rollout is not None and self._collective.rank == giver else None
        given = self._collective.all_gather_object(row)[giver]
        return Rollout(**given) if rollout is None else rollout

    def number(self, rollout: Rollout) -> Rollout:
        """The rollout with a column of the place of each row among those of all, by time and then by slot."""
        (steps, slots), (first, total) = rollout.shape, self._slots
        places = torch.arange(steps)[:, None] * total + first + torch.arange(slots)
        column = {Columns.ORDER: places.to(rollout.valid.device)}
        return dataclasses.replace(rollout, columns=rollout.columns | column)

    def share_of(self, batch: dict[str, Tree]) -> Share:
        """Which rows or sequences of all are in the train batch, which loses the column that told."""
        in_sequences = Columns.STATE_IN in batch
        length, count = batch[Columns.STARTS].shape if in_sequences else (1, num_rows(batch))
        keys = batch.pop(Columns.ORDER, None)
        if keys is None:  # a batch that was not made by pack()
            keys = torch.arange(count)
        return Share(keys[0] if keys.dim() > 1 else keys, length, self._collective)

    def join_metrics(self, history: Sequence[Metrics], extra: frozenset[str]) -> tuple[Metrics, frozenset[str]]:
        """The metrics of several minibatches as one, those of all learners. ``extra`` are names of some that only those
        who had rows have heard of."""
        parts = self._collective.all_gather_object(part_of(history) | {"extra": sorted(extra)})
        scalars, per_row = merge_parts(parts)
        metrics = scalars | {name: torch.cat(values) for name, values in per_row.items()}
        return metrics, extra.union(*(part["extra"] for part in parts))

    def any(self, flag: bool) -> bool:
        """Whether it is so for any learner."""
        return bool(self._collective.all_reduce(torch.tensor([float(flag)])) > 0)

    def average_buffers(self, module_id: str, rows: int) -> None:
        """Make the buffers of a module what they are on average of all learners, weighted by rows, and whole numbers
        the largest: those of the nets' own running statistics come to differ."""
        floats, others = list[Tensor](), list[Tensor]()
        for buffer in self._own_buffers[module_id]:
            (floats if buffer.is_floating_point() else others).append(buffer)
        if floats:
            here = torch.cat([buffer.double().flatten() for buffer in floats])
            here = torch.cat([here * rows if rows else torch.zeros_like(here), here.new_full((1,), rows)])
            # exact where all are equal: a product of float32 and a whole number, in float64, is
            total = self._collective.all_reduce(here)
            _scatter(total[:-1] / total[-1], floats)
        if others:
            here = torch.cat([buffer.to(torch.int64).flatten() for buffer in others])
            _scatter(self._each(here).amax(0), others)

    def _each(self, row: Tensor) -> Tensor:
        """The ``row`` ``[n]`` of whole numbers of each learner, ``[size, n]``: all are of one length, which ``gather``
        would ask for first, and wait for."""
        table = row.new_zeros(self._collective.size, len(row))
        table[self._collective.rank] = row
        return self._collective.all_reduce(table)


class OwnNoise:
    """torch's global generators on numbers that differ from learner to learner within ``with`` blocks.

    Args:
        stream: Sets the generators to where all learners stand; goes on alike.
        collective: The learners.
    """

    def __init__(self, stream: AbstractContextManager[None], collective: Collective) -> None:
        self._stream, self._collective = stream, collective

    def __enter__(self) -> None:
        self._stream.__enter__()
        *seeds, self._following = torch.randint(2**62, (self._collective.size + 1,)).tolist()
        torch.manual_seed(seeds[self._collective.rank])

    def __exit__(self, *exc_info: Any) -> None:
        torch.manual_seed(self._following)
        self._stream.__exit__(*exc_info)


def no_data(got: str = "None") -> ValueError:
    """The error of an update for which nobody has data."""
    return ValueError(f"an update: expected data for at least one learner, got {got}. Leave out updates without data.")


def _moments_of(module: nn.Module) -> Iterator[RunningMoments]:
    return (part for part in module.modules() if isinstance(part, RunningMoments))


def _set_by_who_samples(module: nn.Module) -> set[int]:
    """Those of the buffers that say how much to explore: learners leave them alone, and they stay alike."""
    if not isinstance(module, EpsilonGreedyAPI):
        return set()
    before = [(buffer, buffer.clone(), buffer._version) for buffer in module.buffers()]
    module.set_epsilon(0.0)
    filled = [(buffer, value) for buffer, value, version in before if buffer._version != version]
    for buffer, value in filled:
        buffer.copy_(value)
    return {id(buffer) for buffer, _ in filled}


def _check_alike(states: Tensor) -> None:
    """Whether all learners stand where the first does: ``[size, (random numbers, updates, env steps)]``."""
    names = ("the random numbers of `generator`", "num_updates", "env_steps")
    for rank, differs in enumerate((states != states[0]).tolist()):
        if any(differs):
            raise RuntimeError(
                "an update together: expected learners that stand at the same place, got learner "
                f"{rank} differs from learner 0 in {names[differs.index(True)]}. Give all the same "
                "state, and draw from `generator` in what all of them run."
            )


def _scatter(values: Tensor, buffers: Sequence[Tensor]) -> None:
    """Copy ``values`` into ``buffers``, one after the other."""
    for buffer, part in zip(buffers, values.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(part.view_as(buffer))
