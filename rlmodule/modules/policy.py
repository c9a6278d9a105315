"""Policy: one object for acting, the same in training, evaluation and deployment."""

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import tree
from gymnasium import Space, spaces
from torch import Tensor

from catalog.base import Tree
from catalog.explain.explain import short_space
from catalog.past import PREV_ACTION, PREV_REWARD
from catalog.spaces import to_tensor
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import allocate_observations, as_tensors, map_leaves, write_row
from rlmodule.modules.apis import NoisyNetAPI
from rlmodule.modules.recurrent import initial_states, state_out_of
from rlmodule.modules.rl_module import RLModule, greedy_actions, nothing_to_choose


class Policy:
    """Acts with a module; normalisation and action conversion are part of the module, so nothing else is needed.

    It remembers nothing between calls: what a module with memory needs goes out as a state and comes in again::

        state = None                                            # at the start of every episode
        action, state = policy.act(obs, state)

    Args:
        module: The module to act with; put into eval mode.
        generator: Draws actions, and the noise of noisy nets, for ``act(explore=True)``; None starts one of its own at
            seed 0.
    """

    def __init__(self, module: RLModule, generator: torch.Generator | None = None) -> None:
        self.module = module.eval()
        self.generator = torch.Generator().manual_seed(0) if generator is None else generator
        self._shapes = tree.map_structure(np.shape, module.observation_space.sample())

    @torch.inference_mode()
    def act(
        self, obs: Tree, state: Tree | None = None, *, reward: float | None = None, explore: bool = False
    ) -> tuple[Tree, Tree | None]:
        """The action for one observation of the env, ready for ``env.step``.

        Args:
            obs: One observation as the env returns it; a list of numbers is taken for the array of them.
            state: What the last call returned as state; None at the start of an episode.
            reward: What the last ``env.step`` gave. Needed from the second step of an episode on if the module sees
                previous rewards, else of no use.
            explore: Sample the action; False takes the most likely one.

        Returns:
            The action (an int for Discrete, an array for other spaces, a dict or tuple of them for Dict and Tuple)
            and the next state (None for a module that remembers nothing).

        Raises:
            ValueError: If ``obs`` does not lie in the observation space by shape, its action mask forbids all actions,
                ``state`` is none of this module, or the reward is missing.
        """
        module, stateful = self.module, self.module.is_stateful()
        if state is not None:
            self._check_state(state, stateful)
        batch = self._batch(obs, state, reward)
        seen = batch[Columns.OBS]
        if explore and isinstance(module, NoisyNetAPI):
            module.resample_noise(self.generator)
        if stateful:
            batch = {
                Columns.OBS: map_leaves(lambda x: x[None], batch[Columns.OBS]),
                Columns.STARTS: torch.tensor([[state is None]]),
                Columns.STATE_IN: initial_states(module, 1) if state is None else state[Columns.STATE_IN],
            }
        out = module.forward_exploration(batch) if explore else module.forward_inference(batch)
        inputs = out[Columns.ACTION_DIST_INPUTS][0] if stateful else out[Columns.ACTION_DIST_INPUTS]
        if explore:
            actions = module.action_dist_cls.from_logits(inputs).sample(self.generator)
        else:
            actions = greedy_actions(module, {Columns.ACTION_DIST_INPUTS: inputs})
        action = _take_first(module.action_space, module.action_converter(actions))
        memory: dict[str, Tree] = {}
        if stateful:
            memory[Columns.STATE_IN] = state_out_of(module, out)
        for name, steps in module.past_view.steps.items():  # a reward is still to come
            memory[name] = seen[name]
            if name != PREV_REWARD:
                # an env may write its next observation into the memory of this one
                done = actions if name == PREV_ACTION else map_leaves(Tensor.clone, seen[Columns.OBS])
                memory[name] = _with_newest(seen[name], done, steps)
        return action, memory or None

    def _check_state(self, state: Tree, stateful: bool) -> None:
        """Make sure that ``state`` may have come from this policy."""
        known = {*self.module.past_view.steps} | ({Columns.STATE_IN} if stateful else set())
        if not isinstance(state, dict) or state.keys() != known:
            expected = "what the last call returned as state" + (", a dict" if known else ", None")
            got = f"a dict with {', '.join(map(repr, state))}" if isinstance(state, dict) else repr(state)
            raise ValueError(
                f"Policy.act(state): expected {expected}, got {got}. Pass None at the start of an "
                "episode, and then on what act() returned."
            )

    def _batch(self, obs: Tree, state: Tree | None, reward: float | None) -> dict[str, Tree]:
        """``obs`` as a batch of one, with what the module sees of earlier steps."""
        module, shapes = self.module, tree.map_structure(np.shape, obs)
        if shapes != self._shapes:
            obs = _with_arrays(module.observation_space, obs)
            shapes = tree.map_structure(np.shape, obs)
        if shapes != self._shapes:
            is_tree = isinstance(obs, np.ndarray | Mapping)
            got = f"shape {shapes}" if is_tree else textwrap.shorten(repr(obs), 60)
            raise ValueError(
                f"Policy.act(obs): expected one observation of {short_space(module.observation_space)}, "
                f"got {got}. Pass what env.reset() or env.step() of a single (not a vector) env returned."
            )
        seen = tree.map_structure(lambda leaf: to_tensor(np.asarray(leaf)[None]), obs)
        if module.action_mask is not None and module.action_mask.rows_without_choice(seen).any():
            raise nothing_to_choose("Policy.act(obs)", module.action_mask)
        if not module.sees_more_than_the_env:
            return {Columns.OBS: seen}
        assert isinstance(module.input_space, spaces.Dict)
        past = {}
        for name, steps in module.past_view.steps.items():
            previous = None if state is None else state[name]
            if previous is not None and name == PREV_REWARD:
                if reward is None:
                    raise ValueError(
                        "Policy.act(reward): expected the reward of the last env.step(), which the module sees, got "
                        "None. Call act(obs, state, reward=reward); only the first call of an episode needs none."
                    )
                previous = _with_newest(previous, torch.tensor([reward]), steps)
            past[name] = _one(module.input_space.spaces[name], previous)
        return {Columns.OBS: {Columns.OBS: seen, **past}}


def _with_arrays(space: Space, obs: Any) -> Any:
    """``obs`` with an array for each list that stands for one; what does not fit ``space`` stays as it is."""
    if isinstance(space, spaces.Dict) and isinstance(obs, Mapping) and obs.keys() == space.spaces.keys():
        return {key: _with_arrays(child, obs[key]) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple) and isinstance(obs, list | tuple) and len(obs) == len(space.spaces):
        return tuple(_with_arrays(child, part) for child, part in zip(space.spaces, obs, strict=True))
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary) and isinstance(obs, list | tuple):
        try:
            return np.asarray(obs, space.dtype)
        except (ValueError, TypeError, OverflowError):  # told as what does not fit
            return obs
    return obs


def _one(space: Space, value: Tree | None) -> Tree:
    """A batch ``[1, ...]`` of ``value`` in the dtypes of ``space``; zeros if it is None."""
    arrays = allocate_observations(space, 1)
    if value is None:
        return tree.map_structure(lambda x: torch.from_numpy(np.zeros_like(x)), arrays)
    write_row(arrays, slice(None), value)
    return as_tensors(arrays)


def _with_newest(past: Tree, newest: Tree, steps: int) -> Tree:
    """``past`` ``[1, steps, ...]`` one step later; ``newest`` ``[1, ...]`` itself for a single step."""
    if steps == 1:
        return newest
    return tree.map_structure(lambda x, new: torch.cat([x[:, 1:], new[:, None]], 1), past, newest)


def _take_first(space: Space, actions: Tree) -> Tree:
    """The one action of a batch ``[1, ...]``, as ``space`` has it."""
    if isinstance(space, spaces.Dict):
        return {key: _take_first(child, actions[key]) for key, child in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_take_first(child, part) for child, part in zip(space.spaces, actions, strict=True))
    if isinstance(space, spaces.Discrete):
        return int(actions[0])
    return actions[0].numpy().copy()  # the policy's state may hold the same memory
