"""What the tests of PPO are fed."""

from collections.abc import Callable

import pytest
import torch
from gymnasium import spaces

from rlmodule import Columns, RLModule, Rollout


def made_up_rollout(
    module: RLModule, *, steps: int = 16, slots: int = 4, seed: int = 0, invalid: bool = False, scale: float = 1.0
) -> Rollout:
    """Random observations and rewards with actions of ``module``; episodes terminate and truncate here and there.

    With ``invalid``, the row after each end is a reset row, as next-step autoreset has it, with absurd contents.
    """
    generator = torch.Generator().manual_seed(seed)
    space = module.observation_space
    width = spaces.flatdim(space)

    def observe(*leading: int) -> torch.Tensor:
        if isinstance(space, spaces.Discrete):
            return torch.randint(width, leading, generator=generator)
        return torch.randn(*leading, width, generator=generator)

    obs = observe(steps, slots)
    chance = torch.rand(steps, slots, generator=generator)
    terminated, truncated = chance < 0.1, (chance >= 0.1) & (chance < 0.2)
    valid = torch.ones(steps, slots, dtype=torch.bool)
    rewards = scale * torch.randn(steps, slots, generator=generator)
    if invalid:
        for t in range(1, steps):
            valid[t] = ~(terminated | truncated)[t - 1]
            terminated[t] &= valid[t]
            truncated[t] &= valid[t]
        rewards[~valid] = 1e6
    final_index = truncated.nonzero()
    with torch.no_grad():
        inputs = module.forward_exploration({Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS]
        dist = module.action_dist_cls.from_logits(inputs)
        actions = dist.sample(generator)
        columns = {
            Columns.OBS: obs,
            Columns.ACTIONS: actions,
            Columns.REWARDS: rewards,
            Columns.TERMINATEDS: terminated,
            Columns.TRUNCATEDS: truncated,
            Columns.VALID: valid,
            Columns.ACTION_DIST_INPUTS: inputs,
            Columns.ACTION_LOGP: dist.logp(actions),
        }
    return Rollout(
        columns=columns, last_obs=observe(slots), final_index=final_index, final_obs=observe(len(final_index))
    )


@pytest.fixture
def make_rollout() -> Callable[..., Rollout]:
    return made_up_rollout
