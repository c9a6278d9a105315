"""Preprocessing inside the net, which turns observations into vectors and standardises them by running statistics."""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn
from torch.nn import functional

from catalog.base import Tree
from catalog.spaces import Leaf, array_leaves, space_parts


def vector_width(space: Space, path: str = "observation_space") -> int:
    """Return the width of the vectors that :class:`Vectorize` makes of observations of ``space``.

    Raises:
        ValueError: If a part of ``space`` has no array form or no entries; names the path to it.
    """
    return Vectorize(space, path).width


def is_byte_box(space: Space) -> bool:
    """Return whether ``space`` is a uint8 Box from 0 to 255. Nets divide the numbers of such a Box by 255."""
    return isinstance(space, spaces.Box) and space == spaces.Box(0, 255, space.shape, np.uint8)


WIDE = 1024
"""Width of a one-hot code above which :meth:`Vectorize.times` picks columns of the weights instead."""


class Vectorize(nn.Module):
    """Turns each observation of a space of arrays into one float32 vector, ``[..., vector_width(space)]``.

    ========================  =========================================================
    Box                       flattened; divided by 255 if it holds bytes from 0 to 255
    Discrete, MultiDiscrete   one-hot for every part, counted from ``start``
    MultiBinary               flattened
    Dict, Tuple               the vectors of the parts, in the order of the space
    ========================  =========================================================

    Observations may have any leading dims. Fields that a Dict space does not name are ignored. Values are not checked.
    Choices given as floats pass unchanged, because :meth:`Distribution.rsample_with_logp` returns the choices of an
    action as one-hot codes.

    Args:
        space: Space of one observation, or of one action.
        path: Name of the space in error messages.

    Attributes:
        width: Width of the vectors.

    Raises:
        ValueError: If a part of ``space`` has no array form or no entries; names the path to it.
    """

    def __init__(self, space: Space, path: str = "observation_space") -> None:
        super().__init__()
        self.pieces = nn.ModuleList()
        for categorical, group in groupby(array_leaves(space, path), _is_categorical):
            leaves = list(group)  # neighbouring choices need only one scatter together
            self.pieces.extend([_OneHot(leaves)] if categorical else map(_Numbers, leaves))
        self.width = sum(piece.width for piece in self.parts())
        self.is_wide = any(piece.width > WIDE for piece in self.parts() if isinstance(piece, _OneHot))

    def parts(self) -> "Sequence[_Numbers | _OneHot]":
        """Return the pieces of the vector, in their order."""
        return [*self.pieces]  # type: ignore[list-item]

    def forward(self, obs: Tree) -> Tensor:
        vectors = [piece(obs) for piece in self.pieces]
        return vectors[0] if len(vectors) == 1 else torch.cat(vectors, -1)

    def times(self, obs: Tree, weight: Tensor) -> Tensor:
        """Return the product of the vectors with ``weight`` ``[outputs, D]``, ``[..., outputs]``, without making wide
        one-hot codes: their product is the sum of the columns of ``weight`` at the ones."""
        products, start = list[Tensor](), 0
        for piece in self.parts():
            end = start + piece.width
            if isinstance(piece, _OneHot) and piece.width > WIDE:
                products.append(piece.columns_at_ones(obs, weight, start))
            else:
                products.append(functional.linear(piece(obs), weight[:, start:end]))
            start = end
        return functools.reduce(torch.add, products)


def vectorizer(space: Space) -> Callable[[Tree], Tensor]:
    """Return a function from observations of ``space`` to float32 vectors ``[..., D]``: a :class:`Vectorize`, or
    a plain cast if they are vectors of floats already."""
    if _is_float_box(space) and len(space.shape or ()) == 1:
        return _to_float
    return Vectorize(space)


def _to_float(vectors: Tensor) -> Tensor:  # torch's compiler does not trace Tensor.float as an attribute before 2.13
    return vectors.float()


class _Numbers(nn.Module):
    """Flattens a Box or MultiBinary leaf of an observation to a vector of floats. Divides bytes by 255."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__()
        self.leaf, self.scaled, self.width = leaf, is_byte_box(leaf.space), math.prod(leaf.shape)

    def forward(self, obs: Tree) -> Tensor:
        numbers = self.leaf.of(obs)
        return numbers / 255 if self.scaled else numbers.float()


class _OneHot(nn.Module):
    """Encodes Discrete and MultiDiscrete leaves of an observation as one vector: their concatenated one-hot codes."""

    shift: Tensor

    def __init__(self, leaves: Sequence[Leaf]) -> None:
        super().__init__()
        nvec, start = np.concatenate([_choices(leaf.space) for leaf in leaves], 1)
        # offset from a value to its place in the code: minus the start of its part, plus the sizes of the parts before
        shift = np.cumsum(nvec) - nvec - start
        self.leaves, self.width, self.moves = tuple(leaves), int(nvec.sum()), bool(shift.any())
        self.register_buffer("shift", torch.as_tensor(shift), persistent=False)

    def _ones(self, obs: Tree) -> Tensor:
        """Return the place of the one of each part in the code, ``[..., parts]``."""
        parts = [leaf.of(obs).long() for leaf in self.leaves]
        ones = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return ones + self.shift if self.moves else ones

    def forward(self, obs: Tree) -> Tensor:
        given = [leaf.part_of(obs) for leaf in self.leaves]
        if given[0].is_floating_point():  # these are codes
            return torch.cat(given, -1)
        ones = self._ones(obs)
        code = torch.zeros(*ones.shape[:-1], self.width, device=ones.device)
        return code.scatter_(-1, ones, 1.0)

    def columns_at_ones(self, obs: Tree, weight: Tensor, start: int) -> Tensor:
        """Return the product with the columns of ``weight`` from ``start`` on: the sum of its columns at the ones."""
        ones = self._ones(obs) + start
        rows = weight.shape[0]
        # on the CPU, a dense gradient in each minibatch would fragment the memory; a sparse one is added in place
        is_sparse = weight.is_cpu and not torch.compiler.is_compiling() and weight.is_leaf and weight.grad is not None
        columns = weight.gather(1, ones.flatten().expand(rows, -1), sparse_grad=is_sparse)
        return columns.view(rows, *ones.shape).sum(-1).movedim(0, -1)


def _is_categorical(leaf: Leaf) -> bool:
    return isinstance(leaf.space, spaces.Discrete | spaces.MultiDiscrete)


def _choices(space: Any) -> np.ndarray:
    """Return the number of values and the first value of each part of a Discrete or MultiDiscrete, ``[2, parts]``."""
    counts = space.n if isinstance(space, spaces.Discrete) else space.nvec
    return np.stack([np.reshape(counts, -1), np.reshape(space.start, -1)]).astype(np.int64)


class RunningMoments(nn.Module):
    """Running mean and standard deviation of a stream of samples, as float64 buffers.

    Float32 would stop following the data after many updates: far from zero, a step of the mean is smaller than the
    distance between two numbers of float32. Cast the buffers to the dtype of the samples where you read them.
    :meth:`update` writes in place, so that modules that share the buffers see the change.

    The standard deviation is at least 1e-7 times the mean, about what float32 resolves there, and at least 1e-8.

    Args:
        shape: Shape of one sample.
        decay: None gives all samples the same weight (Chan et al. 1979, "Updating formulae and a pairwise algorithm
            for computing sample variances", eq. 2.1). With a number, the statistics follow a moving target such as
            returns, because each update multiplies the weight of all earlier batches by the number. The statistics of
            the first batches are corrected for the bias towards the initial values.

    Attributes:
        pool: Function that sums a tensor over processes in place and returns it, if each process has a part of every
            batch; None for one process. All processes must update together, even those whose part is empty. In a copy
            or pickle it is None.
    """

    mean: Tensor
    std: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...] = (), decay: float | None = None) -> None:
        super().__init__()
        self.decay = decay
        self.pool: Callable[[Tensor], Tensor] | None = None
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("std", torch.ones(shape, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, batch: Tensor) -> None:
        """Update the statistics with the samples ``batch`` ``[B, *shape]``, without synchronisation with the device."""
        if self.pool is None and batch.shape[0] == 0:
            return
        count, batch_mean, batch_var = self._moments(batch.double())
        if self.decay is None:
            self.count.add_(count)
            weight = count / self.count.clamp_min(1.0)
        else:
            # count is the total weight of all batches so far; dividing by it corrects the bias of the decayed mean
            known = self.count * self.decay + (1 - self.decay)
            weight = torch.where(count > 0, (1 - self.decay) / known, 0.0)
            self.count.copy_(torch.where(count > 0, known, self.count))
        var = self.std.square()
        # merge two distributions with the shares 1 - weight and weight
        delta = batch_mean - self.mean
        var = var + weight * (batch_var - var) + weight * (1 - weight) * delta.square()
        self.mean.add_(weight * delta)
        least = (1e-7 * self.mean.abs()).clamp_min(1e-8)
        self.std.copy_(torch.maximum(var.sqrt(), least))

    def _moments(self, batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the count, mean and variance over the ``batch`` of every process combined."""
        count = batch.new_full((1,), batch.shape[0])
        if (pool := self.pool) is None:
            return count[0], batch.mean(0), batch.var(0, unbiased=False)
        sums = pool(torch.cat([count, batch.sum(0).flatten()]))
        rows = sums[0].clamp_min(1.0)
        mean = (sums[1:] / rows).view(batch.shape[1:])
        return sums[0], mean, pool((batch - mean).square().sum(0)) / rows

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"pool": None}


class ObservationNormalizer(nn.Module):
    """Standardises the float Boxes of observations by running moments, and clips them to ±10.

    The moments describe training data. They are updated after each update of the weights, so that acting and
    training use the same moments within an iteration. All other leaves stay unchanged, and so do fields of a Dict that
    the space does not name. Observations are not changed in place.

    Args:
        space: A float Box, or a Dict or Tuple that contains one; see :func:`can_normalize`.
        exclude: Fields of the outermost Dict that stay as they are, such as the action mask.
    """

    clip = 10.0

    def __init__(self, space: Space, exclude: tuple[str, ...] = ()) -> None:
        super().__init__()
        parts = {key: part for key, part in _parts(space, exclude).items() if can_normalize(part)}
        self.moments = RunningMoments(space.shape) if isinstance(space, spaces.Box) else None
        self.keys = tuple(parts)
        self.parts = nn.ModuleList(map(ObservationNormalizer, parts.values()))

    def forward(self, obs: Tree) -> Tree:
        moments = self.moments
        if moments is not None:
            return ((obs - moments.mean.float()) / moments.std.float()).clamp(-self.clip, self.clip)
        changed = {key: part(obs[key]) for key, part in zip(self.keys, self.parts, strict=True)}
        if isinstance(obs, Mapping):
            return {**obs, **changed}
        return tuple(changed.get(i, part) for i, part in enumerate(obs))

    def update(self, obs: Tree) -> None:
        """Update the moments with observations ``[B, ...]``."""
        if self.moments is not None:
            self.moments.update(obs)
        for key, part in zip(self.keys, self.parts, strict=True):
            part.update(obs[key])  # type: ignore[operator]  # an ObservationNormalizer


def can_normalize(space: Space, exclude: tuple[str, ...] = ()) -> bool:
    """Return whether ``space`` is or contains a float Box, outside the fields ``exclude``."""
    return _is_float_box(space) or any(map(can_normalize, _parts(space, exclude).values()))


def _is_float_box(space: Space) -> bool:
    return isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind == "f"


def _parts(space: Space, exclude: tuple[str, ...]) -> dict[Any, Space]:
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return {}
    return {key: part for key, part in space_parts(space).items() if key not in exclude}
