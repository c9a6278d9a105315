"""Faults that users of other libraries have reported in public, as cases here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from algorithms import AlgorithmConfig
from algorithms.ppo import PPOConfig
from rlmodule import Columns
from rlmodule.agents.multi_agent_env import ALL, MultiAgentEnv
from rlmodule.data.sequences import flatten_sequences
from rlmodule.modules.recurrent import with_states
from tests.metrics_recounted.books import OBS, Crowd, Flock
from tests.metrics_recounted.test_results_equal_the_books import SAMPLING, acts_in, config_of
from tests.nothing_leaks.cases import ID, Case, cases, float64, in_float64
from tests.nothing_leaks.test_rows_that_do_not_count import padded
from tests.settings_act.footprint import Track

STANDARDIZING = [
    parameter
    for parameter in cases("plain", "LSTM", "attention", episodes=True)
    if parameter.values[0].config.default_learner_class().standardizes_advantages
]


@pytest.mark.parametrize("case", STANDARDIZING)
def test_ray_57989_advantages_are_standardised_over_steps_alone(case: Case) -> None:
    """PPO standardised advantages over rows that were added for bootstraps: worst for short episodes and LSTMs."""
    learner: Any = case.learner()
    rollout = padded(in_float64(case.rollout()), 7)
    with float64(), torch.no_grad():
        if case.is_stateful:
            rollout = with_states(learner.module[ID], rollout)
        batch, _ = learner.make_train_batch(ID, rollout)
    if case.is_stateful:
        batch = flatten_sequences(batch, batch[Columns.VALID_ROWS])
    advantages = batch[Columns.ADVANTAGES]
    assert len(advantages) == rollout.num_env_steps < rollout.valid.numel()
    assert float(advantages.mean()) == pytest.approx(0, abs=1e-10)
    assert float(advantages.std(unbiased=False)) == pytest.approx(1, abs=1e-6)


class Unequal(MultiAgentEnv):
    """One agent earns 1 in each of three steps, the other 3."""

    possible_agents = ("poor", "rich")
    observation_spaces = dict.fromkeys(possible_agents, OBS)
    action_spaces = dict.fromkeys(possible_agents, spaces.Discrete(2))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.t = 0
        return self._obs(), {}

    def step(self, actions: dict[Any, Any]) -> Any:
        self.t += 1
        return self._obs(), {"poor": 1.0, "rich": 3.0}, {ALL: self.t == 3}, {}, {}

    def _obs(self) -> dict[str, Any]:
        return dict.fromkeys(self.possible_agents, np.zeros(3, np.float32))


def test_ray_59860_the_return_of_a_shared_policy_is_that_of_all_its_agents() -> None:
    """The return by module was that of one of its agents."""
    config = PPOConfig(env=Unequal, policies=["both"], model_config={"fcnet_hiddens": [4]})
    config.update({"train_batch_size_per_learner": 32, "minibatch_size": 16, "num_epochs": 1})
    with config.build() as algo:
        result = algo.train()["env_runners"]
    assert result["module_episode_returns_mean"] == {"both": 6.0}
    assert result["agent_episode_returns_mean"] == {"poor": 3.0, "rich": 9.0}
    assert result["episode_return_mean"] == 12.0


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(name, marks=() if name in ("PPO", "DQN") else pytest.mark.end_to_end) for name in SAMPLING],
)
def test_ray_60205_memories_of_agents_on_different_clocks(algorithm: str) -> None:
    """An LSTM and agents that act at different times ended in an IndexError."""
    memory = {"fcnet_hiddens": [4], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}
    more = {"env_config": {}, "policies": "shared", "model_config": memory, "num_epochs": 1, "minibatch_size": None}
    config = config_of(algorithm, acts_in(algorithm, Crowd, Flock), folder=".", **more)  # type: ignore[arg-type]
    with config.update({"lr": 1e-30}).build() as algo:
        learner: Any = algo.learner_group.learner  # type: ignore[attr-defined]
        [(module_id, learned)] = algo.learner_group.module.items()
        with torch.no_grad():
            for parameter in learned.parameters():
                parameter.mul_(4.0)  # a policy that hardly depends on its memory would show nothing
        learner.load_module_state(module_id, learned.get_state())  # into a target net, too
        for _ in range(3):
            [numbers] = algo.train()["learners"].values()
            assert np.isfinite(numbers["total_loss"])
            if "approx_kl" in numbers:  # training sees the memories that acted
                assert abs(numbers["approx_kl"]) < 1e-8


@pytest.mark.end_to_end
def test_torchrl_3587_every_runner_acts_with_the_new_weights(ray_started: None) -> None:
    """One of several workers kept its first policy, silently."""
    config: AlgorithmConfig = PPOConfig(env=Track, num_env_runners=2, lr=0.05, model_config={"fcnet_hiddens": [6]})
    config.update({"train_batch_size_per_learner": 64, "minibatch_size": 32, "num_epochs": 4})
    with config.build() as algo:
        algo.train()
        algo.train()
        rollouts = algo.sample_rollouts()
        assert len(rollouts) == 2
        for rollout in rollouts:
            rows = rollout.valid_rows([Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP])
            module = algo.get_module()
            with torch.no_grad():
                inputs = module.forward_exploration({Columns.OBS: rows[Columns.OBS]})[Columns.ACTION_DIST_INPUTS]
                logp = module.action_dist_cls.from_logits(inputs).logp(rows[Columns.ACTIONS])
            torch.testing.assert_close(rows[Columns.ACTION_LOGP], logp, rtol=1e-4, atol=1e-5)
            uniform = torch.full_like(logp, -np.log(3.0))
            assert not torch.allclose(logp, uniform, atol=0.05), "the weights have not moved"
