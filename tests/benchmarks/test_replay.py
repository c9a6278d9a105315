"""What the replay is measured against must hold the same transitions, and every measurement must run."""

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks import replay
from benchmarks.bare_dqn import Ring
from benchmarks.replay import (
    FRAGMENT,
    GAMMA,
    NUM_ENVS,
    add_bare,
    add_ours,
    adding,
    memory,
    our_buffer,
    plain_steps,
    prioritized,
    rollout,
    rollouts,
    sampling,
    training,
)


def distinct(*columns: Tensor) -> np.ndarray:
    """The different rows of all columns side by side."""
    return np.unique(torch.cat([column.double().flatten(1) for column in columns], 1).numpy(), axis=0)


def test_parts_are_the_whole() -> None:
    whole = rollout(96, 0)
    assert len(whole.final_index)
    parts = rollouts(whole, 24)
    for name, column in whole.columns.items():
        assert torch.equal(torch.cat([part[name] for part in parts]), column)
    assert torch.equal(parts[0].last_obs, parts[1]["obs"][0])
    assert torch.equal(parts[-1].last_obs, whole.last_obs)
    rows = torch.cat([part.final_index + torch.tensor([24 * i, 0]) for i, part in enumerate(parts)])
    assert torch.equal(rows, whole.final_index)


@pytest.mark.parametrize("length", [1, FRAGMENT])
def test_ours_and_the_bare_ring_hold_the_same_transitions(length: int) -> None:
    whole = rollout(2 * FRAGMENT, 0)
    buffer, ring, number = our_buffer(), Ring(1024, 4), 2 * FRAGMENT * NUM_ENVS
    add_ours(buffer, rollouts(whole, length))
    add_bare(ring, plain_steps(rollouts(whole, 1)))
    draws = [buffer.sample(number).batch for _ in range(20)]
    batch = {name: torch.cat([draw[name] for draw in draws]) for name in draws[0]}
    goes_on = batch["discounts"][:, None] / GAMMA  # what follows a terminated step is for nobody
    ours = distinct(
        batch["obs"], batch["actions"][:, None], batch["rewards"][:, None], batch["next_obs"] * goes_on, goes_on
    )
    obs, actions, rewards, next_obs, terminated = ring.sample(20 * number, np.random.default_rng(0))
    goes_on = 1 - terminated[:, None]
    bare = distinct(obs, actions[:, None], rewards[:, None], next_obs * goes_on, goes_on)
    assert len(ours) == len(bare) == number
    np.testing.assert_allclose(ours, bare, rtol=1e-6)


def test_every_measurement_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "CAPACITY", 4000)
    monkeypatch.setattr(replay, "STEPS", FRAGMENT)
    for measure, least in (
        (adding, {"ours", "ours_rollouts", "bare"}),
        (sampling, {"ours", "bare"}),
        (prioritized, {"ours", "bare"}),
    ):
        result = measure(repeats=1)
        assert least <= result.keys() <= least | {"sb3"}
        assert all(number > 0 for number in result.values())
    assert memory()["atari_gb"] <= 8.0


def test_training_steps_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "filled", lambda buffer, number, fill=replay.filled: fill(buffer, 4000))
    result = training(repeats=1)
    assert result.keys() == {"prioritized_ms", "uniform_ms"}
    assert all(number > 0 for number in result.values())
