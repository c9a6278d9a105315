"""The replaying loop we measure ourselves against must itself be right."""

from collections import deque
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

from algorithms.dqn.learner import DQNLearner
from benchmarks.bare_dqn import Ring, choose, collect, loss, mlp, train, update
from benchmarks.jobs import DQN_JOBS, DQNJob
from benchmarks.ours_dqn import config

JOB = DQN_JOBS["dqn"]
SHORT = replace(JOB, num_envs=2, batch_size=16, capacity=64, learning_starts=16, warm_up=32, target_update_freq=20)


def linear(*weights: float) -> nn.Linear:
    """A net of one input, whose outputs are that times the weights."""
    net = nn.Linear(1, len(weights), bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor(weights)[:, None])
    return net


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers)[:, None]


def test_loss_by_hand() -> None:
    job = replace(JOB, gamma=0.5)
    online, target = linear(1.0, 2.0), linear(10.0, -10.0)
    batch = column(1.0, 3.0), torch.tensor([0, 1]), torch.tensor([2.0, 5.5]), column(2.0, 100.0), torch.tensor([0.0, 1])
    # Row 0: the online net prefers action 1 at 2, which the target net values -20: an aim of 2 - 10 = -8, 9 below 1.
    # Row 1 terminated: an aim of 5.5, half below 6.
    assert loss(job, online, target, batch).item() == pytest.approx((8.5 + 0.125) / 2)


def test_only_the_online_net_gets_gradients() -> None:
    online, target = mlp(4, 2), mlp(4, 2)
    batch = torch.randn(8, 4), torch.ones(8, dtype=torch.long), torch.ones(8), torch.randn(8, 4), torch.zeros(8)
    loss(JOB, online, target, batch).backward()
    assert all(parameter.grad is not None for parameter in online.parameters())
    assert all(parameter.grad is None for parameter in target.parameters())


def test_the_ring_overwrites_the_oldest() -> None:
    ring, rng = Ring(4, 1), np.random.default_rng(0)
    for number in range(0, 6, 2):
        here = np.array([number, number + 1.0])
        ring.add(here[:, None], here, 10 * here, here[:, None] + 1, here == 3)
        obs, actions, rewards, next_obs, terminated = ring.sample(200, rng)
        assert set(actions.tolist()) == set(range(max(0, number - 2), number + 2))
        assert torch.equal(obs[:, 0], actions.float())
        assert torch.equal(rewards, 10 * obs[:, 0])
        assert torch.equal(next_obs, obs + 1)
        assert torch.equal(terminated, (actions == 3).float())


def test_epsilon_is_the_share_of_random_actions() -> None:
    rng, obs = np.random.default_rng(0), np.ones((1000, 1), np.float32)
    net = linear(0.0, 1.0, 0.5, -1.0)
    assert set(choose(net, obs, 0.0, 4, rng)) == {1}
    counts = np.bincount(choose(net, obs, 0.4, 4, rng), minlength=4)
    assert counts[1] == pytest.approx(700, abs=60)
    assert np.delete(counts, 1) == pytest.approx(100, abs=40)


def test_the_true_final_observation_is_kept_and_truncation_ends_nothing() -> None:
    make = [lambda: gym.make("CartPole-v1", max_episode_steps=3)] * 2
    env, alone = SyncVectorEnv(make, autoreset_mode=AutoresetMode.SAME_STEP), make[0]()
    obs, ring, late = env.reset(seed=[5, 6])[0], Ring(20, 4), deque[float]()
    seen = [alone.reset(seed=5)[0]]
    running = np.zeros(2)
    for t in range(4):
        obs = collect(env, obs, np.array([t % 2, 0]), ring, running, late)
        if t < 3:
            seen.append(alone.step(t % 2)[0])
    env.close()
    obs, _, _, next_obs, terminated = (part[:8:2].numpy() for part in ring.columns)
    np.testing.assert_array_equal(obs[:3], seen[:3])
    np.testing.assert_array_equal(next_obs[:3], seen[1:])
    assert not np.array_equal(obs[3], seen[3])  # an episode of its own
    assert not terminated.any()
    assert list(late) == [3.0, 3.0]
    assert list(running) == [1.0, 1.0]


def test_ours_comes_to_the_same_weights_from_the_same_batch() -> None:
    job: DQNJob = replace(JOB, grad_clip=0.05)
    rng = np.random.default_rng(0)
    ring = Ring(job.batch_size, 4)
    ring.add(
        rng.standard_normal((job.batch_size, 4)),
        rng.integers(0, 2, job.batch_size),
        rng.standard_normal(job.batch_size),
        rng.standard_normal((job.batch_size, 4)),
        rng.random(job.batch_size) < 0.2,
    )
    obs, actions, rewards, next_obs, terminated = ring.columns
    batch = {"obs": obs, "actions": actions, "rewards": rewards, "next_obs": next_obs}
    online, target = mlp(4, 2), mlp(4, 2)
    with config(job, seed=0).build() as algorithm:
        learner = algorithm.learner_group.learner
        assert isinstance(learner, DQNLearner)
        mine = list(algorithm.get_module().parameters())
        with torch.no_grad():
            for net in (learner.target["default_policy"], algorithm.get_module()):
                for parameter in net.parameters():
                    parameter.add_(0.1 * torch.randn(parameter.shape))  # so that the two nets differ
            for here, there in ((mine, online), (learner.target["default_policy"].parameters(), target)):
                for ours, theirs in zip(here, there.parameters(), strict=True):
                    theirs.copy_(ours)
        params: list[Tensor] = [*online.parameters()]
        optimizer = torch.optim.Adam(params, lr=job.lr, eps=learner.optimizers["default_policy"].defaults["eps"])
        before = torch.cat([part.detach().flatten() for part in params])
        for _ in range(3):
            update(job, online, target, optimizer, params, ring.columns)
            learner.step_on_batch(batch | {"discounts": job.gamma * (1 - terminated)}, env_steps=0)
        after = torch.cat([part.detach().flatten() for part in params])
        moved = torch.cat([part.detach().flatten() for part in mine])
    assert (after - before).abs().max() > job.lr
    torch.testing.assert_close(moved, after, rtol=0, atol=1e-6)


def test_a_few_timed_steps() -> None:
    result = train(SHORT, 200, seed=0)
    assert result["steps_per_s"] > 0
    assert 5 < result["late_return"] < 64


def test_same_seed_same_data() -> None:
    first, again, other = (train(SHORT, 100, seed)["late_return"] for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.slow
def test_it_learns() -> None:
    assert train(JOB, 50_000, seed=0)["late_return"] > 100
