"""The last info of an episode is the one its env returned, however the envs are vectorised and reset."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space
from hypothesis import given
from hypothesis import strategies as st

from rlmodule import EnvRunner
from rlmodule.envs.infos import last_infos
from rlmodule.envs.make import make_vector_env
from tests.rlmodule.sampling.test_env_runner import runner_for
from tests.rlmodule.toys import Counter, Settings, counters, counters_one_by_one

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

NONE_ENDED, SECOND_ENDED, ALL_ENDED = (np.array(ends) for ends in ([False] * 3, [False, True, False], [True] * 3))


def numbers(*values: Any) -> np.ndarray:
    return np.array(values)


# --- one step, by hand ------------------------------------------------------------------------------------------------


def test_each_env_gets_its_own_entry() -> None:
    info = {"score": numbers(1.5, 2.5, 3.5), "won": numbers(False, True, False), "map": numbers([1, 2], [3, 4], [5, 6])}
    (one,) = last_infos(info, SECOND_ENDED, False)
    assert one["score"] == 2.5
    assert type(one["score"]) is float
    assert one["won"] is True
    assert one["map"].tolist() == [3, 4]
    assert [each["score"] for each in last_infos(info, ALL_ENDED, False)] == [1.5, 2.5, 3.5]
    assert last_infos(info, NONE_ENDED, False) == []


def test_what_an_env_did_not_give_is_not_there() -> None:
    info = {"score": numbers(1, 0, 3), "_score": numbers(True, False, True)}
    assert last_infos(info, ALL_ENDED, False) == [{"score": 1}, {}, {"score": 3}]


def test_masks_stand_at_every_depth() -> None:
    inner = {"left": numbers(1, 2, 0), "_left": numbers(True, True, False), "right": numbers(7, 8, 9)}
    info = {"legs": inner, "_legs": numbers(True, True, True)}
    assert last_infos(info, ALL_ENDED, False) == [
        {"legs": {"left": 1, "right": 7}},
        {"legs": {"left": 2, "right": 8}},
        {"legs": {"right": 9}},
    ]
    info["_legs"] = numbers(False, True, False)
    assert last_infos(info, ALL_ENDED, False) == [{}, {"legs": {"left": 2, "right": 8}}, {}]


def test_a_name_that_begins_like_a_mask_is_one_only_beside_what_it_masks() -> None:
    info = {"_hidden": numbers(4, 5, 6), "__hidden": numbers(True, False, True), "seed": 3, "_seed": 9}
    shared = {"seed": 3, "_seed": 9}
    assert last_infos(info, ALL_ENDED, False) == [{"_hidden": 4} | shared, shared, {"_hidden": 6} | shared]


def test_what_has_no_entry_for_each_env_belongs_to_all() -> None:
    info = {"log": {"reward": torch.tensor(0.5)}, "level": "hard", "grid": np.zeros((2, 2)), "none": None, "n": 4}
    (one,) = last_infos(info, SECOND_ENDED, False)
    assert one["log"] == {"reward": 0.5}
    assert (one["level"], one["none"], one["n"]) == ("hard", None, 4)
    assert one["grid"].shape == (2, 2)


def test_tensors_and_lists_of_ready_vector_envs() -> None:
    info = {
        "won": torch.tensor([False, True, False]),
        "_won": torch.tensor([True, True, False]),
        "at": torch.tensor([[1.0], [2.0], [3.0]], requires_grad=True),
        "name": ["a", "b", "c"],
    }
    one, two, three = last_infos(info, ALL_ENDED, False)
    assert (one["won"], two["won"], "won" in three) == (False, True, False)
    assert two["won"] is True
    assert torch.equal(two["at"], torch.tensor([2.0]))
    assert not two["at"].requires_grad
    assert [each["name"] for each in (one, two, three)] == ["a", "b", "c"]


def test_a_vector_env_that_resets_at_once_tells_of_the_ended_episode_below_final_info() -> None:
    info = {"score": numbers(0, 0, 0), "final_info": {"score": numbers(0, 8, 0), "_score": SECOND_ENDED}}
    assert last_infos(info, SECOND_ENDED, True) == [{"score": 8}]
    assert last_infos({"score": numbers(0, 0, 0)}, SECOND_ENDED, True) == [{}]
    one_each = np.array([None, {"score": 8}, None], dtype=object)
    assert last_infos({"final_info": one_each}, SECOND_ENDED, True) == [{"score": 8}]


def test_what_the_env_writes_afterwards_changes_nothing() -> None:
    path, step_counter = [1, 2], np.zeros((3, 2))
    shared = torch.zeros(3, 1)
    boxed = np.empty(3, dtype=object)
    boxed[1] = ({"path": path},)
    (one,) = last_infos({"boxed": boxed, "step_counter": step_counter, "shared": shared}, SECOND_ENDED, False)
    path.append(3)
    step_counter += 1
    shared += 1
    assert one["boxed"] == ({"path": [1, 2]},)
    assert one["step_counter"].tolist() == [0, 0]
    assert one["shared"].tolist() == [0]


# --- there and back ---------------------------------------------------------------------------------------------------

LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(2**40), 2**40),
    "float": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "float32": st.floats(width=32, allow_nan=False).map(np.float32),
    "text": st.text(max_size=3),
    "none": st.none(),
    "list": st.lists(st.integers(0, 9), max_size=4),
    "pair": st.tuples(st.booleans(), st.text(max_size=2)),
    "array": st.lists(st.integers(0, 9), min_size=2, max_size=2).map(np.array),
    "grid": st.lists(st.booleans(), min_size=4, max_size=4).map(lambda bits: np.array(bits).reshape(4, 1)),
}
KEYS = st.sampled_from(["a", "b", "ab", "_c", "final_obs", "final_info", ""])
SHAPES = st.recursive(
    st.sampled_from(sorted(LEAVES)), lambda inner: st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)


@st.composite
def infos_of_envs(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Infos of up to five envs, in each of which a key has values of one kind, if it has one."""
    shape = draw(st.dictionaries(KEYS, SHAPES, max_size=5))
    return [draw(_info(shape)) for _ in range(draw(st.integers(1, 5)))]


@st.composite
def _info(draw: st.DrawFn, shape: dict[str, Any]) -> dict[str, Any]:
    return {
        key: draw(_info(kind) if isinstance(kind, dict) else LEAVES[kind])
        for key, kind in shape.items()
        if draw(st.booleans())
    }


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return (value.shape, value.tolist()) if isinstance(value, np.ndarray) else value


@given(infos_of_envs())
def test_infos_that_gymnasium_merged_come_apart_as_they_were(infos: list[dict[str, Any]]) -> None:
    merger = object.__new__(VectorEnv)
    merger.num_envs = len(infos)
    merged: dict[str, Any] = {}
    for index, info in enumerate(infos):
        merged = merger._add_info(merged, info, index)
    apart = last_infos(merged, np.ones(len(infos), dtype=bool), False)
    assert [plain(info) for info in apart] == [plain(info) for info in infos]


# --- single envs, in this process and in others -----------------------------------------------------------------------

# what two envs that end together return under the same key: Gymnasium would make one array of both
UNLIKE: list[tuple[Any, Any]] = [
    (1, 2.5), (True, 3), (False, 7.5), (1, None), (None, 1), (1, "lost"), ("won", "lost by a lot"), (2**70, 1),
    (np.float32(1), 1e300), (np.uint8(1), 300), ([1, 2], [3]), ((1, 2), {1: 2}), ({"a": 1}, {"a": "b"}),
    ({"a": {"b": 1}}, {"a": {"b": 2.5, "c": None}}), ({"a": 1}, None), (np.zeros(2), np.arange(3)), (np.zeros(2), 4),
    (np.zeros(2, np.int64), np.full(2, 0.5)), (torch.arange(2), torch.ones(3)), (b"bytes", {1, 2}),
]  # fmt: skip
RESERVED = {"final_obs": np.array([-9.0]), "final_info": {"score": -9}, "_final_obs": True, "_x0": 5.0, "_only": 1}


class Informing(gym.Env[Any, Any]):
    """Observes its steps, of which an episode has two. The seed of the first reset chooses what it returns as info."""

    observation_space, action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2)

    def __init__(self) -> None:
        self.index, self.t = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.index, self.t = self.index if self.index >= 0 else seed or 0, 0
        return np.zeros(1, np.float32), self.info_of_reset()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, False, self.t == 2, self.info_of_step()

    def info_of_reset(self) -> dict[str, Any]:
        return {}

    def info_of_step(self) -> dict[str, Any]:
        unlike = {f"x{number}": pair[self.index] for number, pair in enumerate(UNLIKE)}
        return unlike | RESERVED | ({"only": "one env"} if self.index else {})


def exact(value: Any) -> Any:
    """``value`` with the types of all that is in it; numbers of NumPy as those of Python."""
    if isinstance(value, dict):
        return {key: exact(part) for key, part in value.items()}
    if isinstance(value, np.ndarray | torch.Tensor):
        return type(value), value.dtype, value.tolist()
    value = value.item() if isinstance(value, np.generic) else value
    return type(value), value


def end_of_two(env_class: type[Informing], mode: Any) -> tuple[list[dict[str, Any]], list[list[float]]]:
    """The last infos and the final observations of two envs that end together."""
    env = make_vector_env(env_class, {}, 2, mode)
    try:
        env.reset(seed=[0, 1])
        for _ in range(2):
            *_, info = env.step(np.zeros(2, np.int64))
        return last_infos(info, np.array([True, True]), True), [obs.tolist() for obs in info["final_obs"]]
    finally:
        env.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_infos_of_envs_that_end_together_need_have_nothing_in_common(mode: str) -> None:
    expected = []
    for index in range(2):
        alone = Informing()
        alone.reset(seed=index)
        expected.append(alone.info_of_step())
    infos, _ = end_of_two(Informing, mode)
    assert [exact(info) for info in infos] == [exact(info) for info in expected]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_no_info_of_an_env_takes_the_place_of_its_final_observation(mode: str) -> None:
    class Replacing(Informing):
        info_of_reset = info_of_step = lambda self: RESERVED

    infos, finals = end_of_two(Replacing, mode)
    assert finals == [[2.0], [2.0]]
    assert [exact(info) for info in infos] == [exact(RESERVED)] * 2


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_infos_of_resets_need_have_nothing_in_common(mode: str) -> None:
    class Legal(Informing):
        def info_of_reset(self) -> dict[str, Any]:
            return {"legal": np.arange(2 + self.index), "where": ({"x": 1}, 3)[self.index]}

    assert end_of_two(Legal, mode)[1] == [[2.0], [2.0]]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_info_that_the_reset_writes_into_is_that_of_the_step(mode: str) -> None:
    class Reusing(Informing):
        def __init__(self) -> None:
            super().__init__()
            self.info: dict[str, Any] = {"path": np.zeros(2), "inner": {}}

        def info_of_reset(self) -> dict[str, Any]:
            self.info["path"][:] = 0
            self.info["inner"].clear()
            return self.info

        def info_of_step(self) -> dict[str, Any]:
            self.info["path"][:] = self.info["inner"]["n"] = self.t
            return self.info

    infos, _ = end_of_two(Reusing, mode)
    assert [(info["path"].tolist(), info["inner"]) for info in infos] == [([2.0, 2.0], {"n": 2})] * 2


# --- whole runs -------------------------------------------------------------------------------------------------------


class Telling(Counter):
    """Reports at every step which episode and step it is, some things only at the end, and others at a reset."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, _ = super().reset(seed=seed)
        self.path: list[int] = []
        return obs, {"begun": self.episode, "where": {"t": -1}}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, _ = super().step(action)
        self.path.append(self.t)
        info: dict[str, Any] = {"where": {"env": self.index, "episode": self.episode, "t": self.t}, "path": self.path}
        if terminated or truncated:
            info["won"] = terminated
        return obs, reward, terminated, truncated, info


def message(index: int) -> list[dict[str, Any]]:
    """The last info of one env's first episodes, found by stepping it alone."""
    env, infos = Telling(index), []
    for _ in range(4):
        env.reset()
        ended = False
        while not ended:
            _, _, terminated, truncated, info = env.step(0)
            ended = terminated or truncated
        infos.append({**info, "path": info["path"].copy()})
    return infos


class Odd(Telling):
    """Reports nothing that the other envs report in the same way."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        *rest, info = super().step(action)
        return *rest, {**info, "odd": (self.t, "lost", {"t": self.t})[self.index], "_path": self.index}


class Merging(VectorEnv[Any, Any, Any]):
    """A ready vector env that hands out tensors, and the same memory at every step."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(0, 100, (3,), np.float32)
        self.single_action_space = spaces.Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.t = torch.zeros(num_envs, dtype=torch.int64)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.t.zero_()
        return torch.zeros(self.num_envs, 3), {}

    def step(self, actions: Any) -> Any:
        self.t += 1
        obs, no = self.t[:, None].expand(-1, 3).float(), torch.zeros(self.num_envs, dtype=torch.bool)
        ended = self.t % torch.arange(2, 2 + self.num_envs) == 0
        return obs, obs[:, 0], ended, no, {"t": self.t, "all": torch.tensor(7)}


SOURCES: dict[str, Any] = {
    "same step": lambda: {"env": counters(AutoresetMode.SAME_STEP, Telling)},
    "next step": lambda: {"env": counters(AutoresetMode.NEXT_STEP, Telling)},
    "disabled": lambda: {"env": counters(AutoresetMode.DISABLED, Telling)},
    "one by one": lambda: {"env": counters_one_by_one(Telling)},
    "async": lambda: {"env": counters_one_by_one(Telling), "gym_env_vectorize_mode": "async"},
}


def recording(**settings: Any) -> EnvRunner:
    """A runner that records infos."""
    return runner_for(records_episode_infos=True, **settings)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("fragment", [1, 4, 24])
def test_every_ended_episode_brings_its_last_info(source: str, fragment: int) -> None:
    runner = recording(**SOURCES[source]())
    try:
        stats = [runner.sample(fragment, explore=False).stats for _ in range(24 // fragment)]
    finally:
        runner.stop()
    for slot in range(3):
        found = [
            info
            for each in stats
            for info, of in zip(each.get("episode_infos", []), each["episode_slots"], strict=True)
            if of == slot
        ]
        assert found[:4] == message(slot if source != "async" else found[0]["where"]["env"])


def test_tensors_of_a_ready_vector_env_are_numbers_of_their_time() -> None:
    stats = recording(env=lambda config: Merging(3)).sample(6, explore=False).stats
    ends = [(info["t"], info["all"]) for info in stats["episode_infos"]]
    assert ends == [(t, 7) for t in range(1, 7) for n in (2, 3, 4) if t % n == 0]
    assert all(type(t) is int for t, _ in ends)


def test_envs_that_end_together_may_tell_of_unlike_things() -> None:
    for settings in ({}, {"records_episode_infos": True}):
        runner = runner_for(env=counters_one_by_one(Odd, lengths=(2,)), **settings)
        infos = runner.sample(4, explore=False).stats.get("episode_infos", [])
        assert [info["odd"] for info in infos] == [2, "lost", {"t": 2}] * 2 * bool(settings)
        assert [info["_path"] for info in infos] == [0, 1, 2] * 2 * bool(settings)


def test_infos_are_recorded_only_if_asked_for() -> None:
    stats = runner_for(env=counters(AutoresetMode.SAME_STEP, Telling)).sample(24, explore=False).stats
    assert len(stats["episode_returns"])
    assert "episode_infos" not in stats


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_infos_of_a_fragment_that_broke_off_are_forgotten(error: type[BaseException]) -> None:
    class Breaking(Telling):
        def step(self, action: Any) -> Any:
            if self.episode == 2 and self.index == 1 and not broken:
                broken.append(True)
                raise error
            return super().step(action)

    broken: list[bool] = []
    runner = recording(env=counters(AutoresetMode.SAME_STEP, Breaking))
    runner.sample(1, explore=False)
    with pytest.raises((RuntimeError, KeyboardInterrupt, ZeroDivisionError)):
        runner.sample(24, explore=False)
    rollout = runner.sample(24, explore=False)
    assert bool(rollout["starts"][0].all())
    ends = {info["where"]["episode"] for info in rollout.stats["episode_infos"]}
    assert len(rollout.stats["episode_infos"]) == len(rollout.stats["episode_returns"])
    assert 0 not in ends


def test_an_env_is_closed_if_who_is_told_of_it_raises() -> None:
    closed = []

    class Closing(SyncVectorEnv):
        def close_extras(self, **kwargs: Any) -> None:
            closed.append(self.num_envs)
            super().close_extras(**kwargs)

    def refuse(env: gym.vector.VectorEnv[Any, Any, Any]) -> None:
        assert env.num_envs == 3
        raise ZeroDivisionError

    def make(config: dict[str, Any]) -> SyncVectorEnv:
        return Closing([Counter] * 3, autoreset_mode=AutoresetMode.SAME_STEP)

    with pytest.raises(ZeroDivisionError):
        EnvRunner(Settings(env=make), run_seed=1, on_env=refuse)
    assert closed == [3]
