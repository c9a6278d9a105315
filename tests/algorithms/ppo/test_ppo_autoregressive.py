"""PPO with parts of an action that depend on each other: what is recorded, trained, refused, and learned."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from gymnasium import spaces

from algorithms.dqn import DQNCatalog
from algorithms.ppo import PPOCatalog, PPOConfig, PPOModule
from catalog import AutoregressiveDistribution, MultiDistribution
from rlmodule import RLModuleSpec
from rlmodule.testing.module_contract import RLModuleContract
from tests.autoregressive_envs import Vault

ON = {"autoregressive_actions": True}
BOX = spaces.Box(-1, 1, (3,))
MIXED = spaces.Dict(go=spaces.Discrete(3, start=2), by=spaces.Box(-2, 2, (2,)), bits=spaces.MultiDiscrete([2, 4]))


class Dependent(PPOModule):
    """With an action model that does not begin at 0."""

    def setup(self) -> None:
        super().setup()
        assert self.action_model is not None
        for parameter in self.action_model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)


DEPENDENT = RLModuleSpec(module_class=Dependent, catalog_class=PPOCatalog, model_config=ON)


class TestMixedParts(RLModuleContract):
    def make(self) -> RLModuleSpec:
        model = {**ON, "fcnet_hiddens": [8], "autoregressive_hiddens": [6, 7], "autoregressive_context_dim": 3}
        return RLModuleSpec(Dependent, BOX, MIXED, model, PPOCatalog)


class TestMaskedAndRecurrent(RLModuleContract):
    def make(self) -> RLModuleSpec:
        model = {**ON, "fcnet_hiddens": [8], "use_lstm": True, "lstm_use_prev_action": True, "free_log_std": False}
        masks = spaces.Dict(go=spaces.Box(1, 1, (3,), np.int8), bits=spaces.Box(1, 1, (6,), np.int8))
        return RLModuleSpec(Dependent, spaces.Dict(obs=BOX, action_mask=masks), MIXED, model, PPOCatalog)


def test_an_inference_only_copy_keeps_the_action_model_and_a_module_without_it_has_none() -> None:
    spec = RLModuleSpec(PPOModule, BOX, MIXED, ON, PPOCatalog)
    full, acting = spec.build(), spec.build(inference_only=True)
    names = [name for name in full.get_state() if name.startswith("action_model.")]
    assert len(names) == 5  # two layers of weights and biases, and what leads from part to part directly
    assert names == [name for name in acting.get_state() if name.startswith("action_model.")]
    without = RLModuleSpec(PPOModule, BOX, MIXED, {}, PPOCatalog).build()
    assert without.action_model is None
    assert issubclass(without.action_dist_cls, MultiDistribution)


def test_nets_start_as_they_do_without_it() -> None:
    states = []
    for model in ({}, {**ON, "autoregressive_context_dim": 1}):
        torch.manual_seed(0)
        states.append(RLModuleSpec(PPOModule, BOX, MIXED, model, PPOCatalog).build().get_state())
    assert states[0].keys() < states[1].keys()


def test_each_module_asks_its_own_action_model() -> None:
    spec = RLModuleSpec(Dependent, BOX, MIXED, ON, PPOCatalog)
    one, two = spec.build(), spec.build()
    assert one.action_dist_cls is not two.action_dist_cls
    logits = torch.randn(4, one.action_dist_cls.required_input_dim(MIXED))
    p, q = one.action_dist_cls.from_logits(logits), two.action_dist_cls.from_logits(logits)
    assert (p.logp(p.sample()) != q.logp(p.sample())).all()
    assert issubclass(one.action_dist_cls, AutoregressiveDistribution)
    two.share_tensors_of(one)
    drawn = p.sample()
    assert torch.equal(p.logp(drawn), q.logp(drawn))


class Mixed(Vault):
    """The same with a Box, which is drawn between the door and the key."""

    def __init__(self) -> None:
        super().__init__()
        door, key = spaces.Discrete(self.doors), spaces.Discrete(self.doors)
        self.action_space = spaces.Dict([("door", door), ("force", spaces.Box(-1, 1, (2,))), ("key", key)])


@pytest.mark.parametrize("env", [Vault, Mixed])
def test_training_finds_the_log_probabilities_that_acting_recorded(env: type[Vault]) -> None:
    config = PPOConfig().environment(env).training(train_batch_size_per_learner=64, minibatch_size=None, num_epochs=1)
    with config.rl_module(rl_module_spec=DEPENDENT).debugging(seed=1).build() as algo:
        learned = algo.train()["learners"]["default_policy"]
        assert abs(learned["approx_kl"]) < 1e-6
        assert learned["clip_fraction"] == 0
        assert learned["entropy"] > 0


def test_what_is_sampled_does_not_depend_on_how_envs_are_spread() -> None:
    def actions(envs: int) -> np.ndarray:
        config = PPOConfig().environment(Mixed).env_runners(num_envs_per_env_runner=envs, rollout_fragment_length=8)
        config.rl_module(rl_module_spec=DEPENDENT).training(train_batch_size_per_learner=8 * envs, minibatch_size=None)
        with config.debugging(seed=3).build() as algo:
            rollout = algo.sample()
            return np.concatenate([rollout["actions"]["door"][:, :1], rollout["actions"]["force"][:, 0]], -1)

    np.testing.assert_allclose(actions(1), actions(3), atol=1e-5)  # sums in another order


def test_a_kl_penalty_is_refused_when_built() -> None:
    config = PPOConfig().environment(Vault).rl_module(model_config=ON).training(use_kl_loss=True)
    with pytest.raises(ValueError, match=r"PPOConfig.use_kl_loss: expected False with Autoregressive.*set target_kl"):
        config.build()
    config.rl_module(model_config={}).build().stop()


def test_dqn_refuses_it() -> None:
    with pytest.raises(ValueError, match="nothing to condition"):
        DQNCatalog(BOX, spaces.Discrete(3), ON)


# --- an environment that asks for it ----------------------------------------------------------------------------------


def expected_return(p: Sequence[float] | np.ndarray, q: np.ndarray) -> float:
    """Of a policy of 4 doors, by going through every door, key and guard: the definition of the reward."""
    return sum(
        p[door] * q[door, key] * p[guard] * 4 / 3
        for door, key, guard in itertools.product(range(4), repeat=3)
        if key == door != guard
    )


def test_no_policy_of_independent_parts_makes_more_than_a_third_in_the_vault() -> None:
    steps = 12
    grid = [np.array(p) / steps for p in itertools.product(range(steps + 1), repeat=4) if sum(p) == steps]
    # the return is linear in q: one key for certain is best
    best = max(expected_return(p, np.tile(np.eye(4)[key], (4, 1))) for p in grid for key in range(4))
    assert best == pytest.approx(1 / 3)
    assert max(expected_return(p, np.eye(4)) for p in grid) == pytest.approx(1)


def test_the_vault_pays_what_is_expected() -> None:
    env, rng = Vault(length=5000), np.random.default_rng(0)
    for p, q in (([0.5, 0.5, 0, 0], np.tile(np.eye(4)[1], (4, 1))), ([0.4, 0.3, 0.2, 0.1], np.eye(4))):
        env.reset(seed=0)
        total = 0.0
        for _ in range(5000):
            door = rng.choice(4, p=p)
            total += env.step({"door": door, "key": rng.choice(4, p=q[door])})[1]
        assert total == pytest.approx(expected_return(p, q), abs=0.03)


@pytest.mark.end_to_end
@pytest.mark.parametrize(("autoregressive", "least", "most"), [(True, 0.9, 1.01), (False, 0.15, 0.4)])
def test_the_vault_is_opened_by_parts_that_know_each_other_alone(
    autoregressive: bool, least: float, most: float
) -> None:
    config = (
        PPOConfig()
        .environment(Vault)
        .env_runners(num_envs_per_env_runner=16)
        .training(train_batch_size_per_learner=1024, minibatch_size=512, lr=0.01, num_epochs=8)
        .rl_module(model_config={"fcnet_hiddens": [8], "autoregressive_actions": autoregressive})
        .debugging(seed=1)
    )
    with config.build() as algo:
        returns = [algo.train()["env_runners"]["episode_return_mean"] for _ in range(18)]
    assert least < np.mean(returns[-2:]) < most, returns
