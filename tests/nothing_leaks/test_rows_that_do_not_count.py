"""Numbers that no step stands behind change nothing that is learned: padding, rows that only reset an env, bootstraps
after termination, memories of earlier episodes, other episodes, other policies.

They are multiplied by 10⁶, or replaced with NaN, in float64, and gradients, weights, statistics and metrics stay as
they were to 10⁻¹⁰.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import tree
from torch import Tensor

from catalog.settings import settings_of
from rlmodule import Columns, Rollout
from rlmodule.data.rollout import map_leaves
from tests.nothing_leaks.cases import (
    LENGTH,
    Case,
    cases,
    ended,
    in_float64,
    not_a_number,
    on_leaves,
    one_after_another,
    times_a_million,
)
from tests.nothing_leaks.traces import differences, trace_of, update, with_ids

NUMBERS = (Columns.REWARDS, Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS)
"""Columns of numbers that come with steps."""
NAN, MILLION = not_a_number, times_a_million


# --- what does not count ---------------------------------------------------------------------------------------------


def spoiled_rollout(case: Case, rollout: Rollout, spoil: Any) -> Rollout:
    """Return a copy of ``rollout`` with ``spoil`` applied to all that does not count."""
    rollout = in_float64(rollout)
    invalid, is_over = ~rollout.valid, ended(rollout)
    # the observation after a valid row that did not end its episode is a bootstrap
    unseen = invalid.clone()
    unseen[1:] &= invalid[:-1] | is_over[:-1]
    assert unseen.any()
    for name in NUMBERS:
        on_leaves(spoil, rollout[name], invalid)
    on_leaves(MILLION, rollout[Columns.ACTIONS], invalid)
    # a memory passes over all rows, and cannot pass over NaN
    see = MILLION if case.is_stateful else spoil
    on_leaves(see, rollout[Columns.OBS], unseen)
    on_leaves(see, rollout.last_obs, invalid[-1] | is_over[-1])
    if rollout.state_in is not None:
        begins = rollout[Columns.STARTS][::LENGTH]
        on_leaves(MILLION, rollout.state_in, begins)
    return rollout


def spoiled_batch(batch: Any, spoil: Any) -> Any:
    """Return a copy of a batch from replay with ``spoil`` applied to all that does not count."""
    batch = in_float64(batch)
    if Columns.NEXT_ROWS not in batch:
        terminated = batch[Columns.DISCOUNTS] == 0
        assert terminated.any()
        on_leaves(MILLION, batch[Columns.NEXT_OBS], terminated)
        return batch
    starts = batch[Columns.STARTS]
    trained, used = torch.zeros(2, starts.numel(), dtype=torch.bool)
    trained[batch[Columns.VALID_ROWS]] = True
    used[batch[Columns.VALID_ROWS]] = used[batch[Columns.NEXT_ROWS]] = True
    for name in (Columns.REWARDS, Columns.DISCOUNTS, Columns.WEIGHTS):
        if name in batch:
            on_leaves(spoil, batch[name], ~trained.view_as(starts))
    on_leaves(MILLION, batch[Columns.ACTIONS], ~trained.view_as(starts))
    on_leaves(MILLION, batch[Columns.OBS], ~remembered(used.view_as(starts), starts))
    forgets = starts[0]
    if Columns.BURN_IN in batch:
        before = batch[Columns.BURN_IN]
        nothing = torch.zeros_like(before[Columns.STARTS])
        # the burn-in matters as far as the first row after it remembers it
        row = torch.cat([nothing, ~forgets[None]])
        matters = remembered(row, torch.cat([before[Columns.STARTS], forgets[None]]))[:-1]
        on_leaves(MILLION, before[Columns.OBS], ~matters)
        forgets = ~matters[0] | before[Columns.STARTS][0]
    on_leaves(MILLION, batch[Columns.STATE_IN], forgets)
    return batch


def remembered(used: Tensor, starts: Tensor) -> Tensor:
    """Return which rows ``[L, B]`` are in ``used``, or before such a row of the same episode."""
    rows = used.clone()
    for t in range(len(rows) - 2, -1, -1):
        rows[t] |= rows[t + 1] & ~starts[t + 1]
    return rows


@pytest.mark.parametrize("spoil", [MILLION, NAN], ids=["million", "nan"])
@pytest.mark.parametrize("case", cases())
def test_invalid_rows_and_unused_bootstraps_change_nothing(case: Case, spoil: Any) -> None:
    if case.learns_from_episodes:
        spoiled: Any = spoiled_rollout(case, case.rollout(), spoil)
    else:
        spoiled = with_ids([spoiled_batch(batch, spoil) for batch in case.batches()])
    after = trace_of(case.learner(), spoiled)
    assert differences(trace_of_plain_data(case), after) == {}


@cache
def trace_of_plain_data(case: Case) -> dict[str, Any]:
    data = in_float64(case.rollout()) if case.learns_from_episodes else with_ids(case.batches())
    return trace_of(case.learner(), data)


# --- padding ---------------------------------------------------------------------------------------------------------


def padded(rollout: Rollout, rows: int) -> Rollout:
    """Return ``rollout`` with ``rows`` invalid rows at the end and a slot without any step, all full of numbers."""

    def pad(x: Tensor) -> Tensor:
        x = torch.cat([x, x[-1:].expand(rows, *x.shape[1:])])
        x = torch.cat([x, x[:, :1]], 1)
        if x.is_floating_point():
            x[-rows:] = 1e6
            x[:, -1] = 1e6
        return x

    columns = {name: map_leaves(pad, column) for name, column in rollout.columns.items()}
    steps, slots = rollout.shape
    for name in (Columns.VALID, Columns.TERMINATEDS, Columns.TRUNCATEDS):
        columns[name][steps:] = columns[name][:, slots] = False
    # the first padded row holds the observation after the last step
    for leaf, last in zip(tree.flatten(columns[Columns.OBS]), tree.flatten(rollout.last_obs), strict=True):
        leaf[steps, :slots] = last
    last_obs = map_leaves(lambda x: torch.full((slots + 1, *x.shape[1:]), 1e6, dtype=x.dtype), rollout.last_obs)
    return replace(rollout, columns=columns, last_obs=last_obs, state_in=None)


@pytest.mark.parametrize("rows", [1, LENGTH])
@pytest.mark.parametrize("case", cases(episodes=True))
def test_more_padding_changes_nothing(case: Case, rows: int) -> None:
    rollout = replace(in_float64(case.rollout()), state_in=None)
    before, after = (trace_of(case.learner(), each) for each in (rollout, padded(rollout, rows)))
    assert differences(before, after) == {}


# --- other episodes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", cases(episodes=True))
def test_episodes_side_by_side_learn_as_one_after_another(case: Case) -> None:
    # one step with all rows, whose order differs, and sequences as long as the rollout
    case = case.having(minibatch_size=None, num_epochs=1)
    if case.is_stateful:
        case = case.having(model_config={"max_seq_len": 64})
    rollout = in_float64(one_after_another(case.rollout()))
    apart = in_float64(Rollout.from_episodes(rollout.to_episodes()))
    assert apart.shape[1] > rollout.shape[1]
    assert not apart.valid.all()
    before, after = (trace_of(case.learner(), each) for each in (rollout, apart))
    assert differences(before, after) == {}


def numbered(rollout: Rollout) -> tuple[Rollout, Rollout]:
    """Return a rollout whose observations begin with 0 in every other episode of a slot, and with 1 in those between,
    and the same with all else in the latter multiplied by 10⁶."""
    is_odd = rollout[Columns.STARTS].cumsum(0) % 2 == 1
    plain, foreign = in_float32(rollout), in_float32(rollout)
    index = rollout.final_index.unbind(1)
    last_is_odd = is_odd[-1] ^ ended(rollout)[-1]
    for each in (plain, foreign):
        each[Columns.OBS][..., 0], each.final_obs[..., 0], each.last_obs[..., 0] = is_odd, is_odd[index], last_is_odd
    for column, where in ((foreign[Columns.OBS], is_odd), (foreign.final_obs, is_odd[index])):
        times_a_million(column[..., 1:], where)
    times_a_million(foreign.last_obs[..., 1:], last_is_odd)
    for name in (Columns.REWARDS, Columns.ACTIONS):
        on_leaves(MILLION, foreign[name], is_odd)
    return plain, foreign


def in_float32(rollout: Rollout) -> Rollout:
    doubled = in_float64(rollout)
    names = ("columns", "last_obs", "final_obs", "state_in")
    back = {
        name: tree.map_structure(
            lambda x: x.float() if x is not None and x.is_floating_point() else x, getattr(doubled, name)
        )
        for name in names
    }
    return replace(doubled, **back)


@pytest.mark.parametrize("case", cases(episodes=False, first=("3 steps", "LSTM")))
def test_a_window_knows_its_own_episode_alone(case: Case) -> None:
    rollouts = [numbered(one_after_another(case.rollout(seed), seed)) for seed in range(3)]
    plain, foreign = (case.drawn([pair[i] for pair in rollouts], num=1, size=96)[0] for i in range(2))
    if Columns.NEXT_ROWS in plain:
        # the rows that are trained on, and the observations after their windows
        rows, following = ((each[Columns.VALID_ROWS], each[Columns.NEXT_ROWS]) for each in (plain, foreign))
        assert torch.equal(rows[0], following[0])
        assert torch.equal(rows[1], following[1])
        plain, foreign = (
            {name: each[name].flatten(0, 1)[rows[0]] for name in WINDOW}
            | {Columns.NEXT_OBS: each[Columns.OBS].flatten(0, 1)[rows[1]]}
            for each in (plain, foreign)
        )
    is_own = plain[Columns.OBS][:, 0] == 0
    assert is_own.any()
    assert not is_own.all()
    goes_on = is_own & (plain[Columns.DISCOUNTS] > 0)
    assert (is_own & ~goes_on).any()
    for name in WINDOW:
        assert torch.equal(plain[name][is_own], foreign[name][is_own]), name
    assert torch.equal(plain[Columns.NEXT_OBS][goes_on], foreign[Columns.NEXT_OBS][goes_on])
    assert (plain[Columns.NEXT_OBS][goes_on][:, 0] == 0).all()


WINDOW = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.DISCOUNTS)


# --- other policies --------------------------------------------------------------------------------------------------


def other_settings(case: Case) -> dict[str, Any]:
    """Return half of each number among the training settings that a policy can have to itself."""
    config = case.config
    kept = getattr(config, "settings_of_the_run", ())
    halved: dict[str, Any] = {}
    for name, item in settings_of(type(config)).items():
        value = getattr(config, name)
        if item.section != "training" or name in kept or type(value) is not float:
            continue
        try:
            config.copy().update({"policies": ["a", "b"], "policy_overrides": {"b": {name: value / 2}}}).validate()
        except (TypeError, ValueError):
            continue
        halved[name] = value / 2
    return halved


@pytest.mark.parametrize("differ", [False, True], ids=["same settings", "other settings"])
@pytest.mark.parametrize("case", cases(first=("plain",)))
def test_other_policies_change_nothing(case: Case, differ: bool) -> None:
    case = case.having(minibatch_size=None, num_epochs=1)
    overrides = {"b": other_settings(case)} if differ else {}
    assert not differ or len(overrides["b"]) > 1

    def learner() -> Any:
        return case.learner(("a", "b"), policies=["a", "b"], policy_overrides=overrides)

    def made(loud: str) -> Any:
        """Return the data of both, of which one is multiplied by 10⁶."""
        if case.learns_from_episodes:
            # policies have different numbers of rows, of which the lesser is padded where both are updated at once
            data = {"a": in_float64(case.rollout(0, steps=9)), "b": in_float64(case.rollout(1, slots=2))}
            rewards = [data[name][Columns.REWARDS] for name in data if name == loud]
        else:
            batches = {name: case.batches(2, seed) for seed, name in enumerate("ab")}
            data = [(name, batches[name][i]) for i in range(2) for name in "ab"]
            rewards = [batch[Columns.REWARDS] for name, batch in data if name == loud]
        for column in rewards:
            column *= 1e6
        return data

    data = made(loud="")
    together = trace_of(learner(), data)
    for name, other in ("ab", "ba"):
        disturbed = trace_of(learner(), made(loud=other))
        assert differences(together[name], disturbed[name]) == {}, name
        if case.learns_from_episodes:
            alone = learner()
            del alone.trained[other]  # it has no gradient
            assert differences(trace_of(alone, {name: data[name]})[name], together[name]) == {}, name


@pytest.mark.parametrize("case", cases("plain", "LSTM", first=("plain",)))
def test_policies_with_a_shared_part_add_their_gradients(case: Case) -> None:
    case = case.having(minibatch_size=None, num_epochs=1, grad_clip=None)

    def learner(**more: Any) -> Any:
        return case.learner(("a", "b"), policies=["a", "b"], **more)

    if not case.learns_from_episodes:
        with pytest.raises(ValueError, match="shared_parts"):
            learner(shared_parts={"trunk": "encoder"})
        return
    data = {"a": in_float64(case.rollout(0, steps=9)), "b": in_float64(case.rollout(1, slots=2))}
    together = learner(shared_parts={"trunk": "encoder"})
    update(together, data, times=1)
    trunk = together.shared_parts["trunk"].flat
    parts = []
    for name, of_module in data.items():
        one = learner(shared_parts={"trunk": "encoder"})
        update(one, {name: of_module}, times=1)
        parts.append(one.shared_parts["trunk"].flat.grad.clone())
        assert differences({"own": one.parameters[name].grad}, {"own": together.parameters[name].grad}) == {}
    assert differences({"trunk": sum(parts)}, {"trunk": trunk.grad}) == {}
    spoiled = {name: spoiled_rollout(case, of_module, MILLION) for name, of_module in data.items()}
    after = trace_of(learner(shared_parts={"trunk": "encoder"}), spoiled)
    assert differences(trace_of(learner(shared_parts={"trunk": "encoder"}), data), after) == {}
