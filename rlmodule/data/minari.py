"""Data sets of Minari: one group per episode in an HDF5 file, and metadata in JSON."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import Space, spaces

from catalog.base import Tree
from catalog.spaces import space_parts
from rlmodule.data.dataset_files import needed
from rlmodule.data.episode import Episode
from rlmodule.sealed_folder import StrPath

METADATA, STEPS = "metadata.json", "main_data.hdf5"
VERSION = "0.5.4"
"""The version of Minari whose layout is written."""


def is_minari(path: StrPath) -> bool:
    """Return whether the folder ``path`` holds a data set of Minari."""
    return (_data(path) / METADATA).exists()


def _data(path: StrPath) -> Path:
    """Return the folder with the files: ``path`` or ``path/data``."""
    inner = Path(path, "data")
    return inner if inner.is_dir() else Path(path)


def read(where: str, path: StrPath) -> dict[str, Any]:
    """Return the arguments of :class:`Dataset`. See :meth:`Dataset.from_minari`."""
    try:
        import h5py
    except ImportError as error:
        raise needed(where, "h5py") from error
    if not is_minari(path):
        raise FileNotFoundError(f"{where}: expected the folder of a data set of Minari, got none. Look at the path.")
    folder = _data(path)
    try:
        metadata = json.loads((folder / METADATA).read_text(encoding="utf-8"))
        if metadata["data_format"] != "hdf5":
            raise ValueError(f"its data_format is {metadata['data_format']!r}, not 'hdf5'")
        spec = json.loads(metadata["env_spec"]) if metadata.get("env_spec") else {}
        observation_space, action_space = (
            _decoded(json.loads(metadata[name])) for name in ("observation_space", "action_space")
        )
        if metadata.get("jpeg_encoding", False) and any(map(_is_image, _leaves(observation_space))):
            raise ValueError("its images are JPEG files, which have lost what training would see")
        columns: dict[str, list[Any]] = {"obs": [], "final": [], "actions": [], "rewards": [], "terminated": []}
        with h5py.File(folder / STEPS, "r") as file:
            for number in range(len(file)):
                episode: Any = file[f"episode_{number}"]
                observations = _read(episode["observations"], observation_space)
                columns["obs"].append(_sliced(observations, slice(-1)))
                columns["final"].append(_sliced(observations, slice(-1, None)))
                columns["actions"].append(_read(episode["actions"], action_space))
                columns["rewards"].append(episode["rewards"][()])
                columns["terminated"].append(bool(episode["terminations"][-1]))
    except (KeyError, TypeError, IndexError, AttributeError, OSError, ValueError) as error:
        raise ValueError(
            f"{where}: expected a data set of Minari with HDF5 files, got one that cannot be read ({error}). Copy it "
            "again, or write it with Minari's current version."
        ) from error
    terminated = np.array(columns["terminated"], bool)
    return {
        "observations": _joined(columns["obs"]),
        "final_observations": _joined(columns["final"]),
        "actions": _joined(columns["actions"]),
        "rewards": np.concatenate(columns["rewards"]),
        "offsets": np.array([0, *itertools.accumulate(map(len, columns["rewards"]))]),
        "terminated": terminated,
        "truncated": ~terminated,
        "observation_space": observation_space,
        "action_space": action_space,
        "env": spec.get("id"),
    }


def write(where: str, path: StrPath, dataset_id: str, fields: Mapping[str, Any], episodes: Iterator[Episode]) -> Path:
    """Write ``episodes`` to a new folder. ``fields`` are the arguments of :class:`Dataset`. See
    :meth:`Dataset.to_minari`."""
    try:
        import h5py
    except ImportError as error:
        raise needed(where, "h5py") from error
    folder = Path(path).absolute()
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{where}: expected no folder, or an empty one, got one with files. Choose another.")
    data = folder / "data"
    data.mkdir(parents=True)
    lengths = np.diff(fields["offsets"])
    metadata = {
        "dataset_id": dataset_id,
        "minari_version": VERSION,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "total_episodes": len(lengths),
        "total_steps": int(lengths.sum()),
        "observation_space": json.dumps(_encoded(fields["observation_space"])),
        "action_space": json.dumps(_encoded(fields["action_space"])),
    }
    if fields["env"] in gym.registry:
        metadata["env_spec"] = gym.spec(fields["env"]).to_json()
    with h5py.File(data / STEPS, "w", track_order=True) as file:
        for number, episode in enumerate(episodes):
            length = len(episode)
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": length})
            _write(group, "observations", episode.get_observations())
            _write(group, "actions", episode.get_actions())
            _write(group, "rewards", episode.get_rewards())
            for name, flag in {"terminations": episode.terminated, "truncations": episode.truncated}.items():
                _write(group, name, (np.arange(length) == length - 1) & flag)
    metadata["dataset_size"] = round((data / STEPS).stat().st_size / 1e6, 1)  # in MB
    (data / METADATA).write_text(json.dumps(metadata), encoding="utf-8")
    return folder


# --- nested columns ---------------------------------------------------------------------------------------------------


def _write(group: Any, name: str, value: Tree) -> None:
    if not isinstance(value, dict | tuple):
        group.create_dataset(name, data=value)
        return
    inner = group.create_group(name)
    parts = value if isinstance(value, dict) else {f"_index_{index}": part for index, part in enumerate(value)}
    for key, part in parts.items():
        _write(inner, str(key), part)


def _read(entry: Any, space: Space) -> Tree:
    if isinstance(space, spaces.Dict):
        return {key: _read(entry[str(key)], part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_read(entry[f"_index_{index}"], part) for index, part in enumerate(space.spaces))
    return entry[()]


def _sliced(column: Tree, rows: slice) -> Tree:
    if isinstance(column, dict):
        return {key: _sliced(part, rows) for key, part in column.items()}
    return tuple(_sliced(part, rows) for part in column) if isinstance(column, tuple) else column[rows]


def _joined(parts: list[Any]) -> Tree:
    first = parts[0]
    if isinstance(first, dict):
        return {key: _joined([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(_joined(list(same)) for same in zip(*parts, strict=True))
    return np.concatenate(parts)


# --- spaces -----------------------------------------------------------------------------------------------------------


def _leaves(space: Space) -> Iterator[Space]:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for part in space_parts(space).values():
            yield from _leaves(part)
    else:
        yield space


def _is_image(space: Space) -> bool:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3


def _encoded(space: Any) -> dict[str, Any]:
    """Return a space as Minari writes it."""
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "subspaces": {key: _encoded(part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "subspaces": [_encoded(part) for part in space.spaces]}
    about: dict[str, Any] = {"type": type(space).__name__}
    if isinstance(space, spaces.MultiBinary):
        return about | {"n": space.n}
    about["dtype"] = str(space.dtype)
    if isinstance(space, spaces.Box):
        return about | {"shape": list(space.shape), "low": space.low.tolist(), "high": space.high.tolist()}
    if isinstance(space, spaces.MultiDiscrete):
        return about | {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
    return about | {"start": int(space.start), "n": int(space.n)}


def _decoded(about: Mapping[str, Any]) -> Space:
    """Return the space that :func:`_encoded` describes.

    Raises:
        ValueError: If there is no such space of arrays.
    """
    match about["type"]:
        case "Dict":
            return spaces.Dict([(key, _decoded(part)) for key, part in about["subspaces"].items()])
        case "Tuple":
            return spaces.Tuple([_decoded(part) for part in about["subspaces"]])
        case "Box":
            dtype: Any = np.dtype(about["dtype"]).type
            low, high = (np.array(about[name], dtype) for name in ("low", "high"))
            return spaces.Box(low, high, tuple(about["shape"]), dtype)
        case "Discrete":
            return spaces.Discrete(about["n"], start=about["start"])
        case "MultiDiscrete":
            nvec = np.array(about["nvec"])
            return spaces.MultiDiscrete(nvec, dtype=np.dtype(about["dtype"]).type, start=np.array(about["start"]))
        case "MultiBinary":
            return spaces.MultiBinary(about["n"])
    raise ValueError(f"its space {about['type']!r} is none of arrays")
