"""One run with its learners here, in a process of their own, or in two: the same weights, and checkpoints for all."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms import Algorithm
from algorithms.dqn import DQNConfig
from algorithms.ppo import PPOConfig
from rlmodule.distributed.failures import WorkerFailed
from rlmodule.groups.remote_learner_group import RemoteLearnerGroup
from rlmodule.testing.data import clone, differences

pytestmark = pytest.mark.usefixtures("ray_started")

BATCH = 256


def ppo(num_learners: int) -> PPOConfig:
    each = max(1, num_learners)
    return (
        PPOConfig(env="CartPole-v1", seed=1)
        .env_runners(num_envs_per_env_runner=4)
        .learners(num_learners=num_learners, num_cpus_per_learner=0.1)
        .training(train_batch_size_per_learner=BATCH // each, minibatch_size=64 // each, num_epochs=2)
    )


def dqn(num_learners: int) -> DQNConfig:
    return (
        DQNConfig(env="CartPole-v1", seed=1)
        .env_runners(num_envs_per_env_runner=4)
        .learners(num_learners=num_learners, num_cpus_per_learner=0.1)
        .training(
            train_batch_size_per_learner=16 // max(1, num_learners),
            num_steps_sampled_before_learning_starts=32,
        )
        .reporting(num_env_steps_per_iteration=64)
    )


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on a clock."""
    return {"learners": result["learners"], "return": result["env_runners"]["episode_return_mean"]}


@pytest.mark.faults
def test_ppo_learns_alike_wherever_its_learners_are_and_its_checkpoint_is_good_anywhere(tmp_path: Path) -> None:
    results, states = {}, {}
    for num_learners in (0, 1, 2):
        with ppo(num_learners).build() as algorithm:
            results[num_learners] = [numbers(algorithm.train())]
            states[num_learners] = [clone(algorithm.get_state()["learners"])]
            assert algorithm.learner_group.num_updates == 8
            if num_learners < 2:
                results[num_learners].append(numbers(algorithm.train()))
                states[num_learners].append(clone(algorithm.get_state()["learners"]))
            if num_learners == 1:
                goes_on_alike(algorithm, tmp_path, num_learners=0)
    assert results[1] == results[0]
    assert differences(states[1], states[0]) == []
    ours, theirs = (states[n][0]["module"]["default_policy"] for n in (2, 0))
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-6)
    for name, value in results[0][0]["learners"]["default_policy"].items():
        assert results[2][0]["learners"]["default_policy"][name] == pytest.approx(value, rel=1e-3, abs=1e-5)


def goes_on_alike(algorithm: Algorithm, path: Path, **settings: Any) -> None:
    """That ``algorithm`` and what is made of its checkpoint learn the same from now on. Envs start again in both."""
    algorithm.save(path)
    with Algorithm.from_checkpoint(path, **settings) as other:
        state = clone(other.get_state())
        assert differences(state["learners"], algorithm.get_state()["learners"]) == []
        algorithm.set_state(state)
        for _ in range(2):
            assert numbers(algorithm.train())["learners"] == numbers(other.train())["learners"]
        assert differences(other.get_state()["learners"], algorithm.get_state()["learners"]) == []
        assert other.learner_group.num_updates == algorithm.learner_group.num_updates


@pytest.mark.faults
@pytest.mark.parametrize("num_learners", [1, 2])
def test_dqn_goes_on_from_a_checkpoint_with_learners_elsewhere(tmp_path: Path, num_learners: int) -> None:
    with dqn(num_learners).build() as algorithm:
        for _ in range(2):
            algorithm.train()
        updates = algorithm.learner_group.num_updates
        assert updates == algorithm.learner_group.get_state()["num_updates"] > 0
        rollout = algorithm.sample_rollouts()[0]
        assert rollout.policy_version == updates
        goes_on_alike(algorithm, tmp_path, num_learners=num_learners)


@pytest.mark.faults
def test_dqn_can_be_saved_after_its_learners_failed_for_good(tmp_path: Path) -> None:
    with dqn(1).fault_tolerance(restart_failed_learners=False).build() as algorithm:
        for _ in range(2):
            algorithm.train()
        group, state = algorithm.learner_group, clone(algorithm.get_state()["learners"])
        batch = algorithm.replay.sample(16, beta=0.4).batch  # type: ignore[attr-defined]
        group.step_on_batch(batch, env_steps=500)  # which is never passed on
        assert isinstance(group, RemoteLearnerGroup)
        (pid,) = group.workers.pids()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerFailed, match="learner 0"):
            algorithm.train()
        num_transitions = algorithm.replay.num_transitions  # type: ignore[attr-defined]
        algorithm.save(tmp_path)
    with Algorithm.from_checkpoint(tmp_path, num_learners=0) as other:
        saved = other.get_state()["learners"]
        by_the_script = {f"/module/default_policy/{name}" for name in ("epsilon", "greedy_bonus")}  # which got further
        assert {*differences(saved, state)} <= by_the_script
        assert other.replay.num_transitions == num_transitions  # type: ignore[attr-defined]
        other.train()


@pytest.mark.faults
@pytest.mark.parametrize(("before", "after"), [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)])
def test_a_checkpoint_of_dqn_is_good_for_learners_anywhere(tmp_path: Path, before: int, after: int) -> None:
    """Where learners are in other processes, the weights that act follow once per iteration, so the data differ."""
    with dqn(before).build() as algorithm:
        for _ in range(2):
            algorithm.train()
        algorithm.save(tmp_path)
        settings: dict[str, Any] = {"num_learners": after, "train_batch_size_per_learner": 16 // max(1, after)}
        with Algorithm.from_checkpoint(tmp_path, **settings) as other:
            assert differences(other.get_state()["learners"], algorithm.get_state()["learners"]) == []
            assert differences(other.policy.module.get_state(), algorithm.policy.module.get_state()) == []
            batch = algorithm.replay.sample(16, beta=0.4).batch  # type: ignore[attr-defined]
            for group in (algorithm.learner_group, other.learner_group):
                group.step_on_batch(clone(batch), env_steps=500)
            mine, theirs = (each.learner_group.get_state() for each in (algorithm, other))
            assert mine["num_updates"] == theirs["num_updates"]
            for name, _ in algorithm.get_module().named_parameters():
                ours, expected = (each["module"]["default_policy"][name] for each in (theirs, mine))
                torch.testing.assert_close(ours, expected, rtol=0, atol=1e-6)
            other.train()
