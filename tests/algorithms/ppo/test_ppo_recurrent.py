"""PPO with memory: the same loss on rows, whatever sequences they come from."""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from algorithms.ops.returns import generalized_advantages
from algorithms.ppo import PPOCatalog, PPOConfig, PPOLearner, PPOModule
from rlmodule import Columns, RLModuleSpec, Rollout
from rlmodule.data.columns import Batch
from rlmodule.data.sequences import flatten_sequences
from rlmodule.learning.reports import Metrics
from rlmodule.testing.data import differences, random_rollout
from rlmodule.testing.learner_contract import LearnerContract
from rlmodule.testing.module_contract import RLModuleContract

ID = "default_policy"
BOX = spaces.Box(-np.inf, np.inf, (3,), np.float32)
LSTM: dict[str, Any] = {"use_lstm": True, "max_seq_len": 5, "lstm_cell_size": 8, "fcnet_hiddens": [8]}


class Recording(PPOLearner):
    """Keeps what the loss sees and says."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[Batch] = []
        self.log_ratios: list[float] = []  # the largest of each minibatch

    def compute_loss_for_module(self, module_id: str, batch: Batch, fwd_out: Mapping[str, Any]) -> tuple[Any, Metrics]:
        loss, metrics = super().compute_loss_for_module(module_id, batch, fwd_out)
        self.seen.append(batch)
        self.log_ratios.append(metrics["log_ratio"].abs().max().item())
        return loss, metrics


def spec(action_space: spaces.Space | None = None, **model: Any) -> RLModuleSpec:
    return RLModuleSpec(PPOModule, BOX, action_space or spaces.Discrete(2), {**LSTM, **model}, PPOCatalog)


def build(model: Mapping[str, Any] = {}, **training: Any) -> Recording:
    config = PPOConfig().training(**{"minibatch_size": 16, "num_epochs": 2, "lr": 1e-3, **training})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Recording(config, spec(**model).as_multi(), run_seed=0)


class TestShared(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return spec()


class TestSeparate(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return spec(spaces.Box(-1, 1, (2,), np.float32), vf_share_layers=False, use_gru=True, use_lstm=False)


class TestCriticAlone(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return spec(vf_share_layers=False, functions={"policy": {"use_lstm": False}})


class TestWithPrevious(RLModuleContract):
    def make(self) -> RLModuleSpec:
        return spec(lstm_use_prev_action=True, lstm_use_prev_reward=True)


@pytest.mark.parametrize("test", [name for name in dir(LearnerContract) if name.startswith("test_")])
def test_ppo_keeps_the_contract_of_learners(test: str, tmp_path: Any) -> None:
    config = PPOConfig(minibatch_size=32, num_epochs=2, use_kl_loss=True, vf_clip_param=1.0)

    class Contract(LearnerContract):
        def make(self) -> PPOLearner:
            return PPOLearner(config, spec().as_multi(), run_seed=torch.initial_seed())

    getattr(Contract(), test)(*([tmp_path] if "round_trip" in test else []))


def poles(mode: AutoresetMode) -> Any:
    one = lambda: gym.make("CartPole-v1", max_episode_steps=11)  # noqa: E731
    return lambda config: SyncVectorEnv([one] * 2, autoreset_mode=mode)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("model", [{}, {"vf_share_layers": False}, {"lstm_use_prev_action": True}])
def test_the_ratio_is_one_at_the_first_minibatch_of_every_iteration(mode: AutoresetMode, model: dict[str, Any]) -> None:
    config = (
        PPOConfig()
        .environment(poles(mode))
        .env_runners(num_envs_per_env_runner=2)
        .learners(learner_class=Recording)
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=2, lr=1e-2)
        .rl_module(model_config={**LSTM, **model, "normalize_observations": True})
        .debugging(seed=1)
    )
    with config.build() as algorithm:
        learner = algorithm.learner_group.learner
        assert isinstance(learner, Recording)
        first, later = [], []
        for _ in range(4):
            learner.log_ratios.clear()
            algorithm.train()
            first.append(learner.log_ratios[0])
            later.append(learner.log_ratios[1])
    assert max(first) < 1e-5
    assert min(later) > 1e-4


def test_two_runs_are_equal_and_learning_goes_on_from_a_checkpoint(tmp_path: Any) -> None:
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_envs_per_env_runner=2)
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=2)
        .rl_module(model_config=LSTM)
        .debugging(seed=1)
    )
    states = []
    for _ in range(2):
        with config.build() as algorithm:
            for _ in range(2):
                algorithm.train()
            states.append(algorithm.learner_group.get_state())
    assert differences(*states) == []
    with config.build() as algorithm:
        algorithm.train()
        state: Any = None
        for t in range(3):
            action, state = algorithm.policy.act(np.full(4, 0.1 * t), state)
            assert action in (0, 1)
        assert state is not None
        algorithm.evaluate()


def rows(batch: Batch) -> Batch:
    return flatten_sequences(batch, batch.get(Columns.VALID_ROWS))


def test_advantages_are_standardised_over_valid_rows_only() -> None:
    learner = build()
    rollout = random_rollout(learner.module[ID], 18, 3)
    rollout.columns[Columns.REWARDS][~rollout.valid] = 1e6
    assert not rollout.valid.all()
    learner.module[ID].update_value_statistics(torch.tensor([-1.0, 1.0]))  # before any targets, values count as 0
    with torch.no_grad():
        values, following = learner.value_pass(ID, rollout)
        batch, reported = learner.make_train_batch(ID, rollout)
    raw = generalized_advantages(
        rollout[Columns.REWARDS],
        values,
        following,
        terminated_t=rollout[Columns.TERMINATEDS],
        truncated_t=rollout[Columns.TRUNCATEDS],
        valid_t=rollout.valid,
        gamma=0.99,
        lambda_=0.95,
    )
    valid = rollout.valid
    mean, std = raw[valid].mean(), raw[valid].std(unbiased=False)
    got = rows(batch)
    assert len(got[Columns.ADVANTAGES]) == int(valid.sum())
    for name, expected in (
        (Columns.ADVANTAGES, (raw - mean) / std),
        (Columns.VALUE_TARGETS, raw + values),
        (Columns.ACTION_LOGP, rollout[Columns.ACTION_LOGP]),
    ):
        torch.testing.assert_close(got[name].sort()[0], expected[valid].sort()[0], rtol=1e-4, atol=1e-5)
    targets = (raw + values)[valid]
    unexplained = raw[valid].var(unbiased=False) / targets.var(unbiased=False)
    assert reported["vf_explained_var"] == pytest.approx(1 - float(unexplained), abs=1e-4)
    normalizer = learner.module[ID].value_normalizer
    assert normalizer.std < 100  # the invalid rows' rewards are 1e6


def test_values_to_clip_around_are_those_before_the_update() -> None:
    learner = build(vf_clip_param=0.2, lr=0.0)
    module = learner.module[ID]
    for seed in range(2):
        learner.seen.clear()
        rollout = random_rollout(module, 18, 3, seed)
        learner.update_from_episodes(rollout, env_steps=0)
        with torch.no_grad():
            values = learner.value_pass(ID, rollout)[0][rollout.valid]
        clipped_around = torch.cat([batch[Columns.VALUES] for batch in learner.seen[: len(learner.seen) // 2]])
        torch.testing.assert_close(clipped_around.sort()[0], values.sort()[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kl_target", "factor"), [(1e-7, 2.0), (100.0, 0.5)])
def test_kl_coefficient_is_adapted(kl_target: float, factor: float) -> None:
    learner = build(use_kl_loss=True, kl_coeff=0.3, kl_target=kl_target, lr=1e-2)
    learner.update_from_episodes(random_rollout(learner.module[ID], 18, 3), env_steps=0)
    assert learner.kl_coeff[ID] == pytest.approx(0.3 * factor)


def test_every_part_learns() -> None:
    learner = build({"vf_share_layers": False})
    module = learner.module[ID]
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    learner.update_from_episodes(random_rollout(module, 18, 3), env_steps=0)
    unchanged = [name for name, p in module.named_parameters() if torch.equal(p, before[name])]
    assert unchanged == []


def cue(mode: AutoresetMode) -> Any:
    return lambda config: SyncVectorEnv([Cue] * 4, autoreset_mode=mode)


class Cue(gym.Env):
    """Shows a sign once and wants to hear it three steps later."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def _obs(self) -> Any:
        return np.array([self.sign if self.t == 0 else 0, self.t / 4], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.sign = 0, int(self.np_random.choice([-1, 1]))
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        right = self.t == 3 and action == (self.sign > 0)
        self.t += 1
        return self._obs(), float(right), self.t == 4, False, {}


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
def test_it_learns_to_remember(mode: AutoresetMode) -> None:
    """Without memory the best is 0.5."""
    config = (
        PPOConfig()
        .environment(cue(mode))
        .env_runners(num_envs_per_env_runner=4)
        .training(train_batch_size_per_learner=256, minibatch_size=64, num_epochs=4, lr=5e-3, gamma=0.9)
        .rl_module(model_config={**LSTM, "lstm_cell_size": 16, "max_seq_len": 7})
        .debugging(seed=1)
    )
    with config.build() as algorithm:
        for _ in range(40):
            result = algorithm.train()["env_runners"]["episode_return_mean"]
            if result > 0.9:
                return
    raise AssertionError(f"a mean return of {result} after 40 iterations")


def test_rollouts_of_several_kinds_are_left_as_they_are() -> None:
    learner = build()
    rollout = random_rollout(learner.module[ID], 9, 2)
    kept = [Tensor.clone(x) for x in (rollout[Columns.STARTS], rollout.state_in["h"])]  # type: ignore[index]
    learner.update_from_episodes(Rollout.concat([rollout, random_rollout(learner.module[ID], 9, 3)]), env_steps=0)
    assert differences(kept, [rollout[Columns.STARTS], rollout.state_in["h"]]) == []  # type: ignore[index]
