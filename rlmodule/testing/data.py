"""Random data for tests, and comparisons of results."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import tree
from torch import Tensor

from catalog.base import Tree
from rlmodule.data.columns import Batch, Columns
from rlmodule.data.rollout import Rollout, random_observations
from rlmodule.data.sequences import flatten_sequences
from rlmodule.modules.recurrent import initial_states
from rlmodule.modules.rl_module import RLModule
from rlmodule.sealed_folder import bytes_of

Forward = Callable[[Mapping[str, Tree]], dict[str, Tree]]


def random_rollout(module: RLModule, num_steps: int, num_slots: int, seed: int = 0) -> Rollout:
    """Return a rollout ``[num_steps, num_slots]`` of random observations and rewards, with actions that ``module``
    samples for the observations. A slot stands for one env. The module is put into eval mode and stays in it.

    A large enough rollout contains all cases that a learner must handle: terminated episodes, truncated episodes,
    episodes that are both, and invalid rows. The row after the end of an episode is invalid, and the next episode
    starts after that row.
    """
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_slots)
    count = num_steps * num_slots
    every = random_observations(module.input_space, count + num_slots, seed)
    obs = tree.map_structure(lambda x: x[:count].unflatten(0, shape), every)
    terminateds, truncateds = (torch.from_numpy(rng.random(shape) < 0.15) for _ in range(2))
    # as with next-step autoreset: the row after the end of an episode is invalid, and the next episode follows it
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
    """Run ``forward`` on ``obs`` ``[T, N, ...]`` with the episode starts ``starts`` ``[T, N]``. Return the inputs
    ``[T·N, D]`` of the action distributions, and the recurrent states ``[ceil(T / L), N, ...]`` before the time steps
    0, L, 2L, …, where L is ``module.max_seq_len``; None in place of the states if the module is not recurrent."""
    if not module.is_stateful():
        return forward(flatten_sequences({Columns.OBS: obs}, None))[Columns.ACTION_DIST_INPUTS], None
    state, states, inputs = initial_states(module, starts.shape[1]), [], []
    for t in range(len(starts)):
        if t % module.max_seq_len == 0:
            states.append(clone(state))
        row = {Columns.OBS: tree.map_structure(lambda x, t=t: x[t : t + 1], obs), Columns.STARTS: starts[t : t + 1]}
        out = forward(row | {Columns.STATE_IN: state})
        inputs.append(out[Columns.ACTION_DIST_INPUTS])
        state = out[Columns.STATE_OUT]
    return torch.cat(inputs).flatten(0, 1), tree.map_structure(lambda *x: torch.stack(x), *states)


def clone(value: Any) -> Any:
    """Return a copy of a tree with every tensor copied. All other leaves stay as they are."""
    return tree.map_structure(lambda leaf: leaf.detach().clone() if isinstance(leaf, Tensor) else leaf, value)


def differences(a: Any, b: Any) -> list[str]:
    """Return the paths of the leaves at which two trees differ in structure, type or any bit. NaN equals NaN."""
    # by tuples of keys, since {"a/b": x} and {"a": {"b": x}} have the same path as text
    leaves, other_leaves = (
        {tuple(map(str, path)): x for path, x in tree.flatten_with_path(column_tree)} for column_tree in (a, b)
    )
    same = {path for path in leaves.keys() & other_leaves.keys() if _equal(leaves[path], other_leaves[path])}
    return ["/".join(("", *path)) for path in leaves | other_leaves if path not in same]


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        a, b = torch.from_numpy(a), torch.from_numpy(b)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        # compare bytes, so that NaN equals NaN and 0 differs from -0
        return (a.dtype, a.shape) == (b.dtype, b.shape) and torch.equal(bytes_of(a), bytes_of(b))
    return type(a) is type(b) and bool(a == b or (a != a and b != b))


def global_random_state() -> dict[str, Any]:
    """Return the state of the global random generators of torch and numpy as a tree that :func:`differences` can
    compare."""
    name, keys, *rest = np.random.get_state()
    return {"torch": torch.random.get_rng_state(), "numpy": [name, np.asarray(keys).astype(np.int64), *rest]}


@contextmanager
def _own_random_numbers(seed: int) -> Iterator[None]:
    """Seed torch's global generator on the CPU with ``seed`` within the block, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def _columns(data: Rollout | Batch) -> Any:
    return vars(data) if isinstance(data, Rollout) else data
