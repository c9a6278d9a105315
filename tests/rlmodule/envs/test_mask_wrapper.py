"""Masks that an env reports in ``info`` come in the observation, from single envs and from vectors of them."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from algorithms.dqn import DQNConfig
from algorithms.ppo import PPOConfig
from rlmodule import ActionMaskFromInfo
from rlmodule.envs.checks import EnvError, EnvGuard

TAXI = max(name for name in gym.registry if name.startswith("Taxi-"))


class Masked(gym.Env[Any, Any]):
    """Reports the mask, and vectors, of step ``t`` in ``info``, but not at steps in ``silent``; -1 is the reset."""

    observation_space = spaces.Discrete(100)
    action_space = spaces.Discrete(3)

    def __init__(self, silent: tuple[int, ...] = (), dtype: Any = np.int8, length: int = 5) -> None:
        self.silent, self.dtype, self.length = silent, dtype, length
        self.num_resets = 0

    def _info(self, when: int) -> dict[str, Any]:
        mask = np.zeros(3, self.dtype)
        mask[self.t % 3] = 1
        message = {"action_mask": mask, "avail_actions": np.full((3, 2), self.t / 10, np.float32)}
        return {"t": self.t} | ({} if when in self.silent else message)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t, self.num_resets = 0, self.num_resets + 1
        return self.t, self._info(-1)

    def step(self, action: Any) -> Any:
        assert action == self.t % 3
        self.t += 1
        return self.t, 1.0, False, self.t == self.length, self._info(self.t)


def test_the_mask_stands_beside_the_observation() -> None:
    env = ActionMaskFromInfo(Masked())
    assert list(env.observation_space.spaces) == ["observations", "action_mask"]  # type: ignore[attr-defined]
    obs, info = env.reset(seed=0)
    assert obs["observations"] == 0
    assert obs["action_mask"].tolist() == [1, 0, 0]
    assert set(info) == {"t", "action_mask", "avail_actions"}
    obs, reward, terminated, truncated, info = env.step(0)
    assert (obs["observations"], reward, terminated, truncated, info["t"]) == (1, 1.0, False, False, 1)
    assert obs["action_mask"].tolist() == [0, 1, 0]
    assert env.observation_space.contains({**obs, "observations": np.int64(1)})


class Described(Masked):
    """Observes a dict: a number, and vectors of the actions."""

    observation_space = spaces.Dict([("seen", spaces.Discrete(9)), ("avail_actions", spaces.Box(0, 1, (3, 2)))])

    def reset(self, **kwargs: Any) -> Any:
        seen, info = super().reset(**kwargs)
        return {"seen": seen, "avail_actions": np.ones((3, 2), np.float32)}, info

    def step(self, action: Any) -> Any:
        seen, *rest = super().step(action)
        return {"seen": seen, "avail_actions": np.ones((3, 2), np.float32)}, *rest


def test_an_observation_that_is_a_dict_gets_the_mask_beside_its_fields() -> None:
    env = ActionMaskFromInfo(Described())
    assert list(env.observation_space.spaces) == ["seen", "avail_actions", "action_mask"]  # type: ignore[attr-defined]
    obs, _ = env.reset()
    assert [*obs] == ["seen", "avail_actions", "action_mask"]
    assert env.step(0)[0]["action_mask"].tolist() == [0, 1, 0]


def test_a_field_that_is_there_already_is_not_hidden() -> None:
    expected = (
        r"observation_space of Described: expected none of the fields \['avail_actions'\], got the fields \['seen'"
    )
    with pytest.raises(ValueError, match=expected):
        ActionMaskFromInfo(Described(), embeddings_space=spaces.Box(0, 1, (3, 2)))
    with pytest.raises(ValueError, match="'action_mask'"):
        ActionMaskFromInfo(ActionMaskFromInfo(Masked()))


def test_vectors_of_the_actions_come_along() -> None:
    space = spaces.Box(0, 1, (3, 2), np.float32)
    env = ActionMaskFromInfo(Masked(), mask_space=spaces.MultiBinary(3), embeddings_space=space)
    assert env.observation_space["avail_actions"] is space  # type: ignore[index]
    env.reset()
    obs = env.step(0)[0]
    assert list(obs) == ["observations", "action_mask", "avail_actions"]
    assert np.all(obs["avail_actions"] == np.float32(0.1))


@pytest.mark.parametrize("dtype", [bool, np.int8, np.int64])
def test_the_mask_has_an_entry_for_each_choice(dtype: Any) -> None:
    env = EnvGuard(ActionMaskFromInfo(Masked(dtype=dtype)))
    assert env.observation_space["action_mask"] == spaces.MultiBinary(3)  # type: ignore[index]
    env.reset()
    env.step(0)


def test_of_several_choices_one_comes_after_the_other() -> None:
    class Several(Masked):
        action_space = spaces.MultiDiscrete([3, 2])  # type: ignore[assignment]

    assert ActionMaskFromInfo(Several()).observation_space["action_mask"] == spaces.MultiBinary(5)  # type: ignore[index]


def test_other_actions_need_the_space_of_the_mask() -> None:
    class Nested(Masked):
        action_space = spaces.Dict(a=spaces.Discrete(3))  # type: ignore[assignment]

        def _info(self, when: int) -> dict[str, Any]:
            return {"action_mask": {"a": np.ones(3, np.int8)}}

    with pytest.raises(ValueError, match=r"^mask_space of Nested: .* actions are Dict\(.*\), got None\. Pass the"):
        ActionMaskFromInfo(Nested())
    space = spaces.Dict(a=spaces.MultiBinary(3))
    assert ActionMaskFromInfo(Nested(), mask_space=space).reset()[0]["action_mask"].keys() == {"a"}


@pytest.mark.parametrize("silent", [-1, 2, 5])
def test_where_the_mask_is_missing_is_said(silent: int) -> None:
    inner = Masked()
    env = EnvGuard(ActionMaskFromInfo(inner), 0)
    call = r"reset\(\) after its step 5" if silent == -1 else rf"at its step {5 + silent}"
    field = r"info of Masked: expected a field 'action_mask', got the fields \['t'\]\. Have the env return it"

    def play() -> None:
        env.reset()
        for t in range(5):
            env.step(t % 3)

    play()
    inner.silent = (silent,)  # in the second episode
    with pytest.raises(EnvError, match=rf"^env 0 raised ValueError .*{call}: {field}"):
        play()


def test_missing_vectors_are_named() -> None:
    env = ActionMaskFromInfo(Masked(), embeddings_space=spaces.Box(0, 1, (3, 2)), embeddings_key="items")
    with pytest.raises(ValueError, match=r"of Masked: expected a field 'items', got the fields \['t', 'action_mask', "):
        env.reset()


@pytest.mark.parametrize("vector", [SyncVectorEnv, AsyncVectorEnv])
def test_in_vectors_each_env_has_its_own(vector: Any) -> None:
    envs = vector(
        [lambda i=i: ActionMaskFromInfo(Masked(length=3 + i)) for i in range(2)], autoreset_mode=AutoresetMode.SAME_STEP
    )
    obs, _ = envs.reset(seed=0)
    for t in range(3):
        assert obs["action_mask"].tolist() == [[t % 3 == i for i in range(3)]] * 2
        obs, _, _, truncated, info = envs.step(np.array([t % 3] * 2))
    # env 0 has begun again; its last observation has the mask of its last step
    assert truncated.tolist() == [True, False]
    assert obs["action_mask"].tolist() == [[1, 0, 0], [1, 0, 0]]
    assert obs["observations"].tolist() == [0, 3]
    final = info["final_obs"][0]
    assert (final["observations"], final["action_mask"].tolist()) == (3, [1, 0, 0])
    envs.close()


class Unwrapped(Masked):
    """Its mask is in ``info`` alone."""


class LikeSB3(Masked):
    """Has the method that sb3-contrib calls, and no mask in ``info``."""

    def _info(self, when: int) -> dict[str, Any]:
        return {}

    def action_masks(self) -> Any:
        return np.ones(3, bool)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Unwrapped, "Unwrapped: nothing reads the mask in info['action_mask'], so every action may be taken. To forbid "
                    "actions, wrap the env in rlmodule.ActionMaskFromInfo."),
        (LikeSB3, "LikeSB3: nothing reads the mask in action_masks(), so every action may be taken. To forbid actions, "
                  "return it in info['action_mask'] of reset() and step(), and wrap the env in "
                  "rlmodule.ActionMaskFromInfo."),
    ],
)  # fmt: skip
def test_a_mask_that_nothing_reads_is_warned_of_once(
    kind: Any, expected: str, caplog: pytest.LogCaptureFixture
) -> None:
    EnvGuard(ActionMaskFromInfo(Masked()), 0).reset()
    EnvGuard(kind(), 1).reset()
    assert not caplog.messages
    for _ in range(2):
        guard = EnvGuard(gym.wrappers.TimeLimit(kind(), 9), 0)
        guard.reset()
        guard.reset()
    assert caplog.messages == [expected]


def taxi(env_config: dict[str, Any]) -> gym.Env[Any, Any]:
    return ActionMaskFromInfo(gym.make(TAXI, **env_config))


@pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_taxi_never_does_what_its_mask_forbids(mode: Any) -> None:
    config = PPOConfig(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1).environment(taxi)
    config.env_runners(num_envs_per_env_runner=2, gym_env_vectorize_mode=mode).debugging(seed=1)
    with config.build() as algo:
        assert algo.get_module().observation_space["action_mask"].shape == (6,)
        assert "observation_space['action_mask'] says which actions are allowed" in algo.explain()
        rollout = algo.sample()
        masks = rollout["obs"]["action_mask"]
        assert bool(masks.gather(-1, rollout["actions"].unsqueeze(-1)).all())
        assert not bool(masks.all())
        algo.train()


@pytest.mark.filterwarnings("ignore:.*is out of date:DeprecationWarning")
def test_dqn_takes_a_taxi_too() -> None:
    config = DQNConfig(
        train_batch_size_per_learner=16, num_steps_sampled_before_learning_starts=32, num_env_steps_per_iteration=64
    )
    with config.environment(taxi).debugging(seed=1).build() as algo:
        assert algo.get_module().action_mask is not None
        algo.train()
