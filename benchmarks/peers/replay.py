"""Replay buffers side by side: how fast transitions of CartPole's spaces go in, and how fast batches of 256 come out.

    /path/to/python -m benchmarks.peers.replay sb3 adding    # or uniform, prioritized; of that peer's environment

Every buffer holds 100,000 transitions of 8 envs. Transitions go in as each library's own loop hands them over: vector
step by vector step to Stable-Baselines3, Tianshou and the bare ring; 16 steps of all envs at once to ours, TorchRL and
RLlib (there as parts of episodes). Batches come out as tensors, those of RLlib as arrays. With priorities a batch is
drawn by them and given new ones. Stable-Baselines3 has none.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

NUM_ENVS, CAPACITY, BATCH, FRAGMENT = 8, 100_000, 256, 16
STEPS = 256  # vector steps in one pass of adding
EPISODE = 64  # steps of each; one of ten is truncated
ALPHA, BETA, GAMMA = 0.6, 0.4, 0.99
SECONDS = 3.0  # of measuring
OBSERVATIONS = spaces.Box(-np.inf, np.inf, (4,), np.float32)
ACTIONS = spaces.Discrete(2)


@dataclass(frozen=True)
class Buffer:
    """A buffer of one library.

    Attributes:
        chunks: `STEPS` vector steps as it takes them.
        add: Takes one of these.
        draw: Draws a batch, and gives it new priorities if there are any.
    """

    chunks: Callable[[], list[Any]]
    add: Callable[[Any], object]
    draw: Callable[[], object]


@dataclass(frozen=True)
class Steps:
    """Vector steps `[T, N, ...]`, with true final observations in `next_obs`."""

    obs: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    next_obs: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    @classmethod
    def some(cls) -> "Steps":
        """Numbers from nowhere, in episodes of `EPISODE` steps, which end for each env at another time."""
        rng, rows = np.random.default_rng(0), (STEPS, NUM_ENVS)
        ended = (np.arange(STEPS)[:, None] + np.arange(NUM_ENVS) * EPISODE // NUM_ENVS) % EPISODE == EPISODE - 1
        truncated = ended & (rng.random(rows) < 0.1)
        obs = rng.standard_normal((STEPS + 1, NUM_ENVS, 4), np.float32)
        after = np.where(truncated[..., None], 0.0, obs[1:]).astype(np.float32)
        actions, rewards = rng.integers(0, 2, rows), rng.standard_normal(rows, np.float32)
        return cls(obs[:-1], actions, rewards, after, ended & ~truncated, truncated)

    def parts(self, length: int) -> "Iterator[Steps]":
        """The same in pieces."""
        for begin in range(0, STEPS, length):
            yield Steps(*(column[begin : begin + length] for column in vars(self).values()))


def td_errors() -> np.ndarray:
    """As they might come from a net."""
    return np.abs(np.random.default_rng(1).standard_normal(BATCH).astype(np.float32)) + 1e-3


def ours(prioritized: bool) -> Buffer:
    """`algorithms.replay.ReplayBuffer`."""
    from algorithms.replay import PrioritizedReplay, ReplayBuffer
    from rlmodule import Rollout

    priorities = PrioritizedReplay(alpha=ALPHA) if prioritized else None
    buffer = ReplayBuffer(
        OBSERVATIONS,
        ACTIONS,
        capacity=CAPACITY,
        num_envs=NUM_ENVS,
        gamma=GAMMA,
        prioritized=priorities,
        seed=np.random.default_rng(0),
    )

    def rollout(part: Steps, starts: np.ndarray) -> Rollout:
        columns = {
            "obs": part.obs,
            "actions": part.actions,
            "rewards": part.rewards,
            "terminateds": part.terminated,
            "truncateds": part.truncated,
            "valid": np.ones(part.rewards.shape, bool),
            "starts": starts,
        }
        final = np.argwhere(part.truncated)
        return Rollout(
            columns={name: torch.from_numpy(np.ascontiguousarray(column)) for name, column in columns.items()},
            last_obs=torch.from_numpy(part.next_obs[-1].copy()),
            final_index=torch.from_numpy(final),
            final_obs=torch.from_numpy(part.next_obs[tuple(final.T)]),
        )

    def chunks() -> list[Rollout]:
        steps = Steps.some()
        starts = np.roll(steps.terminated | steps.truncated, 1, axis=0)
        firsts = (starts[begin : begin + FRAGMENT] for begin in range(0, STEPS, FRAGMENT))
        return [rollout(part, first) for part, first in zip(steps.parts(FRAGMENT), firsts, strict=True)]

    errors = td_errors()

    def draw() -> None:
        sample = buffer.sample(BATCH, beta=BETA)
        if prioritized:
            buffer.update_priorities(sample, errors)

    return Buffer(chunks, buffer.add, draw)


def bare(prioritized: bool) -> Buffer:
    """`benchmarks.bare_dqn.Ring`, which knows no priorities."""
    from benchmarks.bare_dqn import Ring

    assert not prioritized
    ring, rng = Ring(CAPACITY, 4), np.random.default_rng(0)

    def chunks() -> list[tuple[np.ndarray, ...]]:
        return [
            (one.obs[0], one.actions[0], one.rewards[0], one.next_obs[0], one.terminated[0])
            for one in Steps.some().parts(1)
        ]

    return Buffer(chunks, lambda chunk: ring.add(*chunk), lambda: ring.sample(BATCH, rng))


def sb3(prioritized: bool) -> Buffer:
    """`stable_baselines3.common.buffers.ReplayBuffer`."""
    assert not prioritized
    made = import_module("stable_baselines3.common.buffers").ReplayBuffer
    buffer = made(CAPACITY, OBSERVATIONS, ACTIONS, device="cpu", n_envs=NUM_ENVS)

    def chunks() -> list[tuple[Any, ...]]:
        reported = []
        for one in Steps.some().parts(1):
            infos = [{"TimeLimit.truncated": bool(cut)} for cut in one.truncated[0]]
            ended = one.terminated[0] | one.truncated[0]
            reported.append((one.obs[0], one.next_obs[0], one.actions[0], one.rewards[0], ended, infos))
        return reported

    return Buffer(chunks, lambda chunk: buffer.add(*chunk), lambda: buffer.sample(BATCH))


def tianshou(prioritized: bool) -> Buffer:
    """`tianshou.data.VectorReplayBuffer`."""
    data = import_module("tianshou.data")
    if prioritized:
        buffer = data.PrioritizedVectorReplayBuffer(CAPACITY, NUM_ENVS, alpha=ALPHA, beta=BETA)
    else:
        buffer = data.VectorReplayBuffer(CAPACITY, NUM_ENVS)

    def chunks() -> list[Any]:
        names = "obs", "act", "rew", "obs_next", "terminated", "truncated"
        return [
            data.Batch({name: column[0] for name, column in zip(names, vars(one).values(), strict=True)})
            for one in Steps.some().parts(1)
        ]

    errors = td_errors()

    def draw() -> None:
        batch, indices = buffer.sample(BATCH)
        data.to_torch(batch)
        if prioritized:
            buffer.update_weight(indices, errors)

    return Buffer(chunks, buffer.add, draw)


def torchrl(prioritized: bool) -> Buffer:
    """`torchrl.data.TensorDictReplayBuffer`."""
    data, tensordict = import_module("torchrl.data"), import_module("tensordict")
    storage = data.LazyTensorStorage(CAPACITY)
    if prioritized:
        made = data.TensorDictPrioritizedReplayBuffer
        buffer = made(alpha=ALPHA, beta=BETA, storage=storage, batch_size=BATCH, priority_key="td_error")
    else:
        buffer = data.TensorDictReplayBuffer(storage=storage, batch_size=BATCH)

    def chunks() -> list[Any]:
        return [
            tensordict.TensorDict(
                {name: torch.from_numpy(column.reshape(-1, *column.shape[2:])) for name, column in vars(part).items()},
                batch_size=[FRAGMENT * NUM_ENVS],
            )
            for part in Steps.some().parts(FRAGMENT)
        ]

    errors = torch.from_numpy(td_errors())

    def draw() -> None:
        batch = buffer.sample()
        if prioritized:
            batch["td_error"] = errors
            buffer.update_tensordict_priority(batch)

    return Buffer(chunks, buffer.extend, draw)


def rllib(prioritized: bool) -> Buffer:
    """`ray.rllib`'s buffers of episodes."""
    episodes = import_module("ray.rllib.env.single_agent_episode")
    if prioritized:
        made = import_module("ray.rllib.utils.replay_buffers.prioritized_episode_buffer")
        buffer = made.PrioritizedEpisodeReplayBuffer(capacity=CAPACITY, alpha=ALPHA)
    else:
        made = import_module("ray.rllib.utils.replay_buffers.episode_replay_buffer")
        buffer = made.EpisodeReplayBuffer(capacity=CAPACITY)

    def chunks() -> list[list[Any]]:
        reported = []
        for part in Steps.some().parts(FRAGMENT):
            # each part an episode of its own, which goes on nowhere
            reported.append(
                [
                    episodes.SingleAgentEpisode(
                        observations=[*part.obs[:, env], part.next_obs[-1, env]],
                        actions=[*part.actions[:, env]],
                        rewards=[*part.rewards[:, env].tolist()],
                        observation_space=OBSERVATIONS,
                        action_space=ACTIONS,
                        truncated=True,
                        len_lookback_buffer=0,
                    )
                    for env in range(NUM_ENVS)
                ]
            )
        return reported

    errors, more = td_errors(), {"beta": BETA} if prioritized else {}

    def draw() -> None:
        buffer.sample(num_items=BATCH, n_step=1, gamma=GAMMA, to_numpy=True, **more)
        if prioritized:
            buffer.update_priorities(errors)

    return Buffer(chunks, buffer.add, draw)


SIDES: dict[str, Callable[[bool], Buffer]] = {
    "ours": ours,
    "bare": bare,
    "sb3": sb3,
    "rllib": rllib,
    "tianshou": tianshou,
    "torchrl": torchrl,
}


def add_pass(buffer: Buffer) -> float:
    """Add `STEPS` vector steps; returns the seconds of adding alone."""
    chunks = buffer.chunks()
    started = time.perf_counter()
    for chunk in chunks:
        buffer.add(chunk)
    return time.perf_counter() - started


def measure(side: str, what: str) -> dict[str, float]:
    """`per_s`: transitions added or batches drawn per second."""
    buffer = SIDES[side](what == "prioritized")
    add_pass(buffer)  # as a warm-up
    units, took = 0, 0.0
    if what == "adding":
        while took < SECONDS:
            took += add_pass(buffer)
            units += STEPS * NUM_ENVS
        return {"per_s": round(units / took, 1)}
    for _ in range(-(-CAPACITY // (STEPS * NUM_ENVS))):
        add_pass(buffer)
    for _ in range(3):
        buffer.draw()
    started = time.perf_counter()
    while took < SECONDS:
        buffer.draw()
        units, took = units + 1, time.perf_counter() - started
    return {"per_s": round(units / took, 1)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("side", choices=list(SIDES))
    parser.add_argument("what", choices=["adding", "uniform", "prioritized"])
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps(measure(args.side, args.what)))
