"""Read HDF5 files that others wrote: nothing is read from outside of the file, and no more than it holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from catalog.base import Tree
from catalog_rl import listed
from rlmodule.data.dataset_checks import misfit
from rlmodule.data.dataset_files import OPTIONAL, REQUIRED, check_exists, package, unreadable
from rlmodule.sealed_folder import StrPath

TUPLE_ITEM = "_index_{}"
"""Name of an entry of a tuple in the group that stands for the tuple, as Minari writes it."""

# The greatest factor by which HDF5's usual compression shrinks zeros, and the bytes that any array may have.
_MOST_COMPRESSED, _FREE = 1100, 2**20


@contextmanager
def opened(where: str, path: StrPath) -> Iterator[Any]:
    """Open an HDF5 file to read, and yield it.

    Raises:
        FileNotFoundError: If it does not exist.
        ImportError: If h5py is not installed.
        ValueError: If it or a part that the block reads is damaged.
    """
    h5py = package(where, "h5py")
    check_exists(where, path)
    try:
        with h5py.File(path, "r") as file:
            yield file
    # h5py raises many types: RecursionError for groups that contain themselves, ValueError for unknown numbers
    except (OSError, LookupError, RuntimeError, AttributeError, TypeError, ValueError) as error:
        if str(error).startswith(where):
            raise
        raise unreadable(where, "an HDF5 file", error) from error


def read(where: str, path: StrPath) -> dict[str, Any]:
    """Return the arguments of :meth:`Dataset.from_arrays` that a file holds; see :meth:`Dataset.from_hdf5`."""
    with opened(where, path) as file:
        return {name: column(where, file, name) for name in REQUIRED + OPTIONAL if name in file or name in REQUIRED}


def column(where: str, group: Any, name: str) -> Tree:
    """Return the array ``name`` of ``group``, or a dict or tuple of arrays if it is a group.

    Raises:
        ValueError: If it is missing, lies outside of the file, or claims to have more bytes than the file can hold.
    """
    import h5py

    item = item_of(where, group, name)
    if isinstance(item, h5py.Group):
        if TUPLE_ITEM.format(0) in item:
            return tuple(column(where, item, TUPLE_ITEM.format(index)) for index in range(len(item)))
        return {key: column(where, item, str(key)) for key in item}
    if not isinstance(item, h5py.Dataset) or item.external or item.is_virtual:
        raise misfit(where, str(item.name), "an array in the file", "something else", "Copy its values into the file.")
    stored = item.id.get_storage_size()
    if item.nbytes > _MOST_COMPRESSED * stored + _FREE:
        got = f"one of {item.nbytes:,} bytes, stored in {stored:,}"
        raise misfit(where, str(item.name), "an array", got, "Write the file again.")
    return item[()]


def item_of(where: str, group: Any, name: str) -> Any:
    """Return the array or group ``name`` of ``group``.

    Raises:
        ValueError: If it is missing, or a link, which could lead to another file.
    """
    import h5py

    path = f"{group.name.rstrip('/')}/{name}"
    if name not in group:
        raise misfit(where, path, "this column", f"only {listed(group)}", "Add it, or read the file yourself.")
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise misfit(where, path, "an array in the file", "a link", "Copy what it refers to into the file.")
    return group[name]
