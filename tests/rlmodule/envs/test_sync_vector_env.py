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
    """Observes samples of its space and ends by chance; it is rewarded with what it is told to do."""

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


class Ends(Chance):
    """Ends at every step, with an info of its own, which its reset clears."""

    def __init__(self, info: dict[str, Any]) -> None:
        super().__init__(VECTOR, ACTIONS["Discrete"])
        self.info = info

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, _ = super().reset(seed=seed)
        return obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, True, False, self.info


UNLIKE: list[tuple[Any, Any]] = [
    (1, None), (None, 1), (1, "lost"), (0, 0.75), (False, 7), (2**70, 1), (np.uint8(1), 300), (np.float32(1), 1e300),
    ([1, 2], [3]), ({"a": 1}, None), (None, {"a": 1}), ({"a": 1}, {"a": "b"}), ((1, 2), {1: 2}),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), UNLIKE)
def test_infos_of_envs_that_end_together_need_have_nothing_in_common(one: Any, other: Any) -> None:
    infos = [{"x": one, "_x": 5.0}, {"x": other, "y": other}]
    env = SyncEnvs([lambda info=info: Ends(info) for info in infos])
    env.reset(seed=0)
    info = env.step(np.array([0, 0]))[-1]
    assert last_infos(info, np.array([True, True]), True) == infos


def test_arrays_in_infos_may_be_of_any_length() -> None:
    env = SyncEnvs([lambda n=n: Ends({"path": np.arange(n)}) for n in (3, 4)])
    env.reset(seed=0)
    infos = last_infos(env.step(np.array([0, 0]))[-1], np.array([True, True]), True)
    assert [info["path"].tolist() for info in infos] == [[0, 1, 2], [0, 1, 2, 3]]


def test_an_info_that_the_reset_writes_into_is_that_of_the_step() -> None:
    class Reuses(Ends):
        def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
            self.info["path"][:] = 0
            self.info["inner"].clear()
            return super().reset(**given)

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            self.info["path"][:] = self.info["inner"]["n"] = 7
            return super().step(action)

    env = SyncEnvs([lambda: Reuses({"path": np.zeros(2), "inner": {}})])
    env.reset(seed=0)
    (info,) = last_infos(env.step(np.array([0]))[-1], np.array([True]), True)
    assert (info["path"].tolist(), info["inner"]) == ([7, 7], {"n": 7})


def test_rewards_and_ends_of_a_step_are_its_own() -> None:
    env = SyncEnvs([lambda: Chance(VECTOR, ACTIONS["Discrete"])] * 2)
    env.reset(seed=0)
    first = env.step(np.array([1, 2]))[1:4]
    before = [part.copy() for part in first]
    for _ in range(5):
        env.step(np.array([2, 0]))
    for kept, now in zip(before, first, strict=True):
        np.testing.assert_array_equal(kept, now)


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
