"""The recurrent loop we measure ourselves against must itself be right."""

from collections import deque
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from benchmarks.bare_lstm import CELLS, Memory, Net, State, advantages_and_targets, collect, train, update
from benchmarks.bare_ppo import Finals
from benchmarks.jobs import JOBS, Job
from benchmarks.ours_ppo import config
from rlmodule import EpisodeLearner

SHORT = Job(
    "CartPole-v1",
    3,
    32,
    num_epochs=2,
    minibatch_size=16,
    lr=1e-3,
    entropy_coeff=0.01,
    vf_loss_coeff=5e-4,
    lambda_=0.0,
    seq_len=8,
)


def sampled(job: Job, max_steps: int) -> tuple[Net, Memory, Tensor, State, Finals, list[State]]:
    """A net and a batch of `job` with it, whose episodes are cut off after `max_steps`."""
    torch.manual_seed(0)
    env = SyncVectorEnv(
        [lambda: gym.make(job.env_id, max_episode_steps=max_steps)] * job.num_envs,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    net, store = Net(env), Memory(env, job)
    state = torch.randn(1, job.num_envs, CELLS), torch.randn(1, job.num_envs, CELLS)
    obs = torch.from_numpy(env.reset(seed=0)[0])
    result = collect(env, net, store, obs, state, np.zeros(job.num_envs), deque())
    env.close()
    return net, store, *result


def slowly(net: Net, store: Memory) -> tuple[Tensor, list[list[State]]]:
    """Latents `[T, N, CELLS]` and the states after each step, env by env and step by step."""
    steps, num_envs = store.rewards.shape
    latents, states = torch.zeros(steps, num_envs, CELLS), []
    for n in range(num_envs):
        state, after = (store.hidden[0, n][None, None], store.cell[0, n][None, None]), []
        for t in range(steps):
            latents[t, n], state = net.core(net.body(store.obs[t, n])[None, None], state)
            after.append(state)
            if store.terminated[t, n] or store.truncated[t, n]:
                state = torch.zeros(1, 1, CELLS), torch.zeros(1, 1, CELLS)
        states.append(after)
    return latents, states


@torch.no_grad()
def test_sequences_give_what_each_env_gives_by_itself() -> None:
    net, store, *_ = sampled(SHORT, max_steps=11)
    assert store.truncated.sum() + store.terminated.sum() > 0
    expected, _ = slowly(net, store)
    latents = net.unroll(store.fold(store.obs), store.fold(store.goes_on()), store.states())
    torch.testing.assert_close(latents, store.fold(expected), rtol=1e-4, atol=1e-6)
    logp, _ = net.actor.logp_entropy(net.actor.net(expected), store.actions)
    torch.testing.assert_close(store.logp, logp, rtol=1e-4, atol=1e-6)  # it acted on the same latents


def test_folding_and_back_keeps_every_row_in_place() -> None:
    _, store, *_ = sampled(SHORT, max_steps=11)
    numbers = torch.arange(32 * 3).view(32, 3)
    folded = store.fold(numbers)
    assert folded.shape == (8, 12)
    assert folded[:, 0].tolist() == numbers[:8, 0].tolist()  # one env's first sequence
    assert folded[:, 4].tolist() == numbers[8:16, 1].tolist()  # another's second
    assert torch.equal(store.unfold(folded), numbers)


@torch.no_grad()
def test_values_go_by_the_state_of_their_own_episode() -> None:
    net, store, obs, state, finals, final_states = sampled(SHORT, max_steps=11)
    assert finals
    latents, states = slowly(net, store)
    values = net.critic(latents).squeeze(-1)
    nexts = torch.zeros_like(values)
    nexts[:-1] = values[1:]
    for n in range(3):
        nexts[-1, n] = net.critic(net.step(obs[n : n + 1], (state[0][:, [n]], state[1][:, [n]]))[0])
    nexts[store.terminated.bool()] = 0
    for t, n, final in finals:
        nexts[t, n] = net.critic(net.step(final[None], states[n][t])[0])
    expected = store.rewards + SHORT.gamma * nexts
    advantages, targets = advantages_and_targets(SHORT, net, store, obs, state, finals, final_states)
    torch.testing.assert_close(targets, expected, rtol=1e-4, atol=1e-5)
    raw = expected - values
    torch.testing.assert_close(advantages, (raw - raw.mean()) / raw.std(unbiased=False), rtol=1e-3, atol=1e-4)


def test_states_are_zeroed_where_episodes_end() -> None:
    job = replace(SHORT, num_envs=2, fragment=8)
    *_, state, finals, final_states = sampled(job, max_steps=8)
    assert [(t, n) for t, n, _ in finals] == [(7, 0), (7, 1)]
    assert all(hidden.abs().sum() > 0 and cell.abs().sum() > 0 for hidden, cell in final_states)
    assert state[0].abs().sum() == state[1].abs().sum() == 0


def short_episodes(env_config: object) -> gym.Env:
    return gym.make("CartPole-v1", max_episode_steps=11)


def test_ours_comes_to_the_same_weights_from_the_same_rollout() -> None:
    job = replace(SHORT, minibatch_size=SHORT.batch_size, num_epochs=3, lambda_=0.95, grad_clip=0.005)
    with config(job, seed=0).environment(short_episodes).build() as algorithm:
        runners, learner = algorithm.env_runner_group, algorithm.learner_group.learner
        assert isinstance(learner, EpisodeLearner)
        list(runners.sample(job.fragment, policy_version=0))  # so that states are not all zero
        (rollout,) = runners.sample(job.fragment, policy_version=0)
        net, store, *_ = sampled(job, max_steps=11)
        mine = list(algorithm.get_module().parameters())
        theirs = [*net.body.parameters(), *net.core.parameters(), *net.actor.parameters(), *net.critic.parameters()]
        assert rollout.state_in is not None
        with torch.no_grad():
            for mine_part, part in zip(mine, theirs, strict=True):
                part.copy_(mine_part)
            store.hidden[:], store.cell[:] = (rollout.state_in[name].squeeze(2) for name in ("h", "c"))
            for column, name in (
                (store.obs, "obs"),
                (store.actions, "actions"),
                (store.logp, "action_logp"),
                (store.rewards, "rewards"),
                (store.terminated, "terminateds"),
                (store.truncated, "truncateds"),
            ):
                column[:] = rollout[name]
            _, states = slowly(net, store)
        finals = [(t, n, final) for (t, n), final in zip(rollout.final_index.tolist(), rollout.final_obs, strict=True)]
        assert finals
        final_states = [states[n][t] for t, n, _ in finals]
        going_on = (1 - torch.maximum(store.terminated, store.truncated)[-1])[None, :, None]
        hidden, cell = (torch.cat([own[-1][part] for own in states], 1) * going_on for part in (0, 1))
        estimates = advantages_and_targets(job, net, store, rollout.last_obs, (hidden, cell), finals, final_states)
        columns = [store.fold(x) for x in (store.obs, store.actions, store.logp, *estimates)]
        optimizer = torch.optim.Adam(net.parameters(), lr=job.lr, eps=1e-5)
        before = torch.cat([part.detach().flatten() for part in theirs])
        update(job, net, optimizer, columns, store.fold(store.goes_on()), store.states())
        learner.update_from_episodes(rollout, env_steps=job.batch_size)
        after = torch.cat([part.detach().flatten() for part in theirs])
        moved = torch.cat([part.detach().flatten() for part in mine])
        assert (after - before).abs().max() > job.lr
        torch.testing.assert_close(moved, after, rtol=0, atol=1e-6)


def test_two_timed_iterations() -> None:
    result = train(SHORT, 4 * SHORT.batch_size, seed=0)
    assert result["steps_per_s"] > 0
    assert 5 < result["late_return"] < 64


def test_same_seed_same_data() -> None:
    first, again, other = (train(SHORT, 1, seed)["late_return"] for seed in (3, 3, 4))
    assert first == again
    assert first != other


@pytest.mark.slow
def test_it_learns() -> None:
    assert train(JOBS["lstm"], 60_000, seed=0)["late_return"] > 150
