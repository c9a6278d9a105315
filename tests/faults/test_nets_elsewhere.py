"""The rarer nets with their envs, or with two learners, in processes of their own: the weights of one process."""

from typing import Any

import pytest
import torch

from algorithms.ppo import PPOConfig
from rlmodule.testing.data import clone
from tests.autoregressive_envs import Vault
from tests.parametric_envs import ParametricCartPole

pytestmark = [pytest.mark.usefixtures("ray_started"), pytest.mark.faults]

ATTENTION = {"use_attention": True, "attention_memory": 8, "attention_dim": 16, "max_seq_len": 16}
NETS: dict[str, tuple[Any, dict[str, Any]]] = {
    "attention": ("CartPole-v1", ATTENTION),
    "autoregressive": (Vault, {"autoregressive_actions": True}),
    "Beta": ("Pendulum-v1", {"custom_action_dist": "Beta"}),
    "vectors of actions": (ParametricCartPole, {}),
    "vectors of actions and attention": (ParametricCartPole, ATTENTION),
}
NUM_ENVS, BATCH, MINIBATCH = 4, 256, 128


def learned(net: str, num_env_runners: int = 0, num_learners: int = 0) -> dict[str, torch.Tensor]:
    """The weights after two iterations."""
    env, model = NETS[net]
    learners = max(1, num_learners)
    config = (
        PPOConfig(env=env, seed=3)
        .env_runners(
            num_env_runners=num_env_runners,
            num_envs_per_env_runner=NUM_ENVS // max(1, num_env_runners),
            num_cpus_per_env_runner=0.1,
        )
        .learners(num_learners=num_learners, num_cpus_per_learner=0.1)
        .training(train_batch_size_per_learner=BATCH // learners, minibatch_size=MINIBATCH // learners, num_epochs=2)
        .rl_module(model_config=model)
    )
    with config.build() as algorithm:
        before = clone(algorithm.get_module().get_state())
        for _ in range(2):
            algorithm.train()
        after = clone(algorithm.get_module().get_state())
    assert any(not torch.equal(after[name], before[name]) for name in after)
    return after


@pytest.mark.parametrize("remote", [{"num_env_runners": 2}, {"num_learners": 2}], ids=["envs", "learners"])
@pytest.mark.parametrize("net", NETS)
def test_a_net_learns_alike_wherever_its_envs_and_learners_are(net: str, remote: dict[str, int]) -> None:
    here, there = learned(net), learned(net, **remote)
    for name, value in here.items():
        torch.testing.assert_close(there[name], value, rtol=0, atol=1e-6)
