"""Given the same rollout, weights and permutations, ours and a bare PyTorch loop end with the same weights.

The loop below shares no code with the learner: separate stacks of ``nn.Linear``, Adam over the list of their
parameters, ``clip_grad_norm_``, advantages in a Python loop. After k = 20 updates the weights differ by less than 1e-5
of the way they went: both run in float32 and add the same numbers in another order.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from algorithms.ppo import PPOCatalog, PPOConfig, PPOLearner, PPOModule
from rlmodule import Columns, RLModuleSpec, Rollout

ID = "default_policy"
GAMMA, LAMBDA, CLIP, LR, EPOCHS, MINIBATCH, VF, ENTROPY, GRAD_CLIP = 0.97, 0.9, 0.2, 1e-3, 5, 32, 0.7, 0.01, 0.5
UPDATES = 20  # 128 rows in minibatches of 32, five times


def mlp(num_in: int, num_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(num_in, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, num_out))


class Bare:
    """The whole of PPO without a framework."""

    def __init__(self, num_in: int, num_actions: int, discrete: bool) -> None:
        self.actor, self.critic = mlp(num_in, num_actions), mlp(num_in, 1)
        self.log_std = None if discrete else nn.Parameter(torch.zeros(num_actions))
        self.parameters = [*self.actor.parameters(), *self.critic.parameters()]
        if self.log_std is not None:
            self.parameters.append(self.log_std)
        self.optimizer = torch.optim.Adam(self.parameters, lr=LR, eps=1e-5)

    def logp_and_entropy(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        out = self.actor(obs)
        if self.log_std is None:
            dist: torch.distributions.Distribution = torch.distributions.Categorical(logits=out)
            return dist.log_prob(actions), dist.entropy()
        dist = torch.distributions.Normal(out, self.log_std.exp())
        return dist.log_prob(actions).sum(-1), dist.entropy().sum(-1)

    def advantages(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        steps, slots = rollout.shape
        rewards, terminated, truncated = (
            rollout[name].tolist() for name in (Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)
        )
        with torch.no_grad():
            values, last, finals = (
                self.critic(obs).squeeze(-1).tolist()
                for obs in (rollout[Columns.OBS], rollout.last_obs, rollout.final_obs)
            )
        cut_off = {tuple(place): value for place, value in zip(rollout.final_index.tolist(), finals, strict=True)}
        advantages = torch.zeros(steps, slots)
        for n in range(slots):
            running = 0.0
            for t in reversed(range(steps)):
                following = values[t + 1][n] if t + 1 < steps else last[n]
                if terminated[t][n]:
                    following, running = 0.0, 0.0
                elif truncated[t][n]:
                    following, running = cut_off[t, n], 0.0
                running = rewards[t][n] + GAMMA * following - values[t][n] + GAMMA * LAMBDA * running
                advantages[t, n] = running
        return advantages, advantages + torch.tensor(values)

    def update(self, rollout: Rollout, generator: torch.Generator) -> int:
        advantages, targets = (x.flatten() for x in self.advantages(rollout))
        advantages = (advantages - advantages.mean()) / (advantages.std(unbiased=False) + 1e-8)
        obs, actions, old_logp = (
            rollout[name].flatten(0, 1) for name in (Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP)
        )
        updates = 0
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(advantages), generator=generator).split(MINIBATCH):
                logp, entropy = self.logp_and_entropy(obs[rows], actions[rows])
                ratio = (logp - old_logp[rows]).exp()
                surrogate = torch.min(ratio * advantages[rows], ratio.clamp(1 - CLIP, 1 + CLIP) * advantages[rows])
                value_error = (self.critic(obs[rows]).squeeze(-1) - targets[rows]) ** 2
                loss = -surrogate.mean() + VF * value_error.mean() - ENTROPY * entropy.mean()
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.parameters, GRAD_CLIP)
                self.optimizer.step()
                updates += 1
        return updates


def ours(observation_space: spaces.Space, action_space: spaces.Space) -> tuple[PPOLearner, PPOModule]:
    config = PPOConfig().training(
        gamma=GAMMA,
        lambda_=LAMBDA,
        clip_param=CLIP,
        lr=LR,
        num_epochs=EPOCHS,
        minibatch_size=MINIBATCH,
        vf_loss_coeff=VF,
        entropy_coeff=ENTROPY,
        grad_clip=GRAD_CLIP,
    )
    model = {
        "fcnet_hiddens": [16, 16],
        "fcnet_activation": "tanh",
        "vf_share_layers": False,
        "free_log_std": True,
        "normalize_observations": False,
        "normalize_values": False,
    }
    spec = RLModuleSpec(PPOModule, observation_space, action_space, model, PPOCatalog)
    torch.manual_seed(0)
    learner = PPOLearner(config, spec.as_multi(), run_seed=3)
    module = learner.module[ID]
    assert isinstance(module, PPOModule)
    return learner, module


def pairs(module: PPOModule, bare: Bare) -> list[tuple[Tensor, Tensor]]:
    """The same tensors on both sides, ours first."""
    actor = [*module.encoder.actor_encoder.parameters(), *module.pi_head.linears.parameters()]
    critic_encoder = module.encoder.critic_encoder
    assert critic_encoder is not None
    critic = [*critic_encoder.parameters(), *module.vf_head.parameters()]
    found = [*zip(actor, bare.actor.parameters(), strict=True), *zip(critic, bare.critic.parameters(), strict=True)]
    if bare.log_std is not None:
        found.append((module.pi_head.log_std, bare.log_std))
    assert len(found) == len(list(module.parameters()))
    return found


CASES: list[Any] = [
    pytest.param(spaces.Box(-np.inf, np.inf, (4,), np.float32), spaces.Discrete(2), id="discrete"),
    pytest.param(spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Box(-1, 1, (2,), np.float32), id="gaussian"),
]


@pytest.mark.parametrize(("observation_space", "action_space"), CASES)
def test_weights_equal_those_of_a_bare_loop(
    observation_space: spaces.Box, action_space: spaces.Space, make_rollout: Callable[..., Rollout]
) -> None:
    learner, module = ours(observation_space, action_space)
    discrete = isinstance(action_space, spaces.Discrete)
    bare = Bare(observation_space.shape[0], spaces.flatdim(action_space), discrete)
    with torch.no_grad():
        for mine, theirs in pairs(module, bare):
            theirs.copy_(mine)
    rollout = make_rollout(module, steps=32, slots=4)
    assert len(rollout.final_index) > 5
    assert rollout[Columns.TERMINATEDS].sum() > 5
    generator = torch.Generator()
    generator.set_state(learner.generator.get_state())
    start = torch.cat([theirs.detach().flatten() for _, theirs in pairs(module, bare)])

    learner.update_from_episodes(rollout, env_steps=0)
    assert bare.update(rollout, generator) == learner.num_updates == UPDATES

    mine, theirs = (torch.cat([x.detach().flatten() for x in side]) for side in zip(*pairs(module, bare), strict=True))
    assert (theirs - start).norm() > 0.02 * start.norm()
    assert (mine - theirs).norm() < 1e-5 * (theirs - start).norm()
