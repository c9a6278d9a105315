"""Ray Tune searches settings by dotted names: each trial has its own structure and room, and goes on after a pause."""

import signal
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import ray
import torch
from ray import tune
from ray.tune.schedulers import FIFOScheduler

from algorithms import Algorithm
from algorithms.ppo import PPOConfig
from algorithms.ray_tune import resources, tuner
from algorithms.run.checkpoints import read_checkpoint
from algorithms.run.run_folder import flatten
from algorithms.tuning.point import applied
from catalog import Categorical, DefaultModelConfig
from catalog.registry import distributions
from rlmodule.agents.cartpoles import CartPoles


def config(**settings: Any) -> PPOConfig:
    made = PPOConfig(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
    return made.rl_module(model_config={"fcnet_hiddens": [8]}).update(settings)


def several(**settings: Any) -> PPOConfig:
    return config(**settings).environment(CartPoles).multi_agent(policies="own")


class PausesOnce(FIFOScheduler):
    """Pauses each trial at iteration 3 and runs it again after the others."""

    def __init__(self) -> None:
        super().__init__()
        self.paused: set[str] = set()
        self.returns: list[float] = []
        self.iterations = defaultdict[str, list[int]](list)

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> str:
        self.returns.append(result["env_runners/episode_return_mean"])
        self.iterations[trial.trial_id].append(result["training_iteration"])
        if result["training_iteration"] != 3 or trial.trial_id in self.paused:
            return self.CONTINUE
        self.paused.add(trial.trial_id)
        return self.PAUSE


def count_modules(algorithm: Algorithm, result: dict[str, Any]) -> None:
    algorithm.metrics.log_value("num_modules", len(algorithm.learner_group.module))
    algorithm.metrics.log_value("num_agents", algorithm.config.env_config["num_agents"])


@pytest.fixture(scope="module", autouse=True)
def handler() -> Iterator[None]:
    """Tune leaves its own handler of Ctrl-C."""
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def searched(ray_started: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[PausesOnce, list[Any]]:
    """The scheduler and the results of a grid over the number of agents."""
    scheduler, folder = PausesOnce(), tmp_path_factory.mktemp("tune")
    search = tuner(
        several(on_train_result=count_modules),
        {"env_config.num_agents": tune.grid_search([2, 3])},
        num_env_steps=5 * 64,
        checkpoint_interval=2,
        tune_config=tune.TuneConfig(scheduler=scheduler, reuse_actors=True, max_concurrent_trials=1),
        run_config=tune.RunConfig(storage_path=str(folder), verbose=0),
    )
    results = search.fit()
    assert not results.errors
    return scheduler, [*results]


@pytest.mark.end_to_end
def test_each_trial_has_as_many_modules_as_agents_and_so_has_its_checkpoint(searched: Any) -> None:
    for num_agents, result in zip((2, 3), searched[1], strict=True):
        rows = result.metrics_dataframe
        assert result.config == {"env_config.num_agents": num_agents}
        assert {*rows["custom_metrics/num_agents"]} == {*rows["custom_metrics/num_modules"]} == {num_agents}
        saved = read_checkpoint(Path(result.checkpoint.path))
        assert [*saved["modules"]] == [f"cart_{i}" for i in range(num_agents)]
        with Algorithm.from_checkpoint(result.checkpoint.path, on_train_result=None) as algo:
            assert len(algo.policies) == algo.config.env_config["num_agents"] == num_agents


@pytest.mark.end_to_end
@pytest.mark.usefixtures("ray_started")
def test_a_trial_knows_what_a_script_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Cold(Categorical):  # travels by value, as a class of a script does
        pass

    monkeypatch.setitem(distributions._known, "cold", Cold)
    changed = replace(gym.spec("CartPole-v1"), max_episode_steps=3)
    monkeypatch.setitem(gym.registry, "CartPole-v1", changed)
    results = tuner(
        config(env="CartPole-v1").rl_module(model_config={"custom_action_dist": "cold"}),
        {"lr": tune.grid_search([1e-3])},
        num_env_steps=64,
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert not results.errors
    assert results[0].metrics["env_runners/episode_len_mean"] == 3  # type: ignore[index]


@pytest.mark.end_to_end
def test_schedulers_get_a_number_before_an_episode_has_ended(searched: Any) -> None:
    returns = searched[0].returns
    assert np.isnan(returns[0])
    assert np.isfinite(returns[-1])


@pytest.mark.end_to_end
def test_a_trial_that_was_paused_equals_one_that_was_not(searched: Any) -> None:
    """The pause comes an iteration after the last checkpoint, so that iteration is repeated."""
    scheduler, results = searched
    assert len(scheduler.paused) == 2
    for result in results:
        # On a busy machine, Ray's own table may lack the rows before the pause.
        assert scheduler.iterations[result.metrics["trial_id"]] == [1, 2, 3, 3, 4, 5]
        saved = read_checkpoint(Path(result.checkpoint.path))
        state = saved["state"]["learners"]["module"]
        with applied(several(seed=saved["run_seed"]), result.config).build() as algo:
            for _ in range(5):
                expected = dict(flatten(algo.train()))
            for module_id, module in algo.learner_group.module.items():
                for name, weight in module.state_dict().items():
                    assert torch.equal(state[module_id][name], weight)
        for name, value in expected.items():
            if not name.startswith(("time", "env_runners/num_env_steps_per_second")):
                np.testing.assert_equal(result.metrics[name], value)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"lrr": tune.uniform(0, 1)}, "setting, got the unknown name 'lrr'.* Did you mean 'lr'"),
        ({"learning_rate": 1e-3}, r"unknown name 'learning_rate'. Use \.training\(lr=\.\.\.\)"),
        ({"fcnet_hiddens": tune.choice([[8]])}, r"got a model setting. Search 'model_config\.fcnet_hiddens'"),
        ({"model_config.fcnet_hidens": tune.choice([[8]])}, "'fcnet_hidens'. Did you mean 'fcnet_hiddens'"),
        ({"env_config.num_agnets": tune.grid_search([2])}, "'num_agnets'.* Did you mean 'num_agents'"),
        ({"evn_config.num_agents": 2}, "'evn_config'.* Did you mean 'env_config'"),
        ({"lr.start": 1e-3}, "'lr.start': expected a setting with entries, got lr = 0.0003. Search 'lr' itself"),
        ({"lr": tune.grid_search([1e-3, -1.0])}, "lr=.*>= 0, got -1.0"),
        ({"num_epochs": tune.uniform(1, 3)}, "num_epochs=.*int"),
        ({"num_envs_per_env_runner": tune.grid_search([8, 5])}, "nearest batch size that works is 65"),
        ({"lr": tune.sample_from(lambda spec: -spec.config["num_epochs"]), "num_epochs": 2}, "lr=.*got -2"),
    ],
)
def test_what_a_trial_would_refuse_is_refused_before_ray_starts(space: dict[str, Any], message: str) -> None:
    was_started = ray.is_initialized()  # by another test
    with pytest.raises((TypeError, ValueError), match=message):
        tuner(several(), space, num_env_steps=64)
    assert ray.is_initialized() == was_started


def test_an_entry_that_a_registered_env_does_not_take_is_refused() -> None:
    with pytest.raises(RuntimeError, match="unexpected keyword argument 'gravity_'"):
        tuner(config(env="CartPole-v1"), {"env_config.gravity_": 9.8}, num_env_steps=64)


def test_a_config_without_an_env_is_refused() -> None:
    with pytest.raises(ValueError, match="env: expected an environment"):
        tuner(config(), {"lr": 1e-3}, num_env_steps=64)


@pytest.mark.parametrize("wrong", [{"num_env_steps": 0}, {"num_env_steps": 64, "checkpoint_interval": 0}])
def test_a_budget_must_be_positive(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=rf"^{[*wrong][-1]}: expected finite int.* >= 1, got 0\."):
        tuner(several(), {}, **wrong)


@pytest.mark.parametrize("model_config", [None, {"fcnet_hiddens": [8]}, DefaultModelConfig(fcnet_hiddens=(8,))])
def test_a_point_is_placed_below_what_the_config_has(model_config: Any) -> None:
    base = several(model_config=model_config, env_config={"num_agents": 2}).freeze()
    point = {"lr": 1, "model_config.fcnet_activation": "relu", "policy_overrides.cart_1.lr": 0.5}
    changed = applied(base, {**point, "model_config.functions.value.fcnet_hiddens": [16]})
    with changed.build() as algo:
        nets = [algo.get_module(f"cart_{i}").model_config for i in range(2)]
    hiddens = (64, 64) if model_config is None else (8,)
    assert [(net.fcnet_hiddens, net.fcnet_activation) for net in nets] == [(hiddens, "relu")] * 2
    assert changed.policy_overrides == {"cart_1": {"lr": 0.5}}
    assert changed.lr == 1.0
    assert base.lr == 3e-4
    assert base.model_config == model_config


def test_the_room_of_a_trial_is_for_itself_its_runners_and_its_learners() -> None:
    assert resources(config()).bundles == [{"CPU": 1}]
    assert resources(config(num_gpus_per_learner=1)).bundles == [{"CPU": 1, "GPU": 1}]
    workers = config(num_env_runners=2, num_cpus_per_env_runner=0.5, num_learners=1, num_gpus_per_learner=1)
    assert resources(workers).bundles == [{"CPU": 1}, *[{"CPU": 0.5}] * 2, {"CPU": 1, "GPU": 1}]
    assert resources(workers.copy().env_runners(num_cpus_per_env_runner=0)).bundles == [
        {"CPU": 1},
        {"CPU": 1, "GPU": 1},
    ]


@pytest.mark.usefixtures("ray_started")
def test_more_than_the_cluster_has_is_refused() -> None:
    space = {"num_env_runners": tune.grid_search([0, 4])}
    for at_once, asked in ((9, 9), (2, 10)):
        with pytest.raises(
            ValueError,
            match=f"max_concurrent_trials={at_once} with .* at most the 8 CPUs of the cluster, got {asked} CPUs",
        ):
            tuner(several(), space, num_env_steps=64, tune_config=tune.TuneConfig(max_concurrent_trials=at_once))
    with pytest.raises(ValueError, match=r"^a trial with num_env_runners=8, .* got 9 CPUs"):
        tuner(several(), {"num_env_runners": 8}, num_env_steps=64)
    tuner(several(), space, num_env_steps=64)  # one trial fits


def note_free_cpus(algorithm: Algorithm, result: dict[str, Any]) -> None:
    algorithm.metrics.log_value("free_cpus", ray.available_resources().get("CPU", 0.0))


@pytest.mark.faults
def test_runners_stay_in_the_room_of_their_trial(tmp_path: Path) -> None:
    """Two trials with a runner each, on two CPUs: the second waits for both, and neither holds what the other needs."""
    ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=150_000_000)
    try:
        search = tuner(
            several(num_env_runners=1, on_train_result=note_free_cpus),
            {"seed": tune.grid_search([1, 2])},
            num_env_steps=64,
            run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
        )
        results = search.fit()
        assert not results.errors
        assert [result.metrics["custom_metrics/free_cpus"] for result in results] == [0.0, 0.0]
        with pytest.raises(ValueError, match="at most the 2 CPUs of the cluster, got 3 CPUs"):
            tuner(several(), {"num_env_runners": 2}, num_env_steps=64)
    finally:
        ray.shutdown()
