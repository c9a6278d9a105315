"""A run that is resumed is the run that went on: to the bit, in a process of its own, in the middle of episodes."""

import functools
import hashlib
import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from gymnasium.spaces import Discrete

from algorithms import Algorithm, AlgorithmConfig
from algorithms.a2c import A2CConfig
from algorithms.appo import APPOConfig
from algorithms.ddpg import DDPGConfig
from algorithms.impala import IMPALAConfig
from algorithms.off_policy import ReplayConfig
from algorithms.ppo import PPOConfig
from algorithms.sac import SACConfig
from algorithms.sac.sac import FLASH
from algorithms.stream import StreamConfig
from algorithms.td3 import TD3Config
from rlmodule import Columns
from rlmodule.agents.episode import MultiAgentEpisode
from rlmodule.agents.multi_agent_env import MultiAgentEnv
from rlmodule.envs.checks import EnvGuard
from rlmodule.groups.env_runner_group import runner_class_for
from rlmodule.sampling.env_runner import EnvRunner
from rlmodule.testing.data import differences
from tests.algorithms.dqn.conftest import tiny
from tests.rlmodule.agents.envs import CartPoles

ITERATIONS = 2


class Walker(gym.Env):
    """A walk whose steps and lengths are random, with nested observations and actions. A class keeps its numbers
    outside: :class:`Liar` outside the seed, :class:`Keeper` in a state that it hands out."""

    observation_space = spaces.Dict({"at": spaces.Box(-99, 99, (2,), np.float64), "phase": spaces.Discrete(3)})
    action_space = spaces.Tuple((spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2, start=5)))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.at, self.phase = self.np_random.standard_normal(2), 0
        return self._obs(), {}

    def _obs(self) -> Any:
        return {"at": self.at.copy(), "phase": self.phase}

    def step(self, action: Any) -> Any:
        push, turn = action
        self.at = np.clip(self.at + push * (turn - 4) + self.np_random.standard_normal(2) / 9, -99, 99)
        self.phase = (self.phase + int(turn)) % 3
        return self._obs(), float(-abs(self.at).sum()), bool(self.np_random.random() < 0.05), False, {}


class Lister(Walker):
    """Returns lists in place of arrays."""

    observation_space = spaces.Dict({"at": spaces.Box(-99, 99, (2,), np.float32), "phase": spaces.Discrete(3)})

    def _obs(self) -> Any:
        return {"at": self.at.tolist(), "phase": self.phase}


class Liar(Walker):
    random = np.random.default_rng(0)

    def step(self, action: Any) -> Any:
        self.at = self.at + self.random.standard_normal(2) / 9
        return super().step(action)


class Keeper(Liar):
    def get_episode_state(self) -> dict[str, Any]:
        return {"at": self.at.tolist(), "phase": self.phase, "random": self.random.bit_generator.state} | {
            "own": self.np_random.bit_generator.state
        }

    def set_episode_state(self, state: dict[str, Any]) -> Any:
        self.at, self.phase = np.array(state["at"]), state["phase"]
        self.random.bit_generator.state, self.np_random.bit_generator.state = state["random"], state["own"]
        return self._obs()


class Choosing(Keeper):
    action_space = Discrete(4)

    def step(self, action: Any) -> Any:
        return super().step((np.full(2, action / 4 - 0.4), 5))


class Pushing(Keeper):
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def step(self, action: Any) -> Any:
        return super().step((action, 5))


class Visitors(MultiAgentEnv):
    """Agents come, act in turns, pause, leave and return at random. ``actions`` is the action space of 7."""

    possible_agents = ("a", 7, "c")
    random: np.random.Generator

    def __init__(self, actions: spaces.Space[Any] | None = None) -> None:
        self.observation_spaces = dict.fromkeys(self.possible_agents, spaces.Box(-99, 99, (2,), np.float64))
        self.action_spaces = dict.fromkeys(self.possible_agents, Discrete(3)) | {7: actions or Discrete(3)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.random = np.random.default_rng(seed)
        self.total, self.there = 0.0, ["a"]
        return self._obs(["a"]), {}

    def _obs(self, agents: list[Any]) -> Any:
        return {agent: np.clip(self.total + self.random.standard_normal(2), -99, 99) for agent in agents}

    def _some(self, agents: Iterable[Any], chance: float) -> list[Any]:
        return [agent for agent in agents if self.random.random() < chance]

    def step(self, actions: dict[Any, Any]) -> Any:
        rewards = {}
        for agent, action in actions.items():  # in an order that matters
            self.total += float(sum(map(np.sum, tree.flatten(action)))) * self.random.standard_normal()
            rewards[agent] = self.random.random() - 0.5
        if self.random.random() < 0.02:
            return self._obs(self.there), rewards, {}, {"__all__": True}, {}
        left = self._some(self.there, 0.1)
        come = self._some((agent for agent in self.possible_agents if agent not in self.there), 0.2)
        stay = [agent for agent in self.there if agent not in left]
        self.there = come + stay
        acts = come + self._some(stay, 0.5) or stay[:1]
        return self._obs(acts + left), rewards, dict.fromkeys(left, True), {}, {}


class Deceivers(Visitors):
    """Draws what the agents see from a generator that no seed resets."""

    outside = np.random.default_rng(0)

    def _obs(self, agents: list[Any]) -> Any:
        return {agent: self.outside.standard_normal(2) for agent in agents}


class Keepers(Visitors):
    """Seeds are not enough, but it hands out its state."""

    again: np.random.Generator = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return super().reset(seed=int(self.again.integers(99)))

    def _obs(self, agents: list[Any]) -> Any:
        self.seen = super()._obs(agents)
        return self.seen

    def get_episode_state(self) -> Any:
        random = [one.bit_generator.state for one in (self.random, self.again)]
        seen = [[agent, obs.tolist()] for agent, obs in self.seen.items()]
        return {"total": self.total, "there": self.there, "random": random, "seen": seen}

    def set_episode_state(self, state: Any) -> Any:
        self.total, self.there = state["total"], state["there"]
        self.random.bit_generator.state, self.again.bit_generator.state = state["random"]
        return {agent: np.array(obs) for agent, obs in state["seen"]}


def by_episode(agent: Any, episode: MultiAgentEpisode) -> str:
    return "odd" if (episode.number + len(str(agent))) % 2 else "even"


def replaying(config: type[ReplayConfig], env: Any, **values: Any) -> ReplayConfig:
    quick: dict[str, Any] = {
        "num_envs_per_env_runner": 2,
        "train_batch_size_per_learner": 16,
        "training_intensity": 8.0,
        "seed": 3,
    }
    quick |= {"num_steps_sampled_before_learning_starts": 32, "num_env_steps_per_iteration": 64}
    quick |= {"model_config": {"fcnet_hiddens": [16]}}
    return config(env=env, replay_capacity=256, **quick | values)


def on_policy(config: type[Any], env: Any, **values: Any) -> Any:
    quick: dict[str, Any] = {
        "num_envs_per_env_runner": 3,
        "train_batch_size_per_learner": 96,
        "minibatch_size": 32,
        "num_epochs": 2,
    }
    return config(env=env, **{"seed": 3, "model_config": {"fcnet_hiddens": [8]}} | quick | values)


def ppo(env: Any, **values: Any) -> PPOConfig:
    return on_policy(PPOConfig, env, **values)


SEQUENCES: dict[str, Any] = {"burn_in_len": 2, "train_batch_size_per_learner": 10, "rollout_fragment_length": 5}
SEQUENCES["num_steps_sampled_before_learning_starts"] = 64
NORMED = {"fcnet_hiddens": [8, 8], "fcnet_blocks": "simba", "fcnet_norm": "batch"}
LSTM = {"fcnet_hiddens": [8], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 5}
RESTARTED: dict[str, Any] = {"restart_failed_sub_environments": True}
SEQUENCES["model_config"] = LSTM
PAST = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}


def visitors(config: type[AlgorithmConfig] = PPOConfig, **values: Any) -> AlgorithmConfig:
    settings: dict[str, Any] = {"env": Visitors, "policies": ["odd", "even"], "policy_mapping_fn": by_episode}
    return on_policy(config, **settings | {"model_config": LSTM} | values)


def streaming(config: type[StreamConfig], env: Any, **values: Any) -> AlgorithmConfig:
    """Iterations of two batches, each of four rollouts."""
    short: dict[str, Any] = {"rollout_fragment_length": 8, "num_env_steps_per_iteration": 192}
    return on_policy(config, env, **short | values)


RUNS: dict[str, Callable[[], AlgorithmConfig]] = {
    "ppo, lstm that sees the past": lambda: ppo("Pendulum-v1", model_config=LSTM | PAST),
    "ppo, own state": lambda: ppo(Keeper),
    "ppo, novelty": lambda: ppo("CartPole-v1", rnd_coeff=0.5),
    "ppo, restarted envs": lambda: ppo("CartPole-v1", **RESTARTED),
    "agents, shared": lambda: ppo(CartPoles, policies="shared", env_config={"at_end": "rejoins"}),
    "agents, lstm, in turns": lambda: visitors(),
    "agents, own state": lambda: ppo(Keepers, policies="shared", num_envs_per_env_runner=1),
    "dqn": lambda: tiny(prioritized_replay=True, n_step=3, training_intensity=5.0, num_atoms=3, v_min=0, v_max=9),
    "sac": lambda: replaying(SACConfig, "Pendulum-v1", n_step=2, prioritized_replay=True),
    "flash": lambda: replaying(SACConfig, "Pendulum-v1", **FLASH | {"model_config": NORMED}),
    "td3": lambda: replaying(TD3Config, "Pendulum-v1", exploration_noise=[[0, 0.5], [500, 0.1]]),
    "dqn, sequences": lambda: tiny(**SEQUENCES),
    "a2c": lambda: on_policy(A2CConfig, Keeper, minibatch_size=None, num_epochs=1),
    "impala, lstm that sees the past": lambda: streaming(IMPALAConfig, "Pendulum-v1", model_config=LSTM | PAST),
    "appo, agents, in turns": lambda: visitors(APPOConfig, num_env_steps_per_iteration=192),
    "ppo, nested, sampled ahead": lambda: ppo(Walker, sample_ahead=1, model_config=LSTM | PAST),
    "agents, in turns, sampled ahead": lambda: visitors(sample_ahead=1),
    "dqn, sequences, sampled ahead": lambda: tiny(sample_ahead=1, **SEQUENCES),
}
FURTHER: dict[str, Callable[[], AlgorithmConfig]] = {
    "ppo, nested": lambda: ppo(Walker),
    "agents, own": lambda: ppo(CartPoles, policies="own", env_config={"num_agents": 2}, **RESTARTED),
    "agents, other actions": lambda: ppo(Visitors, policies="own", env_config={"actions": Walker.action_space}),
    "ddpg": lambda: replaying(DDPGConfig, "HalfCheetah-v5"),
    "dqn, noisy": lambda: tiny(noisy=True, dueling=True),
}


def fingerprint(algorithm: Algorithm) -> str:
    """SHA-256 of all state but the seconds that passed."""
    state, digest = algorithm.get_state(), hashlib.sha256()
    state["metrics"]["seconds"] = 0.0
    for path, leaf in tree.flatten_with_path(state):
        is_tensor = isinstance(leaf, torch.Tensor)
        value = leaf.detach().contiguous().numpy().tobytes() if is_tensor else repr(leaf).encode()
        digest.update(repr([*map(str, path)]).encode() + value)
    return digest.hexdigest()


def train(algorithm: Algorithm) -> list[list[str]]:
    """After each iteration the fingerprint, and all that a user sees but seconds."""
    seen = []
    for _ in range(ITERATIONS):
        result = algorithm.train()
        del result["timers"], result["time_total_s"], result["env_runners"]["num_env_steps_per_second"]
        if "workers" in result:
            result["workers"] = {name: x for name, x in result["workers"].items() if not name.endswith("_s")}
        seen.append([fingerprint(algorithm), repr(result)])
    return seen


def resume(folder: str) -> None:
    """Train on from every checkpoint in ``folder``; print what :func:`train` returns, by its name."""
    seen = {}
    for path in Path(folder).iterdir():
        with Algorithm.from_checkpoint(path, allow=["tests"]) as algorithm:
            seen[path.name] = train(algorithm)
    print(json.dumps(seen))


def check_resumed(runs: Mapping[str, Callable[[], AlgorithmConfig]], folder: Path) -> None:
    """Train each run for an iteration, save it, and train it on; then train on from the checkpoints in a process."""
    expected = {}
    for name, config in runs.items():
        with config().build() as algorithm:
            algorithm.train()
            algorithm.save(folder / name)
            expected[name] = train(algorithm)
    command = f"from tests.algorithms.test_resume import resume; resume({str(folder)!r})"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    got = json.loads(done.stdout.splitlines()[-1])
    assert got.keys() == expected.keys()
    for name, seen in expected.items():
        assert got[name] == seen, name


@pytest.mark.parametrize("runs", [RUNS, pytest.param(FURTHER, marks=pytest.mark.faults)], ids=["runs", "further"])
def test_a_resumed_run_equals_the_one_that_went_on_to_the_bit(
    runs: Mapping[str, Callable[[], AlgorithmConfig]], tmp_path: Path
) -> None:
    check_resumed(runs, tmp_path)


DISCRETE, CONTINUOUS = ("CartPole-v1", "LunarLander-v3"), ("Pendulum-v1", "HalfCheetah-v5")
MATRIX: dict[str, tuple[Callable[..., AlgorithmConfig], tuple[Any, ...]]] = {
    "ppo": (ppo, (*CONTINUOUS, *DISCRETE, Keeper)),
    "ppo, lstm": (functools.partial(ppo, model_config=LSTM | PAST), (*DISCRETE, *CONTINUOUS, Keeper)),
    "dqn": (functools.partial(tiny, prioritized_replay=True, n_step=3, noisy=True), (*DISCRETE, Choosing)),
    "dqn, sequences": (functools.partial(tiny, **SEQUENCES), (*DISCRETE, Choosing)),
    "sac": (functools.partial(replaying, SACConfig, prioritized_replay=True), (*CONTINUOUS, *DISCRETE, Keeper)),
    "td3": (functools.partial(replaying, TD3Config, n_step=2), (*CONTINUOUS, Pushing)),
    "agents": (lambda env, **values: visitors(env=env, **values), (Visitors, CartPoles, Keepers)),
    "a2c": (functools.partial(on_policy, A2CConfig, sample_ahead=1), (*CONTINUOUS, *DISCRETE, Keeper)),
    "impala": (functools.partial(streaming, IMPALAConfig), (*CONTINUOUS, *DISCRETE, Keeper)),
    "appo, lstm": (functools.partial(streaming, APPOConfig, model_config=LSTM), (*DISCRETE, *CONTINUOUS, Keeper)),
}
IN_ONE_PROCESS = ("impala", "appo, lstm")
"""Runs that repeat only in one process."""
REMOTE: dict[str, dict[str, Any]] = {
    "here": {},
    "async": {"gym_env_vectorize_mode": "async"},
    "1 runner": {"num_env_runners": 1},
    "2 runners": {"num_env_runners": 2, "num_envs_per_env_runner": 2},
    "2 runners, ahead": {"num_env_runners": 2, "num_envs_per_env_runner": 2, "sample_ahead": 1},
}


LEFT_OUT: dict[str, tuple[str, ...]] = {
    "here": (),
    "async": ("agents",),
    "1 runner": IN_ONE_PROCESS,
    "2 runners": IN_ONE_PROCESS,
    "2 runners, ahead": (*IN_ONE_PROCESS, "a2c"),  # which samples ahead with 2 runners, too
}


@pytest.mark.faults
@pytest.mark.parametrize("where", REMOTE)
def test_every_algorithm_in_every_env_wherever_it_is(where: str, tmp_path: Path) -> None:
    runs = {}
    for number, (name, (config, envs)) in enumerate(MATRIX.items()):
        for env in envs if where in ("here", "async") else (envs[number % len(envs)], envs[-1]):
            if name not in LEFT_OUT[where]:
                runs[f"{name}, {env}"] = functools.partial(config, env, **REMOTE[where])
    check_resumed(runs, tmp_path)


def test_env_processes_send_open_episodes_if_the_temporary_folder_has_a_long_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In which a socket cannot be, and multiprocessing sends tensors through one."""
    (folder := tmp_path / ("x" * 100)).mkdir()
    monkeypatch.setitem(multiprocessing.current_process()._config, "tempdir", str(folder))  # pyright: ignore
    for env in ("CartPole-v1", Keeper):
        with ppo(env, gym_env_vectorize_mode="async").build() as algorithm:
            algorithm.train()
            algorithm.save(tmp_path / "c")
        with Algorithm.from_checkpoint(tmp_path / "c", allow=["tests.algorithms.test_resume"]) as other:
            other.train()


LIARS: dict[str, Callable[[], PPOConfig]] = {
    "one agent": lambda: ppo(Liar),
    "agents": lambda: ppo(Deceivers, policies="shared"),
}


@pytest.mark.parametrize("kind", LIARS)
def test_an_env_that_is_random_outside_its_seed_is_named_and_its_episode_cut(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with LIARS[kind]().build() as algorithm:
        algorithm.train()
        algorithm.save(tmp_path / "c")
        steps = algorithm.env_steps
    with Algorithm.from_checkpoint(tmp_path / "c", allow=["tests.algorithms.test_resume"]) as other:
        other.train()
        assert other.env_steps == steps + 96
        assert other.env_runner_group.sample(1)[0].num_env_steps == 3
    message = [record.getMessage() for record in caplog.records]
    assert any(
        "env 0: expected its open episode to continue after the run was resumed, got another" in x for x in message
    )
    assert any("env 2" in x for x in message)


KINDS: dict[str, Callable[[int], Any]] = {
    "one agent": lambda num: ppo("CartPole-v1", num_envs_per_env_runner=num),
    "lists": lambda num: ppo(Lister, num_envs_per_env_runner=num),
    "memory": lambda num: ppo("Pendulum-v1", num_envs_per_env_runner=num, model_config=LSTM | PAST),
    "agents": lambda num: visitors(num_envs_per_env_runner=num),
}


def runner_of(envs: range, module: Any, state: dict[str, Any], kind: str = "one agent") -> Any:
    """A runner of some of the run's envs that goes on from a state of all of them."""
    config = KINDS[kind](len(envs))
    runner = runner_class_for(config)(config, run_seed=1, first_env_index=envs.start)
    runner.set_module(module)
    runner.set_state({index: one for index, one in state.items() if int(index) in envs})
    return runner


@pytest.mark.parametrize("kind", KINDS)
def test_open_episodes_move_between_runners_to_the_bit(kind: str) -> None:
    with KINDS[kind](4).build() as algorithm:
        module = algorithm.env_runner_group.local_runner.module
        whole = runner_of(range(4), module, {}, kind)
        whole.sample(33)
        state = whole.get_state()
        episodes = {index: one["episode"] for index, one in state.items()}
        assert any(one["length"] for one in episodes.values())
        # four envs in two runners, and then in one again
        moved: dict[str, Any] = {}
        for envs in (range(2), range(2, 4)):
            runner = runner_of(envs, module, state, kind)
            counted = runner.step_counter.count
            runner._resume()
            assert runner.step_counter.count == counted  # replayed steps were counted when they were sampled
            moved |= runner.get_state()
        again = runner_of(range(4), module, moved, kind)
        again._resume()
        for state_after in (moved, again.get_state()):
            assert differences(episodes, {index: one["episode"] for index, one in state_after.items()}) == []
            assert [one["noise"] for one in state_after.values()] == [one["noise"] for one in state.values()]
        rollout, other = whole.sample(20), again.sample(20)
        for one in (rollout, other):
            for seconds in ("env_step", "forward", "bookkeeping"):
                del one.stats[seconds]
        assert repr(rollout.stats) == repr(other.stats)
        pairs = [(rollout, other)]
        if kind == "agents":
            pairs = [(of_module, other.modules[module_id]) for module_id, of_module in rollout.modules.items()]
        for one, same in pairs:
            for name in ("columns", "last_obs", "final_index", "final_obs", "state_in"):
                assert differences(vars(one)[name], vars(same)[name]) == [], name


def test_a_new_env_beside_resumed_ones_begins_an_episode() -> None:
    with KINDS["one agent"](2).build() as algorithm:
        module = algorithm.env_runner_group.local_runner.module
        first = runner_of(range(2), module, {})
        last = first.sample(7).last_obs
        grown = EnvRunner(KINDS["one agent"](3), run_seed=1)
        grown.set_module(module)
        grown.set_state(first.get_state())
        rollout = grown.sample(1)
    obs, starts = rollout.columns[Columns.OBS][0], rollout.columns[Columns.STARTS][0]
    assert torch.equal(obs[:2], last)
    assert starts.tolist() == [False, False, True]


def test_an_episode_of_more_actions_than_are_kept_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlmodule.envs.checks.MOST_ACTIONS", 5)
    with KINDS["one agent"](2).build() as algorithm:
        module = algorithm.env_runner_group.local_runner.module
        runner = runner_of(range(2), module, {})
        runner.sample(6)
        state = runner.get_state()
        assert [len(one["episode"]["actions"][0]) for one in state.values()] == [5, 5]
        assert runner_of(range(2), module, state).sample(1).columns[Columns.STARTS].all()


def test_what_an_env_does_to_its_actions_is_not_repeated() -> None:
    class Doubling(Walker):
        action_space = spaces.Box(-1, 1, (2,), np.float32)

        def step(self, action: Any) -> Any:
            action *= 2
            return super().step((action, 5))

    config = ppo(Doubling)
    with config.build() as algorithm:
        algorithm.train()
        runner = algorithm.env_runner_group.local_runner
        other = EnvRunner(config, run_seed=algorithm.run_seed)
        other.set_module(runner.module)
        other.set_state(runner.get_state())
        assert differences(runner.sample(9).columns, other.sample(9).columns) == []


class Clock(gym.Env):
    """Observes its number of steps, and hands it out as its state."""

    observation_space, action_space = spaces.Box(0, 99, (1,), np.float32), Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.time = 0
        return self._obs(), {}

    def _obs(self) -> Any:
        return np.array([self.time], np.float32)

    def step(self, action: Any) -> Any:
        self.time += 1
        return self._obs(), 1.0, False, False, {}

    def get_episode_state(self) -> int:
        return self.time

    def set_episode_state(self, state: int) -> Any:
        self.time = state
        return self._obs()


class Twice(gym.Wrapper):
    def step(self, action: Any) -> Any:
        self.env.step(action)
        return self.env.step(action)


@pytest.mark.parametrize(("inner", "outer"), [(10, 99), (99, 5)])
def test_time_limits_count_on_in_an_episode_that_continues_from_a_state(
    inner: int, outer: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Either limit ends the episode at step 5, which are 10 steps of the innermost env."""

    def guard() -> EnvGuard:
        return EnvGuard(gym.wrappers.TimeLimit(Twice(gym.wrappers.TimeLimit(Clock(), inner)), outer), 3)

    def truncated(guard: EnvGuard, steps: int) -> list[bool]:
        return [guard.step(0)[3] for _ in range(steps)]

    first, second, third = guard(), guard(), guard()
    first.reset(seed=1)
    assert truncated(first, 3) == [False, False, False]
    episode = first.get_open_episode()
    assert episode == {"seed": 1, "number": 0, "env_state": 6, "elapsed": [3, 6]}
    episode["obs"] = [np.array([6], np.float32)]
    obs, goes_on = second.continue_episode({3: episode})
    assert (obs.tolist(), goes_on) == ([6.0], True)
    assert second.get_open_episode()["elapsed"] == [3, 6]
    assert truncated(second, 2) == truncated(first, 2) == [False, True]
    second.reset()
    assert truncated(second, 5) == [False] * 4 + [True]
    del episode["elapsed"]  # the limits cannot be as they were
    assert third.continue_episode({3: episode})[1] is False
    assert "env 3: expected its open episode to continue" in caplog.text


def test_every_episode_has_another_seed_that_follows_from_the_first() -> None:
    class Noting(Walker):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            seeds.append(seed)
            return super().reset(seed=seed)

    lives = []
    for first in (7, 7, 8):
        seeds: list[int | None] = []
        guard = EnvGuard(Noting())
        guard.reset(seed=first)
        for _ in range(20):
            guard.reset()
        assert None not in seeds
        lives.append(seeds)
    assert lives[0] == lives[1]
    assert lives[0][0] == 7
    assert len({*lives[0], *lives[2]}) == 2 * 21
