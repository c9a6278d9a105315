"""Random draws that depend on who draws what, and not on how often anybody has drawn before.

With them, code that only consumes a random number changes nothing: what two runs draw after it is the same.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

PACKAGES = ("catalog", "rlmodule", "algorithms")
METHODS = (
    *("random", "integers", "choice", "permutation", "permuted", "shuffle", "uniform", "normal", "standard_normal"),
    *("exponential", "standard_exponential", "gumbel", "beta", "gamma", "standard_gamma", "binomial", "poisson"),
)


def _key(identity: object, method: str, *arguments: object) -> int:
    """Return a seed for the draw: it names the stream, the function that draws, the line, and the shape."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] not in PACKAGES:
        frame = frame.f_back
    place = "" if frame is None else f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}"
    shapes = [tuple(x.shape) if isinstance(x, torch.Tensor | np.ndarray) else repr(x)[:80] for x in arguments]
    return zlib.crc32(repr((identity, place, method, shapes)).encode())


class SteadyGenerator(np.random.Generator):
    """A generator whose draws depend on its seed, the line that draws, and the arguments."""

    def __init__(self, bits: Any) -> None:
        super().__init__(bits)
        self._identity = repr(bits.state)


def _steady(method: str) -> Callable[..., Any]:
    def draw(self: SteadyGenerator, *args: Any, **kwargs: Any) -> Any:
        fresh = np.random.Generator(np.random.PCG64(_key(self._identity, method, *args, *kwargs.values())))
        return getattr(fresh, method)(*args, **kwargs)

    return draw


for _name in METHODS:
    setattr(SteadyGenerator, _name, _steady(_name))


class SteadyDraws(TorchFunctionMode):
    """Makes each torch function that takes a generator draw numbers that depend on the generator's first seed, the line
    that draws, and the shapes."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        generator = kwargs.get("generator")
        if not isinstance(generator, torch.Generator):
            return func(*args, **kwargs)
        rest = [value for name, value in kwargs.items() if name != "generator"]
        name = getattr(func, "__name__", "")
        fresh = torch.Generator(generator.device)
        fresh.manual_seed(_key(generator.initial_seed(), name, *args, *rest))
        return func(*args, **{**kwargs, "generator": fresh})


@contextmanager
def steady_draws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Within the block, draws do not depend on how often anybody has drawn."""

    def default_rng(seed: Any = None) -> np.random.Generator:
        return SteadyGenerator(np.random.PCG64(seed))

    with monkeypatch.context() as patch, SteadyDraws():
        patch.setattr(np.random, "default_rng", default_rng)
        yield
