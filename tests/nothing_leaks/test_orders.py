"""What must not depend on an order, or on how work is divided: minibatches, slots, env runners, agents, learners."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import tree
from torch import Tensor

from algorithms.off_policy import ActionCriticLearner
from algorithms.ppo import PPOConfig
from rlmodule import Columns, Rollout
from rlmodule.agents.runner import AgentRunner
from rlmodule.collective import Collective
from rlmodule.data.rollout import map_leaves
from rlmodule.learning.sharding import shard_batch, shard_rollout
from rlmodule.sampling.env_runner import EnvRunner
from rlmodule.testing.data import differences as different_bits
from tests.metrics_recounted.books import Crowd
from tests.nothing_leaks.cases import ID, Case, cases, in_float64
from tests.nothing_leaks.traces import differences, gradients_of, trace_of, with_ids
from tests.settings_act.footprint import Track
from tests.together import Fleet

# --- minibatches and rows ---------------------------------------------------------------------------------------------


# not with batch norm, whose statistics are those of a minibatch
@pytest.mark.parametrize("case", cases("plain", "LSTM", "GRU", "attention", "two memories", episodes=True))
def test_minibatches_of_an_epoch_add_up_to_its_gradient(case: Case) -> None:
    # weights that stay as they are
    case = case.having(lr=1e-30, num_epochs=1, grad_clip=None)
    rollout = in_float64(case.rollout())
    [(_, count, whole)] = gradients_of(case.having(minibatch_size=None).learner(), rollout)
    orders = []
    for size, seed in ((8, 1), (8, 2), (20, 3)):
        learner = case.having(minibatch_size=size).learner()
        learner.generator.manual_seed(seed)
        steps = gradients_of(learner, rollout)
        assert len(steps) > 1
        assert sum(rows for _, rows, _ in steps) == count
        total = sum((gradient * rows / count for _, rows, gradient in steps), torch.zeros(()))
        assert differences({"gradient": whole}, {"gradient": total}) == {}
        orders.append(steps[0][2])
    assert not torch.equal(orders[0], orders[1])


@pytest.mark.parametrize("case", cases(episodes=True))
def test_slots_in_any_order_learn_the_same(case: Case) -> None:
    case = case.having(minibatch_size=None, num_epochs=1)
    rollout = in_float64(case.rollout())
    order = torch.tensor([2, 0, 3, 1])
    place = order.argsort()
    index = rollout.final_index.clone()
    index[:, 1] = place[index[:, 1]]
    mixed = replace(
        rollout,
        columns={name: map_leaves(lambda x: x[:, order], column) for name, column in rollout.columns.items()},
        last_obs=map_leaves(lambda x: x[order], rollout.last_obs),
        final_index=index,
        state_in=None if rollout.state_in is None else map_leaves(lambda x: x[:, order], rollout.state_in),
    )
    before, after = (trace_of(case.learner(), each) for each in (rollout, mixed))
    assert differences(before, after) == {}


@pytest.mark.parametrize("case", cases(episodes=False, first=("plain", "LSTM")))
def test_rows_of_a_batch_in_any_order_learn_the_same(case: Case) -> None:
    batch = case.batches(1)[0]
    in_sequences = Columns.NEXT_ROWS in batch
    count = batch[Columns.STARTS].shape[1] if in_sequences else len(batch[Columns.REWARDS])
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    mixed = mixed_sequences(batch, order) if in_sequences else tree.map_structure(lambda x: x[order], batch)

    learners = [case.learner() for _ in range(2)]
    if isinstance(learners[0], ActionCriticLearner):
        for learner in learners:
            quiet(learner)
    before, after = (
        trace_of(learner, with_ids([each])) for learner, each in zip(learners, (batch, mixed), strict=True)
    )
    assert differences(before, after) == {}


def mixed_sequences(batch: Any, order: Tensor) -> Any:
    """Return a batch of sequences in another ``order``."""
    count = batch[Columns.STARTS].shape[1]
    place = order.argsort()

    def moved(rows: Tensor) -> Tensor:
        return rows // count * count + place[rows % count]

    one_by_one = {Columns.STATE_IN: lambda x: x[order], Columns.VALID_ROWS: moved, Columns.NEXT_ROWS: moved}
    return {
        name: tree.map_structure(one_by_one.get(name, lambda x: x[:, order]), column) for name, column in batch.items()
    }


def quiet(learner: ActionCriticLearner) -> None:
    """Give all rows the same noise, which otherwise belongs to their places in a batch."""
    draw = learner.draw_noise

    def drawn(*args: Any, **kwargs: Any) -> Tensor:
        return torch.full_like(draw(*args, **kwargs), 0.25, dtype=torch.float64)

    learner.draw_noise = drawn  # type: ignore[method-assign]


# --- env runners -----------------------------------------------------------------------------------------------------

STEPS = 30


def vector_runner(num_envs: int, first: int) -> EnvRunner:
    config = PPOConfig(env=Track, num_envs_per_env_runner=num_envs, model_config=NETS)
    runner = EnvRunner(config, run_seed=1, first_env_index=first)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        runner.set_module(config.get_rl_module_spec(Track.observation_space, Track.action_space).build())
    return runner


def agent_runner(num_envs: int, first: int, **env_config: Any) -> AgentRunner:
    config = PPOConfig(
        env=Crowd, env_config=env_config, policies="own", num_envs_per_env_runner=num_envs, model_config=NETS
    )
    runner = AgentRunner(config, run_seed=1, first_env_index=first)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        runner.set_module(config.get_module_spec(runner.observation_space, runner.action_space).build())
    return runner


NETS: dict[str, Any] = {"fcnet_hiddens": [6], "use_lstm": True, "lstm_cell_size": 5, "max_seq_len": 4}


def steps_of(rollout: Rollout) -> list[list[float]]:
    """Return the valid rows of a rollout, slot by slot: all that a step is learned from."""
    following = rollout.following_observations()
    is_known = ~rollout[Columns.TERMINATEDS] | rollout[Columns.TRUNCATEDS]
    parts = [
        rollout[Columns.OBS],
        torch.where(is_known[..., None], following, torch.zeros(())),
        *(rollout[name][..., None] for name in (Columns.ACTIONS, Columns.REWARDS, Columns.ACTION_LOGP)),
        *(rollout[name][..., None] for name in (Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.STARTS)),
    ]
    rows = torch.cat([part.double() for part in parts], -1)
    return [rows[:, slot][rollout.valid[:, slot]].tolist() for slot in range(rollout.shape[1])]


@pytest.mark.parametrize("make", [vector_runner, agent_runner], ids=["plain", "agents"])
def test_envs_of_two_runners_are_those_of_one(make: Any) -> None:
    alone, *pair = make(3, 0), make(1, 0), make(2, 1)
    for _ in range(2):
        whole = alone.sample(STEPS)
        parts = [runner.sample(STEPS) for runner in pair]
        joined = type(whole).concat(parts)
        assert joined.num_env_steps == whole.num_env_steps == 3 * STEPS
        of_modules = [(whole, joined)] if make is vector_runner else [(whole[name], joined[name]) for name in whole]
        for expected, got in of_modules:
            for slot, (rows, others) in enumerate(zip(steps_of(expected), steps_of(got), strict=True)):
                assert len(rows) == len(others), f"slot {slot}"
                np.testing.assert_allclose(others, rows, rtol=1e-5, atol=1e-6, err_msg=f"slot {slot}")
    for runner in (alone, *pair):
        runner.stop()


def test_the_order_in_which_an_env_names_its_agents_does_not_matter() -> None:
    runners = [agent_runner(2, 0, is_reversed=is_reversed) for is_reversed in (False, True)]
    for _ in range(2):
        first, second = (runner.sample(STEPS) for runner in runners)
        for module_id, rows in first.items():
            assert different_bits(rows.columns, second[module_id].columns) == []
        for name in ("episode_returns", "episode_lengths", "agent_steps", "module_steps"):
            assert different_bits(first.stats[name], second.stats[name]) == [], name
        lives = [sorted(map(str, rollout.stats["agent_episodes"])) for rollout in (first, second)]
        assert lives[0] == lives[1]
    for runner in runners:
        runner.stop()


# --- learners --------------------------------------------------------------------------------------------------------


def learn(collective: Collective, case: Case, data: Any) -> Any:
    """Update a learner of ``collective`` with its share, and return its trace."""
    learner = case.learner()
    learner.connect(collective)
    if isinstance(learner, ActionCriticLearner):
        quiet(learner)
    return trace_of(learner, data if case.learns_from_episodes else with_ids([data]))


@pytest.mark.parametrize("case", cases("plain", "LSTM", first=("plain",)))
def test_learners_in_any_order_learn_what_one_would(case: Case, fleet: Fleet) -> None:
    case = case.having(minibatch_size=None, num_epochs=1)
    if case.learns_from_episodes:
        data = in_float64(case.rollout())
        shares: list[Any] = shard_rollout(data, 2)
    else:
        data = case.batches(1)[0]
        shares = shard_batch(data, 2)
    alone = case.learner()
    if isinstance(alone, ActionCriticLearner):
        quiet(alone)
    whole = trace_of(alone, data if case.learns_from_episodes else with_ids([data]))
    for order in ((0, 1), (1, 0)):
        traces = fleet.values(learn, *[(case, shares[i]) for i in order])
        assert differences(traces[0], traces[1], most=0.0) == {}
        kept = {name: value for name, value in whole[ID].items() if name in traces[0][ID]}
        got = {name: value for name, value in traces[0][ID].items() if name in kept}
        # metrics cross processes in float32
        exact = [name for name in kept if ": " not in name]
        assert differences({name: kept[name] for name in exact}, {name: got[name] for name in exact}) == {}
        assert differences(kept, got, most=1e-5) == {}
