"""Envs that return no true final observation, as rsl_rl's: what stands in for it, and what replay leaves out."""

from typing import Any

import pytest
import torch
import tree

from algorithms.dqn import DQNConfig
from algorithms.ops.returns import generalized_advantages
from algorithms.ppo import PPOConfig
from rlmodule.data.rollout import Rollout, entry_of, map_leaves
from rlmodule.learning.sharding import shard_rollout
from tests.tensor_envs import TensorCartPole

try:  # the protocol of rsl-rl-lib 5.5.1, rsl_rl/env/vec_env.py
    from rsl_rl.env import VecEnv  # pyright: ignore[reportMissingImports]
except ImportError:
    VecEnv = object


class Marked(TensorCartPole):
    """Marks its time-outs instead of returning final observations."""

    def step(self, actions: Any) -> Any:
        obs, rewards, terminateds, truncateds, _ = super().step(actions)
        return obs, rewards, terminateds, truncateds, {"time_outs": truncateds, "log": {"pole": rewards.mean()}}


class RslCartPole(VecEnv):
    """CartPoles in the form of rsl-rl-lib 5.5.1 (``rsl_rl/env/vec_env.py``)."""

    def __init__(self, num_envs: int = 4, silent: bool = False) -> None:
        self.batch, self.silent = TensorCartPole(num_envs, max_steps=9), silent
        self.num_envs, self.num_actions, self.max_episode_length = num_envs, 1, 9
        self.device, self.cfg = "cpu", {}
        self.batch.reset(seed=1)

    @property
    def episode_length_buf(self) -> Any:
        return self.batch.age

    def get_observations(self) -> Any:
        return {"policy": self.batch.state, "critic": self.batch.state.clone()}

    def step(self, actions: Any) -> Any:
        _, rewards, terminateds, truncateds, _ = self.batch.step((actions[:, 0] > 0).long())
        dones = torch.zeros(4).long() if self.silent else (terminateds | truncateds).long()
        late = (truncateds & ~terminateds).float()
        return self.get_observations(), rewards, dones, {"time_outs": late, "log": {"pole": 1.0}}


def on_policy(env: Any, **model: Any) -> PPOConfig:
    config = PPOConfig(train_batch_size_per_learner=80, minibatch_size=40, num_epochs=1, seed=1)
    config.environment(env).env_runners(num_envs_per_env_runner=4)
    return config.rl_module(model_config={"fcnet_hiddens": [8], **model})


def cart_poles(kind: type[TensorCartPole]) -> Any:
    return lambda config: kind(4, max_steps=9)


def rsl_loop(rollout: Rollout, values: torch.Tensor, last: torch.Tensor, gamma: float, lam: float) -> torch.Tensor:
    """The advantages of rsl-rl-lib 5.5.1 (``rsl_rl/algorithms/ppo.py``), in a loop: a time-out adds gamma * V(s_t)."""
    terminated, truncated = rollout["terminateds"], rollout["truncateds"] & ~rollout["terminateds"]
    rewards = rollout["rewards"].double() + gamma * values * truncated
    goes_on = (~(terminated | truncated)).double()
    advantage, advantages = torch.zeros_like(last), torch.zeros_like(values)
    for t in reversed(range(len(values))):
        following = last if t == len(values) - 1 else values[t + 1]
        delta = rewards[t] + goes_on[t] * gamma * following - values[t]
        advantages[t] = advantage = delta + goes_on[t] * gamma * lam * advantage
    return advantages


@pytest.mark.parametrize("steps", [9, 20])
def test_advantages_are_those_of_rsl_rl(steps: int) -> None:
    with on_policy(cart_poles(Marked)).build() as algorithm:
        rollout = algorithm.env_runner_group.sample(steps)[0]
    assert not rollout.finals_known
    assert len(rollout.final_index)
    weights = torch.randn(4, generator=torch.Generator().manual_seed(1)).double()
    values, following = rollout.split_values(rollout.rows_to_value().double() @ weights)
    flags = {f"{name}_t": rollout[f"{name}s"] for name in ("terminated", "truncated")}
    found = generalized_advantages(
        rollout["rewards"].double(), values, following, **flags, valid_t=rollout.valid, gamma=0.99, lambda_=0.95
    )
    expected = rsl_loop(rollout, values, rollout.last_obs.double() @ weights, 0.99, 0.95)
    assert (found - expected).abs().max() <= 1e-10
    assert not any(part.finals_known for part in shard_rollout(rollout, 2) if part is not None)
    assert not Rollout.concat([rollout, rollout]).finals_known


def values_row_by_row(module: Any, rollout: Rollout) -> tuple[torch.Tensor, torch.Tensor]:
    """The values before and after each step, from a module with a memory that sees one row of one env at a time."""
    steps, slots = rollout.shape
    before, after = torch.zeros(steps, slots), torch.zeros(steps, slots)
    for slot in range(slots):
        state = tree.map_structure(lambda x, slot=slot: x[0, slot : slot + 1], rollout.state_in)
        for t in range(steps + 1):
            obs = entry_of(rollout["obs"], (slice(t, t + 1), slice(slot, slot + 1)))
            starts = rollout["starts"][t : t + 1, slot : slot + 1]
            if t == steps:
                obs = map_leaves(lambda x, slot=slot: x[None, slot : slot + 1], rollout.last_obs)
                starts = torch.zeros(1, 1, dtype=torch.bool)
            out = module.forward_train({"obs": obs, "starts": starts, "state_in": state})
            state = out["state_out"]
            value = module.compute_values({"obs": map_leaves(lambda x: x[0], obs)}, out["embeddings"][0])
            if t < steps:
                before[t, slot] = value
            if t:
                after[t - 1, slot] = value
            if t and rollout["truncateds"][t - 1, slot]:
                after[t - 1, slot] = before[t - 1, slot]
    return before, after


MEMORIES = {
    "lstm": {"use_lstm": True},
    "gru": {"use_gru": True},
    "attention": {"use_attention": True, "attention_memory": 3},
    "past": {"use_lstm": True, "lstm_use_prev_action": True, "lstm_use_prev_reward": True},
}


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("memory", MEMORIES)
@torch.no_grad()
def test_a_memory_values_a_truncated_row_as_it_saw_it(memory: str, steps: int) -> None:
    config = on_policy(lambda config: Marked(4, max_steps=3), max_seq_len=2, **MEMORIES[memory])
    with config.build() as algorithm:
        places = set()
        for _ in range(4):
            (rollout,) = algorithm.env_runner_group.sample(steps)
            learner = algorithm.learner_group.learner
            found = learner.value_pass("default_policy", rollout)
            goes_on = ~rollout["terminateds"]
            by_row = values_row_by_row(learner.module["default_policy"], rollout)
            for values, expected in zip(found, by_row, strict=True):
                assert (values - expected)[goes_on].abs().max() <= 1e-5
            places |= {*rollout.final_index[:, 0].tolist()}
    assert {0, steps - 1} <= places


@pytest.mark.parametrize("model", [{"use_lstm": True, "max_seq_len": 5}, {}])
def test_ppo_trains_and_has_what_the_env_logs(model: dict[str, Any]) -> None:
    with on_policy(cart_poles(Marked), **model).build() as algorithm:
        assert algorithm.train()["custom_metrics"] == {"pole": 1.0}


def test_replay_holds_only_steps_whose_next_observation_is_known() -> None:
    config = DQNConfig(seed=1).environment(cart_poles(Marked)).env_runners(num_envs_per_env_runner=4)
    with config.build() as algorithm:
        (cut,) = algorithm.env_runner_group.sample(20)
    with (
        DQNConfig(seed=1)
        .environment(cart_poles(TensorCartPole))
        .env_runners(num_envs_per_env_runner=4)
        .build() as algorithm
    ):
        (whole,) = algorithm.env_runner_group.sample(20)
    late = whole["truncateds"] & ~whole["terminateds"]
    assert late.any()
    assert torch.equal(cut.valid, ~late)
    assert cut.stats["num_env_steps_lost"] == {"no_final_obs": int(late.sum())}
    assert cut.num_env_steps + int(late.sum()) == whole.num_env_steps
    assert cut.stats["episode_returns"].tolist() == whole.stats["episode_returns"].tolist()
    kept = cut.valid & ~cut["terminateds"]
    assert torch.equal(cut.following_observations()[kept], whole.following_observations()[kept])


def test_new_observations_are_not_rewarded_without_those_after_ends() -> None:
    config = on_policy(cart_poles(Marked)).training(rnd_coeff=0.5)
    with (
        config.build() as algorithm,
        pytest.raises(ValueError, match=r"metadata\. An env .* nor trained with rnd_coeff"),
    ):
        algorithm.train()


def test_an_env_of_rsl_rl_trains() -> None:
    config = on_policy(lambda config: RslCartPole(), critic_only_keys=["critic"], vf_share_layers=False)
    with config.build() as algorithm:
        assert algorithm.train()["custom_metrics"] == {"pole": 1.0}


def test_a_reset_without_a_flag_is_refused() -> None:
    with (
        pytest.raises(ValueError, match="expected a flag where an episode ends"),
        on_policy(lambda config: RslCartPole(silent=True)).build() as algorithm,
    ):
        algorithm.train()


def test_final_observations_after_the_reset_are_refused() -> None:
    class Stale(TensorCartPole):
        def step(self, actions: Any) -> Any:
            obs, *rest, _ = super().step(actions)
            return obs, *rest, {"final_obs": obs}

    with (
        pytest.raises(ValueError, match="got the first ones of the next"),
        on_policy(lambda config: Stale(4, max_steps=3)).build() as algorithm,
    ):
        algorithm.train()
