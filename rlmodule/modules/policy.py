"""The policy, which acts with a neural module in training, in evaluation and in deployment."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import tree
from gymnasium import spaces
from numpy.typing import ArrayLike
from torch import Tensor

from catalog.base import Tree
from catalog.hooks import explain_unknown, refuses_foreign
from catalog.past import PREV_REWARD
from catalog.spaces import map_spaces
from rlmodule.data.rollout import map_leaves
from rlmodule.modules.acting import ActingStep, most_likely
from rlmodule.modules.apis import NoisyNetAPI
from rlmodule.modules.hub import OnHub, downloaded
from rlmodule.modules.observation_reader import ObservationReader
from rlmodule.modules.policy_files import load_module, save_policy
from rlmodule.modules.rl_module import RLModule, nothing_to_choose
from rlmodule.sealed_folder import StrPath


class Policy(OnHub):
    """Acts with a module. The module includes normalisation and action conversion, so nothing else is needed.

    A policy stores no memory of an episode between calls. Pass the state that one call returns to the next call::

        state = None                                            # at the start of every episode
        action, state = policy.act(obs, state)

    Args:
        module: The module to act with. It is put into eval mode.
        generator: Draws actions, and the noise of noisy nets, if ``explore`` is True; None creates a generator with
            seed 0.
    """

    import_path = "rlmodule.Policy"

    def __init__(self, module: RLModule, generator: torch.Generator | None = None) -> None:
        self.module = module.eval()
        self.device = next(module.parameters(), torch.empty(0)).device
        self.generator = torch.Generator(self.device).manual_seed(0) if generator is None else generator
        self._step = ActingStep(module)
        self._reader = ObservationReader(module.acting_space)
        self._memory_of_one = self._step.new_memory(1)
        self._are_numbers = map_spaces(lambda leaf: isinstance(leaf, spaces.Discrete), module.action_space)

    def with_generator(self, generator: torch.Generator) -> Policy:
        """Return a new policy that acts with the same module and draws from ``generator``."""
        return Policy(self.module, generator)

    def to(self, device: torch.device | str) -> Policy:
        """Return a policy that acts on ``device``, with a copy of the module and a new generator with seed 0."""
        return Policy(copy.deepcopy(self.module).to(device))

    @refuses_foreign
    def act(
        self, obs: Tree, state: Tree | None = None, *, reward: float | None = None, explore: bool = False
    ) -> tuple[Tree, Tree | None]:
        """Return the action for one observation of the env, ready for ``env.step``.

        Args:
            obs: One observation as the env returns it. Lists of numbers are converted to arrays.
            state: The state that the last call returned, of tensors or arrays; None at the start of an episode.
            reward: The reward that the last ``env.step`` returned. It is required from the second step of an episode on
                if the module gets previous rewards as inputs; otherwise it is ignored.
            explore: Whether to sample the action; False takes the most likely action.

        Returns:
            The action, and the next state. The action is an int for Discrete, an array for other spaces, and a dict or
            tuple of ints and arrays for Dict and Tuple. The state is None for a module without memory.

        Raises:
            ValueError: If ``obs`` does not fit the observation space, if its action mask forbids all actions, if
                ``state`` does not come from this module, or if a required reward is missing.
        """
        rewards = None if reward is None else [reward]
        actions, state = self._act("Policy.act", self._reader.one(self._needed(obs)), 1, state, None, rewards, explore)
        are_numbers = self._are_numbers
        if isinstance(are_numbers, bool):
            return _take_first(are_numbers, actions), state
        return tree.map_structure(_take_first, are_numbers, actions), state

    @refuses_foreign
    def act_batch(
        self,
        obs: Tree,
        state: Tree | None = None,
        *,
        starts: ArrayLike | None = None,
        rewards: ArrayLike | None = None,
        explore: bool = False,
    ) -> tuple[Tree, Tree | None]:
        """Return the actions for a batch of observations, such as those of a vector env, ready for its ``step``.

        Args:
            obs: Observations, a tree of arrays ``[B, ...]``.
            state: The state that the last call returned for the same ``B`` envs; None if all episodes start.
            starts: True for envs whose episode starts with this observation, ``[B]`` bool; None if no episode starts.
                It is ignored if ``state`` is None.
            rewards: The rewards ``[B]`` that the last ``step`` returned, required as in :meth:`act`. Rewards of envs
                whose episode starts are ignored.
            explore: Whether to sample the actions; False takes the most likely actions.

        Returns:
            The actions, a tree of arrays ``[B, ...]``, and the next state.

        Raises:
            ValueError: In the cases of :meth:`act`, or if an array does not have ``B`` rows.
        """
        num, seen = self._reader.batch(self._needed(obs))
        actions, state = self._act("Policy.act_batch", seen, num, state, starts, rewards, explore)
        return map_leaves(_as_array, actions), state

    def save(self, path: StrPath) -> Path:
        """Write the policy as the folder ``path``, and return the absolute path. The folder contains ``policy.json``,
        ``policy.safetensors`` and their digests, without the parts of the module that only learning needs. It replaces
        an earlier policy of that path.

        Raises:
            TypeError: If a setting of the nets cannot be saved, such as a lambda.
            FileExistsError: If ``path`` exists and is neither a policy nor an empty folder.
            OSError: If the folder cannot be written.
        """
        return save_policy(self.module, path)

    @classmethod
    def load(cls, path: StrPath, *, module_id: str | None = None, allow: Sequence[str] = ()) -> Policy:
        """Load a policy from a folder that :meth:`save` wrote, from a checkpoint, or from a run folder. A run's policy
        is from its best checkpoint or, if it has none, from its last checkpoint.

        No env is made, and no code of envs, learners or algorithm settings is imported.

        Args:
            path: The folder.
            module_id: Id of the module to load. It is required if the folder has several modules.
            allow: Names of Python modules whose classes and functions the file may name, in addition to those of this
                library.

        Raises:
            FileNotFoundError: If ``path`` is none of these folders.
            ValueError: If a file is damaged or names code that is not allowed, or if ``module_id`` is missing or
                unknown.
        """
        return cls(load_module(path, module_id, allow))

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        *,
        revision: str | None = None,
        module_id: str | None = None,
        allow: Sequence[str] = (),
        token: str | None = None,
    ) -> Policy:
        """Load a policy from a repository on the Hugging Face Hub. This needs the extra ``hub`` of catalog-rl.

        Only the files of the policy are downloaded, into the cache of ``huggingface_hub``.

        Args:
            repo_id: The repository, ``"user/name"``.
            revision: A branch, tag or commit; None takes the newest commit of the main branch. Only the content of a
                commit never changes.
            module_id, allow: See :meth:`load`.
            token: The access token for a private repository; None takes the token of ``hf auth login``.

        Raises:
            OSError: If the repository or the revision cannot be read.
            ImportError: If the package ``huggingface_hub`` is missing.
            FileNotFoundError, ValueError: See :meth:`load`.
        """
        with downloaded(repo_id, revision, token, f"Policy.from_pretrained({repo_id!r})") as folder:
            return cls.load(folder, module_id=module_id, allow=allow)

    def export(self, path: StrPath, *, explore: bool = False) -> Path:
        """Write the policy as a graph for other programs, in a single file: ``x.onnx`` for onnxruntime, or ``x.pt2``
        for ``torch.export.load``.

        The graph takes named tensors ``[B, ...]`` for any ``B``: ``obs.<path>`` in the dtypes of the observation space,
        and for a module with a memory ``state.<path>``, ``starts`` (bool, true where an episode starts and the state is
        ignored) and ``prev_reward``, if the module gets previous rewards. It returns ``action.<path>`` for the env,
        ``dist_inputs``, and ``next_state.<path>``, which is the ``state.<path>`` of the next call. The metadata entry
        ``catalog_rl`` describes spaces, inputs and noise as JSON.

        The file is written only if the graph returns the same as the policy for batches of several sizes.

        Args:
            path: The file to write. A ``.onnx`` file needs the extra ``onnx`` of catalog-rl.
            explore: Whether to sample the actions with an additional input ``noise`` ``[B, W]``; False takes the most
                likely actions.

        Returns:
            ``path``.

        Raises:
            ValueError: If the suffix is unknown, the nets cannot be exported, or the graph's outputs differ from the
                policy's.
            ImportError: If a package that the format needs is missing.
        """
        from rlmodule.modules.export import export_policy  # torch.export takes long to import

        return export_policy(self.module, path, explore=explore)

    @torch.inference_mode()
    def _act(
        self,
        where: str,
        obs: Tree,
        num: int,
        state: Tree | None,
        starts: ArrayLike | None,
        rewards: ArrayLike | None,
        explore: bool,
    ) -> tuple[Tree, Tree | None]:
        """Return the actions and the next state for ``num`` observations. ``where`` names the caller in error
        messages."""
        module, step = self.module, self._step
        if self.device.type != "cpu":
            obs = map_leaves(lambda x: x.to(self.device), obs)
        if module.action_mask is not None and module.action_mask.rows_without_choice(obs).any():
            raise nothing_to_choose(f"{where}(obs)", module.action_mask)
        memory: dict[str, Tree] = {}
        begins = reward = None
        if step.remembers or state is not None:
            memory, begins = self._memory(where, num, state, starts)
            reward = self._rewards(where, num, begins, rewards)
        if explore and isinstance(module, NoisyNetAPI):
            module.resample_noise(self.generator)
        choose = (lambda dist: dist.sample(self.generator)) if explore else most_likely
        _, actions, memory = step(obs, memory, begins, reward, choose, explore)
        return actions, memory or None

    def _needed(self, obs: Tree) -> Tree:
        """Return ``obs`` without the fields that only a critic reads, which acting does not need."""
        unread = self._step.unread
        is_whole = not unread or not isinstance(obs, Mapping)
        return obs if is_whole else {name: part for name, part in obs.items() if name not in unread}

    def _memory(
        self, where: str, num: int, state: Tree | None, starts: ArrayLike | None
    ) -> tuple[dict[str, Tree], Tensor]:
        """Return the memory of ``num`` envs, and a bool tensor ``[num]`` that is true for envs whose episode starts.
        Raise ValueError if ``state`` is not a memory of ``num`` envs."""
        if state is None:
            return self._step.new_memory(num), torch.ones(num, dtype=torch.bool, device=self.device)
        like = map_leaves(lambda x: (num, *x.shape[1:]), self._memory_of_one)
        if map_leaves(np.shape, state) != like:
            given, of_one = _shapes(state), _shapes(self._memory_of_one)
            expected = {name: (num, *shape[1:]) for name, shape in of_one.items()}
            is_size = given.keys() == expected.keys()
            wrong = next((name for name in expected if is_size and given[name] != expected[name]), None)
            what = "the state that the last call returned" + (", a dict of arrays" if expected else ", None")
            got = f"a dict with {', '.join(map(repr, state))}" if isinstance(state, dict) else repr(state)
            if wrong is not None:
                what, got = f"shape {expected[wrong]} at {wrong}, for {num} envs", f"shape {given[wrong]}"
            raise ValueError(
                f"{where}(state): expected {what}, got {got}. Pass None at the start of an episode, and after that the "
                f"state that {where.rpartition('.')[2]}() returned."
            )
        begins = [False] * num if starts is None else starts
        # it may have been stored as arrays in the meantime, or moved to another device
        memory: Any = map_leaves(lambda x, like: torch.as_tensor(x).to(like), state, self._memory_of_one)
        return memory, self._rows(f"{where}(starts)", num, begins, torch.bool)

    def _rewards(self, where: str, num: int, begins: Tensor, rewards: ArrayLike | None) -> Tensor | None:
        """Return ``rewards`` as a tensor ``[num]``, or None if the module sees no rewards. If it sees them, raise
        ValueError if ``rewards`` is None, unless the episodes of all envs start: then return zeros; or if the reward of
        an env whose episode does not start is not finite. ``begins`` ``[num]`` is true for envs whose episode starts.
        Error messages begin with ``where``."""
        if PREV_REWARD not in self._step.past:
            return None
        name = "reward" if where.endswith(".act") else "rewards"
        if rewards is None and begins.all():
            rewards = [0.0] * num
        if rewards is None:
            call = where.rpartition(".")[2]
            raise ValueError(
                f"{where}({name}): expected the reward of the last env.step(), which the module sees, got None. Call "
                f"{call}(obs, state, {name}={name}), except at the start of an episode."
            )
        seen = self._rows(f"{where}({name})", num, rewards, torch.float32)
        if len(wrong := seen[~(begins | seen.isfinite())]):
            raise ValueError(
                f"{where}({name}): expected finite rewards, got {wrong[0]}. Look for a sensor that failed, or an env "
                "that returns such rewards."
            )
        return seen

    def _rows(self, where: str, num: int, values: ArrayLike, dtype: torch.dtype) -> Tensor:
        """Return ``values`` as a tensor ``[num]`` of ``dtype``. Raise ValueError if they have another shape."""
        rows = torch.as_tensor(values, dtype=dtype, device=self.device)
        if rows.shape != (num,):
            raise ValueError(
                f"{where}: expected one number for each of the {num} observations, got shape {tuple(rows.shape)}. Pass "
                "what the vector env's step() returned."
            )
        return rows

    if not TYPE_CHECKING:  # so that type checkers still report unknown attributes
        __getattr__ = explain_unknown


def _shapes(state: Tree) -> dict[str, tuple[int, ...]]:
    """Return the shape of each leaf of ``state``, by the leaf's path, joined by dots."""
    return {".".join(map(str, path)): tuple(np.shape(leaf)) for path, leaf in tree.flatten_with_path(state)}


def _take_first(is_number: bool, actions: Tensor) -> Any:
    """Return the only action in a batch ``[1, ...]``, as an int if ``is_number``, otherwise as an array."""
    return int(actions) if is_number else _as_array(actions[0])


def _as_array(actions: Tensor) -> np.ndarray:
    return actions.cpu().numpy().copy()  # a copy: the state may share the memory
