"""Files of data sets: this library's own folders, and tables.

Layout of a folder::

    data.json              the spaces and the id of the env
    data.safetensors       the arrays
    manifest.json          see rlmodule.sealed_folder
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import Space
from torch import Tensor

from catalog.base import Tree
from catalog.spaces import map_spaces
from catalog_rl import listed, printable, unknown
from rlmodule.checkpoint import save_folder
from rlmodule.data.dataset_checks import misfit
from rlmodule.data.rollout import as_tensors, map_leaves
from rlmodule.encoding import Decoder, encode
from rlmodule.sealed_folder import (
    MANIFEST,
    MOST_DIMS,
    DamagedFolder,
    StrPath,
    parse_json,
    parse_tensors,
    read_folder,
    standing_in,
)

if TYPE_CHECKING:
    from rlmodule.data.dataset import Dataset

KIND, PLAIN, ARRAYS = "dataset", "data.json", "data.safetensors"
REQUIRED = ("observations", "actions", "rewards", "terminals")
OPTIONAL = ("timeouts", "next_observations")
"""Names of columns in files with one array per column: arguments of :meth:`Dataset.from_arrays`."""


def write(dataset: Dataset, path: StrPath) -> Path:
    """Write ``dataset`` as the folder ``path``; see :meth:`Dataset.save`."""
    where = f"Dataset.save({str(path)!r})"
    content = {name: encode(getattr(dataset, name)) for name in ("observation_space", "action_space", "env")}
    for name, value in content.items():
        if "__pass_again__" in json.dumps(value):
            remedy = "Copy it to a space of Gymnasium's own class."
            raise TypeError(str(misfit(where, name, "a space that a file can hold", getattr(dataset, name), remedy)))
    files = {PLAIN: json.dumps(content, indent=1).encode(), ARRAYS: as_tensors(dataset.arrays())}
    return save_folder(where, path, KIND, files, lambda folder: (folder / PLAIN).exists())


def read(where: str, path: StrPath) -> dict[str, Any]:
    """Return the arguments of :class:`Dataset` that the folder ``path`` holds; see :meth:`Dataset.load`."""
    if not (standing_in(path) / PLAIN).exists():
        raise FileNotFoundError(
            f"{where}: expected a folder that Dataset.save(path) or Minari wrote, got none. Pass such a folder, or if "
            "that of a run was moved, its new path: data=... or --data."
        )
    try:
        files = read_folder(path, KIND)
        if files.keys() != {PLAIN, ARRAYS}:
            raise DamagedFolder(f"{MANIFEST}: it lists other files than {PLAIN} and {ARRAYS}")
        plain, tensors = parse_json(files[PLAIN], PLAIN), parse_tensors(files[ARRAYS], ARRAYS)
        if not isinstance(plain, dict) or not isinstance(plain["env"], str | None):
            raise DamagedFolder(f"{PLAIN}: it is no dict with the spaces and the id of the env")
        arrays = map_leaves(Tensor.numpy, tensors)
        spaces = _read_spaces(where, plain, sum(array.size for array in arrays.values()))
        plain_names = ("rewards", "offsets", "terminated", "truncated")
        columns = {name: arrays.pop(name) for name in plain_names}
        for name in ("observations", "final_observations", "actions"):
            leaves = count()
            space = spaces["action_space" if name == "actions" else "observation_space"]
            columns[name] = map_spaces(lambda _, name=name, leaves=leaves: arrays.pop(f"{name}/{next(leaves)}"), space)
        if arrays:  # or data that nobody asked for would be carried along unseen
            raise DamagedFolder(f"{ARRAYS}: {next(iter(arrays))!r} is no array of its spaces")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise unreadable(where, "a folder of Dataset.save(path)", error) from error
    return {**columns, **spaces, "env": plain["env"] and printable(plain["env"])}


def _read_spaces(where: str, plain: Mapping[str, Any], most: int) -> dict[str, Space]:
    """Return the spaces of the JSON ``plain``, whose Boxes may have ``most`` numbers: no more than the arrays.

    Raises:
        DamagedFolder: If they have more, or are no spaces.
    """
    names = ("observation_space", "action_space")
    try:
        if sum(_num_bounds(plain[name], most) for name in names) > most:
            raise ValueError("more numbers than the arrays have")
        decoder = Decoder(where, allow=())
        spaces = {name: decoder.read(plain[name], name) for name in names}
        if not all(isinstance(space, Space) for space in spaces.values()):
            raise ValueError("JSON of another kind")
    except (ValueError, RecursionError) as error:
        # Without the text of the error, which may be as long as the file.
        raise DamagedFolder(f"{PLAIN}: its spaces are no spaces of Gymnasium that fit its arrays") from error
    return spaces


def _num_bounds(plain: Any, most: int) -> int:
    """Return how many numbers the Boxes in the JSON of a space have. Each of them takes memory once it is decoded.

    Raises:
        ValueError: If a shape has a size above ``most`` or is no shape, or if the JSON names something to import.
    """
    if isinstance(plain, list):
        return sum(_num_bounds(part, most) for part in plain)
    if not isinstance(plain, dict):
        return 0
    shape = plain.get("shape", [0])
    is_shape = isinstance(shape, list) and len(shape) <= MOST_DIMS
    if not is_shape or not all(type(size) is int and 0 <= size <= most for size in shape):
        raise ValueError("no shape of an array here")
    if plain.keys() & {"__import__", "__dataclass__"}:
        raise ValueError("no space names something to import")
    return math.prod(shape) + sum(_num_bounds(part, most) for part in plain.values())


def read_table(where: str, path: StrPath, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of :meth:`Dataset.from_arrays` that a table holds; see :meth:`Dataset.from_table`."""
    missing = [name for name in REQUIRED if name not in columns]
    strange = [name for name in columns if name not in REQUIRED + OPTIONAL]
    if missing or strange:
        expected = f"the names of columns for {listed(REQUIRED)}, and if they exist {listed(OPTIONAL)}"
        got = f"no {missing[0]}" if missing else repr(strange[0])
        raise misfit(where, "columns", expected, got, "Name the columns of the table for each of them.")
    readers = {".csv": ("pyarrow.csv", "read_csv"), ".parquet": ("pyarrow.parquet", "read_table")}
    suffix = Path(path).suffix
    if suffix not in readers:
        raise misfit(where, "path", f"a name that ends with {' or '.join(readers)}", suffix or "none", "Rename it.")
    module, function = readers[suffix]
    check_exists(where, path)
    pyarrow, reader = package(where, "pyarrow"), package(where, module)
    try:
        table = getattr(reader, function)(path)
        known = table.column_names
    except (pyarrow.ArrowException, OSError, UnicodeError) as error:
        raise unreadable(where, f"a {suffix} file", error) from error

    # Names may be nested as the space is: a list of names stands for a vector, a tuple for a Tuple.
    def read_columns(names: Any) -> Tree:
        if isinstance(names, Mapping):
            return {key: read_columns(part) for key, part in names.items()}
        if isinstance(names, tuple):
            return tuple(map(read_columns, names))
        if isinstance(names, list):
            return np.stack([*map(read_column, names)], axis=-1)
        return None if names is None else read_column(names)

    def read_column(name: str) -> Any:
        if known.count(name) != 1:
            raise unknown(where, "columns", known, name, "Each name must be in the table, and once.")
        column = table.column(name)
        if column.null_count:
            row = int(np.argmax(column.is_null()))
            raise misfit(where, f"{name}, row {row}", "a number", "an empty field", "Leave out such episodes.")
        values = column.to_numpy()
        if values.dtype != object:
            return values
        if not isinstance(next(iter(values), None), np.ndarray):
            raise misfit(where, name, "a column of numbers", column.type, "Convert it to numbers first.")
        return [*values]  # a list in each field

    return read_columns(columns)


def check_exists(where: str, path: StrPath) -> None:
    """Raise FileNotFoundError unless ``path`` is a file."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{where}: expected a file, got none of that name. Look at the path.")


def unreadable(where: str, expected: str, error: Exception) -> ValueError:
    """Return the error for a file that a library cannot read."""
    got = printable(f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__)
    return ValueError(f"{where}: expected {expected} that can be read, got an error ({got}). Copy or write it again.")


def package(where: str, name: str) -> Any:
    """Return the module ``name`` of a package of the extra ``data``.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        missing = name.partition(".")[0]
        raise ImportError(
            f"{where}: expected the package {missing}, got none. Run: pip install 'catalog-rl[data]'."
        ) from error
