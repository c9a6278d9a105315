"""The interface of envs with several agents, and the envs that other tests rely on."""

import gymnasium as gym
import numpy as np
import pytest

from rlmodule.agents.guard import AgentEnvGuard
from rlmodule.agents.multi_agent_env import ALL, AgentID
from tests.rlmodule.agents.envs import CartPoles, Moment, OneAgent, ScriptedEnv, random_script


def test_an_env_without_a_state_says_so() -> None:
    env = ScriptedEnv([[Moment(["a"])]])
    with pytest.raises(NotImplementedError, match=r"^ScriptedEnv: expected a method state\(\), got an env without one"):
        env.state()
    assert env.render() is None


@pytest.mark.parametrize("seed", range(40))
def test_the_guard_knows_who_acts_who_ended_and_when_the_episode_is_over(seed: int) -> None:
    """Random scripts, against sets that are kept one agent at a time."""
    rng = np.random.default_rng(seed)
    scripts = [random_script(rng) for _ in range(3)]
    guard = AgentEnvGuard(ScriptedEnv(scripts))
    for script in scripts:
        obs, _ = guard.reset()
        in_play = set(obs)
        assert guard.acting == list(script[0].acts)
        for position, moment in enumerate(script[1:], start=1):
            obs, rewards, *_ = guard.step(dict.fromkeys(guard.acting, 0))
            ended = dict[AgentID, tuple[bool, bool]]()
            for agent in "abc":
                own = agent in moment.terminated, agent in moment.truncated
                is_here = agent in in_play or agent in obs
                everybody = is_here and ALL in moment.terminated, is_here and ALL in moment.truncated
                if any(flags := (own[0] or everybody[0], own[1] or everybody[1])):
                    ended[agent] = flags
                    in_play.discard(agent)
                elif agent in obs:
                    in_play.add(agent)
            assert (guard.ended, rewards) == (ended, moment.rewards)
            assert guard.acting == [agent for agent in obs if agent not in ended]
            assert guard.is_over == (not in_play) == (position == len(script) - 1)


def test_cart_poles_end_as_they_are_told() -> None:
    """Cart 0 is pushed to one side and falls first; the other is balanced."""

    def play(env: CartPoles, num_steps: int) -> list[tuple[list[AgentID], dict[AgentID, tuple[bool, bool]]]]:
        guard, seen = AgentEnvGuard(env), []
        obs, _ = guard.reset(seed=1)
        for _ in range(num_steps):
            balance = {agent: int(obs[agent][2] + obs[agent][3] > 0) for agent in guard.acting}
            obs, *_ = guard.step({agent: 0 if agent == "cart_0" else balance[agent] for agent in guard.acting})
            seen.append((guard.acting, guard.ended))
            if guard.is_over:
                break
        return seen

    one, two = "cart_0", "cart_1"
    leaves, rejoins, ends = (play(CartPoles(2, at_end), 30) for at_end in ("leaves", "rejoins", "ends"))
    fall = next(step for step, (_, ended) in enumerate(leaves) if ended)
    assert leaves[fall:] == [([two], {one: (True, False)}), *[([two], {})] * (29 - fall)]
    assert rejoins[fall : fall + 3] == [([two], {one: (True, False)}), ([one, two], {}), ([one, two], {})]
    assert ends[fall:] == [([], {one: (True, True), two: (False, True)})]


def test_one_agent_sees_what_the_env_shows() -> None:
    single, guard = gym.make("CartPole-v1"), AgentEnvGuard(OneAgent("CartPole-v1", agent=7))
    expected, (obs, infos) = single.reset(seed=5), guard.reset(seed=5)
    np.testing.assert_array_equal(obs[7], expected[0])
    assert infos == {7: {}}
    while not guard.is_over:
        after, reward, terminated, truncated, _ = single.step(1)
        obs, rewards, *_ = guard.step({7: 1})
        np.testing.assert_array_equal(obs[7], after)
        assert rewards == {7: reward}
        assert guard.ended == ({7: (terminated, truncated)} if terminated or truncated else {})
