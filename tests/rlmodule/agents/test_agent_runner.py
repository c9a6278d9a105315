"""The runner of several agents next to that of one: equal rows, streams and counts."""

import functools
import itertools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from algorithms.ppo.module import PPOCatalog, PPOModule
from catalog import Catalog
from catalog.base import Tree
from rlmodule import Columns, EnvError, EnvRunner, MultiRLModule, RLModule, Rollout
from rlmodule.agents.multi_agent_env import AgentID, MultiAgentEnv
from rlmodule.agents.multi_rollout import MultiRollout
from rlmodule.agents.policy_map import PolicyMap
from rlmodule.agents.runner import AgentRunner
from rlmodule.checkpoint import load_checkpoint, save_checkpoint
from rlmodule.envs import restarting
from rlmodule.testing.data import differences
from tests.parametric_envs import ParametricCartPole
from tests.rlmodule.agents.envs import CartPoles, OneAgent, ScriptedEnv, random_script
from tests.rlmodule.sampling.test_env_runner import NAMES
from tests.rlmodule.sampling.test_env_runner_fragments import Noisy, Own
from tests.rlmodule.toys import (
    LENGTHS,
    Counter,
    Forgetful,
    NestedCounter,
    NoNets,
    Scripted,
    SeesPast,
    Settings,
    Small,
    counters,
    counters_one_by_one,
)

FRAGMENTS = (7, 1, 16, 40)
COLUMNS = (*NAMES, Columns.STARTS, Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP)
TIMES = ("env_step", "forward", "bookkeeping")


def module_for(
    observation_space: gym.Space, action_space: gym.Space, module_class: type[RLModule] = PPOModule, **model: Any
) -> RLModule:
    own = module_class is not PPOModule
    catalog_class = Catalog if issubclass(module_class, Small) else NoNets
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return module_class(
            observation_space=observation_space,
            action_space=action_space,
            model_config={**({} if own else {"fcnet_hiddens": [8]}), **model},
            catalog_class=catalog_class if own else PPOCatalog,
        )


def single_runner(make: Callable[..., gym.Env], module: Callable[..., RLModule], **kwargs: Any) -> EnvRunner:
    runner = EnvRunner(Settings(env=make, records_episode_infos=True), run_seed=1, **kwargs)
    runner.set_module(module(runner.observation_space, runner.action_space))
    return runner


def agent_runner(
    make: Callable[..., MultiAgentEnv], module: Callable[..., RLModule], num_envs: int = 3, **kwargs: Any
) -> AgentRunner:
    settings = Settings(env=make, records_episode_infos=True, num_envs_per_env_runner=num_envs)
    runner = AgentRunner(settings, run_seed=1, **kwargs)
    agent = runner.agents[0]
    modules = MultiRLModule({"shared": module(runner.observation_space[agent], runner.action_space[agent])})
    runner.set_module(modules, PolicyMap(runner.agents, ["shared"]))
    return runner


def rows_of(rollout: Rollout, slot: int) -> dict[str, Tree]:
    """The valid rows of a slot, and the observations that end them."""
    ends = rollout.final_index[:, 1] == slot
    return {
        **{name: tree.map_structure(lambda x: x[rollout.valid[:, slot], slot], rollout[name]) for name in COLUMNS},
        "final_obs": tree.map_structure(lambda x: x[ends], rollout.final_obs),
        "last_obs": tree.map_structure(lambda x: x[slot], rollout.last_obs),
    }


LSTM = {"use_lstm": True, "max_seq_len": 4}
CASES: dict[str, tuple[Callable[[], Callable[..., gym.Env]], dict[str, Any]]] = {
    "mlp": (lambda: lambda _: gym.make("CartPole-v1", max_episode_steps=25), {}),
    "lstm": (lambda: lambda _: gym.make("CartPole-v1", max_episode_steps=9), LSTM),
    "past": (lambda: lambda _: gym.make("Pendulum-v1", max_episode_steps=9), {"module_class": Forgetful}),
    "gru, past": (
        lambda: lambda _: gym.make("CartPole-v1", max_episode_steps=9),
        {"module_class": SeesPast, **LSTM},
    ),
    "masks": (lambda: lambda _: ParametricCartPole(), {}),
    "box": (lambda: lambda _: gym.make("Pendulum-v1", max_episode_steps=20), {}),
    "draws as it samples": (lambda: lambda _: gym.make("CartPole-v1"), {"module_class": Own}),
    "noisy nets": (lambda: lambda _: gym.make("CartPole-v1"), {"module_class": Noisy}),
    "nested": (lambda: counters_one_by_one(NestedCounter), {"module_class": Scripted}),
}


@pytest.mark.parametrize("case", CASES)
def test_one_agent_is_sampled_as_in_an_env_of_one(case: str) -> None:
    """All columns, observations after them, states and statistics are equal bit for bit, over several fragments."""
    make, model = CASES[case]

    def module(observation_space: gym.Space, action_space: gym.Space) -> RLModule:
        return module_for(observation_space, action_space, **model)

    of_one, of_many = make(), make()
    alone, agents = single_runner(of_one, module), agent_runner(lambda config: OneAgent(of_many(config), "a"), module)
    ended = 0
    for steps in FRAGMENTS:
        how = {"explore": steps != 16, "policy_version": 5}
        expected, rollout = alone.sample(steps, **how), agents.sample(steps, **how)
        stats = {name: value for name, value in expected.stats.items() if name not in TIMES}
        ended += len(stats["episode_returns"])
        if "episode_infos" in stats:
            stats["episode_infos"] = [{"a": info} for info in stats["episode_infos"]]
        own = rollout.stats
        assert not differences(stats, {name: own[name] for name in stats})
        assert [one.episode_return for one in own["agent_episodes"]] == pytest.approx(stats["episode_returns"].tolist())
        assert [one.length for one in own["agent_episodes"]] == stats["episode_lengths"].tolist()
        assert rollout.num_env_steps == expected.num_env_steps == own["module_steps"]["shared"]
        expected.stats = {}
        assert not differences(vars(expected), vars(rollout.modules["shared"]))
        assert rollout.slots["shared"].tolist() == [[env, 0] for env in range(3)]
    assert ended > 3
    assert alone.step_counter.count == agents.step_counter.count == 3 * sum(FRAGMENTS)


class Copies(MultiAgentEnv):
    """Independent envs, one per agent. One that ended resets in the next step; its agent does not act in that step."""

    def __init__(self, envs: list[gym.Env]) -> None:
        self.envs: dict[AgentID, gym.Env] = {f"agent_{i}": env for i, env in enumerate(envs)}
        self.possible_agents = list(self.envs)
        self.observation_spaces = {agent: env.observation_space for agent, env in self.envs.items()}
        self.action_spaces = {agent: env.action_space for agent, env in self.envs.items()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return {agent: env.reset()[0] for agent, env in self.envs.items()}, {}

    def step(self, actions: dict[AgentID, Any]) -> Any:
        results = {agent: self.envs[agent].step(action)[:4] for agent, action in actions.items()}
        obs, *rest = ({agent: result[i] for agent, result in results.items()} for i in range(4))
        obs |= {agent: env.reset()[0] for agent, env in self.envs.items() if agent not in actions}
        return obs, *rest, {}


def copies(lengths: tuple[int, ...]) -> Callable[..., MultiAgentEnv]:
    numbers = itertools.count()
    return lambda _: Copies([Counter(next(numbers), lengths=lengths) for _ in range(3)])


@pytest.mark.parametrize("model", [{}, LSTM])
def test_agents_that_restart_together_are_sampled_as_so_many_envs(model: dict[str, Any]) -> None:
    def module(observation_space: gym.Space, action_space: gym.Space) -> RLModule:
        return module_for(observation_space, action_space, **model)

    runner = EnvRunner(Settings(env=counters_one_by_one(lengths=(5,)), num_envs_per_env_runner=6), run_seed=1)
    runner.set_module(module(runner.observation_space, runner.action_space))
    agents = agent_runner(copies(lengths=(5,)), module, num_envs=2)
    for steps in (7, 13, 1, 4):
        expected, rollout = runner.sample(steps), agents.sample(steps)
        own, returns = rollout.stats, expected.stats["episode_returns"]
        ended = [one.episode_return for one in own["agent_episodes"] if one.policy == "shared"]
        assert sorted(ended) == pytest.approx(sorted(returns.tolist()))
        assert own["episode_returns"].sum() == pytest.approx(returns.sum())
        expected.stats = {}
        assert not differences(vars(expected), vars(rollout.modules["shared"]))
        assert rollout.slots["shared"].tolist() == [[env, agent] for env in range(2) for agent in range(3)]


def test_agents_that_pause_have_the_rows_of_envs_that_reset_in_a_step_of_their_own() -> None:
    """Three agents of one env next to three envs with next-step autoreset: the valid rows of each are equal."""
    runner = EnvRunner(Settings(env=counters(AutoresetMode.NEXT_STEP)), run_seed=1)
    runner.set_module(module_for(runner.observation_space, runner.action_space, **LSTM))
    agents = agent_runner(copies(lengths=LENGTHS), functools.partial(module_for, **LSTM), num_envs=1)
    rows: tuple[list[list[dict[str, Tree]]], ...] = ([[], [], []], [[], [], []])
    for steps in (9, 4, 30, 1, 1, 1, 25):
        rollout, of_agents = runner.sample(steps), agents.sample(steps)
        own = of_agents.modules.get("shared", rollout)
        slots = [agent for _, agent in of_agents.slots.get("shared", [])]
        for part, places, by_slot in ((rollout, range(3), rows[0]), (own, slots, rows[1])):
            for column, slot in enumerate(places):
                by_slot[slot].append(rows_of(part, column))
    for expected, got in zip(*rows, strict=True):
        for name in COLUMNS:
            all_expected, all_got = (torch.cat([part[name] for part in parts]) for parts in (expected, got))
            count = min(len(all_expected), len(all_got))
            assert count > 45
            torch.testing.assert_close(all_got[:count], all_expected[:count], rtol=1e-5, atol=1e-6)


def test_agents_with_other_spaces_act_with_modules_of_their_own() -> None:
    """Each agent has the rows of a runner of its env alone, whose index in the run is its slot."""
    dtypes = (np.float32, np.float64)
    settings = Settings(
        env=lambda _: Copies([Counter(i, dtype, (5,)) for i, dtype in enumerate(dtypes)]), num_envs_per_env_runner=1
    )
    agents = AgentRunner(settings, run_seed=1)
    spaces_ = [(agents.observation_space[agent], agents.action_space[agent]) for agent in agents.agents]
    modules = MultiRLModule({f"agent_{i}": module_for(*of) for i, of in enumerate(spaces_)})
    agents.set_module(modules, PolicyMap(agents.agents, [*modules]))
    alone = [
        EnvRunner(
            Settings(env=lambda _, i=i, dtype=dtype: Counter(i, dtype, (5,)), num_envs_per_env_runner=1),
            run_seed=1,
            first_env_index=i,
        )
        for i, dtype in enumerate(dtypes)
    ]
    for runner, module_id in zip(alone, modules, strict=True):
        runner.set_module(modules[module_id])
    for steps in (7, 9):
        rollout = agents.sample(steps)
        for i, runner in enumerate(alone):
            expected = runner.sample(steps)
            assert not differences(rows_of(expected, 0), rows_of(rollout.modules[f"agent_{i}"], 0))
            assert rollout.slots[f"agent_{i}"].tolist() == [[0, i]]


# --- several runners, and states -------------------------------------------------------------------------------------


def carts(num_envs: int, first: int = 0) -> AgentRunner:
    """A runner of CartPoles whose agents leave, of which the last acts with its own module."""
    settings = Settings(env=lambda _: CartPoles(3, max_episode_steps=30), num_envs_per_env_runner=num_envs)
    runner = AgentRunner(settings, run_seed=1, first_env_index=first)
    of = runner.observation_space["cart_0"], runner.action_space["cart_0"]
    modules = MultiRLModule({"most": module_for(*of, **LSTM), "last": module_for(*of)})
    policies = {"cart_0": "most", "cart_1": "most", "cart_2": "last"}
    runner.set_module(modules, PolicyMap(runner.agents, [*modules], policies))
    return runner


def sample_all(runners: list[AgentRunner], steps: int) -> MultiRollout:
    return MultiRollout.concat([runner.sample(steps) for runner in runners])


def assert_close(expected: MultiRollout, got: MultiRollout) -> None:
    assert got.num_env_steps == expected.num_env_steps
    assert got.modules.keys() == expected.modules.keys()
    for module_id, one in expected.modules.items():
        assert got.slots[module_id].tolist() == expected.slots[module_id].tolist()
        for name in ("columns", "last_obs", "final_index", "final_obs"):
            pair = vars(one)[name], vars(got.modules[module_id])[name]
            tree.map_structure(lambda x, y: torch.testing.assert_close(y, x, rtol=1e-4, atol=1e-5), *pair)


@pytest.mark.parametrize("num", [2, 1])
def test_envs_of_other_groups_of_runners_have_the_same_rows(num: int) -> None:
    whole, parts = carts(4), [carts(num, first) for first in range(0, 4, num)]
    for steps in (20, 3, 40):
        assert_close(sample_all([whole], steps), sample_all(parts, steps))


def test_state_restores_streams_and_episodes_by_env_in_other_groups_of_runners(tmp_path: Path) -> None:
    whole = carts(4)
    for steps in (20, 17):
        whole.sample(steps)
    state = load_checkpoint(save_checkpoint(tmp_path / "c", whole.get_state()))
    parts = [carts(2, first) for first in (0, 2)]
    for part in parts:
        part.sample(5)
        part.set_state(state)
    for steps in (20, 17):
        assert_close(sample_all([whole], steps), sample_all(parts, steps))
    numbers = [
        [(one.env_index, one.number, one.length) for one in runner._episode_of.values()] for runner in (whole, *parts)
    ]
    assert numbers[0] == numbers[1] + numbers[2]
    states = [runner.get_state() for runner in (whole, *parts)]
    for state in states:
        for one in state.values():
            del one["episode"]  # whose memories are equal up to rounding, as the forward passes have other sizes
    assert differences(states[0], {**states[1], **states[2]}) == [
        "/2/generator/draws",
        "/2/generator/state",
    ]


def test_an_incarnation_has_streams_and_numbers_of_episodes_of_its_own() -> None:
    settings = Settings(env=lambda _: CartPoles(2), num_envs_per_env_runner=1)
    obs, numbers = [], []
    for incarnation in (0, 1):
        runner = AgentRunner(settings, run_seed=1, incarnation=incarnation)
        of = runner.observation_space["cart_0"], runner.action_space["cart_0"]
        runner.set_module(MultiRLModule({"p": module_for(*of)}), PolicyMap(runner.agents, ["p"]))
        rollout = runner.sample(200)
        obs.append(rollout.modules["p"])
        numbers.append([one.number for one in rollout.stats["multi_agent_episodes"]])
    assert numbers[0] == [*range(len(numbers[0]))] != []
    assert numbers[1] == [*range(first := 2**32, first + len(numbers[1]))] != []
    runner.set_state({"0": {"incarnation": 1}})  # of a runner that was lost, whose numbers nobody knows
    assert runner.sample(200).stats["multi_agent_episodes"][0].number == 2**32
    assert not torch.equal(obs[0][Columns.OBS][0], obs[1][Columns.OBS][0])
    assert not torch.equal(obs[0][Columns.ACTIONS][:5], obs[1][Columns.ACTIONS][:5])


# --- what goes wrong -------------------------------------------------------------------------------------------------


class Fails(CartPoles):
    """Counts its steps; step ``at`` of env 1 does ``what`` to agent "cart_1"."""

    made = itertools.count()

    def __init__(self, what: str, at: int) -> None:
        super().__init__(2, max_episode_steps=5)
        self.what, self.at, self.steps = what, at if next(self.made) % 2 else -1, 0
        if what == "mask":
            space = spaces.Dict(x=self.observation_spaces["cart_0"], action_mask=spaces.MultiBinary(2))
            self.observation_spaces = dict.fromkeys(self.possible_agents, space)

    def _seen(self, obs: dict[AgentID, Any], fails: bool = False) -> dict[AgentID, Any]:
        if self.what != "mask":
            return {agent: x * np.nan if fails and agent == "cart_1" else x for agent, x in obs.items()}
        masks = {agent: np.full(2, not (fails and agent == "cart_1"), np.int8) for agent in obs}
        return {agent: {"x": x, "action_mask": masks[agent]} for agent, x in obs.items()}

    def reset(self, **kwargs: Any) -> Any:
        obs, infos = super().reset(**kwargs)
        return self._seen(obs), infos

    def step(self, actions: dict[AgentID, Any]) -> Any:
        self.steps += 1
        fails = self.steps == self.at
        if fails and self.what == "raises":
            raise RuntimeError("broken")
        obs, rewards, *rest = super().step(actions)
        if fails and self.what == "reward":
            rewards["cart_1"] = np.inf
        return self._seen(obs, fails and self.what in ("nan", "mask")), rewards, *rest


@pytest.mark.parametrize(
    ("what", "at", "lost", "error", "text"),
    [
        ("raises", 7, 2, EnvError, "env 5 raised RuntimeError at its step 7: broken"),
        ("nan", 7, 2, ValueError, "env 5, step 7, agent 'cart_1', obs: expected finite numbers, got nan at index (0,)"),
        ("nan", 10, 8, ValueError, "env 5, step 10, agent 'cart_1', obs: expected finite numbers"),  # a final one
        ("nan", 12, 12, ValueError, "env 5, step 12, agent 'cart_1', obs: expected finite numbers"),  # the last step
        ("mask", 7, 2, ValueError, "env 5, step 7, agent 'cart_1', obs['action_mask']: expected at least one action"),
        ("mask", 12, 0, ValueError, "env 5, step 12, agent 'cart_1', obs['action_mask']: expected at least one action"),
        ("reward", 7, 2, ValueError, "env 5, step 7, rewards['cart_1']: expected finite numbers, got inf"),
    ],
)
def test_errors_name_env_step_and_agent_and_every_step_is_counted(
    what: str, at: int, lost: int, error: type[Exception], text: str
) -> None:
    runner = agent_runner(lambda _: Fails(what, at), module_for, num_envs=2, first_env_index=4)
    done = 0
    for _ in range(at // 6 if what == "mask" else (at - 1) // 6):  # a mask is used in the next step
        done += runner.sample(6).num_env_steps
    with pytest.raises(error, match=re.escape(text)):
        runner.sample(6)
    assert runner.step_counter.count == done + lost  # no step follows the one that is wrong
    raised = {"env_raised": 1} if what == "raises" else {}
    assert runner.num_env_steps_lost == {
        name: num for name, num in {"fragment": lost - len(raised), **raised}.items() if num
    }
    assert runner.sample(6).num_env_steps == 12
    assert runner.step_counter.count == done + lost + 12
    assert {one.length for one in runner._episode_of.values()} == {1}


class Interrupted(torch.inference_mode):
    """Is left open by the first exit, before which an interrupt comes."""

    exits = 0

    def __exit__(self, *error: Any) -> None:
        self.exits += 1
        if self.exits == 1:
            raise KeyboardInterrupt
        super().__exit__(*error)


def test_an_interrupt_leaves_no_inference_mode() -> None:
    runner = agent_runner(lambda _: CartPoles(2), module_for)
    runner._inference_mode = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        runner.sample(3)
    assert not torch.is_inference_mode_enabled()
    assert runner.sample(3).num_env_steps == 9


def test_modules_that_are_not_trained_act_and_have_no_rollout() -> None:
    class OneTrained(Settings):
        def is_trained(self, module_id: str) -> bool:
            return module_id == "p"

    runner = AgentRunner(OneTrained(env=lambda _: CartPoles(2)), run_seed=1)
    of = runner.observation_space["cart_0"], runner.action_space["cart_0"]
    policy_map = PolicyMap(runner.agents, ["p", "q"], {"cart_0": "p", "cart_1": "q"})
    runner.set_module(MultiRLModule({"p": module_for(*of), "q": module_for(*of)}), policy_map)
    rollout = runner.sample(5)
    assert [*rollout] == [*rollout.slots] == ["p"]
    assert rollout.stats["module_steps"] == {"p": 15, "q": 15}


@pytest.mark.parametrize("kind", [{}, {"module_class": SeesPast, "use_lstm": True, "max_seq_len": 5}])
def test_modules_that_are_not_trained_act_the_same(kind: dict[str, Any]) -> None:
    """On random schedules of starts, pauses and ends, the envs get the same actions whether "q" is trained or not."""

    class OneTrained(Settings):
        def is_trained(self, module_id: str) -> bool:
            return module_id == "p"

    sampled, calls = [], []
    for settings in (Settings, OneTrained):
        rng = np.random.default_rng(7)
        envs = [ScriptedEnv([random_script(rng) for _ in range(20)], num_actions=50) for _ in range(3)]
        remaining = iter(envs)
        runner = AgentRunner(settings(env=lambda _, remaining=remaining: next(remaining)), run_seed=1)
        torch.manual_seed(2)
        of = runner.observation_space["a"], runner.action_space["a"]
        modules = MultiRLModule({"p": module_for(*of), "q": module_for(*of, **kind)})
        with torch.no_grad():
            for parameter in modules["q"].parameters():
                parameter.mul_(3)  # so that its actions depend on what it sees
        runner.set_module(modules, PolicyMap(runner.agents, ["p", "q"], {"a": "p", "b": "q", "c": "q"}))
        sampled.append([runner.sample(num) for num in (3, 200, 129)])
        calls.append([env.calls for env in envs])
    assert calls[0] == calls[1]
    for expected, got in zip(*sampled, strict=True):
        assert differences(got["p"].columns, expected["p"].columns) == []
        for name in ("agent_steps", "module_steps", "agent_episodes"):
            assert got.stats[name] == expected.stats[name], name
        of_envs = ([one.finished for one in each.stats["multi_agent_episodes"]] for each in (got, expected))
        assert next(of_envs) == next(of_envs)


def test_an_error_of_a_module_that_is_not_trained_names_the_step() -> None:
    """Its rows are dropped after every 64 steps; the mask of step 64 is in its first row after that."""

    runner = agent_runner(lambda _: Fails("mask", 64), module_for, num_envs=2)
    runner.set_policies([], None)
    with pytest.raises(ValueError, match=r"^env 1, step 64, agent 'cart_1', obs\['action_mask'\]"):
        runner.sample(100)


def test_a_module_whose_spaces_differ_is_an_error() -> None:
    runner = AgentRunner(Settings(env=lambda _: CartPoles(2)), run_seed=1)
    other = module_for(spaces.Box(-1, 1, (2,)), runner.action_space["cart_0"])
    fitting = module_for(runner.observation_space["cart_0"], runner.action_space["cart_0"])
    modules = MultiRLModule({"p": fitting, "q": other})
    text = "agent 'cart_1': expected a module with its spaces, .*, got 'q' with Box"
    with pytest.raises(ValueError, match=text):
        runner.set_module(modules, PolicyMap(runner.agents, ["p", "q"], {"cart_0": "p", "cart_1": "q"}))
    runner.set_module(modules, PolicyMap(runner.agents, ["p", "q"], lambda agent, episode: "pq"[agent == "cart_1"]))
    with pytest.raises(ValueError, match=text):
        runner.sample(1)


def test_every_env_is_passed_on_and_closed() -> None:
    closed, passed = [], []

    class Closes(CartPoles):
        def close(self) -> None:
            closed.append(self)

    runner = AgentRunner(Settings(env=lambda _: Closes(2)), run_seed=1, on_env=passed.append)
    assert passed == runner.envs
    runner.stop()
    assert sorted(map(id, closed)) == sorted(id(guard.env) for guard in runner.envs)
    closed.clear()
    with pytest.raises(AttributeError):
        AgentRunner(Settings(env=lambda _: Closes(2)), run_seed=1, on_env=lambda env: env.no_such_thing)
    assert len(closed) == 3


class Breaks(Counter):
    """Raises in its seventh step."""

    steps = 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 7 + self.index % 2:
            raise RuntimeError("broken")
        return super().step(action)


@pytest.mark.parametrize("model", [{}, {"module_class": SeesPast, **LSTM}])
def test_envs_that_are_restarted_leave_the_rows_and_counts_of_an_env_of_one(model: dict[str, Any]) -> None:
    """The steps that raised are invalid rows of the one rollout, and no rows of the other."""
    restart = {"restart_failed_sub_environments": True, "records_episode_infos": True}
    alone = EnvRunner(Settings(env=counters_one_by_one(Breaks), **restart), run_seed=1)
    alone.set_module(module_for(alone.observation_space, alone.action_space, **model))
    make = counters_one_by_one(Breaks)
    made: list[Any] = []
    one_agent = Settings(env=lambda config: OneAgent(make(config), "a"), **restart)
    agents = AgentRunner(one_agent, run_seed=1, on_env=made.append)
    modules = MultiRLModule({"p": module_for(alone.observation_space, alone.action_space, **model)})
    agents.set_module(modules, PolicyMap(["a"], ["p"]))
    lost = 0
    for steps in (5, 1, 1, 2, 9, 30):
        expected, got = alone.sample(steps), agents.sample(steps)
        stats = {name: value for name, value in expected.stats.items() if name not in TIMES}
        if "episode_infos" in stats:
            stats["episode_infos"] = [{"a": info} for info in stats["episode_infos"]]
        assert not differences(stats, {name: got.stats[name] for name in stats})
        assert ("num_env_steps_lost" in stats) == ("num_env_steps_lost" in got.stats)
        assert got.num_env_steps == expected.num_env_steps
        lost += sum(stats.get("num_env_steps_lost", {}).values())
        for column, (env, _) in enumerate(got.slots.get("p", np.empty((0, 2), int)).tolist()):
            one, other = rows_of(expected, env), rows_of(got.modules["p"], column)
            tree.map_structure(lambda x, y: torch.testing.assert_close(y, x, rtol=1e-5, atol=1e-6), one, other)
    assert lost > 6
    assert alone.step_counter.count == agents.step_counter.count == 3 * 48
    assert [env.env_index for env in agents.envs] == [0, 1, 2]
    assert len(made) > 3
    assert {*agents.envs} <= {*made}


@pytest.mark.parametrize(("restarts", "num_faults", "tries"), [(True, 2, 3), (True, 3, 3), (False, 1, 1)])
def test_making_an_env_is_tried_three_times_if_envs_are_restarted(
    restarts: bool, num_faults: int, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restarting, "_wait", lambda failures: None)
    configs: list[Any] = []

    def make(config: dict[str, Any]) -> CartPoles:
        configs.append(dict(config))
        config.clear()  # each try gets a new copy
        if len(configs) <= num_faults:
            raise OSError("no license left")
        return CartPoles(2)

    settings = Settings(
        env=make, env_config={"x": 1}, num_envs_per_env_runner=1, restart_failed_sub_environments=restarts
    )
    if num_faults < tries:
        AgentRunner(settings, run_seed=1).stop()
    else:
        with pytest.raises(RuntimeError, match="got OSError: no license left"):
            AgentRunner(settings, run_seed=1)
    assert configs == [{"x": 1}] * tries


def test_an_env_that_raises_while_its_episode_is_continued_is_restarted() -> None:
    class Raises(CartPoles):
        faults: ClassVar[list[str]] = []

        def step(self, actions: dict[AgentID, Any]) -> Any:
            if self.faults:
                raise OSError(self.faults.pop())
            return super().step(actions)

    def runner_of_two() -> AgentRunner:
        settings = Settings(env=lambda _: Raises(2), num_envs_per_env_runner=2, restart_failed_sub_environments=True)
        runner = AgentRunner(settings, run_seed=1)
        module = module_for(runner.observation_space["cart_0"], runner.action_space["cart_0"])
        runner.set_module(MultiRLModule({"p": module}), PolicyMap(runner.agents, ["p"]))
        return runner

    before, after = runner_of_two(), runner_of_two()
    before.sample(4)
    after.set_state(before.get_state())
    first, second = after.envs
    Raises.faults = ["no port"]
    after.sample(1)
    assert [after._episode_of[e].length for e in range(2)] == [1, 5]
    assert after.envs[0] is not first
    assert after.envs[1] is second
    assert after.envs[0].env_index == 0
