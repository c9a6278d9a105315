"""Runs of one seed are equal, whatever ran before them in the process."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from algorithms import Algorithm
from algorithms.a2c import A2CConfig
from algorithms.appo import APPOConfig
from algorithms.dqn import DQNConfig
from algorithms.impala import IMPALAConfig
from algorithms.ppo import PPOConfig, PPOLearner
from algorithms.run.threads import threads_for
from algorithms.sac import SACConfig
from algorithms.td3 import TD3Config
from rlmodule import Rollout
from rlmodule.agents.cartpoles import CartPoles
from tests.checkpoints import rewrite


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def first_weights(threads: int) -> list[torch.Tensor]:
    torch.set_num_threads(threads)
    with PPOConfig().environment("CartPole-v1").debugging(seed=1).build() as algo:
        return [parameter.detach().clone() for parameter in algo.get_module().parameters()]


def test_first_weights_do_not_depend_on_how_many_threads_torch_has(threads: None) -> None:
    assert all(torch.equal(one, two) for one, two in zip(first_weights(1), first_weights(2), strict=True))


def test_a_large_net_gets_the_threads_there_were_before_it_was_built(threads: None) -> None:
    torch.set_num_threads(2)
    config = PPOConfig().environment("CartPole-v1").rl_module(model_config={"fcnet_hiddens": [1024, 512]})
    with config.build():
        assert torch.get_num_threads() == 2


SHORT: dict[str, Any] = {"env": "CartPole-v1", "num_envs_per_env_runner": 2, "train_batch_size_per_learner": 32}
SHORT["minibatch_size"] = 16


@pytest.mark.parametrize(
    "config",
    [
        A2CConfig(**SHORT),
        IMPALAConfig(**SHORT, num_env_steps_per_iteration=96),
        APPOConfig(**SHORT, num_env_steps_per_iteration=96),
    ],
    ids=["A2C", "IMPALA", "APPO"],
)
def test_actor_critics_repeat_in_one_process(config: Any) -> None:
    def weights(seed: int) -> torch.Tensor:
        with config.copy().debugging(seed=seed).build() as algo:
            algo.train()
            return torch.cat([parameter.detach().flatten() for parameter in algo.get_module().parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


SMALL_NET = {"fcnet_hiddens": [64, 64]}
WITH_MEMORY = {"use_lstm": True, "max_seq_len": 32}


@pytest.mark.parametrize(
    ("config", "num_threads"),
    [
        (SACConfig(env="Pendulum-v1"), 2),
        (TD3Config(env="Pendulum-v1"), 2),
        (SACConfig(env="Pendulum-v1", train_batch_size_per_learner=1024), 10),
        (SACConfig(env="Pendulum-v1", train_batch_size_per_learner=128, model_config=SMALL_NET), 1),
        (SACConfig(env="Pendulum-v1", model_config=WITH_MEMORY), 1),  # the steps of a sequence follow each other
        (SACConfig(env="Pendulum-v1", num_gpus_per_learner=1), 1),
        (SACConfig(env="Pendulum-v1", num_learners=1), 1),
        (PPOConfig(env="CartPole-v1"), 1),
        (PPOConfig(env="CartPole-v1", model_config={"fcnet_hiddens": [256, 256]}), 1),
        (PPOConfig(env="CartPole-v1", model_config={"fcnet_hiddens": [256, 256]}, minibatch_size=None), 13),
        (A2CConfig(env="CartPole-v1"), 1),
        (IMPALAConfig(env="CartPole-v1", model_config={"fcnet_hiddens": [256, 256]}), 1),
        (APPOConfig(env="CartPole-v1", model_config={"fcnet_hiddens": [256, 256]}, minibatch_size=None), 3),
        (DQNConfig(env="CartPole-v1"), 1),
        (PPOConfig(env="CartPole-v1", model_config={"fcnet_hiddens": [1024, 512]}), 16),
    ],
)
def test_threads_follow_from_the_work_of_a_gradient_step_and_the_cores(config: Any, num_threads: int) -> None:
    modules = config.get_module_spec(*config.spaces_of()).as_multi().build()
    config = config.copy().freeze()
    assert threads_for(config, modules, num_cores=16) == num_threads
    assert threads_for(config, modules, num_cores=2) == min(num_threads, 2)


def test_many_small_policies_compute_on_one_thread() -> None:
    env_config = {"num_agents": 100}
    config: Any = DQNConfig(env=CartPoles, env_config=env_config, policies="own", model_config=SMALL_NET).freeze()
    modules = config.get_module_spec(*config.spaces_of()).build()
    assert threads_for(config, modules, num_cores=16) == 1


def test_a_run_that_resumes_keeps_its_threads_unless_given_others(threads: None, tmp_path: Path) -> None:
    torch.set_num_threads(2)
    with SACConfig(env="Pendulum-v1").build() as algo:
        assert algo.num_threads == torch.get_num_threads() == 2
        algo.save(tmp_path / "c")
    torch.set_num_threads(1)  # as on another machine
    with Algorithm.from_checkpoint(tmp_path / "c") as algo:
        assert algo.num_threads == torch.get_num_threads() == 2
    assert torch.get_num_threads() == 1
    with Algorithm.from_checkpoint(tmp_path / "c", torch_num_threads=3) as algo:
        assert algo.num_threads == torch.get_num_threads() == 3
    rewrite(tmp_path / "c", lambda content: content["state"].pop("num_threads") and None)  # as before it was saved
    with Algorithm.from_checkpoint(tmp_path / "c") as algo:
        assert algo.num_threads == 1


def test_a_run_gives_the_threads_back_when_it_stops(threads: None) -> None:
    torch.set_num_threads(2)
    with PPOConfig().environment("CartPole-v1").build():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2


def test_threads_come_back_after_the_last_of_several_runs(threads: None) -> None:
    torch.set_num_threads(2)
    first, second = (PPOConfig().environment("CartPole-v1").build() for _ in range(2))
    assert torch.get_num_threads() == 1
    first.stop()
    second.stop()
    assert torch.get_num_threads() == 2


def test_a_run_computes_on_its_number_of_threads_in_whichever_thread_it_is_called(threads: None) -> None:
    counts: list[int] = []

    class Counting(PPOLearner):
        def preprocess_train_data(self, rollout: Rollout) -> Rollout:
            counts.append(torch.get_num_threads())
            return rollout

    def count(algorithm: Any, evaluation: Any) -> None:
        counts.append(torch.get_num_threads())

    def work() -> None:
        torch.set_num_threads(2)  # as a thread has it that computed before the run was built
        for call in (algo.train, lambda: algo.learn(num_env_steps=64), lambda: algo.evaluate(num_env_steps=4)):
            call()
            assert torch.get_num_threads() == 2

    torch.set_num_threads(2)
    settings: dict[str, Any] = {"num_envs_per_env_runner": 2, "train_batch_size_per_learner": 64, "num_epochs": 1}
    config = PPOConfig(env="CartPole-v1", on_evaluate_end=count, learner_class=Counting, **settings)
    with config.build() as algo:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(work).result()
        assert counts == [1, 1, 1]
        assert torch.get_num_threads() == 1
