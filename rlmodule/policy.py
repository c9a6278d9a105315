"""Policy: one object for acting, the same in training, evaluation and deployment."""

import numpy as np
import torch
import tree

from catalog.base import Tree
from catalog.errors import explain_error
from catalog.spaces import to_tensor
from rlmodule.columns import Columns
from rlmodule.module import RLModule, greedy_actions


class Policy:
    """Acts with a module; normalisation and action conversion are part of the module, so nothing else is needed.

    Args:
        module: The module to act with; put into eval mode.
        generator: Draws the actions of ``act(explore=True)``; None starts one of its own at seed 0.
    """

    def __init__(self, module: RLModule, generator: torch.Generator | None = None) -> None:
        self.module = module.eval()
        self.generator = torch.Generator().manual_seed(0) if generator is None else generator

    @torch.inference_mode()
    def act(self, obs: Tree, state: Tree | None = None, *, explore: bool = False) -> tuple[Tree, Tree | None]:
        """The action for one observation of the env, ready for ``env.step``.

        Args:
            obs: One observation as the env returns it.
            state: What the last call returned as state; None at the start of an episode.
            explore: Sample the action; False takes the most likely one.

        Returns:
            The action (an int for Discrete, else an array) and the next state (None for stateless modules).

        Raises:
            ValueError: If ``obs`` does not lie in the observation space by shape.
        """
        expected = tree.map_structure(np.shape, self.module.observation_space.sample())
        if tree.map_structure(np.shape, obs) != expected:
            raise ValueError(
                explain_error(
                    "Policy.act(obs)",
                    expected=f"one observation of {self.module.observation_space}",
                    got=f"shape {tree.map_structure(np.shape, obs)}",
                    remedy="Pass what env.reset() or env.step() of a single (not a vector) env returned.",
                )
            )
        batch = {Columns.OBS: tree.map_structure(lambda leaf: to_tensor(np.asarray(leaf)[None]), obs)}
        if explore:
            out = self.module.forward_exploration(batch)
            actions = self.module.action_dist_cls.from_logits(out[Columns.ACTION_DIST_INPUTS]).sample(self.generator)
        else:
            actions = greedy_actions(self.module, self.module.forward_inference(batch))
        action = self.module.action_converter(actions)[0].numpy()
        return (action.item() if action.ndim == 0 else action), None
