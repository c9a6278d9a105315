"""The checkpoints of a run: which are kept, found and skipped, and what a file cannot ask for."""

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

from algorithms import Algorithm
from algorithms.cli import main
from algorithms.dqn import DQN, DQNConfig
from algorithms.ppo import PPOConfig
from algorithms.run.checkpoints import NotFinite, history_of
from rlmodule import RLModuleSpec, checkpoint
from rlmodule.checkpoint import load_checkpoint
from rlmodule.sealed_folder import read_manifest
from tests.checkpoints import rewrite

GOLDEN = Path(__file__).parents[1] / "golden"
SMALL: dict[str, Any] = {"env": "CartPole-v1", "num_envs_per_env_runner": 1, "seed": 1}
SMALL |= {"model_config": {"fcnet_hiddens": [4]}}


def ppo(**settings: Any) -> Algorithm:
    batch = {"train_batch_size_per_learner": 8, "minibatch_size": 8, "num_epochs": 1}
    return PPOConfig(**{**SMALL, **batch, **settings}).build()


def dqn(**settings: Any) -> DQN:
    batch = {"num_env_steps_per_iteration": 8, "num_steps_sampled_before_learning_starts": 4, "replay_capacity": 20}
    algorithm = DQNConfig(**{**SMALL, **batch, "train_batch_size_per_learner": 4, **settings}).build()
    assert isinstance(algorithm, DQN)
    return algorithm


# --- golden -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "actions", "total"), [("ppo-2", [1, 0, 0, 1], 2.722435601092002), ("dqn-2", [1] * 4, -3.4508681781589985)]
)
def test_a_golden_checkpoint_loads_and_goes_on(
    name: str, actions: list[int], total: float, caplog: pytest.LogCaptureFixture
) -> None:
    """If this fails, raise the format and write a converter: there are checkpoints like this one on disks. A replay
    buffer of an earlier format is not converted, and the run goes on with an empty one."""
    with Algorithm.from_checkpoint(GOLDEN / name) as algorithm:
        assert [algorithm.policy.act(np.float32(row))[0] for row in np.eye(4)] == actions
        weights = sum(float(weight.detach().double().sum()) for weight in algorithm.get_module().parameters())
        assert weights == pytest.approx(total, abs=1e-12)
        assert algorithm.train()["training_iteration"] == 3
        if isinstance(algorithm, DQN):
            assert algorithm.replay.num_transitions == 8
            assert "expected a replay buffer of format 2, got one of an earlier version" in caplog.text


def test_a_golden_checkpoint_with_twin_q_has_as_many_critics() -> None:
    with Algorithm.from_checkpoint(GOLDEN / "ddpg-2") as algorithm:
        assert vars(algorithm.config)["num_critics"] == 1
        weights = sum(float(weight.detach().double().sum()) for weight in algorithm.get_module().parameters())
        assert weights == pytest.approx(-5.153450895100832, abs=1e-12)
        assert algorithm.train()["training_iteration"] == 3


# --- which are kept ---------------------------------------------------------------------------------------------------


def test_the_last_ones_are_kept_and_the_newest_sound_one_is_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ppo(run_dir=str(tmp_path), checkpoint_interval=1, keep_checkpoints=3) as algorithm:
        for _ in range(5):
            algorithm.train()
        algorithm.learn(num_env_steps=8)
    kept = {folder.name: load_checkpoint(folder) for folder in tmp_path.glob("checkpoints/*")}
    assert {name: content["state"]["metrics"]["env_steps"] for name, content in kept.items()} == {"32": 32, "40": 40}
    for broken, left in (("checkpoint", 40), ("checkpoints/40", 32)):
        (tmp_path / broken / "tensors.safetensors").write_bytes(b"")
        caplog.clear()
        with Algorithm.from_checkpoint(tmp_path) as loaded:
            assert loaded.env_steps == left
        assert caplog.messages[-1].startswith(f"{tmp_path / broken} is skipped: load(")
        assert "tensors.safetensors: expected" in caplog.messages[-1]
    with Algorithm.from_checkpoint(tmp_path) as loaded:
        assert loaded.config.run_dir == str(tmp_path)
        loaded.train()
        assert loaded.env_steps == 40
    assert {folder.name for folder in tmp_path.glob("checkpoints/*")} == {"32", "40"}, "32 is the only sound one"
    (tmp_path / "checkpoints/32/extra").touch()
    shutil.rmtree(tmp_path / "checkpoint")
    with pytest.raises(ValueError, match=r"checkpoints/40'\): expected a complete checkpoint"):
        Algorithm.from_checkpoint(tmp_path)
    assert "checkpoints/32 is skipped" in caplog.messages[-1]
    assert "(extra: it is not in manifest.json)" in caplog.messages[-1]


def test_a_copy_with_other_times_has_the_same_order(tmp_path: Path) -> None:
    with ppo(run_dir=str(tmp_path), checkpoint_interval=1, keep_checkpoints=4) as algorithm:
        for _ in range(14):  # up to 112 steps: as texts, their names have another order, too
            algorithm.train()
    for number, steps in enumerate(("104", "96", "88")):
        os.utime(tmp_path / "checkpoints" / steps / "manifest.json", (number, number))
    assert [folder.name for folder in history_of(tmp_path)] == ["104", "96", "88"]


def test_checkpoints_from_before_a_run_went_back_are_older(tmp_path: Path) -> None:
    keeps: dict[str, Any] = {"run_dir": str(tmp_path), "checkpoint_interval": 1, "keep_checkpoints": 4}
    with ppo(**keeps) as algorithm:
        for _ in range(4):
            algorithm.train()
    with Algorithm.from_checkpoint(tmp_path / "checkpoints" / "8") as algorithm:
        algorithm.train()
        assert [folder.name for folder in history_of(tmp_path)] == ["8", "32", "24"]
        algorithm.train()
    assert [folder.name for folder in history_of(tmp_path)] == ["16", "8", "32"]


def test_the_best_checkpoint_is_without_the_replay(tmp_path: Path) -> None:
    evaluates: dict[str, Any] = {"evaluation_interval": 1, "evaluation_duration": 1, "run_dir": str(tmp_path)}
    with dqn(**evaluates) as algorithm:
        algorithm.learn(num_env_steps=16)
    assert (tmp_path / "checkpoint" / "replay.safetensors").exists()
    assert not (tmp_path / "best_checkpoint" / "replay.safetensors").exists()
    assert "replay" not in load_checkpoint(tmp_path / "best_checkpoint")
    with Algorithm.from_checkpoint(tmp_path / "best_checkpoint", run_dir=None) as loaded:
        assert isinstance(loaded, DQN)
        assert loaded.replay.num_transitions == 0
        loaded.train()


# --- how they are written ---------------------------------------------------------------------------------------------


def test_learning_goes_on_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpoint of the second iteration is written after the third, and holds the weights of the second."""
    third, write_folder, seen = threading.Event(), checkpoint.write_folder, dict[int, torch.Tensor]()

    def write(*args: Any) -> None:
        assert third.wait(60)
        write_folder(*args)

    def note(algorithm: Algorithm, result: dict[str, Any]) -> None:
        seen[algorithm.env_steps] = next(algorithm.get_module().parameters()).detach().clone()
        if result["training_iteration"] == 3:
            assert not (tmp_path / "checkpoint").exists()
            third.set()

    monkeypatch.setattr(checkpoint, "write_folder", write)
    with ppo(run_dir=str(tmp_path), checkpoint_interval=2, keep_checkpoints=2, on_train_result=note) as algorithm:
        algorithm.learn(num_env_steps=24)
        name, _ = next(algorithm.get_module().named_parameters())
    for folder, steps in (("checkpoints/16", 16), ("checkpoint", 24)):
        assert torch.equal(weights(load_checkpoint(tmp_path / folder))["default_policy"][name], seen[steps])


@pytest.mark.parametrize("build", [ppo, dqn])
def test_the_best_checkpoint_is_written_first(
    build: Callable[..., Algorithm], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed between the two resumes from the one before, and evaluates again."""
    written, write_folder = list[str](), checkpoint.write_folder

    def write(path: Path, *args: Any) -> None:
        written.append(path.name)
        write_folder(path, *args)

    monkeypatch.setattr(checkpoint, "write_folder", write)
    with build(run_dir=str(tmp_path), checkpoint_interval=1, evaluation_interval=1, evaluation_duration=1) as algorithm:
        algorithm.train()
    assert written == ["best_checkpoint", "checkpoint"]


def test_a_file_that_cannot_be_written_in_the_background_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with ppo(run_dir=str(tmp_path), checkpoint_interval=1) as algorithm:
        algorithm.train()
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "write_folder", full)
            with pytest.raises(OSError, match="No space left"):
                algorithm.learn(num_env_steps=80)
        assert len(caplog.messages) == 2
        assert algorithm.metrics.iterations == 4 + 1  # the third failure is noticed when the next checkpoint is due
        assert read_manifest(tmp_path / "checkpoint", "checkpoint")["about"]["env_steps"] == 8
        algorithm.learn(num_env_steps=8)
    assert read_manifest(tmp_path / "checkpoint", "checkpoint")["about"]["env_steps"] == 48


def test_what_is_not_finite_is_not_saved(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ppo(run_dir=str(tmp_path), checkpoint_interval=1) as algorithm:
        algorithm.train()
        with torch.no_grad():
            next(algorithm.get_module().parameters()).view(-1)[0] = float("nan")
        with pytest.raises(NotFinite, match=r"got NaN or infinite ones in .+ of 'default_policy'"):
            algorithm.save(tmp_path / "mine")
        algorithm.report._writer.start(tmp_path / "checkpoint", None)
        algorithm.report._writer.finish()
        assert "A checkpoint was not written. save(): expected finite weights" in caplog.text
    assert not (tmp_path / "mine").exists()
    assert read_manifest(tmp_path / "checkpoint", "checkpoint")["about"]["env_steps"] == 8


# --- what a file cannot ask for ---------------------------------------------------------------------------------------


def weights(content: dict[str, Any]) -> dict[str, Any]:
    return content["state"]["learners"]["module"]


def setting(**settings: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda it: it["config"].update(settings)


def hidden(*units: int) -> Callable[[dict[str, Any]], Any]:
    return lambda it: it["config"]["model_config"].update(fcnet_hiddens=[*units])


def wide_critics(it: dict[str, Any]) -> None:
    """Ask for some hundred critics, which are quick to build and have more than a million weights in all."""
    it["config"]["num_critics"] = 300
    it["config"]["model_config"]["functions"] = {"value": {"fcnet_hiddens": [64, 64]}}


def added(*units: int) -> Callable[[dict[str, Any]], Any]:
    def change(it: dict[str, Any]) -> None:
        spec = it["state"]["policies"]["added"]["fresh"]["spec"]
        spec["fields"]["model_config"]["fcnet_hiddens"] = [*units]

    return change


# The checkpoint, how it is changed, and what the error says.
LIES: dict[str, tuple[str, Callable[[dict[str, Any]], Any], str]] = {
    "environments": ("ppo", setting(num_envs_per_env_runner=10**9), "num_envs_per_env_runner of at most 1, got 1,000,"),
    "runners": ("ppo", setting(num_env_runners=10**9), "num_envs_per_env_runner of at most 1, got 1,000,000,000"),
    "threads": ("ppo", setting(torch_num_threads=10**9), "torch_num_threads of at most 1,000, got 1,000,000,000"),
    "learners": ("ppo", setting(num_learners=10**9), "num_learners of at most 1,000, got"),
    "evaluation": ("dqn", setting(evaluation_num_envs=10**9), "evaluation_num_envs of at most 10,000, got 1,000,000,0"),
    "evaluation with state": (
        "agents",
        setting(evaluation_num_envs=10**4),
        "evaluation_num_envs of at most 1, got 10,",
    ),
    "agents": (
        "agents",
        setting(env_config={"num_agents": 10**9}),
        "env_config['num_agents'] of at most 10,000, got 1,0",
    ),
    "units": ("ppo", hidden(10**9), "model_config of at most 10,000, got 1,000,000,000"),
    "layers": ("ppo", hidden(*[9_999] * 99), "got more with weight (9999, 9999) of "),
    "units of an added policy": ("agents", added(10**9), "got more with weight (1000000000, 4) of "),
    "added policies without weights": (
        "agents",
        lambda it: it["state"]["policies"]["added"].update(more={"of": "cart_0", "train": True}),
        "KeyError: 'more'",
    ),
    "a space of an added policy": (
        "agents",
        lambda it: it["state"]["policies"]["added"]["fresh"]["spec"]["fields"]["observation_space"].update(
            low=0, high=1, shape=[10**9]
        ),
        "(ValueError: expected at most 33,554,432 numbers)",
    ),
    "layers of an added policy": ("agents", added(*[64] * 999), "got more with weight (64, 64) of "),
    "atoms": ("dqn", setting(num_atoms=10**9), "num_atoms of at most 10,000, got"),
    "critics": ("ddpg", setting(num_critics=10**6), "num_critics of at most 10,000, got 1,000,000"),
    "critics within the bound of units": ("ddpg", wide_critics, "as those in the file, got more with "),
    "quantiles": ("ddpg", setting(num_quantiles=10**9), "num_quantiles of at most 10,000, got 1,000,000,000"),
    "an algorithm that is gone": ("ppo", lambda it: it.update(algorithm="GONE"), "algorithm: expected one of A2C, "),
    "a config class that is not one": (
        "ppo",
        lambda it: it.update(config_class="algorithms.cli.main:main"),
        "config_class: expected a config class that is registered or allowed, got 'algorithms.cli.main:main'",
    ),
    "an env that is gone": ("ppo", setting(env="Gone-v7"), "env 'Gone-v7': expected a registered id, got an unknown"),
    "an env of other spaces": (
        "ppo",
        setting(env="Acrobot-v1"),
        "expected the names, shapes and dtypes of this module's own",
    ),
    "a program": ("ppo", setting(env={"__import__": "os:system"}), "PPOConfig.env: expected an import path that you"),
    "capacity": ("dqn", setting(replay_capacity=10**12), "MemoryError: a replay buffer of 1,000,000,000,000 trans"),
    "a batch": ("ppo", setting(minibatch_size=10**9), "PPOConfig.minibatch_size: expected at most train_batch"),
    "a NaN": ("ppo", setting(gamma=float("nan")), "gamma=): expected finite float"),
    "a text": ("ppo", setting(gamma="x"), "gamma=): expected float"),
    "no weights": ("ppo", lambda it: it["state"]["learners"].update(module={}), "KeyError: 'default_policy'"),
    "no buffer": ("ppo", lambda it: weights(it)["default_policy"].popitem(), "expected the names, shapes and dtypes"),
    "no weight": (
        "ppo",
        lambda it: weights(it)["default_policy"].pop(it["modules"]["default_policy"]["parameters"][0]),
        "expected finite weights, got none",
    ),
    "no learners": ("ppo", lambda it: it["state"].pop("learners"), "KeyError: 'learners'"),
    "a state that is a list": ("ppo", lambda it: it.update(state=[]), "got one without state"),
    "a seed that is a text": ("ppo", lambda it: it.update(run_seed="1"), "got one without run_seed"),
    "no counter": (
        "ppo",
        lambda it: it["state"]["metrics"].pop("env_steps"),
        "state/metrics/env_steps: expected a val",
    ),
    "a counter that is a text": (
        "ppo",
        lambda it: it["state"]["metrics"].update(env_steps="x"),
        "expected a value like 0, got x",
    ),
    "an optimizer that is a number": (
        "ppo",
        lambda it: it["state"]["learners"].update(optimizers=1),
        "state/learners/optimizers: expected",
    ),
    "no moments": (
        "ppo",
        lambda it: it["state"]["learners"]["optimizers"]["default_policy"]["state"]["0"].pop("exp_avg"),
        "state/0/exp_avg: expected a value like tensor",
    ),
    "no optimizer of a policy": (
        "agents",
        lambda it: it["state"]["learners"]["optimizers"].pop("cart_1"),
        "state/learners/optimizers/cart_1: expected a value like",
    ),
    "no target net": (
        "dqn",
        lambda it: it["state"]["learners"]["target"].pop("default_policy"),
        "state/learners/target/default_policy: expected a value like",
    ),
    "no weight of a target net": (
        "dqn",
        lambda it: it["state"]["learners"]["target"]["default_policy"].popitem(),
        "state/learners/target/default_policy/af_head",
    ),
    "no count of gradient steps": (
        "ppo",
        lambda it: it["state"]["learners"]["num_gradient_steps"].clear(),
        "state/learners/num_gradient_steps/default_policy: expected a value like 0, got nothing",
    ),
    "a counter that is a fraction": (
        "ppo",
        lambda it: it["state"]["learners"].update(num_updates=1e300),
        "state/learners/num_updates: expected an int of at most 9,007,199,254,740,992, got 1e+300",
    ),
    "a counter beyond all runs": (
        "ppo",
        lambda it: it["state"]["metrics"].update(env_steps=10**300),
        "state/metrics/env_steps: expected an int of at most",
    ),
    "a time that is NaN": (
        "ppo",
        lambda it: it["state"]["metrics"].update(seconds=float("nan")),
        "state/metrics/seconds: expected a finite number, got nan",
    ),
    "an infinite coefficient": (
        "ppo",
        lambda it: it["state"]["learners"]["kl_coeff"].update(default_policy=float("inf")),
        "state/learners/kl_coeff/default_policy: expected a finite number, got inf",
    ),
    "many rows that wait": (
        "ppo",
        lambda it: it["state"]["metrics"].update(unlogged=[{}] * 10_000),
        "state/metrics/unlogged: expected at most 3 results, whose clock and seconds are numbers, got",
    ),
    "a row whose clock is a text": (
        "ppo",
        lambda it: it["state"]["metrics"].update(unlogged=[{"clock": "x"}]),
        "state/metrics/unlogged: expected at most 3 results, whose clock and seconds are numbers, got",
    ),
    "a row that is a number": (
        "ppo",
        lambda it: it["state"]["metrics"].update(unlogged=[1]),
        "state/metrics/unlogged: expected at most 3 results, whose clock and seconds are numbers, got [1]",
    ),
    "a number of threads that is a text": (
        "ppo",
        lambda it: it["state"].update(num_threads="x"),
        "state/num_threads: expected a value like 1, got x",
    ),
    "no thread": ("ppo", lambda it: it["state"].update(num_threads=0), "state/num_threads: expected 1 to 1,000, got 0"),
    "many threads": (
        "ppo",
        lambda it: it["state"].update(num_threads=10**9),
        "state/num_threads: expected 1 to 1,000, got 1,000,000,000",
    ),
    "an env that is a text": ("ppo", lambda it: it["state"]["env_runners"].update({"0": "x"}), "AttributeError: 'str'"),
    "noise without end": (
        "ppo",
        lambda it: it["state"]["env_runners"]["0"]["noise"].update(used=10**9),
        "expected 0 to 128 used rows, got [1000000000]",
    ),
    "an episode without a seed": (
        "ppo",
        lambda it: it["state"]["env_runners"]["0"]["episode"].pop("seed"),
        "state/env_runners/0/episode/seed: expected a value like 0, got nothing",
    ),
    "an episode of agents without rows": (
        "agents",
        lambda it: it["state"]["env_runners"]["0"]["episode"].pop("rows"),
        "state/env_runners/0/episode/rows: expected a value like [], got nothing",
    ),
    "a return that is a text": (
        "agents",
        lambda it: it["state"]["env_runners"]["0"]["episode"].update(returns=["x", 0.0]),
        "state/env_runners/0/episode/returns/0: expected a value like 0.0, got x",
    ),
}
NOT_BUILT = ("environments", "runners", "threads", "learners", "units", "a NaN", "a text", "no weight")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    evaluates: dict[str, Any] = {"evaluation_num_envs": 1, "evaluation_duration": 1}
    several: dict[str, Any] = {"env": "rlmodule.agents.cartpoles", "env_config": {"num_agents": 2}}
    several["policies"] = {f"cart_{i}": RLModuleSpec(model_config={"fcnet_hiddens": [3 + i]}) for i in range(2)}
    with ppo(**several | evaluates, model_config=None) as algorithm:
        algorithm.add_policy("fresh", spec=RLModuleSpec(model_config={"fcnet_hiddens": [4]}), train=True)
        algorithm.add_policy("copy", copy_of="cart_0")
        algorithm.train()
        algorithm.evaluate()
        agents = algorithm.save(tmp_path_factory.mktemp("agents") / "c")
    with Algorithm.from_checkpoint(agents) as algorithm:
        assert [*algorithm.policies] == ["cart_0", "cart_1", "fresh", "copy"]
    golden = {name: GOLDEN / f"{name}-2" for name in ("ppo", "dqn", "ddpg")}
    return golden | {"agents": agents}


class Learned(CartPoleEnv):
    """A CartPole whose reward comes from a net, larger than those that learn."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(1500, 1500)


def test_a_net_of_the_env_does_not_count_among_those_of_the_checkpoint(tmp_path: Path) -> None:
    with PPOConfig(env=Learned, model_config={"fcnet_hiddens": [8]}).build() as algorithm:
        algorithm.save(tmp_path / "c")
    with Algorithm.from_checkpoint(tmp_path / "c", allow=[__name__]) as other:
        assert other.env_steps == 0


@pytest.mark.parametrize("lie", LIES)
def test_a_file_with_sound_digests_is_not_believed(
    lie: str, originals: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, change, printed = LIES[lie]
    path = shutil.copytree(originals[name], tmp_path / "c")

    def changed(content: dict[str, Any]) -> None:
        change(content)

    rewrite(path, changed)
    if lie in NOT_BUILT:
        monkeypatch.setattr(PPOConfig, "build", lambda self: pytest.fail("it was built"))
    with pytest.raises(ValueError, match="expected") as raised:
        Algorithm.from_checkpoint(path)
    assert str(raised.value).startswith(f"checkpoint '{path}': ")
    assert printed in str(raised.value)


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ({"run_dir": "runs", "checkpoint_interval": 3}, "pass the setting by keyword."),
        ({"run_dir": "runs", "gamma": 0.5}, "leave out gamma=."),
    ],
)
def test_an_error_asks_only_to_leave_out_settings_that_may_be_the_cause(
    given: dict[str, Any], remedy: str, tmp_path: Path
) -> None:
    path = shutil.copytree(GOLDEN / "ppo-2", tmp_path / "c")
    rewrite(path, lambda it: it["state"]["metrics"].update(seconds=float("nan")))
    with pytest.raises(ValueError, match="state/metrics/seconds") as raised:
        Algorithm.from_checkpoint(path, **given)
    assert str(raised.value).endswith(f"Load another checkpoint, or {remedy}")


@pytest.mark.parametrize("name", ["manifest.json", "checkpoint.json", "tensors.safetensors"])
def test_a_checkpoint_whose_files_are_links_is_not_loaded(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shutil.copytree(GOLDEN / "ppo-2", tmp_path / "c")
    (path / name).unlink()
    (path / name).symlink_to(GOLDEN / "ppo-2" / name)
    with pytest.raises(ValueError, match=rf"^load\('{path}'\): expected a complete checkpoint") as raised:
        Algorithm.from_checkpoint(path)
    printed = f"({name}: it is a link, which is not followed; copy the folder with cp -rL if you trust it)"
    assert printed in str(raised.value)
    assert main(["train", "--load", str(path), "--run-dir", "None", "--quiet"]) != 0
    assert printed in capsys.readouterr().err


CONTRADICTIONS = ("environments", "runners", "learners", "atoms")  # of other settings, which are checked before sizes
SIZES = [name for name, (_, _, printed) in LIES.items() if "of at most" in printed or "got more with" in printed]


@pytest.mark.parametrize("lie", [name for name in SIZES if name not in CONTRADICTIONS])
def test_a_file_chooses_no_larger_sizes_in_the_shell_either(
    lie: str, originals: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, change, printed = LIES[lie]
    path = shutil.copytree(originals[name], tmp_path / "c")

    def changed(content: dict[str, Any]) -> None:
        change(content)

    rewrite(path, changed)
    assert main(["train", "--load", str(path), "--lr", "0.01", "--run-dir", "None", "--quiet"]) != 0
    assert printed in capsys.readouterr().err


def test_sizes_that_are_typed_may_be_larger_than_those_of_the_checkpoint(tmp_path: Path) -> None:
    path = shutil.copytree(GOLDEN / "ppo-2", tmp_path / "c")
    more = ["--num-envs-per-env-runner", "2", "--num-env-steps", "8"]
    assert main(["train", "--load", str(path), *more, "--run-dir", "None", "--quiet"]) == 0


TENSORS: dict[str, tuple[list[str], Callable[[torch.Tensor], torch.Tensor], str]] = {
    "infinite weights": (["module", "default_policy"], lambda x: x / 0, "expected finite weights, got NaN or infinite"),
    "weights of float64": (
        ["module", "default_policy"],
        torch.Tensor.double,
        "names, shapes and dtypes of this module's own state, got a state that differs at encoder.",
    ),
    "weights of another shape": (["module", "default_policy"], lambda x: x[1:], "a state that differs at encoder."),
    "moments of another shape": (
        ["optimizers", "default_policy", "state", "0", "exp_avg"],
        lambda x: x[1:],
        "state/learners/optimizers/default_policy/state/0/exp_avg: expected torch.float32 of shape",
    ),
    "a generator of floats": (["generator"], torch.Tensor.float, "state/learners/generator: expected torch.uint8"),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_of_other_kinds_are_not_loaded(kind: str, tmp_path: Path) -> None:
    place, change, printed = TENSORS[kind]
    content = load_checkpoint(GOLDEN / "ppo-2")
    tensors = content["state"]["learners"]
    for key in place[:-1]:
        tensors = tensors[key]
    key = place[-1]
    if key == "default_policy":
        tensors, key = tensors[key], content["modules"]["default_policy"]["parameters"][0]
    tensors[key] = change(tensors[key])
    checkpoint.save_checkpoint(tmp_path / "c", content)
    with pytest.raises(ValueError, match=r"^checkpoint '.+/c': ") as raised:
        Algorithm.from_checkpoint(tmp_path / "c")
    assert printed in str(raised.value)
