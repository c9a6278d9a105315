"""The jobs with several agents: four CartPoles in one env, with one net or four."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.jobs import AGENTS_JOBS
from benchmarks.ours_ppo import config, train
from rlmodule.agents.cartpoles import CartPoles


@pytest.mark.parametrize(("job", "num_policies"), [("agents-shared", 1), ("agents-own", 4)])
def test_some_iterations_take_place(job: str, num_policies: int) -> None:
    short = replace(AGENTS_JOBS[job], num_envs=2, fragment=32, minibatch_size=16, num_epochs=1)
    with config(short, 0).build() as algorithm:
        played = algorithm.train()["env_runners"]
        assert algorithm.env_steps == short.batch_size
        assert len(played["num_agent_steps_sampled_lifetime"]) == short.num_agents
        assert len(algorithm.policies) == num_policies
        sizes = {tuple(p.shape) for p in algorithm.get_module(next(iter(algorithm.policies))).parameters()}
    assert sizes == {(64, 4), (64, 64), (64,), (2, 64), (2,), (1, 64), (1,)}
    result = train(short, 1, seed=0)
    assert result["steps_per_s"] > 0
    assert 4 * 8 < result["late_return"] < 4 * 64


def test_those_that_fell_wait_for_the_others() -> None:
    env = CartPoles(2)
    obs, _ = env.reset(seed=1)
    assert not np.array_equal(obs["cart_0"], obs["cart_1"])
    actions, terminateds, steps = dict.fromkeys(obs, 0), dict[str, bool](), 0
    while actions:
        obs, rewards, terminateds, truncateds, _ = env.step(actions)
        assert rewards == dict.fromkeys(actions, 1.0)
        assert obs.keys() == terminateds.keys() == truncateds.keys() == actions.keys()
        actions = {agent: 1 - steps % 2 if agent == "cart_1" else 0 for agent in obs if not terminateds[agent]}
        steps += 1
    assert terminateds == {"cart_1": True}
