"""A whole run: results, checkpoints that miss nothing, and randomness of its own."""

import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from algorithms import Algorithm
from algorithms.dqn import DQN
from algorithms.ppo import PPO, PPOCatalog, PPOConfig, PPOModule
from algorithms.run.evaluation import Evaluation
from algorithms.run.run_folder import RunReport
from rlmodule import Columns, RLModule, RLModuleSpec
from rlmodule.checkpoint import load_checkpoint, save_checkpoint
from rlmodule.testing.data import clone, differences, global_random_state
from tests.algorithms.dqn.conftest import tiny
from tests.checkpoints import rewrite

TIMERS = ["timers/env_step", "timers/forward", "timers/bookkeeping", "timers/value_pass", "timers/update"]
RESULT_KEYS = [
    "training_iteration",
    "time_total_s",
    "env_runners/episode_return_mean",
    "env_runners/episode_return_min",
    "env_runners/episode_return_max",
    "env_runners/episode_len_mean",
    "env_runners/num_episodes_lifetime",
    "env_runners/num_env_steps_sampled",
    "env_runners/num_env_steps_sampled_lifetime",
    "env_runners/num_env_steps_per_second",
    *TIMERS,
    "learners/default_policy/policy_loss",
    "learners/default_policy/vf_loss",
    "learners/default_policy/entropy",
    "learners/default_policy/gradient_norm",
    "learners/default_policy/total_loss",
    "learners/default_policy/clip_fraction",
    "learners/default_policy/approx_kl",
    "learners/default_policy/vf_explained_var",
    "learners/default_policy/learning_rate",
    "learners/default_policy/num_updates_skipped",
]
TIMED = {*TIMERS, "time_total_s", "env_runners/num_env_steps_per_second"}


def config_for(env: Any = "CartPole-v1", **settings: Any) -> Any:
    settings = {"num_envs_per_env_runner": 2, "train_batch_size_per_learner": 64, "seed": 3} | settings
    settings = {"minibatch_size": 32, "num_epochs": 2, "model_config": {"fcnet_hiddens": [8]}} | settings
    return PPOConfig(env=env, **settings)


def build(env: Any = "CartPole-v1", **settings: Any) -> PPO:
    algorithm = config_for(env, **settings).build()
    assert isinstance(algorithm, PPO)
    return algorithm


def flat(result: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in result.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}/")
        else:
            yield f"{prefix}{key}", value


def untimed(result: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in flat(result) if key not in TIMED}


def everything(state: Mapping[str, Any]) -> dict[str, Any]:
    """A state but for how long things took."""
    return {**state, "metrics": {**state["metrics"], "seconds": 0.0}}


class Lengths(gym.Env):
    """Env i plays episodes of its own length; each made one gets the next number."""

    lengths: ClassVar[tuple[int, ...]] = (2, 7, 30)
    made: ClassVar[int] = 0
    seeds: ClassVar[list[int | None]] = []
    closed: ClassVar[int] = 0
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)  # type: ignore[assignment]

    def __init__(self) -> None:
        self.length = self.lengths[type(self).made % len(self.lengths)]
        type(self).made += 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.seeds.append(seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t >= self.length, False, {}

    def close(self) -> None:
        type(self).closed += 1


@pytest.fixture
def lengths() -> type[Lengths]:
    return type("Lengths", (Lengths,), {"made": 0, "closed": 0, "seeds": []})


def test_keys_of_a_result() -> None:
    with build() as algorithm:
        for _ in range(2):
            result = algorithm.train()
    assert [key for key, _ in flat(result)] == RESULT_KEYS
    assert len(RESULT_KEYS) <= 25
    assert all(type(value) in (int, float) for _, value in flat(result))
    assert json.loads(json.dumps(result)) == result
    assert result["training_iteration"] == 2
    runners = result["env_runners"]
    assert (runners["num_env_steps_sampled"], runners["num_env_steps_sampled_lifetime"]) == (64, 128)
    assert algorithm.env_steps == 128
    assert result["learners"]["default_policy"]["learning_rate"] == 3e-4
    assert 0 < result["learners"]["default_policy"]["entropy"] <= math.log(2)
    assert sum(result["timers"].values()) <= result["time_total_s"]


def test_return_is_nan_before_the_first_episode_ends() -> None:
    with build("Pendulum-v1") as algorithm:
        assert math.isnan(algorithm.train()["env_runners"]["episode_return_mean"])


def test_context_manager_closes_the_envs(lengths: type[Lengths]) -> None:
    with pytest.raises(ZeroDivisionError), build(lengths):
        raise ZeroDivisionError
    assert lengths.closed == 2


def test_the_policy_acts_with_the_current_weights() -> None:
    with build() as algorithm:
        policy, obs = algorithm.policy, np.array([0.1, 0.2, -0.3, 0.4])
        algorithm.train()
        batch = {Columns.OBS: torch.from_numpy(obs).float()[None]}
        logits = algorithm.get_module().forward_inference(batch)[Columns.ACTION_DIST_INPUTS]
        for each in (policy, algorithm.policy):
            assert each.act(obs) == (int(logits.argmax()), None)
        with torch.no_grad():
            last = list(algorithm.get_module().pi_head.parameters())[-1]  # type: ignore[union-attr]
            last.copy_(torch.tensor([-9.0, 9.0] if logits.argmax() == 0 else [9.0, -9.0]))
        assert policy.act(obs)[0] == 1 - int(logits.argmax())
        assert algorithm.policy.module.inference_only


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda algo: algo.learn(1000, len), TypeError, "got <built-in function len>. Call learn(num_env_steps"),
        (
            lambda algo: algo.learn(total_timesteps=1000),
            TypeError,
            "PPO.learn(): expected its documented arguments, got total_timesteps=. Call learn(num_env_steps=1000).",
        ),
        (
            lambda algo: algo.predict,
            AttributeError,
            "got 'predict'. Call policy.act(obs), which returns the action and",
        ),
        (
            lambda algo: algo.compute_single_action(0),
            AttributeError,
            "got 'compute_single_action'. Call policy.act(obs)",
        ),
        (lambda algo: algo.evalute(), AttributeError, "help(PPO) lists them. Did you mean 'evaluate'?"),
        (lambda algo: algo._nothing, AttributeError, "'PPO' object has no attribute '_nothing'"),
    ],
)
def test_calls_of_other_libraries_are_told_ours(call: Any, error: type[Exception], message: str) -> None:
    with build() as algorithm:
        with pytest.raises(error, match=re.escape(message)):
            call(algorithm)
        assert algorithm.env_steps == 0


def test_a_run_that_cannot_be_built_closes_its_envs(lengths: type[Lengths], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("no threads")

    monkeypatch.setattr("algorithms.algorithm.Threads", fail)  # the last part of a run
    with pytest.raises(RuntimeError, match="no threads"):
        build(lengths)
    assert lengths.closed == lengths.made > 0


def test_a_property_that_fails_tells_its_own_error() -> None:
    class Broken(PPO):
        @property
        def speed(self) -> float:
            config: Any = self.config
            return config.no_such_setting

    config = config_for()
    config.validate()
    with Broken(config.freeze()) as algorithm, pytest.raises(AttributeError, match="no_such_setting"):
        print(algorithm.speed)


def test_get_module_and_explain() -> None:
    with build() as algorithm:
        assert type(algorithm.get_module()) is PPOModule
        assert algorithm.get_module() is algorithm.get_module("default_policy")
        assert not algorithm.get_module().inference_only
        assert algorithm.explain().startswith("PPOCatalog")
        with pytest.raises(KeyError, match="default_policy"):
            algorithm.get_module("other")


def test_two_runs_of_one_seed_are_equal_to_the_bit() -> None:
    states, results = [], []
    for seed in (3, 3, 4):
        with build("Pendulum-v1", seed=seed) as algorithm:
            results.append([untimed(algorithm.train()) for _ in range(5)])
            states.append(clone(everything(algorithm.get_state())))
    assert differences(states[0], states[1]) == []
    assert differences(results[0], results[1]) == []
    changed = differences(states[0], states[2])
    weights = [name for name, p in algorithm.get_module().named_parameters() if p.dim() > 1]
    assert {f"/learners/module/default_policy/{name}" for name in weights} <= {*changed}


def test_dropout_too_draws_from_the_seed_and_not_from_another_process() -> None:
    weights = []
    for seed in (3, 3, 4):
        with build("CartPole-v1", seed=seed, model_config={"fcnet_dropout": 0.5}) as algorithm:
            torch.rand(seed)  # what else a process draws
            for _ in range(2):
                algorithm.train()
            weights.append(torch.cat([p.flatten() for p in algorithm.get_module().parameters()]))
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_a_module_that_is_asked_for_has_dropout_off(name: str, tmp_path: Path) -> None:
    config = (config_for if name == "PPO" else tiny)(model_config={"fcnet_hiddens": [32], "fcnet_dropout": 0.5})

    def is_steady(module: RLModule) -> bool:
        batch = {Columns.OBS: torch.ones(8, 4)}
        passes = [module.forward_inference, module.forward_exploration, module.forward_inference]
        inputs = [each(batch)[Columns.ACTION_DIST_INPUTS] for each in passes]
        # a product may round the last rows of a batch otherwise
        return torch.allclose(inputs[0], inputs[0][:1], atol=1e-6) and torch.equal(inputs[0], inputs[2])

    with config.build() as algorithm:
        assert is_steady(algorithm.get_module())
        assert is_steady(algorithm.module_spec.build())
        before = clone(algorithm.get_module().get_state())
        algorithm.train()
        assert differences(before, algorithm.get_module().get_state())
        assert is_steady(algorithm.get_module())
        algorithm.save(tmp_path / "c")
    with Algorithm.from_checkpoint(tmp_path / "c") as other:
        assert is_steady(other.get_module())


def test_a_run_without_a_seed_draws_one() -> None:
    seeds = set()
    for _ in range(3):
        with build(seed=None) as algorithm:
            seeds.add(algorithm.run_seed)
    assert len(seeds) == 3


def test_global_generators_are_left_alone() -> None:
    before = global_random_state()
    for env in ("CartPole-v1", "Pendulum-v1"):
        with build(env, evaluation_duration=1, use_kl_loss=True) as algorithm:
            algorithm.train()
            if env == "CartPole-v1":
                algorithm.evaluate()
            algorithm.explain()
    assert differences(before, global_random_state()) == []


SETTINGS: dict[str, Any] = {"use_kl_loss": True, "kl_target": 1e-7, "lr": [[0, 1e-3], [1000, 0.0]]}


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_checkpoint_goes_on_where_it_was(env: str, tmp_path: Path) -> None:
    with build(env, **SETTINGS) as algorithm:
        for _ in range(3):
            algorithm.train()
        algorithm.save(tmp_path / "c")
        with Algorithm.from_checkpoint(tmp_path / "c") as other:
            assert type(other) is PPO
            assert differences(algorithm.get_state(), other.get_state()) == []
            mine, theirs = (each.get_state()["learners"]["kl_coeff"] for each in (algorithm, other))
            assert theirs["default_policy"] == mine["default_policy"] > 0.2
            assert differences(algorithm.config.to_dict(), other.config.to_dict()) == []
            rng = np.random.default_rng(0)
            for _ in range(20):
                obs = rng.standard_normal(algorithm.env_runner_group.observation_space.shape)
                assert differences(algorithm.policy.act(obs), other.policy.act(obs)) == []
            for _ in range(2):
                results = [untimed(each.train()) for each in (algorithm, other)]
                assert differences(*results) == []
            assert results[1]["training_iteration"] == 5
            assert results[1]["env_runners/num_env_steps_sampled_lifetime"] == 5 * 64
            assert results[1]["learners/default_policy/learning_rate"] == pytest.approx(
                1e-3 * (1 - 0.256)
            )  # after 4 · 64 of 1,000 env steps
            assert differences(everything(algorithm.get_state()), everything(other.get_state())) == []


def test_a_run_without_a_seed_keeps_the_one_it_drew(tmp_path: Path) -> None:
    with build(seed=None) as algorithm:
        algorithm.train()
        algorithm.save(tmp_path / "c")
    with Algorithm.from_checkpoint(tmp_path / "c") as other:
        assert other.run_seed == algorithm.run_seed


def test_what_a_checkpoint_of_another_algorithm_says(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "c", {"algorithm": "PPOO", "run_seed": 0, "config": {}, "modules": {}, "state": {}})
    with pytest.raises(
        ValueError,
        match=r"expected one of A2C, APPO, BC, DDPG, DQN, IMPALA, IQL, MARWIL, PPO, SAC, TD3.*'PPOO'.*Did you mean",
    ):
        Algorithm.from_checkpoint(tmp_path / "c")


def test_set_state_takes_over_every_number(tmp_path: Path) -> None:
    """A state in which each tensor, counter and stream is another than in a fresh algorithm comes back whole."""
    with build("Pendulum-v1", seed=1, **SETTINGS) as used, build("Pendulum-v1", seed=2, **SETTINGS) as fresh:
        for _ in range(7):  # so that an episode of 200 steps ends
            used.train()
        for each in (used, fresh):
            each.evaluate()
        used.metrics.note_evaluation({"evaluation": {"env_runners": {"episode_return_mean": 1.0}}})
        used.metrics.updates, used.metrics.unlogged = 3, ({"env_steps": 8},)
        used._threads.use(3)
        save_checkpoint(tmp_path / "c", used.get_state())
        state, before = load_checkpoint(tmp_path / "c"), clone(fresh.get_state())
        changed = differences(before, state)
        fresh.set_state(state)
        assert differences(fresh.get_state(), state) == []
    # the test means nothing for what both had alike: these alone may be
    alike = {f"/{path}" for path, _ in flat(before)} - {entry.split(":")[0] for entry in changed}
    optimizer = "/learners/optimizers/default_policy/param_groups"
    assert {path for path in alike if "state/state" not in path} <= {optimizer, *EQUAL_FROM_THE_START}, alike
    assert any("return" in path for path in changed)


RUNNERS = ("/env_runners", "/evaluation")

EQUAL_FROM_THE_START = {
    "/learners/skipped_in_a_row/default_policy",
    "/metrics/learning_stopped",
    *(f"{part}/0/generator/{name}" for part in RUNNERS for name in ("draws", "state")),
    *(f"{part}/{env}/incarnation" for part in RUNNERS for env in range(2)),
    *(f"/evaluation/{env}/{name}" for env in range(2) for name in ("resets", "steps", "noise/used")),
    *(
        f"{part}/{env}/noise/block_start/{name}"
        for part in RUNNERS
        for env in range(2)
        for name in ("bit_generator", "has_uint32", "uinteger")
    ),
    "/metrics/returns",
    "/metrics/lengths",
    "/metrics/unlogged",
    # nothing is lost where all is in this process
    "/workers/num_env_runner_restarts",
    "/workers/num_weight_bytes_sent",
    "/workers/num_learner_restarts",
    "/workers/num_env_steps_dropped",
}


def test_what_was_counted_of_workers_goes_on_in_another_process(tmp_path: Path) -> None:
    of_runners = {"num_env_steps_lost": {"fragment": 7}, "num_env_runner_restarts": 3, "num_weight_bytes_sent": 4000}
    of_learners = {"num_learner_restarts": 2, "num_env_steps_dropped": 640}
    with build() as algorithm:
        algorithm.env_runner_group.set_counters(of_runners)
        algorithm.learner_group.set_counters(of_learners)
        algorithm.save(tmp_path / "c")
    with Algorithm.from_checkpoint(tmp_path / "c") as other:
        assert other.env_runner_group.get_counters() == of_runners
        assert other.learner_group.get_counters() == of_learners


def evolving(root: Any) -> dict[int, tuple[str, Any]]:
    """Tensors, generators and number-valued attributes reachable from ``root``, by id or by owner and name."""
    found: dict[Any, tuple[str, Any]] = {}
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [("algorithm", root)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, Tensor | torch.Generator | np.random.Generator | np.ndarray):
            found[id(value)] = (path, value)
            continue
        if (
            isinstance(value, type | ModuleType | FunctionType | MethodType | spaces.Space | gym.Env)
            or id(value) in seen
        ):
            continue
        seen.add(id(value))
        if isinstance(value, gym.vector.VectorEnv):
            continue
        if isinstance(value, Mapping):
            children = [(f"{path}[{key!r}]", child) for key, child in value.items()]
        elif isinstance(value, list | tuple | set):
            children = [(f"{path}[{i}]", child) for i, child in enumerate(value)]
        else:
            children = [(f"{path}.{name}", child) for name, child in getattr(value, "__dict__", {}).items()]
        for name, child in children:
            if isinstance(child, int | float) and not isinstance(child, bool):
                found[name] = (name, child)
            stack.append((name, child))
    return found


def snapshot(root: Any) -> dict[str, Any]:
    values = {}
    for path, value in evolving(root).values():
        if isinstance(value, torch.Generator):
            values[path] = value.get_state()
        elif isinstance(value, np.random.Generator):
            values[path] = value.bit_generator.state
        else:
            values[path] = clone(torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value)
    return values


def pendulum() -> PPO:
    return build("Pendulum-v1", **SETTINGS)


def replaying() -> DQN:
    return tiny(prioritized_replay=True, n_step=2, training_intensity=3.0, noisy=True).build()


@pytest.mark.parametrize("make", [pendulum, replaying])
def test_nothing_that_evolves_is_outside_the_state(make: Callable[[], Algorithm], tmp_path: Path) -> None:
    """Walks a live algorithm: one that loads its state must be the same in everything after one more iteration."""
    with make() as algorithm:
        before = snapshot(algorithm)
        algorithm.train()
        algorithm.evaluate()
        algorithm.train()
        algorithm.save(tmp_path / "c")
        with Algorithm.from_checkpoint(tmp_path / "c") as other:
            algorithm.train()
            other.train()
            after, restored = snapshot(algorithm), snapshot(other)
    moved = {path for path in after if path not in before or differences(before[path], after[path])}
    lost = {path for path in moved if path not in restored or differences(after[path], restored[path])}
    expected = {"kl_coeff", "moments", "exp_avg", "noise._used"} if make is pendulum else {"_steps_owed", "_began"}
    for part in expected | {"._row['", "_returns"}:
        assert {path for path in moved - lost if part in path}, part
    unexplained = {path for path in lost if not any(reason in path for reason in NOT_SAVED)}
    assert not unexplained


NOT_SAVED = (
    # evaluation begins with new episodes
    "_evaluation.made._runner._row", "_evaluation.made._runner._totals", "_evaluation.made._runner._data",
    # the process counts them, or takes the time
    ".progress", "step_counter", "seconds", "_timers", "_seeds", "report._failed",
)  # fmt: skip


@pytest.mark.parametrize("forgotten", ["kl_coeff['default_policy']", "generator", "num_updates"])
def test_the_walk_finds_what_a_learner_forgets(forgotten: str, tmp_path: Path) -> None:
    with build(**SETTINGS) as algorithm:
        before = snapshot(algorithm)
        algorithm.train()
        after = snapshot(algorithm)
        moved = {path for path in after if path in before and differences(before[path], after[path])}
    assert any(path.endswith(f"learner.{forgotten}") for path in moved), moved


def test_loading_is_refused_for_another_net(tmp_path: Path) -> None:
    with build() as algorithm:
        algorithm.save(tmp_path / "c")
    with pytest.raises(ValueError, match=r"set_state\(\): expected the names, shapes and dtypes"):
        Algorithm.from_checkpoint(tmp_path / "c", model_config={"fcnet_hiddens": [9]})
    with pytest.raises(
        ValueError, match=r"from_checkpoint\(env=\): expected an env with the spaces .*, got 'Acrobot-v1'"
    ):
        Algorithm.from_checkpoint(tmp_path / "c", env="Acrobot-v1")


def test_building_counts_on_no_one_elses_random_numbers() -> None:
    weights = []
    for seed in (0, 1):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            with build() as algorithm:
                module: RLModule = algorithm.get_module()
                weights.append(clone(module.get_state()))
    assert differences(weights[0], weights[1]) == []


def test_a_local_run_does_not_import_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)  # to import it is an error
    with PPOConfig(env="CartPole-v1", train_batch_size_per_learner=64, num_epochs=1).build() as algorithm:
        algorithm.train()
        algorithm.evaluate()


def test_the_folder_of_a_run_stands_for_its_last_checkpoint(tmp_path: Path) -> None:
    with build(run_dir=str(tmp_path / "run")) as algorithm:
        algorithm.learn(num_env_steps=1)
    with Algorithm.from_checkpoint(tmp_path / "run") as other:
        assert other.env_steps == algorithm.env_steps > 0


def test_a_name_that_is_no_setting_is_told_before_what_the_checkpoint_lacks(tmp_path: Path) -> None:
    with build(on_episode_end=lambda algorithm, episode: None) as algorithm:
        algorithm.save(tmp_path / "c")
    with pytest.raises(TypeError, match=r"the unknown name 'callbacks'\. Use \.callbacks\("):
        Algorithm.from_checkpoint(tmp_path / "c", callbacks=None)


def test_a_class_of_another_script_has_to_be_passed_again(tmp_path: Path) -> None:
    with build() as algorithm:
        algorithm.save(tmp_path / "c")
    rewrite(tmp_path / "c", lambda content: content["config"].update(env={"__import__": "__main__:MyEnv"}))
    with pytest.raises(
        ValueError,
        match=r"got '__main__:MyEnv'\. It was defined in another script: pass it again by keyword \(env=\.\.\.\)",
    ):
        Algorithm.from_checkpoint(tmp_path / "c")


class Mine(PPOCatalog):
    """One of the script's own."""


@pytest.mark.parametrize("saved", [{"fcnet_hiddens": [7], "fcnet_activation": "elu"}, None])
def test_what_a_spec_leaves_open_on_loading_is_as_it_was_saved(saved: dict[str, Any] | None, tmp_path: Path) -> None:
    spec = RLModuleSpec(PPOModule, model_config=saved, catalog_class=Mine)
    with build(rl_module_spec=spec, model_config=None) as algorithm:
        algorithm.save(tmp_path / "c")
    left_open = RLModuleSpec(catalog_class=PPOCatalog)
    with Algorithm.from_checkpoint(tmp_path / "c", rl_module_spec=left_open) as loaded:
        assert loaded.config.rl_module_spec == RLModuleSpec(PPOModule, model_config=saved, catalog_class=PPOCatalog)
    if saved is not None:
        other = RLModuleSpec(model_config={"fcnet_hiddens": [7]}, catalog_class=PPOCatalog)
        with Algorithm.from_checkpoint(tmp_path / "c", rl_module_spec=other) as loaded:
            assert loaded.get_module().catalog.model_config.fcnet_activation == "tanh"


def test_steps_that_were_lost_are_told_when_a_run_goes_on_without_runners(tmp_path: Path) -> None:
    with build() as algorithm:
        assert "workers" not in algorithm.train()
        algorithm.env_runner_group.num_env_steps_lost["runner_died"] += 5
        algorithm.save(tmp_path / "c")
    with Algorithm.from_checkpoint(tmp_path / "c") as loaded:
        assert loaded.train()["workers"] == {
            "num_env_steps_lost_lifetime": 5,
            "num_env_steps_lost_by_cause": {"runner_died": 5},
        }


def test_a_checkpoint_that_is_no_algorithms_is_refused(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "other", {"weights": [1, 2]})
    with pytest.raises(ValueError, match=r"expected what algo.save\(path\) writes, got one without algorithm"):
        Algorithm.from_checkpoint(tmp_path / "other")


# --- the end ----------------------------------------------------------------------------------------------------------


def test_a_run_that_was_stopped_says_so(tmp_path: Path) -> None:
    algorithm = build(run_dir=str(tmp_path / "run"))
    algorithm.stop()
    algorithm.stop()
    with pytest.raises(RuntimeError, match=r"PPO\.train\(\): expected a running algorithm, got a stopped one"):
        algorithm.train()
    with pytest.raises(RuntimeError, match=r"PPO\.evaluate\(\): expected a running algorithm"):
        algorithm.evaluate()
    with pytest.raises(RuntimeError, match=r"PPO\.learn\(\): .* Callbacks end learn\(\) by stop_learning\(\)"):
        algorithm.learn(num_env_steps=1)
    assert not (tmp_path / "run").exists()


class Stubborn(Lengths):
    """An env that does not close."""

    def close(self) -> None:
        raise OSError("no")


def test_all_is_closed_even_if_something_does_not_close(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[str] = []
    for part, name in ((RunReport, "close"), (Evaluation, "stop")):
        end = getattr(part, name)
        monkeypatch.setattr(part, name, lambda self, end=end: (end(self), closed.append(type(self).__name__)))
    with_folder = build(lambda config: Stubborn(), run_dir=str(tmp_path / "run"))
    with_folder.train()
    with_folder.stop()
    assert "OSError: no" in caplog.text  # logged, and no reason to leave anything open
    assert sorted(closed) == ["Evaluation", "RunReport"]


def test_a_result_that_a_callback_takes_apart_is_told() -> None:
    def take_apart(algorithm: Algorithm, result: dict[str, Any]) -> None:
        del result["env_runners"]

    with (
        build(on_train_result=take_apart) as algorithm,
        pytest.raises(ValueError, match="result after on_train_result: expected the section env_runners"),
    ):
        algorithm.train()


def test_an_evaluation_of_a_callbacks_own_making_is_logged_and_judged_by_nobody(tmp_path: Path) -> None:
    def own(algorithm: Algorithm, result: dict[str, Any]) -> None:
        result["evaluation"] = {"score": 1}

    with build(on_train_result=own, run_dir=str(tmp_path / "run"), evaluation_interval=100) as algorithm:
        algorithm.learn(num_env_steps=64, target_return=1e9)
    assert not (tmp_path / "run" / "best_checkpoint").exists()
    assert '"evaluation/score": 1' in (tmp_path / "run" / "progress.jsonl").read_text()
