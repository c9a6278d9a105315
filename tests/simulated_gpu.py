"""A GPU whose tensors lie in the CPU's memory: whole algorithms learn there on machines without a GPU.

It refuses what a GPU refuses, to mix its tensors with those of the CPU, and lists what would make the CPU wait for it.
Its device is called "meta". Torch's own tensors of that device have no numbers; these have.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

CPU, GPU = torch.device("cpu"), torch.device("meta")
ROOT = Path(__file__).parents[1]
PACKAGES = tuple(str(ROOT / name) for name in ("catalog", "rlmodule", "algorithms"))

PINNED = ("rlmodule/data/device.py", "catalog/encoders/noisy.py")
"""Files that copy to a real GPU by way of pinned memory, without waiting."""
READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal"}
"""Operations whose result the CPU needs."""


class OnGPU(Tensor):
    """A tensor of the simulated GPU. ``numbers`` is a tensor on the CPU with the same values."""

    numbers: Tensor
    gpu: SimulatedGPU

    @staticmethod
    def __new__(cls, numbers: Tensor, gpu: SimulatedGPU) -> OnGPU:
        layout = {"strides": numbers.stride(), "storage_offset": numbers.storage_offset(), "dtype": numbers.dtype}
        made = Tensor._make_wrapper_subclass(cls, numbers.shape, device=GPU, **layout)
        made.numbers, made.gpu = numbers, gpu
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gpu = next(x.gpu for x in tree_leaves((args, kwargs)) if isinstance(x, OnGPU))
        return gpu.run(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copied: Tensor = self.detach().clone()
        if isinstance(self, nn.Parameter):
            copied = nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, tensor: OnGPU) -> None:
        self.numbers = tensor.numbers

    def new_tensor(self, *args: Any, **kwargs: Any) -> Tensor:
        self.gpu.waits_for("new_tensor")
        return OnGPU(self.numbers.new_tensor(*args, **kwargs), self.gpu)

    def tolist(self) -> Any:
        self.gpu.waits_for("tolist")
        return self.numbers.tolist()


class SimulatedGPU(TorchDispatchMode):
    """While this mode is on, the device "meta" computes.

    Attributes:
        waits: What would have made the CPU wait for a GPU within :meth:`watched`: operations, and the lines that called
            them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self._is_watched = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    @contextmanager
    def watched(self) -> Iterator[None]:
        before, self._is_watched = self._is_watched, True
        try:
            yield
        finally:
            self._is_watched = before

    def waits_for(self, operation: str) -> None:
        if self._is_watched:
            caller = [frame for frame in traceback.extract_stack() if frame.filename.startswith(PACKAGES)][-1]
            if not caller.filename.endswith(PINNED):
                self.waits.append(f"{operation} in {caller.filename.removeprefix(str(ROOT))}: {caller.line}")

    def run(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Return what ``func`` returns, computed on the CPU."""
        name = func.overloadpacket.__name__
        leaves = tree_leaves((args, kwargs))
        here = [x for x in leaves if isinstance(x, OnGPU)]
        on_cpu = [x for x in leaves if isinstance(x, Tensor) and not isinstance(x, OnGPU)]
        device = kwargs.get("device")
        results_here = bool(here) if device is None else torch.device(device) == GPU
        if not here and not results_here:
            return func(*args, **kwargs)
        if here and name not in ("_to_copy", "copy_") and any(x.dim() for x in on_cpu):
            raise RuntimeError(f"{func}: expected all tensors on one device, got some on the GPU, some on the CPU")
        if kwargs.get("generator") is not None:
            raise RuntimeError(f"{func}: expected a generator of the GPU, got one of the CPU")
        self._note_waits(name, args, results_here)
        values, settings = tree_map(lambda x: x.numbers if isinstance(x, OnGPU) else x, (args, dict(kwargs)))
        if device is not None:
            settings["device"] = CPU
        result = func(*values, **settings)
        if name == "_to_copy" and result is values[0]:
            result = result.clone()  # devices share no memory
        known = {id(x.numbers): x for x in here} | {id(x): x for x in on_cpu}

        def made(x: Any) -> Any:
            return known.get(id(x), OnGPU(x, self) if results_here else x) if isinstance(x, Tensor) else x

        return tree_map(made, result)

    def _note_waits(self, name: str, args: tuple[Any, ...], results_here: bool) -> None:
        source = args[1] if name == "copy_" else args[0] if args else None
        masks = [x for x in tree_leaves(args[1:2]) if isinstance(x, Tensor) and x.dtype == torch.bool]
        leaves_gpu = name in ("_to_copy", "copy_") and isinstance(source, OnGPU) and not results_here
        enters_gpu = name in ("_to_copy", "copy_") and type(source) is Tensor and results_here
        if name in READS or leaves_gpu or enters_gpu or (name in ("index", "index_put_") and masks):
            self.waits_for(name)


def made_there(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return ``torch.tensor`` or ``torch.as_tensor`` so that it reaches the simulated GPU, which it would pass by."""

    def made(*args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        on_cpu = make(*args, **kwargs)
        return on_cpu if device is None else on_cpu.to(device)

    return made


@pytest.fixture
def simulated_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimulatedGPU]:
    """A simulated GPU on which learners with ``num_gpus_per_learner=1`` learn."""
    for place in ("rlmodule.learning.learner", "algorithms.actor_critic", "algorithms.ppo.learner"):
        monkeypatch.setattr(f"{place}.learner_device", lambda settings: GPU if settings.num_gpus_per_learner else CPU)
    for name in ("tensor", "as_tensor"):
        monkeypatch.setattr(torch, name, made_there(getattr(torch, name)))
    monkeypatch.setattr("torch.__future__.get_overwrite_module_params_on_conversion", lambda: True)
    with SimulatedGPU() as gpu:
        yield gpu
