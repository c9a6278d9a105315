"""Single envs stepped in this process: the same as Gymnasium's own vector env, but for the info that nobody reads."""

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlmodule.envs.infos import last_infos
from rlmodule.envs.sync_vector_env import SyncEnvs

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
SPACES = {
    "vector": VECTOR,
    "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "number": spaces.Box(-1.0, 1.0, (), np.float32),
    "Discrete": spaces.Discrete(5),
    "MultiBinary": spaces.MultiBinary(4),
    "Dict": spaces.Dict({"z": VECTOR, "a": spaces.Discrete(3)}),
    "Tuple": spaces.Tuple([VECTOR, spaces.Box(0, 9, (2, 2), np.int64)]),
}
ACTIONS = {
    "Discrete": spaces.Discrete(3),
    "Box": spaces.Box(-1.0, 1.0, (2,), np.float32),
    "Dict": spaces.Dict({"a": spaces.Discrete(2), "b": VECTOR}),
}


class Chance(gym.Env[Any, Any]):
    """Observes samples of its space and ends by chance; it is rewarded with its action."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space, self.num_steps = observation_space, action_space, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {"begins": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.num_steps += 1
        end = self.np_random.random()
        reward = float(np.sum([np.sum(part) for part in tree.flatten(action)]))
        obs = self.observation_space.sample()
        return obs, reward, end < 0.2, 0.1 < end < 0.3, {"step": self.num_steps, "seen": np.ones(2)}


def assert_equal(one: Any, other: Any) -> None:
    tree.assert_same_structure(one, other)
    for a, b in zip(tree.flatten(one), tree.flatten(other), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("action_space", ACTIONS.values(), ids=ACTIONS)
@pytest.mark.parametrize("observation_space", SPACES.values(), ids=SPACES)
def test_it_does_what_gymnasium_does(observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
    def make() -> Chance:
        return Chance(copy.deepcopy(observation_space), action_space)

    ours = SyncEnvs([make] * 3)
    theirs = SyncVectorEnv([make] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    assert_equal(ours.reset(seed=[1, 2, 3])[0], theirs.reset(seed=[1, 2, 3])[0])
    ours.action_space.seed(0)
    num_ended = 0
    for _ in range(40):
        actions = ours.action_space.sample()
        *mine, info = ours.step(actions)
        *other, other_info = theirs.step(actions)
        for a, b in zip(mine, other, strict=True):
            assert_equal(a, b)
        assert sorted(info) == sorted({"final_info", "final_obs"} & {*other_info})
        if "final_info" in info:
            ended = other_info["_final_obs"]
            num_ended += np.count_nonzero(ended)
            infos = [last_infos(one, ended, True) for one in (info, other_info)]
            assert [each["step"] for each in infos[0]] == [each["step"] for each in infos[1]]
            assert [each["seen"].tolist() for each in infos[0]] == [[1, 1]] * len(infos[0])
            for slot in range(3):
                assert (info["final_info"][slot] is not None) == ended[slot]
                if ended[slot]:
                    assert_equal(info["final_obs"][slot], other_info["final_obs"][slot])
    assert num_ended > 10


def test_rewards_and_ends_of_a_step_are_its_own() -> None:
    env = SyncEnvs([lambda: Chance(VECTOR, ACTIONS["Discrete"])] * 2)
    env.reset(seed=0)
    first = env.step(np.array([1, 2]))[1:4]
    before = [part.copy() for part in first]
    for _ in range(5):
        env.step(np.array([2, 0]))
    for kept, now in zip(before, first, strict=True):
        np.testing.assert_array_equal(kept, now)


@pytest.mark.parametrize("is_nested", [False, True])
def test_envs_may_share_the_array_that_they_return(is_nested: bool) -> None:
    shared = np.zeros(3, np.float32)

    class Sharing(Chance):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            shared[:] = seed
            return {"x": shared} if is_nested else shared, {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            shared[:] = action
            return {"x": shared} if is_nested else shared, 0.0, False, False, {}

    space = spaces.Dict(x=VECTOR) if is_nested else VECTOR
    env = SyncEnvs([lambda: Sharing(space, ACTIONS["Discrete"])] * 2)
    obs: Any = env.reset(seed=5)[0]
    assert (obs["x"] if is_nested else obs)[:, 0].tolist() == [5, 6]
    obs = env.step(np.array([1, 2]))[0]
    assert (obs["x"] if is_nested else obs)[:, 0].tolist() == [1, 2]


@pytest.mark.parametrize("wrong", [np.zeros(4, np.float32), np.zeros((1, 3), np.float32), np.float32(0.0)])
def test_an_observation_of_another_shape_is_not_stored(wrong: Any) -> None:
    class Wrong(Chance):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return wrong, 0.0, False, False, {}

    env = SyncEnvs([lambda: Wrong(VECTOR, ACTIONS["Discrete"])] * 2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"dimension|shape"):
        env.step(np.array([0, 0]))


def test_one_action_too_few_is_an_error() -> None:
    env = SyncEnvs([lambda: Chance(VECTOR, ACTIONS["Discrete"])] * 2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match="shorter"):
        env.step(np.array([0]))
