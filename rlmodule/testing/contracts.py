"""Contracts that a module or a learner of one's own can be held against, as tests to inherit::

    class TestMyModule(RLModuleContract):
        def make(self):
            return RLModuleSpec(
                module_class=MyModule, observation_space=..., action_space=..., catalog_class=MyCatalog
            )

pytest then runs everything that runners, learners and checkpoints rely on.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tree
from gymnasium import Space
from torch import Tensor

from catalog.base import Tree
from rlmodule.checkpoint import load_checkpoint, save_checkpoint
from rlmodule.data.rollout import Rollout, allocate_observations, as_tensors, write_row
from rlmodule.data.sequences import cut_into_sequences, embeddings_of, flatten_sequences, initial_states
from rlmodule.learning.batch_learner import BatchLearner
from rlmodule.learning.learner import Batch, EpisodeLearner, Learner
from rlmodule.modules.apis import InferenceOnlyAPI, QNetAPI, ValueFunctionAPI
from rlmodule.modules.columns import Columns
from rlmodule.modules.rl_module import RLModule, greedy_actions
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec

Forward = Callable[[Mapping[str, Tree]], dict[str, Tree]]


def random_observations(space: Space, num: int, seed: int = 0) -> Tree:
    """``num`` samples of ``space`` as a batch ``[num, ...]`` of tensors, in the dtypes of a rollout."""
    space = copy.deepcopy(space)  # whose random stream is somebody else's
    space.seed(seed)
    rows = allocate_observations(space, num)
    for row in range(num):
        write_row(rows, row, space.sample())
    return as_tensors(rows)


def random_rollout(module: RLModule, num_steps: int, num_slots: int, seed: int = 0) -> Rollout:
    """A rollout of random observations and rewards on which ``module`` acted.

    It holds what a learner must cope with: episodes that terminate, that truncate, that do both, and invalid rows. An
    episode starts after each run of invalid rows.
    """
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_slots)
    count = num_steps * num_slots
    every = random_observations(module.input_space, count + num_slots, seed)
    obs = tree.map_structure(lambda x: x[:count].unflatten(0, shape), every)
    terminateds, truncateds = torch.from_numpy(rng.random(shape) < 0.15), torch.from_numpy(rng.random(shape) < 0.15)
    valid = torch.ones(shape, dtype=torch.bool)
    valid[1:] = ~(terminateds | truncateds)[:-1]
    terminateds, truncateds = terminateds & valid, truncateds & valid
    final_index = (truncateds & ~terminateds).nonzero()
    starts = torch.ones(shape, dtype=torch.bool)
    starts[1:] = ~valid[:-1]
    with torch.no_grad(), _own_random_numbers(seed):
        inputs, state_in = _acting_inputs(module.eval(), obs, starts, module.forward_exploration)
        dist = module.action_dist_cls.from_logits(inputs)
        actions = dist.sample(torch.Generator().manual_seed(seed))
        logp = dist.logp(actions)
    columns = {
        Columns.OBS: obs,
        Columns.ACTIONS: tree.map_structure(lambda x: x.unflatten(0, shape), actions),
        Columns.REWARDS: torch.from_numpy(rng.standard_normal(shape, dtype=np.float32)) * valid,
        Columns.TERMINATEDS: terminateds,
        Columns.TRUNCATEDS: truncateds,
        Columns.VALID: valid,
        Columns.ACTION_DIST_INPUTS: inputs.unflatten(0, shape),
        Columns.ACTION_LOGP: logp.unflatten(0, shape),
        Columns.STARTS: starts,
    }
    return Rollout(
        columns=columns,
        last_obs=tree.map_structure(lambda x: x[count:], every),
        final_index=final_index,
        final_obs=random_observations(module.input_space, len(final_index), seed + 1),
        state_in=state_in,
    )


def _acting_inputs(module: RLModule, obs: Tree, starts: Tensor, forward: Forward) -> tuple[Tensor, Tree | None]:
    """Distribution inputs ``[T·N, D]`` that ``forward`` of ``module`` gives at ``obs`` ``[T, N, ...]``, by a recurrent
    one step by step, and the states that its sequences begin with."""
    if not module.is_stateful():
        return forward({Columns.OBS: _flat(obs)})[Columns.ACTION_DIST_INPUTS], None
    state, states, inputs = initial_states(module, starts.shape[1]), [], []
    for t in range(len(starts)):
        if t % module.max_seq_len == 0:
            states.append(clone(state))
        row = {Columns.OBS: tree.map_structure(lambda x, t=t: x[t : t + 1], obs), Columns.STARTS: starts[t : t + 1]}
        out = forward(row | {Columns.STATE_IN: state})
        inputs.append(out[Columns.ACTION_DIST_INPUTS])
        state = out[Columns.STATE_OUT]
    return torch.cat(inputs).flatten(0, 1), tree.map_structure(lambda *x: torch.stack(x), *states)


class RLModuleContract(ABC):
    """What every :class:`RLModule` must keep. Write :meth:`make` in a subclass whose name begins with ``Test``.

    Class attributes:
        batch_size: Rows of the batches tested with, or sequences for a recurrent module.
        steps: Length of these sequences.
        tolerance: How far the output for a row may differ when it is computed in another batch.
    """

    batch_size = 7
    steps = 6
    tolerance = 1e-5

    @abstractmethod
    def make(self) -> RLModuleSpec:
        """The spec of the module, with its spaces."""

    def build(self, seed: int = 0, inference_only: bool = False) -> RLModule:
        """A module in eval mode with the weights that belong to ``seed``."""
        with _own_random_numbers(seed):
            return self.make().build(inference_only=inference_only).eval()

    def batch(self, module: RLModule, seed: int = 0) -> dict[str, Tree]:
        """Random observations for ``module``; for a recurrent one with starts here and there, and states it came to."""
        if not module.is_stateful():
            return {Columns.OBS: random_observations(module.input_space, self.batch_size, seed)}
        rng, shape = np.random.default_rng(seed), (self.steps, self.batch_size)
        obs = random_observations(module.input_space, 2 * self.steps * self.batch_size, seed)
        before, obs = (tree.map_structure(lambda x, i=i: x.unflatten(0, (2, *shape))[i], obs) for i in range(2))
        starts = torch.from_numpy(rng.random(shape) < 0.2)
        batch = {Columns.OBS: before, Columns.STARTS: starts, Columns.STATE_IN: initial_states(module, shape[1])}
        state = module.forward_inference(batch)[Columns.STATE_OUT]
        return {Columns.OBS: obs, Columns.STARTS: starts.roll(1, 0), Columns.STATE_IN: state}

    def train(self, module: RLModule, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        """``forward_train``, with ``action_dist_inputs``: of a module of action values that returns ``embeddings`` in
        their place, the values that it makes of these."""
        out = module.forward_train(batch)
        if _trains_values(module, out):
            assert isinstance(module, QNetAPI)
            out = out | {Columns.ACTION_DIST_INPUTS: module.compute_q_values(batch, out[Columns.EMBEDDINGS])}
        return out

    def embedded(self, module: RLModule) -> tuple[dict[str, Tree], Tensor | None]:
        """Rows of random observations and the ``embeddings`` that ``forward_train`` hands on of them."""
        batch = self.batch(module)
        out = module.forward_train(batch)
        if not module.is_stateful():
            return batch, out.get(Columns.EMBEDDINGS)
        return flatten_sequences(batch, None), embeddings_of(module, out).flatten(0, 1)

    def passes(self, module: RLModule) -> dict[str, Forward]:
        """The three forward passes by name, each with ``action_dist_inputs``."""
        return {
            "forward_inference": module.forward_inference,
            "forward_exploration": module.forward_exploration,
            "forward_train": partial(self.train, module),
        }

    def test_forward_passes_agree_on_shape(self) -> None:
        module = self.build()
        width = module.action_dist_cls.required_input_dim(module.action_space)
        for name, forward in self.passes(module).items():
            inputs = forward(self.batch(module))[Columns.ACTION_DIST_INPUTS]
            leading = (self.steps, self.batch_size) if module.is_stateful() else (self.batch_size,)
            assert inputs.shape == (*leading, width), f"{name}: {tuple(inputs.shape)}"
            assert inputs.dtype == torch.float32, f"{name}: {inputs.dtype}"
            assert inputs.isfinite().all(), name

    def test_only_training_has_a_gradient(self) -> None:
        module = self.build()
        batch = self.batch(module)
        assert not module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS].requires_grad
        assert not module.forward_exploration(batch)[Columns.ACTION_DIST_INPUTS].requires_grad
        assert self.train(module, batch)[Columns.ACTION_DIST_INPUTS].requires_grad

    def test_forward_leaves_the_batch_as_it_is(self) -> None:
        module = self.build()
        batch = self.batch(module)
        before = clone(batch)
        for forward in self.passes(module).values():
            forward(batch)
            assert differences(before, batch) == []

    def test_rows_do_not_see_each_other(self) -> None:
        module = self.build()
        batch = self.batch(module)
        together = module.forward_inference(batch)[Columns.ACTION_DIST_INPUTS]
        by_row = together.transpose(0, 1) if module.is_stateful() else together
        for row in range(self.batch_size):
            alone = module.forward_inference(_take_sequences(batch, slice(row, row + 1)))[Columns.ACTION_DIST_INPUTS]
            self.assert_close(alone.squeeze(1) if module.is_stateful() else alone[0], by_row[row])

    def test_forwards_do_not_disturb_each_other(self) -> None:
        module = self.build()
        one, two = self.batch(module, 1), self.batch(module, 2)
        first = module.forward_inference(one)
        kept = clone(first)
        module.forward_inference(two)
        assert differences(kept, first) == []
        assert differences(kept, module.forward_inference(one)) == []

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
            key = Columns.ACTION_DIST_INPUTS
            assert torch.equal(getattr(acting, name)(batch)[key], getattr(module, name)(batch)[key]), name

    def test_inference_only_copy_lacks_what_is_dropped(self) -> None:
        module, acting = self.build(), self.build(inference_only=True)
        dropped = module.get_non_inference_attributes() if isinstance(module, InferenceOnlyAPI) else []
        for name in dropped:
            owner, _, leaf = name.rpartition(".")
            assert hasattr(module.get_submodule(owner), leaf), f"{name} is no part of the module"
            assert getattr(acting.get_submodule(owner), leaf) is None, f"{name} is still there"
        prefixes = tuple(f"{name}." for name in dropped)
        assert acting.get_state().keys() == {n for n in module.get_state() if not n.startswith(prefixes)}
        try:
            acting.forward_train(self.batch(module))
        except RuntimeError:
            return
        raise AssertionError("an inference-only copy must refuse forward_train()")

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
            outs = module.forward_exploration(batch), module.forward_inference(batch)
            explored, inferred = (out[Columns.ACTION_DIST_INPUTS] for out in outs)
            if module.is_stateful():
                explored, inferred = explored.flatten(0, 1), inferred.flatten(0, 1)
            dist = module.action_dist_cls.from_logits(explored)
            sampled = dist.sample(torch.Generator().manual_seed(seed))
            with torch.no_grad():
                assert dist.logp(sampled).shape == (len(explored),)
            greedy = greedy_actions(module, {Columns.ACTION_DIST_INPUTS: inferred})
            for actions in (sampled, greedy):
                fitted = module.action_converter(actions)
                for row in range(len(explored)):
                    action = tree.map_structure(lambda x, row=row: x[row].numpy(), fitted)
                    assert module.action_space.contains(action), f"{action} is not in {module.action_space}"

    def test_values(self) -> None:
        module = self.build()
        if not isinstance(module, ValueFunctionAPI):
            return
        batch, embeddings = self.embedded(module)
        values = module.compute_values(batch, embeddings)
        assert values.shape == (len(tree.flatten(batch[Columns.OBS])[0]),), tuple(values.shape)
        assert values.isfinite().all()
        if not module.is_stateful():
            torch.testing.assert_close(module.compute_values(batch), values)
        assert module.value_scale().shape == ()

    def test_q_values(self) -> None:
        module = self.build()
        if not isinstance(module, QNetAPI):
            return
        batch, embeddings = self.embedded(module)
        values = module.compute_q_values(batch, embeddings)
        width = module.action_dist_cls.required_input_dim(module.action_space)
        assert values.shape == (len(tree.flatten(batch[Columns.OBS])[0]), width), tuple(values.shape)
        assert values.isfinite().all()
        assert values.requires_grad, "action values have no gradient"
        if not module.is_stateful():
            self.assert_close(module.compute_q_values(batch), values)

    def test_states_keep_their_structure(self) -> None:
        module = self.build()
        if not module.is_stateful():
            return
        initial = initial_states(module, self.batch_size)
        batch = self.batch(module) | {Columns.STATE_IN: initial}
        for forward in (module.forward_inference, module.forward_exploration, module.forward_train):
            state = forward(batch)[Columns.STATE_OUT]
            tree.assert_same_structure(state, initial)
            for after, before in zip(tree.flatten(state), tree.flatten(initial), strict=True):
                assert (after.shape, after.dtype) == (before.shape, before.dtype)
        assert not any(x.any() for x in tree.flatten(module.get_initial_state())), "the initial state is not zero"

    def test_a_sequence_in_pieces_gives_the_same(self) -> None:
        module = self.build()
        if not module.is_stateful():
            return
        batch = self.batch(module)
        for forward in self.passes(module).values():
            whole = forward(batch)
            for cut in range(1, self.steps):
                first = forward(_take_steps(batch, slice(cut)))
                second = forward(_take_steps(batch, slice(cut, None)) | {Columns.STATE_IN: first[Columns.STATE_OUT]})
                pieces = [x[Columns.ACTION_DIST_INPUTS] for x in (first, second)]
                self.assert_close(torch.cat(pieces), whole[Columns.ACTION_DIST_INPUTS])
                tree.map_structure(self.assert_close, second[Columns.STATE_OUT], whole[Columns.STATE_OUT])

    def test_a_start_forgets_what_was_before(self) -> None:
        module = self.build()
        if not module.is_stateful():
            return
        batch = self.batch(module)
        never, always = (batch | {Columns.STARTS: torch.full_like(batch[Columns.STARTS], s)} for s in (False, True))
        for at in range(self.steps):
            starts = never[Columns.STARTS].clone()
            starts[at] = True
            whole = self.train(module, never | {Columns.STARTS: starts})
            initial = {Columns.STATE_IN: initial_states(module, self.batch_size)}
            fresh = self.train(module, _take_steps(never, slice(at, None)) | initial)
            for name in _told(whole):
                self.assert_close(whole[name][at:], fresh[name])
            tree.map_structure(self.assert_close, whole[Columns.STATE_OUT], fresh[Columns.STATE_OUT])
        remembered, forgotten = (self.train(module, b) for b in (never, always))
        same = [torch.equal(remembered[name], forgotten[name]) for name in _told(remembered)]
        assert not all(same), "the outputs do not depend on the state"

    def test_training_sees_what_acting_saw(self) -> None:
        module = self.build()
        if not module.is_stateful():
            return
        rollout = random_rollout(module, 2 * module.max_seq_len + 1, 3)
        names = (Columns.OBS, Columns.ACTION_DIST_INPUTS)
        if _trains_values(module, module.forward_train(self.batch(module))):  # it acted on values that inference shows
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
        """Equality up to ``tolerance``."""
        torch.testing.assert_close(actual, expected, rtol=self.tolerance, atol=self.tolerance)


def _trains_values(module: RLModule, fwd_out: Mapping[str, Tree]) -> bool:
    """Whether a training pass of ``module`` gave embeddings for its action values alone."""
    return isinstance(module, QNetAPI) and Columns.ACTION_DIST_INPUTS not in fwd_out and Columns.EMBEDDINGS in fwd_out


def _told(fwd_out: Mapping[str, Tree]) -> list[str]:
    """The columns of a training pass that a memory may be behind: the policy's, and what values are computed from."""
    return [name for name in (Columns.ACTION_DIST_INPUTS, Columns.EMBEDDINGS) if name in fwd_out]


def _take_sequences(batch: Mapping[str, Tree], rows: slice) -> dict[str, Tree]:
    """Some rows of a batch, or some of its sequences."""

    def take(name: str, column: Tree) -> Tree:
        by_row = Columns.STATE_IN not in batch or name == Columns.STATE_IN
        return tree.map_structure(lambda x: x[rows] if by_row else x[:, rows], column)

    return {name: take(name, column) for name, column in batch.items()}


def _take_steps(batch: Mapping[str, Tree], steps: slice) -> dict[str, Tree]:
    """Some steps of all sequences; the states stay."""
    cut = {name: tree.map_structure(lambda x: x[steps], batch[name]) for name in (Columns.OBS, Columns.STARTS)}
    return cut | {Columns.STATE_IN: batch[Columns.STATE_IN]}


class LearnerContract(ABC):
    """What every :class:`Learner` must keep. Write :meth:`make` in a subclass whose name begins with ``Test``.

    Override points:
        ``make``: always.
        ``make_data``: what to learn from; required for a :class:`BatchLearner`.
    """

    @abstractmethod
    def make(self) -> Learner:
        """A new learner, each time of the same settings and spaces."""

    def make_data(self, learner: Learner, seed: int) -> Rollout | Batch:
        """What ``learner`` learns from; a :func:`random_rollout` by default."""
        assert isinstance(learner, EpisodeLearner), "write make_data() for a BatchLearner"
        module = copy.deepcopy(next(iter(learner.module.items()))[1])  # acting must not change the learner's
        return random_rollout(module, num_steps=16, num_slots=4, seed=seed)

    def build(self, seed: int = 0) -> Learner:
        """A learner with the weights that belong to ``seed``."""
        with _own_random_numbers(seed):
            return self.make()

    def update(self, learner: Learner, data: Rollout | Batch, env_steps: int = 0) -> dict[str, dict[str, float]]:
        """Let ``learner`` learn from ``data`` once."""
        if isinstance(learner, EpisodeLearner):
            assert isinstance(data, Rollout)
            return learner.update_from_episodes(data, env_steps=env_steps)
        assert isinstance(learner, BatchLearner)
        assert isinstance(data, dict)
        return learner.update_from_batch(data, env_steps=env_steps)

    def test_update_changes_the_weights(self) -> None:
        learner = self.build()
        before, updates = clone(dict(learner.module.named_parameters())), learner.num_updates
        self.update(learner, self.make_data(learner, 0))
        assert differences(before, dict(learner.module.named_parameters()))
        assert learner.num_updates > updates

    def test_update_reports_finite_numbers(self) -> None:
        learner = self.build()
        results = self.update(learner, self.make_data(learner, 0))
        assert set(learner.module) <= results.keys()
        for module_id in learner.module:
            for name, value in results[module_id].items():
                assert isinstance(value, float), f"{name} is a {type(value).__name__}"
                assert np.isfinite(value), f"{name} is {value}"

    def test_update_leaves_the_data_as_it_is(self) -> None:
        learner = self.build()
        data = self.make_data(learner, 0)
        before = clone(_columns(data))
        self.update(learner, data)
        assert differences(before, _columns(data)) == []

    def test_update_draws_no_global_random_numbers(self) -> None:
        learner = self.build()
        data = self.make_data(learner, 0)
        with _own_random_numbers(0):
            before = global_random_state()
            self.update(learner, data)
            assert differences(before, global_random_state()) == []

    def test_state_round_trip_goes_on_bit_equal(self, tmp_path: Path) -> None:
        learner, other = self.build(0), self.build(1)
        self.update(learner, self.make_data(learner, 0), env_steps=64)
        save_checkpoint(tmp_path / "state", learner.get_state())
        other.set_state(load_checkpoint(tmp_path / "state"))
        assert differences(learner.get_state(), other.get_state()) == []
        data = self.make_data(learner, 1)
        for env_steps in (128, 192):
            self.update(learner, data, env_steps)
            self.update(other, data, env_steps)
        assert differences(learner.get_state(), other.get_state()) == []

    def test_required_apis_are_checked(self) -> None:
        learner = self.build()
        if not learner.required_apis:
            return
        module_id, module = next(iter(learner.module.items()))
        spec = RLModuleSpec(
            module_class=_Bare, observation_space=module.observation_space, action_space=module.action_space
        )
        try:
            type(learner)(learner.settings, MultiRLModuleSpec({module_id: spec}), run_seed=0)
        except TypeError as error:
            message = str(error)
        else:
            raise AssertionError(f"{type(learner).__name__} took a module without {learner.required_apis}")
        assert learner.required_apis[0].__name__ in message


class _Bare(RLModule):
    """A module that can do nothing."""

    def setup(self) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        raise NotImplementedError


def clone(value: Any) -> Any:
    """A tree with every tensor copied; all else as it is."""
    return tree.map_structure(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, value)


def differences(a: Any, b: Any) -> list[str]:
    """Paths at which two trees are not equal bit by bit (NaN equals NaN), including the types of leaves."""
    return list(_differences(a, b, ""))


def _differences(a: Any, b: Any, path: str) -> Iterator[str]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        for key in [*a, *(key for key in b if key not in a)]:
            if key in a and key in b:
                yield from _differences(a[key], b[key], f"{path}/{key}")
            else:
                yield f"{path}/{key} is missing in {'the first' if key in b else 'the second'}"
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        # a checkpoint turns tuples into lists
        for index, pair in enumerate(zip(a, b, strict=True)):
            yield from _differences(*pair, f"{path}/{index}")
    elif isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(_bits(a), _bits(b)):
            yield path
    elif isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        yield from _differences(torch.from_numpy(a), torch.from_numpy(b), path)
    elif type(a) is not type(b) or (a != b and not (a != a and b != b)):
        yield f"{path}: {a!r} and {b!r}"


def _bits(tensor: Tensor) -> Tensor:
    """The memory of a tensor, so that NaN equals itself and 0 is not -0."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8) if len(flat) else flat.byte()  # torch cannot view what is empty


def global_random_state() -> dict[str, Any]:
    """State of the global generators of torch and numpy, for comparison by :func:`differences`."""
    name, keys, *rest = np.random.get_state()
    return {"torch": torch.random.get_rng_state(), "numpy": [name, np.asarray(keys).astype(np.int64), *rest]}


@contextmanager
def _own_random_numbers(seed: int) -> Iterator[None]:
    """torch's global generator set to ``seed``, and to what it was afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _columns(data: Rollout | Batch) -> Any:
    if not isinstance(data, Rollout):
        return data
    return [data.columns, data.last_obs, data.final_index, data.final_obs, data.state_in]


def _flat(obs: Tree) -> Tree:
    return tree.map_structure(lambda x: x.flatten(0, 1), obs)
