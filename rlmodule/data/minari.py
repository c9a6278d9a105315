"""Read and write folders of Minari (https://minari.farama.org) without Minari.

Layout of a folder::

    data/metadata.json     spaces, env and numbers of episodes and steps
    data/main_data.hdf5    a group ``episode_0``, … per episode, with one more observation than actions
"""

from __future__ import annotations

import io
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import Space, spaces

from catalog.base import Tree
from catalog.spaces import space_parts
from catalog_rl import printable
from rlmodule.data.dataset_checks import as_flags, misfit
from rlmodule.data.dataset_files import package, unreadable
from rlmodule.data.episode import Episode
from rlmodule.data.hdf5 import TUPLE_ITEM, column, item_of, opened
from rlmodule.sealed_folder import StrPath, parse_json, staged_folder

if TYPE_CHECKING:
    from rlmodule.data.dataset import Dataset

METADATA, ARRAYS = "metadata.json", "main_data.hdf5"
COLUMNS = ("observations", "actions", "rewards", "terminations", "truncations")
# The version of Minari whose format is written.
VERSION = "0.5.4"

_ID = re.compile(r"([-\w][-\w/]*[-\w]/)?[-\w]+-v\d+")


def data_folder(path: StrPath) -> Path | None:
    """Return the folder with the files of the data set of Minari at ``path``; None if there is no such data set."""
    return next((folder for folder in (Path(path), Path(path, "data")) if (folder / METADATA).is_file()), None)


def read(where: str, path: StrPath) -> dict[str, Any]:
    """Return the arguments of :meth:`Dataset.from_episodes` that a folder holds; see :meth:`Dataset.from_minari`."""
    store = os.environ.get("MINARI_DATASETS_PATH", Path.home() / ".minari" / "datasets")
    folder = data_folder(path) or data_folder(Path(store, path))
    if folder is None:
        raise FileNotFoundError(
            f"{where}: expected a folder with data/{METADATA}, or an id of a data set in {str(store)!r}, got neither. "
            "Look at the path, or download the data set with minari download."
        )
    try:
        metadata = parse_json((folder / METADATA).read_bytes(), METADATA)
        observation_space, action_space = (
            _decode_space(parse_json(metadata[f"{name}_space"].encode(), METADATA))
            for name in ("observation", "action")
        )
        spec = parse_json(metadata.get("env_spec", "null").encode(), METADATA)
        env = spec and printable(spec["id"])
        num_episodes = int(metadata["total_episodes"])
    except (ValueError, LookupError, TypeError, AttributeError, AssertionError) as error:
        raise unreadable(where, METADATA, error) from error
    if (format := metadata.get("data_format", "hdf5")) != "hdf5":
        raise misfit(where, "data_format", "'hdf5'", repr(format), "Let Minari write it in that format.")
    has_jpegs = metadata.get("jpeg_encoding", True)
    episodes = []
    with opened(where, folder / ARRAYS) as file:
        if len(file) != num_episodes:
            raise misfit(where, ARRAYS, f"{num_episodes} episodes, as {METADATA} says", len(file), "Copy it again.")
        for index in range(num_episodes):
            # Group by group: what else Minari stores in it, such as infos, is not read.
            group = item_of(where, file, f"episode_{index}")
            columns = {name: column(where, group, name) for name in COLUMNS}
            if has_jpegs:
                columns["observations"] = _decode_images(where, observation_space, columns["observations"])
                columns["actions"] = _decode_images(where, action_space, columns["actions"])
            episodes.append(_episode(f"{where}: episode_{index}", **columns))
    result = {"episodes": episodes, "env": env}
    return result | {"observation_space": observation_space, "action_space": action_space}


def _episode(
    where: str, observations: Tree, actions: Tree, rewards: Any, terminations: Any, truncations: Any
) -> Episode:
    ends = {"terminations": terminations, "truncations": truncations}
    flags = {name: as_flags(where, name, value, np.size(rewards)) for name, value in ends.items()}
    for name, values in flags.items():
        if (early := np.flatnonzero(values[:-1])).size:
            raise misfit(where, f"{name}, step {early[0]}", "False before the last step", "True", "Split the episode.")
    terminated, truncated = (bool(values[-1:].any()) for values in flags.values())
    try:
        return Episode(observations, actions, rewards, terminated=terminated, truncated=truncated)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def write(dataset: Dataset, path: StrPath, dataset_id: str | None) -> Path:
    """Write ``dataset`` as a folder of Minari; see :meth:`Dataset.to_minari`."""
    where = f"Dataset.to_minari({str(path)!r})"
    target = Path(path).absolute()
    dataset_id = target.name if dataset_id is None else dataset_id
    if not _ID.fullmatch(dataset_id):
        raise misfit(where, "dataset_id", "an id such as 'pendulum/expert-v0'", repr(dataset_id), "Pass dataset_id=.")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(str(misfit(where, "path", "a new folder or an empty one", "another", "Choose another.")))
    h5py = package(where, "h5py")
    metadata: dict[str, Any] = {
        "dataset_id": dataset_id,
        "minari_version": VERSION,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "total_episodes": dataset.num_episodes,
        "total_steps": dataset.num_steps,
        "observation_space": json.dumps(_encode_space(where, dataset.observation_space)),
        "action_space": json.dumps(_encode_space(where, dataset.action_space)),
    }
    if dataset.env in gym.registry:  # an id that is not there could import what it names
        metadata["env_spec"] = gym.registry[dataset.env].to_json()
    with staged_folder(target) as staged:
        folder = staged / "data"
        folder.mkdir()
        with h5py.File(folder / ARRAYS, "w", track_order=True) as file:
            for index, episode in enumerate(dataset.episodes()):
                is_last = np.arange(len(episode)) == len(episode) - 1
                columns = (
                    episode.get_observations(),
                    episode.get_actions(),
                    episode.get_rewards(),
                    is_last & episode.terminated,
                    is_last & episode.truncated,
                )
                _write_column(file, f"episode_{index}", dict(zip(COLUMNS, columns, strict=True)))
                file[f"episode_{index}"].attrs.update({"id": index, "total_steps": len(episode)})
        metadata["dataset_size"] = round((folder / ARRAYS).stat().st_size / 1e6, 1)
        (folder / METADATA).write_text(json.dumps(metadata), encoding="utf-8")
        os.rename(staged, target)
    return target


def _write_column(group: Any, name: str, value: Tree) -> None:
    if isinstance(value, tuple):
        value = {TUPLE_ITEM.format(index): part for index, part in enumerate(value)}
    if not isinstance(value, dict):
        group.create_dataset(name, data=value)
        return
    inner = group.create_group(name)
    for key, part in value.items():
        _write_column(inner, key, part)


def _decode_images(where: str, space: Space, value: Tree) -> Tree:
    """Return a column whose images are decoded, which Minari stores as JPEGs: the Boxes of bytes from 0 to 255 with two
    or three dims, of which the first two are 32 or more."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = {key: _decode_images(where, part, value[key]) for key, part in space_parts(space).items()}
        return parts if isinstance(space, spaces.Dict) else tuple(parts.values())
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return value
    if min(space.shape[:2]) < 32 or space.low.any() or (space.high != 255).any():
        return value
    from PIL import Image

    decoded = []
    for encoded in value:
        image = Image.open(io.BytesIO(encoded.tobytes()), formats=["JPEG"])
        if (size := image.size[::-1]) != space.shape[:2]:  # before it takes memory
            raise misfit(where, "images", f"{space.shape[:2]}", size, "Look at the observation_space.")
        decoded.append(np.asarray(image))
    return np.stack(decoded)


def _encode_space(where: str, space: Space) -> dict[str, Any]:
    """Return a space in the form of Minari. Raise ValueError if a key cannot be the name of an array in HDF5."""
    kind = type(space).__name__
    if isinstance(space, spaces.Dict):
        for key in space.spaces:
            if not isinstance(key, str) or key in ("", ".") or "/" in key:
                remedy = "Rename it with an environment wrapper, or write the data set with save(path)."
                raise misfit(where, "keys of a Dict space", "texts without '/'", repr(key), remedy)
        return {"type": kind, "subspaces": {key: _encode_space(where, part) for key, part in space.spaces.items()}}
    if isinstance(space, spaces.Tuple):
        return {"type": kind, "subspaces": [_encode_space(where, part) for part in space.spaces]}
    encoded: dict[str, Any] = {"type": kind, "dtype": str(space.dtype)}
    for name in _ARGUMENTS[kind]:
        encoded[name] = np.asarray(getattr(space, name)).tolist()
    return encoded


_ARGUMENTS = {
    "Box": ("low", "high", "shape"),
    "Discrete": ("n", "start"),
    "MultiDiscrete": ("nvec", "start"),
    "MultiBinary": ("n",),
}


def _decode_space(plain: Any) -> Space:
    """Return the space of which ``plain`` is Minari's form."""
    match plain:
        case {"type": "Dict", "subspaces": dict(parts)}:
            return spaces.Dict([(key, _decode_space(part)) for key, part in parts.items()])
        case {"type": "Tuple", "subspaces": list(parts)}:
            return spaces.Tuple([*map(_decode_space, parts)])
        case {"type": "Box", "low": low, "high": high, "dtype": dtype}:
            return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=np.dtype(dtype).type)
        case {"type": "Discrete", "n": n, "start": start}:
            return spaces.Discrete(n, start=start)
        case {"type": "MultiDiscrete", "nvec": nvec, "dtype": dtype, "start": start}:
            return spaces.MultiDiscrete(np.array(nvec), dtype=np.dtype(dtype).type, start=np.array(start))
        case {"type": "MultiBinary", "n": n}:
            return spaces.MultiBinary(n)
    raise ValueError(f"no space of arrays: {plain}")
