"""The device of a learner, and its gradient pass, which computes the loss and gradient of a minibatch. The pass may be
compiled or captured in a CUDA graph."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
import tree
from torch import Tensor

from rlmodule.data.columns import Batch
from rlmodule.data.rollout import map_leaves
from rlmodule.learning.flat_optimizer import FlatParameters
from rlmodule.learning.reports import Metrics
from rlmodule.settings import LearnerSettings

if TYPE_CHECKING:
    from rlmodule.learning.learner import Learner

GradientPass = Callable[[Batch], tuple[Tensor, Metrics]]
"""Returns the loss and metrics of a minibatch, and stores the gradient of the loss in ``grad`` of the parameters."""

logger = logging.getLogger("rlmodule.learning.compilation")

# Maximum number of minibatch shapes that are compiled or captured: those of full minibatches and of a smaller last
# minibatch.
_MOST_SHAPES = 2
# Number of consecutive minibatches with new shapes after which compiling and capturing are given up.
_MOST_UNLIKE = 64
# Maximum number of graphs that may be discarded because a value that they froze has changed. After the next one,
# capturing is given up.
_MOST_RECAPTURES = 8
# Number of trial runs before a capture, as torch recommends.
_WARM_UP = 3
_STOPPED = "%s: the loss of module %r does not use it: %s"


def learner_device(settings: LearnerSettings) -> torch.device:
    """Return torch's current GPU if the settings assign a GPU to the learner, otherwise the CPU.

    Raises:
        ValueError: If the settings assign a GPU that torch cannot use.
    """
    if not settings.num_gpus_per_learner:
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    cuda = torch.version.cuda
    built = f"built for CUDA {cuda}, which finds none here" if cuda else "built without CUDA"
    raise ValueError(
        "num_gpus_per_learner: expected a GPU that torch can use, since it is "
        f"{settings.num_gpus_per_learner}, got torch {torch.__version__}, {built}. Set it to 0, or "
        "install torch for CUDA where the driver lists a GPU (nvidia-smi)."
    )


def gradient_pass(learner: Learner, module_id: str) -> GradientPass:
    """Return the gradient pass of one module. The settings of ``learner`` determine whether it uses autocast, and
    whether it is compiled or captured."""
    settings, parameters = learner.settings, learner.parameters[module_id]
    kind = parameters.grad.device.type

    def compute(batch: Batch) -> tuple[Tensor, Metrics]:
        return learner.compute_total_loss(module_id, *learner.forward_rows(module_id, batch))

    def compute_in_bfloat16(batch: Batch) -> tuple[Tensor, Metrics]:
        # no cache: a graph must not record weights that autocast cached
        with torch.autocast(kind, torch.bfloat16, cache_enabled=False):
            rows, fwd_out = learner.forward_rows(module_id, batch)
            loss, metrics = learner.compute_total_loss(module_id, rows, _widened(fwd_out))
        return loss.float(), _widened(metrics)

    chosen = compute if settings.torch_autocast is None else compute_in_bfloat16
    if settings.torch_compile_learner or settings.torch_cuda_graphs:
        return _Accelerated(learner, module_id, chosen)
    return partial(_differentiate, chosen, parameters)


def _differentiate(compute: GradientPass, parameters: FlatParameters, batch: Batch) -> tuple[Tensor, Metrics]:
    loss, metrics = compute(batch)
    parameters.zero_grad()
    loss.backward()
    return loss, metrics


def _widened(tensors: Any) -> Any:
    """Return a tree of tensors with 16-bit floats converted to float32, because distributions and losses need its
    precision."""
    if isinstance(tensors, Tensor):
        return tensors.float() if tensors.dtype in (torch.bfloat16, torch.float16) else tensors
    if isinstance(tensors, Mapping):
        return {name: _widened(part) for name, part in tensors.items()}
    return tuple(map(_widened, tensors)) if isinstance(tensors, tuple) else tensors


class _Accelerated:
    """A gradient pass that is compiled, captured in a CUDA graph, or both.

    The first minibatch of each shape, and all minibatches of rare shapes, run as ordinary PyTorch code. If compiling
    fails, the reason is logged once and all later minibatches run uncompiled. The same holds for capturing, unless the
    recording itself fails, which raises RuntimeError.

    Args:
        learner: The learner. Its settings determine whether the pass is compiled, captured, or both.
        module_id: Id of the module.
        compute: Returns the loss and the metrics of a minibatch, without a backward pass.
    """

    def __init__(self, learner: Learner, module_id: str, compute: GradientPass) -> None:
        self._module_id, self._module = module_id, learner.module[module_id]
        parameters, settings = learner.parameters[module_id], learner.settings
        self._plain = self._fast = partial(_differentiate, compute, parameters)
        self._compiles, self._captures = settings.torch_compile_learner, settings.torch_cuda_graphs
        self._seen: dict[Any, int] = {}
        self._unlike = 0
        self._learner = learner
        self._reads: set[str] = set()  # names of the learner's attributes
        self._graphs: dict[Any, _Graph] = {}
        self._recaptures = 0
        if self._captures and (kind := parameters.grad.device.type) != "cuda":
            self._stop_capturing(f"the learner computes on the {kind.upper()}")
        if self._compiles and self._module.is_stateful():
            self._stop_compiling("the module is recurrent, and each of its steps would be compiled separately")
        if self._compiles:
            self._fast = partial(_differentiate, _compiled(compute), parameters)

    def __call__(self, batch: Batch) -> tuple[Tensor, Metrics]:
        if not (self._compiles or self._captures):
            return self._plain(batch)
        # the loss may depend on the parts that this step updates, so each choice of them counts as another shape
        shape = (self._learner.stepping[self._module_id], *((x.shape, x.dtype) for x in tree.flatten(batch)))
        times = self._count(shape)
        if times == 0:
            return self._first(batch)
        if self._compiles and (times == 1 or not self._captures):
            return self._run_compiled(batch, is_first=times == 1)
        return self._replay(shape, batch)

    def _count(self, shape: Any) -> int:
        """Return how many earlier minibatches had ``shape``. Also return 0 if as many other shapes as allowed are
        already compiled or captured. Count this minibatch."""
        times = self._seen.pop(shape, 0)
        once = [other for other, count in self._seen.items() if count == 1]
        if times == 1 and len(self._seen) - len(once) >= _MOST_SHAPES:
            times = 0
        if times == 0 and len(once) >= _MOST_UNLIKE:
            del self._seen[once[0]]
        self._seen[shape] = times + 1
        self._unlike = 0 if times else self._unlike + 1
        return times

    def _first(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Run a minibatch of a new shape as ordinary PyTorch code. If capturing is on, note which attributes of the
        learner the loss reads, and stop capturing if the loss changes an attribute."""
        if self._unlike == _MOST_UNLIKE:
            reason = f"{_MOST_UNLIKE} minibatches in a row were each of another shape"
            self._stop_compiling(reason)
            self._stop_capturing(reason)
        if not self._captures:
            return self._plain(batch)
        before = _plain_values(self._learner)
        with _noting_reads(self._learner, self._reads):
            result = self._plain(batch)
        kept = vars(self._learner)
        if changed := [name for name, value in before.items() if kept.get(name) != value]:
            self._stop_capturing(f"it changes {_of_learner(changed)}, which replaying a graph would not")
        return result

    def _run_compiled(self, batch: Batch, *, is_first: bool) -> tuple[Tensor, Metrics]:
        # a failed attempt may have updated running statistics already
        kept = [(buffer, buffer.clone()) for buffer in self._module.buffers()] if is_first else []
        try:
            return self._fast(batch)
        except Exception as error:
            self._stop_compiling(_reason(error))
            _put_back(kept)
            return self._plain(batch)  # raises again if compiling was not the cause

    def _replay(self, shape: Any, batch: Batch) -> tuple[Tensor, Metrics]:
        # A graph of the loss freezes the values of the learner's attributes, and the addresses of its tensors.
        found, graph = _plain_values(self._learner), self._graphs.get(shape)
        found |= {name: x.data_ptr() for name, x in vars(self._learner).items() if isinstance(x, Tensor)}
        values = {name: found[name] for name in self._reads & found.keys()}
        if graph is None or graph.values != values:
            graph = self._capture(shape, batch, values)
        return self._plain(batch) if graph is None else graph.replay(batch)

    def _capture(self, shape: Any, batch: Batch, values: dict[str, Any]) -> _Graph | None:
        """Capture and return a graph for minibatches of ``shape``, which freezes the ``values`` of the learner's
        attributes. If that is impossible, stop capturing and return None.

        Raises:
            RuntimeError: If the capture fails although the trial runs succeeded. Torch may be unusable in this process
                afterwards.
        """
        if self._graphs.pop(shape, None) is not None:
            self._recaptures += 1
        if self._recaptures > _MOST_RECAPTURES:
            names = _of_learner(sorted(self._reads & _plain_values(self._learner).keys()))
            self._stop_capturing(f"it reads {names}, of which one keeps changing (see Coefficient)")
            return None
        # the trial runs update running statistics, which only real minibatches may do
        kept = [(buffer, buffer.clone()) for buffer in self._module.buffers()]
        try:
            graph = _Graph(self._fast, batch, values)
        except Exception as error:
            self._stop_capturing(_reason(error))
            return None
        finally:
            _put_back(kept)
        try:
            graph.capture()
        except Exception as error:
            raise RuntimeError(
                f"the loss of module {self._module_id!r}: expected operations that a CUDA graph can record, "
                f"got {_reason(error)}. Learn with torch_cuda_graphs=False."
            ) from error
        self._graphs[shape] = graph
        return graph

    def _stop_compiling(self, reason: str) -> None:
        if self._compiles:
            self._compiles, self._fast = False, self._plain
            logger.warning(_STOPPED, "torch_compile_learner", self._module_id, reason)

    def _stop_capturing(self, reason: str) -> None:
        if self._captures:
            self._captures = False
            self._graphs.clear()
            logger.warning(_STOPPED, "torch_cuda_graphs", self._module_id, reason)


def _put_back(kept: list[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for buffer, value in kept:
            buffer.copy_(value)


class _Graph:
    """A CUDA graph of a gradient pass, for minibatches of one shape. The constructor only does trial runs. Call
    :meth:`capture` once and then :meth:`replay`.

    Args:
        run: The gradient pass.
        batch: A minibatch of that shape, for the trial runs and the capture.
        values: Values of the learner's attributes at the time of the capture, which the graph freezes. The graph must
            not be replayed once one of them has changed.

    Raises:
        Exception: If a trial run fails, for example because an operation waits for the device.
    """

    def __init__(self, run: GradientPass, batch: Batch, values: dict[str, Any]) -> None:
        self.values, self._run = values, run
        self._inputs = [x.clone() for x in tree.flatten(batch)]
        self._batch: Any = tree.unflatten_as(batch, self._inputs)
        gc.collect()  # an attempt to compile leaves cycles behind, whose autograd nodes are bound to another stream
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
        aside.wait_stream(here)
        try:
            with (
                torch.random.fork_rng(devices=[torch.cuda.current_device()]),
                torch.cuda.stream(aside),
                waiting_is_an_error(),
            ):
                for _ in range(_WARM_UP):
                    run(self._batch)
        finally:  # even if a run failed
            here.wait_stream(aside)

    def capture(self) -> None:
        """Record the gradient pass for the constructor's ``batch`` as a graph."""
        self._graph = torch.cuda.CUDAGraph()
        # "thread_local": other threads, such as those of NCCL, may use the device meanwhile
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            loss, metrics = self._run(self._batch)
            self._loss, self._metrics = map_leaves(Tensor.detach, (loss, metrics))

    def replay(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Run the graph on ``batch``. Return copies of the loss and the metrics, because the next replay overwrites the
        originals."""
        torch._foreach_copy_(self._inputs, tree.flatten(batch))  # pyright: ignore[reportPrivateImportUsage]
        self._graph.replay()
        return map_leaves(Tensor.clone, (self._loss, self._metrics))


@contextmanager
def _noting_reads(owner: object, names: set[str]) -> Iterator[None]:
    """Add to ``names`` the name of every attribute of ``owner`` that is read within the block."""
    cls: Any = type(owner)

    def note(self: Any, name: str) -> Any:
        names.add(name)
        return object.__getattribute__(self, name)

    owner.__class__ = type(cls)(cls.__name__, (cls,), {"__slots__": (), "__getattribute__": note})
    try:
        yield
    finally:
        owner.__class__ = cls


def _plain_values(owner: object) -> dict[str, Any]:
    """Return the numbers, strings and None among the attributes of ``owner`` by name. A graph would freeze these
    values."""
    return {name: x for name, x in vars(owner).items() if isinstance(x, int | float | str | None)}


def _of_learner(names: list[str]) -> str:
    return ", ".join(f"learner.{name}" for name in names)


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _compiled(compute: GradientPass) -> GradientPass:
    """Return a compiled copy of the function ``compute``. The copy has its own code object, because torch caches
    compiled code by code object and all learners would otherwise share one cache."""
    assert isinstance(compute, FunctionType)
    own: Any = FunctionType(compute.__code__.replace(), compute.__globals__, closure=compute.__closure__)
    return torch.compile(own, dynamic=False, fullgraph=True)


@contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """Within the block, make every operation that waits for the GPU raise an error."""
    before = torch.cuda.get_sync_debug_mode()
    try:
        with warnings.catch_warnings():  # torch warns that this mode, a prototype, misses some waits
            warnings.filterwarnings("ignore", "Synchronization debug mode")
            torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
