"""A loss of the module's own, whatever algorithm trains it: the latents must let the observation be read off again.

Run it as ``python examples/catalog/auxiliary_loss.py``.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn

from algorithms.ppo import PPOConfig, PPOModule
from rlmodule import Columns, ExtraLoss, ExtraLossAPI, RLModuleSpec


class AutoencoderModule(PPOModule, ExtraLossAPI):
    """PPO's nets, and a decoder from the encoder's latents to the observations they came from."""

    def setup(self) -> None:
        super().setup()
        (width,), (obs_dim,) = self.catalog.latent_dims, self.observation_space.shape
        self.decoder = nn.Sequential(nn.Linear(width, 64), nn.Tanh(), nn.Linear(64, obs_dim))

    def get_non_inference_attributes(self) -> list[str]:
        return [*super().get_non_inference_attributes(), "decoder"]  # which env runners do without

    def compute_extra_losses(self, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]) -> dict[str, ExtraLoss]:
        error = self.decoder(fwd_out[Columns.EMBEDDINGS]) - batch[Columns.OBS]
        unexplained = error.square().mean(0) / batch[Columns.OBS].var(0)
        return {"autoencoder": ExtraLoss(error.square().mean(), weight=0.1, metrics={"unexplained": unexplained})}


spec = RLModuleSpec(module_class=AutoencoderModule, model_config={"vf_share_layers": True})
config = PPOConfig().environment("Acrobot-v1").rl_module(rl_module_spec=spec).debugging(seed=1)

with config.build() as algo:
    for _ in range(4):
        result = algo.learn(num_env_steps=15_000, progress=True)
        learned = result["learners"]["default_policy"]
        print(
            f"return {result['env_runners']['episode_return_mean']:6.1f}, "
            f"of the observation's variance lost {learned['unexplained']:.1%}"
        )
