"""Files of data sets: this library's own folders, HDF5 files, and tables in CSV or Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces

from catalog.base import Tree
from catalog.spaces import space_parts
from rlmodule.checkpoint import save_folder
from rlmodule.data.dataset_checks import leaves_of, misfit
from rlmodule.encoding import Decoder, encode
from rlmodule.sealed_folder import DamagedFolder, StrPath, parse_json, parse_tensors, read_folder

KIND, ABOUT, STEPS = "dataset", "dataset.json", "steps.safetensors"
NESTED = {"observations": "observation_space", "final_observations": "observation_space", "actions": "action_space"}
"""Columns that may be nested, with the names of their spaces."""
FLAT = ("rewards", "offsets", "terminated", "truncated")


def write(where: str, path: StrPath, fields: Mapping[str, Any]) -> Path:
    """Write a data set to the folder ``path``. ``fields`` are the arguments of :class:`Dataset`."""
    about = {name: encode(fields[name]) for name in ("observation_space", "action_space", "env")}
    tensors = {name: torch.from_numpy(fields[name]) for name in FLAT}
    for name, space in NESTED.items():
        for number, leaf in enumerate(leaves_of(fields[space], fields[name])):
            tensors[f"{name}/{number}"] = torch.from_numpy(np.ascontiguousarray(leaf))
    files = {ABOUT: json.dumps(about, indent=1).encode(), STEPS: tensors}
    return save_folder(where, path, KIND, files, lambda folder: (folder / ABOUT).exists())


def read(where: str, path: StrPath) -> dict[str, Any]:
    """Return the arguments of :class:`Dataset` from the folder ``path`` that :func:`write` wrote.

    Raises:
        FileNotFoundError: If there is no such folder.
        ValueError: If it is damaged, or names code.
    """
    if not Path(path, ABOUT).exists():
        raise FileNotFoundError(
            f"{where}: expected a folder that dataset.save(path) wrote, or one of Minari, got none. Pass such a folder."
        )
    decoder = Decoder(where, ())
    try:
        files = read_folder(path, KIND)
        about, tensors = parse_json(files[ABOUT], ABOUT), parse_tensors(files[STEPS], STEPS)
        fields: dict[str, Any] = {name: tensors[name].numpy() for name in FLAT}
        for name in ("observation_space", "action_space"):
            fields[name] = decoder.read(about[name], name, Space)
        decoder.refuse_missing()
        for name, space in NESTED.items():
            leaves = (tensors[f"{name}/{number}"].numpy() for number in range(len(tensors)))
            fields[name] = _nested(fields[space], leaves)
        fields["env"] = decoder.read(about["env"], "env", str | None)
    except (DamagedFolder, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{where}: expected a folder that dataset.save(path) wrote, got one that cannot be read ({error}). Copy "
            "it again, or save it again."
        ) from error
    return fields


def _nested(space: Space, leaves: Iterator[np.ndarray]) -> Tree:
    """Return a tree with the structure of ``space``, whose leaves are the next of ``leaves``."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return next(leaves)
    parts = {key: _nested(part, leaves) for key, part in space_parts(space).items()}
    return parts if isinstance(space, spaces.Dict) else tuple(parts.values())


# --- files of others --------------------------------------------------------------------------------------------------


def needed(where: str, package: str) -> ImportError:
    """Return the error for a missing package."""
    return ImportError(f"{where}: expected the package {package}, got none. Run: pip install 'catalog-rl[data]'.")


def read_hdf5(where: str, path: StrPath, timeouts: str | None) -> dict[str, Any]:
    """Return the arrays of an HDF5 file as arguments of :meth:`Dataset.from_arrays`. See :meth:`Dataset.from_hdf5`."""
    try:
        import h5py
    except ImportError as error:
        raise needed(where, "h5py") from error
    _check_exists(where, path)
    names = {name: name for name in ("observations", "actions", "rewards", "terminals", "next_observations")}
    if timeouts not in ("ask", None):
        names["timeouts"] = timeouts
    try:
        with h5py.File(path, "r") as file:
            known = [*file.keys()]
            _check_names(where, known, names)
            found: dict[str, Any] = {argument: _read(file[name]) for argument, name in names.items() if name in known}
    except OSError as error:
        raise _damaged(where, error) from error
    return {"timeouts": timeouts} | found


def _read(entry: Any) -> Any:
    """Return a group of an HDF5 file as a dict of arrays, or a data set as an array."""
    return {name: _read(part) for name, part in entry.items()} if hasattr(entry, "items") else entry[()]


def read_table(where: str, path: StrPath, columns: Mapping[str, str | Sequence[str] | None]) -> dict[str, Any]:
    """Return the columns of a table as arguments of :meth:`Dataset.from_arrays`. See :meth:`Dataset.from_table`."""
    arguments = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations", "episodes")
    if unknown := [name for name in columns if name not in arguments]:
        raise misfit(where, "columns", f"some of {', '.join(arguments)}", repr(unknown[0]), "Name what it is.")
    try:
        from pyarrow import ArrowException, csv, parquet
    except ImportError as error:
        raise needed(where, "pyarrow") from error
    _check_exists(where, path)
    kind = Path(path).suffix
    if kind not in (".csv", ".parquet"):
        raise misfit(where, "file", "a name that ends in .csv or .parquet", repr(kind), "Convert it to one of them.")
    try:
        table = csv.read_csv(path) if kind == ".csv" else parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise _damaged(where, error) from error
    names = {argument: name for argument, name in columns.items() if name is not None}
    flat = {name: name for given in names.values() for name in ([given] if isinstance(given, str) else given)}
    _check_names(where, table.column_names, {**dict.fromkeys(REQUIRED, ""), **names}, flat)

    def array(name: str) -> np.ndarray:
        column = table[name]
        if column.null_count:
            row = column.is_null().to_pylist().index(True)
            raise misfit(where, f"column {name!r}, row {row}", "a number", "nothing", "Fill it, or leave out the row.")
        values = column.to_numpy()
        return np.stack(values) if values.dtype == object and isinstance(values[0], np.ndarray) else values

    found: dict[str, Any] = {}
    for argument, name in names.items():
        found[argument] = array(name) if isinstance(name, str) else np.stack([array(part) for part in name], 1)
    if "timeouts" in columns:
        found.setdefault("timeouts", None)
    if "episodes" in found:
        found = _with_episodes(where, found)
    return found


REQUIRED = ("observations", "actions", "rewards", "terminals")


def _with_episodes(where: str, found: dict[str, Any]) -> dict[str, Any]:
    """Return arguments of :meth:`Dataset.from_arrays` in which episodes also end where their number changes."""
    numbers = found.pop("episodes")
    begins = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1]))
    _, first = np.unique(numbers[begins], return_index=True)
    if len(first) < len(begins):
        again = int(np.setdiff1d(np.arange(len(begins)), first)[0])
        remedy = "Sort the rows by episode and step."
        got = f"episode {numbers[begins[again]]} once more"
        raise misfit(where, f"episodes, row {begins[again]}", "all steps of an episode together", got, remedy)
    ends = np.zeros(len(numbers), bool)
    ends[np.append(begins[1:], len(numbers)) - 1] = True
    timeouts = found.get("timeouts")
    before = (
        np.zeros(len(numbers), bool) if timeouts is None or isinstance(timeouts, str) else np.asarray(timeouts) != 0
    )
    return found | {"timeouts": before | (ends & ~(np.asarray(found["terminals"]) != 0))}


def _check_exists(where: str, path: StrPath) -> None:
    if not Path(path).is_file():
        raise FileNotFoundError(f"{where}: expected a file, got none. Look at the path.")


def _check_names(where: str, known: Sequence[str], named: Mapping[str, Any], asked: Mapping[str, str] = {}) -> None:
    """Raise ValueError if a file with the columns ``known`` lacks one that is asked for, or if one is not named."""
    if missing := [name for name in REQUIRED if not named.get(name)]:
        raise misfit(where, "columns", f"a name for each of {', '.join(REQUIRED)}", f"none for {missing[0]}", "Add it.")
    required = asked or {name: named[name] for name in (*REQUIRED, *({"timeouts"} & named.keys()))}
    for name in required.values():
        if name not in known:
            raise misfit(where, "columns", f"one named {name!r}", ", ".join(known), "Name the column of the file.")


def _damaged(where: str, error: Exception) -> ValueError:
    return ValueError(f"{where}: expected a file that can be read, got a damaged one ({error}). Copy it again.")


def draw(path: StrPath, returns: np.ndarray, lengths: np.ndarray) -> None:
    """Write a picture of the distributions of returns and lengths to ``path``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    for axes, values, name in zip(figure.subplots(1, 2), (returns, lengths), ("return", "length"), strict=True):
        axes.hist(values, bins=min(40, max(5, len(values) // 2)), color="#4477aa")
        axes.set(xlabel=name, ylabel="episodes")
    figure.savefig(path, dpi=150)
