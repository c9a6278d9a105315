"""Run recurrent modules along sequences: initial states, burn-in, and values of whole rollouts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext

import torch
import tree
from torch import Tensor

from catalog.base import Tree
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import Rollout, map_leaves
from rlmodule.data.sequences import flatten_sequences, over_valid_rows
from rlmodule.modules.apis import QNetAPI, ValueFunctionAPI
from rlmodule.modules.rl_module import RLModule


def initial_states(module: RLModule, num: int) -> Tree:
    """The initial state of a recurrent module for ``num`` sequences, fresh tensors ``[num, ...]``."""
    like = next(module.parameters(), torch.empty(0))  # a module's own zeros may lie elsewhere
    return tree.map_structure(lambda x: x.to(like.device).expand(num, *x.shape).clone(), module.get_initial_state())


def embeddings_of(module: RLModule, fwd_out: Mapping[str, Tree]) -> Tensor:
    """Return the ``embeddings`` that a recurrent module's ``forward_train`` must give, since its values rest on its
    state.

    Raises:
        ValueError: If it did not.
    """
    remedy = "Return the latents that compute_values() makes values of, which depend on the state."
    return _column(f"{type(module).__name__}.forward_train()", fwd_out, Columns.EMBEDDINGS, remedy)


def state_out_of(module: RLModule, fwd_out: Mapping[str, Tree]) -> Tree:
    """Return the next states that a forward pass of a recurrent module must give.

    Raises:
        ValueError: If it did not.
    """
    remedy = "Return the states after the last row, shaped like batch['state_in']."
    return _column(f"a forward pass of {type(module).__name__}", fwd_out, Columns.STATE_OUT, remedy)


def _column(where: str, fwd_out: Mapping[str, Tree], name: str, remedy: str) -> Tree:
    if name not in fwd_out:
        raise ValueError(f"{where}: expected the column {name!r}, got only {', '.join(fwd_out)}. {remedy}")
    return fwd_out[name]


def forward_sequences(module: RLModule, batch: dict[str, Tree], where: str) -> tuple[dict[str, Tree], dict[str, Tree]]:
    """Sequences and what ``module.forward_train`` makes of them, both as rows ``[B, ...]``.

    Args:
        module: A recurrent module.
        batch: The sequences.
        where: Begins the error of a batch of rows.

    Raises:
        ValueError: If the batch is one of rows, or the module predicts values and returns no ``embeddings``.
    """
    if Columns.STATE_IN not in batch:
        raise ValueError(
            f"{where}: expected a batch of sequences, with {Columns.STATE_IN} and "
            f"{Columns.STARTS}, got one of rows, with {', '.join(batch)}. Make the train batch "
            "with pack()."
        )
    valid_rows, total = batch.get(Columns.VALID_ROWS), batch[Columns.STARTS].numel()
    with nullcontext() if valid_rows is None else over_valid_rows(module, valid_rows, total):
        fwd_out = module.forward_train(batch)
    if isinstance(module, ValueFunctionAPI | QNetAPI):
        embeddings_of(module, fwd_out)
    return flatten_sequences(batch, valid_rows), flatten_sequences(fwd_out, valid_rows)


def burn_in(module: RLModule, batch: dict[str, Tree]) -> dict[str, Tree]:
    """``batch`` without its burn-in, and with ``state_in`` as ``module`` has it after these rows, which get no gradient
    (Kapturowski et al. 2019, section 3). The batch itself if it has none.

    Raises:
        ValueError: If the module's ``forward_train`` returns no states.
    """
    if Columns.BURN_IN not in batch:
        return batch
    rest = {name: column for name, column in batch.items() if name != Columns.BURN_IN}
    with torch.no_grad():
        out = module.forward_train({**batch[Columns.BURN_IN], Columns.STATE_IN: batch[Columns.STATE_IN]})
    return rest | {Columns.STATE_IN: state_out_of(module, out)}


def with_states(module: RLModule, rollout: Rollout) -> Rollout:
    """``rollout`` with ``state_in``. If it is not known, it holds the states of the recurrent ``module`` when row 0 is
    given its initial state."""
    if rollout.state_in is not None:
        return rollout
    length, state = module.max_seq_len, initial_states(module, rollout.shape[1])
    states = [state]
    for begin in range(0, rollout.shape[0] - length, length):
        state = state_out_of(module, module.forward_train(_span(rollout, begin, begin + length, state)))
        states.append(state)
    return dataclasses.replace(rollout, state_in=tree.map_structure(lambda *x: torch.stack(x), *states))


def values_along(module: RLModule, rollout: Rollout) -> Tensor:
    """Values of :meth:`Rollout.rows_to_value` in its order, by a recurrent module: ``[T·N + N + K]``.

    Each observation is valued in the state that its episode had there: the steps from ``state_in[0]`` on, a true final
    observation in the state after the step that truncated, the observation after the last step in the state after that.
    (If an episode starts with the last one, its value follows no step, and nothing depends on it.)
    """
    cut_rows, cut_slots = rollout.final_index.T.contiguous()
    ends = sorted({*cut_rows.tolist(), rollout.shape[0] - 1})
    begin, state = 0, map_leaves(lambda x: x[0], rollout.state_in)
    values, states = [], []
    for end in ends:  # the state is seen at the end of a pass alone, so there is one up to each truncation
        own, state = _values_of(module, _span(rollout, begin, end + 1, state))
        values.append(own)
        states.append(state)
        begin = end + 1
    after = torch.searchsorted(torch.tensor(ends, device=cut_rows.device), cut_rows)
    cut_states = tree.map_structure(lambda *x: torch.stack(x)[after, cut_slots], *states)
    following = {
        Columns.OBS: tree.map_structure(lambda *x: torch.cat(x)[None], rollout.last_obs, rollout.final_obs),
        Columns.STATE_IN: tree.map_structure(lambda *x: torch.cat(x), state, cut_states),
        Columns.STARTS: cut_rows.new_zeros(1, rollout.shape[1] + len(cut_rows), dtype=torch.bool),
    }
    return torch.cat([*values, _values_of(module, following)[0]])


def _span(rollout: Rollout, begin: int, end: int, state: Tree) -> dict[str, Tree]:
    """Rows ``begin`` to ``end`` of all slots as sequences that begin with ``state``."""
    names = (Columns.OBS, Columns.STARTS)
    return {name: map_leaves(lambda x: x[begin:end], rollout[name]) for name in names} | {Columns.STATE_IN: state}


def _values_of(module: RLModule, sequences: dict[str, Tree]) -> tuple[Tensor, Tree]:
    """Values ``[T·B]`` of the rows, and the states after the last."""
    assert isinstance(module, ValueFunctionAPI)
    fwd_out = module.forward_train(sequences)
    embeddings = embeddings_of(module, fwd_out).flatten(0, 1)
    return module.compute_values(flatten_sequences(sequences, None), embeddings), state_out_of(module, fwd_out)
