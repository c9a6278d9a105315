"""Modules of one structure in one pass: their updates are those of one after another."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from algorithms.ppo import PPOConfig, PPOLearner, PPOModule
from rlmodule import Columns, Rollout
from rlmodule.collective import Collective, SingleProcess
from rlmodule.learning import joint_updates
from rlmodule.learning.episode_learner import EpisodeLearner
from rlmodule.learning.flat_optimizer import Part
from rlmodule.learning.joint_updates import divide
from rlmodule.learning.sharding import shard
from rlmodule.learning.stacks import Stack, StackedPass
from rlmodule.modules.spec import MultiRLModuleSpec, RLModuleSpec
from rlmodule.testing.data import differences, random_rollout
from tests.algorithms.ppo.test_ppo_several_modules import assert_close
from tests.rlmodule.agents.envs import CartPoles
from tests.together import Fleet, digest

BOX, DISCRETE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
NESTED = spaces.Dict({"a": BOX, "b": spaces.Discrete(3)})
IDS = "abc"
STEPS = {"a": 12, "b": 15, "c": 5}
"""Steps of each module's rollout: minibatches differ in number and size."""


def make(
    obs: Any = BOX,
    actions: Any = DISCRETE,
    cls: type[PPOLearner] = PPOLearner,
    model: Any = None,
    shared: Any = None,
    **settings: Any,
) -> PPOLearner:
    nets = {"fcnet_hiddens": [8], **(model or {})}
    config = PPOConfig(**{"lr": 1e-2, "minibatch_size": 16, "num_epochs": 2, "model_config": nets} | settings)
    overrides = config.policy_overrides
    config.policies = list(IDS)
    spec = config.get_rl_module_spec(obs, actions)
    config.policy_overrides = overrides
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(config.freeze(), MultiRLModuleSpec(dict.fromkeys(IDS, spec), shared or {}), run_seed=1)


def data_for(learner: PPOLearner, seed: int = 0) -> dict[str, Rollout]:
    return {
        module_id: random_rollout(learner.module[module_id], steps, 3, seed + i)
        for i, (module_id, steps) in enumerate(STEPS.items())
    }


def groups(learner: EpisodeLearner) -> list[tuple[str, ...]]:
    """The ids of the modules that are updated together."""
    updates = divide(learner, [*IDS], may_stack=True)
    return [(update,) if isinstance(update, str) else tuple(update._ids) for update in updates]


def one_by_one(learner: PPOLearner, data: dict[str, Rollout], env_steps: int) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for module_id in sorted(data):
        results |= learner.update_from_episodes(data[module_id], env_steps=env_steps, module_id=module_id)
    return results


NETS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "normalized": (BOX, DISCRETE, {"normalize_observations": True, "normalize_values": True}),
    "shared layers": (BOX, DISCRETE, {"vf_share_layers": True, "fcnet_hiddens": [8, 8]}),
    "layer norm": (BOX, DISCRETE, {"fcnet_norm": "layer"}),
    "simba": (BOX, DISCRETE, {"fcnet_hiddens": [8, 8], "fcnet_blocks": "simba", "fcnet_norm": "layer"}),
    "gaussian": (BOX, spaces.Box(-2, 2, (2,), np.float32), {"free_log_std": True}),
    "several choices": (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 3]), {}),
    "nested": (NESTED, DISCRETE, {"flatten_observations": True}),
    "wide codes": (spaces.Discrete(1100), DISCRETE, {"fcnet_hiddens": [8]}),
}


@pytest.mark.parametrize("shared", ["encoder", ["a.encoder.actor_encoder", "c.encoder.actor_encoder"]])
@pytest.mark.parametrize("net", ["normalized", "gaussian", "nested"])
def test_policies_that_share_a_part_are_updated_at_once_as_one_by_one(
    net: str, shared: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    obs, actions, model = NETS[net]
    at_once, apart = (make(obs, actions, model=model, shared={"trunk": shared}) for _ in range(2))
    data = data_for(at_once)
    passes: list[Any] = []
    inner = StackedPass.__call__
    monkeypatch.setattr(StackedPass, "__call__", lambda *given: passes.append(1) or inner(*given))
    results = at_once.update_from_episodes(data)
    num_passes = len(passes)
    monkeypatch.setattr(joint_updates, "stack_of", lambda modules: None)
    expected = apart.update_from_episodes(data)
    assert num_passes == len(passes) > 0
    for module_id in IDS:
        assert results[module_id] == pytest.approx(expected[module_id], rel=1e-4, abs=1e-5)
    assert_close(at_once, apart)


@pytest.mark.parametrize("net", NETS)
def test_stacked_updates_are_those_of_one_after_another(net: str) -> None:
    obs, actions, model = NETS[net]
    stacked, alone = (make(obs, actions, model=model, lr=[[0, 1e-2], [100, 1e-3]]) for _ in range(2))
    assert groups(stacked) == [("a", "b", "c")]
    for k in range(3):
        data = data_for(stacked, 10 * k)
        results, expected = stacked.update_from_episodes(data, env_steps=30 * k), one_by_one(alone, data, 30 * k)
        for module_id in IDS:
            assert results[module_id] == pytest.approx(expected[module_id], rel=1e-4, abs=1e-5)
    assert_close(stacked, alone)
    assert stacked.num_gradient_steps["c"] < stacked.num_gradient_steps["b"]


def test_policies_with_batch_norm_are_not_stacked_so_that_their_statistics_move() -> None:
    learner = make(model={"fcnet_norm": "batch"})
    assert groups(learner) == [(module_id,) for module_id in IDS]
    learner.update_from_episodes(data_for(learner))
    for module_id in IDS:
        statistics = [x for name, x in learner.module[module_id].named_buffers() if "running_mean" in name]
        assert statistics
        assert all(x.any() for x in statistics)


@pytest.mark.parametrize("settings", [{"minibatch_size": 7}, {"minibatch_size": None}, {"grad_clip": None}])
def test_minibatches_and_clips_are_those_of_one_after_another(settings: dict[str, Any]) -> None:
    stacked, alone = make(**settings), make(**settings)
    data = data_for(stacked)
    stacked.update_from_episodes(data, env_steps=0)
    one_by_one(alone, data, 0)
    assert groups(stacked) == [("a", "b", "c")]
    assert_close(stacked, alone)


def test_a_minibatch_that_is_not_finite_is_skipped_by_its_module_alone() -> None:
    stacked, alone = make(minibatch_size=8), make(minibatch_size=8)
    data = data_for(stacked)
    data["b"].columns[Columns.ACTION_LOGP][0, 0] = torch.nan
    data["b"].columns[Columns.VALID][0, 0] = True
    results, expected = stacked.update_from_episodes(data, env_steps=0), one_by_one(alone, data, 0)
    assert [results[module_id]["num_updates_skipped"] for module_id in IDS] == [
        expected[module_id]["num_updates_skipped"] for module_id in IDS
    ]
    assert results["a"]["num_updates_skipped"] == 0 < results["b"]["num_updates_skipped"]
    state, other = stacked.get_state(), alone.get_state()
    torch.testing.assert_close(state["module"], other["module"], rtol=1e-5, atol=1e-6, equal_nan=True)
    assert state["num_gradient_steps"] == other["num_gradient_steps"]


class OwnLoss(PPOLearner):
    def compute_policy_objective(self, ratio: Tensor, batch: Any) -> Tensor:
        return super().compute_policy_objective(ratio, batch) * 2


class OwnValueError(PPOLearner):
    """Weighs the errors of a minibatch by its largest one."""

    def value_error(self, module: Any, batch: Any, fwd_out: Any) -> Tensor:
        error = super().value_error(module, batch, fwd_out)
        return error * error.detach() / error.detach().max()


class OwnOptimizer(PPOLearner):
    def configure_optimizer_for_module(self, module_id: str, parameters: nn.Parameter) -> torch.optim.Optimizer:
        return torch.optim.SGD([parameters], lr=0.1)


class Warming(PPOModule):
    """Counts its passes in training, by which its logits grow after the third."""

    passes: Tensor

    def setup(self) -> None:
        super().setup()
        self.register_buffer("passes", torch.zeros(1))

    def _forward_train(self, batch: Any) -> Any:
        self.passes += self.training
        out = super()._forward_train(batch)
        return out | {Columns.ACTION_DIST_INPUTS: out[Columns.ACTION_DIST_INPUTS] * self.passes.clamp_min(3)}


APART: dict[str, dict[str, Any]] = {
    "own loss": {"cls": OwnLoss},
    "own value error": {"cls": OwnValueError},
    "counts its passes": {"rl_module_spec": RLModuleSpec(Warming)},
    "own optimizer": {"cls": OwnOptimizer},
    "KL penalty": {"use_kl_loss": True},
    "stops early": {"target_kl": 0.01},
    "dropout": {"model": {"fcnet_dropout": 0.5}},
    "memory": {"model": {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}},
    "embedding": {"obs": spaces.Discrete(3), "model": {"discrete_embedding_dim": 2}},
    "clips each tensor": {"grad_clip_by": "norm"},
}


@pytest.mark.parametrize("why", APART)
def test_what_cannot_be_stacked_is_updated_one_after_another(why: str) -> None:
    learner, alone = make(**APART[why]), make(**APART[why])
    assert groups(learner) == [("a",), ("b",), ("c",)]
    data = data_for(learner)
    learner.update_from_episodes(data, env_steps=0)
    one_by_one(alone, data, 0)
    assert differences(learner.get_state(), alone.get_state()) == []


def test_only_neighbours_with_equal_settings_are_stacked() -> None:
    learner = make(policy_overrides={"a": {"gamma": 0.5}})
    assert groups(learner) == [("a",), ("b", "c")]
    learner = make(policy_overrides={"b": {"gamma": 0.5}})
    assert groups(learner) == [("a",), ("b",), ("c",)]


def test_stacks_follow_added_and_removed_modules() -> None:
    learner, alone = make(), make()
    data = data_for(learner)
    for each in (learner, alone):
        update = each.update_from_episodes if each is learner else lambda data, env_steps: one_by_one(alone, data, 0)
        update(data, env_steps=0)
        spec = MultiRLModuleSpec(
            {"b": PPOConfig(model_config={"fcnet_hiddens": [8]}).get_rl_module_spec(BOX, DISCRETE)}
        )
        each.remove_module("b")
        each.add_module("b", spec.rl_module_specs["b"])
        update(data, env_steps=0)
        update({"a": data["a"], "c": data["c"]}, env_steps=0)
    assert_close(learner, alone)


@pytest.mark.parametrize("change", [{"custom_action_dist": "SquashedGaussian"}, {"normalize_actions": False}])
def test_policies_with_other_settings_learn_as_each_alone(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their tensors have the same names and shapes, and what the env returns depends on the actions it got."""
    nets = {"fcnet_hiddens": [8]}
    config = PPOConfig(env=CartPoles, env_config={"num_agents": 3, "env_id": "Pendulum-v1"}, num_epochs=1, seed=3)
    config.training(train_batch_size_per_learner=48, minibatch_size=16).env_runners(num_envs_per_env_runner=3)
    models = {"cart_0": nets, "cart_1": nets | change, "cart_2": nets}
    config.multi_agent(policies={name: RLModuleSpec(model_config=model) for name, model in models.items()})
    results = []
    for stacks in (True, False):
        if not stacks:
            monkeypatch.setattr(joint_updates, "stack_of", lambda modules: None)
        with config.build() as algo:
            results.append((algo.sample_rollouts()[0], algo.train()["learners"]))
    for module_id in models:
        torch.testing.assert_close(*(one[module_id].columns for one, _ in results), rtol=1e-5, atol=1e-6)
        of_both = [learned[module_id] for _, learned in results]
        assert of_both[0] == pytest.approx(of_both[1], rel=1e-4, abs=1e-5)


def continued(collective: Collective, first: dict[str, Rollout], then: dict[str, Rollout | None]) -> dict[str, Any]:
    learner = make(minibatch_size=16 // collective.size)
    learner.update_from_episodes(first, env_steps=0, minibatch_size=16)
    learner.connect(collective)
    learner.update_from_episodes(then, env_steps=96)
    return {"module": learner.module.get_state(), "digest": digest(learner.get_state())}


def test_learners_that_begin_to_train_together_no_longer_stack(fleet: Fleet) -> None:
    learner = make()
    first, then = data_for(learner), data_for(learner, 5)
    parts = shard(then, 2)
    one, other = fleet.values(continued, (first, parts[0]), (first, parts[1]))
    assert one["digest"] == other["digest"]
    alone = continued(SingleProcess(), first, then)
    torch.testing.assert_close(one["module"], alone["module"], rtol=1e-5, atol=1e-6)


class Clipped(PPOLearner):
    """Clips harder than the settings say."""

    def parts_of(self, module_id: str) -> dict[str, Part]:
        return {"all": Part(("",), self.settings.lr, 1e-6)}


def test_a_stack_clips_as_the_parts_of_its_modules_say() -> None:
    learner = make(cls=Clipped, num_epochs=1, minibatch_size=None)
    learner.update_from_episodes(data_for(learner), env_steps=0)
    (stack,) = learner._divided[2]
    assert isinstance(stack, Stack)
    assert stack._compute.grad.norm(dim=1).tolist() == pytest.approx([1e-6] * 3, rel=1e-2)


def test_modules_whose_distributions_have_parameters_learn_one_by_one() -> None:
    learner = make(actions=spaces.MultiDiscrete([2, 3]), model={"autoregressive_actions": True})
    learner.update_from_episodes(data_for(learner), env_steps=0)
    assert groups(learner) == [("a",), ("b",), ("c",)]
