"""Acting on single observations."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlmodule import Columns
from rlmodule.policy import Policy
from tests.rlmodule.toys import NestedCounter, NoNets, Scripted, Small

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
