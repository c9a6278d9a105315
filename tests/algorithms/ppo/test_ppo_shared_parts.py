"""Parts that policies share by name: one set of tensors, one optimizer, one step on the sum of the losses."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from algorithms import Algorithm
from algorithms.ppo import PPOConfig, PPOLearner
from catalog.base import Tree
from rlmodule import Columns, Episode, Rollout
from rlmodule.agents.cartpoles import CartPoles
from rlmodule.checkpoint import load_checkpoint, save_checkpoint
from rlmodule.collective import Collective, SingleProcess
from rlmodule.data.columns import Batch
from rlmodule.learning.sharding import shard
from rlmodule.modules.rl_module import MultiRLModule
from rlmodule.modules.spec import MultiRLModuleSpec
from rlmodule.testing.data import differences, random_rollout
from tests.together import Fleet, digest

OBS = spaces.Box(-1, 1, (4,), np.float32)
ACTIONS = {"a": spaces.Discrete(3), "b": spaces.Discrete(2), "c": spaces.Box(-1, 1, (2,), np.float32)}
"""Heads differ, so the trunk alone can be shared by all."""
STEPS = {"a": 12, "b": 15, "c": 5}
SHARED: dict[str, Any] = {"trunk": "encoder.actor_encoder", "values": ["c.vf_head", "a.vf_head"]}


def specs(shared: Mapping[str, Any] = SHARED, **model: Any) -> MultiRLModuleSpec:
    nets = {"fcnet_hiddens": [8], "normalize_observations": False, "normalize_values": False}
    config = PPOConfig(model_config=nets | model)
    own = {module_id: config.get_rl_module_spec(OBS, actions) for module_id, actions in ACTIONS.items()}
    return MultiRLModuleSpec(own, shared)


class Watching(PPOLearner):
    """Keeps the batches that its loss sees."""

    def compute_loss_for_module(self, module_id: str, batch: Batch, fwd_out: Mapping[str, Tree]) -> Any:
        if not hasattr(self, "seen"):
            self.seen: list[tuple[str, Batch]] = []
        self.seen.append((module_id, batch))
        return super().compute_loss_for_module(module_id, batch, fwd_out)


def make(shared: Mapping[str, Any] = SHARED, cls: Any = Watching, **settings: Any) -> Any:
    config = PPOConfig(**{"lr": 1e-2, "minibatch_size": 16, "num_epochs": 2, "grad_clip": None} | settings)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return cls(config.freeze(), specs(shared), run_seed=1)


def data_for(learner: PPOLearner, seed: int = 0) -> dict[str, Rollout]:
    return {
        module_id: random_rollout(learner.module[module_id], steps, 4, seed + i)
        for i, (module_id, steps) in enumerate(STEPS.items())
    }


def weight_of(modules: MultiRLModule, module_id: str) -> Tensor:
    return modules[module_id].encoder.actor_encoder.linears[0].weight  # type: ignore[union-attr, return-value]


def union(modules: MultiRLModule) -> list[torch.nn.Parameter]:
    return list(modules.parameters())  # each once


def test_a_shared_part_is_one_set_of_tensors_with_one_optimizer() -> None:
    learner = make()
    learner.update_from_episodes(data_for(learner), env_steps=0)
    assert len({weight_of(learner.module, module_id).data_ptr() for module_id in "abc"}) == 1
    heads = [learner.module[module_id].vf_head.linears[0].weight.data_ptr() for module_id in "abc"]
    assert heads[0] == heads[2] != heads[1]
    assert list(learner.optimizers) == ["a", "b", "c", "trunk", "values"]
    sizes = [part.tensor.numel() for flat in learner.parameters.values() for part in flat.parts.values()]
    sizes += [part.flat.tensor.numel() for part in learner.shared_parts.values()]
    assert sum(sizes) == sum(p.numel() for p in union(learner.module))


def test_gradients_are_those_of_the_sum_of_losses_on_copies_that_share_nothing() -> None:
    learner, apart = make(minibatch_size=None, num_epochs=1), make({}, minibatch_size=None, num_epochs=1)
    apart.module.set_state(learner.module.get_state())
    data = data_for(learner)
    learner.update_from_episodes(data, env_steps=0)
    apart.update_from_episodes(data, env_steps=0)
    for module_id in "abc":
        for name, p in learner.module[module_id].named_parameters():
            members = {"encoder.actor_encoder": "abc", "vf_head": "ac"}
            sharing = next((ids for part, ids in members.items() if name.startswith(f"{part}.")), "")
            ids = sharing if module_id in sharing else module_id
            grads = [dict(apart.module[one].named_parameters())[name].grad for one in ids]
            torch.testing.assert_close(p.grad, sum(grads), rtol=1e-5, atol=1e-6)


def test_steps_are_those_of_one_adam_on_the_union_of_parameters() -> None:
    learner = make()
    modules = specs().build()
    modules.set_state(learner.module.get_state())
    data = data_for(learner)
    for k in range(2):
        learner.update_from_episodes(data, env_steps=k)
    calculator = make(cls=PPOLearner)
    calculator.module = modules.train()
    adam = torch.optim.Adam(union(modules), lr=1e-2, eps=1e-5)
    steps: list[list[tuple[str, Batch]]] = []
    for module_id, batch in learner.seen:
        if not steps or module_id <= steps[-1][-1][0]:
            steps.append([])
        steps[-1].append((module_id, batch))
    assert len(steps) == learner.num_gradient_steps["b"] > 8
    for step in steps:
        adam.zero_grad()
        losses = [calculator.compute_total_loss(i, *calculator.forward_rows(i, batch))[0] for i, batch in step]
        torch.stack(losses).sum().backward()
        adam.step()
    for p, expected in zip(union(learner.module), union(modules), strict=True):
        torch.testing.assert_close(p, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", "ac")
def test_a_loss_that_is_not_finite_skips_the_step_of_the_whole_family(bad: str) -> None:
    learner = make(minibatch_size=None, num_epochs=1)
    before = {module_id: weight_of(learner.module, module_id).clone() for module_id in "abc"}
    data = data_for(learner)
    data[bad].columns[Columns.ACTION_LOGP][0, 0] = torch.nan
    data[bad].columns[Columns.VALID][0, 0] = True
    results = learner.update_from_episodes(data, env_steps=0)
    assert [results[module_id]["num_updates_skipped"] for module_id in "abc"] == [1, 1, 1]
    assert all(torch.equal(weight_of(learner.module, module_id), before[module_id]) for module_id in "abc")


def test_each_part_is_clipped_on_its_own() -> None:
    learner = make(minibatch_size=None, num_epochs=1, grad_clip=1e-3)
    learner.update_from_episodes(data_for(learner), env_steps=0)
    parts = [*learner.shared_parts.values(), *(part for of in learner.trained.values() for part in of.parts.values())]
    assert [float(part.flat.grad.norm()) for part in parts] == pytest.approx([1e-3] * 5, rel=1e-3)


def test_epochs_and_rates_of_policies_are_their_own() -> None:
    learner = make(policy_overrides={"a": {"num_epochs": 1, "lr": 0.0}}, minibatch_size=None)
    before = {module_id: learner.module[module_id].pi_head.linears[0].weight.clone() for module_id in "ab"}
    learner.update_from_episodes(data_for(learner), env_steps=0)
    assert learner.num_gradient_steps == {"a": 1, "b": 2, "c": 2}
    after = {module_id: learner.module[module_id].pi_head.linears[0].weight for module_id in "ab"}
    assert [torch.equal(before[one], after[one]) for one in "ab"] == [True, False]


def test_shared_parts_are_trained_with_the_settings_of_the_run() -> None:
    schedule = [[0, 1e-2], [1000, 0.0]]
    learner = make(lr=schedule, grad_clip=2.0, policy_overrides={"a": {"lr": 0.5, "grad_clip": 123.0}})
    assert {name: part.part.grad_clip for name, part in learner.shared_parts.items()} == {"trunk": 2.0, "values": 2.0}
    learner.update_from_episodes(data_for(learner), env_steps=750)
    rates = {name: optimizer.param_groups[0]["lr"] for name, optimizer in learner.optimizers.items()}
    assert rates == pytest.approx({"a": 0.5, "b": 2.5e-3, "c": 2.5e-3, "trunk": 2.5e-3, "values": 2.5e-3})


@pytest.mark.parametrize("module_id", ["a", "b"])
def test_the_policy_with_most_minibatches_sets_the_number_for_its_family(module_id: str) -> None:
    learner = make(num_epochs=1, policy_overrides={module_id: {"minibatch_size": 4}})
    data = data_for(learner)
    learner.update_from_episodes(data, env_steps=0)
    # a single row that is left over joins the minibatch before it
    assert learner.num_gradient_steps[module_id] in {(rows := data[module_id].num_env_steps) // 4, -(-rows // 4)}
    assert min(learner.num_gradient_steps.values()) > 3


@pytest.mark.parametrize(
    ("size", "lengths", "steps"),
    [
        (8, {"a": [4, 4, 4], "b": [4, 4, 4, 4]}, 2),
        (12, {"a": [4], "b": [6]}, 1),
        (12, {"a": [4, 4, 4], "b": [4, 1, 1, 1, 1, 1, 1]}, 3),
    ],
)
def test_policies_with_memories_take_the_same_number_of_steps(
    size: int, lengths: dict[str, list[int]], steps: int
) -> None:
    nets = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}
    config = PPOConfig(minibatch_size=size, num_epochs=1)
    both = MultiRLModuleSpec(
        {name: PPOConfig(model_config=nets).get_rl_module_spec(OBS, ACTIONS["a"]) for name in "ab"}, {"e": "encoder"}
    )
    learner = PPOLearner(config.freeze(), both, run_seed=1)

    def episode(length: int) -> Episode:
        columns = {Columns.ACTION_LOGP: np.zeros(length, np.float32), Columns.ACTION_DIST_INPUTS: np.zeros((length, 3))}
        return Episode(
            np.zeros((length + 1, 4), np.float32), np.zeros(length, np.int64), np.ones(length), columns=columns
        )

    data = {name: [episode(length) for length in of] for name, of in lengths.items()}
    learner.update_from_episodes(data, env_steps=0)
    assert learner.num_gradient_steps == {"a": steps, "b": steps}


def test_a_shared_part_without_parameters_is_refused() -> None:
    nets = {"normalize_observations": True}
    own = {name: PPOConfig(model_config=nets).get_rl_module_spec(OBS, ACTIONS[name]) for name in "ab"}
    spec = MultiRLModuleSpec(own, {"norm": "observation_normalizer"})
    with pytest.raises(ValueError, match=r"shared_parts\['norm'\]: expected a part with trainable parameters"):
        PPOLearner(PPOConfig().freeze(), spec, run_seed=1)


def test_a_policy_of_a_family_clips_its_own_part_in_its_own_way() -> None:
    clips = {"b": {"grad_clip": 1e-3, "grad_clip_by": "value"}}
    learner = make(num_epochs=1, minibatch_size=None, policy_overrides=clips)
    learner.update_from_episodes(data_for(learner), env_steps=0)
    grad = learner.parameters["b"].grad
    assert float(grad.abs().max()) == pytest.approx(1e-3)
    assert float(grad.norm()) > 2e-3
    assert float(learner.parameters["a"].grad.abs().max()) > 1e-3


def test_a_checkpoint_holds_a_shared_part_once(tmp_path: Path) -> None:
    learner, other, apart = make(), make(), make({})
    for each in (learner, apart):
        each.update_from_episodes(data_for(each), env_steps=0)
    sizes = []
    for name, each in (("shared", learner), ("apart", apart)):
        save_checkpoint(tmp_path / name, each.get_state())
        sizes.append((tmp_path / name / "tensors.safetensors").stat().st_size)
    trunk, head = 4 * 8 + 8, 8 + 1
    saved = 4 * 3 * (2 * trunk + head)  # floats of weights and both moments
    assert sizes[1] - sizes[0] == pytest.approx(saved, rel=0.5)
    assert sizes[1] - sizes[0] >= saved
    other.set_state(load_checkpoint(tmp_path / "shared"))
    data = data_for(learner, 7)
    for each in (learner, other):
        each.update_from_episodes(data, env_steps=50)
    assert differences(other.get_state(), learner.get_state()) == []


def test_added_and_removed_policies_leave_the_moments_of_the_rest() -> None:
    learner, spec = make(), specs().rl_module_specs["a"]
    learner.update_from_episodes(data_for(learner), env_steps=0)
    trunk = learner.shared_parts["trunk"]
    moments = trunk.optimizer.state[trunk.flat.tensor]["exp_avg"].clone()
    data = data_for(learner)
    learner.add_module("d", spec)
    learner.remove_module("b")
    assert weight_of(learner.module, "d").data_ptr() == weight_of(learner.module, "a").data_ptr()
    assert learner.shared_parts["trunk"] is trunk
    assert torch.equal(trunk.optimizer.state[trunk.flat.tensor]["exp_avg"], moments)
    before = weight_of(learner.module, "a").clone()
    learner.update_from_episodes({"a": data["a"], "d": data["a"]}, env_steps=0)
    assert learner.num_gradient_steps.keys() == {"a", "c", "d"}
    assert not torch.equal(weight_of(learner.module, "d"), before)


def test_a_part_whose_policies_were_all_removed_has_a_new_optimizer_with_those_added_later() -> None:
    learner, of = make(), specs().rl_module_specs
    learner.update_from_episodes(data_for(learner), env_steps=0)
    for module_id in "ac":
        learner.remove_module(module_id)
    assert list(learner.optimizers) == ["b", "trunk"]
    for module_id in "ac":
        learner.add_module(module_id, of[module_id])
    before = learner.module["a"].vf_head.linears[0].weight.clone()
    learner.update_from_episodes(data_for(learner), env_steps=0)
    assert not torch.equal(learner.module["c"].vf_head.linears[0].weight, before)


# --- in a run ---------------------------------------------------------------------------------------------------------


def run(**settings: Any) -> PPOConfig:
    config = PPOConfig(train_batch_size_per_learner=32, minibatch_size=32, num_epochs=1, seed=0, **settings)
    config.environment(CartPoles, env_config={"num_agents": 2})
    return config.rl_module(model_config={"fcnet_hiddens": [8]}).env_runners(num_envs_per_env_runner=2)


def test_each_policy_has_parts_of_its_own_and_shared_ones_without_a_global(tmp_path: Path) -> None:
    config = run().multi_agent(policies="own", shared_parts={"trunk": "encoder.actor_encoder"})
    with config.build() as algo:
        algo.train()
        first, second = (algo.get_module(policy_id) for policy_id in algo.env_runner_group.module)
        acting = [*algo.env_runner_group.module.items()]
        names = {name for name, _ in first.named_parameters() if name.startswith("encoder.actor_encoder.")}
        assert names
        for modules in ((first, second), [module for _, module in acting]):
            one, other = (dict(module.named_parameters()) for module in modules)
            assert {name for name in one if one[name].data_ptr() == other[name].data_ptr()} == names
        folder = algo.save(tmp_path / "checkpoint")
        policy_id, acts = acting[1]
        kept = {name: x.clone() for name, x in acts.state_dict().items()}
    with Algorithm.from_checkpoint(folder) as algo:
        state = algo.env_runner_group.module[policy_id].state_dict()
        assert all(torch.equal(state[name], x) for name, x in kept.items())
        algo.train()


# --- several learners -------------------------------------------------------------------------------------------------


def learn(collective: Collective, parts: Sequence[Mapping[str, Rollout | None]]) -> dict[str, Any]:
    learner = make(cls=PPOLearner, minibatch_size=16 // collective.size)
    learner.connect(collective)
    results = [learner.update_from_episodes(part, env_steps=48 * i) for i, part in enumerate(parts)]
    return {"module": learner.module.get_state(), "digest": digest(learner.get_state()), "results": results}


def test_two_learners_of_a_family_come_to_what_one_does(fleet: Fleet) -> None:
    learner = make()
    data = [data_for(learner), data_for(learner, 5)]
    data[1]["c"] = random_rollout(learner.module["c"], 9, 1, 3)  # one slot for two learners
    parts = [shard(each, 2) for each in data]
    first, second = fleet.values(learn, ([part[0] for part in parts],), ([part[1] for part in parts],))
    alone = learn(SingleProcess(), data)
    assert first["digest"] == second["digest"]
    for module_id in "abc":
        torch.testing.assert_close(first["module"][module_id], alone["module"][module_id], atol=1e-6, rtol=1e-5)
        assert first["results"][0][module_id]["total_loss"] == pytest.approx(
            alone["results"][0][module_id]["total_loss"], rel=1e-4
        )


# --- what cannot be shared --------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Any, str]] = {
    "missing": ("encoder.trunk", "expected a part with parameters at a.encoder.trunk, got none"),
    "other shape": (["a.pi_head", "b.pi_head"], "at a.pi_head and at b.pi_head, got .*bias"),
    "other class": (["a.encoder.actor_encoder", "b.vf_head"], "at a.encoder.actor_encoder and at b.vf_head, got"),
    "twice in one policy": (["a.vf_head", "a.pi_head"], "one place 'policy.path' in each"),
    "no path": (["a", "b"], "one place 'policy.path' in each"),
}


@pytest.mark.parametrize("why", WRONG)
def test_parts_that_do_not_match_are_named_at_build(why: str) -> None:
    where, message = WRONG[why]
    with pytest.raises(ValueError, match=message):
        specs({"part": where}).build()


def test_a_policy_that_only_acts_or_a_taken_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected policies that are trained, got 'b'"):
        make(policies_to_train=["a", "c"])
    with pytest.raises(ValueError, match=r"shared_parts\['b'\]: expected a name that no policy has"):
        make({"b": "encoder.actor_encoder"})
    with pytest.raises(ValueError, match="torch_compile_learner=True"):
        make(torch_compile_learner=True)


def test_places_in_unknown_policies_are_found_at_build() -> None:
    with pytest.raises(ValueError, match="'x'"):
        run().multi_agent(policies="own", shared_parts={"trunk": ["x.encoder", "y.encoder"]}).build()
