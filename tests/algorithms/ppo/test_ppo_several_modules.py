"""PPO's learner with several modules: one update for all, settings of each, modules that are not trained."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from algorithms.ppo import PPOConfig, PPOLearner
from rlmodule import Rollout
from rlmodule.collective import Collective, SingleProcess
from rlmodule.learning.sharding import shard
from rlmodule.modules.spec import MultiRLModuleSpec
from rlmodule.testing.data import differences, random_rollout
from tests.together import Fleet, digest

OBS, ACTIONS = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(3)
NETS = {"fcnet_hiddens": [8], "normalize_observations": True, "normalize_values": True}


def make(ids: str = "ab", **settings: Any) -> PPOLearner:
    """A learner whose modules all have the same weights."""
    config = PPOConfig(**{"lr": 1e-2, "minibatch_size": 16, "num_epochs": 2, "model_config": NETS} | settings)
    spec = config.get_rl_module_spec(OBS, ACTIONS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        learner = PPOLearner(config.freeze(), MultiRLModuleSpec(dict.fromkeys(ids, spec)), run_seed=1)
    for module_id in ids[1:]:
        learner.module[module_id].set_state(learner.module[ids[0]].get_state())
    return learner


def rollout(seed: int = 0) -> Rollout:
    return random_rollout(make("a").module["a"], 12, 4, seed)


def learned(learner: PPOLearner, module_id: str) -> dict[str, Any]:
    """The state of a module and of its optimizer."""
    state = learner.get_state()
    return {name: state[name][module_id] for name in ("module", "optimizers")}


def assert_close(one: PPOLearner, other: PPOLearner) -> None:
    """Both have the same state: weights and moments up to rounding, all else exactly."""
    state, expected = one.get_state(), other.get_state()
    for name in ("module", "optimizers"):
        torch.testing.assert_close(state.pop(name), expected.pop(name), rtol=1e-5, atol=1e-6)
    assert differences(state, expected) == []


def test_one_update_of_several_modules_is_one_of_each_in_the_order_of_their_ids() -> None:
    together, apart = make(), make()
    data = {"b": rollout(1), "a": rollout(0)}
    results = together.update_from_episodes(data, env_steps=100)
    expected = {
        module_id: apart.update_from_episodes(data[module_id], env_steps=100, module_id=module_id)
        for module_id in ("a", "b")
    }
    for module_id, one in expected.items():
        assert results[module_id] == pytest.approx(one[module_id], rel=1e-5, abs=1e-6)
    assert list(results) == ["a", "b", "timers"]
    assert results["timers"].keys() == {"value_pass", "update"}
    assert_close(together, apart)


def test_the_data_of_one_module_by_its_id_are_its_rollout() -> None:
    by_id, alone = make("a"), make("a")
    by_id.update_from_episodes({"a": rollout()})
    alone.update_from_episodes(rollout(), module_id="a")
    assert differences(by_id.get_state(), alone.get_state()) == []


def test_steps_of_all_modules_count_if_nobody_says_how_many_there_were() -> None:
    learner, data = make(), {"a": rollout(0), "b": rollout(1)}
    learner.update_from_episodes(data)
    assert learner.env_steps == sum(one.num_env_steps for one in data.values())


def test_without_modules_nothing_changes() -> None:
    learner, before = make(), make().get_state()
    assert learner.update_from_episodes({}, env_steps=0).keys() == {"timers"}
    assert differences(learner.get_state(), before) == []


def test_an_unknown_module_is_found_before_any_learns() -> None:
    learner, before = make(), make().get_state()
    with pytest.raises(KeyError, match="expected one of a, b, got the module id 'c'"):
        learner.update_from_episodes({"a": rollout(), "c": rollout()}, env_steps=0)
    with pytest.raises(TypeError, match=r"module 'b': expected a Rollout or a list of episodes, got a list of int"):
        learner.update_from_episodes({"a": rollout(), "b": [1]}, env_steps=0)  # type: ignore[dict-item]
    assert differences(learner.get_state(), before) == []


# --- settings of each module ------------------------------------------------------------------------------------------

OVERRIDES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "gamma": ({"gamma": 0.5}, {}),
    "lr": ({"lr": 3e-3}, {}),
    "lr schedule": ({"lr": [[0, 1e-2], [200, 0.0]]}, {}),
    "lr constant": ({"lr": 1e-2}, {"lr": [[0, 1e-2], [200, 0.0]]}),
    "lambda_": ({"lambda_": 0.5}, {}),
    "grad_clip": ({"grad_clip": 1e-3}, {}),
    "grad_clip_by": ({"grad_clip_by": "value"}, {"grad_clip": 1e-2}),
    "minibatch_size": ({"minibatch_size": 8}, {}),
    "num_epochs": ({"num_epochs": 3}, {}),
    "clip_param": ({"clip_param": 0.01}, {}),
    "vf_loss_coeff": ({"vf_loss_coeff": 0.0}, {}),
    "vf_clip_param": ({"vf_clip_param": 0.01}, {}),
    "vf_huber_delta": ({"vf_huber_delta": 0.01}, {}),
    "entropy_coeff": ({"entropy_coeff": 0.3}, {}),
    "entropy_coeff schedule": ({"entropy_coeff": [[0, 0.0], [200, 1.0]]}, {}),
    "use_kl_loss": ({"use_kl_loss": True}, {}),
    "kl_coeff": ({"kl_coeff": 2.0}, {"use_kl_loss": True}),
    "kl_target": ({"kl_target": 1e-6}, {"use_kl_loss": True}),
    "target_kl": ({"target_kl": 1e-9}, {"num_epochs": 3}),
}


@pytest.mark.parametrize("case", OVERRIDES)
def test_an_override_acts_on_its_module_alone(case: str) -> None:
    override, settings = OVERRIDES[case]
    both = make(**settings, policy_overrides={"a": override})
    single, plain = make("a", **settings | override), make("a", **settings)
    for i in range(2):
        data = rollout(i)
        result = both.update_from_episodes({"a": data, "b": data}, env_steps=100 * i)
        expected = single.update_from_episodes({"a": data}, env_steps=100 * i)
        plain.update_from_episodes({"a": data}, env_steps=100 * i)
        assert result["a"] == expected["a"]
        # the order of minibatches comes from one stream for all modules
        for learner in (single, plain):
            learner.generator.set_state(both.generator.get_state())
    assert differences(learned(both, "a"), learned(single, "a")) == []
    assert both.kl_coeff.number("a") == single.kl_coeff.number("a")
    changed = differences(learned(both, "a"), learned(plain, "a"))
    assert changed or both.kl_coeff.number("a") != plain.kl_coeff.number("a")


def test_a_module_without_overrides_learns_as_without_those_of_another() -> None:
    """With the same number of minibatches, since their order comes from one stream."""
    overridden, plain = make(policy_overrides={"a": {"gamma": 0.5, "lr": [[0, 0.1], [200, 0.0]]}}), make()
    for learner in (overridden, plain):
        learner.update_from_episodes({"a": rollout(0), "b": rollout(1)}, env_steps=100)
    torch.testing.assert_close(learned(overridden, "b"), learned(plain, "b"), rtol=1e-5, atol=1e-6)
    assert differences(learned(overridden, "a"), learned(plain, "a"))
    assert overridden.settings is not overridden.settings_of("a")
    assert overridden.settings is overridden.settings_of("b")


def test_overrides_hold_for_an_update_of_one_module_and_end_with_an_error() -> None:
    learner, single = make(policy_overrides={"b": {"gamma": 0.5}}), make("b", gamma=0.5)
    for each in (learner, single):
        each.update_from_episodes(rollout(), env_steps=0, module_id="b")
    assert differences(learned(learner, "b"), learned(single, "b")) == []
    with pytest.raises(ValueError, match="expected data for at least one learner"):
        learner.update_from_episodes(None, env_steps=0, module_id="b")
    assert learner.settings.gamma == 0.99


def test_scheduled_rates_of_modules_are_saved_each_in_its_own_way() -> None:
    settings: dict[str, Any] = {"policy_overrides": {"a": {"lr": [[0, 1e-2], [200, 0.0]]}}}
    learner, other = make(**settings), make(**settings)
    data = {"a": rollout(0), "b": rollout(1)}
    learner.update_from_episodes(data, env_steps=100)
    other.set_state(learner.get_state())
    for each in (learner, other):
        each.update_from_episodes(data, env_steps=150)
    assert differences(learner.get_state(), other.get_state()) == []
    rates = [learner.optimizers[module_id].param_groups[0]["lr"] for module_id in ("a", "b")]
    assert rates == [pytest.approx(2.5e-3), 1e-2]


# --- modules that are not trained -------------------------------------------------------------------------------------


def test_a_module_that_is_not_trained_has_no_optimizer_and_keeps_its_weights() -> None:
    learner = make(policies_to_train=["a"])
    assert [*learner.optimizers] == ["a"]
    assert not any(p.requires_grad for p in learner.module["b"].parameters())
    learner.update_from_episodes({"a": rollout()}, env_steps=0)
    assert differences(learned(learner, "a"), learned(make("a"), "a"))
    assert differences(learner.module["b"].get_state(), make("a").module["a"].get_state()) == []
    with pytest.raises(ValueError, match=r"module 'b': expected one that is trained \(a\), got one that is not"):
        learner.update_from_episodes({"a": rollout(), "b": rollout()}, env_steps=0)


def test_a_state_is_restored_where_other_modules_are_trained() -> None:
    learner, other = make(policies_to_train=["a"]), make(policies_to_train=lambda module_id: module_id == "b")
    learner.update_from_episodes({"a": rollout()}, env_steps=0)
    other.set_state(learner.get_state())
    assert differences(other.module.get_state(), learner.module.get_state()) == []
    other.update_from_episodes({"b": rollout()}, env_steps=0)
    assert [*other.optimizers] == ["b"]


# --- several learners -------------------------------------------------------------------------------------------------


def learn(collective: Collective, parts: Sequence[Mapping[str, Rollout | None]]) -> dict[str, Any]:
    learner = make(minibatch_size=16 // collective.size, policy_overrides={"b": {"num_epochs": 1}})
    learner.connect(collective)
    results = [learner.update_from_episodes(part, env_steps=48 * i) for i, part in enumerate(parts)]
    return {"module": learner.module.get_state(), "digest": digest(learner.get_state()), "results": results}


def test_two_learners_come_to_what_one_does(fleet: Fleet) -> None:
    data = [{"a": rollout(0), "b": rollout(1)}, {"a": random_rollout(make("a").module["a"], 9, 1, 2), "b": rollout(3)}]
    parts = [shard(each, 2) for each in data]
    assert parts[1][1]["a"] is None  # one slot for two learners
    first, second = fleet.values(learn, ([part[0] for part in parts],), ([part[1] for part in parts],))
    alone = learn(SingleProcess(), data)
    assert first["digest"] == second["digest"]
    for module_id in ("a", "b"):
        for name, value in alone["module"][module_id].items():
            torch.testing.assert_close(first["module"][module_id][name], value, atol=1e-5, rtol=1e-5)
    assert [*first["results"][1]] == ["a", "b", "timers"]
