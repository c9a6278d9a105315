"""Groups, as an algorithm sees them."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlmodule import BatchLearner, Columns, EnvRunnerGroup, EpisodeLearner, Learner, LearnerGroup, RLModuleSpec
from rlmodule.testing import clone, differences, random_rollout
from tests.rlmodule.toys import Regression, Reinforce, Settings, Small

SPEC = RLModuleSpec(Small, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2))


def learners(cls: type[Learner], seed: int = 0) -> LearnerGroup:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LearnerGroup(Settings(), cls, SPEC.as_multi(), run_seed=seed)


def batch() -> dict[str, Any]:
    return {Columns.OBS: torch.ones(2, 4), "target": torch.ones(2, 2)}


def test_each_learner_is_fed_its_own_way() -> None:
    episodic, batched = learners(Reinforce), learners(Regression)
    rollout = random_rollout(episodic.get_module("default_policy"), 8, 2)
    assert "default_policy" in episodic.update_from_episodes(rollout, env_steps=16)
    assert episodic.num_updates > 0
    assert "default_policy" in batched.update_from_batch(batch(), env_steps=16)
    assert batched.num_updates == 1
    with pytest.raises(TypeError, match=r"update_from_batch\(\).*Reinforce.*Call update_from_episodes\(\)"):
        episodic.update_from_batch(batch(), env_steps=16)
    with pytest.raises(TypeError, match=r"update_from_episodes\(\).*Regression.*Call update_from_batch\(\)"):
        batched.update_from_episodes(rollout, env_steps=16)
    assert batched.num_updates == 1


def test_the_two_kinds_of_learner_do_not_share_their_ways() -> None:
    assert not hasattr(EpisodeLearner, "update_from_batch")
    assert not hasattr(BatchLearner, "update_from_episodes")


def test_learner_state_round_trip() -> None:
    one, two = learners(Regression, 0), learners(Regression, 1)
    one.update_from_batch(batch(), env_steps=16)
    two.set_state(clone(one.get_state()))
    assert differences(one.get_state(), two.get_state()) == []
    assert two.num_updates == 1


def test_the_local_runner_acts_with_the_learners_tensors() -> None:
    group, env_runners = learners(Regression), EnvRunnerGroup(Settings(), run_seed=0)
    learned = group.get_module("default_policy")
    env_runners.build_modules(SPEC, learned)
    acting = env_runners.local_runner.module
    assert acting is not learned
    assert acting.inference_only
    assert not acting.training
    for name, parameter in acting.named_parameters():
        assert parameter is learned.get_parameter(name)
    obs = {Columns.OBS: torch.ones(1, 4)}
    before = acting.forward_inference(obs)[Columns.ACTION_DIST_INPUTS]
    group.update_from_batch(batch(), env_steps=0)
    after = acting.forward_inference(obs)[Columns.ACTION_DIST_INPUTS]
    assert not torch.equal(before, after)
    assert torch.equal(after, learned.eval().forward_inference(obs)[Columns.ACTION_DIST_INPUTS])


def test_runner_group_samples_and_restores() -> None:
    groups = [EnvRunnerGroup(Settings(), run_seed=0) for _ in range(2)]
    for group in groups:
        group.build_modules(SPEC, learners(Regression).get_module("default_policy"))
    (rollout,) = groups[0].sample(5, policy_version=3)
    assert rollout.shape == (5, 3)
    assert rollout.policy_version == 3
    groups[1].set_state(groups[0].get_state())
    assert differences(groups[0].get_state(), groups[1].get_state()) == []
    assert isinstance(groups[0].observation_space, spaces.Box)
    assert groups[0].action_space == spaces.Discrete(2)
    greedy = [next(group.sample(4, explore=False)) for group in groups]
    assert len({tuple(g[Columns.ACTIONS].shape) for g in greedy}) == 1
    for group in groups:
        group.stop()
