"""The runner: equal transitions in every autoreset mode, own random streams, and bad values named."""

import functools
import itertools
import re
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from algorithms.dqn.module import DQNCatalog, DQNModule
from algorithms.ppo import PPOCatalog, PPOModule
from catalog import Beta, Catalog
from rlmodule import Columns, EnvRunner, ExplorationAPI, RLModule, Rollout
from rlmodule.testing.data import differences, global_random_state
from tests.rlmodule.toys import (
    NUM_ACTIONS,
    Counter,
    NestedCounter,
    NoNets,
    Scripted,
    Settings,
    Small,
    Step,
    counters,
    counters_one_by_one,
    expected_steps,
)

# Python 3.12 and later warn of every fork of a process with threads, which torch has; it is Gymnasium that forks.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

SOURCES: dict[str, Callable[[], Any]] = {
    "same step": lambda: counters(AutoresetMode.SAME_STEP),
    "next step": lambda: counters(AutoresetMode.NEXT_STEP),
    "disabled": lambda: counters(AutoresetMode.DISABLED),
    "one by one": counters_one_by_one,
}
NAMES = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)


def runner_for(module_class: type = Scripted, *, run_seed: int = 1, first: int = 0, **settings: Any) -> EnvRunner:
    runner = EnvRunner(Settings(**settings), run_seed=run_seed, first_env_index=first)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        spaces_ = {"observation_space": runner.observation_space, "action_space": runner.action_space}
        runner.set_module(module_class(**spaces_, catalog_class=NoNets if module_class is Scripted else Catalog))
    return runner


def steps_of(rollouts: list[Rollout], slot: int) -> list[Step]:
    """The valid transitions of a slot, with the observation after each (nothing where a rollout need not know it)."""
    steps = []
    for rollout in rollouts:
        finals = {tuple(index): obs for index, obs in zip(rollout.final_index.tolist(), rollout.final_obs, strict=True)}
        for row in range(rollout.shape[0]):
            obs, action, reward, terminated, truncated = (rollout[name][row, slot] for name in NAMES)
            if not rollout.valid[row, slot]:
                assert reward == 0
                continue
            after = rollout[Columns.OBS][row + 1, slot] if row + 1 < rollout.shape[0] else rollout.last_obs[slot]
            after = finals.pop((row, slot), after)
            known = () if terminated else tuple(after.tolist())
            steps.append(
                Step(tuple(obs.tolist()), int(action), float(reward), bool(terminated), bool(truncated), known)
            )
        assert not [index for index in finals if index[1] == slot], "a final observation where no row truncates"
    return steps


def expected(slot: int, num: int) -> list[Step]:
    steps = [step for step, _ in zip(expected_steps(slot), range(num), strict=False)]
    for step in steps:
        if step.terminated:
            step.next_obs = ()
    return steps


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("fragment", [1, 4, 40])
def test_valid_transitions_are_the_same_in_every_autoreset_mode(source: str, fragment: int) -> None:
    runner = runner_for(env=SOURCES[source]())
    rollouts = [runner.sample(fragment, explore=False) for _ in range(40 // fragment)]
    for slot in range(3):
        steps = steps_of(rollouts, slot)
        assert len(steps) >= 25
        assert steps == expected(slot, len(steps))
    # the case that is easily lost is among them: an episode truncated by the last row
    last = [[row, slot] for r in rollouts for row, slot in r.final_index.tolist() if row == fragment - 1]
    assert last or fragment == 40
    assert {(s.terminated, s.truncated) for s in expected(0, 40)} == {
        (False, False), (True, False), (False, True), (True, True),
    }  # fmt: skip


BOX = spaces.Box(-2.0, 2.0, (2,), np.float32)


SAMPLED: dict[str, tuple[spaces.Space[Any], type[RLModule], dict[str, Any]]] = {
    "choices": (spaces.Discrete(NUM_ACTIONS), PPOModule, {}),
    "numbers": (BOX, PPOModule, {}),
    "Beta": (BOX, PPOModule, {"custom_action_dist": Beta}),
    "nested": (spaces.Dict(x=BOX, k=spaces.Discrete(3), b=spaces.MultiBinary(2)), PPOModule, {}),
    "parts that depend": (spaces.MultiDiscrete([3, 2]), PPOModule, {"autoregressive_actions": True}),
    "LSTM": (BOX, PPOModule, {"use_lstm": True, "lstm_use_prev_action": True, "lstm_use_prev_reward": True}),
    "attention": (spaces.Discrete(3), PPOModule, {"use_attention": True, "attention_memory": 4}),
    "ε-greedy": (spaces.Discrete(NUM_ACTIONS), DQNModule, {}),
}


class Steered(Counter):
    """Goes where its actions lead, and so do the ends of its episodes."""

    def __init__(self, index: int = 0, action_space: spaces.Space[Any] = BOX) -> None:
        super().__init__(index)
        self.action_space = action_space  # type: ignore[assignment]

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        self.position = 0.0
        return super().reset(**given)

    def _obs(self) -> Any:
        return np.array([self.index, self.position, self.t], np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        self.position += sum(float(np.sum(part)) for part in tree.flatten(action))
        return self._obs(), self.position, self.position > 2 + self.index, self.t >= 7, {}


def sampling_transitions(kind: str, mode: AutoresetMode, fragments: list[int]) -> list[list[tuple[Any, ...]]]:
    """The valid transitions of each env, with what was sampled in them."""
    space, module_class, model = SAMPLED[kind]
    runner = EnvRunner(Settings(env=counters(mode, Steered, action_space=space)), run_seed=1)
    catalog = PPOCatalog if module_class is PPOModule else DQNCatalog
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        spaces_ = {"observation_space": runner.observation_space, "action_space": space}
        module = module_class(**spaces_, model_config=model, catalog_class=catalog)
    if isinstance(module, ExplorationAPI):
        module.set_exploration(0.5)
    runner.set_module(module)
    names = (*NAMES, Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP)
    steps: list[list[tuple[Any, ...]]] = [[], [], []]
    for num in fragments:
        rollout = runner.sample(num)
        for row, slot in rollout.valid.nonzero().tolist():
            step = [tree.map_structure(lambda x, at=(row, slot): x[at].tolist(), rollout[name]) for name in names]
            steps[slot].append((*step,))
    return steps


@pytest.mark.parametrize("kind", SAMPLED)
def test_sampled_transitions_are_the_same_in_every_autoreset_mode(kind: str) -> None:
    fragments = [1, 1, 1, 1, 1, 50]
    same = sampling_transitions(kind, AutoresetMode.SAME_STEP, fragments)
    following = sampling_transitions(kind, AutoresetMode.NEXT_STEP, fragments)
    for with_resets, without in zip(following, same, strict=True):
        assert len(without) == 55
        assert 20 < len(with_resets) < 52
        assert with_resets == without[: len(with_resets)]
    assert len({*map(len, following)}) > 1, "all envs reset equally often"


def test_invalid_rows_are_there_in_next_step_mode_alone() -> None:
    for source, make in SOURCES.items():
        rollout = runner_for(env=make()).sample(40, explore=False)
        ended = rollout[Columns.TERMINATEDS] | rollout[Columns.TRUNCATEDS]
        if source == "next step":
            assert torch.equal(~rollout.valid[1:], ended[:-1])
            assert rollout.num_env_steps == 3 * 40 - int(ended[:-1].sum())
            assert not rollout[Columns.REWARDS][~rollout.valid].any()
            # the row after an end observes that end: this is how recurrent nets come to see it in line
            row, slot = rollout.final_index[0].tolist()
            assert torch.equal(rollout[Columns.OBS][row + 1, slot], rollout.final_obs[0])
        else:
            assert bool(rollout.valid.all())
            assert rollout.num_env_steps == 3 * 40


def test_reset_row_at_the_start_of_a_fragment_is_invalid() -> None:
    runner = runner_for(env=counters(AutoresetMode.NEXT_STEP))
    rollouts = [runner.sample(1, explore=False) for _ in range(30)]
    for before, after in itertools.pairwise(rollouts):
        ended = before[Columns.TERMINATEDS] | before[Columns.TRUNCATEDS]
        assert torch.equal(after.valid, ~ended)


def test_terminated_wins_over_truncated() -> None:
    rollout = runner_for(env=counters(AutoresetMode.SAME_STEP)).sample(40, explore=False)
    both = rollout[Columns.TERMINATEDS] & rollout[Columns.TRUNCATEDS]
    assert both.any()
    cut = rollout[Columns.TRUNCATEDS] & ~rollout[Columns.TERMINATEDS]
    assert rollout.final_index.tolist() == cut.nonzero().tolist()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("fragment", [1, 3, 60])
def test_returns_and_lengths_of_episodes_across_fragments(source: str, fragment: int) -> None:
    runner = runner_for(env=SOURCES[source]())
    stats = [runner.sample(fragment, explore=False).stats for _ in range(60 // fragment)]
    for slot in range(3):
        found = [
            (float(r), int(n))
            for s in stats
            for r, n, of in zip(s["episode_returns"], s["episode_lengths"], s["episode_slots"], strict=True)
            if of == slot
        ]
        wanted, total, length = [], 0.0, 0
        for step in expected(slot, 60):
            total, length = total + step.reward, length + 1
            if step.terminated or step.truncated:
                wanted.append((total, length))
                total, length = 0.0, 0
        assert len(found) >= 12
        assert found == wanted[: len(found)]


def test_finished_episodes_come_in_order_of_time() -> None:
    rollout = runner_for(env=counters(AutoresetMode.SAME_STEP)).sample(30, explore=False)
    ended = rollout[Columns.TERMINATEDS] | rollout[Columns.TRUNCATEDS]
    assert rollout.stats["episode_slots"].tolist() == ended.nonzero()[:, 1].tolist()


def test_reset_forgets_open_episodes() -> None:
    runner = runner_for(env=counters(AutoresetMode.SAME_STEP, lengths=(4,)))
    runner.sample(3, explore=False)
    runner.reset()
    assert runner.sample(4, explore=False).stats["episode_lengths"].tolist() == [4, 4, 4]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_nested_observations_reach_the_module_as_trees(mode: AutoresetMode) -> None:
    rollout = runner_for(env=counters(mode, NestedCounter)).sample(20, explore=False)
    plain = runner_for(env=counters(mode)).sample(20, explore=False)
    for nested, flat in (
        (rollout[Columns.OBS], plain[Columns.OBS]),
        (rollout.last_obs, plain.last_obs),
        (rollout.final_obs, plain.final_obs),
    ):
        assert list(nested) == ["z", "a"]
        assert nested["z"].dtype == nested["a"][0].dtype == torch.float32
        assert nested["a"][1].dtype == torch.int64
        joined = torch.cat([nested["z"], nested["a"][0], nested["a"][1].unsqueeze(-1)], -1)
        assert torch.equal(joined, flat)
    assert len(rollout.final_index) > 3
    assert torch.equal(rollout[Columns.REWARDS], plain[Columns.REWARDS])


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [(np.float64, torch.float32), (np.float32, torch.float32), (np.int16, torch.int16), (np.uint8, torch.uint8)],
)
def test_dtypes_of_columns(dtype: type, stored: torch.dtype) -> None:
    class Typed(Counter):
        def __init__(self, index: int = 0) -> None:
            super().__init__(index)
            low, high = (-np.inf, np.inf) if np.dtype(dtype).kind == "f" else (0, 200)
            self.observation_space = spaces.Box(low, high, (3,), dtype)

    rollout = runner_for(env=counters_one_by_one(Typed)).sample(12)
    assert rollout[Columns.OBS].dtype == rollout.last_obs.dtype == rollout.final_obs.dtype == stored
    kinds = {
        Columns.REWARDS: torch.float32,
        Columns.TERMINATEDS: torch.bool,
        Columns.TRUNCATEDS: torch.bool,
        Columns.VALID: torch.bool,
        Columns.STARTS: torch.bool,
        Columns.ACTION_LOGP: torch.float32,
        Columns.ACTION_DIST_INPUTS: torch.float32,
        Columns.ACTIONS: torch.int64,
    }
    assert {name: rollout[name].dtype for name in kinds} == kinds
    assert all(rollout[name].shape[:2] == (12, 3) for name in kinds)


def test_columns_can_enter_a_loss_and_are_never_overwritten() -> None:
    runner = runner_for(Small)
    first = runner.sample(8)
    kept = tree.map_structure(Tensor.clone, [first.columns, first.last_obs])
    second = runner.sample(8)
    assert differences(kept, [first.columns, first.last_obs]) == []
    assert differences(first.columns[Columns.OBS], second.columns[Columns.OBS])
    for column in (*first.columns.values(), first.last_obs, first.final_obs):
        assert not column.is_inference()
        assert not column.requires_grad
    assert torch.equal(first.last_obs, second[Columns.OBS][0])


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("explore", [True, False])
def test_recorded_logp_is_that_of_the_recorded_action(env: str, explore: bool) -> None:
    runner = runner_for(Small, env=env)
    rollout = runner.sample(6, explore=explore)
    inputs = runner.module.forward_train({Columns.OBS: rollout[Columns.OBS]})[Columns.ACTION_DIST_INPUTS]
    torch.testing.assert_close(rollout[Columns.ACTION_DIST_INPUTS], inputs.detach(), rtol=1e-5, atol=1e-6)
    dist = runner.module.action_dist_cls.from_logits(rollout[Columns.ACTION_DIST_INPUTS])
    assert (Columns.ACTION_LOGP in rollout) is explore
    if explore:
        assert torch.equal(dist.logp(rollout[Columns.ACTIONS]), rollout[Columns.ACTION_LOGP])
    greedy = torch.equal(dist.to_deterministic().sample(), rollout[Columns.ACTIONS])
    assert greedy is not explore


def test_actions_reach_the_env_converted_and_are_recorded_as_sampled() -> None:
    taken = []

    class Noting(gym.Env):
        observation_space = spaces.Box(-1, 1, (2,), np.float32)
        action_space = spaces.Discrete(3, start=5)  # type: ignore[assignment]

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            taken.append(int(action))
            return np.zeros(2, np.float32), 0.0, False, False, {}

    rollout = runner_for(Small, env=Noting, num_envs_per_env_runner=1).sample(20)
    assert set(taken) == {5, 6, 7}
    assert [action - 5 for action in taken] == rollout[Columns.ACTIONS][:, 0].tolist()


def test_an_env_that_writes_into_its_action_changes_no_record() -> None:
    class Writes(gym.Env):
        observation_space = spaces.Box(-1, 1, (2,), np.float32)
        action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> Any:
            action[:] = 77
            return np.zeros(2, np.float32), 0.0, False, False, {}

    for explore in (True, False):  # the most likely action may share memory with the distribution's inputs
        rollout = runner_for(Small, env=Writes).sample(5, explore=explore)
        for name in (Columns.ACTIONS, Columns.ACTION_DIST_INPUTS):
            assert not (rollout[name] == 77).any()


def test_one_seed_gives_one_rollout() -> None:
    def collect(run_seed: int) -> Any:
        runner = runner_for(Small, run_seed=run_seed)
        return [[r.columns, r.last_obs, r.final_obs] for r in (runner.sample(40), runner.sample(40))]

    one, two, three = collect(3), collect(3), collect(4)
    assert differences(one, two) == []
    assert differences(one[0][0][Columns.OBS][0], three[0][0][Columns.OBS][0])
    assert differences(one[0][0][Columns.ACTIONS], three[0][0][Columns.ACTIONS])


def test_fragments_of_any_length_draw_the_same_noise() -> None:
    one, two = runner_for(Small), runner_for(Small)
    whole = one.sample(21)
    parts = [two.sample(n) for n in (1, 5, 8, 7)]
    for name in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS):
        assert torch.equal(whole[name], torch.cat([part[name] for part in parts]))


def test_data_of_an_env_does_not_depend_on_the_envs_beside_it() -> None:
    together = runner_for(Small, num_envs_per_env_runner=4).sample(60)
    halves = [runner_for(Small, num_envs_per_env_runner=2, first=first).sample(60) for first in (0, 2)]
    joined = Rollout.concat(halves)
    for name in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS):
        assert torch.equal(together[name], joined[name]), name
    assert together[Columns.TERMINATEDS].any()
    assert not torch.equal(halves[0][Columns.ACTIONS], halves[1][Columns.ACTIONS])


def test_roles_have_streams_apart() -> None:
    settings = Settings()
    training, evaluation = (EnvRunner(settings, run_seed=1, role=role) for role in ("env", "evaluation_env"))
    module = Small(observation_space=training.observation_space, action_space=training.action_space)
    rollouts = []
    for runner in (training, evaluation):
        runner.set_module(module)
        rollouts.append(runner.sample(20))
    assert not torch.equal(rollouts[0][Columns.OBS][0], rollouts[1][Columns.OBS][0])
    assert not torch.equal(rollouts[0][Columns.ACTIONS], rollouts[1][Columns.ACTIONS])


def test_every_reset_has_a_new_seed() -> None:
    runner = runner_for(Small)
    first = runner.sample(1)[Columns.OBS][0]
    runner.reset()
    assert not torch.equal(runner.sample(1)[Columns.OBS][0], first)
    assert len(first.unique(dim=0)) == 3


def test_sampling_leaves_global_generators_alone() -> None:
    before = global_random_state()
    for env in ("CartPole-v1", "Pendulum-v1"):
        runner = EnvRunner(Settings(env=env), run_seed=1)
        with torch.random.fork_rng(devices=[]):
            runner.set_module(Small(observation_space=runner.observation_space, action_space=runner.action_space))
        for explore in (True, False):
            runner.sample(4, explore=explore)
    assert differences(before, global_random_state()) == []


def test_state_round_trip_goes_on_with_the_same_streams() -> None:
    runner, other = runner_for(Small), runner_for(Small)
    runner.sample(9)
    other.set_state(runner.get_state())
    assert differences(other.get_state(), runner.get_state()) == []
    assert differences(runner.sample(30).columns, other.sample(30).columns) == []


def test_a_distribution_that_draws_for_itself_uses_the_runners_generator() -> None:
    class Own(Small):
        def setup(self) -> None:
            super().setup()
            self.action_dist_cls = type("Own", (self.action_dist_cls,), {"draw_noise": classmethod(lambda *_: None)})

    before = global_random_state()
    one, two, three = (runner_for(Own, run_seed=s).sample(30)[Columns.ACTIONS] for s in (1, 1, 2))
    assert differences(before, global_random_state()) == []
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
    assert set(one.flatten().tolist()) == {0, 1}


@pytest.mark.parametrize("mode", ["vector_entry_point", "async"])
def test_other_ways_to_vectorise(mode: str) -> None:
    runner = runner_for(Small, gym_env_vectorize_mode=mode, num_envs_per_env_runner=2)
    try:
        rollout = runner.sample(40, policy_version=7)
    finally:
        runner.stop()
    assert rollout.shape == (40, 2)
    assert rollout.policy_version == 7
    ended = rollout[Columns.TERMINATEDS] | rollout[Columns.TRUNCATEDS]
    assert ended.any()
    assert rollout.valid.all() == (mode == "async")
    assert torch.equal(rollout[Columns.REWARDS], rollout.valid.float())
    rows, slots = ended.nonzero(as_tuple=True)
    starts = rollout[Columns.OBS][rows[rows < 38] + (1 if mode == "async" else 2), slots[rows < 38]]
    assert len(starts)
    assert (starts.abs() <= 0.05).all()


def test_async_and_sync_see_the_same() -> None:
    runners = [runner_for(Small, gym_env_vectorize_mode=mode, num_envs_per_env_runner=2) for mode in ("sync", "async")]
    try:
        sync, apart = (runner.sample(30) for runner in runners)
    finally:
        runners[1].stop()
    assert differences(sync.columns, apart.columns) == []


def test_timers_cover_the_call() -> None:
    stats = runner_for(Small).sample(10).stats
    assert all(stats[name] > 0 for name in ("env_step", "forward", "bookkeeping"))


class Broken(Counter):
    """Goes wrong in env 1 at its third step."""

    what = "obs"

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = super().step(action)
        if self.index == 1 and self.t == 3:
            if self.what == "obs":
                obs = obs * np.nan
            elif self.what == "inf reward":
                reward = np.inf
            elif self.what == "text reward":
                reward = "a lot"  # type: ignore[assignment]
            else:
                raise ZeroDivisionError("of all things")
        return obs, reward, terminated, truncated, info


@pytest.mark.parametrize(
    ("what", "error", "text"),
    [
        ("obs", ValueError, r"env 1, step 3, obs: .*got nan"),
        ("inf reward", ValueError, r"env 1, step \d+, reward: .*got inf"),
        ("text reward", TypeError, "env 1, step 3, reward"),
        ("raises", RuntimeError, "env 1 raised ZeroDivisionError at its step 3: of all things"),
    ],
)
def test_what_goes_wrong_names_env_and_step(what: str, error: type[Exception], text: str) -> None:
    class This(Broken):
        pass

    This.what = what
    runner = runner_for(env=counters_one_by_one(This, lengths=(9,)))
    with pytest.raises(error, match=text):
        runner.sample(6, explore=False)


@pytest.mark.parametrize("is_final", [False, True])
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
def test_numbers_too_large_to_store_are_refused(is_final: bool) -> None:
    class Large(Counter):
        def __init__(self, index: int = 0) -> None:
            super().__init__(index, lengths=(3 if is_final else 9,))
            self.observation_space = spaces.Dict({"x": spaces.Box(0, np.inf, (3,), np.float64)})  # type: ignore[assignment]

        def _obs(self) -> Any:
            return {"x": np.array([0, 1, 1e39 if (self.index, self.t) == (1, 3) else 2])}

        def step(self, action: Any) -> Any:
            obs, reward, ends, also_ends, info = super().step(action)
            return obs, reward, False, ends or also_ends, info

    runner = runner_for(Small, env=counters_one_by_one(Large))
    text = r"obs\['x'\]: expected finite numbers, got inf at index \(2,\)\. .*float32, which ends at 3\.4e\+38"
    with pytest.raises(ValueError, match=rf"^env 1, step 3, {text}"):
        runner.sample(6, explore=False)


def test_after_an_error_new_episodes_start() -> None:
    class Once(Counter):
        def step(self, action: Any) -> Any:
            if (self.index, self.episode, self.t) == (1, 0, 3):
                raise ZeroDivisionError
            return super().step(action)

    runner = runner_for(env=counters_one_by_one(Once, lengths=(9,)))
    runner.sample(2, explore=False)
    with pytest.raises(RuntimeError):
        runner.sample(4, explore=False)
    rollout = runner.sample(9, explore=False)
    assert rollout[Columns.OBS][0].tolist() == [[0, 1, 0], [1, 1, 0], [2, 1, 0]]
    assert rollout.stats["episode_lengths"].tolist() == [9, 9, 9]


def test_step_in_messages_counts_over_fragments() -> None:
    class Late(Counter):
        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            return (obs * np.nan if self.t == 8 and self.index == 2 else obs), *rest

    runner = runner_for(env=counters_one_by_one(Late, lengths=(99,)))
    runner.sample(5, explore=False)
    with pytest.raises(ValueError, match="env 2, step 8, obs"):
        runner.sample(5, explore=False)


@pytest.mark.parametrize("fragment", [1, 4, 40])
@pytest.mark.parametrize("source", SOURCES)
def test_a_true_final_observation_is_looked_at_too(source: str, fragment: int) -> None:
    class Ends(Counter):
        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated, info = super().step(action)
            # env 1 truncates at the first step of episode 0, and at the fourth of episode 2, after five of episode 1
            bad = self.index == 1 and self.episode == 2 and truncated and not terminated
            return (obs * np.nan if bad else obs), reward, terminated, truncated, info

    make: Any = counters_one_by_one(Ends) if source == "one by one" else None
    runner = runner_for(env=make or counters(AutoresetMode[source.replace(" ", "_").upper()], Ends))
    step = 12 if source == "next step" else 10  # there, each of two resets was a step
    for _ in range((step - 1) // fragment):
        runner.sample(fragment, explore=False)
    with pytest.raises(ValueError, match=rf"env 1, step {step}, obs: expected finite numbers, got nan at index \(0,\)"):
        runner.sample(fragment, explore=False)


def test_env_that_chokes_on_a_nan_action_is_not_blamed() -> None:
    class Chokes(Counter):
        def step(self, action: Any) -> Any:
            if self.t == 2:
                raise ValueError("bad action")
            obs, *rest = super().step(action)
            return (obs * np.nan if self.t == 2 else obs), *rest

    runner = runner_for(env=counters_one_by_one(Chokes, lengths=(99,)))
    with pytest.raises(ValueError, match=re.escape("env 0, step 2, obs")):
        runner.sample(5, explore=False)


def test_ready_vector_env_is_checked_too() -> None:
    class Wide(Counter):
        def __init__(self, index: int = 0) -> None:
            super().__init__(index)
            self.observation_space = spaces.Box(0, 3, (3,), np.float32)

    runner = runner_for(env=counters(AutoresetMode.SAME_STEP, Wide))
    with pytest.raises(ValueError, match=r"env \d, step \d+, obs"):
        runner.sample(40, explore=False)


class Ready(VectorEnv[Any, Any, Any]):
    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    num_envs = 3
    single_observation_space, observation_space = spaces.MultiBinary(3), spaces.MultiBinary((3, 3))
    single_action_space = spaces.Discrete(2)


def test_the_first_reset_of_a_ready_vector_env_is_checked() -> None:
    class ObsOnly(Ready):
        def reset(self, **given: Any) -> Any:
            return np.zeros(3, np.int8)

    text = r"ObsOnly\.reset\(\): expected a tuple \(obs, info\), got shape \(3,\) and .*\. Return obs, \{\}"
    with pytest.raises(TypeError, match=text):
        runner_for(env=lambda config: ObsOnly())


def test_same_step_vector_env_without_final_observations_is_refused() -> None:
    class Forgets(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            *rest, info = super().step(actions)
            return *rest, {key: value for key, value in info.items() if "final" not in key}

    runner = runner_for(env=lambda config: Forgets([Counter] * 3, autoreset_mode=AutoresetMode.SAME_STEP))
    with pytest.raises(ValueError, match=r"Forgets\.step\(\): expected final_obs.*got \d+ truncated"):
        runner.sample(40, explore=False)


class Simulates(Counter):
    """Steps a state by a gradient, and resets it where it is."""

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        self.state = torch.zeros(3)

    def _obs(self) -> Any:
        return self.state.numpy().copy()

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        self.state.zero_()
        return super().reset(**given)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        at = self.state.clone().requires_grad_()
        (at - 1).square().sum().backward()
        assert at.grad is not None
        self.state = self.state - at.grad / 4
        return super().step(action)


@pytest.mark.parametrize("source", SOURCES)
def test_an_env_may_use_torch_as_it_likes(source: str) -> None:
    make: Any = counters_one_by_one(Simulates) if source == "one by one" else None
    runner = runner_for(Small, env=make or counters(AutoresetMode[source.replace(" ", "_").upper()], Simulates))
    rollouts = [runner.sample(7) for _ in range(2)]
    runner.reset()  # here as in a step
    rollouts.append(runner.sample(7))
    for rollout in rollouts:
        assert not rollout[Columns.ACTION_DIST_INPUTS].is_inference()
    # half of the way to 1 in each step, from 0: 0, 1/2, 3/4, 7/8, ...
    seen = {float(x) for x in torch.stack([rollout[Columns.OBS] for rollout in rollouts]).flatten()}
    assert seen <= {1 - 2.0**-n for n in range(6)}
    assert {0.0, 0.5, 0.75} <= seen


def replaced(position: int, value: Any) -> Callable[[Any], Any]:
    return lambda good: (*good[:position], value, *good[position + 1 :])


LATE: dict[str, tuple[Callable[[Any], Any], type[Exception], str]] = {
    "shape": (replaced(0, np.zeros(4, np.float32)), ValueError, r", obs: expected shape \(3,\)"),
    "obs None": (replaced(0, None), ValueError, ", obs: .* got NoneType"),
    "a long number in obs": (replaced(0, [10**400] * 3), ValueError, ", obs: .* got list"),
    "of the old gym": (lambda good: (good[0], *good[2:]), ValueError, r", step\(\): .* got a tuple of 4"),
    "nothing": (lambda good: None, ValueError, r", step\(\): .* got NoneType"),
    "text reward": (replaced(1, "1"), TypeError, ", reward: .* got str '1'"),
    "text as flag": (replaced(2, "False"), TypeError, ", terminated: expected a bool, got str 'False'"),
    "NaN as flag": (replaced(3, np.nan), TypeError, ", truncated: expected a bool, got float nan"),
    "no info": (replaced(4, None), TypeError, ", info: expected a dict"),
    "info of an end": (lambda good: (*good[:2], True, False, "none"), TypeError, ", info: expected a dict"),
}


@pytest.mark.parametrize("what", LATE)
def test_what_goes_wrong_after_the_first_hundred_steps_is_named_too(what: str) -> None:
    class Late(Counter):
        def step(self, action: Any) -> Any:
            good = super().step(action)
            return LATE[what][0](good) if (self.index, self.t) == (1, 150) else good

    runner = runner_for(env=counters_one_by_one(Late, lengths=(999,)))
    runner.sample(140, explore=False)
    with pytest.raises(LATE[what][1], match="env 1, step 150" + LATE[what][2]):
        runner.sample(20, explore=False)


LATE_VECTORS: dict[str, tuple[int, Any, str]] = {
    "text rewards": (1, np.array(["1", "2", "3"]), "rewards: .* real numbers .* dtype <U1"),
    "numbers as flags": (2, np.full(3, 0.5), "terminateds: .* 0s and 1s .* float64"),
    "a list of flags": (3, [False] * 3, "truncateds: .* 0s and 1s .* list"),
}


@pytest.mark.parametrize("what", LATE_VECTORS)
def test_what_a_vector_env_returns_wrongly_after_the_first_hundred_steps_is_named_too(what: str) -> None:
    position, wrong, text = LATE_VECTORS[what]

    class Late(SyncVectorEnv):
        steps = 0

        def step(self, actions: Any) -> Any:
            self.steps += 1
            good = super().step(actions)
            return replaced(position, wrong)(good) if self.steps == 150 else good

    one = functools.partial(Counter, lengths=(999,))
    runner = runner_for(env=lambda config: Late([one] * 3, autoreset_mode=AutoresetMode.SAME_STEP))
    runner.sample(140, explore=False)
    with pytest.raises(TypeError, match=f"vector env, step 150, {text}"):
        runner.sample(20, explore=False)


@pytest.mark.parametrize("when", ["when it is made", "in reset", "in step"])
def test_gradients_that_an_env_switches_off_are_on_again_afterwards(when: str) -> None:
    class Switches(Counter):
        def __init__(self, index: int = 0) -> None:
            super().__init__(index, lengths=(999,))
            self.switch("when it is made")

        def switch(self, now: str) -> None:
            if self.index == 1 and now == when:
                torch.set_grad_enabled(False)

        def reset(self, **given: Any) -> Any:
            self.switch("in reset")
            return super().reset(**given)

        def step(self, action: Any) -> Any:
            self.switch("in step" if self.t == 2 else "")
            return super().step(action)

    runner = runner_for(env=counters_one_by_one(Switches))
    assert torch.is_grad_enabled()
    runner.reset()
    assert torch.is_grad_enabled()
    runner.sample(5, explore=False)
    assert torch.is_grad_enabled()
    with torch.no_grad():  # of the caller
        runner.sample(5, explore=False)
        assert not torch.is_grad_enabled()


def test_envs_may_return_one_observation_that_none_writes_into() -> None:
    class Blind(Counter):
        obs = np.full(3, 7, np.float32)

        def _obs(self) -> Any:
            return self.obs

    runner = runner_for(Small, env=counters_one_by_one(Blind))
    assert (runner.sample(5)[Columns.OBS] == 7).all()


@pytest.mark.parametrize("place", ["step", "reset"])
@pytest.mark.parametrize("source", ["same step", "one by one"])
def test_an_observation_that_a_module_chokes_on_is_named(source: str, place: str) -> None:
    class Late(Counter):
        def __init__(self, index: int = 0) -> None:
            super().__init__(index, lengths=(150 if place == "reset" else 999,))
            self.observation_space = spaces.Discrete(5)  # type: ignore[assignment]

        def _obs(self) -> Any:
            at = (self.episode, self.t) == ((1, 0) if place == "reset" else (0, 150))
            return 7 if self.index == 2 and at else self.t % 5

    runner = runner_for(
        Small, env=counters_one_by_one(Late) if source == "one by one" else counters(AutoresetMode.SAME_STEP, Late)
    )
    when = "reset after step 150" if (source, place) == ("one by one", "reset") else "step 150"
    with pytest.raises(ValueError, match=f"env 2, {when}, obs: expected values in .* got 7"):
        runner.sample(170)


def test_an_error_of_a_module_is_its_own_where_the_envs_did_nothing_wrong() -> None:
    runner = runner_for(env=counters_one_by_one())
    runner.sample(1)
    runner.module._forward_exploration = lambda batch: batch["nothing"]  # type: ignore[method-assign]
    with pytest.raises(KeyError, match="nothing"):
        runner.sample(1)


def test_an_error_of_the_guard_is_told_once() -> None:
    class This(Broken):
        what = "text reward"

    runner = runner_for(env=counters_one_by_one(This, lengths=(9,)))
    with pytest.raises(TypeError, match="env 1, step 3, reward") as caught:
        runner.sample(6, explore=False)
    assert caught.value.__cause__ is None


def test_stop_closes_the_envs() -> None:
    closed = []

    class Closing(Counter):
        def close(self) -> None:
            closed.append(self.index)

    runner = runner_for(env=counters_one_by_one(Closing))
    runner.stop()
    assert sorted(closed) == [0, 1, 2]
