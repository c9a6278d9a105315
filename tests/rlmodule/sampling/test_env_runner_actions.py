"""Nested actions on their way to the env and into the rollout, and envs whose mask leaves nothing to choose."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from catalog.base import Tree
from rlmodule import Columns, EnvRunner, RLModule, Rollout
from rlmodule.modules.policy import Policy
from rlmodule.testing.data import differences
from tests.rlmodule.toys import NoNets, Recurrent, Settings

# Python 3.12 and later warn of every fork of a process with threads, which torch has; it is Gymnasium that forks.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

DICT = spaces.Dict(
    [
        ("z", spaces.Discrete(3, start=2)),
        ("a", spaces.Tuple((spaces.Box(-2, 3, (2,), np.float32), spaces.MultiBinary(2)))),
        ("m", spaces.MultiDiscrete([2, 4])),
    ]
)
TUPLE = spaces.Tuple((spaces.Discrete(2), spaces.Dict({"b": spaces.Box(-np.inf, np.inf, (2,), np.float32)})))


class Linear(RLModule):
    """One layer from a flat observation; of a Dict, the field ``x``."""

    def setup(self) -> None:
        self.net = nn.Linear(2, self.action_dist_cls.required_input_dim(self.action_space))

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        obs = self.env_part(batch[Columns.OBS])
        inputs = self.net(obs["x"] if isinstance(obs, dict) else obs)
        if self.action_mask is not None:
            inputs = self.action_mask(inputs, obs)
        return {Columns.ACTION_DIST_INPUTS: inputs}


class Echo(gym.Env):
    """Rewards the sum of all numbers in the action, and spoils the arrays it was given."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def __init__(self, action_space: spaces.Space) -> None:
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.standard_normal(2, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        total = sum(float(np.sum(leaf)) for leaf in tree.flatten(action))
        for leaf in tree.flatten(action):
            if isinstance(leaf, np.ndarray):
                leaf[...] = 77
        self.t += 1
        return self.np_random.standard_normal(2, np.float32), total, False, self.t == 5, {}


def with_module(runner: EnvRunner, module_class: type[RLModule] = Linear, **model: Any) -> EnvRunner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = module_class(
            observation_space=runner.observation_space,
            action_space=runner.action_space,
            model_config=model,
            catalog_class=NoNets,
        )
    runner.set_module(module)
    return runner


def total(actions: Tree) -> torch.Tensor:
    """Sum of all numbers in each action, ``[T, N]``."""
    return torch.stack(
        [x.float().flatten(1).unflatten(1, (x.shape[1], -1)).sum(-1) for x in tree.flatten(actions)]
    ).sum(0)


@pytest.mark.parametrize("space", [DICT, TUPLE], ids=["dict", "tuple"])
@pytest.mark.parametrize("vector", ["sync", "async", "ready"])
@pytest.mark.parametrize("explore", [True, False])
def test_nested_actions_reach_the_env_and_the_rollout(space: spaces.Space, vector: str, explore: bool) -> None:
    if vector == "ready":
        settings = Settings(
            env=lambda config: SyncVectorEnv([lambda: Echo(space)] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
        )
    else:
        settings = Settings(env=lambda config: Echo(space), gym_env_vectorize_mode=vector)
    settings.num_envs_per_env_runner = 2
    runner = with_module(EnvRunner(settings, run_seed=1))
    try:
        rollout = runner.sample(12, explore=explore)
    finally:
        runner.stop()
    module, actions = runner.module, rollout[Columns.ACTIONS]
    tree.assert_same_structure(actions, space.sample(), check_types=False)
    assert all(x.shape[:2] == (12, 2) for x in tree.flatten(actions))
    if isinstance(space, spaces.Dict):
        assert list(actions) == ["z", "a", "m"]
        assert actions["z"].min() >= 0  # as sampled: choices begin with 0
        assert set(actions["z"].flatten().tolist()) <= {0, 1, 2}
    # the reward says what reached the env
    sent = total(module.action_converter(actions)).masked_fill(~rollout.valid, 0)
    torch.testing.assert_close(rollout[Columns.REWARDS], sent, rtol=1e-5, atol=1e-5)
    if explore:
        dist = module.action_dist_cls.from_logits(rollout[Columns.ACTION_DIST_INPUTS])
        assert torch.equal(dist.logp(actions), rollout[Columns.ACTION_LOGP])
        assert rollout[Columns.ACTION_LOGP].shape == (12, 2)
    for leaf in tree.flatten(actions):
        assert not leaf.is_inference()


def test_nested_actions_of_two_runs_are_equal() -> None:
    settings = Settings(env=lambda config: Echo(DICT))
    runners = [with_module(EnvRunner(settings, run_seed=seed)) for seed in (3, 3, 4)]
    one, two, other = ([runner.sample(n)[Columns.ACTIONS] for n in (9, 4)] for runner in runners)
    assert differences(one, two) == []
    assert len(differences(one, other)) == 8
    assert len(set(one[0]["z"].flatten().tolist())) == 3


def test_previous_nested_actions_are_those_sampled() -> None:
    settings = Settings(env=lambda config: Echo(DICT))
    runner = with_module(EnvRunner(settings, run_seed=1), Recurrent, use_lstm=True, lstm_use_prev_action=True)
    rollout = runner.sample(12)
    seen, done, starts = rollout[Columns.OBS]["prev_action"], rollout[Columns.ACTIONS], rollout[Columns.STARTS]
    assert int(starts.sum()) == 3 * 3

    def check(now: torch.Tensor, before: torch.Tensor) -> None:
        assert not now[starts].any()
        assert torch.equal(now[1:][~starts[1:]].to(before.dtype), before[:-1][~starts[1:]])

    tree.map_structure(check, seen, done)
    rows, slots = rollout.final_index.unbind(1)
    assert len(rows) == 6
    tree.map_structure(
        lambda final, before: torch.testing.assert_close(final.to(before.dtype), before[rows, slots]),
        rollout.final_obs["prev_action"],
        done,
    )


def test_a_policy_gives_actions_that_the_space_contains() -> None:
    for space in (DICT, TUPLE):
        runner = with_module(EnvRunner(Settings(env=lambda config, space=space: Echo(space)), run_seed=1))
        policy = Policy(runner.module)
        for seed in range(10):
            obs = np.random.default_rng(seed).standard_normal(2, np.float32)
            for explore in (True, False):
                action, state = policy.act(obs, explore=explore)
                assert space.contains(action), action
                assert state is None
        runner.stop()


def test_nested_actions_survive_packing_into_episodes() -> None:
    runner = with_module(EnvRunner(Settings(env=lambda config: Echo(DICT)), run_seed=1))
    rollout = runner.sample(10)
    again = Rollout.from_episodes(rollout.to_episodes())
    names = (Columns.ACTIONS, Columns.ACTION_LOGP)
    for a, b in zip(*(tree.flatten(r.valid_rows(names)) for r in (rollout, again)), strict=True):
        assert sorted(a.flatten().tolist()) == sorted(b.flatten().tolist())


# --- masks -----------------------------------------------------------------------------------------------------------


class Masked(gym.Env):
    """Forbids all but one action, and all of them where ``stuck`` says so: (env, episode, step)."""

    action_space = spaces.Discrete(3)
    observation_space = spaces.Dict(
        {"x": spaces.Box(-np.inf, np.inf, (2,), np.float32), "action_mask": spaces.MultiBinary(3)}
    )

    def __init__(self, index: int, stuck: tuple[int, int, int] | None, length: int = 4) -> None:
        self.index, self.stuck, self.length, self.episode = index, stuck, length, -1

    def _obs(self) -> Any:
        mask = np.zeros(3, np.int8)
        if (self.index, self.episode, self.t) != self.stuck:
            mask[(self.index + self.t) % 3] = 1
        return {"x": np.ones(2, np.float32), "action_mask": mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.episode = 0, self.episode + 1
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        assert action == (self.index + self.t) % 3
        self.t += 1
        return self._obs(), 0.0, False, self.t == self.length, {}


def masked_runner(stuck: tuple[int, int, int] | None, mode: AutoresetMode, first: int = 0, **model: Any) -> EnvRunner:
    envs = [lambda i=i: Masked(i, stuck) for i in range(3)]
    runner = EnvRunner(
        Settings(env=lambda config: SyncVectorEnv(envs, autoreset_mode=mode)), run_seed=1, first_env_index=first
    )
    return with_module(runner, **model)


class Forgiving(Masked):
    def step(self, action: Any) -> Any:
        self.t += 1
        return self._obs(), 0.0, False, self.t == self.length, {}


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_masked_actions_are_never_taken(mode: AutoresetMode) -> None:
    if mode == AutoresetMode.NEXT_STEP:
        return  # which acts in vain on the last observation
    rollout = masked_runner(None, mode).sample(20)
    taken = nn.functional.one_hot(rollout[Columns.ACTIONS], 3)
    assert torch.equal(taken.bool(), rollout[Columns.OBS]["action_mask"].bool())


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_an_env_with_nothing_to_choose_is_named(mode: AutoresetMode) -> None:
    runner = masked_runner((1, 1, 2), mode, first=10)
    # episode 1 begins after four steps, or one later where the reset takes a step of its own
    step = 4 + 2 + (mode == AutoresetMode.NEXT_STEP)
    runner.sample(3)
    with pytest.raises(ValueError, match=rf"env 11, step {step}, obs\['action_mask'\]: expected at least one action"):
        runner.sample(6)
    rollout = runner.sample(3)  # goes on with new episodes
    assert rollout.valid.all()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_last_observation_of_an_episode_needs_no_choice(mode: AutoresetMode) -> None:
    rollout = masked_runner((1, 1, 4), mode).sample(20)
    assert len(rollout.final_index) >= 9
    assert (~rollout.final_obs["action_mask"].bool()).all(-1).sum() == 1


def test_the_mask_is_found_beside_previous_rewards() -> None:
    runner = masked_runner((2, 0, 3), AutoresetMode.SAME_STEP, use_lstm=True, lstm_use_prev_reward=True)
    with pytest.raises(ValueError, match=r"env 2, step 3, obs\['action_mask'\]"):
        runner.sample(6)


def test_a_policy_refuses_a_mask_that_forbids_all() -> None:
    policy = Policy(masked_runner(None, AutoresetMode.SAME_STEP).module)
    obs = {"x": np.ones(2, np.float32), "action_mask": np.array([0, 1, 0], np.int8)}
    assert policy.act(obs)[0] == 1
    with pytest.raises(ValueError, match=r"Policy\.act\(obs\)\['action_mask'\]: expected at least one action"):
        policy.act({**obs, "action_mask": np.zeros(3, np.int8)})
