"""Settings and rollouts that do not fit a replay buffer are refused, and it stays as it was."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from algorithms.replay import ReplayBuffer
from rlmodule import Columns, Rollout
from tests.algorithms.replay.streams import Stream

BOX = spaces.Box(-1, 1, (4, 3), np.float32)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 0}, r"ReplayBuffer\(capacity\): expected finite int, >= 1, got 0"),
        ({"capacity": 1e6}, r"ReplayBuffer\(capacity\): expected int, >= 1, got 1000000.0"),
        ({"num_envs": True}, r"ReplayBuffer\(num_envs\)"),
        ({"gamma": 1.5}, r"ReplayBuffer\(gamma\): expected finite float, >= 0 and <= 1, got 1.5"),
        ({"gamma": float("nan")}, r"ReplayBuffer\(gamma\)"),
        ({"n_step": 0}, r"ReplayBuffer\(n_step\): expected finite int \| tuple\[int, int\], >= 1, got 0"),
        ({"n_step": (3, 2)}, r"ReplayBuffer\(n_step\): expected .* a pair in ascending order, got \(3, 2\)"),
        ({"n_step": (1, 2, 3)}, r"ReplayBuffer\(n_step\)"),
        ({"n_step": (1, 2.0)}, r"ReplayBuffer\(n_step\)"),
        ({"n_step": 6}, r"expected at most 5 steps, as many as the buffer holds of each env, .*got 6"),
        ({"frame_stack_axis": 2}, r"frame_stack_axis: expected an axis of the shape \(4, 3\), got 2"),
        ({"frame_stack_axis": -3}, r"frame_stack_axis: expected an axis"),
        ({"frame_stack_axis": True}, r"frame_stack_axis: expected an axis"),
        ({"frame_stack_axis": {"rgb": 0}}, r"frame_stack_axis\['rgb'\]: expected one of the paths \[''\]"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"capacity": 10, "num_envs": 2, "gamma": 0.9, "seed": np.random.SeedSequence(0)}
    with pytest.raises((ValueError, TypeError), match=message):
        ReplayBuffer(BOX, spaces.Discrete(2), **(arguments | settings))


def test_paths_of_frame_stacks_are_checked() -> None:
    space = spaces.Dict(camera=spaces.Dict(rgb=BOX), goal=spaces.Discrete(3))
    arguments: dict[str, Any] = {"capacity": 10, "num_envs": 2, "gamma": 0.9, "seed": np.random.SeedSequence(0)}
    with pytest.raises(ValueError, match=r"'camera.rgb', 'goal'\], got 'camera.rbg'.*Did you mean 'camera.rgb'"):
        ReplayBuffer(space, spaces.Discrete(2), frame_stack_axis={"camera.rbg": 0}, **arguments)
    with pytest.raises(ValueError, match=r"frame_stack_axis\['goal'\]: expected an axis of the shape \(\), got 0"):
        ReplayBuffer(space, spaces.Discrete(2), frame_stack_axis={"goal": 0}, **arguments)
    with pytest.raises(ValueError, match="frame_stack_axis: expected one of the paths"):
        ReplayBuffer(space, spaces.Discrete(2), frame_stack_axis=0, **arguments)


def make(stream: Stream, **settings: Any) -> ReplayBuffer:
    arguments: dict[str, Any] = {"capacity": 40, "num_envs": 2, "gamma": 0.9, "seed": np.random.SeedSequence(0)}
    return ReplayBuffer(stream.space, stream.action_space, **(arguments | settings))


def with_column(rollout: Rollout, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Rollout:
    return dataclasses.replace(rollout, columns=rollout.columns | {name: change(rollout[name])})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda r: with_column(r, "obs", lambda x: x[..., :1]),
            r"Rollout\['obs'\]: expected float32 shaped \(6, 2, 3\)",
        ),
        (lambda r: with_column(r, "obs", lambda x: x.to(torch.complex64)), r"Rollout\['obs'\].*got complex64"),
        (lambda r: with_column(r, "obs", lambda x: {"x": x}), r"Rollout\['obs'\]: expected a tree of"),
        (lambda r: with_column(r, "actions", lambda x: x.float()), r"Rollout\['actions'\]: expected int64"),
        (
            lambda r: dataclasses.replace(r, last_obs=r.last_obs[:1]),
            r"Rollout.last_obs: expected float32 shaped \(2, 3\)",
        ),
        (lambda r: dataclasses.replace(r, final_obs=r.final_obs[1:]), r"Rollout.final_obs: expected"),
        (
            lambda r: dataclasses.replace(r, final_index=r.final_index[1:], final_obs=r.final_obs[1:]),
            r"Rollout.final_index: expected the row and slot of each of the \d+ truncated steps, got \d+ rows",
        ),
        (
            lambda r: dataclasses.replace(r, columns={n: c for n, c in r.columns.items() if n != "starts"}),
            "expected the column 'starts'",
        ),
    ],
)
def test_rollouts_that_do_not_fit(change: Callable[[Rollout], Rollout], message: str) -> None:
    stream = Stream(2, 2)
    buffer = make(stream)
    buffer.add(stream.rollout(6))
    rollout = stream.rollout(6)
    assert len(rollout.final_index)
    before = [
        array.copy() for array in (buffer.sampleable, buffer.ring.flags, buffer.ring.rewards, buffer.ring.written)
    ]
    with pytest.raises(ValueError, match=message):
        buffer.add(change(rollout))
    after = (buffer.sampleable, buffer.ring.flags, buffer.ring.rewards, buffer.ring.written)
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


def test_envs_that_do_not_fit() -> None:
    stream = Stream(2, 2)
    buffer = make(stream, num_envs=3)
    with pytest.raises(ValueError, match="expected envs 0 to 2, got envs 2 to 3"):
        buffer.add(stream.rollout(1), first_slot=2)


@pytest.mark.parametrize(("steps", "frames"), [(21, 1), (80, 1), (23, 3)])
def test_rollouts_with_as_many_rows_as_the_ring_are_refused(steps: int, frames: int) -> None:
    stream = Stream(2, 2, frames=frames, axis=0 if frames > 1 else None)
    buffer = make(stream, frame_stack_axis=0 if frames > 1 else None)
    buffer.add(stream.rollout(3))
    with pytest.raises(ValueError, match=f"at most {buffer.rows - 1} rows, got {steps} rows. Add it in parts"):
        buffer.add(stream.rollout(steps))
    assert (buffer.num_transitions, buffer.ring.written.tolist()) == (6, [3, 3])


def test_final_observations_of_steps_that_were_not_truncated_are_refused() -> None:
    stream = Stream(2, 2)
    stream.rollout(6)
    rollout = stream.rollout(6)
    assert len(rollout.final_index)
    rollout = with_column(rollout, "truncateds", torch.zeros_like)
    with pytest.raises(ValueError, match=r"each of the 0 truncated steps, got \d+ rows"):
        make(stream).add(rollout)


@pytest.mark.parametrize(("size", "steps"), [(0, 4), (-1, 4), (1, 0)])
def test_too_few_transitions(size: int, steps: int) -> None:
    stream = Stream(2, 2)
    buffer = make(stream)
    if steps:
        buffer.add(stream.rollout(steps))
    text = rf"at least one transition to draw from, got {size}, and {2 * steps} to draw from \({2 * steps} steps are"
    with pytest.raises(ValueError, match=text):
        buffer.sample(size)


def test_observations_that_are_no_stacks_are_told() -> None:
    stream = Stream(2, 2, frames=3, axis=0)
    buffer = make(stream, frame_stack_axis=1)
    with pytest.raises(ValueError, match="frame_stack_axis: expected observations that stack frames along axis 1"):
        buffer.add(stream.rollout(6))
    newest_first = stream.rollout(6)
    newest_first.columns[Columns.OBS] = newest_first.columns[Columns.OBS].flip(2)
    with pytest.raises(ValueError, match="oldest first, got frames that did not move on by one at row 0 of env 0"):
        make(stream, frame_stack_axis=0).add(newest_first)


def test_only_the_first_rows_are_checked_to_be_stacks() -> None:
    stream = Stream(2, 1, frames=2, axis=0)
    buffer = make(stream, num_envs=1, frame_stack_axis=0)
    for _ in range(99):
        buffer.add(stream.rollout(1))
    rollout = stream.rollout(3)
    rollout.columns[Columns.OBS][2] = 77
    buffer.add(rollout)
    other = make(stream, num_envs=1, frame_stack_axis=0)
    with pytest.raises(ValueError, match="frame_stack_axis"):
        other.add(rollout)
