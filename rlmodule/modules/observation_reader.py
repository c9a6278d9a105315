"""Check observations as an env returns them, and convert them to tensors in the dtypes that rollouts use, for
acting."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from catalog.base import Tree
from catalog.explain.explain import short_space
from catalog.spaces import kept_dtype, space_parts


class ObservationReader:
    """Checks and converts the observations of a space, or one part of such observations.

    Args:
        space: Space of one observation, or of the part.
        path: The keys that lead to the part, such as ``"['camera']"``, for error messages.
    """

    def __init__(self, space: Space, path: str = "") -> None:
        self._space, self._path = space, path
        self._parts: dict[Any, ObservationReader] | None = None
        self._is_float = space.dtype is None or space.dtype.kind == "f"
        if isinstance(space, spaces.Dict | spaces.Tuple):
            parts = space_parts(space).items()
            self._parts = {key: ObservationReader(part, f"{path}[{key!r}]") for key, part in parts}
            return
        self._shape = space.shape or ()
        self._kept = kept_dtype(space.dtype)
        self._bounds: tuple[np.ndarray, np.ndarray] | None = None
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):  # a wrong choice would read as another part's
            start = np.asarray(space.start)
            self._bounds = start, start + (space.n if isinstance(space, spaces.Discrete) else space.nvec)

    def one(self, obs: Tree) -> Tree:
        """Return the single observation ``obs`` as a tree of tensors ``[1, ...]``.

        Raises:
            ValueError: If ``obs`` does not fit the space. The message names the leaf.
        """
        return self._read(obs, None)

    def batch(self, obs: Tree) -> tuple[int, Tree]:
        """Return the number ``B`` of observations in the batch ``obs``, and the observations as a tree of tensors
        ``[B, ...]``.

        Raises:
            ValueError: If the observations do not fit the space, or a leaf has a different number of rows. The message
                names the leaf.
        """
        reader, first = self, obs
        try:
            while reader._parts is not None:
                key, reader = next(iter(reader._parts.items()))
                first = first[key]
            num = len(first)
        except (KeyError, IndexError, TypeError):
            num = 0  # reading raises the error that names the leaf
        return num, self._read(obs, num)

    def _read(self, obs: Tree, rows: int | None) -> Tree:
        """Return ``obs`` as a tree of tensors. ``rows`` is the number of observations in a batch; None for a single
        observation."""
        parts = self._parts
        if parts is None:
            return self._leaf(obs, rows)
        fields = obs
        if isinstance(self._space, spaces.Tuple):
            fields = dict(enumerate(obs)) if isinstance(obs, tuple | list) else None
        if not isinstance(fields, Mapping):
            raise self._misfit(obs, rows)
        if lost := next((part for key, part in parts.items() if key not in fields), None):
            raise lost._misfit([*fields], rows)
        if len(fields) > len(parts):
            raise self._misfit([*fields], rows)
        read = {key: part._read(fields[key], rows) for key, part in parts.items()}
        return read if isinstance(self._space, spaces.Dict) else tuple(read.values())

    def _leaf(self, value: Any, rows: int | None) -> Tensor:
        array = value
        if type(value) is not np.ndarray or value.dtype != self._kept:
            if isinstance(value, Tensor):  # on a GPU, or with a gradient, as an env may return them
                value = value.detach().cpu()
            array = self._converted(value, rows)
        if array.shape != (self._shape if rows is None else (rows, *self._shape)) or rows == 0:
            raise self._misfit(array, rows)
        # a sum of squares costs half as much as a look at each number, but may overflow
        if self._is_float and not math.isfinite(np.vdot(array, array)) and not np.isfinite(array).all():
            wrong = np.asarray(value)[~np.isfinite(array)]
            expected = f"numbers in the range of {self._kept}" if np.isfinite(wrong[0]) else "finite numbers"
            raise self._outside(expected, wrong)
        if self._bounds is not None and ((array < self._bounds[0]) | (array >= self._bounds[1])).any():
            raise self._outside(str(self._space), array)
        return torch.from_numpy(np.ascontiguousarray(array[None] if rows is None else array))

    def _converted(self, value: Any, rows: int | None) -> np.ndarray:
        """Return the leaf ``value`` as an array of the dtype in which rollouts store it. Raise ValueError if it is not
        numeric, or if it has integers that this dtype cannot hold."""
        try:
            array = np.asarray(value)
        except (ValueError, TypeError):
            raise self._misfit(value, rows) from None
        if not self._takes(array.dtype):
            raise self._misfit(value if isinstance(value, list | tuple) or array.dtype.kind == "O" else array, rows)
        with np.errstate(over="ignore"):  # what is beyond the range of the dtype is refused as infinite
            kept = array.astype(self._kept, copy=False)
        if kept is not array and not self._is_float and (wrong := kept != array).any():
            raise self._outside(f"numbers in the range of {self._kept}", array[wrong])
        return kept

    def _takes(self, dtype: np.dtype[Any]) -> bool:
        return dtype.kind in ("biuf" if self._is_float else "biu")

    def _misfit(self, got: Any, rows: int | None) -> ValueError:
        """Return the error to raise for ``got``, whose structure, shape or kind of numbers does not fit the space.
        ``rows`` is the number of observations in a batch; None for a single observation."""
        call, expected, remedy = "act", "one observation", "a single (not a vector) env returned, or call act_batch()"
        if rows is not None:
            call, expected, remedy = (
                "act_batch",
                f"a batch [{rows or 'B'}, ...]",
                "a vector env returned, or call act()",
            )
        shown = textwrap.shorten(repr(got), 60)
        if isinstance(got, np.ndarray):
            shown = f"shape {got.shape}" + ("" if self._takes(got.dtype) else f" of {got.dtype}")
        return ValueError(
            f"Policy.{call}(obs){self._path}: expected {expected} of {short_space(self._space)}, got {shown}. Pass "
            f"what env.reset() or env.step() of {remedy}."
        )

    def _outside(self, expected: str, got: np.ndarray) -> ValueError:
        return ValueError(
            f"Policy.act(obs){self._path}: expected {expected}, got {got.flat[0]}. Look for a sensor that failed, or "
            "an env that leaves its observation space."
        )
