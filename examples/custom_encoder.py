"""Train PPO with an encoder of your own, injected through PPOCatalog.build_encoder.

Run it as ``python examples/custom_encoder.py``.
"""

import torch
from torch import nn

from algorithms.ppo import PPOCatalog, PPOConfig
from rlmodule import RLModuleSpec


class Fourier(nn.Module):
    """Sines and cosines of learned projections of the observation, then a dense layer."""

    def __init__(self, obs_dim: int, features: int = 32, width: int = 64) -> None:
        super().__init__()
        self.project = nn.Linear(obs_dim, features)
        self.mix = nn.Linear(2 * features, width)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        angles = self.project(obs)  # the observation as the env gives it, batched
        return torch.tanh(self.mix(torch.cat([angles.sin(), angles.cos()], dim=-1)))


class FourierCatalog(PPOCatalog):
    """Actor and critic get an encoder each; the heads take their width from what it returns."""

    def build_encoder(self) -> nn.Module:
        return Fourier(self.observation_space.shape[0])


config = (
    PPOConfig()
    .environment("Acrobot-v1")
    .rl_module(rl_module_spec=RLModuleSpec(catalog_class=FourierCatalog))
    .debugging(seed=1)
)

with config.build() as algo:
    print(algo.explain())
    result = algo.learn(num_env_steps=100_000, target_return=-100, progress=True)
    print(result["learners"]["default_policy"])
