"""Malformed data sets: each is refused with one error that names the row and the column, and nothing is written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from gymnasium import spaces

from rlmodule import Dataset, Episode
from rlmodule.sealed_folder import parse_tensors, read_folder, write_folder

S = 10
OBS_SPACE = spaces.Box(-1, 1, (2,))
CHOICES = spaces.Discrete(3, start=1)
MASKED = spaces.Dict({"x": OBS_SPACE, "action_mask": spaces.Box(0, 1, (3,), np.int8)})
NESTED = spaces.Dict({"a": spaces.Tuple([CHOICES, spaces.Box(-1, 1, (1,))])})


def good(**changes: Any) -> dict[str, Any]:
    """The arguments of ten steps: an episode of 4 that terminates, and one of 6 that is cut."""
    observations = np.linspace(-1, 1, 2 * S, dtype=np.float32).reshape(S, 2)
    terminals, timeouts = np.zeros(S, bool), np.zeros(S, bool)
    terminals[3] = timeouts[9] = True
    arguments = {
        "observations": observations,
        "actions": 1 + np.arange(S) % 3,
        "rewards": np.arange(S) / 2,
        "terminals": terminals,
        "timeouts": timeouts,
        "next_observations": np.concatenate([observations[1:], observations[:1]]),
        "observation_space": OBS_SPACE,
        "action_space": CHOICES,
    }
    return arguments | changes


def changed(name: str, index: Any, value: Any, dtype: Any = None) -> Callable[[Path], Any]:
    """Put ``value`` at ``index`` of the column ``name``."""

    def build(folder: Path) -> Dataset:
        arguments = good()
        column = arguments[name].astype(dtype or arguments[name].dtype)
        column[index] = value
        if name == "observations":  # what follows the row before
            arguments["next_observations"] = None
        return Dataset.from_arrays(**arguments | {name: column})

    return build


def arrays(**changes: Any) -> Callable[[Path], Any]:
    return lambda folder: Dataset.from_arrays(**good(**changes))


def masked(row: int, choice: int) -> Callable[[Path], Any]:
    """Forbid ``choice`` in ``row`` alone."""
    mask = np.ones((S, 3), np.int8)
    mask[row, choice] = 0
    observations = {"x": good()["observations"], "action_mask": mask}
    return arrays(observations=observations, next_observations=None, observation_space=MASKED)


def nested(**parts: Any) -> Callable[[Path], Any]:
    return arrays(actions=parts, action_space=NESTED)


def episodes(*made: Episode) -> Callable[[Path], Any]:
    return lambda folder: Dataset.from_episodes(made, observation_space=OBS_SPACE, action_space=CHOICES)


def steps(length: int, width: int = 2) -> Episode:
    return Episode(np.zeros((length + 1, width), np.float32), np.ones(length, int), np.ones(length))


def built(**changes: Any) -> Callable[[Path], Any]:
    """Call the constructor with the arrays of a good data set, and ``changes``."""

    def build(folder: Path) -> Dataset:
        names = ("observations", "final_observations", "actions", "rewards", "offsets", "terminated", "truncated")
        dataset = Dataset.from_arrays(**good())
        columns = {name: getattr(dataset, name) for name in names}
        return Dataset(**columns | changes, observation_space=OBS_SPACE, action_space=CHOICES)

    return build


def hdf5(change: Callable[[h5py.File], Any] = lambda file: None, **options: Any) -> Callable[[Path], Any]:
    def build(folder: Path) -> Dataset:
        arguments = good()
        named = {"observation_space": arguments.pop("observation_space"), "action_space": arguments.pop("action_space")}
        with h5py.File(folder / "d.hdf5", "w") as file:
            for name, column in arguments.items():
                file[name] = column
            change(file)
        return Dataset.from_hdf5(folder / "d.hdf5", **named, **options)

    return build


def linked(file: h5py.File) -> None:
    Path(file.filename).with_name("other.hdf5").touch()
    del file["rewards"]
    file["rewards"] = h5py.ExternalLink("other.hdf5", "/rewards")


def bomb(file: h5py.File) -> None:
    del file["rewards"]
    file.create_dataset("rewards", (10**12,), "f4", chunks=(1000,), compression="gzip")


COLUMNS = {
    "observations": ["x", "y"],
    "actions": "a",
    "rewards": "r",
    "terminals": "done",
    "timeouts": "cut",
}


def table(
    change: Callable[[dict[str, Any]], Any] = lambda columns: None, suffix: str = ".csv", **named: Any
) -> Callable[[Path], Any]:
    def build(folder: Path) -> Dataset:
        data = good()
        columns = {"x": data["observations"][:, 0], "y": data["observations"][:, 1], "a": data["actions"]}
        columns |= {"r": [*data["rewards"]], "done": data["terminals"], "cut": data["timeouts"]}
        change(columns)
        path = folder / f"d{suffix}"
        made = pyarrow.table(columns)
        if suffix == ".parquet":
            pyarrow.parquet.write_table(made, path)
            os.truncate(path, path.stat().st_size // 2)
        else:
            pyarrow.csv.write_csv(made, path)
        return Dataset.from_table(path, COLUMNS | named, observation_space=OBS_SPACE, action_space=CHOICES)

    return build


def broken_bytes(folder: Path) -> Dataset:
    (folder / "d.csv").write_bytes(b"x,a,r,done\n0.1\xff,1,1,1\n")
    columns = {"observations": ["x"], "actions": "a", "rewards": "r", "terminals": "done", "timeouts": None}
    return Dataset.from_table(folder / "d.csv", columns)


def minari(change: Callable[[h5py.File], Any] = lambda file: None, **metadata: Any) -> Callable[[Path], Any]:
    def build(folder: Path) -> Dataset:
        Dataset.from_arrays(**good()).to_minari(folder / "ten-v0")
        with h5py.File(folder / "ten-v0/data/main_data.hdf5", "a") as file:
            change(file)
        about = folder / "ten-v0/data/metadata.json"
        about.write_text(json.dumps(json.loads(about.read_text()) | metadata))
        return Dataset.load(folder / "ten-v0")

    return build


def rewritten(file: h5py.File, name: str, value: Any) -> None:
    del file[name]
    file[name] = value


def saved(change: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Save a good data set, and change the folder."""

    def build(folder: Path) -> Dataset:
        change(Dataset.from_arrays(**good()).save(folder / "own"))
        return Dataset.load(folder / "own")

    return build


def resealed(plain: dict[str, Any] | None = None, **tensors: Any) -> Callable[[Path], Any]:
    """Write the folder again with valid digests, with changed entries."""

    def change(folder: Path) -> None:
        files = read_folder(folder, "dataset")
        text = json.loads(files["data.json"]) | (plain or {})
        kept = parse_tensors(files["data.safetensors"], "data.safetensors")
        content = {name: tensor for name, tensor in (kept | tensors).items() if tensor is not None}
        write_folder(folder, "dataset", {"data.json": json.dumps(text).encode(), "data.safetensors": content})

    return saved(change)


def swap_for_link(folder: Path) -> None:
    (folder / "data.safetensors").rename(folder.parent / "arrays")
    (folder / "data.safetensors").symlink_to(folder.parent / "arrays")


def flip(folder: Path) -> None:
    content = bytearray((folder / "data.safetensors").read_bytes())
    content[-1] ^= 1
    (folder / "data.safetensors").write_bytes(content)


FOREIGN = {"action_space": {"__import__": "os:system"}}
HUGE = {"observation_space": {"__space__": "Box", "low": 0.0, "high": 1.0, "shape": [10**12], "dtype": "float32"}}

TABLE: dict[str, tuple[Callable[[Path], Any], str]] = {
    # lengths and shapes
    "too few observations": (
        arrays(observations=np.zeros((9, 2))),
        r"observations: .*\(10, 2\), got .* \(9, 2\)\. Give",
    ),
    "too many actions": (arrays(actions=np.ones(11, int)), r"actions: expected int64 of shape \(10,\), got .*\(11,\)"),
    "actions as a column": (arrays(actions=np.ones((S, 1), int)), r"actions: .*\(10,\), got int64 of shape \(10, 1\)"),
    "too few flags": (arrays(terminals=np.zeros(9, bool)), r"terminals: expected shape \(10,\), got \(9,\)"),
    "flags as a column": (arrays(timeouts=np.zeros((S, 1), bool)), r"timeouts: expected shape \(10,\), got \(10, 1\)"),
    "too few next": (arrays(next_observations=np.zeros((1, 2))), r"next_observations: .*\(10, 2\), got .*\(1, 2\)"),
    "rewards as a column": (arrays(rewards=np.zeros((S, 1))), r"rewards: .*\(10,\), got float64 of shape \(10, 1\)"),
    "ragged observations": (arrays(observations=[[0, 0]] * 9 + [[0]]), r"observations: expected one array, got .*none"),
    # kinds of values
    "bool rewards": (arrays(rewards=np.ones(S, bool)), r"rewards: expected float32 .*, got bool of shape"),
    "text as rewards": (arrays(rewards=["1"] * S), r"rewards: expected numbers, got dtype <U1"),
    "objects": (arrays(actions=np.array([None] * S)), r"actions: expected numbers, got dtype object"),
    "floats as choices": (arrays(actions=np.ones(S)), r"actions: expected int64 .*, got float64"),
    "flag of 2": (changed("terminals", 5, 2, int), r"terminals, row 5: expected True, False, 1 or 0, got 2"),
    # numbers
    "NaN observed": (
        changed("observations", (5, 1), np.nan),
        r"observations, row 5 \(episode 1, step 1\): expected finite numbers, got nan at index \(1,\)",
    ),
    "infinite reward": (changed("rewards", 2, np.inf), r"rewards, row 2 \(episode 0, step 2\): expected finite .* inf"),
    "beyond float32": (changed("rewards", 9, 1e39), r"rewards, row 9 \(episode 1, step 5\): expected finite .* inf"),
    "NaN in an action": (
        arrays(actions=np.where(np.arange(S) == 4, np.nan, 0), action_space=spaces.Box(-1, 1, ())),
        r"actions, row 4 \(episode 1, step 0\): expected finite numbers, got nan",
    ),
    "outside the observations": (
        changed("observations", (3, 0), -1.5),
        r"row 3 \(episode 0, step 3\): expected numbers in \[-1.0, 1.0\], got -1.5 at index \(0,\)\. Pass the space",
    ),
    "no such choice": (changed("actions", 6, 0), r"actions, row 6 \(.*\): expected numbers in \[1, 3\], got 0"),
    "forbidden choice": (
        masked(7, 1),
        r"actions, row 7 \(episode 1, step 3\): .*\['action_mask'\] allows, got \[1\], counted from 0",
    ),
    # structure
    "a key too many": (
        nested(a=(np.ones(S, int), np.zeros((S, 1))), b=np.zeros(S)),
        r"actions: expected a dict with the keys \['a'\], got a dict with the keys \['a', 'b'\]",
    ),
    "an array for a tuple": (nested(a=np.ones(S)), r"actions\['a'\]: expected a tuple of 2 arrays, got a ndarray"),
    "part of a wrong shape": (nested(a=(np.ones(S, int), np.zeros(S))), r"actions\['a'\]\[1\]: .*\(10, 1\), got"),
    "no space of integers": (
        arrays(action_space=None),
        r"action_space: expected a space, .*pass action_space=.*Discrete",
    ),
    "no space": (arrays(observation_space=4), r"observation_space: expected a Gymnasium space, got 4"),
    "text space": (arrays(observation_space=spaces.Text(5)), r"observations: expected a space of arrays, got Text"),
    # episodes
    "unknown time-outs": (
        lambda folder: Dataset.from_arrays(**{k: v for k, v in good().items() if k != "timeouts"}),
        r"\): timeouts: expected a bool per step, or None if every end is terminal, got nothing\. Did",
    ),
    "the same flags": (
        arrays(timeouts=good()["terminals"]),
        r"timeouts: expected other rows than terminals, got the same",
    ),
    "shuffled": (
        arrays(next_observations=good()["next_observations"][::-1]),
        r"next_observations, row 0 .*: expected the observation of the next row, got another.*in order of time",
    ),
    "empty": (arrays(rewards=[]), r"rewards: expected at least one step, got none"),
    "steps without a final observation": (
        arrays(terminals=np.zeros(S), timeouts=np.ones(S), next_observations=None),
        r"observations: expected an episode of two steps or more, got none\. Pass next_observations",
    ),
    "no episodes": (episodes(), r"from_episodes\(\): episodes: expected at least one, got none"),
    "episode without steps": (episodes(steps(2), steps(0)), r"episode 1: expected at least one step, got none"),
    "another shape later": (episodes(steps(2), steps(2, 3)), r"obs, episode 1: expected entries .*\(2,\), got \(3,\)"),
    "unsorted episodes": (built(offsets=[0, 8, 4, 10]), r"offsets, episode 1: expected at least one .*rows 8 to 4"),
    "offsets of more rows": (built(offsets=[0, 12]), r"offsets: expected 0 first and 10 last, got 0 and 12"),
    "no offsets": (built(offsets=[0]), r"offsets: expected integers of shape \[E \+ 1\].*, got int64 of shape \(1,\)"),
    "an open end": (
        built(terminated=[False, False], truncated=[True, False]),
        r"truncated, episode 1: expected True unless it is terminated, got False",
    ),
    "NaN at the end": (
        built(final_observations=np.array([[0, 0], [0, np.nan]])),
        r"final_observations, episode 1: .*nan",
    ),
    # files
    "no column in HDF5": (hdf5(lambda file: file.pop("rewards")), r"/rewards: expected this column, got only \['act"),
    "no time-outs in HDF5": (
        hdf5(lambda file: file.pop("timeouts")),
        r"from_hdf5\(.*\): timeouts: expected a bool per",
    ),
    "truncated HDF5": (
        lambda folder: ((folder / "d").write_bytes(b"\x89HDF\r\n\x1a\n1234"), Dataset.from_hdf5(folder / "d")),
        r"expected an HDF5 file that can be read, got an error",
    ),
    "HDF5 that leads out": (hdf5(linked), r"/rewards: expected an array in the file, got a link"),
    "HDF5 that claims terabytes": (hdf5(bomb), r"/rewards: expected an array, got one of 4,000,000,000,000 bytes"),
    "text in HDF5": (
        hdf5(lambda file: rewritten(file, "rewards", ["a"] * S)),
        r"rewards: expected numbers, got dtype object",
    ),
    "no column in a table": (table(actions="b"), r"expected one of the columns \['x', .*, got 'b'\. Each name"),
    "unnamed column of a table": (table(reward="r"), r"columns: expected the names of columns for .*, got 'reward'"),
    "empty field": (table(lambda data: data["r"].__setitem__(3, None)), r"r, row 3: expected a number, got an empty"),
    "words in a table": (
        table(lambda data: data.update(a=["left"] * S)),
        r"from_table\(.*: a: expected a column of numbers, got string",
    ),
    "no rows in a table": (table(lambda data: data.update({k: v[:0] for k, v in data.items()})), r"expected .*, got n"),
    "bytes in a table": (broken_bytes, r"x: expected a column of numbers, got binary"),
    "another kind of table": (table(suffix=".txt"), r"path: expected a name that ends with .csv or .parquet, got .txt"),
    "truncated Parquet": (table(suffix=".parquet"), r"expected a .parquet file that can be read, got an error"),
    "no column in Minari": (
        minari(lambda file: file.pop("episode_1/actions")),
        r"/episode_1/actions: expected this col",
    ),
    "too few observations in Minari": (
        minari(lambda file: rewritten(file, "episode_0/observations", np.zeros((4, 2)))),
        r"episode_0: Episode: obs: expected 5 entries for 4 rewards, got 4",
    ),
    "an end within": (
        minari(lambda file: rewritten(file, "episode_1/terminations", [0, 1, 0, 0, 0, 1])),
        r"episode_1: terminations, step 1: expected False before the last step, got True",
    ),
    "an episode lost": (minari(total_episodes=3), r"main_data.hdf5: expected 3 episodes, as metadata.json says, got 2"),
    "Minari's other format": (minari(data_format="arrow"), r"data_format: expected 'hdf5', got 'arrow'"),
    "no space in Minari": (
        minari(action_space='{"type": "Text"}'),
        r"metadata.json that can be read, got .*no space of",
    ),
    "no end of a folder": (
        saved(lambda path: os.truncate(path / "data.safetensors", 9)),
        r"safetensors: expected \d+ byt",
    ),
    "a flipped bit": (saved(flip), r"data.safetensors: expected the SHA-256"),
    "a link in a folder": (saved(swap_for_link), r"data.safetensors: it is a link, which is not followed"),
    "a foreign class": (resealed(FOREIGN), r"data.json: its spaces are no spaces of Gymnasium"),
    "a huge space": (resealed(HUGE), r"data.json: its spaces are no spaces of Gymnasium that fit its arrays"),
    "an array lost": (
        resealed(rewards=None),
        r"expected a folder of Dataset.save\(path\) that can be read, got .*no 'rewards'",
    ),
    "offsets that lie": (resealed(offsets=torch.tensor([0, 11])), r"load\(.*offsets: expected 0 first and 10 last"),
    "another dtype": (resealed(**{"actions/0": torch.ones(S)}), r"actions: expected int64 .*, got float32"),
}


@pytest.mark.parametrize("name", TABLE)
def test_a_malformed_data_set_is_refused(name: str, tmp_path: Path) -> None:
    build, message = TABLE[name]
    with pytest.raises(ValueError, match=message) as caught:
        build(tmp_path)
    text = str(caught.value)
    assert text.count("expected") >= 1
    assert ", got " in text
    assert text.startswith("Dataset")
    assert "\n" not in text


def test_the_good_ones_of_the_table_are_taken(tmp_path: Path) -> None:
    expected = Dataset.from_arrays(**good()).digest
    assert hdf5()(tmp_path).digest == expected
    assert saved(lambda folder: None)(tmp_path).digest == expected
    assert resealed()(tmp_path).digest == expected
    assert minari()(tmp_path).digest == expected
    assert table()(tmp_path).num_steps == S - 1
    assert built()(tmp_path).digest == expected
    masked(7, 2)(tmp_path)
    nested(a=(np.ones(S, int), np.zeros((S, 1))))(tmp_path)
    episodes(steps(2), steps(1))(tmp_path)


@pytest.mark.parametrize("read", [Dataset.load, Dataset.from_minari, Dataset.from_hdf5])
def test_a_missing_path_is_named(read: Callable[[Path], Dataset], tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"Dataset\..*nowhere.*: expected a f.*, got n"):
        read(tmp_path / "nowhere")
