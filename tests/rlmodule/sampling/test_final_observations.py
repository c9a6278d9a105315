"""True final observations of terminated episodes: recorded where the settings ask for them, and no training target
depends on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import pytest
import torch
import tree
from gymnasium.vector import AutoresetMode

from algorithms.ops.returns import generalized_advantages
from algorithms.ppo import PPOCatalog, PPOConfig, PPOModule
from catalog import Catalog
from rlmodule import Columns, EnvRunner, MultiRLModule, RLModule, Rollout, ValueFunctionAPI
from rlmodule.agents.policy_map import PolicyMap
from rlmodule.agents.runner import AgentRunner
from rlmodule.modules.recurrent import values_along
from rlmodule.settings import FinalObs
from rlmodule.testing.data import differences
from tests.rlmodule.agents.envs import CartPoles, OneAgent
from tests.rlmodule.sampling.test_env_runner import SOURCES
from tests.rlmodule.toys import (
    Counter,
    Forgetful,
    NoNets,
    Scripted,
    Settings,
    counters,
    counters_one_by_one,
    expected_steps,
)
from tests.tensor_envs import InTensors

ALL_SOURCES: dict[str, Callable[[], Any]] = SOURCES | {
    "tensors, same step": lambda: in_tensors(AutoresetMode.SAME_STEP),
    "tensors, next step": lambda: in_tensors(AutoresetMode.NEXT_STEP),
}


class EndedSettings(Settings):
    @property
    def records_final_obs(self) -> FinalObs:
        return "ended"


BOTH = (Settings, EndedSettings)


def in_tensors(mode: AutoresetMode) -> Callable[..., Any]:
    return lambda config: InTensors(counters(mode)(config))


def with_module(runner: EnvRunner, module_class: type[RLModule] = Scripted, **model: Any) -> EnvRunner:
    catalog: type[Catalog] = PPOCatalog if module_class is PPOModule else NoNets
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = module_class(
            observation_space=runner.observation_space,
            action_space=runner.action_space,
            model_config=model,
            catalog_class=catalog,
        )
    runner.set_module(module)
    return runner


def check_pair(usual: Rollout, ended: Rollout) -> int:
    """See that ``ended`` has a final observation for each step that ends an episode, and equals ``usual`` otherwise.
    Return the number of terminated steps."""
    assert not differences(
        [usual.columns, usual.last_obs, usual.state_in], [ended.columns, ended.last_obs, ended.state_in]
    )
    terminated = ended[Columns.TERMINATEDS]
    assert ended.final_index.tolist() == (terminated | ended[Columns.TRUNCATEDS]).nonzero().tolist()
    of_truncated = ~terminated[ended.final_index.unbind(1)]
    assert torch.equal(ended.final_index[of_truncated], usual.final_index)
    assert not differences(usual.final_obs, tree.map_structure(lambda x: x[of_truncated], ended.final_obs))
    return int(terminated.sum())


@pytest.mark.parametrize("source", ALL_SOURCES)
@pytest.mark.parametrize("fragment", [1, 4, 40])
def test_every_end_has_the_observation_after_it(source: str, fragment: int) -> None:
    usual, ended = (with_module(EnvRunner(cls(env=ALL_SOURCES[source]()), run_seed=1)) for cls in BOTH)
    first_episode = int(source.startswith("tensors"))  # a runner of tensors resets its env once to look at it
    expected = [itertools.dropwhile(lambda step: step.obs[1] < first_episode, expected_steps(n)) for n in range(3)]
    num_terminated = 0
    for _ in range(40 // fragment):
        rollout = ended.sample(fragment, explore=False)
        num_terminated += check_pair(usual.sample(fragment, explore=False), rollout)
        following = rollout.following_observations()
        finals = dict(zip(map(tuple, rollout.final_index.tolist()), rollout.final_obs.tolist(), strict=True))
        for row, slot in rollout.valid.nonzero().tolist():
            step = next(expected[slot])
            assert tuple(following[row, slot].tolist()) == step.next_obs
            if step.terminated or step.truncated:
                assert tuple(finals.pop((row, slot))) == step.next_obs
        assert not finals
    assert num_terminated > 10


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_module_that_sees_the_past_has_it_at_every_end(mode: AutoresetMode) -> None:
    usual, ended = (with_module(EnvRunner(cls(env=counters(mode)), run_seed=1), Forgetful) for cls in BOTH)
    for _ in range(3):
        rollout = ended.sample(11)
        assert check_pair(usual.sample(11), rollout) > 1
        rows, slots = rollout.final_index.unbind(1)
        before = rollout[Columns.ACTIONS][rows, slots]
        torch.testing.assert_close(rollout.final_obs["prev_action"], before.to(rollout.final_obs["prev_action"].dtype))


class Breaks(Counter):
    """Raises in step 7 or 8 of its life."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 7 + self.index % 2:
            raise RuntimeError("broken")
        return super().step(action)


def test_a_step_that_raised_has_the_observation_before_it() -> None:
    usual, ended = (
        with_module(EnvRunner(cls(env=counters_one_by_one(Breaks), restart_failed_sub_environments=True), run_seed=1))
        for cls in BOTH
    )
    num_lost = 0
    for steps in (5, 1, 1, 2, 9, 30):
        rollout = ended.sample(steps, explore=False)
        check_pair(usual.sample(steps, explore=False), rollout)
        num_lost += rollout.stats.get("num_env_steps_lost", {}).get("env_raised", 0)
    assert num_lost > 6


def test_an_env_that_leaves_out_final_observations_is_refused() -> None:
    class Forgets(gym.vector.VectorWrapper):
        def step(self, actions: Any) -> Any:
            *rest, info = self.env.step(actions)
            return *rest, {key: value for key, value in info.items() if "final" not in key}

    runner = with_module(
        EnvRunner(EndedSettings(env=lambda config: Forgets(counters(AutoresetMode.SAME_STEP)(config))), run_seed=1)
    )
    with pytest.raises(ValueError, match=r"step\(\): expected final_obs.*got \d+ ended episodes"):
        runner.sample(20)


# --- several agents --------------------------------------------------------------------------------------------------


def agent_runner(cls: type[Settings], env: Callable[..., Any]) -> AgentRunner:
    runner = AgentRunner(cls(env=env), run_seed=1)
    agent = runner.agents[0]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = PPOModule(
            observation_space=runner.observation_space[agent],
            action_space=runner.action_space[agent],
            model_config={"fcnet_hiddens": [8]},
            catalog_class=PPOCatalog,
        )
    runner.set_module(MultiRLModule({"shared": module}), PolicyMap(runner.agents, ["shared"]))
    return runner


def test_one_agent_has_the_finals_of_an_env_of_one() -> None:
    alone = with_module(EnvRunner(EndedSettings(env="CartPole-v1"), run_seed=1), PPOModule, fcnet_hiddens=[8])
    agents = agent_runner(EndedSettings, lambda config: OneAgent(gym.make("CartPole-v1"), "a"))
    num_ends = 0
    for steps in (7, 1, 16, 60):
        expected, rollout = alone.sample(steps), agents.sample(steps)["shared"]
        assert torch.equal(expected.final_index, rollout.final_index)
        assert torch.equal(expected.final_obs, rollout.final_obs)
        num_ends += len(rollout.final_index)
    assert num_ends > 5


def test_agents_that_leave_have_a_final_observation_each() -> None:
    usual, ended = (agent_runner(cls, lambda config: CartPoles(3, max_episode_steps=12)) for cls in BOTH)
    num_terminated = 0
    for _ in range(4):
        rollout = ended.sample(25)["shared"]
        num_terminated += check_pair(usual.sample(25)["shared"], rollout)
        assert rollout[Columns.TRUNCATEDS].any()
    assert num_terminated > 5


# --- targets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("model", [{}, {"use_lstm": True, "max_seq_len": 4}], ids=["mlp", "lstm"])
def test_advantages_do_not_depend_on_them(mode: AutoresetMode, model: dict[str, Any]) -> None:
    advantages = []
    for cls in BOTH:
        runner = with_module(EnvRunner(cls(env=counters(mode)), run_seed=1), PPOModule, **model)
        rollout, module = runner.sample(30), runner.module
        assert isinstance(module, ValueFunctionAPI)
        with torch.no_grad():
            if model:
                values = values_along(module, rollout)
            else:
                values = module.compute_values({Columns.OBS: rollout.rows_to_value()})
        v_t, v_tp1 = rollout.split_values(values)
        estimates = generalized_advantages(
            rollout[Columns.REWARDS],
            v_t,
            v_tp1,
            terminated_t=rollout[Columns.TERMINATEDS],
            truncated_t=rollout[Columns.TRUNCATEDS],
            valid_t=rollout.valid,
            gamma=0.9,
            lambda_=0.8,
        )
        advantages.append(estimates)
    torch.testing.assert_close(*advantages)


def test_only_algorithms_that_ask_record_them() -> None:
    assert PPOConfig().environment("CartPole-v1").for_runners().records_final_obs == "truncated"
    assert EndedSettings().for_runners().records_final_obs == "ended"
