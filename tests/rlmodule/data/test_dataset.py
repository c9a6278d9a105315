"""Data sets: what goes in comes out, from arrays, episodes and files, and Minari reads what is written for it."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
import tree
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rlmodule import Dataset, Episode
from rlmodule.data.rollout import random_observations
from rlmodule.sealed_folder import read_manifest

VECTOR = spaces.Dict(
    {
        "b": spaces.Box(-1, 1, (3,), np.float64),
        "a": spaces.Tuple(
            [spaces.Discrete(3, start=-1), spaces.MultiBinary([2, 2]), spaces.Box(0, 255, (4, 4), np.uint8)]
        ),
        "action_mask": spaces.MultiBinary(5),
    }
)
PARTS = spaces.Tuple([spaces.MultiDiscrete([2, 3], start=[1, 0]), spaces.Box(-2, 2, (1,))])
MANY = spaces.Tuple([spaces.Discrete(2 + index) for index in range(12)])
NAMED = spaces.Dict({"z": spaces.Discrete(2), "m": spaces.Box(np.float32([-1, -np.inf]), np.float32([np.inf, 7]))})


def sampled(space: spaces.Space, num: int, seed: int = 0) -> Any:
    return tree.map_structure(lambda leaf: leaf.numpy(), random_observations(space, num, seed))


def make(observation_space: spaces.Space, action_space: spaces.Space, lengths: tuple[int, ...] = (3, 1, 4)) -> Dataset:
    """Episode ``e`` is terminated unless ``e`` is 1, and truncated from 1 on."""
    rng = np.random.default_rng(0)
    episodes = []
    for index, length in enumerate(lengths):
        observations = sampled(observation_space, length + 1, index)
        if isinstance(observations, dict) and "action_mask" in observations:
            observations["action_mask"][:] = 1
        actions = sampled(action_space, length, index)
        ends = {"terminated": index != 1, "truncated": index > 0}
        episodes.append(Episode(observations, actions, rng.normal(size=length), **ends))
    named = {"observation_space": observation_space, "action_space": action_space}
    return Dataset.from_episodes(episodes, **named, env="Pendulum-v1")


PAIRS = [
    (spaces.Box(-np.inf, np.inf, (4,)), spaces.Discrete(2)),
    (VECTOR, PARTS),
    (spaces.Discrete(5), NAMED),
    (spaces.Box(0, 255, (40, 33, 3), np.uint8), spaces.Box(-1, 1, (), np.float64)),
    (MANY, spaces.MultiBinary(3)),
]


def same(a: Any, b: Any) -> None:
    tree.map_structure(np.testing.assert_array_equal, a, b)


# --- memory -----------------------------------------------------------------------------------------------------------


def test_columns_have_the_form_of_their_spaces() -> None:
    dataset = make(VECTOR, PARTS)
    assert (dataset.num_steps, dataset.num_episodes, dataset.env) == (8, 3, "Pendulum-v1")
    assert dataset.offsets.tolist() == [0, 3, 4, 8]
    assert dataset.lengths.tolist() == [3, 1, 4]
    assert dataset.terminated.tolist() == [True, False, True]
    assert dataset.truncated.tolist() == [False, True, True]
    assert [*dataset.observations] == [*VECTOR]
    assert dataset.observations["b"].dtype == np.float64
    assert dataset.observations["b"].shape == (8, 3)
    assert dataset.final_observations["a"][2].shape == (3, 4, 4)
    assert [part.dtype for part in dataset.actions] == [np.int64, np.float32]
    assert dataset.rewards.dtype == np.float32
    expected = [float(np.sum(episode.get_rewards(), dtype=np.float64)) for episode in dataset.episodes()]
    assert dataset.returns.dtype == np.float64
    np.testing.assert_allclose(dataset.returns, expected, rtol=1e-6)


def test_episodes_come_out_as_they_went_in() -> None:
    dataset = make(VECTOR, PARTS)
    again = Dataset.from_episodes([*dataset.episodes()], observation_space=VECTOR, action_space=PARTS, env="another id")
    assert again.digest == dataset.digest
    # episodes() is an iterator, which can be read once
    assert (
        Dataset.from_episodes(dataset.episodes(), observation_space=VECTOR, action_space=PARTS).digest == again.digest
    )


def flat() -> dict[str, Any]:
    """Seven steps: an episode of 3 that terminates, one of 2 that is cut, one of 2 that has no end."""
    return {
        "observations": np.arange(14, dtype=np.float64).reshape(7, 2),
        "actions": np.linspace(-1, 1, 7)[:, None],
        "rewards": [1, 2, 3, 4, 5, 6, 7],
        "terminals": np.eye(7)[2],
        "timeouts": np.eye(7)[4],
    }


def test_without_next_observations_the_last_step_of_a_cut_episode_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        dataset = Dataset.from_arrays(**flat())
    assert [record.message for record in caplog.records] == [
        "Dataset.from_arrays(): dropped the last step of 2 truncated episodes, because what followed it is unknown. "
        "Pass next_observations to keep it."
    ]
    assert dataset.observation_space == spaces.Box(-np.inf, np.inf, (2,))
    assert dataset.action_space == spaces.Box(-np.inf, np.inf, (1,))
    assert dataset.rewards.tolist() == [1, 2, 3, 4, 6]
    assert dataset.observations[:, 0].tolist() == [0, 2, 4, 6, 10]
    assert dataset.final_observations[:, 0].tolist() == [4, 8, 12]  # of the first, its last observation once more
    assert dataset.offsets.tolist() == [0, 3, 4, 5]
    assert dataset.terminated.tolist() == [True, False, False]
    assert dataset.truncated.tolist() == [False, True, True]


def test_with_next_observations_every_step_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    following = flat()["observations"] + [[2, 2]]
    following[[2, 4, 6]] = -1
    dataset = Dataset.from_arrays(**flat(), next_observations=following)
    assert dataset.num_steps == 7
    assert dataset.final_observations.tolist() == [[-1, -1]] * 3
    assert not caplog.records


def test_an_episode_of_one_cut_step_is_dropped_whole() -> None:
    arguments = flat() | {"timeouts": np.eye(7)[3] + np.eye(7)[5]}
    dataset = Dataset.from_arrays(**arguments)  # episodes of 3, 1, 2 and 1 steps
    assert dataset.lengths.tolist() == [3, 1]
    assert dataset.final_observations[:, 0].tolist() == [4, 10]


def test_tensors_lists_and_read_only_arrays_are_taken() -> None:
    arguments = flat()
    expected = Dataset.from_arrays(**arguments).digest
    lists = {name: np.asarray(column).tolist() for name, column in arguments.items()}
    tensors = {name: torch.tensor(column) for name, column in lists.items()}
    assert Dataset.from_arrays(**lists).digest == expected
    assert Dataset.from_arrays(**tensors).digest == expected
    for column in arguments.values():
        if isinstance(column, np.ndarray):
            column.flags.writeable = False
    assert Dataset.from_arrays(**arguments).digest == expected
    actions = np.array([0, 1])
    actions.flags.writeable = False
    kept = Dataset.from_arrays(
        np.zeros((2, 1)), actions, [0, 1], terminals=[0, 1], timeouts=None, action_space=spaces.Discrete(2)
    )
    assert kept.actions.flags.writeable  # torch warns of arrays that are not


def test_arrays_that_fit_are_not_copied() -> None:
    dataset = make(*PAIRS[0])
    names = ("observations", "final_observations", "actions", "rewards", "offsets", "terminated", "truncated")
    columns = {name: getattr(dataset, name) for name in names}
    again = Dataset(**columns, observation_space=PAIRS[0][0], action_space=PAIRS[0][1])
    terminals = np.zeros(dataset.num_steps, bool)
    terminals[-1] = True
    of_rows = Dataset.from_arrays(
        *(columns[name] for name in ("observations", "actions", "rewards")),
        terminals=terminals,
        timeouts=None,
        action_space=PAIRS[0][1],
    )
    for name in ("observations", "actions", "rewards"):
        assert np.shares_memory(getattr(again, name), columns[name])
        assert np.shares_memory(getattr(of_rows, name), columns[name])


def test_rounding_beyond_a_bound_is_taken_and_a_mask_of_another_size_is_no_mask() -> None:
    space = spaces.Dict({"x": spaces.Box(-1, 1, (1,)), "action_mask": spaces.MultiBinary(4)})
    observations = {"x": np.full((2, 1), 1 + 1e-6), "action_mask": np.zeros((2, 4))}
    made = {"terminals": [False, True], "timeouts": None, "action_space": spaces.Discrete(3)}
    Dataset.from_arrays(
        observations | {"action_mask": np.zeros((2, 4), int)}, [0, 1], [0, 1], observation_space=space, **made
    )


def test_observations_beyond_the_bounds_of_their_env_are_kept_and_logged(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """An env may return such, and a run uses them as they are."""
    space, choices = spaces.Box(-1, 1, (2,)), spaces.Discrete(2)
    observations = np.array([[0, 0], [0, 2], [0, 0]], np.float32)
    episode = Episode(observations, np.array([0, 1]), [1.0, 2.0], terminated=True)
    dataset = Dataset.from_episodes([episode], observation_space=space, action_space=choices)
    same(dataset.observations, observations[:2])
    assert [record.message for record in caplog.records] == [
        "Dataset.from_episodes(): observations, row 1 (episode 0, step 1): expected numbers in [-1.0, 1.0], got 2.0 at "
        "index (1,). Such numbers are used as they are, as in a run whose env leaves its bounds."
    ]
    assert Dataset.load(dataset.save(tmp_path / "d")).digest == dataset.digest
    plain = Dataset.from_arrays(
        observations, [0, 1, 0], [1, 2, 3], terminals=[0, 0, 1], timeouts=None, action_space=choices
    )
    same(plain.with_spaces(space, choices).observations, observations)
    broken = Episode(observations * np.float32(np.nan), np.array([0, 1]), [1.0, 2.0], terminated=True)
    with pytest.raises(ValueError, match=r"observations, row 0 .*: expected finite numbers, got nan"):
        Dataset.from_episodes([broken], observation_space=space, action_space=choices)
    with pytest.raises(ValueError, match=r"actions, row 1 .*: expected numbers in \[0, 0\], got 1"):
        Dataset.from_episodes([episode], observation_space=space, action_space=spaces.Discrete(1))


@pytest.mark.parametrize("change", ["reward", "end", "space", "observation"])
def test_the_digest_tells_what_learning_depends_on(change: str) -> None:
    dataset = make(*PAIRS[0])
    names = ("observations", "final_observations", "actions", "rewards", "offsets", "terminated", "truncated")
    columns = {name: np.copy(getattr(dataset, name)) for name in names}
    observation_space = dataset.observation_space
    if change == "reward":
        columns["rewards"][0] += 1
    elif change == "end":
        columns["truncated"][0] = True
    elif change == "observation":
        columns["final_observations"][1, 1] += 1
    else:
        observation_space = spaces.Box(-100, 100, (4,))
    changed = Dataset(**columns, observation_space=observation_space, action_space=dataset.action_space)
    assert changed.digest != dataset.digest


def test_filter_and_best_keep_whole_episodes_in_their_order() -> None:
    dataset = make(VECTOR, PARTS, tuple(range(1, 21)))
    long = dataset.filter(lambda episode: len(episode) > 15)
    assert long.lengths.tolist() == [16, 17, 18, 19, 20]
    same(long.observations["b"], dataset.observations["b"][dataset.offsets[15] :])
    same(long.final_observations["a"][0], dataset.final_observations["a"][0][15:])
    best = dataset.best(0.11)
    assert sorted(best.returns) == sorted(dataset.returns)[-3:]
    order = [dataset.returns.tolist().index(value) for value in best.returns]
    assert order == sorted(order)
    assert dataset.best(1).digest == dataset.digest
    assert dataset.best(1e-6).num_episodes == 1
    short = make(spaces.Discrete(2), spaces.Discrete(2), (1,) * 25)
    # in floats, 0.28 * 25 is 7.000000000000001
    assert [short.best(share).num_episodes for share in (0.28, 0.29, 0.56)] == [7, 8, 14]
    for share in (0, 1.1, float("nan")):
        with pytest.raises(ValueError, match=r"Dataset.best\(\): share: expected a number in \(0, 1\], got"):
            dataset.best(share)
    with pytest.raises(ValueError, match=r"Dataset.filter\(\): episodes: expected at least one that is kept, got none"):
        dataset.filter(lambda episode: False)


def test_describe_says_what_there_is_and_draws_it(tmp_path: Path) -> None:
    dataset = make(*PAIRS[0])
    text = dataset.describe(tmp_path / "returns.png")
    assert "Pendulum-v1: 8 steps in 3 episodes, 2 terminated" in text
    assert "length: mean 2.67, from 1 to 4, median 3" in text
    assert "actions: Discrete(2)" in text
    assert (tmp_path / "returns.png").stat().st_size > 5000


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_any_ends_give_the_episodes_of_a_loop(kinds: list[int]) -> None:
    """1 is a terminal, 2 a time-out, all else is no end."""
    num = len(kinds)
    flags = np.asarray(kinds)
    observations = np.arange(num, dtype=np.float32)[:, None]
    following = observations + 0.5
    expected, steps = [], []
    for row, kind in enumerate(kinds):
        steps.append(row)
        if kind in (1, 2) or row == num - 1:
            expected.append((steps, kind == 1))
            steps = []
        else:
            following[row] = row + 1
    terminals, timeouts = flags == 1, flags == 2
    named = {"terminals": terminals, "timeouts": timeouts, "action_space": spaces.Discrete(num)}
    dataset = Dataset.from_arrays(observations, np.arange(num), flags, **named, next_observations=following)
    found = [(episode.get_actions().tolist(), episode.terminated) for episode in dataset.episodes()]
    assert found == expected
    for episode in dataset.episodes():
        assert episode.truncated != episode.terminated
        assert episode.get_observations()[:, 0].tolist() == [*episode.get_actions(), episode.get_actions(-1) + 0.5]


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_files_hold_all_of_it(pair: tuple[spaces.Space, spaces.Space], tmp_path: Path) -> None:
    dataset = make(*pair)
    assert dataset.save(tmp_path / "own") == tmp_path / "own"
    for loaded in (Dataset.load(tmp_path / "own"), Dataset.load(dataset.to_minari(tmp_path / "all-v0"))):
        assert loaded.digest == dataset.digest
        assert loaded.env == dataset.env
        assert (loaded.observation_space, loaded.action_space) == pair
        same(loaded.observations, dataset.observations)
        same(loaded.final_observations, dataset.final_observations)


def test_saving_replaces_a_data_set_and_nothing_else(tmp_path: Path) -> None:
    first, second = make(*PAIRS[0]), make(*PAIRS[0], (2, 2))
    first.save(tmp_path / "d")
    second.save(tmp_path / "d")
    assert Dataset.load(tmp_path / "d").digest == second.digest
    assert read_manifest(tmp_path / "d", "dataset")["kind"] == "dataset"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    with pytest.raises(FileExistsError, match=r"Dataset.save\(.*mine'\): expected a new folder"):
        first.save(tmp_path / "mine")
    with pytest.raises(FileExistsError, match=r"Dataset.to_minari\(.*mine'\): path: expected a new folder"):
        first.to_minari(tmp_path / "mine", "mine-v0")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes"]


def test_a_space_that_files_cannot_hold_is_refused(tmp_path: Path) -> None:
    class Mine(spaces.Box):
        pass

    dataset = make(Mine(-1, 1, (2,)), PARTS)
    with pytest.raises(
        TypeError, match=r"Dataset.save\(.*\): observation_space: expected a space that a file can hold"
    ):
        dataset.save(tmp_path / "d")
    assert not [*tmp_path.iterdir()]


def test_the_env_of_a_file_is_a_text_that_nothing_imports(tmp_path: Path) -> None:
    dataset = make(*PAIRS[0])
    dataset.env = "no_such_module:Mine-v0"
    for loaded in (Dataset.load(dataset.save(tmp_path / "d")), dataset):
        assert loaded.env == "no_such_module:Mine-v0"
        written = loaded.to_minari(tmp_path / f"d{id(loaded)}-v0")
        assert Dataset.load(written).env is None


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = make(*PAIRS[0])

    def fail(self: h5py.Group, *args: Any, **named: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(h5py.Group, "create_dataset", fail)
    with pytest.raises(OSError, match="disk full"):
        dataset.to_minari(tmp_path / "deep" / "d-v0")
    assert not [*(tmp_path / "deep").iterdir()]


def test_nested_columns_of_hdf5_are_groups(tmp_path: Path) -> None:
    dataset = make(VECTOR, PARTS, (4,))
    with h5py.File(tmp_path / "d.hdf5", "w") as file:
        for key in ("b", "action_mask"):
            file[f"observations/{key}"] = dataset.observations[key]
        for index in range(3):
            file[f"observations/a/_index_{index}"] = dataset.observations["a"][index]
        for index in range(2):
            file[f"actions/_index_{index}"] = dataset.actions[index]
        file["rewards"] = dataset.rewards
        file["terminals"] = [0, 0, 0, 1]
    named = {"observation_space": VECTOR, "action_space": PARTS}
    loaded = Dataset.from_hdf5(tmp_path / "d.hdf5", timeouts=None, **named)
    same(loaded.observations, dataset.observations)
    same(loaded.actions, dataset.actions)


def test_a_parquet_file_may_hold_lists_and_nested_spaces(tmp_path: Path) -> None:
    observations = np.arange(8, dtype=np.float32).reshape(4, 2)
    columns = {"o": observations.tolist(), "mask_0": [1, 1, 0, 1], "mask_1": [1, 1, 1, 0], "a": [0, 1, 1, 0]}
    columns |= {"r": [1, 2, 3, 4], "end": [False, False, False, True]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "d.parquet")
    space = spaces.Dict({"x": spaces.Box(-9, 9, (2,)), "action_mask": spaces.MultiBinary(2)})
    names = {"observations": {"x": "o", "action_mask": ["mask_0", "mask_1"]}, "actions": "a", "rewards": "r"}
    names |= {"terminals": "end", "timeouts": None}
    dataset = Dataset.from_table(
        tmp_path / "d.parquet", names, observation_space=space, action_space=spaces.Discrete(2), env="Mine-v0"
    )
    assert dataset.env == "Mine-v0"
    same(dataset.observations, {"x": observations, "action_mask": np.stack([columns["mask_0"], columns["mask_1"]], 1)})
    assert dataset.terminated.tolist() == [True]


@pytest.mark.parametrize(("package", "call"), [("h5py", "from_hdf5"), ("pyarrow", "from_table"), ("h5py", "to_minari")])
def test_a_missing_package_is_named(package: str, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "d.csv").touch()
    columns = dict.fromkeys(("observations", "actions", "rewards", "terminals"), "a")
    arguments = {"from_table": (tmp_path / "d.csv", columns), "from_hdf5": (tmp_path / "d.csv",)}
    with pytest.raises(ImportError, match=rf"{call}\(.*\): expected the package {package}, .*'catalog-rl\[data\]'"):
        getattr(make(*PAIRS[0]), call)(*arguments.get(call, (tmp_path / "d-v0",)))


def test_arrays_and_folders_need_no_package_of_an_extra(tmp_path: Path) -> None:
    make(*PAIRS[0]).save(tmp_path / "d")
    code = (
        "import sys\nfrom rlmodule import Dataset\n"
        f"Dataset.load({str(tmp_path / 'd')!r}).describe()\n"
        "print([name for name in ('h5py', 'pyarrow', 'minari', 'pandas', 'matplotlib', 'ray') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- Minari -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return pytest.importorskip("minari")


@pytest.mark.parametrize("pair", PAIRS[:4], ids=str)
def test_minari_reads_what_is_written_for_it(
    pair: tuple[spaces.Space, spaces.Space], minari: Any, tmp_path: Path
) -> None:
    dataset = make(*pair)
    dataset.to_minari(tmp_path / "tests" / "three-v0", "tests/three-v0")
    theirs = minari.load_dataset("tests/three-v0")
    assert (theirs.observation_space, theirs.action_space) == pair
    assert (theirs.total_episodes, theirs.total_steps) == (3, 8)
    with theirs.recover_environment() as env:
        assert env.spec.id == "Pendulum-v1"
    for ours, episode in zip(dataset.episodes(), theirs.iterate_episodes(), strict=True):
        same(ours.get_observations(), episode.observations)
        same(ours.get_actions(), episode.actions)
        same(ours.get_rewards(), episode.rewards)
        assert [episode.terminations[-1], episode.truncations[-1]] == [ours.terminated, ours.truncated]
        assert not episode.terminations[:-1].any()
    assert list(minari.list_local_datasets()) == ["tests/three-v0"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "tests/three-v0").stat().st_mode) == 0o777 & ~umask
    assert Dataset.from_minari("tests/three-v0").digest == dataset.digest


def test_an_id_that_minari_would_not_find_is_refused(tmp_path: Path) -> None:
    for name in ("three", "a b-v0", "/x/y-v0", "x/y-v1/"):
        with pytest.raises(ValueError, match=r"dataset_id: expected an id such as 'pendulum/expert-v0', got"):
            make(*PAIRS[0]).to_minari(tmp_path / "d", name)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("key", ["walker/joints", ".", "", 0])
def test_a_key_that_cannot_name_an_array_of_minari_is_refused(key: Any, tmp_path: Path) -> None:
    dataset = make(spaces.Dict({key: spaces.Box(-1, 1, (2,))}), spaces.Discrete(2))
    with pytest.raises(ValueError, match=rf"keys of a Dict space: expected texts without '/', got {key!r}\. Rename"):
        dataset.to_minari(tmp_path / "d-v0")
    assert not [*tmp_path.iterdir()]
    assert Dataset.load(dataset.save(tmp_path / "own")).digest == dataset.digest


@pytest.mark.filterwarnings("ignore:`eval_env` is set to None", "ignore:env_spec is None")
@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_what_minari_wrote_is_read(env_id: str, minari: Any) -> None:
    from minari.data_collector import EpisodeBuffer

    env = gym.make(env_id)
    env.action_space.seed(0)
    buffers = []
    for seed in range(3):
        columns: dict[str, list[Any]] = {
            name: [] for name in ("observations", "actions", "rewards", "terminations", "truncations")
        }
        columns["observations"].append(env.reset(seed=seed)[0])
        ends = False, False
        while not any(ends):
            action = env.action_space.sample()
            observation, reward, *ends, _ = env.step(action)
            for name, value in zip(columns, (observation, action, float(reward), *ends), strict=True):
                columns[name].append(value)
        buffers.append(EpisodeBuffer(id=None, seed=seed, **columns))
    name = f"{env_id}/random-v0"
    minari.create_dataset_from_buffers(
        name,
        buffers,
        env=env,
        algorithm_name="random",
        author="x",
        author_email="x",
        code_permalink="x",
        description="x",
        requirements=[],
    )
    dataset = Dataset.from_minari(name)
    assert dataset.env == env_id
    assert dataset.observation_space == env.observation_space
    assert dataset.action_space == env.action_space
    assert dataset.lengths.tolist() == [len(buffer.rewards) for buffer in buffers]
    for episode, buffer in zip(dataset.episodes(), buffers, strict=True):
        same(episode.get_observations(), np.stack(buffer.observations))
        same(episode.get_actions(), np.stack(buffer.actions))
        same(episode.get_rewards(), np.float32(buffer.rewards))
        assert (episode.terminated, episode.truncated) == (buffer.terminations[-1], buffer.truncations[-1])
    env.close()


@pytest.mark.filterwarnings("ignore:`eval_env` is set to None", "ignore:env_spec is None")
def test_images_that_minari_stored_as_jpegs_are_decoded(minari: Any, tmp_path: Path) -> None:
    from minari.data_collector import EpisodeBuffer

    space = spaces.Dict(
        {"image": spaces.Box(0, 255, (40, 48, 3), np.uint8), "small": spaces.Box(0, 255, (8, 8), np.uint8)}
    )
    ramp = np.linspace(0, 255, 40 * 48 * 3).reshape(40, 48, 3).astype(np.uint8)
    observations = {"image": np.stack([ramp] * 3), "small": np.full((3, 8, 8), 7, np.uint8)}
    flags = {"terminations": [False, True], "truncations": [False, False]}
    buffer = EpisodeBuffer(id=None, observations=observations, actions=np.array([0, 1]), rewards=[0.0, 1.0], **flags)
    minari.create_dataset_from_buffers(
        "tests/images-v0",
        [buffer],
        observation_space=space,
        action_space=spaces.Discrete(2),
        algorithm_name="x",
        author="x",
        author_email="x",
        code_permalink="x",
        description="x",
        requirements=[],
    )
    dataset = Dataset.load(tmp_path / "tests/images-v0")
    expected = next(minari.load_dataset("tests/images-v0").iterate_episodes())
    same(dataset.observations["image"], expected.observations["image"][:-1])
    same(dataset.final_observations["small"][0], expected.observations["small"][-1])
    assert np.abs(dataset.observations["image"][0].astype(int) - ramp).mean() < 8
