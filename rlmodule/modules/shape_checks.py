"""Check a new module by running it on two observations, so that wrong shapes raise errors before any training."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import tree
from torch import Tensor, nn

from catalog.actions.converters import ActionConverter
from catalog.actions.masks import ActionMask
from catalog.base import Tree
from catalog.distributions.categorical import choice_counts
from catalog.encoders.shape_checks import check_floats, check_next_state, check_state, tried, untouched
from catalog.spaces import zero_batch
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import map_leaves
from rlmodule.data.sequences import flatten_sequences
from rlmodule.modules.acting import most_likely
from rlmodule.modules.apis import ActionValueAPI, QNetAPI, ValueFunctionAPI
from rlmodule.modules.recurrent import embeddings_of, initial_states, state_out_of
from rlmodule.modules.rl_module import RLModule

# Number of observations that modules are checked with. With one, a missing batch dim would go unnoticed, because it
# would broadcast.
ROWS = 2

# Packages whose layers need no checks of what they compute.
_KNOWN = ("catalog", "rlmodule", "algorithms", "torch")


def check_batch_norm(module_id: str, module: RLModule, num_rows: int) -> None:
    """Check that the batch norm of the module ``module_id``, if it has one, gets several rows in a gradient step, of
    which the settings give it ``num_rows``; if the module is recurrent, these are the rows of a whole sequence.

    Raises:
        ValueError: If it gets a single row.
    """
    has_batch_norm = any(isinstance(part, nn.BatchNorm1d) for part in module.modules())
    if has_batch_norm and num_rows == 1 and not module.is_stateful():
        raise ValueError(
            f"batch of module {module_id!r}: expected two rows or more in each gradient step, since batch norm needs "
            "their variance, got 1. Make train_batch_size_per_learner or minibatch_size larger, or choose another "
            "fcnet_norm."
        )


def check_module(module: RLModule) -> None:
    """Check that every forward pass of ``module`` returns the columns and shapes that env runners and learners read.

    Train or eval mode, buffers and torch's random state stay as they were. A training pass that reads columns that only
    a train batch has is not checked.

    Raises:
        TypeError: If a hook of the catalog returned an action converter or mask of another class.
        ValueError: If one row of a batch changes the outputs of another in a net that is not of this library, or the
            training pass of such a net has no gradient, or it keeps nets in a plain list or dict. If such a policy acts
            in another way than it is trained, or values are not the means of their outputs. If a pass raises an error,
            changes its observations in place, lacks an output column or returns a column of the wrong shape; if the
            initial state contains anything but tensors, dicts and tuples; or if the action distribution raises an
            error or returns a wrong shape. The message names the pass or the method.
    """
    _check_parts_of_catalog(module)
    custom = [part for part in module.modules() if type(part).__module__.partition(".")[0] not in _KNOWN]
    _check_registered(module, custom)
    stateful = module.is_stateful()
    if stateful:
        check_state(module.get_initial_state(), type(module).__name__)
    gpus = {p.device for p in module.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=gpus), untouched(module):
        for forward in (module.forward_inference, module.forward_exploration):
            batch = probe_batch(module, 1)
            where, out = _called(module, forward, batch)
            _check_inputs(module, where, batch, out)
            _check_distribution(module, out[Columns.ACTION_DIST_INPUTS])
            if stateful:
                check_next_state(batch[Columns.STATE_IN], state_out_of(module, out), f"{where}[{Columns.STATE_OUT!r}]")
        if custom:
            _check_rows_apart(module)
        try:
            batch = probe_batch(module, min(3, module.max_seq_len))
            _try_training(module, batch)
            if custom:
                _check_gradient(module, batch)
                _check_passes_agree(module)
        except ValueError as error:
            if not isinstance(error.__cause__, KeyError):  # the pass reads a column that only a train batch has
                raise


def probe_batch(module: RLModule, steps: int) -> Batch:
    """Return a batch of two observations, or of two sequences of ``steps`` observations for a recurrent module. Their
    numbers are as close to 0 as the space allows, and an action mask in them allows every action."""
    leading = (steps, ROWS) if module.is_stateful() else (ROWS,)
    obs = zero_batch(module.input_space, leading)
    if module.action_mask is not None:
        env_part, key = module.env_part(obs), module.action_mask.key
        env_part[key] = tree.map_structure(torch.ones_like, env_part[key])
    device = next(module.parameters(), torch.empty(0)).device
    batch: Batch = {Columns.OBS: map_leaves(lambda x: x.to(device), obs)}
    if module.is_stateful():
        starts = torch.zeros(leading, dtype=torch.bool, device=device)
        batch |= {Columns.STARTS: starts, Columns.STATE_IN: initial_states(module, ROWS)}
    return batch


def _check_parts_of_catalog(module: RLModule) -> None:
    """Raise TypeError if the action converter or the mask of ``module`` lacks the methods that env runners call."""
    for hook, part, kind, expected in (
        ("build_action_converter", module.action_converter, ActionConverter, "an ActionConverter"),
        ("build_action_mask", module.action_mask, ActionMask | None, "an ActionMask or None"),
    ):
        if not isinstance(part, kind):
            where = f"{type(module.catalog).__name__}.{hook}()"
            raise TypeError(f"{where}: expected {expected}, got {part!r}. Derive yours from that class.")


def _check_registered(module: RLModule, custom: Sequence[nn.Module]) -> None:
    """Raise ValueError if a part of ``module`` among ``custom`` keeps something to train where torch does not find it:
    nets in a list, tuple or dict, or a tensor that is no parameter."""
    known = {id(parameter) for parameter in module.parameters()}
    for part in custom:
        for name, value in vars(part).items():
            if isinstance(value, Tensor) and value.requires_grad and value.is_leaf:
                raise ValueError(
                    f"{type(part).__name__}.{name}: expected a parameter that is trained and saved, got a plain tensor "
                    "with requires_grad. Make it an nn.Parameter."
                )
            if name.startswith("_") or not isinstance(value, list | tuple | dict):
                continue
            nets = [net for net in (value.values() if isinstance(value, dict) else value) if isinstance(net, nn.Module)]
            if any(p.requires_grad and id(p) not in known for net in nets for p in net.parameters()):
                raise ValueError(
                    f"{type(part).__name__}.{name}: expected nets that are trained and saved, got a plain "
                    f"{type(value).__name__} of them, in which torch finds none. Make it an nn.ModuleList or an "
                    "nn.ModuleDict."
                )


def _check_rows_apart(module: RLModule) -> None:
    """Check that the outputs for a row depend on that row alone, so that acting does not depend on the number of envs.
    Warn if a module with a state keeps it where an episode starts.

    Raises:
        ValueError: If the outputs for the first row change with the second row.
    """
    where, batch = f"{type(module).__name__}.forward_inference()", probe_batch(module, 1)

    def first_row_differs_with(name: str, column: Tree) -> bool:
        """Return whether the outputs for the first row change if ``column`` replaces the batch's column ``name``."""
        outputs = list[Tensor]()
        for inputs in (batch, {**batch, name: column}):
            torch.manual_seed(0)  # so that both calls draw the same random numbers
            _, out = _called(module, module.forward_inference, inputs)
            outputs.append(out[Columns.ACTION_DIST_INPUTS].flatten(0, -2)[0])
        return not torch.allclose(*outputs, rtol=1e-4, atol=1e-5, equal_nan=True)

    changed = probe_batch(module, 1)[Columns.OBS]
    for leaf in tree.flatten(changed):
        if leaf.is_floating_point():
            (leaf[0] if module.is_stateful() else leaf)[1].add_(0.5)
    if first_row_differs_with(Columns.OBS, changed):
        raise ValueError(
            f"{where}: expected outputs for a row that depend on that row alone, got others when the second row "
            "changed. Compute no mean or norm over the batch dim: use LayerNorm, or keep running statistics."
        )
    if module.is_stateful():
        batch[Columns.STARTS] = torch.ones_like(batch[Columns.STARTS])
        other_state = map_leaves(lambda x: x + 0.5 if x.is_floating_point() else x, batch[Columns.STATE_IN])
        if first_row_differs_with(Columns.STATE_IN, other_state):
            warnings.warn(
                f"{where}: expected a state that begins again where starts is True, got outputs that still depend on "
                "the state before. Set the state to 0 there, unless episodes are meant to share it.",
                stacklevel=2,
            )


def _check_gradient(module: RLModule, batch: Batch) -> None:
    """Raise ValueError if no output of the training pass has a gradient although the module has parameters to train."""
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return
    with torch.enable_grad():
        where, out = _called(module, module.forward_train, batch)
    if not any(leaf.requires_grad for leaf in tree.flatten(dict(out)) if isinstance(leaf, Tensor)):
        raise ValueError(
            f"{where}: expected outputs with a gradient, got none. Leave out detach() and torch.no_grad(), or freeze "
            "the parameters with requires_grad_(False)."
        )


def _check_passes_agree(module: RLModule) -> None:
    """Raise ValueError if the passes for acting and for training compute different inputs of the action distribution,
    as they do if a subclass overrides ``_forward`` alone. A policy with a separate pass for inference may do so."""
    has_own_pass = type(module)._forward_inference is not RLModule._forward_inference
    if has_own_pass or isinstance(module, QNetAPI) or not isinstance(module, ValueFunctionAPI):
        return
    found, batch = list[Tensor](), probe_batch(module, 1)
    for forward in (module.forward_inference, module.forward_train):
        torch.manual_seed(0)  # so that both draw the same random numbers
        _, out = _called(module, forward, batch)
        found.append(out[Columns.ACTION_DIST_INPUTS])
    remedy = "Override _forward_train(), too, or write another pass for acting as _forward_inference()."
    acting, training = found
    _check_same(f"{type(module).__name__}.forward_inference()", "forward_train()", acting, training, remedy)


def _check_same(where: str, other: str, found: Tensor, expected: Tensor, remedy: str) -> None:
    """Raise ValueError if ``found``, which ``where`` returned, differs from ``expected``, which ``other`` returned."""
    if found.is_meta:
        return  # it has no numbers
    if not torch.allclose(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True):
        raise ValueError(f"{where}: expected the numbers that {other} gives, got others. {remedy}")


def _try_training(module: RLModule, batch: Batch) -> None:
    """Check the training pass on ``batch``, and the values that learners compute from its outputs. Raise ValueError if
    an output is missing or has the wrong shape."""
    where, out = _called(module, module.forward_train, batch)
    # a Q-net may return embeddings instead of inputs of the action distribution
    if not (isinstance(module, QNetAPI) and isinstance(out, Mapping) and Columns.EMBEDDINGS in out):
        _check_inputs(module, where, batch, out)
    if module.is_stateful() and Columns.STATE_OUT in out:
        check_next_state(batch[Columns.STATE_IN], out[Columns.STATE_OUT], f"{where}[{Columns.STATE_OUT!r}]")
    if not isinstance(module, ValueFunctionAPI | QNetAPI | ActionValueAPI):
        return
    # learners ask for values both with embeddings and without; a recurrent module always gets embeddings
    rows, given = batch, [out.get(Columns.EMBEDDINGS), None]
    if module.is_stateful():
        rows = flatten_sequences(batch, None)
        given = [map_leaves(lambda x: x.flatten(0, 1), embeddings_of(module, out))]
    count = len(tree.flatten(rows[Columns.OBS])[0])
    checks: list[tuple[Callable[..., Any], tuple[int, ...], str]] = []
    if isinstance(module, ValueFunctionAPI):
        checks.append((module.compute_values, (count,), "one number for each row: squeeze(-1) drops a last dim of 1"))
    if isinstance(module, QNetAPI):
        checks.append((module.compute_q_values, (count, module.num_dist_inputs), "one value for each action"))
    for embeddings in given:
        for method, shape, wanted in checks:
            where, values = _called(module, method, rows, embeddings)
            check_floats(values, shape, f"{where} of {count} rows", f"floats of shape {shape}", f"Return {wanted}.")
    name, remedy = type(module).__name__, "Override both: losses read the outputs, and acting or the policy the values."
    if isinstance(module, QNetAPI):
        values, outputs = (f(rows, given[0]) for f in (module.compute_q_values, module.compute_q_outputs))
        expected = module.return_head().mean(outputs)
        _check_same(f"{name}.compute_q_values()", "the mean of compute_q_outputs()", values, expected, remedy)
    if isinstance(module, ActionValueAPI):
        inputs = out[Columns.ACTION_DIST_INPUTS].reshape(count, -1)
        actions = most_likely(module.action_dist_cls.from_logits(inputs))
        for embeddings in given:
            _check_action_values(module, rows, actions, embeddings)
        _check_frozen_values(module, rows, actions, given[0])
        values = module.compute_action_values(rows, actions, given[0])
        expected = module.return_head().mean(module.compute_action_outputs(rows, actions, given[0]))
        _check_same(f"{name}.compute_action_values()", "the mean of compute_action_outputs()", values, expected, remedy)


def _check_action_values(module: Any, rows: Batch, actions: Tree, embeddings: Tensor | None) -> None:
    """Raise ValueError if the critics' values of ``actions`` ``[B, ...]``, or of all joint actions if the critics
    predict these, have the wrong shape."""
    joint, count = math.prod(choice_counts(module.action_space)), len(tree.flatten(actions)[0])
    cases: list[tuple[Tree | None, tuple[int, ...]]] = [(actions, (count,))]
    if module.values_all_actions:
        cases.append((None, (count, joint)))
    for taken, shape in cases:
        where, values = _called(module, module.compute_action_values, rows, taken, embeddings)
        critics = values.shape[:1] if isinstance(values, Tensor) else ()
        expected = f"floats of shape (critics, {', '.join(map(str, shape))})"
        remedy = "Return one value of each critic for each row and, if actions is None, for each joint action."
        check_floats(values, (*critics, *shape), f"{where} of {count} rows", expected, remedy)


def _check_frozen_values(module: Any, rows: Batch, actions: Tree, embeddings: Tensor | None) -> None:
    """Raise ValueError unless ``num_critics=1`` gives the values of one critic, and the gradient of ``frozen`` values
    reaches the actions and no weight."""
    actions = map_leaves(lambda x: x.clone().requires_grad_(x.is_floating_point()), actions)
    with torch.enable_grad():
        options = {"frozen": True, "num_critics": 1}
        where, values = _called(module, module.compute_action_values, rows, actions, embeddings, **options)
    shape = (1, len(tree.flatten(actions)[0]))
    remedy = "Return the values of the first num_critics critics alone."
    check_floats(values, shape, f"{where} with num_critics=1", f"floats of shape {shape}", remedy)
    weights, leaves = ([x for x in of if x.requires_grad] for of in (module.parameters(), tree.flatten(actions)))
    gradients: Sequence[Tensor | None] = [None] * len(weights + leaves)
    if values.requires_grad:
        gradients = torch.autograd.grad(values, weights + leaves, torch.ones_like(values), allow_unused=True)
    if [x is not None for x in gradients] != [False] * len(weights) + [True] * len(leaves):
        remedy = "Detach the weights of the critics and the embeddings, but not the actions."
        raise ValueError(f"{where} with frozen=True: expected a gradient to the actions alone, got another. {remedy}")


def _called(module: RLModule, method: Callable[..., Any], batch: Batch, *args: Any, **kwargs: Any) -> tuple[str, Any]:
    """Call ``method`` of ``module`` on a shallow copy of ``batch``. Return the method's name for error messages, and
    its result."""
    where = f"{type(module).__name__}.{method.__name__}()"
    takes = f"a method that takes {', '.join(batch)} of {ROWS} observations, or of {ROWS} sequences if there is a state"
    return where, tried(lambda: method(dict(batch), *args, **kwargs), batch[Columns.OBS], where, takes)


def _check_inputs(module: RLModule, where: str, batch: Mapping[str, Tree], out: Any) -> None:
    """Raise ValueError if ``out`` is not a dict with inputs of the right shape for the action distribution."""
    column = Columns.ACTION_DIST_INPUTS
    if not isinstance(out, Mapping) or column not in out:
        got = f"one with {', '.join(out) or 'none'}" if isinstance(out, Mapping) else f"a {type(out).__name__}"
        raise ValueError(
            f"{where}: expected a dict with the column {column!r}, got {got}. Return "
            "{Columns.ACTION_DIST_INPUTS: inputs}."
        )
    leading = batch[Columns.STARTS].shape if module.is_stateful() else (ROWS,)
    dist, width = module.action_dist_cls.__name__, module.num_dist_inputs
    remedy = f"{dist} takes {width} inputs for an action of {module.action_space}, and leading dims are kept."
    shape = (*leading, width)
    check_floats(out[column], shape, f"{where}[{column!r}] of {ROWS} observations", f"floats of shape {shape}", remedy)


def _check_distribution(module: RLModule, inputs: Tensor) -> None:
    """Raise ValueError unless the action distribution with ``inputs`` draws actions of the shapes of the space, and its
    ``logp`` and, where losses have an entropy bonus, ``entropy`` return one float per action. Otherwise,
    log-probabilities ``[B, 1]`` could broadcast to ``[B, B]`` in a loss, without an error."""
    name, leading = module.action_dist_cls.__name__, tuple(inputs.shape[:-1])
    remedy = "Return what catalog.Distribution documents: of to_deterministic() catalog.Deterministic(actions)."

    def draw() -> tuple[dict[str, Tree], dict[str, Tensor]]:
        dist = module.action_dist_cls.from_logits(inputs)
        sample = dist.sample()
        floats = {"logp()": dist.logp(sample)}
        if isinstance(module, ValueFunctionAPI):
            floats["entropy()"] = dist.entropy()
        return {"sample()": sample, "to_deterministic().sample()": most_likely(dist)}, floats

    actions, floats = tried(draw, inputs, name, f"a distribution that takes inputs {tuple(inputs.shape)}", remedy)
    expected = tree.map_structure(lambda x: tuple(x.shape), zero_batch(module.action_space, leading))
    for method, action in actions.items():
        got = map_leaves(lambda x: tuple(x.shape), action)
        if got != expected:
            raise ValueError(f"{name}.{method}: expected actions of shape {expected}, got {got}. {remedy}")
    remedy = "Sum over the numbers of an action."
    for method, found in floats.items():
        check_floats(found, leading, f"{name}.{method} of {leading} actions", f"floats of shape {leading}", remedy)
