"""Learners on a GPU learn what those on the CPU learn, wait for nothing, and replay graphs. Skipped without one."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from algorithms import Algorithm, AlgorithmConfig
from algorithms.ddpg import DDPGConfig
from algorithms.dqn import DQNConfig, DQNLearner
from algorithms.ppo import PPOConfig, PPOLearner
from algorithms.sac import SACConfig
from algorithms.td3 import TD3Config
from rlmodule import Columns, Learner
from rlmodule.checkpoint import load_checkpoint, save_checkpoint
from rlmodule.learning import episode_learner
from rlmodule.learning.compilation import waiting_is_an_error
from rlmodule.learning.global_stream import GlobalStream
from rlmodule.learning.reports import Metrics
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.testing.data import clone, random_rollout
from tests.rlmodule.agents.envs import CartPoles
from tests.rlmodule.toys import Regression, Settings, Small
from tests.tensor_envs import TensorCartPole

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
    # as torch's compiler advises where the GPU has them, and where it sums in parts
    pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores", r"ignore:\s*Online softmax is disabled"),
]
ID = "default_policy"
OBS = spaces.Box(-1, 1, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (84, 84, 4), np.uint8)
GPU: dict[str, Any] = {"num_gpus_per_learner": 1}
MODELS = {
    "mlp": (OBS, {"fcnet_hiddens": [8], "normalize_observations": True}),
    "cnn": (IMAGE, {"conv_filters": "nature"}),
    "lstm": (OBS, {"fcnet_hiddens": [8], "use_lstm": True, "max_seq_len": 8}),
    "gru": (OBS, {"fcnet_hiddens": [8], "use_gru": True, "max_seq_len": 8}),
    "attention": (OBS, {"fcnet_hiddens": [8], "use_attention": True, "attention_memory": 5, "max_seq_len": 8}),
    "dict": (spaces.Dict({"action_mask": spaces.MultiBinary(3), "n": spaces.Discrete(5), "x": OBS}), {}),
}


@pytest.fixture(autouse=True)
def whole_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default torch rounds what goes into convolutions and recurrent layers to 10 bits."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, logger="rlmodule.learning.compilation")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "rlmodule.learning.compilation"]


def ppo(cls: type[PPOLearner] = PPOLearner, model: str = "mlp", **learners: Any) -> PPOLearner:
    space, settings = MODELS[model]
    config = PPOConfig().learners(**learners).rl_module(model_config=settings)
    config = config.training(
        minibatch_size=32,
        num_epochs=2,
        lr=[[0, 1e-3], [900, 1e-4]],
        entropy_coeff=[[0, 0.1], [900, 0.0]],
        use_kl_loss=True,
        vf_clip_param=1.0,
    )
    with torch.random.fork_rng(devices=[torch.cuda.current_device()]):
        torch.manual_seed(0)
        return cls(config, config.get_rl_module_spec(space, spaces.Discrete(3)).as_multi(), run_seed=0)


def train(learner: PPOLearner, model: str = "mlp", updates: int = 4, valid: bool = True) -> Tensor:
    """The weights after some updates on rollouts that depend on nothing but their number."""
    acting = ppo(model=model).module[ID]
    for seed in range(updates):
        data = random_rollout(acting, 16, 4, seed)
        if valid:
            data.columns[Columns.VALID] = torch.ones(16, 4, dtype=torch.bool)
        learner.update_from_episodes(data, env_steps=100 * seed)
    return learner.parameters[ID].tensor.detach().cpu()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("valid", [True, False])
def test_ppo_learns_the_same_as_on_the_cpu(model: str, valid: bool) -> None:
    # of a large net rounding alone turns some of the first steps of Adam around, and each turns more of the next
    updates = 1 if model == "cnn" else 4
    start = ppo(model=model).parameters[ID].tensor.detach()
    expected = train(ppo(model=model), model, updates, valid)
    learner = ppo(model=model, **GPU)
    got = train(learner, model, updates, valid)
    assert learner.parameters[ID].tensor.is_cuda
    assert (got - expected).norm() < 0.02 * (expected - start).norm()
    if model != "cnn":
        torch.testing.assert_close(got, expected, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_no_minibatch_waits_for_the_device(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never_waiting(cut: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def minibatches(*args: Any) -> Iterator[Any]:
            with waiting_is_an_error():  # also in the gradient step on each minibatch
                yield from cut(*args)

        return minibatches

    for name in ("row_minibatches", "sequence_minibatches"):
        monkeypatch.setattr(episode_learner, name, never_waiting(getattr(episode_learner, name)))
    train(ppo(model=model, **GPU), model)


@pytest.mark.parametrize("training", [{}, {"num_atoms": 5, "v_min": 0.0, "v_max": 9.0, "noisy": True}])
@pytest.mark.parametrize("graphs", [False, True])
def test_batches_of_dqn_wait_for_nothing_and_give_what_they_give_on_the_cpu(
    training: dict[str, Any], graphs: bool, log: Callable[[], list[str]]
) -> None:
    results = []
    for learners in ({}, GPU | {"torch_cuda_graphs": graphs}):
        config = DQNConfig().training(**training).learners(**learners)
        torch.manual_seed(0)
        learner = DQNLearner(config, config.get_rl_module_spec(OBS, spaces.Discrete(3)).as_multi(), run_seed=0)
        for seed in range(8):
            generator = torch.Generator().manual_seed(seed)
            batch = {
                Columns.OBS: torch.rand(16, 4, generator=generator),
                Columns.NEXT_OBS: torch.rand(16, 4, generator=generator),
                Columns.ACTIONS: torch.randint(3, (16,), generator=generator),
                Columns.REWARDS: torch.rand(16, generator=generator),
                Columns.DISCOUNTS: torch.full((16,), 0.9),
            }
            if learners and seed > 3:  # by then there is a graph
                with waiting_is_an_error():
                    learner.step_on_batch(batch, env_steps=seed)
            else:
                learner.step_on_batch(batch, env_steps=seed)
        results.append(learner.parameters[ID].tensor.detach().cpu())
    assert log() == []
    torch.testing.assert_close(*results, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("num_gpus", [0, 1])
def test_dqn_learns_from_envs_on_the_gpu(num_gpus: int) -> None:
    config = DQNConfig().environment(lambda config: TensorCartPole(8, "cuda")).learners(num_gpus_per_learner=num_gpus)
    config = config.reporting(num_env_steps_per_iteration=256)
    with config.training(num_steps_sampled_before_learning_starts=128).build() as algorithm:
        result = algorithm.train()
    assert np.isfinite(result["learners"][ID]["total_loss"])


ALGORITHMS: dict[str, Callable[[], AlgorithmConfig]] = {
    "ppo": lambda: PPOConfig().environment("CartPole-v1"),
    "ppo, several agents": lambda: PPOConfig().environment(CartPoles).multi_agent(policies="own"),
    "dqn": lambda: DQNConfig().environment("CartPole-v1").replay(prioritized_replay=True),
    "sac": lambda: SACConfig().environment("Pendulum-v1"),
    "sac, discrete": lambda: SACConfig().environment("CartPole-v1"),
    "td3": lambda: TD3Config().environment("Pendulum-v1"),
    "ddpg": lambda: DDPGConfig().environment("Pendulum-v1"),
}


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("fast", [False, True])
def test_every_algorithm_learns_and_goes_on_and_its_policy_acts_on_the_gpu(
    name: str, fast: bool, tmp_path: Path, log: Callable[[], list[str]]
) -> None:
    config = ALGORITHMS[name]().env_runners(num_envs_per_env_runner=4)
    if isinstance(config, PPOConfig):
        config.training(train_batch_size_per_learner=64, minibatch_size=16)
    else:
        config.reporting(num_env_steps_per_iteration=32)
        config.training(train_batch_size_per_learner=16, num_steps_sampled_before_learning_starts=32)
    settings = {"torch_compile_learner": fast, "torch_cuda_graphs": fast} if "agents" not in name else {}
    with config.learners(**GPU, **settings).debugging(seed=1).build() as algorithm:
        algorithm.train()
        result = algorithm.train()
        assert log() == []
        assert all(np.isfinite(value) for metrics in result["learners"].values() for value in metrics.values())
        algorithm.save(tmp_path / "state")
        policy = next(iter(algorithm.policies.values()))
        obs = np.stack([policy.module.observation_space.sample() for _ in range(5)])
        expected, _ = policy.act_batch(obs)
        np.testing.assert_allclose(policy.to("cuda").act_batch(obs)[0], expected, rtol=1e-4, atol=1e-5)
    for gpus in (1, 0):
        again = {"num_gpus_per_learner": gpus, "torch_compile_learner": False, "torch_cuda_graphs": False}
        with Algorithm.from_checkpoint(tmp_path / "state", allow=[CartPoles.__module__], **again) as resumed:
            actions, _ = next(iter(resumed.policies.values())).act_batch(obs)
            np.testing.assert_allclose(actions, expected, rtol=1e-4, atol=1e-5)
            resumed.train()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("lower", [None, "bfloat16"])
def test_graphs_replay_what_is_computed_without(model: str, lower: Any, log: Callable[[], list[str]]) -> None:
    updates = 1 if model == "cnn" else 4  # as on the CPU; kernels of convolutions add in any order
    eager = train(ppo(model=model, torch_autocast=lower, **GPU), model, updates)
    learner = ppo(model=model, torch_autocast=lower, torch_cuda_graphs=True, **GPU)
    start = learner.parameters[ID].tensor.detach().cpu()
    graphed = train(learner, model, updates)
    assert log() == []
    assert learner.trained[ID].gradient_pass._graphs  # type: ignore[attr-defined]
    if model == "cnn":
        assert (graphed - eager).norm() < (0.02 if lower is None else 0.2) * (eager - start).norm()
    else:
        torch.testing.assert_close(graphed, eager, rtol=1e-2, atol=1e-4 if lower is None else 1e-2)


@pytest.mark.parametrize("graphs", [False, True])
def test_compiled_ppo_equals_eager(graphs: bool, log: Callable[[], list[str]]) -> None:
    eager = train(ppo(**GPU), updates=10)
    compiled = train(ppo(torch_compile_learner=True, torch_cuda_graphs=graphs, **GPU), updates=10)
    assert log() == []
    torch.testing.assert_close(compiled, eager, rtol=1e-2, atol=1e-4)


class BreaksCompiling(PPOLearner):
    def compute_loss_for_module(self, *args: Any) -> tuple[Tensor, Metrics]:
        torch._dynamo.graph_break()
        return super().compute_loss_for_module(*args)


def test_a_loss_that_cannot_be_compiled_is_captured_all_the_same(log: Callable[[], list[str]]) -> None:
    eager = train(ppo(**GPU))
    learner = ppo(BreaksCompiling, torch_compile_learner=True, torch_cuda_graphs=True, **GPU)
    graphed = train(learner)
    assert [message.split(":")[0] for message in log()] == ["torch_compile_learner"]
    assert learner.trained[ID].gradient_pass._graphs  # type: ignore[attr-defined]
    torch.testing.assert_close(graphed, eager, rtol=1e-2, atol=1e-4)


class Asks(PPOLearner):
    """Reads a number from the device."""

    def compute_loss_for_module(self, *args: Any) -> tuple[Tensor, Metrics]:
        loss, metrics = super().compute_loss_for_module(*args)
        return loss * (2.0 if loss.item() > 0 else 1.0), metrics


def test_a_loss_that_waits_is_not_captured_and_learned_from_all_the_same(log: Callable[[], list[str]]) -> None:
    eager = train(ppo(Asks, **GPU))
    learner = ppo(Asks, torch_cuda_graphs=True, **GPU)
    got = train(learner)
    assert len(log()) == 1
    assert "torch_cuda_graphs: the loss of module 'default_policy' does not use it: RuntimeError: " in log()[0]
    torch.testing.assert_close(got, eager, rtol=1e-2, atol=1e-4)


class BreaksCapture(PPOLearner):
    """Fails within the capture alone."""

    def compute_loss_for_module(self, *args: Any) -> tuple[Tensor, Metrics]:
        loss, metrics = super().compute_loss_for_module(*args)
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("not here")
        return loss, metrics


def test_a_capture_that_breaks_is_an_error() -> None:
    with pytest.raises(RuntimeError, match=r"RuntimeError: not here\. Learn with torch_cuda_graphs=False"):
        train(ppo(BreaksCapture, torch_cuda_graphs=True, **GPU))


class Dropping(Small):
    def setup(self) -> None:
        super().setup()
        self.drop = nn.Dropout(0.5)

    def _forward(self, batch: Any) -> Any:
        return super()._forward({**batch, Columns.OBS: self.drop(batch[Columns.OBS])})


SPEC = RLModuleSpec(Dropping, OBS, spaces.Discrete(3), {"fcnet_hiddens": [8]}).as_multi()


def regression(run_seed: int = 0, **settings: Any) -> Regression:
    with torch.random.fork_rng(devices=[torch.cuda.current_device()]):
        torch.manual_seed(0)
        return Regression(Settings(num_gpus_per_learner=1, **settings), SPEC, run_seed=run_seed)


def fit(learner: Learner, steps: int = 5) -> Tensor:
    assert isinstance(learner, Regression)
    batch = {Columns.OBS: torch.ones(8, 4), "target": torch.ones(8, 3)}
    for _ in range(steps):
        learner.step_on_batch(batch, env_steps=0)
    return learner.parameters[ID].tensor.detach().cpu()


@pytest.mark.parametrize("graphs", [False, True])
def test_dropout_goes_by_the_seed_and_leaves_the_global_generator_alone(graphs: bool) -> None:
    outside = torch.cuda.get_rng_state()
    first = fit(regression(torch_cuda_graphs=graphs))
    assert torch.equal(torch.cuda.get_rng_state(), outside)
    torch.cuda.manual_seed(99)
    assert torch.equal(fit(regression(torch_cuda_graphs=graphs)), first)
    assert not torch.equal(fit(regression(run_seed=1, torch_cuda_graphs=graphs)), first)


def test_a_state_goes_on_on_the_gpu_and_on_the_cpu(tmp_path: Path) -> None:
    learner = regression()
    fit(learner)
    save_checkpoint(tmp_path / "state", clone(learner.get_state()))
    state = load_checkpoint(tmp_path / "state")
    expected = fit(learner)
    again = regression(run_seed=5)
    again.set_state(state)
    assert torch.equal(fit(again), expected)
    here = Regression(Settings(), SPEC, run_seed=0)
    here.set_state(state)
    fit(here)


def test_the_stream_of_a_gpu_goes_on_where_it_ended() -> None:
    device = torch.device("cuda", 0)
    stream, whole = (GlobalStream(3, "module_noise", device) for _ in range(2))
    drawn = []
    for _ in range(2):
        with stream:
            drawn.append(torch.rand(4, device=device))
    with whole:
        assert torch.equal(torch.cat([torch.rand(4, device=device) for _ in range(2)]), torch.cat(drawn))


def test_adam_keeps_its_count_on_the_device() -> None:
    learner = ppo(**GPU)
    train(learner)
    state = learner.optimizers[ID].state[learner.parameters[ID].parts["all"].tensor]
    assert {name: value.device.type for name, value in state.items()} == dict.fromkeys(state, "cuda")
