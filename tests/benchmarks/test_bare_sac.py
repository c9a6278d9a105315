"""The loop of SAC that we measure ourselves against must itself be right, and do the same arithmetic."""

from dataclasses import replace

import numpy as np
import torch

from algorithms.sac import SACLearner
from benchmarks.bare_sac import Agent, train
from benchmarks.jobs import SAC_JOBS
from benchmarks.ours_sac import config
from rlmodule import Columns

JOB = replace(SAC_JOBS["sac-pendulum"], num_envs=2, batch_size=16, capacity=64, learning_starts=16, warm_up=32)


def test_ours_comes_to_the_same_weights_from_the_same_batch() -> None:
    with config(JOB, seed=0).build() as algorithm:
        learner, module = algorithm.learner_group.learner, algorithm.get_module()
        assert isinstance(learner, SACLearner)
        agent = Agent(3, 1, JOB.lr)
        policy = [*module.encoder.actor_encoder.parameters(), *module.pi_head.parameters()]
        critics, target = (
            [p for stack in (net.qf.body, net.qf.head) for p in stack.parameters()]
            for net in (module, learner.target["default_policy"])
        )
        theirs = [p for pair in zip(agent.critics.weights, agent.critics.biases, strict=True) for p in pair]
        old = [p for pair in zip(agent.target.weights, agent.target.biases, strict=True) for p in pair]
        pairs = [*zip(policy, agent.policy.parameters(), strict=True), *zip(critics, theirs, strict=True)]
        pairs += [*zip(target, old, strict=True), (module.temperature.log_alpha, agent.log_alpha)]
        with torch.no_grad():
            for mine, other in pairs:
                other.copy_(mine)
        rng = np.random.default_rng(0)
        obs, after, rewards = (torch.from_numpy(rng.standard_normal(s, np.float32)) for s in ((16, 3), (16, 3), 16))
        actions, ended = torch.rand(16, 1) * 2 - 1, (torch.rand(16) < 0.2).float()
        batch = {Columns.OBS: obs, Columns.ACTIONS: actions, Columns.REWARDS: rewards, Columns.NEXT_OBS: after}
        batch[Columns.DISCOUNTS] = JOB.gamma * (1 - ended)
        drawn = []
        draw = learner.draw_noise
        learner.draw_noise = lambda *args, **more: drawn.append(draw(*args, **more)) or drawn[-1]  # type: ignore
        before = torch.cat([p.detach().flatten() for p in agent.policy.parameters()])
        for _ in range(3):
            learner.step_on_batch(batch, env_steps=0)
            agent.update(JOB, (obs, actions, rewards, after, ended), drawn[-1])
        moved = torch.cat([p.detach().flatten() for p in agent.policy.parameters()]) - before
        assert float(moved.abs().max()) > JOB.lr
        for mine, other in pairs:
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-6)


def test_a_few_timed_steps_depend_on_the_seed_alone() -> None:
    job = replace(JOB, env_id="Pendulum-v1", learning_starts=380)
    first, again, other = (train(job, 420, seed)["late_return"] for seed in (3, 3, 4))
    assert first == again != other
    assert -2000 < first < 0
