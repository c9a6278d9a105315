"""What the replay buffer costs next to a bare ring of the same columns, and next to Stable-Baselines3's buffer.

    python -m benchmarks.replay adding    # or sampling, prioritized, training, memory

The bare ring (`benchmarks.bare_dqn.Ring`) stores both observations of every transition and knows nothing of episodes.
Stable-Baselines3's `ReplayBuffer` is measured only where that package can be imported; nothing here depends on it. All
sides hold the same transitions of CartPole's spaces and take turns in one process, on one CPU thread.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import cycle
from statistics import median
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from algorithms.dqn import DQN
from algorithms.replay import PrioritizedReplay, ReplayBuffer, replay_bytes
from benchmarks.bare_dqn import Ring
from benchmarks.catalog import in_turn
from benchmarks.jobs import DQN_JOBS
from benchmarks.ours_dqn import config
from rlmodule import DEFAULT_MODULE_ID, Rollout

NUM_ENVS = 8
CAPACITY = 100_000
BATCH = 256
GAMMA = 0.99
EPISODE = 50  # mean number of steps
STEPS = 256  # vector steps added, or batches sampled, per turn
FRAGMENT = 64  # vector steps of a longer rollout
OBSERVATIONS = spaces.Box(-np.inf, np.inf, (4,), np.float32)
ACTIONS = spaces.Discrete(2)
ATARI = spaces.Box(0, 255, (84, 84, 4), np.uint8)


def rollout(num_steps: int, seed: int) -> Rollout:
    """`num_steps` vector steps of episodes that terminate, or in one case of ten are truncated."""
    rng = np.random.default_rng(seed)
    rows = (num_steps, NUM_ENVS)
    ended = rng.random(rows) < 1 / EPISODE
    truncated = ended & (rng.random(rows) < 0.1)
    starts = np.roll(ended, 1, axis=0)  # so that the same steps may follow once more
    columns = {
        "obs": rng.standard_normal((*rows, 4), np.float32),
        "actions": rng.integers(0, 2, rows),
        "rewards": rng.standard_normal(rows, np.float32),
        "terminateds": ended & ~truncated,
        "truncateds": truncated,
        "valid": np.ones(rows, bool),
        "starts": starts,
    }
    final_index = torch.from_numpy(np.argwhere(truncated))
    return Rollout(
        columns={name: torch.from_numpy(column) for name, column in columns.items()},
        last_obs=torch.from_numpy(rng.standard_normal((NUM_ENVS, 4), np.float32)),
        final_index=final_index,
        final_obs=torch.zeros(len(final_index), 4),
    )


def rollouts(whole: Rollout, length: int) -> list[Rollout]:
    """The same as rollouts of `length` vector steps each."""
    parts = []
    obs = torch.cat([whole["obs"], whole.last_obs[None]])
    for begin in range(0, whole.shape[0], length):
        end = begin + length
        here = (begin <= whole.final_index[:, 0]) & (whole.final_index[:, 0] < end)
        parts.append(
            Rollout(
                columns={name: column[begin:end] for name, column in whole.columns.items()},
                last_obs=obs[end],
                final_index=whole.final_index[here] - torch.tensor([begin, 0]),
                final_obs=whole.final_obs[here],
            )
        )
    return parts


Arrays = tuple[np.ndarray, ...]
PlainStep = tuple[Arrays, np.ndarray, list[dict[str, bool]]]


def plain_steps(steps: list[Rollout]) -> list[PlainStep]:
    """Per vector step the columns of `bare_dqn.Ring`; and where an episode ended either way, and envs' `infos`."""
    plain = []
    for step in steps:
        after = step.last_obs.clone()
        after[step.final_index[:, 1]] = step.final_obs
        obs, actions, rewards, terminated, truncated = (
            step[name][0].numpy() for name in ("obs", "actions", "rewards", "terminateds", "truncateds")
        )
        infos = [{"TimeLimit.truncated": bool(cut)} for cut in truncated]
        plain.append(((obs, actions, rewards, after.numpy(), terminated), terminated | truncated, infos))
    return plain


def our_buffer(prioritized: PrioritizedReplay | None = None, capacity: int = CAPACITY) -> ReplayBuffer:
    """An empty buffer of ours."""
    return ReplayBuffer(
        OBSERVATIONS,
        ACTIONS,
        capacity=capacity,
        num_envs=NUM_ENVS,
        gamma=GAMMA,
        prioritized=prioritized,
        seed=np.random.default_rng(0),
    )


def other_buffer() -> Any:
    """An empty buffer of Stable-Baselines3, or None where that cannot be imported."""
    if find_spec("stable_baselines3") is None:
        return None
    made = import_module("stable_baselines3.common.buffers").ReplayBuffer
    return made(CAPACITY, OBSERVATIONS, ACTIONS, device="cpu", n_envs=NUM_ENVS)


def add_ours(buffer: ReplayBuffer, steps: list[Rollout]) -> None:
    """Add rollouts one by one."""
    for step in steps:
        buffer.add(step)


def add_bare(ring: Ring, steps: list[PlainStep]) -> None:
    """Add vector steps one by one."""
    for columns, _, _ in steps:
        ring.add(*columns)


def add_other(buffer: Any, steps: list[PlainStep]) -> None:
    """Add vector steps one by one."""
    for (obs, actions, rewards, after, _), ended, infos in steps:
        buffer.add(obs, after, actions, rewards, ended, infos)


def repeat(work: Callable[[], object]) -> None:
    """Do it `STEPS` times."""
    for _ in range(STEPS):
        work()


def rates(repeats: int, units: int, works: dict[str, Callable[[], None]]) -> dict[str, float]:
    """How many `units` a second each of `works` gets done, where one call does that many."""
    times = in_turn(2 + repeats, *works.values())
    return {name: round(units / median(seconds), 1) for name, seconds in zip(works, times, strict=True)}


def adding(repeats: int = 30) -> dict[str, float]:
    """Transitions added per second, one vector step at a time: `ours`, `bare`, and `sb3` where there is one; and
    `ours_rollouts`, of ours in rollouts of 64 vector steps, which the others cannot take."""
    steps = rollouts(rollout(STEPS, 0), 1)
    plain, other = plain_steps(steps), other_buffer()
    works = {
        "ours": partial(add_ours, our_buffer(), steps),
        "ours_rollouts": partial(add_ours, our_buffer(), rollouts(rollout(STEPS, 0), FRAGMENT)),
        "bare": partial(add_bare, Ring(CAPACITY, 4), plain),
    }
    if other is not None:
        works["sb3"] = partial(add_other, other, plain)
    return rates(repeats, STEPS * NUM_ENVS, works)


def filled(buffer: ReplayBuffer, num_transitions: int) -> ReplayBuffer:
    """`buffer`, with so many transitions added."""
    buffer.add(rollout(num_transitions // NUM_ENVS, 0))
    return buffer


def uniform_batches() -> dict[str, Callable[[], object]]:
    """What samples a batch uniformly from a full ring, and from another buffer where there is one."""
    steps = plain_steps(rollouts(rollout(CAPACITY // NUM_ENVS, 0), 1))
    ring, other = Ring(CAPACITY, 4), other_buffer()
    add_bare(ring, steps)
    works: dict[str, Callable[[], object]] = {"bare": partial(ring.sample, BATCH, np.random.default_rng(0))}
    if other is not None:
        add_other(other, steps)
        works["sb3"] = partial(other.sample, BATCH)
    return works


def sampling(repeats: int = 30) -> dict[str, float]:
    """Batches of 256 sampled per second, uniformly and with `n_step=1`: keys as in `adding`."""
    works = {"ours": partial(filled(our_buffer(), CAPACITY).sample, BATCH), **uniform_batches()}
    return rates(repeats, STEPS, {name: partial(repeat, work) for name, work in works.items()})


def prioritized(repeats: int = 30) -> dict[str, float]:
    """Prioritized batches of 256 per second, sampled and given new priorities, next to uniform ones of the others."""
    buffer = filled(our_buffer(PrioritizedReplay()), CAPACITY)
    td_errors = torch.randn(BATCH, generator=torch.Generator().manual_seed(0))

    def ours() -> None:
        buffer.update_priorities(buffer.sample(BATCH, beta=0.5), td_errors)

    repeat(ours)  # so that priorities differ
    works = {"ours": ours, **uniform_batches()}
    return rates(repeats, STEPS, {name: partial(repeat, work) for name, work in works.items()})


def training(repeats: int = 1000) -> dict[str, float]:
    """ms of one training step of DQN where a million transitions are remembered, `prioritized_ms` and `uniform_ms`: it
    adds a vector step, draws a batch, learns from it and gives it new priorities if there are any."""
    steps = rollouts(rollout(STEPS, 1), 1)

    def learn(algorithm: DQN, coming: Iterator[Rollout]) -> None:
        settings, replay = algorithm.config, algorithm.replay
        replay.add(next(coming))
        sample = replay.sample(settings.train_batch_size_per_learner, beta=0.4)
        learned = algorithm.learner_group.step_on_batch(sample.batch, env_steps=0)
        if settings.prioritized_replay:
            replay.update_priorities(sample, learned[DEFAULT_MODULE_ID]["td_error"])

    with ExitStack() as stack:
        works = []
        for is_prioritized in (True, False):
            settings = config(DQN_JOBS["dqn"], seed=0).replay(replay_capacity=10**6, prioritized_replay=is_prioritized)
            algorithm = stack.enter_context(settings.build())
            assert isinstance(algorithm, DQN)
            filled(algorithm.replay, 10**6)
            works.append(partial(learn, algorithm, cycle(steps)))
        times = in_turn(2 + repeats, *works)
    names = "prioritized_ms", "uniform_ms"
    return {name: round(median(seconds) * 1e3, 3) for name, seconds in zip(names, times, strict=True)}


def memory() -> dict[str, float]:
    """GB of a buffer for a million transitions of Atari, whose frame stacks are stored as frames."""
    size = replay_bytes(ATARI, spaces.Discrete(18), capacity=1_000_000, num_envs=NUM_ENVS, frame_stack_axis=-1)
    return {"atari_gb": round(size / 1e9, 3)}


MEASUREMENTS: dict[str, Callable[[], dict[str, float]]] = {
    "adding": adding,
    "sampling": sampling,
    "prioritized": prioritized,
    "training": training,
    "memory": memory,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=sorted(MEASUREMENTS))
    torch.set_num_threads(1)
    print(json.dumps(MEASUREMENTS[parser.parse_args().what]()))
