"""Hindsight changes drawn batches as plain loops over lists of steps would, and refuses what it cannot do."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from algorithms.ddpg import DDPGConfig
from algorithms.dqn import DQN, DQNConfig
from algorithms.replay import HindsightReplay, PrioritizedReplay, ReplayBuffer, SequenceReplay
from algorithms.sac import SACConfig
from algorithms.td3 import TD3Config
from rlmodule import Columns, Rollout
from rlmodule.agents.multi_agent_env import MultiAgentEnv
from tests.algorithms.replay.streams import Step, Stream

GAMMA = 0.9


def achieved(number: int) -> list[float]:
    """The goal that the observation ``number`` achieves; the second number is that of no other."""
    return [number % 3, number]


def desired(number: int) -> list[float]:
    """The goal of the env when it shows the observation ``number``."""
    return [(number // 5) % 3, -number]


def reward(got: Any, wanted: Any, infos: Any) -> np.ndarray:
    """Depends on every number of the desired goal."""
    assert len(got) == len(wanted) == len(infos)
    return np.where(got[:, 0] == wanted[:, 0], 1.0, 0.0) + wanted[:, 1] / 1024


def terminated(got: Any, wanted: Any, infos: Any) -> np.ndarray:
    assert len(got) == len(wanted) == len(infos)
    return got[:, 0] == wanted[:, 0]


def terminated_alone(got: Any, wanted: Any, info: Any) -> bool:
    return bool(got[0] == wanted[0])


class Goals:
    """A :class:`Stream` whose envs set goals: observations are a Dict, rewards follow from the goals, and rollouts have
    the true final observation of every end."""

    def __init__(self, seed: int, num_envs: int, mode: str = "same_step") -> None:
        self.stream = Stream(seed, num_envs, mode=mode)
        self.steps = self.stream.steps
        goal = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.space = spaces.Dict(observation=self.stream.space, achieved_goal=goal, desired_goal=goal)

    def dict_of(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
        numbers = obs[..., 0].to(torch.int64)
        leaves = {"observation": obs}
        for name, goal in (("achieved_goal", achieved), ("desired_goal", desired)):
            values = [goal(number) for number in numbers.flatten().tolist()]
            leaves[name] = torch.tensor(values, dtype=torch.float32).reshape(*numbers.shape, 2)
        return leaves

    def rollout(self, num_steps: int, restart: float = 0.0) -> Rollout:
        rollout = self.stream.rollout(num_steps, restart)
        index, finals = [], []
        for slot, of_env in enumerate(self.steps):
            for t, step in enumerate(of_env[len(of_env) - num_steps :]):
                if step.valid:
                    after = step.following[-1]
                    step.reward = float(reward(np.array([achieved(after)]), np.array([desired(after)]), [{}])[0])
                    rollout.columns[Columns.REWARDS][t, slot] = step.reward
                if step.valid and (step.terminated or (step.ended and rollout[Columns.TRUNCATEDS][t, slot])):
                    index.append((t, slot))
                    finals.append(self.stream.observe(step.following))
        final_obs = torch.from_numpy(np.array(finals, np.float32).reshape(-1, 3))
        return dataclasses.replace(
            rollout,
            columns=rollout.columns | {Columns.OBS: self.dict_of(rollout[Columns.OBS])},
            last_obs=self.dict_of(rollout.last_obs),
            final_index=torch.tensor(index, dtype=torch.int64).reshape(-1, 2),
            final_obs=self.dict_of(final_obs),
        )

    def places(self) -> dict[int, tuple[int, int]]:
        """The env and the step of each observation that is the first of a valid step."""
        return {step.stack[-1]: (n, i) for n, of_env in enumerate(self.steps) for i, step in enumerate(of_env)}

    def episode_from(self, n: int, i: int) -> list[Step]:
        """The steps of an episode from step ``i`` of env ``n`` on, as far as it is known."""
        found = []
        for step in self.steps[n][i:]:
            found.append(step)
            if step.ended:
                break
        return found

    def outcome(self, n: int, i: int, goal: list[float], ends: bool) -> tuple[float, float]:
        """Reward and discount of step ``i`` of env ``n`` under another goal, which may end the episode."""
        step = self.steps[n][i]
        got, wanted = np.array([achieved(step.following[-1])]), np.array([goal])
        is_over = bool(terminated(got, wanted, [{}])[0]) if ends else step.terminated
        return float(reward(got, wanted, [{}])[0]), 0.0 if is_over else GAMMA


def buffer_of(goals: Goals, capacity: int, hindsight: HindsightReplay | None, **changed: Any) -> ReplayBuffer:
    arguments: dict[str, Any] = {"num_envs": goals.stream.num_envs, "gamma": GAMMA} | changed
    seed = np.random.SeedSequence(7)
    return ReplayBuffer(
        goals.space, goals.stream.action_space, capacity=capacity, hindsight=hindsight, seed=seed, **arguments
    )


def check_rows(goals: Goals, buffer: ReplayBuffer, size: int, strategy: str, ends: bool) -> set[Any]:
    """Compare a batch of rows with the lists. Return the steps whose goals changed, with the steps that gave them."""
    batch = buffer.sample(size).batch
    places, seen = goals.places(), set()
    obs, after = batch[Columns.OBS], batch[Columns.NEXT_OBS]
    for row in range(size):
        number = int(obs["observation"][row, 0])
        n, i = places[number]
        steps = goals.episode_from(n, i)
        goal = obs["desired_goal"][row].tolist()
        assert obs["achieved_goal"][row].tolist() == achieved(number)
        last = steps[0].following[-1]
        assert after["achieved_goal"][row].tolist() == achieved(last)
        if goal == desired(number):
            assert after["desired_goal"][row].tolist() == desired(last)
            stored, _, discount, _ = goals.stream.window(n, i, 1, GAMMA)
        else:
            reached = [achieved(step.following[-1]) for step in steps]
            assert goal in (reached if strategy == "future" else reached[-1:])
            assert after["desired_goal"][row].tolist() == goal
            stored, discount = goals.outcome(n, i, goal, ends)
            seen.add((number, int(goal[1])))
        assert float(batch[Columns.REWARDS][row]) == pytest.approx(stored, abs=1e-5)
        assert float(batch[Columns.DISCOUNTS][row]) == pytest.approx(discount, abs=1e-6)
    return seen


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    num_envs=st.integers(1, 3),
    kept=st.integers(4, 24),
    mode=st.sampled_from(["same_step", "next_step"]),
    strategy=st.sampled_from(["future", "final"]),
    ends=st.sampled_from([None, terminated, terminated_alone]),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=8),
    restart=st.sampled_from([0.0, 0.3]),
)
def test_a_batch_of_rows_is_what_plain_loops_make_of_it(
    seed: int, num_envs: int, kept: int, mode: str, strategy: Any, ends: Any, lengths: Any, restart: float
) -> None:
    goals = Goals(seed, num_envs, mode)
    hindsight = HindsightReplay(ratio=0.7, reward=reward, terminated=ends, strategy=strategy)
    buffer = buffer_of(goals, kept * num_envs, hindsight)
    for length in lengths:
        buffer.add(goals.rollout(min(length, buffer.rows - 1), restart))
        if buffer.num_drawable:
            check_rows(goals, buffer, 24, strategy, ends is not None)


def test_every_step_up_to_the_end_gives_its_goal_as_often_as_the_others() -> None:
    goals = Goals(3, 2)
    buffer = buffer_of(goals, 60, HindsightReplay(ratio=1.0, reward=reward))
    for _ in range(8):
        buffer.add(goals.rollout(7))  # the ring wraps, and episodes are open
    seen = set().union(*(check_rows(goals, buffer, 500, "future", False) for _ in range(8)))
    places, drawable = goals.places(), buffer.kept_rows
    expected = {
        (step.stack[-1], later.following[-1])
        for n, of_env in enumerate(goals.steps)
        for i, step in enumerate(of_env)
        if len(of_env) - i <= drawable
        for later in goals.episode_from(n, i)
    }
    assert seen == expected
    counts = dict.fromkeys(range(3), 0)
    number = next(number for number, (n, i) in places.items() if i > 30 and len(goals.episode_from(n, i)) == 3)
    later = [step.following[-1] for step in goals.episode_from(*places[number])]
    for _ in range(40):
        obs = buffer.sample(500).batch[Columns.OBS]
        drawn = obs["desired_goal"][obs["observation"][:, 0] == number, 1].tolist()
        for goal in drawn:
            counts[later.index(int(goal))] += 1
    total = sum(counts.values())
    assert total > 200
    assert all(abs(count - total / 3) < 4 * math.sqrt(total * 2 / 9) for count in counts.values())


def test_only_goals_rewards_and_ends_change_and_only_in_the_rows_that_are_picked() -> None:
    buffers = []
    for hindsight in (HindsightReplay(ratio=0.5, reward=reward, terminated=terminated), None):
        goals = Goals(5, 2)
        buffers.append(buffer_of(goals, 40, hindsight))
        buffers[-1].add(goals.rollout(20))
    changed, plain = (buffer.sample(64) for buffer in buffers)
    assert np.array_equal(changed.indices, plain.indices)
    same = changed.batch[Columns.OBS]["desired_goal"] == plain.batch[Columns.OBS]["desired_goal"]
    picked = ~same.all(1)
    assert 16 < int(picked.sum()) < 48
    paths = [path for path, _ in tree.flatten_with_path(plain.batch)]
    for path, ours, theirs in zip(paths, tree.flatten(changed.batch), tree.flatten(plain.batch), strict=True):
        may_change = "desired_goal" in path or path[0] in (Columns.REWARDS, Columns.DISCOUNTS)
        rows = ~picked if may_change else slice(None)
        assert torch.equal(ours[rows], theirs[rows]), path


def test_columns_of_several_agents_fill_at_their_own_pace() -> None:
    goals, buffers = [Goals(seed, 1) for seed in range(3)], []
    many = Goals(9, 3)
    many.stream.steps[:] = [x.steps[0] for x in goals]  # the lists that are compared
    buffer = buffer_of(many, 90, HindsightReplay(ratio=0.7, reward=reward, terminated=terminated))
    rng = np.random.default_rng(1)
    for x, first in zip(goals, (0, 10_000, 20_000), strict=True):
        x.stream._count = first  # no two observations are alike
    for _ in range(40):
        agent = int(rng.integers(3))
        buffer.add(goals[agent].rollout(int(rng.integers(1, 5))), np.array([agent]))
        many.stream.steps[:] = [x.steps[0] for x in goals]
        buffers.append(check_rows(many, buffer, 16, "future", True))
    assert len(set().union(*buffers)) > 100


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    mode=st.sampled_from(["same_step", "next_step"]),
    length=st.integers(1, 4),
    burn_in=st.integers(0, 3),
    strategy=st.sampled_from(["future", "final"]),
    ends=st.sampled_from([None, terminated]),
    prioritized=st.booleans(),
    lengths=st.lists(st.integers(1, 12), min_size=3, max_size=8),
)
def test_a_batch_of_sequences_is_what_plain_loops_make_of_it(
    seed: int,
    mode: str,
    length: int,
    burn_in: int,
    strategy: Any,
    ends: Any,
    prioritized: bool,
    lengths: list[int],
) -> None:
    goals = Goals(seed, 2, mode)
    sequences = SequenceReplay(length=length, burn_in=burn_in, initial_state=torch.zeros(1))
    hindsight = HindsightReplay(ratio=0.6, reward=reward, terminated=ends, strategy=strategy)
    order = PrioritizedReplay() if prioritized else None
    kept = 2 * length + burn_in + 11
    buffer = buffer_of(goals, 2 * kept, hindsight, sequences=sequences, prioritized=order)
    for steps in lengths:
        buffer.add(goals.rollout(min(steps, buffer.rows - 1)))
        if buffer.num_drawable:
            sample = buffer.sample(6 * length)
            check_sequences(goals, sample.batch, strategy, ends is not None)
            assert sample.owners is not None
            buffer.update_priorities(sample, np.arange(len(sample.owners)) % 5.0)


def check_sequences(goals: Goals, batch: Any, strategy: str, ends: bool) -> None:
    places = goals.places()
    obs = batch[Columns.OBS]
    num = obs["observation"].shape[1]
    flat = {name: leaf.flatten(0, 1) for name, leaf in obs.items()}
    burn_in = batch.get(Columns.BURN_IN, {}).get(Columns.OBS)
    before = 0 if burn_in is None else len(burn_in["observation"])
    valid, following = batch[Columns.VALID_ROWS].tolist(), batch[Columns.NEXT_ROWS].tolist()
    rewards, discounts = batch[Columns.REWARDS].flatten(), batch[Columns.DISCOUNTS].flatten()
    for b in range(num):
        rows: list[tuple[int, list[float], int | None]] = []  # number and goal of each row, and its index
        for t in range(before):
            rows.append((int(burn_in["observation"][t, b, 0]), burn_in["desired_goal"][t, b].tolist(), None))
        for k, row in enumerate(valid):
            if row % num == b:
                rows.append((int(flat["observation"][row, 0]), flat["desired_goal"][row].tolist(), k))
        parts: dict[int, list[Any]] = {}
        for number, goal, k in rows:
            n, i = places[number]
            end = i + len(goals.episode_from(n, i))
            parts.setdefault(end, []).append((number, goal, k, n, i))
        for part in parts.values():
            first, goal, _, n, i = part[0]
            is_new = goal != desired(first)
            if is_new:
                reached = [achieved(step.following[-1]) for step in goals.episode_from(n, i)]
                assert goal in (reached if strategy == "future" else reached[-1:])
            for number, of_row, k, n, i in part:
                assert of_row == (goal if is_new else desired(number))
                if k is None:
                    continue
                if is_new:
                    total, discount = goals.outcome(n, i, goal, ends)
                else:
                    total, _, discount, _ = goals.stream.window(n, i, 1, GAMMA)
                assert float(rewards[valid[k]]) == pytest.approx(total, abs=1e-5)
                assert float(discounts[valid[k]]) == pytest.approx(discount, abs=1e-6)
                if discount:
                    last = goals.steps[n][i].following[-1]
                    assert int(flat["observation"][following[k], 0]) == last
                    wanted = goal if is_new else desired(last)
                    assert flat["desired_goal"][following[k]].tolist() == wanted


def digest(batches: list[Any]) -> str:
    sha = hashlib.sha256()
    for batch in batches:
        for leaf in tree.flatten(batch):
            sha.update(leaf.numpy().tobytes())
    return sha.hexdigest()


@pytest.mark.parametrize("number", [1e6, math.nan])
@pytest.mark.parametrize("kind", ["rows", "sequences"])
def test_rows_that_do_not_count_change_no_batch(kind: str, number: float) -> None:
    more: dict[str, Any] = {}
    if kind == "sequences":
        more = {"sequences": SequenceReplay(length=3, burn_in=2, initial_state=torch.zeros(1))}
    goals = Goals(3, 3, "next_step")
    hindsight = HindsightReplay(ratio=0.8, reward=reward, terminated=terminated)
    first, second = (buffer_of(goals, 90, hindsight, **more) for _ in range(2))
    for _ in range(12):
        rollout = goals.rollout(5)
        invalid = ~rollout[Columns.VALID]

        def spoilt(column: torch.Tensor, invalid: torch.Tensor = invalid) -> torch.Tensor:
            column = column.clone()
            if column.is_floating_point():
                column[invalid] = number
            return column

        spoilt_columns = tree.map_structure(spoilt, rollout.columns)
        first.add(rollout)
        second.add(dataclasses.replace(rollout, columns=spoilt_columns))
    batches = [[buffer.sample(48).batch for _ in range(20)] for buffer in (first, second)]
    assert digest(batches[0]) == digest(batches[1])
    assert any(invalid.any() for invalid in [~goals.rollout(5)[Columns.VALID] for _ in range(5)])


@pytest.mark.parametrize("rows", [9, 48])
@pytest.mark.parametrize("kind", ["rows", "priorities", "sequences"])
def test_a_loaded_buffer_goes_on_in_mid_episode_bit_for_bit(kind: str, rows: int) -> None:
    more: dict[str, Any] = {}
    if kind == "priorities":
        more = {"prioritized": PrioritizedReplay()}
    elif kind == "sequences":
        more = {"sequences": SequenceReplay(length=3, burn_in=2, initial_state=torch.zeros(1))}
    goals = Goals(2, 3)
    hindsight = HindsightReplay(ratio=0.8, reward=reward, terminated=terminated)
    first, second = (buffer_of(goals, 90, hindsight, **more) for _ in range(2))
    for _ in range(rows // 3):
        first.add(goals.rollout(3))
    first.sample(32)
    assert any(not of_env[-1].ended for of_env in goals.steps)
    other = Goals(4, 3)
    for _ in range(4):
        second.add(other.rollout(25))  # more steps than the first one has, all of them replaced
    second.sample(32)
    second.set_state(tree.map_structure(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, first.get_state()))
    batches: list[list[Any]] = [[], []]
    for i in range(100):
        if i % 10 == 9:
            rollout = goals.rollout(3)
            first.add(rollout)
            second.add(rollout)
        for buffer, drawn in zip((first, second), batches, strict=True):
            drawn.append(buffer.sample(24).batch)
    assert digest(batches[0]) == digest(batches[1])


def test_the_state_of_a_run_without_hindsight_is_refused_since_it_lacks_final_observations() -> None:
    goals = Goals(2, 2)
    plain, buffer = buffer_of(goals, 40, None), buffer_of(goals, 40, HindsightReplay(ratio=0.5, reward=reward))
    plain.add(goals.rollout(9))
    with pytest.raises(ValueError, match=r"expected final observations of all ends of episodes, got final obs.* None"):
        buffer.set_state(plain.get_state())
    plain.set_state(buffer.get_state())


def test_a_rollout_without_the_final_observation_of_a_terminated_step_is_refused() -> None:
    goals = Goals(2, 2)
    buffer = buffer_of(goals, 60, HindsightReplay(ratio=0.5, reward=reward))
    rollout = goals.rollout(20)
    terminal = rollout[Columns.TERMINATEDS][tuple(rollout.final_index.T)]
    assert terminal.any()
    fewer = {"final_index": rollout.final_index[~terminal]}
    fewer["final_obs"] = {name: leaf[~terminal] for name, leaf in rollout.final_obs.items()}
    with pytest.raises(ValueError, match=r"final_index: expected .* steps that end an episode, got \d+ rows. Sample w"):
        buffer.add(dataclasses.replace(rollout, **fewer))


# ------------------------------------------------------------------------------------------------- the guard of rewards


def other_rewards(share: float) -> Any:
    def function(got: Any, wanted: Any, infos: Any) -> Any:
        wrong = got[:, 1] % 100 < 100 * share
        return reward(got, wanted, infos) + wrong

    return function


def filled(function: Any) -> ReplayBuffer:
    goals = Goals(6, 2)
    buffer = buffer_of(goals, 400, HindsightReplay(ratio=0.8, reward=function))
    buffer.add(goals.rollout(150))
    return buffer


def test_rewards_that_the_function_gives_otherwise_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    buffer = filled(other_rewards(0.3))
    with caplog.at_level(logging.WARNING, "algorithms.replay"):
        buffer.sample(256)
        buffer.sample(256)
    assert len(caplog.messages) == 1
    assert "her_ratio: expected the rewards of the env from compute_reward" in caplog.messages[0]
    assert any(f"{share}% of the steps" in caplog.messages[0] for share in range(20, 41))


def test_rewards_that_are_all_other_ones_are_refused() -> None:
    buffer = filled(other_rewards(1.0))
    with pytest.raises(
        ValueError, match=r"another one for 100% of the steps in the first batch, such as .*, or pass a"
    ):
        buffer.sample(256)


def test_equal_rewards_are_not_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "algorithms.replay"):
        filled(reward).sample(256)
    assert not caplog.messages


def test_clipped_rewards_are_compared_and_written_as_clipped() -> None:
    goals = Goals(6, 2)
    settings = HindsightReplay(ratio=1.0, reward=lambda *goals: 5 * reward(*goals) + 1000, clip="sign")
    buffer = buffer_of(goals, 100, settings)
    rollout = goals.rollout(40)
    rollout.columns[Columns.REWARDS].fill_(1.0)
    buffer.add(rollout)
    assert set(buffer.sample(64).batch[Columns.REWARDS].tolist()) == {1.0}


# ----------------------------------------------------------------------------------------------------------- whole runs


class Line(gym.Env[Any, Any]):
    """Walk along a line to a goal. The first observation of an episode says that an absurd goal was achieved."""

    ABSURD = 99.0
    action_space: gym.Space[Any] = spaces.Discrete(2)

    def __init__(self, length: int = 6) -> None:
        self.length = length
        box = spaces.Box(-100.0, 100.0, (1,), np.float32)
        self.observation_space = spaces.Dict(observation=box, achieved_goal=box, desired_goal=box)

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -(np.abs(achieved_goal - desired_goal).max(-1) > 0.5).astype(np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.at, self.goal = 0, 0.0, float(self.np_random.integers(-3, 4))
        return self._obs(self.ABSURD), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.at += 2.0 * float(np.mean(action)) - 1.0 if isinstance(self.action_space, spaces.Discrete) else 0.3
        obs = self._obs(self.at)
        value = self.compute_reward(obs["achieved_goal"], obs["desired_goal"], {})
        return obs, float(value), bool(value == 0.0), self.t == self.length, {}

    def _obs(self, achieved: float) -> Any:
        numbers = {"observation": self.at, "achieved_goal": achieved, "desired_goal": self.goal}
        return {name: np.array([number], np.float32) for name, number in numbers.items()}


class Slide(Line):
    """The same with a continuous action."""

    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)


SMALL: dict[str, Any] = {
    "seed": 1,
    "n_step": 1,
    "train_batch_size_per_learner": 32,
    "num_steps_sampled_before_learning_starts": 64,
    "num_env_steps_per_iteration": 64,
    "training_intensity": 8.0,
    "replay_capacity": 512,
    "model_config": {"fcnet_hiddens": [8]},
}


@pytest.mark.parametrize(
    ("config_class", "env"), [(DQNConfig, Line), (SACConfig, Slide), (TD3Config, Slide), (DDPGConfig, Slide)]
)
def test_one_setting_turns_it_on_and_no_goal_is_of_the_next_episode(config_class: Any, env: Any) -> None:
    with config_class(env=env, **SMALL).replay(her_ratio=0.8).build() as algorithm:
        algorithm.train()
        algorithm.train()
        batch = algorithm.replay.sample(512).batch
    goals = batch[Columns.OBS]["desired_goal"]
    assert env.ABSURD not in goals
    assert torch.equal(goals, batch[Columns.NEXT_OBS]["desired_goal"])
    assert len(goals.unique()) > 3


def test_the_final_goal_of_a_terminated_step_is_what_it_achieved() -> None:
    with DQNConfig(env=Line, **SMALL).replay(her_ratio=1.0, her_strategy="final").build() as run:
        run.train()
        batch, buffer = run.replay.sample(512), run.replay
        ends = buffer.ring.has(4, batch.indices)
        assert ends.any()
        goals = batch.batch[Columns.OBS]["desired_goal"][torch.from_numpy(ends)]
        reached = batch.batch[Columns.NEXT_OBS]["achieved_goal"][torch.from_numpy(ends)]
    assert torch.equal(goals, reached)


@pytest.mark.parametrize("model", [{}, {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}])
def test_a_run_resumes_in_mid_episode_with_equal_batches(model: dict[str, Any], tmp_path: Path) -> None:
    config = DQNConfig(env=Line, **SMALL | {"model_config": {"fcnet_hiddens": [8], **model}})
    config.env_runners(num_envs_per_env_runner=3).replay(her_ratio=0.8, prioritized_replay=True)
    with config.build() as first:
        first.train()
        saved = first.save(tmp_path / "saved")
        with DQN.from_checkpoint(saved, allow=[__name__]) as second:
            batches = [[run.replay.sample(32).batch for _ in range(100)] for run in (first, second)]
            assert digest(batches[0]) == digest(batches[1])
            for run in (first, second):
                run.train()
            batches = [[run.replay.sample(32).batch for _ in range(20)] for run in (first, second)]
            assert digest(batches[0]) == digest(batches[1])


class Lines(MultiAgentEnv):
    """Two agents, each on a line of its own."""

    def __init__(self) -> None:
        self.lines = {name: Line() for name in ("a", "b")}
        self.possible_agents = [*self.lines]
        self.agents: list[str] = []
        self.observation_spaces = {name: line.observation_space for name, line in self.lines.items()}
        self.action_spaces = {name: line.action_space for name, line in self.lines.items()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.agents = [*self.lines]
        found = {name: line.reset(seed=None if seed is None else seed + i) for i, (name, line) in self._numbered()}
        return {name: obs for name, (obs, _) in found.items()}, {}

    def _numbered(self) -> Any:
        return enumerate(self.lines.items())

    def step(self, actions: Any) -> Any:
        found = {name: self.lines[name].step(action) for name, action in actions.items()}
        obs, rewards, terminateds, truncateds, _ = ({n: x[k] for n, x in found.items()} for k in range(5))
        self.agents = [name for name in self.agents if not (terminateds.get(name) or truncateds.get(name))]
        return obs, rewards, terminateds, truncateds, {}


@pytest.mark.parametrize("policies", ["shared", "own"])
def test_agents_get_goals_of_their_own(policies: Any) -> None:
    config = DQNConfig(env=Lines, **SMALL).multi_agent(policies=policies)
    with config.replay(her_ratio=0.9, her_reward_fn=Line().compute_reward).build() as run:
        run.train()
        run.train()
        for buffer in run.replays.values():
            goals = buffer.sample(512).batch[Columns.OBS]["desired_goal"]
            assert Line.ABSURD not in goals
            assert len(goals.unique()) > 3


def test_one_policy_alone_may_have_it() -> None:
    config = DQNConfig(env=Lines, **SMALL).multi_agent(
        policies="own", policy_overrides={"a": {"her_ratio": 0.5, "her_reward_fn": Line().compute_reward}}
    )
    assert config.records_final_obs == "ended"
    with config.build() as run:
        run.train()
        assert (run.configs["a"].her_ratio, run.configs["b"].her_ratio) == (0.5, 0.0)


class Rescaled(gym.Wrapper[Any, Any, Any, Any]):
    """Rewards are ten times as large, also those of ``compute_reward``."""

    def step(self, action: Any) -> Any:
        obs, value, *rest = self.env.step(action)
        return obs, 10.0 * float(value), *rest

    def compute_reward(self, *goals: Any) -> Any:
        return 10.0 * self.env.unwrapped.compute_reward(*goals)  # type: ignore[attr-defined]


def test_a_wrapper_may_have_the_reward(caplog: pytest.LogCaptureFixture) -> None:
    config = DQNConfig(env=lambda config: Rescaled(Line()), **SMALL).replay(her_ratio=0.8)
    with config.build() as run:
        run.train()
        run.train()
        assert set(run.replay.sample(256).batch[Columns.REWARDS].tolist()) == {-10.0, 0.0}
    assert not caplog.messages


# ------------------------------------------------------------------------------------------------------------ bad input


class Alone(Line):
    """Its reward function takes one pair of goals only."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return 0.0 if abs(achieved_goal - desired_goal) < 0.5 else -1.0


class Summed(Line):
    """Its reward function sums over all goals."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> Any:
        return -np.abs(achieved_goal - desired_goal).sum()


class Uneven(Line):
    """The achieved goal has another shape than the desired one."""

    def __init__(self) -> None:
        super().__init__()
        more = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.observation_space = spaces.Dict({**self.observation_space.spaces, "achieved_goal": more})


class NestedGoals(Line):
    """A goal has parts."""

    def __init__(self) -> None:
        super().__init__()
        nested = spaces.Dict(x=spaces.Box(-1.0, 1.0, (2,), np.float32))
        self.observation_space = spaces.Dict(achieved_goal=nested, desired_goal=nested)


class Unrewarded(Line):
    """Has goals, but nothing that rewards them."""

    compute_reward: Any = property(lambda self: (_ for _ in ()).throw(AttributeError("compute_reward")))


HER = {"her_ratio": 0.8}
BAD: list[tuple[Any, dict[str, Any], str]] = [
    (Line, {"her_strategy": "final"}, r"DQNConfig.her_strategy: expected its default with her_ratio=0, got 'final'. S"),
    (Line, {"her_reward_fn": reward}, r"DQNConfig.her_reward_fn: expected its default with her_ratio=0, got <func"),
    ("CartPole-v1", {**HER, "her_reward_fn": reward}, r"her_ratio: expected 0 for observations without achieved_goal "),
    ("CartPole-v1", HER, r"her_reward_fn: expected fn\(achieved_goals, .*unless a single env has compute_reward.* got"),
    (
        Unrewarded,
        HER,
        r"DQNConfig.her_reward_fn: expected fn\(achieved_goals, desired_goals, infos\), .*got None. Pass",
    ),
    (Line, {**HER, "n_step": 3}, r"n_step: expected 1 with her_ratio > 0, .* got 3\. Set it to 1"),
    (
        Alone,
        HER,
        r"compute_reward, or her_reward_fn: expected a reward for each pair .* got ValueError: The truth .*Co",
    ),
    (
        Summed,
        HER,
        r"compute_reward, or her_reward_fn: expected a reward for each pair .* got shape \(\). Compute along",
    ),
    (Uneven, HER, r"her_ratio: expected an achieved_goal like the desired_goal, float32 shaped \(1,\), got .*\(2,\)"),
    (NestedGoals, HER, r"her_ratio: expected goals that are single arrays, got a nested achieved_goal. Let the env"),
    (
        Line,
        {**HER, "model_config": {"use_lstm": True, "lstm_use_prev_reward": True}, "burn_in_len": 0},
        r"DQNConfig.her_ratio: expected 0 for a module that sees prev_reward, .*got 0.8. Leave out lstm_use_prev",
    ),
    (
        Line,
        {**HER, "frame_stack_axis": {"achieved_goal": 0}},
        r"frame_stack_axis\['achieved_goal'\]: expected whole goals with her_ratio > 0, got axis 0. Leave it out.",
    ),
    (
        Line,
        {**HER, "replay_capacity": 64, "model_config": {"use_lstm": True, "max_seq_len": 20}},
        r"ReplayBuffer\(capacity\): expected at least \d+ steps of each of 8 envs, for sequences of 20",
    ),
]


@pytest.mark.parametrize(("env", "changed", "message"), BAD)
def test_what_cannot_be_is_refused_when_the_run_is_built(env: Any, changed: dict[str, Any], message: str) -> None:
    config = DQNConfig(env=env, **SMALL | changed)
    with pytest.raises(ValueError, match=message):
        config.build()


@pytest.mark.parametrize("ratio", [-0.1, 1.1, math.nan])
def test_a_ratio_is_a_share(ratio: float) -> None:
    with pytest.raises(ValueError, match="her_ratio"):
        DQNConfig().replay(her_ratio=ratio)
    with pytest.raises(ValueError, match="ratio"):
        HindsightReplay(ratio=ratio, reward=reward)


def test_a_vector_env_needs_a_function() -> None:
    def make(config: Any) -> gym.vector.VectorEnv:
        return gym.vector.SyncVectorEnv([Line] * 8)

    with pytest.raises(ValueError, match=r"her_reward_fn: expected fn\(achieved_goals"):
        DQNConfig(env=make, **SMALL).replay(her_ratio=0.8).build()
    with DQNConfig(env=make, **SMALL).replay(her_ratio=0.8, her_reward_fn=Line().compute_reward).build() as run:
        run.train()
        run.train()
        assert Line.ABSURD not in run.replay.sample(256).batch[Columns.OBS]["desired_goal"]
