"""Algorithms with modules that see earlier steps: what replay gives back, and runs of every kind of module."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor, nn

from algorithms.config import AlgorithmConfig
from algorithms.dqn import DQNModule
from algorithms.ppo import PPOConfig, PPOModule
from algorithms.replay.buffer import ReplayBuffer
from algorithms.replay.sequences import SequenceReplay
from catalog import PastView
from catalog.base import Tree
from rlmodule import Columns, ExplorationAPI, QNetAPI, RLModule, RLModuleSpec
from tests.algorithms.dqn.conftest import tiny
from tests.rlmodule.sampling.test_env_runner_memory import runner_for
from tests.rlmodule.toys import Forgetful, SeesPast, counters


def replay_of(mode: AutoresetMode, **settings: Any) -> ReplayBuffer:
    """What a runner of counters, whose observations tell env, episode and step, has put into a buffer."""
    runner = runner_for(counters(mode), SeesPast, run_seed=3)
    module = runner.module
    if settings.pop("sequences", False):
        settings["sequences"] = SequenceReplay(length=4, burn_in=2, initial_state=module.get_initial_state())
    replay = ReplayBuffer(
        module.input_space,
        module.action_space,
        capacity=180,
        num_envs=3,
        gamma=0.9,
        n_step=2,
        seed=np.random.default_rng(0),
        **settings,
    )
    for _ in range(30):
        replay.add(runner.sample(4))
    return replay


def past_is_right(obs: Any) -> Tensor:
    """Of observations ``[B, ...]``: whether the two that came before are there, and zeros before the first."""
    env, episode, t = obs["obs"].unbind(-1)
    right = torch.ones(len(t), dtype=torch.bool)
    for back in (1, 2):
        expected = torch.stack([env, episode, t - back], -1) * (t >= back).unsqueeze(-1)
        right &= (obs["prev_obs"][:, -back] == expected).all(-1)
    known = 100 * env + 10 * episode + t  # and the action's part of the reward
    return right & torch.where(t > 0, (obs["prev_reward"] - known - obs["prev_action"][:, -1] / 4).abs() < 1e-4, True)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("axes", [None, {"prev_obs": 0}], ids=str)
def test_replay_gives_each_observation_its_own_past(mode: AutoresetMode, axes: dict[str, int] | None) -> None:
    replay = replay_of(mode, frame_stack_axis=axes)
    batch = replay.gather_rows(np.flatnonzero(replay.sampleable))
    assert past_is_right(batch[Columns.OBS]).all()
    follows = batch[Columns.DISCOUNTS] > 0
    assert past_is_right(batch[Columns.NEXT_OBS])[follows].all()
    assert follows.any()
    assert not follows.all()


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_sequences_from_replay_have_their_own_past(mode: AutoresetMode) -> None:
    batch = replay_of(mode, sequences=True).sample(64).batch
    obs = {name: part.flatten(0, 1) for name, part in batch[Columns.OBS].items()}
    right, rows = past_is_right(obs), batch[Columns.VALID_ROWS]
    assert right[rows].all()
    follows = batch[Columns.DISCOUNTS].flatten()[rows] > 0
    assert right[batch[Columns.NEXT_ROWS][follows]].all()
    assert past_is_right({name: part.flatten(0, 1) for name, part in batch[Columns.BURN_IN]["obs"].items()}).any()


# --- runs -------------------------------------------------------------------------------------------------------------

PREVIOUS: dict[str, Any] = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}
VIEW = PastView(observations=2, actions=3, rewards=1)


class PPOWithPast(PPOModule):
    def get_past_view(self) -> PastView:
        return VIEW


class DQNWithPast(DQNModule):
    def get_past_view(self) -> PastView:
        return VIEW


class OwnQ(Forgetful, QNetAPI, ExplorationAPI):
    """A net of your own, without a state."""

    def setup(self) -> None:
        super().setup()
        self.register_buffer("epsilon", torch.ones(()))

    def set_exploration(self, value: float) -> None:
        self.get_buffer("epsilon").fill_(value)

    def _forward_exploration(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        out = self._forward(batch)
        return out | {Columns.ACTION_DIST_INPUTS: out[Columns.ACTION_DIST_INPUTS] * (1 - self.get_buffer("epsilon"))}

    def compute_q_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        return self.pi(self._forward(batch)[Columns.EMBEDDINGS] if embeddings is None else embeddings)


class Listens(nn.Module):
    """An encoder of your own, which reads every field."""

    def __init__(self, space: Any) -> None:
        super().__init__()
        self.net = nn.LazyLinear(8)

    def forward(self, obs: Any) -> Tensor:
        return self.net(torch.cat([obs["obs"], obs["prev_action"][:, None], obs["prev_reward"][:, None]], -1))


def ppo(module_class: type[RLModule] | None = None, **model: Any) -> AlgorithmConfig:
    config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=2).debugging(seed=1)
    config.training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=1)
    return config.rl_module(rl_module_spec=RLModuleSpec(module_class, model_config={"fcnet_hiddens": [8], **model}))


def dqn(module_class: type[RLModule] | None = None, **model: Any) -> AlgorithmConfig:
    return tiny(
        model_config=None,
        rl_module_spec=RLModuleSpec(module_class, model_config={"fcnet_hiddens": [8], "max_seq_len": 4, **model}),
    )


RUNS: dict[str, AlgorithmConfig] = {
    "PPO, MLP": ppo(**PREVIOUS),
    "PPO, encoder of your own": ppo(custom_model=Listens, **PREVIOUS),
    "PPO, a longer view": ppo(PPOWithPast),
    "PPO, a longer view and an LSTM": ppo(PPOWithPast, use_lstm=True),
    "PPO, value without the policy's memory": ppo(use_gru=True, functions={"value": {"use_gru": False}}, **PREVIOUS),
    "PPO, module of your own": ppo(Forgetful, **PREVIOUS),
    "PPO, module of your own with a state": ppo(SeesPast, **PREVIOUS),
    "DQN, MLP": dqn(**PREVIOUS),
    "DQN, a longer view": dqn(DQNWithPast),
    "DQN, a longer view and a GRU": dqn(DQNWithPast, use_gru=True),
    "DQN, module of your own": dqn(OwnQ, **PREVIOUS),
}


@pytest.mark.parametrize("name", RUNS)
def test_every_module_acts_and_trains_with_what_came_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with RUNS[name].build() as algorithm:
        assert np.isfinite(algorithm.train()["learners"]["default_policy"]["total_loss"])
        algorithm.evaluate()
        policy, message = algorithm.policy, []
        forward = policy.module._forward_inference

        def watched(batch: Mapping[str, Tree]) -> dict[str, Tree]:
            message.append(forward(batch)[Columns.ACTION_DIST_INPUTS])
            return forward(batch)

        monkeypatch.setattr(policy.module, "_forward_inference", watched)
        obs = np.full(4, 0.01, np.float32)
        _, state = policy.act(obs)
        for reward in (0.0, 30.0):
            policy.act(obs, state, reward=reward)
        assert not torch.equal(message[1], message[2])
