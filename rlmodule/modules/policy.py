"""Policy: acts with a module, in training, evaluation and deployment alike."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import tree
from gymnasium import spaces
from torch import Tensor

from catalog.base import Tree
from catalog.explain.explain import short_space
from catalog.hooks import explain_unknown, refuses_foreign
from catalog.past import PREV_ACTION, PREV_REWARD
from catalog.spaces import map_spaces, to_tensor
from rlmodule.data.columns import Columns
from rlmodule.data.rollout import allocate_observations, as_tensors, map_leaves
from rlmodule.modules.apis import NoisyNetAPI
from rlmodule.modules.past_rows import with_newest
from rlmodule.modules.recurrent import initial_states, state_out_of
from rlmodule.modules.rl_module import RLModule, nothing_to_choose


class Policy:
    """Acts with a module. The module includes normalisation and action conversion, so nothing else is needed.

    A policy stores nothing between calls. Pass the state that one call returns to the next::

        state = None                                            # at the start of every episode
        action, state = policy.act(obs, state)

    Args:
        module: The module to act with; it is put into eval mode.
        generator: Draws actions, and the noise of noisy nets, for ``act(explore=True)``; None creates one with seed 0.
    """

    def __init__(self, module: RLModule, generator: torch.Generator | None = None) -> None:
        self.module = module.eval()
        self.generator = torch.Generator().manual_seed(0) if generator is None else generator
        self._sample = module.observation_space.sample()
        self._shapes = tree.map_structure(np.shape, self._sample)
        self._are_numbers = map_spaces(lambda leaf: isinstance(leaf, spaces.Discrete), module.action_space)
        self._no_past: dict[str, Tree] = {}
        if module.sees_more_than_the_env:
            rows = map_leaves(torch.zeros_like, as_tensors(allocate_observations(module.input_space, 1)))
            self._no_past = {name: rows[name] for name in module.past_view.steps}

    def with_generator(self, generator: torch.Generator) -> Policy:
        """Return a policy with the same module that draws from ``generator``."""
        return Policy(self.module, generator)

    @refuses_foreign
    @torch.inference_mode()
    def act(
        self, obs: Tree, state: Tree | None = None, *, reward: float | None = None, explore: bool = False
    ) -> tuple[Tree, Tree | None]:
        """Return the action for one observation of the env, ready for ``env.step``.

        Args:
            obs: One observation as the env returns it; lists of numbers are converted to arrays.
            state: The state that the last call returned; None at the start of an episode.
            reward: The reward that the last ``env.step`` returned. Required from the second step of an episode on if
                the module sees previous rewards, else ignored.
            explore: Sample the action; False takes the most likely one.

        Returns:
            The action (an int for Discrete, an array for other spaces, a dict or tuple of them for Dict and Tuple)
            and the next state (None for a module without memory).

        Raises:
            ValueError: If ``obs`` does not have the shape of the observation space, its action mask forbids all
                actions, ``state`` does not come from this module, or the reward is missing.
        """
        module, stateful = self.module, self.module.is_stateful()
        starts, memory = state is None, self._no_past.copy()
        if stateful:
            memory[Columns.STATE_IN] = initial_states(module, 1)
        if state is not None:
            self._check_state(state, memory)
            memory = state
        seen = self._observation(obs)
        if module.sees_more_than_the_env:
            seen = {Columns.OBS: seen, **self._past(memory, starts, reward)}
        batch = {Columns.OBS: seen}
        if explore and isinstance(module, NoisyNetAPI):
            module.resample_noise(self.generator)
        if stateful:
            batch = {
                Columns.OBS: map_leaves(lambda x: x[None], seen),
                Columns.STARTS: torch.tensor([[starts]]),
                Columns.STATE_IN: memory[Columns.STATE_IN],
            }
        out = module.forward_exploration(batch) if explore else module.forward_inference(batch)
        inputs = out[Columns.ACTION_DIST_INPUTS][0] if stateful else out[Columns.ACTION_DIST_INPUTS]
        dist = module.action_dist_cls.from_logits(inputs)
        actions = dist.sample(self.generator) if explore else dist.to_deterministic().sample()
        action = tree.map_structure(_take_first, self._are_numbers, module.action_converter(actions))
        memory = {Columns.STATE_IN: state_out_of(module, out)} if stateful else {}
        for name, steps in module.past_view.steps.items():  # the reward of this action is added by the next call
            memory[name] = seen[name]
            if name != PREV_REWARD:
                # a copy, since an env may write its next observation into the memory of this one
                done = actions if name == PREV_ACTION else map_leaves(Tensor.clone, seen[Columns.OBS])
                memory[name] = with_newest(seen[name], done, steps)
        return action, memory or None

    def _check_state(self, state: Tree, initial: dict[str, Tree]) -> None:
        """Raise unless ``state`` has the entries of ``initial``, the state at the start of an episode."""
        if not isinstance(state, dict) or state.keys() != initial.keys():
            expected = "the state that the last call returned" + (", a dict" if initial else ", None")
            got = f"a dict with {', '.join(map(repr, state))}" if isinstance(state, dict) else repr(state)
            raise ValueError(
                f"Policy.act(state): expected {expected}, got {got}. Pass None at the start of an "
                "episode, and after that the state that act() returned."
            )

    def _observation(self, obs: Tree) -> Tree:
        """Convert ``obs`` to a batch of one observation, and check it."""
        module, shapes = self.module, tree.map_structure(np.shape, obs)
        if shapes != self._shapes:
            like = self._sample
            with suppress(ValueError, TypeError, OverflowError):  # the error below describes the problem
                obs = tree.map_structure_up_to(like, _as_array, like, obs)
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
        return seen

    def _past(self, memory: dict[str, Tree], starts: bool, reward: float | None) -> dict[str, Tree]:
        """Return the earlier steps that the module sees, with the last reward, as a batch of one."""
        past = {name: memory[name] for name in self._no_past}
        if PREV_REWARD in past and not starts:
            if reward is None:
                raise ValueError(
                    "Policy.act(reward): expected the reward of the last env.step(), which the module sees, got "
                    "None. Call act(obs, state, reward=reward), except at the start of an episode."
                )
            steps = self.module.past_view.rewards
            past[PREV_REWARD] = with_newest(past[PREV_REWARD], torch.tensor([reward]), steps)
        like = self._no_past
        return {name: tree.map_structure(Tensor.type_as, past[name], like[name]) for name in past}

    if not TYPE_CHECKING:  # checkers must keep on reporting unknown attributes
        __getattr__ = explain_unknown


def _as_array(like: Any, value: Any) -> Any:
    """Convert ``value`` to an array with the dtype of ``like`` if it is a list or tuple."""
    return np.asarray(value, np.asarray(like).dtype) if isinstance(value, list | tuple) else value


def _take_first(is_number: bool, actions: Tensor) -> Any:
    """Return the action in a batch ``[1, ...]``, as a number or an array."""
    return int(actions[0]) if is_number else actions[0].numpy().copy()  # a copy: the state may share the memory
