"""Attention as the memory of PPO's and DQN's nets: the contracts, and what goes with it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces

from algorithms import Algorithm
from algorithms.dqn import DQNConfig, DQNModule
from algorithms.dqn.module import DQNCatalog
from algorithms.ppo import PPOCatalog, PPOConfig, PPOLearner, PPOModule
from rlmodule import Columns, RLModuleSpec
from rlmodule.testing.data import differences, random_rollout
from rlmodule.testing.learner_contract import LearnerContract
from rlmodule.testing.module_contract import RLModuleContract

BOX, TWO = spaces.Box(-np.inf, np.inf, (3,), np.float32), spaces.Discrete(2)
MASKED = spaces.Dict({"obs": BOX, "action_mask": spaces.MultiBinary(2)})
ATTENTION: dict[str, Any] = {
    "use_attention": True,
    "attention_dim": 8,
    "attention_head_dim": 4,
    "attention_memory": 6,
    "attention_num_transformer_units": 2,
    "max_seq_len": 5,
    "fcnet_hiddens": [8],
}
PREVIOUS = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}


class Contract(RLModuleContract):
    """Abstract: not collected by itself."""

    kind: ClassVar[tuple[type, type]] = (PPOModule, PPOCatalog)
    model: ClassVar[Mapping[str, Any]] = {}
    observation_space: ClassVar[spaces.Space] = BOX

    def make(self) -> RLModuleSpec:
        module_class, catalog_class = self.kind
        return RLModuleSpec(module_class, self.observation_space, TWO, {**ATTENTION, **self.model}, catalog_class)


class TestShared(Contract):
    pass


class TestSeparate(Contract):
    model: ClassVar[Mapping[str, Any]] = {"vf_share_layers": False}


class TestBesideACriticWithAnLSTM(Contract):
    model: ClassVar[Mapping[str, Any]] = {"functions": {"value": {"use_attention": False, "use_lstm": True}}}


class TestMaskedWithPrevious(Contract):
    model: ClassVar[Mapping[str, Any]] = PREVIOUS
    observation_space = MASKED


class TestDQN(Contract):
    kind: ClassVar[tuple[type, type]] = (DQNModule, DQNCatalog)
    model: ClassVar[Mapping[str, Any]] = {"dueling": True, **PREVIOUS}


@pytest.mark.parametrize("test", [name for name in dir(LearnerContract) if name.startswith("test_")])
def test_a_learner_of_attention_keeps_the_contract(test: str, tmp_path: Path) -> None:
    class Attending(LearnerContract):
        def make(self) -> PPOLearner:
            spec = RLModuleSpec(PPOModule, BOX, TWO, ATTENTION, PPOCatalog)
            config = PPOConfig(minibatch_size=20, num_epochs=2)
            return PPOLearner(config, spec.as_multi(), run_seed=torch.initial_seed())

    getattr(Attending(), test)(*([tmp_path] if "round_trip" in test else []))


def test_before_the_first_gradient_step_training_computes_what_acting_computed() -> None:
    ratios: list[float] = []

    class Recording(PPOLearner):
        def compute_loss_for_module(self, module_id: str, batch: Any, fwd_out: Any) -> Any:
            loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
            ratios.append(metrics["log_ratio"].abs().max().item())
            return loss, metrics

    config = (
        PPOConfig(learner_class=Recording, train_batch_size_per_learner=256, minibatch_size=64, lr=1e-12, num_epochs=1)
        .environment("CartPole-v1")
        .rl_module(model_config=ATTENTION)
        .debugging(seed=1)
    )
    with config.build() as algo:
        algo.train()
        algo.train()  # whose first states were left by the rollout before
    assert max(ratios) < 1e-5


@pytest.mark.parametrize(
    "config",
    [
        PPOConfig(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1),
        DQNConfig(
            train_batch_size_per_learner=20,
            num_steps_sampled_before_learning_starts=100,
            num_env_steps_per_iteration=160,
            burn_in_len=3,
        ),
    ],
    ids=["PPO", "DQN"],
)
def test_a_loaded_policy_goes_on_with_the_memory_it_is_handed(config: Any, tmp_path: Path) -> None:
    config = config.environment("CartPole-v1").rl_module(model_config=ATTENTION).debugging(seed=1)
    obs = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32) * 0.1

    def acted(algo: Algorithm) -> list[int]:
        state, actions = None, []
        for row in obs:
            action, state = algo.policy.act(row, state)
            actions.append(int(action))
        assert state is not None
        assert state[Columns.STATE_IN]["length"].tolist() == [6]
        return actions

    with config.build() as algo:
        algo.train()
        algo.save(tmp_path / "saved")
        with Algorithm.from_checkpoint(tmp_path / "saved") as loaded:
            assert differences(algo.get_module().get_state(), loaded.get_module().get_state()) == []
            assert acted(loaded) == acted(algo)


def test_memories_of_a_rollout_are_those_of_its_own_episodes() -> None:
    module = RLModuleSpec(PPOModule, BOX, TWO, ATTENTION, PPOCatalog).build()
    rollout = random_rollout(module, 20, 3)
    assert rollout.state_in is not None
    memory, length = rollout.state_in["memory"], rollout.state_in["length"]
    assert memory.shape == (4, 3, 2, 6, 8)
    since = torch.zeros(3, dtype=torch.int64)
    for t in range(20):
        if t % 5 == 0:
            assert torch.equal(length[t // 5], since.clamp(max=6))
        since = torch.where(rollout[Columns.STARTS][t], 0, since) + 1
