"""Parts of a module with their own optimizers: the arithmetic of torch's Adam for each, in one flat tensor."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from catalog.base import Tree
from rlmodule import BatchLearner, Columns
from rlmodule.collective import Collective, SingleProcess
from rlmodule.data.columns import Batch
from rlmodule.learning.flat_optimizer import FlatAdam, FlatParameters, Part
from rlmodule.learning.learner import join_metrics
from rlmodule.learning.reports import ROWS, Metrics, merge_metrics, merge_parts, part_of
from rlmodule.learning.sharding import shard_batch
from rlmodule.modules.spec import RLModuleSpec
from rlmodule.testing.data import clone, differences
from rlmodule.testing.learner_contract import LearnerContract
from tests.rlmodule.toys import Settings, Small
from tests.together import Fleet, digest, weights

ID = "default_policy"
OBS = spaces.Box(-1, 1, (4,), np.float32)
SPEC = RLModuleSpec(Small, OBS, spaces.Discrete(3), {"fcnet_hiddens": [8]})
POLICY, VALUES = ("encoder", "pi"), ("vf",)


class TwoParts(BatchLearner):
    """Fits the logits and the values, each by its own optimizer."""

    parts: ClassVar[Mapping[str, Part]] = {"policy": Part(POLICY, 0.02, 0.5), "values": Part(VALUES, 0.1, None)}

    def parts_of(self, module_id: str) -> Mapping[str, Part]:
        return self.parts

    def compute_loss_for_module(
        self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, Metrics]:
        module, embeddings = self.module[module_id], fwd_out[Columns.EMBEDDINGS]
        assert isinstance(module, Small)
        assert isinstance(embeddings, Tensor)
        values = module.compute_values(batch, embeddings.detach())
        loss = (values - batch["returns"]).square().mean()
        metrics = {"value_loss": loss}
        if "policy" in self.stepping[module_id]:
            policy_loss = (fwd_out[Columns.ACTION_DIST_INPUTS] - batch["target"]).square().mean()
            loss, metrics["policy_loss"] = loss + policy_loss, policy_loss
        return loss, metrics


class Delayed(TwoParts):
    """Trains the policy in every third step."""

    def parts_to_step(self, module_id: str) -> Collection[str]:
        due = (self.num_gradient_steps[module_id] + 1) % 3 == 0
        return ("values", "policy") if due else ("values",)


def make(cls: type[TwoParts] = TwoParts, **settings: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(Settings(**settings), SPEC.as_multi(), run_seed=0)


def batch(seed: int = 0, scale: float = 1.0, rows: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    target, returns = torch.randn(rows, 3, generator=generator), torch.randn(rows, generator=generator)
    obs = torch.rand(rows, 4, generator=generator)
    return {Columns.OBS: obs, "target": target * scale, "returns": returns * scale}


def named(module: nn.Module, prefixes: tuple[str, ...]) -> dict[str, nn.Parameter]:
    return {name: p for name, p in module.named_parameters() if name.split(".")[0] in prefixes}


def moments(learner: TwoParts, part: str) -> dict[str, Any]:
    return clone(learner.get_state()["optimizers"][f"{ID}.{part}"])


class TestTwoParts(LearnerContract):
    def make(self) -> TwoParts:
        return make()

    def make_data(self, learner: Any, seed: int) -> Batch:
        return batch(seed)


class TestDelayed(TestTwoParts):
    def make(self) -> TwoParts:
        return make(Delayed)


@pytest.mark.parametrize("cls", [TwoParts, Delayed])
def test_each_part_takes_the_steps_of_torchs_adam(cls: type[TwoParts]) -> None:
    """Its own learning rate and norm; a delayed part has fewer steps, and its moments see these alone."""
    learner, net = make(cls), make().module[ID]
    groups = {name: [*named(net, part.prefixes).values()] for name, part in learner.parts.items()}
    adams = {n: torch.optim.Adam(groups[n], lr=part.lr, eps=1e-5) for n, part in learner.parts.items()}
    clipped = 0
    for step in range(1, 8):
        data = batch(step, scale=3.0)
        latent = net.forward_train(data)[Columns.EMBEDDINGS].detach()
        losses = {"values": (net.compute_values(data, latent) - data["returns"]).square().mean()}
        if cls is TwoParts or step % 3 == 0:
            losses["policy"] = (net.forward_train(data)[Columns.ACTION_DIST_INPUTS] - data["target"]).square().mean()
        norms = {}
        for name, loss in losses.items():
            adams[name].zero_grad()
            loss.backward()
            limit = learner.parts[name].grad_clip
            norms[name] = float(nn.utils.clip_grad_norm_(groups[name], limit or float("inf")))
            clipped += limit is not None and norms[name] > limit
            adams[name].step()
        metrics = learner.step_on_batch(data, env_steps=0)[ID]
        assert {n.removeprefix("gradient_norm_") for n in metrics if n.startswith("gradient_norm_")} == norms.keys()
        for name, norm in norms.items():
            assert float(metrics[f"gradient_norm_{name}"]) == pytest.approx(norm, rel=1e-5)
        assert float(metrics["gradient_norm"]) == pytest.approx(sum(x**2 for x in norms.values()) ** 0.5, rel=1e-5)
        for (name, mine), expected in zip(learner.module[ID].named_parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(mine, expected, rtol=1e-5, atol=1e-6, msg=f"{name} in step {step}")
    assert clipped >= 2
    assert learner.num_gradient_steps == {ID: 7}


def test_a_part_that_does_not_step_keeps_weights_and_moments() -> None:
    learner = make(Delayed)
    for step in range(3):
        learner.step_on_batch(batch(step), env_steps=0)
    kept, before = moments(learner, "policy"), clone(named(learner.module[ID], POLICY))
    values = clone(named(learner.module[ID], VALUES))
    for step in (3, 4):
        learner.step_on_batch(batch(step), env_steps=0)
        assert learner.stepping == {ID: ("values",)}
        assert differences(moments(learner, "policy"), kept) == []
        assert differences(named(learner.module[ID], POLICY), before) == []
    assert float(kept["state"]["0"]["step"]) == 1
    assert float(moments(learner, "values")["state"]["0"]["step"]) == 5
    assert differences(named(learner.module[ID], VALUES), values)
    learner.step_on_batch(batch(5), env_steps=0)
    assert differences(named(learner.module[ID], POLICY), before)


def test_what_some_steps_report_is_averaged_over_these() -> None:
    learner = make(Delayed)
    history = [learner.step_on_batch(batch(step), env_steps=0) for step in range(6)]
    message = [float(step[ID]["policy_loss"]) for step in history if "policy_loss" in step[ID]]
    assert len(message) == 2
    results = learner.summarize_updates(history)[ID]
    assert results["policy_loss"] == pytest.approx(sum(message) / 2)
    assert results["value_loss"] == pytest.approx(sum(float(step[ID]["value_loss"]) for step in history) / 6)
    assert {"gradient_norm", "gradient_norm_policy", "gradient_norm_values"} < results.keys()


@pytest.mark.parametrize("column", ["target", "returns"])
def test_a_gradient_that_is_not_finite_skips_all_parts(column: str) -> None:
    learner = make()
    learner.step_on_batch(batch(), env_steps=0)
    before = clone({name: learner.get_state()[name] for name in ("module", "optimizers")})
    data = batch(1)
    data[column] = torch.full_like(data[column], float("nan"))
    assert learner.summarize_updates([learner.step_on_batch(data, env_steps=0)])[ID]["num_updates_skipped"] == 1
    assert differences(before["optimizers"], learner.get_state()["optimizers"]) == []
    assert all(torch.equal(p, before["module"][ID][name]) for name, p in learner.module[ID].named_parameters())
    learner.step_on_batch(batch(2), env_steps=0)
    assert differences(before["optimizers"], learner.get_state()["optimizers"])


def test_each_part_follows_its_own_schedule() -> None:
    class Scheduled(TwoParts):
        parts: ClassVar = {"policy": Part(POLICY, [[0, 0.2], [100, 0.0]], None), "values": Part(VALUES, 0.1, None)}

    learner = make(Scheduled)
    before = clone(named(learner.module[ID], POLICY))
    results = learner.summarize_updates([learner.step_on_batch(batch(), env_steps=100)])[ID]
    assert (results["learning_rate_policy"], results["learning_rate_values"]) == (0.0, 0.1)
    assert "learning_rate" not in results
    assert differences(before, named(learner.module[ID], POLICY)) == []
    other = make(Scheduled)
    other.set_state(clone(learner.get_state()))
    for each in (learner, other):
        results = each.summarize_updates([each.step_on_batch(batch(1), env_steps=25)])[ID]
        assert (results["learning_rate_policy"], results["learning_rate_values"]) == (pytest.approx(0.15), 0.1)
    assert differences(learner.get_state(), other.get_state()) == []


def test_an_optimizer_of_the_users_own_gets_one_part_at_a_time_and_its_learning_rate() -> None:
    class Momentum(TwoParts):
        def configure_optimizer_for_module(self, module_id: str, parameters: nn.Parameter) -> torch.optim.Optimizer:
            return torch.optim.SGD([parameters], lr=self.settings.lr, momentum=0.9)  # type: ignore[arg-type]

    learner = make(Momentum, lr=7.0)
    assert learner.settings.lr == 7.0
    assert {n: x.param_groups[0]["lr"] for n, x in learner.optimizers.items()} == {
        f"{ID}.policy": 0.02, f"{ID}.values": 0.1
    }  # fmt: skip
    policy = clone(named(learner.module[ID], POLICY))
    learner.parts_to_step = lambda module_id: ["values"]
    for step in range(3):
        learner.step_on_batch(batch(step), env_steps=0)
    assert differences(policy, named(learner.module[ID], POLICY)) == []
    assert moments(learner, "policy")["state"] == {}


def test_the_parts_lie_one_after_the_other_in_the_flat_tensor() -> None:
    learner = make()
    flat = learner.parameters[ID]
    for name, prefixes in (("policy", POLICY), ("values", VALUES)):
        expected = torch.cat([p.detach().flatten() for p in named(learner.module[ID], prefixes).values()])
        assert torch.equal(flat.parts[name].tensor, expected)
    assert torch.equal(flat.tensor, torch.cat([part.tensor.detach() for part in flat.parts.values()]))
    with torch.no_grad():
        flat.parts["values"].tensor.fill_(2.0)
    assert bool((learner.module[ID].vf.weight == 2).all())
    assert int((flat.tensor == 2).sum()) == 9


@pytest.mark.parametrize(
    ("prefixes", "match"),
    [
        (
            (("encoder",), ("vf",)),
            r"parts_of\('default_policy'\): expected each .* one of one, two, got it in none: pi\.",
        ),
        ((("",), ("vf",)), r"got it in one and two: vf\.weight"),
        ((("encoder", "pi", "vf"), ("v",)), r"expected trainable parameters in each part, got none in two, .*'v'"),
    ],
)
def test_every_parameter_is_in_exactly_one_part(prefixes: Any, match: str) -> None:
    class Wrong(TwoParts):
        parts: ClassVar = {name: Part(each, 0.1, None) for name, each in zip(("one", "two"), prefixes, strict=True)}

    with pytest.raises(ValueError, match=match):
        make(Wrong)


def test_a_tensor_that_two_parts_share_is_an_error() -> None:
    class Tied(Small):
        def setup(self) -> None:
            super().setup()
            self.again = self.vf

    class Wrong(TwoParts):
        parts: ClassVar = {
            "policy": Part(POLICY, 0.1, None),
            "values": Part(("vf",), 0.1, None),
            "more": Part(("again",), 1, None),
        }

    with pytest.raises(ValueError, match=r"got it in more and values: (again|vf)\."):
        Wrong(Settings(), RLModuleSpec(Tied, OBS, spaces.Discrete(3), {"fcnet_hiddens": [8]}).as_multi(), run_seed=0)


@pytest.mark.parametrize("names", [(), ("values", "plicy")])
def test_the_parts_to_step_are_known_ones(names: tuple[str, ...]) -> None:
    learner = make()
    learner.parts_to_step = lambda module_id: names
    with pytest.raises(ValueError, match=r"parts_to_step\('default_policy'\): expected one or more of policy, values"):
        learner.step_on_batch(batch(), env_steps=0)


def test_modules_have_parts_and_steps_of_their_own() -> None:
    learner = make(Delayed)
    learner.add_module("b", SPEC)
    for step in range(4):
        learner.step_on_batch(batch(step), env_steps=0, module_id=ID if step % 2 else "b")
    learner.step_on_batch(batch(5), env_steps=0, module_id="b")
    assert learner.num_gradient_steps == {ID: 2, "b": 3}
    assert learner.stepping == {ID: ("values",), "b": ("values", "policy")}
    assert learner.optimizers.keys() == {f"{name}.{part}" for name in (ID, "b") for part in ("policy", "values")}
    learner.remove_module("b")
    assert learner.optimizers.keys() == {f"{ID}.policy", f"{ID}.values"}
    assert learner.num_gradient_steps == {ID: 2}


def test_a_batch_learner_trains_each_module_with_its_own_settings() -> None:
    class PerModule(Settings):
        def for_module(self, module_id: str) -> Any:
            return Settings(lr=0.5, grad_clip=None) if module_id == "b" else self

    seen: dict[str, Any] = {}

    class Sees(TwoParts):
        def parts_of(self, module_id: str) -> Mapping[str, Part]:
            return BatchLearner.parts_of(self, module_id)

        def prepare_batch(self, module_id: str, batch: Batch) -> Batch:
            seen[module_id] = self.settings.lr
            return batch

    learner = Sees(PerModule(lr=0.25), SPEC.as_multi(), run_seed=0)
    learner.add_module("b", SPEC)
    for module_id in (ID, "b"):
        learner.step_on_batch(batch(), env_steps=0, module_id=module_id)
    assert seen == {ID: 0.25, "b": 0.5}
    assert {name: x.param_groups[0]["lr"] for name, x in learner.optimizers.items()} == seen
    assert learner.settings.lr == 0.25


# --- several learners -------------------------------------------------------------------------------------------------


def learn(collective: Collective, cls: type[TwoParts], batches: list[Batch | None]) -> dict[str, Any]:
    learner = make(cls)
    learner.connect(collective)
    history = [learner.step_on_batch(each, env_steps=0)[ID] for each in batches]
    return {"weights": weights(learner), "digest": digest(learner.get_state()), "history": history}


@pytest.mark.parametrize("cls", [TwoParts, Delayed])
def test_two_learners_take_the_steps_of_one(fleet: Fleet, cls: type[TwoParts]) -> None:
    batches = [batch(seed, rows=9) for seed in range(6)]
    one = learn(SingleProcess(), cls, batches)
    shards = [shard_batch(each, 2) for each in batches]
    two = fleet.values(learn, *[(cls, [shard[rank] for shard in shards]) for rank in range(2)])
    assert len({each["digest"] for each in two}) == 1
    for each in two:
        assert float((each["weights"] - one["weights"]).abs().max()) <= 1e-6
    for i, expected in enumerate(one["history"]):
        merged = merge_metrics([each["history"][i] for each in two], batches[i])
        assert merged.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(merged[name], value, rtol=1e-4, atol=1e-5)


def step(rows: float, **metrics: float) -> Metrics:
    return {ROWS: torch.tensor(rows)} | {name: torch.tensor(value) for name, value in metrics.items()}


def test_metrics_of_some_steps_are_merged_over_the_learners_that_have_rows() -> None:
    first = [step(2, a=1.0), step(2, a=2.0, b=10.0), step(0, a=9.0)]
    second = [step(6, a=3.0), step(0, a=9.0), step(1, a=5.0)]
    scalars, per_row = merge_parts([part_of(first), part_of(second)])
    assert scalars["a"].tolist() == [2.5, 2.0, 5.0]
    assert scalars["b"].tolist() == [10.0]
    assert per_row == {}
    second[0]["b"] = torch.tensor(1.0)
    with pytest.raises(ValueError, match="expected 'b' from all learners or from none"):
        merge_parts([part_of(first), part_of(second)])


def test_metrics_of_some_steps_are_joined_over_these() -> None:
    rows = [{"a": torch.tensor(1.0)}, {"a": torch.tensor(2.0), "b": torch.arange(2.0)}, {"b": torch.ones(1)}]
    joined = join_metrics(rows)
    assert {name: value.tolist() for name, value in joined.items()} == {"a": [1, 2], "b": [0, 1, 1]}


def test_a_part_is_stepped_within_the_flat_tensor() -> None:
    """Slices of odd lengths, which no vector instruction fits, leave their neighbours alone."""
    flats = [
        FlatParameters({n: [nn.Parameter(torch.ones(k))] for n, k in (("a", 3), ("b", 5), ("c", 7))}) for _ in "12"
    ]
    parts = flats[0].parts
    parts["b"].grad.fill_(0.5)
    FlatAdam(parts["b"].tensor, lr=0.1, eps=1e-5).step_unless(torch.zeros(()))
    assert flats[0].tensor.tolist() == pytest.approx([1.0] * 3 + [0.9] * 5 + [1.0] * 7, abs=1e-4)
    assert torch.equal(flats[0].tensor[:3], flats[1].tensor[:3])
    assert torch.equal(flats[0].tensor[8:], flats[1].tensor[8:])
