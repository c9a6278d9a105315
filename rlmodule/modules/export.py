"""Export a policy as a graph with flat, named input and output tensors, in ONNX or as a ``torch.export`` program.

The graph computes everything from the env's observation to the action, and its metadata describe both::

    obs.<path>, state.<path>, starts, prev_reward, noise  →  action.<path>, dist_inputs, next_state.<path>
"""

from __future__ import annotations

import copy
import json
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tree
from torch import Tensor, nn

from catalog.actions.masks import MASKED
from catalog.base import Tree
from catalog.distributions.autoregressive import AutoregressiveDistribution
from catalog.distributions.base import Distribution
from catalog.distributions.nested import MultiDistribution, noise_width
from catalog.past import PREV_REWARD
from catalog.spaces import kept_dtype
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import map_leaves
from rlmodule.encoding import encode
from rlmodule.modules.acting import ActingStep, most_likely
from rlmodule.modules.apis import NoisyNetAPI
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.sealed_folder import StrPath

METADATA = "catalog_rl"
"""Key under which the file's metadata contain the description of the graph, as JSON."""
TOLERANCE = 1e-5
"""Largest allowed difference between an output of the graph and that of the policy, relative to the largest number of
the output, or to 1 if that is less."""
BATCHES = (3, 1, 7)
"""Sizes of the batches on which a graph is compared with the policy. The graph is traced with the first size."""

Run = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Runs a graph: maps its input tensors to its output tensors, each in the order of their names."""


def export_policy(module: RLModule, path: StrPath, *, explore: bool = False) -> Path:
    """Write the policy of ``module`` as a graph to the file ``path``, and return ``path``. Raise ValueError instead if
    the graph's outputs differ from the policy's; see :meth:`Policy.export`."""
    path, formats = Path(path), {".onnx": _as_onnx, ".pt2": _as_program}
    if path.suffix not in formats:
        raise ValueError(
            f"Policy.export({str(path)!r}): expected a name that ends with {' or '.join(formats)}, got {path.name!r}. "
            "Choose the format by the name: .onnx for onnxruntime, .pt2 for torch.export.load()."
        )
    with torch.no_grad():
        graph = ActingGraph(RLModuleSpec.of(module).build_with(module.get_state()), explore)
        content, run = formats[path.suffix](_traced(graph), graph)
        _verify(graph, run, path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise OSError(
            f"Policy.export({str(path)!r}): expected a file to write to, got {error.strerror}. Choose another path."
        ) from error
    return path


class ActingGraph(nn.Module):
    """One step of acting as a torch module that maps a flat list of input tensors to a flat list of output tensors.

    Args:
        module: The module to act with.
        explore: Whether to sample the actions with an additional input ``noise``; False takes the most likely actions.

    Attributes:
        input_names: Names of the inputs, all ``[B, ...]``. Pass the outputs ``next_state.*`` of the previous step as
            ``state.*``. They are ignored in rows where ``starts`` is true because an episode starts there.
        output_names: Names of the outputs.

    Raises:
        ValueError: If ``explore`` is True and the module does not sample its actions from noise that can be an input,
            or if two tensors would have the same name.
    """

    def __init__(self, module: RLModule, explore: bool = False) -> None:
        super().__init__()
        self.module, self.explore, self._step = module, explore, ActingStep(module)
        self.noise = _noise_of_actions(module) if explore else []
        self._like = self._inputs(1, np.random.default_rng(0))
        self.input_names, self.output_names = _names(self._like), _names(self._outputs(self._like))

    def forward(self, *flat: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs, in the order of ``output_names``, for inputs ``flat`` in the order of ``input_names``."""
        return tuple(tree.flatten(self._outputs(self._by_name(flat))))

    def _by_name(self, flat: Sequence[Tensor]) -> dict[str, Tree]:
        given: Any = tree.unflatten_as(self._like, flat)
        return given

    def _outputs(self, given: dict[str, Tree]) -> dict[str, Tree]:
        obs = tree.map_structure(_as_kept, given["obs"])
        starts, rewards = given.get("starts"), given.get("prev_reward")
        choose = partial(_choose, noise=given.get("noise"))
        inputs, actions, memory = self._step(obs, given.get("state", {}), starts, rewards, choose, self.explore)
        return {"action": actions, "dist_inputs": inputs} | ({"next_state": memory} if memory else {})

    def _inputs(self, num: int, rng: np.random.Generator) -> dict[str, Tree]:
        """Return example inputs, as a dict of trees, for ``num`` envs whose episodes start. Observations, rewards and
        noise are random."""
        space = copy.deepcopy(self.module.acting_space)
        space.seed(int(rng.integers(2**31)))
        rows = [space.sample() for _ in range(num)]
        given: dict[str, Tree] = {"obs": tree.map_structure(lambda *x: torch.from_numpy(np.stack(x)), *rows)}
        if self._step.remembers:
            given["state"] = map_leaves(Tensor.clone, self._step.new_memory(num))
            given["starts"] = torch.ones(num, dtype=torch.bool)
        if PREV_REWARD in self._step.past:
            given["prev_reward"] = torch.from_numpy(rng.normal(size=num).astype(np.float32))
        if self.explore:
            dist_cls = self.module.action_dist_cls
            given["noise"] = dist_cls.draw_noise(rng, num, self.module.num_dist_inputs)
        return given

    def examples(self, num: int) -> Iterator[list[Tensor]]:
        """Yield example inputs for three successive steps of ``num`` envs. All episodes start in the first step, and
        some start in the later steps."""
        rng, state = np.random.default_rng(num), None
        for _ in range(3):
            given = self._inputs(num, rng)
            if state is not None:
                given["state"], given["starts"] = state, torch.from_numpy(rng.random(num) < 0.5)
            yield tree.flatten(given)
            state = self._outputs(given).get("next_state")

    def actions_of(self, inputs: Tensor, flat: Sequence[Tensor]) -> list[Tensor]:
        """Return the leaves of the actions of a distribution with the parameters ``inputs`` ``[B, D]``, chosen with the
        noise in the graph's inputs ``flat``, if any."""
        noise = self._by_name(flat).get("noise")
        return tree.flatten(
            self.module.action_converter(_choose(self.module.action_dist_cls.from_logits(inputs), noise))
        )

    def metadata(self) -> dict[str, str]:
        """Return the metadata to store in the exported file: a JSON description of the spaces, inputs, outputs and
        noise under ``METADATA``, for programs that run the graph."""
        inputs = {
            name: {"dtype": str(x.dtype).removeprefix("torch."), "shape": ["batch", *x.shape[1:]]}
            for name, x in zip(self.input_names, tree.flatten(self._like), strict=True)
        }
        about = {
            "format": 1,
            "observation_space": encode(self.module.acting_space),
            "action_space": encode(self.module.action_space),
            "inputs": inputs,
            "outputs": self.output_names,
            "initial_state": "zeros",
            "noise": self.noise,
            "versions": {name: version(name) for name in ("catalog-rl", "torch")},
        }
        return {METADATA: json.dumps(about)}


def _names(tensors: dict[str, Tree]) -> list[str]:
    """Return the names of the leaves of ``tensors``, in the order of the leaves. A name consists of the keys that lead
    to the leaf, joined by dots.

    Raises:
        ValueError: If two leaves have the same name.
    """
    paths = (path for path, _ in tree.flatten_with_path(tensors))
    names = [".".join(str(key) for key in path if key != Columns.STATE_IN) for path in paths]
    if len({*names}) < len(names):
        raise ValueError(
            f"Policy.export(): expected a different name for each tensor, got {', '.join(names)}. Give the fields of "
            "the spaces names without dots."
        )
    return names


def _as_kept(leaf: Tensor) -> Tensor:
    """Convert an observation from the dtype of its space to the dtype that rollouts use for it."""
    dtype = kept_dtype(str(leaf.dtype).removeprefix("torch."))
    return leaf.to(getattr(torch, dtype.name))


def _choose(dist: Distribution, noise: Tensor | None) -> Tree:
    return most_likely(dist) if noise is None else dist.sample_from(noise)


def _noise_of_actions(module: RLModule) -> list[dict[str, Any]]:
    """Return the kind of noise (``"kind"``) and its number of values (``"width"``) for each part of the module's
    actions.

    Raises:
        ValueError: If the module explores in another way, such as with noise in its weights.
    """
    dist_cls, generator = module.action_dist_cls, torch.Generator()
    noise, before = list(_noise_of(dist_cls, module.num_dist_inputs)), generator.get_state()
    if isinstance(module, NoisyNetAPI):
        module.resample_noise(generator)
    in_nets = not torch.equal(before, generator.get_state())
    if in_nets or not all(part["width"] for part in noise):
        got = (
            f"noise in the weights of {type(module).__name__}" if in_nets else f"{dist_cls.__name__}, which takes none"
        )
        raise ValueError(
            f"Policy.export(explore=True): expected actions that are sampled from noise, got {got}. Leave explore out, "
            "to export the most likely actions, or deploy policy.save(folder)."
        )
    return noise


def _noise_of(dist_cls: type[Distribution], width: int) -> Iterator[dict[str, Any]]:
    """Yield a dict for each part of a distribution with ``width`` inputs, in the order of the noise: the ``"kind"`` of
    noise that the part draws (:attr:`Distribution.noise`), and ``"width"``, how many numbers of it."""
    if issubclass(dist_cls, AutoregressiveDistribution):
        yield from _noise_of(dist_cls.independent, dist_cls.width)
    elif issubclass(dist_cls, MultiDistribution):
        for child, inputs in zip(dist_cls.children, dist_cls.widths, strict=True):
            yield from _noise_of(child, inputs)
    else:
        yield {"kind": dist_cls.noise, "width": noise_width(dist_cls, width)}


# --- formats ----------------------------------------------------------------------------------------------------------


def _traced(graph: ActingGraph) -> torch.export.ExportedProgram:
    """Return ``graph`` as a traced program that takes batches of any size.

    Raises:
        ValueError: If the code of the module cannot be traced. The message names the line.
    """
    batch = torch.export.Dim("batch")
    flat = tuple(next(graph.examples(BATCHES[0])))
    try:
        with _quiet():
            # a copy: tracing leaves stand-ins of tensors where a net refers to the parameters of its layers
            return torch.export.export(copy.deepcopy(graph), flat, dynamic_shapes=(tuple({0: batch} for _ in flat),))
    except Exception as error:  # torch.export raises many types
        not_theirs = str(Path(torch.__file__).parent), __file__
        frames = [x for x in traceback.extract_tb(error.__traceback__) if not x.filename.startswith(not_theirs)]
        at = f" in {frames[-1].filename}, line {frames[-1].lineno}" if frames else ""
        raise _not_exported(graph, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}{at}") from error


def _as_onnx(program: torch.export.ExportedProgram, graph: ActingGraph) -> tuple[bytes, Run]:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            import_module(package)
        except ImportError as error:
            raise ImportError(
                f"Policy.export(): expected the package {package}, got none. Run: pip install 'catalog-rl[onnx]'."
            ) from error
    import onnxruntime

    try:
        with _quiet():
            made = torch.onnx.export(
                program,
                input_names=graph.input_names,
                output_names=graph.output_names,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
            assert made is not None
            model = made.model_proto
            content = _stripped(model, graph.metadata())
    except Exception as error:
        raise _not_exported(graph, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}") from error
    try:
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    except Exception as error:
        opset = max(item.version for item in model.opset_import)
        raise ValueError(
            f"Policy.export(): expected an onnxruntime that runs opset {opset}, got {onnxruntime.__version__}: "
            f"{str(error).partition(chr(10))[0]}. Run: pip install -U onnxruntime."
        ) from error

    def run(flat: Sequence[Tensor]) -> list[Tensor]:
        given = {name: x.numpy() for name, x in zip(graph.input_names, flat, strict=True)}
        return [torch.from_numpy(np.asarray(x)) for x in session.run(graph.output_names, given)]

    return content, run


def _stripped(model: Any, metadata: dict[str, str]) -> bytes:
    """Return an ONNX model with ``metadata`` as bytes. Remove the stack traces of the export from the model, which
    would make up most of a small file."""
    graph = model.graph
    for part in (graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    graph.ClearField("value_info")
    for tensor in (*graph.input, *graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_param = "batch"
    for key, value in metadata.items():
        model.metadata_props.add(key=key, value=value)
    return model.SerializeToString()


def _as_program(program: torch.export.ExportedProgram, graph: ActingGraph) -> tuple[bytes, Run]:
    file = BytesIO()
    torch.export.save(program, file, extra_files=graph.metadata())
    loaded = torch.export.load(BytesIO(file.getvalue())).module()
    return file.getvalue(), lambda flat: loaded(*flat)


def _verify(graph: ActingGraph, run: Run, path: Path) -> None:
    """Run an exported graph for several steps on batches of several sizes, and compare its outputs with those of
    ``graph``, which runs the policy itself. ``run`` maps the inputs of the exported graph to its outputs.

    Raises:
        ValueError: If an output differs by more than ``TOLERANCE``. The message names the output and ``path``.
    """
    place = graph.output_names.index("dist_inputs")
    for num in BATCHES:
        for flat in graph.examples(num):
            got, expected = run(flat), [*graph(*flat)]
            # an action may differ where two are equally likely up to rounding, but must follow from the dist_inputs
            expected[:place] = graph.actions_of(got[place], flat)
            for name, mine, theirs in zip(graph.output_names, got, expected, strict=True):
                same = mine.dtype == theirs.dtype and mine.shape == theirs.shape
                # small numbers are rounded as the large ones in their sums; those of masked actions are in no sum
                in_sums = theirs.isfinite() & (theirs != MASKED)
                by = TOLERANCE * float(theirs.double().where(in_sums, 0).abs().max().clamp(min=1))
                if not (same and torch.allclose(mine, theirs, TOLERANCE, by, equal_nan=True)):
                    most = f"{(mine.double() - theirs.double()).abs().max():.2g}" if same else "another shape or dtype"
                    raise ValueError(
                        f"Policy.export({str(path)!r}): expected a graph that returns the same as the policy, got "
                        f"another {name} for a batch of {num} (by {most}). Nothing is written. Deploy "
                        "policy.save(folder) instead, and report this."
                    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the warnings and logs of torch's exporters within the block."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _not_exported(graph: ActingGraph, got: str) -> ValueError:
    return ValueError(
        f"Policy.export(): expected nets of {type(graph.module).__name__} that can be exported for batches of any "
        f"size, got {got}. Use operations of torch on whole batches, without len(), item() or conditions on values, or "
        "deploy policy.save(folder)."
    )
