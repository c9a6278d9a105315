"""Acting on single observations."""

import re
from typing import Any

import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rlmodule import Columns, EnvRunner
from rlmodule.modules.policy import Policy
from rlmodule.testing.data import differences
from tests.rlmodule.toys import Counter, NestedCounter, NoNets, Recurrent, Scripted, Settings, Small, counters

OBS = spaces.Box(-np.inf, np.inf, (4,), np.float64)


def policy_for(action_space: spaces.Space, observation_space: spaces.Space = OBS, cls: Any = Small) -> Policy:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        catalog: dict[str, Any] = {"catalog_class": NoNets} if cls is Scripted else {}
        return Policy(cls(observation_space=observation_space, action_space=action_space, **catalog))


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=4),  # type: ignore[arg-type]
        spaces.MultiDiscrete([2, 3], start=[1, 1]),
        spaces.Box(-2, 3, (2,), np.float32),
        spaces.Box(np.float32([0]), np.float32([np.inf])),
    ],
)
@pytest.mark.parametrize("explore", [True, False])
def test_actions_can_go_to_env_step(space: spaces.Space, explore: bool) -> None:
    policy = policy_for(space)
    rng = np.random.default_rng(0)
    for _ in range(20):
        action, state = policy.act(rng.standard_normal(4) * 10, explore=explore)
        assert space.contains(action), action
        assert isinstance(action, int) is isinstance(space, spaces.Discrete)
        assert state is None


def test_greedy_is_the_most_likely_action() -> None:
    policy = policy_for(spaces.Discrete(5))
    obs = np.arange(4.0)
    out = policy.module.forward_inference({Columns.OBS: torch.arange(4.0)[None]})
    assert policy.act(obs)[0] == int(out[Columns.ACTION_DIST_INPUTS].argmax())
    assert {policy.act(obs)[0] for _ in range(5)} == {policy.act(obs)[0]}
    assert len({policy.act(obs, explore=True)[0] for _ in range(60)}) > 1


def test_one_observation_alone_acts_as_in_a_batch() -> None:
    policy = policy_for(spaces.Box(-np.inf, np.inf, (2,), np.float32))
    obs = np.random.default_rng(0).standard_normal((6, 4))
    batch = policy.module.forward_inference({Columns.OBS: torch.from_numpy(obs).float()})
    means = batch[Columns.ACTION_DIST_INPUTS][:, :2].numpy()
    for row in range(6):
        np.testing.assert_allclose(policy.act(obs[row])[0], means[row], rtol=1e-5, atol=1e-6)


def test_an_observation_may_be_a_tensor_with_a_gradient() -> None:
    policy = policy_for(spaces.Discrete(5))
    obs = torch.arange(4.0, requires_grad=True)
    assert policy.act(obs)[0] == policy.act(obs.detach().numpy())[0]
    assert policy.act_batch(obs[None])[0].tolist() == [policy.act(obs)[0]]
    with pytest.raises(ValueError, match="expected finite numbers, got nan"):
        policy.act(obs * float("nan"))


def test_nested_and_discrete_observations() -> None:
    env = NestedCounter(2)
    env.reset()
    policy = policy_for(env.action_space, env.observation_space, Scripted)
    obs, _ = env.reset()
    for _ in range(3):
        action, _ = policy.act(obs)
        assert action == (2 + 2 * 1 + env.t) % 3
        obs, *_ = env.step(action)
    assert policy_for(spaces.Discrete(2), spaces.Discrete(3)).act(2)[0] in (0, 1)


@pytest.mark.parametrize("obs", [np.zeros((1, 4)), np.zeros(3), 0.0, {"a": np.zeros(4)}])
def test_wrong_shape(obs: Any) -> None:
    with pytest.raises(ValueError, match=r"Policy\.act\(obs\): expected one observation of Box"):
        policy_for(spaces.Discrete(2)).act(obs)


def test_lists_of_numbers_are_taken_for_arrays() -> None:
    numbers = [0.5, -1.0, 0.0, 2.0]
    box = policy_for(spaces.Box(-1, 1, (2,)))
    expected, _ = box.act(np.array(numbers, np.float32))
    for given in (numbers, tuple(numbers), [np.float64(number) for number in numbers]):
        np.testing.assert_array_equal(box.act(given)[0], expected)
    nested = spaces.Dict(
        {"image": spaces.Box(0, 255, (1, 2), np.uint8), "pair": spaces.Tuple((spaces.MultiBinary(2), OBS))}
    )
    policy = policy_for(spaces.Box(-1, 1, (2,)), nested)
    arrays = {
        "image": np.array([[3, 250]], np.uint8),
        "pair": (np.array([1, 0], np.int8), np.array(numbers, np.float32)),
    }
    lists = {"image": [[3, 250]], "pair": [[1, 0], numbers]}
    np.testing.assert_array_equal(policy.act(lists)[0], policy.act(arrays)[0])


def test_no_number_changes_on_its_way_to_the_dtype_of_the_space() -> None:
    eye = policy_for(spaces.Discrete(2), spaces.Box(0, 255, (2,), np.uint8))
    np.testing.assert_array_equal(eye.act(np.array([3, 250]))[0], eye.act(np.array([3, 250], np.uint8))[0])
    for wrong in (np.array([3, 256]), [3, 256], np.array([256, -1], np.int16)):
        with pytest.raises(ValueError, match=r"expected numbers in the range of uint8, got 256\."):
            eye.act(wrong)
    with pytest.raises(ValueError, match=r"one observation of Box\(2\) uint8 in \[0, 255\], got \[0\.5, 0\.9\]\."):
        eye.act([0.5, 0.9])
    with pytest.raises(ValueError, match=r"expected a batch \[2, \.\.\.\] of MultiDiscrete.* got \[\[0\.7, 1\.9\], "):
        policy_for(spaces.Discrete(2), spaces.MultiDiscrete([3, 4])).act_batch([[0.7, 1.9], [0, 1]])


@pytest.mark.parametrize(
    ("obs", "got"),
    [
        ([0.0, 1.0, 2.0], "shape (3,)"),
        ([[0.0] * 4] * 2, "shape (2, 4)"),
        (["left", 0, 0, 0], "['left', 0, 0, 0]"),
        (None, "None"),
        (([0.0] * 4, {}), "([0.0, 0.0, 0.0, 0.0], {})"),
    ],
)
def test_what_is_no_observation_is_told_shortly(obs: Any, got: str) -> None:
    message = f"expected one observation of Box(4) float64 in [-inf, inf], got {got}. Pass what env.reset()"
    with pytest.raises(ValueError, match=re.escape(message)):
        policy_for(spaces.Discrete(2)).act(obs)


@pytest.mark.parametrize("state", [{"nope": 1}, (torch.zeros(1, 2),)])
def test_a_state_of_something_else_is_explained(state: Any) -> None:
    with pytest.raises(ValueError, match=r"Policy\.act\(state\): expected the state that the last call returned, None"):
        policy_for(spaces.Discrete(2)).act(np.zeros(4, np.float32), state)


def test_acts_in_eval_mode_without_gradient() -> None:
    policy = policy_for(spaces.Box(-1, 1, (2,), np.float32))
    assert not policy.module.training
    action, _ = policy.act(np.zeros(4))
    assert isinstance(action, np.ndarray)
    assert action.dtype == np.float32


def test_exploring_repeats_with_its_own_generator_and_leaves_the_global_one_alone() -> None:
    module, obs = policy_for(spaces.Box(-1, 1, (2,), np.float32)).module, np.zeros(4)
    first, second = (Policy(module, torch.Generator().manual_seed(7)) for _ in range(2))
    before = torch.random.get_rng_state()
    drawn = [first.act(obs, explore=True)[0] for _ in range(3)]
    assert torch.equal(torch.random.get_rng_state(), before)
    np.testing.assert_array_equal(drawn, [second.act(obs, explore=True)[0] for _ in range(3)])
    assert not np.array_equal(drawn[0], drawn[1])


# --- memory ----------------------------------------------------------------------------------------------------------

MEMORIES: list[dict[str, Any]] = [
    {},
    {"lstm_use_prev_action": True},
    {"lstm_use_prev_reward": True},
    {"lstm_use_prev_action": True, "lstm_use_prev_reward": True},
]


class Steered(Counter):
    """Acted on by a number, which its rewards contain."""

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        self.action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)  # type: ignore[assignment]

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(0)
        return obs, reward + float(action[0]), *rest


def remembering(model: dict[str, Any]) -> tuple[EnvRunner, Policy]:
    """A runner of counters, and a policy of the same weights."""
    runner = EnvRunner(Settings(env=counters(AutoresetMode.SAME_STEP, Steered)), run_seed=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Recurrent(
            observation_space=runner.observation_space,
            action_space=runner.action_space,
            model_config={"use_lstm": True, **model},
            catalog_class=NoNets,
        )
    runner.set_module(module)
    return runner, Policy(module)


@pytest.mark.parametrize("model", MEMORIES)
def test_a_policy_remembers_what_the_runner_remembers(model: dict[str, Any]) -> None:
    runner, policy = remembering(model)
    rollout = runner.sample(20, explore=False)
    for slot in range(3):
        env, taken = Steered(slot), []
        obs, _ = env.reset()
        state, reward = None, None
        for _ in range(20):
            action, state = policy.act(obs, state, reward=reward)
            obs, reward, terminated, truncated, _ = env.step(action)
            taken.append(action[0])
            if terminated or truncated:
                obs, _ = env.reset()
                state, reward = None, None
        np.testing.assert_allclose(taken, rollout[Columns.ACTIONS][:, slot, 0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("model", MEMORIES)
def test_a_state_can_be_taken_up_again(model: dict[str, Any]) -> None:
    _, policy = remembering(model)
    obs = [np.array([1, 2, t], np.float32) for t in range(4)]
    _, state = policy.act(obs[0])
    kept = tree.map_structure(torch.clone, state)
    first = [policy.act(obs[t], state, reward=5.0) for t in (1, 2)]
    again = [policy.act(obs[t], state, reward=5.0) for t in (1, 2)]
    assert differences(first, again) == []
    assert differences(state, kept) == []
    assert differences(state, first[0][1])
    forgotten = policy.act(obs[1])[1]
    assert differences(first[0][1], forgotten)


@pytest.mark.parametrize("model", MEMORIES)
def test_a_state_may_come_back_as_arrays_of_numpy(model: dict[str, Any]) -> None:
    _, policy = remembering(model)
    obs = np.array([1, 2, 3], np.float32)
    _, state = policy.act(obs)
    as_arrays = tree.map_structure(lambda x: x.double().numpy(), state)
    assert differences(policy.act(obs, as_arrays, reward=5.0), policy.act(obs, state, reward=5.0)) == []


def test_a_reward_is_finite_where_it_is_seen() -> None:
    _, policy = remembering({"lstm_use_prev_reward": True})
    obs, wrong = np.zeros((2, 3), np.float32), [1.0, float("nan")]
    _, state = policy.act_batch(obs)
    with pytest.raises(ValueError, match=r"Policy\.act_batch\(rewards\): expected finite rewards, got nan\."):
        policy.act_batch(obs, state, rewards=wrong)
    policy.act_batch(obs, state, starts=[False, True], rewards=wrong)
    _, blind = remembering({})
    blind.act_batch(obs, blind.act_batch(obs)[1], rewards=wrong)


def test_a_missing_reward_is_explained() -> None:
    _, policy = remembering({"lstm_use_prev_reward": True})
    _, state = policy.act(np.zeros(3, np.float32))
    with pytest.raises(ValueError, match=r"Policy\.act\(reward\): expected the reward of the last env\.step\(\)"):
        policy.act(np.zeros(3, np.float32), state)
    policy.act(np.zeros(3, np.float32), state, reward=0.0)


def test_the_reward_counts_where_it_is_seen() -> None:
    for model in MEMORIES:
        _, policy = remembering(model)
        _, state = policy.act(np.zeros(3, np.float32))
        states = [policy.act(np.zeros(3, np.float32), state, reward=reward)[1] for reward in (0.0, 500.0)]
        assert bool(differences(*states)) is ("lstm_use_prev_reward" in model)


def test_writing_into_an_action_does_not_change_what_was_done() -> None:
    box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    with torch.random.fork_rng(devices=[]):
        module = Recurrent(
            observation_space=OBS,
            action_space=box,
            model_config={"use_lstm": True, "lstm_use_prev_action": True},
            catalog_class=NoNets,
        )
    for action, state in (Policy(module).act(np.zeros(4)), Policy(module).act_batch(np.zeros((2, 4)))):
        assert state is not None
        before = state["prev_action"].clone()
        action[:] = 77
        assert torch.equal(state["prev_action"], before)


def test_actions_of_a_box_without_dims_are_arrays() -> None:
    space = spaces.Box(-1, 1, (), np.float32)
    action, _ = policy_for(space).act(np.zeros(4))
    assert isinstance(action, np.ndarray)
    assert space.contains(action)


# --- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MEMORIES)
@pytest.mark.parametrize("num", [1, 2, 7])
def test_a_batch_acts_as_its_rows_alone_across_episodes(model: dict[str, Any], num: int) -> None:
    _, policy = remembering(model)
    rng = np.random.default_rng(num)
    starts = rng.random((12, num)) < 0.25
    starts[0] = True
    state, states, rewards = None, [None] * num, rng.normal(size=num)
    for t in range(12):
        obs = rng.normal(size=(num, 3)).astype(np.float32)
        actions, state = policy.act_batch(obs, state, starts=starts[t], rewards=rewards)
        for row in range(num):
            if starts[t, row]:
                states[row] = None
            alone, states[row] = policy.act(obs[row], states[row], reward=rewards[row])
            np.testing.assert_allclose(actions[row], alone, atol=1e-5)
        rewards = rng.normal(size=num)


@pytest.mark.parametrize("model", MEMORIES)
def test_a_batch_of_the_runners_shape_acts_as_the_runner_to_the_last_bit(model: dict[str, Any]) -> None:
    runner, policy = remembering(model)
    rollout = runner.sample(20, explore=False)
    env_part = policy.module.env_part
    state, rewards = None, None
    for t in range(20):
        obs = env_part(tree.map_structure(lambda x, t=t: x[t].numpy(), rollout[Columns.OBS]))
        actions, state = policy.act_batch(obs, state, starts=rollout[Columns.STARTS][t], rewards=rewards)
        assert np.array_equal(actions, rollout[Columns.ACTIONS][t].numpy())
        rewards = rollout[Columns.REWARDS][t]


def test_actions_of_a_batch_are_those_a_vector_env_takes() -> None:
    space = spaces.Dict({"a": spaces.Discrete(3), "b": spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.MultiBinary(4)])})
    actions, state = policy_for(space).act_batch(np.zeros((5, 4)), explore=True)
    assert state is None
    one = tree.map_structure(lambda x: x[3], actions)
    assert space.contains(one)
    assert {x.shape[0] for x in tree.flatten(actions)} == {5}


ROBOT = spaces.Dict(
    {"arm": spaces.Tuple([OBS, spaces.Discrete(3, start=1)]), "eye": spaces.Box(0, 255, (2,), np.uint8)}
)  # type: ignore[arg-type]
SEEN = {"arm": (np.zeros(4), 2), "eye": np.zeros(2, np.uint8)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"eye": None}, r"\(obs\)\['eye'\]: expected one observation of Box\(2\) uint8 in \[0, 255\], got None"),
        (
            {"eye": np.zeros((1, 2), np.uint8)},
            r"\['eye'\]: expected one .*, got shape \(1, 2\)\. .* call act_batch\(\)",
        ),
        ({"eye": np.zeros(2)}, r"\['eye'\]: .* got shape \(2,\) of float64"),
        ({"arm": (np.array([0, 1, np.nan, 2]), 2)}, r"\['arm'\]\[0\]: expected finite numbers, got nan"),
        ({"arm": (np.zeros(4), 0)}, r"\['arm'\]\[1\]: expected Discrete\(3, start=1\), got 0"),
        ({"arm": np.zeros(4)}, r"\['arm'\]: expected one observation of Tuple"),
        ({"more": 1}, r"Policy.act\(obs\): expected one .* got \['arm', 'eye', 'more'\]"),
    ],
)
def test_the_leaf_that_does_not_fit_is_named(change: dict[str, Any], message: str) -> None:
    policy = policy_for(spaces.Box(-1, 1, (2,)), ROBOT)
    policy.act(SEEN)
    with pytest.raises(ValueError, match=message):
        policy.act({**SEEN, **change})
    with pytest.raises(ValueError, match=r"\(obs\)\['eye'\]: expected one observation of Box.*, got \['arm'\]"):
        policy.act({"arm": SEEN["arm"]})


def test_numbers_are_finite_if_they_fit_into_float32() -> None:
    policy = policy_for(spaces.Discrete(2), spaces.Box(-np.inf, np.inf, (4,), np.float64))
    policy.act(np.full(4, 1e30))  # the square of which is infinite
    policy.act_batch(np.full((2, 4), 1e30)[:, ::-1])
    with pytest.raises(ValueError, match=r"expected numbers in the range of float32, got 1e\+300"):
        policy.act(np.full(4, 1e300))
    with pytest.raises(ValueError, match="expected finite numbers, got inf"):
        policy.act(np.full(4, np.inf))


def test_a_uint64_that_int64_cannot_hold_is_refused() -> None:
    policy = policy_for(spaces.Discrete(2), spaces.Box(0, 2**63 - 1, (3,), np.uint64))
    policy.act(np.array([0, 7, 2**63 - 1], np.uint64))
    with pytest.raises(ValueError, match=r"expected numbers in the range of int64, got 9223372036854775813\."):
        policy.act(np.array([0, 2**63 + 5, 7], np.uint64))


def test_a_mask_that_leaves_nothing_is_named() -> None:
    masked = spaces.Dict({"x": OBS, "action_mask": spaces.Box(0, 1, (2,), np.int8)})
    policy, obs = policy_for(spaces.Discrete(2), masked), {"x": np.zeros(4), "action_mask": np.zeros(2, np.int8)}
    with pytest.raises(ValueError, match=r"Policy\.act\(obs\)\['action_mask'\]: expected at least one action"):
        policy.act(obs)
    several = {name: np.stack([leaf, leaf + 1]).astype(leaf.dtype) for name, leaf in obs.items()}
    with pytest.raises(ValueError, match=r"Policy\.act_batch\(obs\)\['action_mask'\]: expected at least one action"):
        policy.act_batch(several)


@pytest.mark.parametrize(
    ("obs", "more", "message"),
    [
        (
            np.zeros(3),
            {},
            r"act_batch\(obs\): expected a batch \[3, ...\] of Box.*, got shape \(3,\)\. .* call act\(\)",
        ),
        (np.zeros((0, 3)), {}, r"expected a batch \[B, ...\] of .*, got shape \(0, 3\)"),
        (
            np.zeros((2, 3)),
            {},
            r"\(state\): expected shape \(2,\) at prev_reward, for 2 envs, got shape \(4,\)",
        ),
        (
            np.zeros((4, 3)),
            {"starts": [True]},
            r"\(starts\): expected one number for each of the 4 .* got shape \(1,\)",
        ),
        (np.zeros((4, 3)), {"rewards": 1.0}, r"\(rewards\): expected one number for each of the 4 .* got shape \(\)"),
        (np.zeros((4, 3)), {"rewards": None}, r"Policy\.act_batch\(rewards\): expected the reward of the last"),
    ],
)
def test_a_batch_that_does_not_fit_is_explained(obs: Any, more: dict[str, Any], message: str) -> None:
    _, policy = remembering({"lstm_use_prev_reward": True})
    _, state = policy.act_batch(np.zeros((4, 3)))
    with pytest.raises(ValueError, match=message):
        policy.act_batch(obs, state, **{"rewards": np.zeros(4), **more})


def test_a_policy_moved_to_a_device_has_its_own_weights() -> None:
    _, policy = remembering({"lstm_use_prev_action": True})
    moved, obs = policy.to("cpu"), np.ones((2, 3), np.float32)
    before = policy.act_batch(obs)
    assert differences(before, moved.act_batch(obs)) == []
    with torch.no_grad():
        next(policy.module.parameters()).add_(1)
    assert differences(before, moved.act_batch(obs)) == []
    assert differences(before, policy.act_batch(obs))
