"""Modules tried on two observations when a learner gets them, so that a wrong shape is found before anything trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import tree
from torch import Tensor

from catalog.base import Tree
from catalog.encoders.shape_checks import tried, untouched
from catalog.spaces import zero_batch
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import map_leaves
from rlmodule.data.sequences import flatten_sequences
from rlmodule.modules.apis import QNetAPI, ValueFunctionAPI
from rlmodule.modules.recurrent import embeddings_of, initial_states, state_out_of
from rlmodule.modules.rl_module import RLModule

ROWS = 2
"""Of one row a lost batch dim would not show: it broadcasts."""


def check_module(module: RLModule) -> None:
    """Check that every pass of ``module`` returns the columns and shapes that runners and learners read.

    Modes, buffers and torch's random state stay as they were. A training pass that reads columns of a train batch other
    than observations is not tried.

    Raises:
        ValueError: If a pass does not take observations of the space, changes them in place, lacks a column or returns
            one of another shape; or if the initial state holds anything but tensors, dicts and tuples. Names the pass.
    """
    stateful = module.is_stateful()
    if stateful:
        _check_state(module)
    gpus = {p.device for p in module.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=gpus), untouched(module):
        for forward in (module.forward_inference, module.forward_exploration):
            batch = probe_batch(module, 1)
            where, out = _called(module, forward, batch)
            _check_inputs(module, where, batch, out)
            if stateful:
                _check_next_state(where, batch, state_out_of(module, out))
        try:
            _try_training(module, probe_batch(module, min(3, module.max_seq_len)))
        except ValueError as error:
            if not isinstance(error.__cause__, KeyError):  # of a column that only a train batch has
                raise


def probe_batch(module: RLModule, steps: int) -> dict[str, Tree]:
    """Two observations in which every action is allowed; for a recurrent module two sequences of ``steps``."""
    leading = (steps, ROWS) if module.is_stateful() else (ROWS,)
    obs = zero_batch(module.input_space, leading)
    if module.action_mask is not None:
        env_part, key = module.env_part(obs), module.action_mask.key
        env_part[key] = tree.map_structure(torch.ones_like, env_part[key])
    device = next(module.parameters(), torch.empty(0)).device
    batch: dict[str, Tree] = {Columns.OBS: map_leaves(lambda x: x.to(device), obs)}
    if module.is_stateful():
        starts = torch.zeros(leading, dtype=torch.bool, device=device)
        batch |= {Columns.STARTS: starts, Columns.STATE_IN: initial_states(module, ROWS)}
    return batch


def _try_training(module: RLModule, batch: dict[str, Tree]) -> None:
    where, out = _called(module, module.forward_train, batch)
    if not (isinstance(module, QNetAPI) and isinstance(out, Mapping) and Columns.EMBEDDINGS in out):
        _check_inputs(module, where, batch, out)
    if module.is_stateful() and Columns.STATE_OUT in out:
        _check_next_state(where, batch, out[Columns.STATE_OUT])
    if not isinstance(module, ValueFunctionAPI | QNetAPI):
        return
    rows, given = batch, [out.get(Columns.EMBEDDINGS), None]
    if module.is_stateful():
        rows = flatten_sequences(batch, None)
        given = [map_leaves(lambda x: x.flatten(0, 1), embeddings_of(module, out))]
    count = len(tree.flatten(rows[Columns.OBS])[0])
    for embeddings in given:
        if isinstance(module, ValueFunctionAPI):
            where, values = _called(module, module.compute_values, rows, embeddings)
            remedy = "Return one number for each row: squeeze(-1) drops a last dim of 1."
            _check_shape(f"{where} of {count} rows", values, (count,), remedy)
        if isinstance(module, QNetAPI):
            where, values = _called(module, module.compute_q_values, rows, embeddings)
            _check_shape(
                f"{where} of {count} rows", values, (count, _width(module)), "Return one value for each action."
            )


def _called(module: RLModule, method: Callable[..., Any], batch: dict[str, Tree], *args: Any) -> tuple[str, Any]:
    """What ``method`` is called in messages, and what it makes of a copy of ``batch``."""
    where = f"{type(module).__name__}.{method.__name__}()"
    takes = f"a method that takes {', '.join(batch)} of {ROWS} observations, or of {ROWS} sequences if there is a state"
    remedy = "They come as batches of tensors, in the structure and the dtypes of the space."
    return where, tried(lambda: method(dict(batch), *args), batch[Columns.OBS], where, takes, remedy)


def _width(module: RLModule) -> int:
    return module.action_dist_cls.required_input_dim(module.action_space)


def _check_inputs(module: RLModule, where: str, batch: Mapping[str, Tree], out: Any) -> None:
    """Check that ``out`` is a dict with the inputs of the action distribution."""
    column = Columns.ACTION_DIST_INPUTS
    if not isinstance(out, Mapping) or column not in out:
        got = f"one with {', '.join(out) or 'none'}" if isinstance(out, Mapping) else f"a {type(out).__name__}"
        raise ValueError(
            f"{where}: expected a dict with the column {column!r}, got {got}. Return "
            "{Columns.ACTION_DIST_INPUTS: inputs}."
        )
    leading = batch[Columns.STARTS].shape if module.is_stateful() else (ROWS,)
    dist, width = module.action_dist_cls.__name__, _width(module)
    remedy = f"{dist} takes {width} inputs for an action of {module.action_space}, and leading dims are kept."
    _check_shape(f"{where}[{column!r}] of {ROWS} observations", out[column], (*leading, width), remedy)


def _check_shape(where: str, found: Any, shape: tuple[int, ...], remedy: str) -> None:
    if not isinstance(found, Tensor) or tuple(found.shape) != shape or not found.is_floating_point():
        got = f"{found.dtype} of shape {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"{where}: expected floats of shape {shape}, got {got}. {remedy}")


def _check_state(module: RLModule) -> None:
    """Check that the initial state is made of what rollouts hold."""
    parts = [module.get_initial_state()]
    for part in parts:  # which grows by what is nested
        if isinstance(part, dict | tuple):
            parts += part.values() if isinstance(part, dict) else part
        elif not isinstance(part, Tensor):
            raise ValueError(
                f"{type(module).__name__}.get_initial_state(): expected a tensor, or dicts and "
                f"tuples of them, got a {type(part).__name__} in it. Return a tuple for a list, "
                "and a tensor such as torch.zeros(64) for each part."
            )


def _check_next_state(where: str, batch: Mapping[str, Tree], state: Tree) -> None:
    """Check that the next state can take the place of the one before."""
    before, after = (
        tree.map_structure(lambda x: (tuple(x.shape), x.dtype), x) for x in (batch[Columns.STATE_IN], state)
    )
    if before != after:
        raise ValueError(
            f"{where}[{Columns.STATE_OUT!r}]: expected {before}, as in state_in, got {after}. "
            "Return the states after the last row, [B, ...], in the structure of "
            "batch['state_in']."
        )
