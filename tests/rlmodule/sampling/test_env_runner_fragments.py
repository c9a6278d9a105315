"""Fragments of any length: the same data, in memory of their own; and what is left out of them."""

import weakref
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
import tree
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from algorithms.run.metrics import RunMetrics
from catalog.base import Tree
from rlmodule import Columns, EnvRunner, NoisyNetAPI, Rollout
from rlmodule.modules.policy import Policy
from rlmodule.sampling.storage import RolloutStorage
from rlmodule.testing.data import clone, differences
from tests.rlmodule.sampling import test_env_runner, test_env_runner_actions, test_env_runner_memory
from tests.rlmodule.toys import Counter, NestedCounter, Scripted, Settings, Small, counters
from tests.turns import taking_turns

NAMES = (
    Columns.OBS,
    Columns.ACTIONS,
    Columns.REWARDS,
    Columns.TERMINATEDS,
    Columns.TRUNCATEDS,
    Columns.VALID,
    Columns.STARTS,
)


class Own(Small):
    """Its distribution draws no noise ahead."""

    def setup(self) -> None:
        super().setup()
        self.action_dist_cls = type("Own", (self.action_dist_cls,), {"draw_noise": classmethod(lambda *_: None)})


class Noisy(Small, NoisyNetAPI):
    """Adds noise to its inputs, and counts how often it was drawn."""

    def setup(self) -> None:
        super().setup()
        self.noise, self.drawn = torch.zeros(()), 0

    def resample_noise(self, generator: torch.Generator) -> None:
        self.noise = torch.randn((), generator=generator)
        self.drawn += 1

    def _forward_exploration(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        out = self._forward(batch)
        inputs = out[Columns.ACTION_DIST_INPUTS]
        return out | {Columns.ACTION_DIST_INPUTS: torch.cat([inputs[..., :1] + 3 * self.noise, inputs[..., 1:]], -1)}


def nested() -> EnvRunner:
    settings = Settings(env=lambda config: test_env_runner_actions.Echo(test_env_runner_actions.DICT))
    return test_env_runner_actions.with_module(EnvRunner(settings, run_seed=1))


def recurrent(mode: AutoresetMode) -> EnvRunner:
    env = test_env_runner_memory.cartpoles(mode)
    return test_env_runner_memory.runner_for(env, lstm_use_prev_action=True, lstm_use_prev_reward=True)


RUNNERS: dict[str, Callable[[], EnvRunner]] = {
    "plain": lambda: test_env_runner.runner_for(Small),
    "numbers": lambda: test_env_runner.runner_for(Small, env="Pendulum-v1"),
    "nested actions": nested,
    "nested observations": lambda: test_env_runner.runner_for(env=counters(AutoresetMode.DISABLED, NestedCounter)),
    "recurrent": lambda: recurrent(AutoresetMode.SAME_STEP),
    "recurrent, next step": lambda: recurrent(AutoresetMode.NEXT_STEP),
    "draws for itself": lambda: test_env_runner.runner_for(Own),
    "noisy": lambda: test_env_runner.runner_for(Noisy),
}
TOTAL = 256


def contents(rollouts: list[Rollout]) -> Tree:
    """The first rows of all together, and the truncations in them with their true final observations."""
    columns = {
        name: tree.map_structure(lambda *x: torch.cat(x)[:TOTAL], *[r[name] for r in rollouts]) for name in NAMES
    }
    begins = np.cumsum([0, *(r.shape[0] for r in rollouts[:-1])])
    index = torch.cat([r.final_index + torch.tensor([int(b), 0]) for r, b in zip(rollouts, begins, strict=True)])
    finals = tree.map_structure(lambda *x: torch.cat(x)[index[:, 0] < TOTAL], *[r.final_obs for r in rollouts])
    return columns, index[index[:, 0] < TOTAL], finals


@pytest.mark.parametrize("kind", taking_turns(RUNNERS))
def test_data_does_not_depend_on_the_length_of_fragments(kind: str) -> None:
    def collect(length: int) -> Tree:
        runner = RUNNERS[kind]()
        return contents([runner.sample(length) for _ in range(-(-TOTAL // length))])

    whole = collect(TOTAL)
    assert whole[0][Columns.STARTS][1:].any()
    for length in (1, 3, 64):
        assert differences(collect(length), whole) == [], length
    runner = RUNNERS[kind]()
    assert differences(contents([runner.sample(n) for n in (1, 100, 2, 2, 70, 1, 80)]), whole) == []


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_starts_follow_ends(mode: AutoresetMode) -> None:
    for length in (1, 40):
        runner = test_env_runner.runner_for(env=counters(mode))
        parts = [runner.sample(length, explore=False) for _ in range(40 // length)]
        ended, valid, starts = (
            torch.cat([part[name] if name else part[Columns.TERMINATEDS] | part[Columns.TRUNCATEDS] for part in parts])
            for name in ("", Columns.VALID, Columns.STARTS)
        )
        assert starts[0].all()
        if mode == AutoresetMode.NEXT_STEP:
            assert torch.equal(~valid[1:], ended[:-1])
            assert torch.equal(starts[1:], ~valid[:-1])
        else:
            assert torch.equal(starts[1:], ended[:-1])
        assert starts[1:].any()


def pieces(rollout: Rollout) -> list[Any]:
    """Everything a rollout holds; a list, which is as good as the tuple it came from."""
    return [rollout.columns, rollout.last_obs, rollout.final_index, rollout.final_obs, rollout.state_in]


@pytest.mark.parametrize("kind", RUNNERS)
@pytest.mark.parametrize("length", [1, 5])
def test_rollouts_never_change_afterwards(kind: str, length: int) -> None:
    runner = RUNNERS[kind]()
    rollouts = [runner.sample(length) for _ in range(20)]
    kept = [clone(pieces(r)) for r in rollouts]
    for num in (length, length, 3, length):
        runner.sample(num)
    runner.reset()
    runner.sample(length)
    runner.set_module(runner.module)
    runner.sample(length)
    assert differences(kept, [pieces(r) for r in rollouts]) == []


@pytest.mark.parametrize("kind", RUNNERS)
def test_what_is_written_into_a_rollout_reaches_no_other(kind: str) -> None:
    runner, other = RUNNERS[kind](), RUNNERS[kind]()
    for _ in range(100):
        rollout, untouched = runner.sample(1), other.sample(1)
        assert differences(pieces(rollout), pieces(untouched)) == []
        for leaf in tree.flatten(pieces(rollout)):
            if isinstance(leaf, Tensor):
                leaf.fill_(77)


@pytest.mark.parametrize("kind", RUNNERS)
def test_a_recycled_rollout_is_overwritten_and_leaves_nothing_behind(kind: str) -> None:
    runner, other = RUNNERS[kind](), RUNNERS[kind]()
    places = set[int]()
    for i, length in enumerate([1] * 30 + [5] * 20 + [1] * 10):
        rollout, fresh = (each.sample(length, explore=i % 4 > 0) for each in (runner, other))
        assert differences(pieces(rollout), pieces(fresh)) == [], i
        places.add(rollout.valid.data_ptr())
        runner.recycle()
    assert len(places) <= 3  # a rollout of another length has new memory


def test_a_rollout_that_was_dropped_is_freed_before_the_next_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    runner, allocate, freed = RUNNERS["plain"](), RolloutStorage.__init__, list[bool]()
    rollout = runner.sample(5)
    valid = weakref.ref(rollout.valid)

    def noted(*args: Any) -> None:
        freed.append(valid() is None)
        allocate(*args)

    monkeypatch.setattr(RolloutStorage, "__init__", noted)
    del rollout
    runner.sample(5)
    assert freed == [True]


# --- after an error --------------------------------------------------------------------------------------------------


def test_after_a_bad_observation_new_episodes_start() -> None:
    class Bad(Counter):
        def step(self, action: Any) -> Any:
            obs, *rest = super().step(action)
            return (obs * np.nan if (self.index, self.episode, self.t) == (1, 0, 2) else obs), *rest

    runner = test_env_runner.runner_for(env=counters(AutoresetMode.SAME_STEP, Bad, lengths=(9,)))
    assert runner.sample(1, explore=False)[Columns.STARTS].all()
    with pytest.raises(ValueError, match="env 1, step 2, obs"):
        runner.sample(1, explore=False)
    rollouts = [runner.sample(1, explore=False) for _ in range(2)]
    assert rollouts[0][Columns.OBS][0].tolist() == [[0, 1, 0], [1, 1, 0], [2, 1, 0]]
    assert [rollout[Columns.STARTS].tolist() for rollout in rollouts] == [[[True] * 3], [[False] * 3]]


def test_a_bad_first_observation_is_named() -> None:
    class Bad(Counter):
        def reset(self, **kwargs: Any) -> Any:
            obs, info = super().reset(**kwargs)
            return obs * np.inf if self.index == 2 else obs, info

    runner = test_env_runner.runner_for(env=counters(AutoresetMode.SAME_STEP, Bad))
    with np.errstate(invalid="ignore"), pytest.raises(ValueError, match="env 2, step 0, obs"):
        runner.sample(1, explore=False)


# --- what is drawn and recorded --------------------------------------------------------------------------------------


def test_state_round_trip_in_the_middle_of_a_block_of_noise() -> None:
    for kind in ("plain", "numbers", "draws for itself", "noisy"):
        for before in (1, 100, 130):
            runner, other = RUNNERS[kind](), RUNNERS[kind]()
            for _ in range(before):
                runner.sample(1)
            other.set_state(clone(runner.get_state()))
            assert differences(other.get_state(), runner.get_state()) == []
            rollouts = [[r.sample(n).columns for n in (1, 1, 40)] for r in (runner, other)]
            assert differences(*rollouts) == [], (kind, before)


def test_to_act_greedily_uses_no_noise() -> None:
    runner, other = (test_env_runner.runner_for(Noisy) for _ in range(2))
    runner.sample(10, explore=False)
    for index, one in other.get_state().items():
        state = runner.get_state()[index]
        assert (
            differences(
                {n: state[n] for n in one.keys() & {"noise", "generator"}},
                {n: one[n] for n in one.keys() & {"noise", "generator"}},
            )
            == []
        )
    assert isinstance(runner.module, Noisy)
    assert runner.module.drawn == 0


@pytest.mark.parametrize("length", [1, 7])
def test_noisy_nets_are_resampled_before_each_vector_step(length: int) -> None:
    runner = test_env_runner.runner_for(Noisy)
    module = runner.module
    assert isinstance(module, Noisy)
    rollouts = [runner.sample(length) for _ in range(14 // length)]
    assert module.drawn == 14
    obs, inputs = (torch.cat([r[n] for r in rollouts]) for n in (Columns.OBS, Columns.ACTION_DIST_INPUTS))
    with torch.no_grad():
        noise = (inputs - module._forward({Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS])[..., 0] / 3
    fresh = test_env_runner.runner_for(Noisy)
    drawn = torch.stack([torch.randn((), generator=fresh._streams.generator) for _ in range(14)])
    torch.testing.assert_close(noise, drawn[:, None].expand(14, 3), rtol=1e-4, atol=1e-5)


def test_a_row_that_only_resets_a_single_env_draws_no_noise() -> None:
    actions = []
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        env = SyncVectorEnv([lambda: gym.make("CartPole-v1")], autoreset_mode=mode)
        runner = test_env_runner.runner_for(Noisy, env=lambda config, env=env: env, num_envs_per_env_runner=1)
        rollouts = [runner.sample(length) for length in (1, 1, 1, 1, 200)]
        actions.append(torch.cat([rollout[Columns.ACTIONS][rollout.valid] for rollout in rollouts]))
        assert len(rollouts[-1].stats["episode_returns"]) > 2
    same, following = actions
    assert torch.equal(following, same[: len(following)])


def test_noisy_nets_of_several_envs_act_alike_in_both_modes_until_one_only_resets() -> None:
    rollouts = []
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        env = SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3, autoreset_mode=mode)
        runner = test_env_runner.runner_for(Noisy, env=lambda config, env=env: env)
        rollouts.append(runner.sample(200))
    same, following = rollouts
    first_reset = int((~following.valid).any(1).nonzero()[0])
    assert first_reset > 0
    assert torch.equal(same[Columns.ACTIONS][:first_reset], following[Columns.ACTIONS][:first_reset])
    later = [following[Columns.ACTIONS][:, slot][following.valid[:, slot]] for slot in range(3)]
    assert not all(torch.equal(own, same[Columns.ACTIONS][: len(own), slot]) for slot, own in enumerate(later))


def test_a_policy_that_explores_resamples_noise_with_its_own_generator() -> None:
    module = test_env_runner.runner_for(Noisy).module
    assert isinstance(module, Noisy)
    policy = Policy(module, torch.Generator().manual_seed(5))
    policy.act(np.zeros(4, np.float32))
    assert module.drawn == 0
    policy.act(np.zeros(4, np.float32), explore=True)
    policy.act(np.zeros(4, np.float32), explore=True)
    assert module.drawn == 2
    again = Policy(module, torch.Generator().manual_seed(5))
    again.act(np.zeros(4, np.float32), explore=True)
    assert module.noise == torch.randn((), generator=torch.Generator().manual_seed(5))


class Unrecorded(Settings):
    records_action_dist: ClassVar[bool] = False
    records_episode_infos: ClassVar[bool] = False


@pytest.mark.parametrize("length", [1, 30])
def test_the_action_distribution_is_recorded_only_if_it_is_asked_for(length: int) -> None:
    runners = [EnvRunner(cls(), run_seed=1) for cls in (Settings, Unrecorded)]
    for runner in runners:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            runner.set_module(Small(observation_space=runner.observation_space, action_space=runner.action_space))
    with_it, without = (runner.sample(length).columns for runner in runners)
    for name in (Columns.ACTION_DIST_INPUTS, Columns.ACTION_LOGP):
        assert name not in without
        del with_it[name]
    assert differences(with_it, without) == []
    rollout = runners[0].sample(length, explore=False)
    assert Columns.ACTION_DIST_INPUTS in rollout
    assert Columns.ACTION_LOGP not in rollout


def test_metrics_of_short_fragments_are_those_of_long_ones() -> None:
    def count(length: int) -> dict[str, Any]:
        runner, metrics = test_env_runner.runner_for(Scripted, env=counters(AutoresetMode.NEXT_STEP)), RunMetrics(5)
        for _ in range(60 // length):
            metrics.add_rollout(runner.sample(length, explore=False))
        return metrics.get_state()

    whole = count(60)
    assert whole["episodes"] > 30
    for length in (1, 3):
        state = count(length)
        assert state | {"returns": pytest.approx(state["returns"])} == whole
