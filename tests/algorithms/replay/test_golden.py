"""A state of replay that an earlier version wrote: it loads, and the next batches are those of that version."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tree

from algorithms.replay import PrioritizedReplay, ReplayBuffer, SequenceReplay
from rlmodule import Columns, Rollout
from rlmodule.checkpoint import load_checkpoint
from tests.algorithms.replay.streams import Stream
from tests.algorithms.replay.test_sequences import STATE, with_numbered_states

GOLDEN = Path(__file__).parents[1] / "golden" / "replay-2"
LENGTH, STEPS, NUM_ENVS = 3, 4, 2
KINDS: dict[str, dict[str, Any]] = {
    "rows": {"n_step": (1, 3)},
    "prioritized_rows": {"prioritized": PrioritizedReplay()},
    "sequences": {"sequences": SequenceReplay(length=LENGTH, burn_in=2, initial_state=STATE), "n_step": 2},
    "prioritized_sequences": {
        "sequences": SequenceReplay(length=LENGTH, initial_state=STATE),
        "prioritized": PrioritizedReplay(alpha=1.0),
    },
}


def stream() -> Stream:
    return Stream(4, NUM_ENVS, mode="next_step", frames=3, axis=0)


def rollouts() -> Iterator[Rollout]:
    """Rollouts of 4 steps with stacked frames, ends of every kind, restarts and recurrent states."""
    source = stream()
    for number in itertools.count():
        yield with_numbered_states(source.rollout(STEPS, 0.1), number * STEPS, LENGTH)


def buffer_of(kind: str) -> ReplayBuffer:
    """An empty buffer, which the 20 rollouts before the state was saved fill three times."""
    space, settings = stream(), KINDS[kind]
    return ReplayBuffer(
        space.space,
        space.action_space,
        capacity=50,
        num_envs=NUM_ENVS,
        gamma=0.5,
        frame_stack_axis=0,
        seed=np.random.default_rng(0),
        **settings,
    )


def go_on(buffer: ReplayBuffer, coming: Iterator[Rollout]) -> list[dict[str, Any]]:
    """The next batches, between which rollouts are added and priorities change."""
    batches = []
    for _ in range(3):
        sample = buffer.sample(6, beta=0.5)
        batches.append({**sample.batch, "indices": torch.from_numpy(sample.indices)})
        rewards = sample.batch[Columns.REWARDS].flatten()
        buffer.update_priorities(sample, rewards[sample.batch.get(Columns.VALID_ROWS, slice(None))])
        buffer.add(next(coming))
    return batches


@pytest.mark.parametrize("kind", KINDS)
def test_a_golden_state_loads_and_the_next_batches_are_the_same(kind: str) -> None:
    """If this fails, raise the format and write a converter: there are checkpoints like this one on disks."""
    saved = load_checkpoint(GOLDEN)[kind]
    coming = itertools.islice(rollouts(), 20, None)
    buffer = buffer_of(kind)
    buffer.set_state(saved["state"])
    for got, expected in zip(go_on(buffer, coming), saved["next"], strict=True):
        columns = dict(tree.flatten_with_path(got))
        for path, column in tree.flatten_with_path(expected):
            torch.testing.assert_close(columns.pop(path), column, rtol=1e-6, atol=0, msg=str(path))
        assert not columns
