"""Functions that run recurrent modules over sequences, with initial states and burn-in, and value whole rollouts."""

import dataclasses
from collections.abc import Mapping
from contextlib import nullcontext

import torch
import tree
from torch import Tensor

from catalog.base import Tree
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import Rollout, map_leaves
from rlmodule.data.sequences import flatten_sequences, over_valid_rows, without
from rlmodule.modules.apis import QNetAPI, ValueFunctionAPI
from rlmodule.modules.rl_module import RLModule


def initial_states(module: RLModule, num: int) -> Tree:
    """Return the initial state of a recurrent module for ``num`` sequences, as a tree of new tensors ``[num, ...]`` on
    the module's device."""
    like = next(module.parameters(), torch.empty(0))  # get_initial_state() may return CPU tensors
    return tree.map_structure(lambda x: x.to(like.device).expand(num, *x.shape).clone(), module.get_initial_state())


def embeddings_of(module: RLModule, fwd_out: Mapping[str, Tree]) -> Tensor:
    """Return the ``embeddings`` in ``fwd_out``, the outputs of a recurrent module's ``forward_train``. Such a module
    must return them, because its values depend on its recurrent state.

    Raises:
        ValueError: If the embeddings are missing.
    """
    remedy = "Return the latents from which compute_values() computes values, which depend on the state."
    return _column(f"{type(module).__name__}.forward_train()", fwd_out, Columns.EMBEDDINGS, remedy)


def state_out_of(module: RLModule, fwd_out: Mapping[str, Tree]) -> Tree:
    """Return the recurrent states ``[B, ...]`` after the last row, which are in ``fwd_out``, the outputs of a recurrent
    module's forward pass.

    Raises:
        ValueError: If the states are missing.
    """
    remedy = "Return the states after the last row, shaped like batch['state_in']."
    return _column(f"a forward pass of {type(module).__name__}", fwd_out, Columns.STATE_OUT, remedy)


def _column(where: str, fwd_out: Mapping[str, Tree], name: str, remedy: str) -> Tree:
    if name not in fwd_out:
        raise ValueError(f"{where}: expected the column {name!r}, got only {', '.join(fwd_out)}. {remedy}")
    return fwd_out[name]


def forward_sequences(module: RLModule, batch: Batch, where: str) -> tuple[Batch, Batch]:
    """Run ``module.forward_train`` on sequences. Return the batch and the outputs, both flattened to their valid rows
    ``[R, ...]``.

    Args:
        module: A recurrent module.
        batch: A batch of sequences.
        where: Start of the error message if ``batch`` has rows instead of sequences.

    Raises:
        ValueError: If ``batch`` has rows instead of sequences, or if the module predicts values but returns no
            ``embeddings``.
    """
    check_sequences(batch, where)
    valid_rows, total = batch.get(Columns.VALID_ROWS), batch[Columns.STARTS].numel()
    with nullcontext() if valid_rows is None else over_valid_rows(module, valid_rows, total):
        fwd_out = module.forward_train(batch)
    if isinstance(module, ValueFunctionAPI | QNetAPI):
        embeddings_of(module, fwd_out)
    return flatten_sequences(batch, valid_rows), flatten_sequences(fwd_out, valid_rows)


def check_sequences(batch: Batch, where: str) -> None:
    """Raise ``ValueError`` if ``batch`` has rows instead of sequences. ``where`` is the start of the message."""
    if Columns.STATE_IN not in batch:
        raise ValueError(
            f"{where}: expected a batch of sequences, with {Columns.STATE_IN} and "
            f"{Columns.STARTS}, got one of rows, with {', '.join(batch)}. Make the train batch "
            "with pack(), or sample it from a replay buffer with sequences."
        )


def burn_in(module: RLModule, batch: Batch) -> Batch:
    """Run ``module`` over the burn-in rows of ``batch`` without gradient. Return the batch without them, and with the
    states after the burn-in as ``state_in`` (Kapturowski et al. 2019, section 3). Return a batch without burn-in
    unchanged.

    Raises:
        ValueError: If the module's ``forward_train`` returns no ``state_out``.
    """
    if Columns.BURN_IN not in batch:
        return batch
    with torch.no_grad():
        out = module.forward_train({**batch[Columns.BURN_IN], Columns.STATE_IN: batch[Columns.STATE_IN]})
    return without(batch, Columns.BURN_IN) | {Columns.STATE_IN: state_out_of(module, out)}


def with_states(module: RLModule, rollout: Rollout) -> Rollout:
    """Return ``rollout`` with ``state_in``. If it has none, run the recurrent ``module`` along the rollout, beginning
    with its initial state in row 0, and store its states."""
    if rollout.state_in is not None:
        return rollout
    length, state = module.max_seq_len, initial_states(module, rollout.shape[1])
    states = [state]
    for begin in range(0, rollout.shape[0] - length, length):
        state = state_out_of(module, module.forward_train(_span(rollout, begin, begin + length, state)))
        states.append(state)
    return dataclasses.replace(rollout, state_in=tree.map_structure(lambda *x: torch.stack(x), *states))


def values_along(module: RLModule, rollout: Rollout) -> Tensor:
    """Return the values ``[T·N + N + K]`` that a recurrent module predicts for the observations of
    :meth:`Rollout.rows_to_value`.

    The module gets each observation with the recurrent state of its episode. It runs along the steps from
    ``state_in[0]`` on. A true final observation gets the state after the truncated step, and the observation after the
    last step gets the last state, unless it starts an episode, in which case its value is not used. If the true final
    observations are unknown, the value of the truncated step itself is repeated.
    """
    if not rollout.finals_known:
        no_finals = map_leaves(lambda x: x[:0], rollout.final_obs)
        ending_nowhere = {"final_index": rollout.final_index[:0], "final_obs": no_finals, "finals_known": True}
        values = values_along(module, dataclasses.replace(rollout, **ending_nowhere))
        rows, slots = rollout.final_index.unbind(1)
        return torch.cat([values, values[rows * rollout.shape[1] + slots]])
    cut_rows, cut_slots = rollout.final_index.T.contiguous()
    ends = sorted({*cut_rows.tolist(), rollout.shape[0] - 1})
    begin, state = 0, map_leaves(lambda x: x[0], rollout.state_in)
    values, states = [], []
    for end in ends:  # a pass returns only its last state, so each truncation ends one
        own, state = _values_of(module, _span(rollout, begin, end + 1, state))
        values.append(own)
        states.append(state)
        begin = end + 1
    # `after`: for each truncation the pass that ended there, among whose states is the one to continue from
    after = torch.searchsorted(torch.tensor(ends, device=cut_rows.device), cut_rows)
    cut_states = tree.map_structure(lambda *x: torch.stack(x)[after, cut_slots], *states)
    following = {
        Columns.OBS: tree.map_structure(lambda *x: torch.cat(x)[None], rollout.last_obs, rollout.final_obs),
        Columns.STATE_IN: tree.map_structure(lambda *x: torch.cat(x), state, cut_states),
        Columns.STARTS: cut_rows.new_zeros(1, rollout.shape[1] + len(cut_rows), dtype=torch.bool),
    }
    return torch.cat([*values, _values_of(module, following)[0]])


def _span(rollout: Rollout, begin: int, end: int, state: Tree) -> Batch:
    """Return the time steps from ``begin`` up to but excluding ``end`` of all slots as a batch of sequences that begin
    with ``state``."""
    names = (Columns.OBS, Columns.STARTS)
    return {name: map_leaves(lambda x: x[begin:end], rollout[name]) for name in names} | {Columns.STATE_IN: state}


def _values_of(module: RLModule, sequences: Batch) -> tuple[Tensor, Tree]:
    """Return the values ``[L·B]`` of all rows of ``sequences``, and the recurrent states after the last row."""
    assert isinstance(module, ValueFunctionAPI)
    fwd_out = module.forward_train(sequences)
    embeddings = embeddings_of(module, fwd_out).flatten(0, 1)
    return module.compute_values(flatten_sequences(sequences, None), embeddings), state_out_of(module, fwd_out)
