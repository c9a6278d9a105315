"""Stateless preprocessing inside the net, and the running statistics that live in it as buffers."""

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor, nn

from catalog.base import Tree


def one_hot_dim(space: spaces.Discrete | spaces.MultiDiscrete) -> int:
    """Width of the one-hot code of ``space``."""
    return int(space.n) if isinstance(space, spaces.Discrete) else int(np.sum(space.nvec))


class OneHot(nn.Module):
    """One-hot code of a Discrete ``[...]`` or of each part of a MultiDiscrete ``[..., *shape]``.

    Gives float32 ``[..., width]``. Does not look for values outside the space.
    """

    shift: Tensor

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete) -> None:
        super().__init__()
        if isinstance(space, spaces.Discrete):
            start, nvec, self.rank = np.array([space.start]), np.array([space.n]), 0
        else:
            start, nvec, self.rank = space.start.reshape(-1), space.nvec.reshape(-1), len(space.shape)
        offsets = np.concatenate([[0], np.cumsum(nvec)[:-1]])
        self.width = int(nvec.sum())
        self.register_buffer("shift", torch.as_tensor(offsets - start, dtype=torch.int64), persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        parts = (obs.flatten(-self.rank) if self.rank else obs.unsqueeze(-1)).long() + self.shift
        code = torch.zeros(*parts.shape[:-1], self.width, device=obs.device)
        return code.scatter_(-1, parts, 1.0)


class RunningMoments(nn.Module):
    """Mean and standard deviation (never below 1e-4) of a stream, as buffers.

    They are updated in place, so that every module sharing them sees the change.

    Args:
        shape: Shape of one sample.
        decay: None weighs every sample ever seen alike (merge of Chan et al. 1979, eq. 2.1). Otherwise the weight that
            all earlier batches keep when a new one comes, with the start corrected for, so that a moving target
            such as the return is followed.
    """

    mean: Tensor
    std: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...] = (), decay: float | None = None) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("std", torch.ones(shape))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, batch: Tensor) -> None:
        """Take in ``batch`` ``[B, *shape]``; an empty one changes nothing."""
        if batch.shape[0] == 0:
            return
        batch = batch.double()
        batch_mean, batch_var = batch.mean(0), batch.var(0, unbiased=False)
        if self.decay is None:
            weight = batch.shape[0] / (self.count + batch.shape[0])
            self.count.add_(batch.shape[0])
        else:
            # count holds the summed weight of all batches so far: the bias correction of a decayed mean
            self.count.mul_(self.decay).add_(1 - self.decay)
            weight = (1 - self.decay) / self.count
        mean, var = self.mean.double(), self.std.double().square()
        delta = batch_mean - mean
        var = var + weight * (batch_var - var) + weight * (1 - weight) * delta.square()
        self.std.copy_(var.sqrt().clamp_min(1e-4))
        self.mean.copy_(mean + weight * delta)


class ObservationNormalizer(nn.Module):
    """Standardises a float Box observation with running moments and clips it to ±10.

    The moments are those of the data trained on, taken in after each update, so that acting and training see the
    same numbers within an iteration.
    """

    clip = 10.0

    def __init__(self, space: spaces.Box) -> None:
        super().__init__()
        self.moments = RunningMoments(space.shape)
        self.rank = len(space.shape)

    def forward(self, obs: Tree) -> Tree:
        return ((obs - self.moments.mean) / self.moments.std).clamp(-self.clip, self.clip)

    def update(self, obs: Tree) -> None:
        """Take in observations ``[B, *shape]``."""
        self.moments.update(obs)


def can_normalize(space: Space) -> bool:
    """Whether :class:`ObservationNormalizer` applies: a Box of floats."""
    return isinstance(space, spaces.Box) and space.dtype is not None and space.dtype.kind == "f"
