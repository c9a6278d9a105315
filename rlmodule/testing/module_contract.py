"""Tests that every neural module must pass."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
import tree
from torch import Tensor

from catalog.base import Tree
from rlmodule.checkpoint import load_checkpoint, save_checkpoint
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import random_observations
from rlmodule.data.sequences import cut_into_sequences, flatten_sequences
from rlmodule.learning.sharding import shard_batch
from rlmodule.modules.apis import QNetAPI, ValueFunctionAPI
from rlmodule.modules.recurrent import embeddings_of, initial_states
from rlmodule.modules.rl_module import RLModule
from rlmodule.modules.shape_checks import check_module
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.testing.data import (
    Forward,
    _acting_inputs,
    _own_random_numbers,
    clone,
    differences,
    random_rollout,
)


class RLModuleContract(ABC):
    """Tests for an :class:`RLModule`. To use them, write :meth:`make` in a subclass whose name begins with ``Test``.

    Class attributes:
        batch_size: Number of rows in each test batch, or of sequences for a recurrent module.
        steps: Number of rows in each of these sequences.
        tolerance: Largest difference, absolute and relative, allowed between the outputs for the same row in different
            batches.
    """

    batch_size = 7
    steps = 6
    tolerance = 1e-5

    @abstractmethod
    def make(self) -> RLModuleSpec:
        """Return the spec of the module to test, including its spaces."""

    def build(self, seed: int = 0, inference_only: bool = False) -> RLModule:
        """Build the module of :meth:`make` in eval mode, with initial weights drawn from ``seed``. ``inference_only``
        drops the parts that only learning needs."""
        with _own_random_numbers(seed):
            return self.make().build(inference_only=inference_only)

    def batch(self, module: RLModule, seed: int = 0) -> Batch:
        """Return a batch of random observations for ``module``.

        For a recurrent module, the batch has sequences with random episode starts, and initial states that the module
        reached on other observations.
        """
        if not module.is_stateful():
            return {Columns.OBS: random_observations(module.input_space, self.batch_size, seed)}
        rng, shape = np.random.default_rng(seed), (self.steps, self.batch_size)
        # the first half of the observations leads to the states, the second half is the batch
        obs = random_observations(module.input_space, 2 * self.steps * self.batch_size, seed)
        before, obs = (tree.map_structure(lambda x, i=i: x.unflatten(0, (2, *shape))[i], obs) for i in range(2))
        starts = torch.from_numpy(rng.random(shape) < 0.2)
        batch = {Columns.OBS: before, Columns.STARTS: starts, Columns.STATE_IN: initial_states(module, shape[1])}
        state = module.forward_inference(batch)[Columns.STATE_OUT]
        return {Columns.OBS: obs, Columns.STARTS: starts.roll(1, 0), Columns.STATE_IN: state}

    def train(self, module: RLModule, batch: Mapping[str, Tree]) -> Batch:
        """Run ``forward_train`` and return its outputs, with ``action_dist_inputs`` added if they are missing.

        The training pass of a module that predicts action values may return only ``embeddings``. In this case, the
        added inputs are the action values.
        """
        out = module.forward_train(batch)
        if _trains_values(module, out):
            assert isinstance(module, QNetAPI)
            out = out | {Columns.ACTION_DIST_INPUTS: module.compute_q_values(batch, out[Columns.EMBEDDINGS])}
        return out

    def passes(self, module: RLModule) -> dict[str, Forward]:
        """Return the three forward passes by name. The outputs of each contain ``action_dist_inputs``."""
        return {
            "forward_inference": module.forward_inference,
            "forward_exploration": module.forward_exploration,
            "forward_train": partial(self.train, module),
        }

    def test_forward_passes_agree_and_only_training_has_a_gradient(self) -> None:
        module = self.build()
        check_module(module)
        for name, forward in self.passes(module).items():
            inputs = forward(self.batch(module))[Columns.ACTION_DIST_INPUTS]
            assert inputs.dtype == torch.float32, f"{name}: {inputs.dtype}"
            assert inputs.isfinite().all(), name
            assert inputs.requires_grad is (name == "forward_train"), f"{name}: only training has a gradient"

    def test_forwards_leave_batches_and_each_other_as_they_are(self) -> None:
        module = self.build()
        batch, other_batch = self.batch(module, 1), self.batch(module, 2)
        before = clone(batch)
        for forward in self.passes(module).values():
            first = forward(batch)
            kept = clone(first)
            forward(other_batch)
            assert differences(kept, first) == []
            assert differences(kept, forward(batch)) == []
            assert differences(before, batch) == []

    def test_rows_do_not_see_each_other(self) -> None:
        module = self.build()
        batch = self.batch(module)
        together = module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS]
        outputs = [module.forward_inference(row) for row in shard_batch(batch, self.batch_size) if row]
        alone = [out[Columns.ACTION_DIST_INPUTS] for out in outputs]
        self.assert_close(torch.cat(alone, dim=1 if module.is_stateful() else 0), together)

    def test_state_round_trip(self, tmp_path: Path) -> None:
        module, other = self.build(0), self.build(1)
        assert differences(module.get_state(), other.get_state()), "two seeds gave the same weights"
        save_checkpoint(tmp_path / "state", module.get_state())
        other.set_state(load_checkpoint(tmp_path / "state"))
        assert differences(module.get_state(), other.get_state()) == []
        batch = self.batch(module)
        assert differences(module.forward_inference(batch), other.forward_inference(batch)) == []

    def test_inference_only_copy_acts_identically(self) -> None:
        module, acting = self.build(0), self.build(1, inference_only=True)
        acting.set_state(module.get_state())
        assert acting.get_state().keys() == module.get_state(inference_only=True).keys()
        batch = self.batch(module)
        for name in ("forward_inference", "forward_exploration"):
            copied, full = (
                self.passes(passing)[name](batch)[Columns.ACTION_DIST_INPUTS] for passing in (acting, module)
            )
            assert torch.equal(copied, full), name

    def test_shares_tensors(self) -> None:
        module, acting = self.build(0), self.build(1, inference_only=True)
        acting.share_tensors_of(module)
        batch = self.batch(module)
        before = module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS].clone()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.linspace(0.01, 0.02, parameter.numel()).view_as(parameter))
            for name, buffer in module.named_buffers():
                if name in module.get_state() and buffer.is_floating_point():
                    buffer.add_(1)
        after = module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS]
        assert not torch.equal(before, after), "the outputs do not depend on the weights"
        assert differences(module.get_state(inference_only=True), acting.get_state()) == []
        assert torch.equal(acting.forward_inference(batch)[Columns.ACTION_DIST_INPUTS], after)

    def test_actions_lie_in_the_action_space(self) -> None:
        module = self.build()
        for seed in range(5):
            batch = self.batch(module, seed)
            for forward in (module.forward_exploration, module.forward_inference):
                inputs = forward(batch)[Columns.ACTION_DIST_INPUTS]
                rows = inputs.flatten(0, 1) if module.is_stateful() else inputs
                dist = module.action_dist_cls.from_logits(rows)
                sampled = dist.sample(torch.Generator().manual_seed(seed))
                with torch.no_grad():
                    assert dist.logp(sampled).shape == (len(rows),)
                space = module.action_space
                for actions in (sampled, dist.to_deterministic().sample()):
                    fitted = module.action_converter(actions)
                    for row in range(len(rows)):
                        action = tree.map_structure(lambda x, row=row: x[row].numpy(), fitted)
                        assert space.contains(action), f"{action} is not in {space}"

    def test_values(self) -> None:
        module = self.build()
        batch = self.batch(module)
        out = module.forward_train(batch)
        embeddings = out.get(Columns.EMBEDDINGS)
        if module.is_stateful():
            batch = flatten_sequences(batch, None)
            embeddings = embeddings_of(module, out).flatten(0, 1)
        computed = list[Callable[..., Tensor]]()
        if isinstance(module, ValueFunctionAPI):
            assert module.value_scale().shape == ()
            computed.append(module.compute_values)
        if isinstance(module, QNetAPI):
            computed.append(module.compute_q_values)
        for compute in computed:
            values = compute(batch, embeddings)
            assert values.isfinite().all()
            assert values.requires_grad, "values have no gradient"
            if not module.is_stateful():
                self.assert_close(compute(batch), values)

    def test_the_initial_state_is_zero(self) -> None:
        initial = self.build().get_initial_state()
        assert initial is None or not any(x.any() for x in tree.flatten(initial))

    def test_a_start_forgets_what_was_before(self) -> None:
        module = self.build()
        if not module.is_stateful():
            return
        batch = self.batch(module)
        never, always = (batch | {Columns.STARTS: torch.full_like(batch[Columns.STARTS], s)} for s in (False, True))
        remembered, forgotten = self.train(module, never), self.train(module, always)
        names = [name for name in (Columns.ACTION_DIST_INPUTS, Columns.EMBEDDINGS) if name in remembered]
        same = [torch.equal(remembered[name], forgotten[name]) for name in names]
        assert not all(same), "the outputs do not depend on the state"
        for at in range(self.steps):
            # a start within the sequence must give the same as a sequence that begins there with the initial state
            starts = never[Columns.STARTS].clone()
            starts[at] = True
            whole = self.train(module, never | {Columns.STARTS: starts})
            later = {
                name: tree.map_structure(lambda x, at=at: x[at:], never[name]) for name in (Columns.OBS, Columns.STARTS)
            }
            fresh = self.train(module, later | {Columns.STATE_IN: initial_states(module, self.batch_size)})
            for name in names:
                self.assert_close(whole[name][at:], fresh[name])
            tree.map_structure(self.assert_close, whole[Columns.STATE_OUT], fresh[Columns.STATE_OUT])

    def test_training_sees_what_acting_saw(self) -> None:
        module = self.build()
        if not module.is_stateful():
            return
        rollout = random_rollout(module, 2 * module.max_seq_len + 1, 3)
        names = (Columns.OBS, Columns.ACTION_DIST_INPUTS)
        if _trains_values(module, module.forward_train(self.batch(module))):
            # the inputs of training are values, so record values, too
            obs, starts = rollout[Columns.OBS], rollout[Columns.STARTS]
            inputs, _ = _acting_inputs(module, obs, starts, module.forward_inference)
            rollout.columns[Columns.ACTION_DIST_INPUTS] = inputs.unflatten(0, rollout.shape)
        sequences = cut_into_sequences(rollout, names, module.max_seq_len)
        valid_rows = sequences.get(Columns.VALID_ROWS)
        recorded = flatten_sequences(sequences, valid_rows)[Columns.ACTION_DIST_INPUTS]
        trained = flatten_sequences(self.train(module, sequences), valid_rows)[Columns.ACTION_DIST_INPUTS]
        assert len(recorded) == rollout.num_env_steps
        self.assert_close(trained, recorded)

    def assert_close(self, actual: Tensor, expected: Tensor) -> None:
        """Raise ``AssertionError`` if the tensors differ by more than ``tolerance``."""
        torch.testing.assert_close(actual, expected, rtol=self.tolerance, atol=self.tolerance)


def _trains_values(module: RLModule, fwd_out: Mapping[str, Tree]) -> bool:
    """Return whether ``fwd_out``, the outputs of ``forward_train``, have embeddings from which Q-values are computed,
    instead of the inputs of the action distribution."""
    return isinstance(module, QNetAPI) and Columns.ACTION_DIST_INPUTS not in fwd_out and Columns.EMBEDDINGS in fwd_out
