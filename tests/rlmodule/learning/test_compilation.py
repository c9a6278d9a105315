"""Where a learner computes and how: that it makes no difference but of speed, and what happens where it cannot."""

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from algorithms.dqn import DQNConfig, DQNLearner
from algorithms.ppo import PPOConfig, PPOLearner, PPOModule
from catalog.base import Tree
from rlmodule import Columns, Rollout
from rlmodule.data.columns import Batch
from rlmodule.data.device import moved
from rlmodule.data.rollout import row_minibatches
from rlmodule.learning import compilation
from rlmodule.learning.compilation import gradient_pass, learner_device
from rlmodule.learning.flat_optimizer import FlatParameters
from rlmodule.learning.global_stream import GlobalStream
from rlmodule.learning.reports import Metrics
from rlmodule.learning.schedules import Coefficient
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.testing.data import clone, differences, random_rollout
from tests.rlmodule.toys import Regression, Settings, Small
from tests.simulated_gpu import SimulatedGPU, simulated_gpu

__all__ = ["simulated_gpu"]

ID = "default_policy"
OBS = spaces.Box(-1, 1, (4,), np.float32)
SPEC = RLModuleSpec(Small, OBS, spaces.Discrete(3), {"fcnet_hiddens": [8]}).as_multi()
IMAGE = spaces.Box(0, 255, (84, 84, 4), np.uint8)


@pytest.fixture(autouse=True)
def _nothing_compiled_before() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile that traces and makes graphs as ever, and leaves out the compiler of C++."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, logger="rlmodule.learning.compilation")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "rlmodule.learning.compilation"]


def ppo(cls: type[PPOLearner] = PPOLearner, space: spaces.Space = OBS, **settings: Any) -> PPOLearner:
    learners = {name: settings.pop(name) for name in [*settings] if name.startswith(("torch_", "num_gpus"))}
    model = settings.pop("model_config", {"fcnet_hiddens": [8]})
    training = {"minibatch_size": 64, "num_epochs": 2, "lr": [[0, 1e-3], [900, 1e-4]], "grad_clip": 0.5}
    config = PPOConfig().training(**training | settings).learners(**learners).rl_module(model_config=model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(config, config.get_rl_module_spec(space, spaces.Discrete(3)).as_multi(), run_seed=0)


def rollout(learner: Any, steps: int = 40, slots: int = 4, seed: int = 0, valid: bool = True) -> Rollout:
    made = random_rollout(learner.module[ID], steps, slots, seed)
    if valid:
        made.columns[Columns.VALID] = torch.ones(steps, slots, dtype=torch.bool)
    return made


def train(learner: PPOLearner, updates: int = 10, **kwargs: Any) -> dict[str, float]:
    results = {}
    for seed in range(updates):
        data = rollout(learner, seed=seed, **kwargs)
        results = learner.update_from_episodes(data, env_steps=100 * seed)[ID]
    return results


def weights(learner: Any) -> Tensor:
    return learner.parameters[ID].tensor.detach().clone()


def num_graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


# --- the device -------------------------------------------------------------------------------------------------------


def test_a_gpu_that_is_not_there_is_told_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"num_gpus_per_learner: expected a GPU .* since it is 1, got torch \d.*to 0"):
        ppo(num_gpus_per_learner=1)
    assert learner_device(Settings()) == torch.device("cpu")


def test_a_rollout_moves_as_a_whole_and_only_if_it_must() -> None:
    made = random_rollout(ppo(model_config={"use_lstm": True, "max_seq_len": 8}).module[ID], 16, 3)
    assert made.to(torch.device("cpu")) is made
    there = made.to(torch.device("meta"))
    assert there.shape == made.shape
    tensors = [there.columns, there.last_obs, there.final_index, there.final_obs, there.state_in]
    assert {x.device.type for x in torch.utils._pytree.tree_leaves(tensors)} == {"meta"}
    assert made.valid.device.type == "cpu"


def test_moved_keeps_the_structure() -> None:
    column = {"b": torch.ones(2), "a": (torch.zeros(3, dtype=torch.uint8),)}
    there = moved(column, torch.device("meta"))
    assert list(there) == ["b", "a"]
    assert (there["a"][0].shape, there["a"][0].dtype, there["a"][0].device.type) == ((3,), torch.uint8, "meta")


@pytest.mark.parametrize(
    ("space", "model"),
    [
        (OBS, {}),
        (OBS, {"normalize_observations": True, "vf_share_layers": True}),
        (IMAGE, {"conv_filters": "nature"}),
        (spaces.Dict({"a": spaces.Discrete(5, start=2), "b": OBS}), {"flatten_observations": True}),
        (spaces.Dict({"action_mask": spaces.MultiBinary(3), "b": OBS}), {}),
    ],
)
def test_minibatches_of_ppo_stay_on_the_device_and_wait_for_nothing(
    simulated_gpu: SimulatedGPU, space: spaces.Space, model: dict[str, Any]
) -> None:
    here = ppo(space=space, model_config=model, use_kl_loss=True, vf_clip_param=1.0)
    with torch.no_grad():
        batch, _ = here.make_train_batch(ID, rollout(here))
    there = ppo(num_gpus_per_learner=1, space=space, model_config=model, use_kl_loss=True, vf_clip_param=1.0)
    batch = {name: moved(column, there.device) for name, column in batch.items()}
    with simulated_gpu.watched():
        for minibatch in row_minibatches(batch, 64, there.generator):
            metrics = there.gradient_step(ID, minibatch)
            assert {value.device.type for value in metrics.values()} == {"meta"}
        there.module[ID].update_observation_statistics(batch[Columns.OBS])
    assert simulated_gpu.waits == []


@pytest.mark.parametrize(
    "training", [{}, {"td_error_loss_fn": "mse"}, {"num_atoms": 5, "v_min": 0.0, "v_max": 9.0, "dueling": True}]
)
def test_batches_of_dqn_are_moved_once_and_wait_for_nothing(
    simulated_gpu: SimulatedGPU, training: dict[str, Any]
) -> None:
    config = DQNConfig().training(target_network_update_freq=1, **training).learners(num_gpus_per_learner=1)
    spec = config.get_rl_module_spec(OBS, spaces.Discrete(3)).as_multi()
    learner = DQNLearner(config, spec, run_seed=0)
    with simulated_gpu.watched():
        metrics = learner.step_on_batch(transitions(), env_steps=1)[ID]
    assert simulated_gpu.waits == []
    assert learner.targets.num_updates == {ID: 1}
    assert {value.device.type for value in metrics.values()} == {"meta"}


def transitions(rows: int = 16, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return {
        Columns.OBS: torch.rand(rows, 4, generator=generator),
        Columns.NEXT_OBS: torch.rand(rows, 4, generator=generator),
        Columns.ACTIONS: torch.randint(3, (rows,), generator=generator),
        Columns.REWARDS: torch.rand(rows, generator=generator),
        Columns.DISCOUNTS: torch.full((rows,), 0.9),
        Columns.WEIGHTS: torch.ones(rows),
    }


class Waits(TorchDispatchMode):
    """Counts what would wait for a GPU: a number that is read, and shapes that depend on numbers."""

    reads = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "unique")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        masks = name in ("index", "index_put_") and any(
            x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1]
        )
        if name in self.reads or masks:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


class Watched(PPOLearner):
    """Counts within its minibatches."""

    def gradient_step(self, module_id: str, batch: Batch) -> Metrics:
        with self.waits:
            return super().gradient_step(module_id, batch)

    @property
    def waits(self) -> Waits:
        return self.__dict__.setdefault("_waits", Waits())


class Asks(Watched):
    def compute_loss_for_module(self, *args: Any) -> tuple[Tensor, Metrics]:
        loss, metrics = super().compute_loss_for_module(*args)
        return (loss * 2 if loss > 1e6 else loss), metrics


@pytest.mark.parametrize("clip_by", ["global_norm", "norm", "value"])
def test_the_loop_over_minibatches_reads_no_number(clip_by: str) -> None:
    learner = ppo(Watched, use_kl_loss=True, vf_clip_param=1.0, grad_clip_by=clip_by)
    assert isinstance(learner, Watched)
    train(learner, 1)
    assert learner.waits.found == []
    asking = ppo(Asks)
    assert isinstance(asking, Asks)
    train(asking, 1)
    assert set(asking.waits.found) <= {"_local_scalar_dense", "is_nonzero"}
    assert asking.waits.found


# --- numbers that change ----------------------------------------------------------------------------------------------


def test_a_coefficient_is_one_tensor_of_each_module_that_assignments_fill() -> None:
    weight = Coefficient(torch.device("cpu"))
    weight["a"], weight["b"] = 0.5, -1.0
    kept = weight["a"]
    assert (kept.shape, kept.dtype) == ((), torch.float32)
    weight["a"] = 0.25
    assert kept is weight["a"]
    assert kept.item() == 0.25
    weight["a"] *= 2.0
    assert kept is weight["a"]
    assert [weight["a"].item(), weight["b"].item()] == [0.5, -1.0]
    weight["a"] = torch.tensor(7.0)
    assert kept.item() == 7.0


def test_a_coefficients_number_has_the_digits_that_it_was_set_with() -> None:
    weight = Coefficient(torch.device("cpu"))
    weight["a"], weight["b"] = 0.01, 0.2
    assert (weight.number("a"), weight.number("b")) == (0.01, 0.2)
    assert 0 < abs(weight["a"].item() - 0.01) < 1e-8
    weight["a"] *= 2.0
    assert weight.number("a") == weight["a"].item()


# --- compiled ---------------------------------------------------------------------------------------------------------


@pytest.mark.end_to_end
def test_compiled_ppo_equals_eager_and_is_compiled_once_whatever_changes(
    quick: None, log: Callable[[], list[str]]
) -> None:
    schedules = {"entropy_coeff": [[0, 0.1], [900, 0.0]], "use_kl_loss": True, "kl_target": 1e-4, "vf_clip_param": 1.0}
    eager, compiled = ppo(**schedules), ppo(torch_compile_learner=True, **schedules)
    expected, before = train(eager), num_graphs()
    got = train(compiled)
    assert num_graphs() - before == 2  # minibatches of 64, and the last of 32
    assert log() == []
    torch.testing.assert_close(weights(compiled), weights(eager), rtol=1e-4, atol=1e-6)
    assert compiled.kl_coeff.number(ID) == eager.kl_coeff.number(ID) != 0.2
    assert got == pytest.approx(expected, rel=1e-3, abs=1e-6)


@pytest.mark.slow
def test_ppo_compiled_by_the_compiler_of_the_machine_equals_eager(log: Callable[[], list[str]]) -> None:
    eager, compiled = ppo(), ppo(torch_compile_learner=True)
    train(eager)
    train(compiled)
    assert log() == []
    torch.testing.assert_close(weights(compiled), weights(eager), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("training", [{}, {"num_atoms": 5, "v_min": 0.0, "v_max": 9.0, "noisy": True}])
def test_compiled_dqn_equals_eager(quick: None, log: Callable[[], list[str]], training: dict[str, Any]) -> None:
    results = []
    for compiles in (False, True):
        config = DQNConfig().training(**training).learners(torch_compile_learner=compiles)
        torch.manual_seed(0)
        learner = DQNLearner(config, config.get_rl_module_spec(OBS, spaces.Discrete(3)).as_multi(), run_seed=0)
        for seed in range(10):
            learner.step_on_batch(transitions(seed=seed), env_steps=seed)
        results.append(weights(learner))
    assert log() == []
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)


@pytest.mark.end_to_end
def test_rare_shapes_are_not_compiled(quick: None, log: Callable[[], list[str]]) -> None:
    eager, compiled = ppo(), ppo(torch_compile_learner=True)
    before = num_graphs()
    train(eager, valid=False)
    train(compiled, valid=False)  # each update's last minibatch is of another size
    assert num_graphs() - before == 2
    assert log() == []
    torch.testing.assert_close(weights(compiled), weights(eager), rtol=1e-4, atol=1e-6)


def test_where_no_shape_comes_again_it_is_told_once(
    quick: None, log: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilation, "_MOST_UNLIKE", 5)
    learner = make_regression(torch_compile_learner=True)
    for rows in range(2, 12):
        learner.step_on_batch(regression_batch(rows), env_steps=0)
    assert len(log()) == 1
    assert "torch_compile_learner: the loss of module 'default_policy' does not use it: 5 minibatches" in log()[0]


class Counts(PPOLearner):
    """With a Python number that changes all the time."""

    factor = 1.0

    def compute_loss_for_module(self, *args: Any) -> tuple[Tensor, Metrics]:
        loss, metrics = super().compute_loss_for_module(*args)
        return loss * self.factor, metrics

    def after_update(self, module_id: str, batch: Batch) -> None:
        self.factor *= 1.1


class Prints(PPOLearner):
    """Reads a number from the device, which nothing traces."""

    def compute_loss_for_module(self, *args: Any) -> tuple[Tensor, Metrics]:
        loss, metrics = super().compute_loss_for_module(*args)
        return loss * (2.0 if loss.item() > 0 else 1.0), metrics


@pytest.mark.parametrize(("cls", "updates"), [(Prints, 3), pytest.param(Counts, 7, marks=pytest.mark.end_to_end)])
def test_a_loss_that_cannot_be_compiled_is_told_once_and_learned_from_all_the_same(
    quick: None, log: Callable[[], list[str]], cls: type[PPOLearner], updates: int
) -> None:
    eager, compiled = ppo(cls), ppo(cls, torch_compile_learner=True)
    train(eager, updates)
    with torch._dynamo.config.patch(recompile_limit=3):  # rather than 8
        train(compiled, updates)
    assert len(log()) == 1
    assert "torch_compile_learner: the loss of module 'default_policy' does not use it: " in log()[0]
    assert "\n" not in log()[0]
    torch.testing.assert_close(weights(compiled), weights(eager), rtol=1e-4, atol=1e-6)


class Normed(Small):
    """With batch norm, whose statistics take in each minibatch once."""

    def setup(self) -> None:
        super().setup()
        self.norm = nn.BatchNorm1d(4)

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        return super()._forward({**batch, Columns.OBS: self.norm(batch[Columns.OBS])})


NORMED = RLModuleSpec(Normed, OBS, spaces.Discrete(3), {"fcnet_hiddens": [8]}).as_multi()


def make_regression(cls: type[Regression] = Regression, spec: Any = SPEC, **settings: Any) -> Regression:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(Settings(**settings), spec, run_seed=0)


def regression_batch(rows: int = 8, seed: int = 0) -> Batch:
    data = torch.rand(rows, 4, generator=torch.Generator().manual_seed(seed))
    return {Columns.OBS: data, "target": torch.ones(rows, 3)}


@pytest.mark.parametrize("fails_in", ["forward", "backward"])
def test_a_compiler_that_fails_leaves_all_as_it_would_have_been(
    monkeypatch: pytest.MonkeyPatch, log: Callable[[], list[str]], fails_in: str
) -> None:
    def failing(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        def fail(*args: Any) -> Any:
            loss, metrics = function(*args)
            if fails_in == "forward":
                raise RuntimeError("no g++\nsome more")
            loss.register_hook(lambda gradient: 1 / 0)
            return loss, metrics

        return fail

    monkeypatch.setattr(torch, "compile", failing)
    learners = make_regression(spec=NORMED), make_regression(spec=NORMED, torch_compile_learner=True)
    for learner in learners:
        for seed in range(4):
            learner.step_on_batch(regression_batch(seed=seed), env_steps=0)
    reason = "RuntimeError: no g++" if fails_in == "forward" else "ZeroDivisionError: division by zero"
    assert log() == [f"torch_compile_learner: the loss of module 'default_policy' does not use it: {reason}"]
    assert differences(clone(learners[0].get_state()), clone(learners[1].get_state())) == []


class Wrong(Regression):
    def compute_loss_for_module(
        self, module_id: str, batch: dict[str, Tree], fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        if batch["target"].shape[0] == 9:
            raise KeyError("mine")
        return super().compute_loss_for_module(module_id, batch, fwd_out)


def test_what_a_loss_raises_itself_is_raised(quick: None) -> None:
    learner = make_regression(Wrong, torch_compile_learner=True)
    for _ in range(3):
        learner.step_on_batch(regression_batch(8), env_steps=0)
    with pytest.raises(KeyError, match="mine"):
        learner.step_on_batch(regression_batch(9), env_steps=0)


@pytest.mark.end_to_end
def test_many_learners_of_one_process_are_each_compiled(quick: None, log: Callable[[], list[str]]) -> None:
    for width in range(2, 7):
        spec = RLModuleSpec(Small, OBS, spaces.Discrete(3), {"fcnet_hiddens": [width]}).as_multi()
        learner = make_regression(spec=spec, torch_compile_learner=True)
        for _ in range(2):
            learner.step_on_batch(regression_batch(), env_steps=0)
    assert log() == []


def test_recurrent_modules_are_not_compiled_and_the_cpu_has_no_graphs(log: Callable[[], list[str]]) -> None:
    ppo(model_config={"use_lstm": True}, torch_compile_learner=True)
    make_regression(torch_cuda_graphs=True)
    without = "the loss of module 'default_policy' does not use it: the"
    assert log() == [
        f"torch_compile_learner: {without} module is recurrent, and each of its steps would be compiled separately",
        f"torch_cuda_graphs: {without} learner computes on the CPU",
    ]


# --- in bfloat16 ------------------------------------------------------------------------------------------------------


class Sees(PPOLearner):
    """Keeps the types of what its loss sees."""

    def compute_loss_for_module(self, module_id: str, batch: Batch, fwd_out: Mapping[str, Any]) -> tuple[Any, Metrics]:
        self.seen = {name: value.dtype for name, value in fwd_out.items()}
        layer = nn.functional.linear(fwd_out[Columns.EMBEDDINGS], torch.ones(1, 8))
        self.layers = layer.dtype
        return super().compute_loss_for_module(module_id, batch, fwd_out)


def test_layers_compute_in_bfloat16_and_all_else_in_float32() -> None:
    eager, lower = ppo(Sees), ppo(Sees, torch_autocast="bfloat16")
    expected, got = train(eager, 3), train(lower, 3)
    assert (eager.layers, lower.layers) == (torch.float32, torch.bfloat16)  # type: ignore[attr-defined]
    assert set(lower.seen.values()) == {torch.float32}  # type: ignore[attr-defined]
    state = lower.optimizers[ID].state[lower.parameters[ID].parts["all"].tensor]
    kept = [*lower.module[ID].parameters(), lower.parameters[ID].grad, *state.values()]
    assert {x.dtype for x in kept} == {torch.float32}
    assert not torch.equal(weights(eager), weights(lower))
    torch.testing.assert_close(weights(lower), weights(eager), rtol=0.05, atol=5e-3)
    assert got["total_loss"] == pytest.approx(expected["total_loss"], rel=0.05, abs=0.01)


def test_values_far_from_zero_keep_their_digits_in_bfloat16() -> None:
    module = ppo().module[ID]
    assert isinstance(module, PPOModule)
    assert module.value_normalizer is not None
    module.update_value_statistics(torch.tensor([990.0, 1010.0]))
    batch = {Columns.OBS: torch.rand(16, 4)}
    expected = module.compute_values(batch)
    with torch.autocast("cpu", torch.bfloat16):
        lower = module.compute_values(batch)
    spread = module.value_normalizer.std.item()
    assert spread == pytest.approx(10, rel=0.1)
    torch.testing.assert_close(lower, expected, rtol=0, atol=0.02 * spread)  # bfloat16 has steps of 8 around 1000


@pytest.mark.parametrize("memory", ["use_lstm", "use_gru"])
def test_recurrent_nets_compute_in_bfloat16(memory: str) -> None:
    model = {memory: True, "max_seq_len": 8, "fcnet_hiddens": [8]}
    eager, lower = ppo(model_config=model), ppo(model_config=model, torch_autocast="bfloat16")
    train(eager, 3)
    train(lower, 3)
    assert not torch.equal(weights(eager), weights(lower))
    torch.testing.assert_close(weights(lower), weights(eager), rtol=0.05, atol=1e-2)


def test_errors_of_dqn_in_bfloat16_can_be_given_to_a_replay() -> None:
    config = DQNConfig().learners(torch_autocast="bfloat16")
    learner = DQNLearner(config, config.get_rl_module_spec(OBS, spaces.Discrete(3)).as_multi(), run_seed=0)
    metrics = learner.step_on_batch(transitions(), env_steps=0)[ID]
    assert metrics["td_error"].numpy().dtype == np.float32


@pytest.mark.slow
def test_cartpole_is_learned_in_bfloat16() -> None:
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=8)
        .learners(torch_autocast="bfloat16")
        .training(lr=1e-3, train_batch_size_per_learner=1024, minibatch_size=256, num_epochs=8)
        .debugging(seed=1)
    )
    with config.build() as algorithm:
        result = algorithm.learn(num_env_steps=100_000, target_return=195)
    assert result["env_runners"]["episode_return_mean"] >= 195


# --- captured, as far as that can be seen without a GPU ---------------------------------------------------------------


class FakeGraph:
    """In place of a CUDA graph: runs the pass, with what the learner's attributes were at the capture."""

    made: "list[FakeGraph]" = []  # noqa: RUF012
    fails: Exception | None = None
    breaks: Exception | None = None

    def __init__(self, run: Callable[[Batch], Any], batch: Batch, values: dict[str, Any]) -> None:
        if FakeGraph.fails is not None:
            run(batch)  # a trial
            raise FakeGraph.fails
        self.run, self.values, self.replays = run, values, 0

    def capture(self) -> None:
        if FakeGraph.breaks is not None:
            raise FakeGraph.breaks
        FakeGraph.made.append(self)

    def replay(self, batch: Batch) -> Any:
        self.replays += 1
        return self.run(batch)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> type[FakeGraph]:
    monkeypatch.setattr(compilation, "_Graph", FakeGraph)
    monkeypatch.setattr(FakeGraph, "made", [])
    monkeypatch.setattr(FakeGraph, "fails", None)
    monkeypatch.setattr(FakeGraph, "breaks", None)
    return FakeGraph


class OnGpu:
    """A learner with one weight whose gradients seem to lie on a GPU."""

    def __init__(self, loss: Callable[["OnGpu", Batch], Tensor]) -> None:
        self.net = nn.BatchNorm1d(1)
        self.module, self.loss = {ID: self.net}, loss
        self.factor, self.scale, self.unread, self.stepping = 2.0, torch.ones(()), 0, {ID: ("all",)}
        grad = SimpleNamespace(device=torch.device("cuda", 0))
        self.parameters = {ID: SimpleNamespace(grad=grad, zero_grad=self.net.zero_grad)}
        self.settings = Settings(torch_cuda_graphs=True)
        self.gradient_pass = gradient_pass(self, ID)  # type: ignore[arg-type]

    def forward_rows(self, module_id: str, batch: Batch) -> tuple[Batch, Mapping[str, Tree]]:
        return batch, {"y": self.net(batch["x"])}

    def compute_total_loss(self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]) -> tuple[Tensor, Metrics]:
        return self.loss(self, {**batch, **fwd_out}), {}

    def run(self, rows: int = 4) -> float:
        return float(self.gradient_pass({"x": torch.arange(rows).float().unsqueeze(1)})[0].detach())


def plain_loss(learner: OnGpu, batch: Batch) -> Tensor:
    return (batch["y"] - 1).square().mean() * learner.factor * learner.scale


def test_a_shape_is_captured_when_it_comes_again_and_replayed_from_then_on(
    captures: type[FakeGraph], log: Callable[[], list[str]]
) -> None:
    learner = OnGpu(plain_loss)
    for rows in (4, 4, 3, 4, 3, 3):
        learner.run(rows)
    assert [graph.replays for graph in captures.made] == [2, 2]
    learner.unread += 1
    learner.run(4)
    assert [graph.replays for graph in captures.made] == [3, 2]
    assert log() == []


def test_each_choice_of_parts_to_step_has_its_own_graph(
    captures: type[FakeGraph], log: Callable[[], list[str]]
) -> None:
    def loss(learner: OnGpu, batch: Batch) -> Tensor:
        return plain_loss(learner, batch) * len(learner.stepping[ID])

    learner = OnGpu(loss)
    got = []
    for names in 4 * [("critic",), ("critic",), ("critic", "actor")]:
        learner.stepping[ID] = names
        got.append(learner.run())
    assert got[2::3] == pytest.approx([2 * x for x in got[::3]])
    assert sorted(graph.replays for graph in captures.made) == [3, 7]
    assert log() == []


def test_a_graph_is_captured_anew_where_what_the_loss_reads_was_replaced(
    captures: type[FakeGraph], log: Callable[[], list[str]]
) -> None:
    learner = OnGpu(plain_loss)
    first = [learner.run() for _ in range(3)][-1]
    learner.factor = 4.0
    assert learner.run() == pytest.approx(2 * first)
    kept = learner.scale
    learner.scale = torch.full((), 0.5)  # by other code
    learner.run()
    assert len(captures.made) == 3
    learner.scale.fill_(3.0)
    learner.run()
    assert len(captures.made) == 3
    assert log() == []
    assert kept.item() == 1.0


def test_a_number_that_keeps_changing_ends_the_captures_by_name(
    captures: type[FakeGraph], log: Callable[[], list[str]]
) -> None:
    learner = OnGpu(plain_loss)
    for _ in range(30):
        learner.factor += 1
        learner.run()
    assert len(captures.made) == 1 + compilation._MOST_RECAPTURES
    assert len(log()) == 1
    assert "it reads learner.factor, of which one keeps changing (see Coefficient)" in log()[0]


def test_a_loss_that_changes_its_learner_is_not_captured(
    captures: type[FakeGraph], log: Callable[[], list[str]]
) -> None:
    def counting(learner: OnGpu, batch: Batch) -> Tensor:
        learner.unread += 1
        return plain_loss(learner, batch)

    learner = OnGpu(counting)
    for _ in range(3):
        learner.run()
    assert learner.unread == 3
    assert captures.made == []
    assert len(log()) == 1
    assert "torch_cuda_graphs: " in log()[0]
    assert "it changes learner.unread, which replaying a graph would not" in log()[0]
    assert type(learner) is OnGpu


def test_a_trial_that_fails_is_told_and_leaves_no_trace(
    captures: type[FakeGraph], log: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captures, "fails", RuntimeError("called a synchronizing CUDA operation\nmore"))
    learner = OnGpu(plain_loss)
    for _ in range(4):
        learner.run()
    assert int(learner.net.num_batches_tracked or 0) == 4
    assert len(log()) == 1
    assert log()[0].endswith("does not use it: RuntimeError: called a synchronizing CUDA operation")


def test_a_capture_that_fails_after_its_trials_is_an_error(
    captures: type[FakeGraph], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captures, "breaks", RuntimeError("operation not permitted when stream is capturing\nmore"))
    learner = OnGpu(plain_loss)
    learner.run()
    with pytest.raises(RuntimeError, match=r"stream is capturing\. Learn with torch_cuda_graphs=False"):
        learner.run()
    assert captures.made == []


# --- noise ------------------------------------------------------------------------------------------------------------


def test_a_stream_takes_up_the_state_of_one_with_a_gpu() -> None:
    stream, other = GlobalStream(1, "module_noise"), GlobalStream(2, "module_noise")
    with stream:
        torch.rand(3)
    state = stream.get_state().clone()
    with stream:
        expected = torch.rand(5)
    other.set_state(torch.cat([state, torch.zeros(16, dtype=torch.uint8)]))
    with other:
        assert torch.equal(torch.rand(5), expected)


def test_flat_parameters_follow_the_device_of_the_module() -> None:
    flat = FlatParameters({"all": nn.Linear(2, 3).to("meta").parameters()})
    assert flat.tensor.device == flat.grad.device == torch.device("meta")
