"""The way back from latents to images: a decoder that mirrors the CNN, in addition to PPO's heads. Draws decoded.png.

Run it as ``python examples/catalog/image_decoder.py``.
"""

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from matplotlib import pyplot as plt

from algorithms.ppo import PPOConfig, PPOModule
from catalog import CNNTransposeHeadConfig
from rlmodule import Columns, ExtraLoss, ExtraLossAPI, RLModuleSpec


class Quarters(gym.Env):
    """A square walks about a picture; one point for each step at which the action names its quarter."""

    observation_space, action_space = spaces.Box(0, 255, (16, 16, 1), np.uint8), spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.integers(0, 14, 2), 0
        return self.picture(), {}

    def step(self, action):
        quarter, self.steps = 2 * (self.place[0] >= 7) + (self.place[1] >= 7), self.steps + 1
        self.place = np.clip(self.place + self.np_random.integers(-2, 3, 2), 0, 13)
        return self.picture(), float(action == quarter), False, self.steps == 32, {}

    def picture(self):
        picture, (y, x) = np.zeros((16, 16, 1), np.uint8), self.place
        picture[y : y + 3, x : x + 3] = 255
        return picture


class DecodingModule(PPOModule, ExtraLossAPI):
    def setup(self):
        super().setup()
        self.decoder = CNNTransposeHeadConfig.mirror(self.catalog.encoder_config, output_activation="sigmoid").build()

    def get_non_inference_attributes(self):
        return [*super().get_non_inference_attributes(), "decoder"]  # which env runners do without

    def compute_extra_losses(self, batch, fwd_out):
        error = self.decoder(fwd_out[Columns.EMBEDDINGS]) - batch[Columns.OBS] / 255
        return {"decoder": ExtraLoss(error.square().mean(), weight=10.0)}


nets = {"conv_filters": [[16, 4, 2], [32, 4, 2]], "conv_dense_dim": 64, "vf_share_layers": True}
spec = RLModuleSpec(module_class=DecodingModule, model_config=nets)
with PPOConfig(env=Quarters, lr=1e-3, seed=1).rl_module(rl_module_spec=spec).build() as algo:
    result = algo.learn(num_env_steps=20_000, progress=True)
    print("return", result["env_runners"]["episode_return_mean"], "of 32; drawn: decoded.png")
    seen, module = np.stack([Quarters().reset(seed=seed)[0] for seed in range(5)]), algo.get_module()
    decoded = module.decoder(module.forward_train({Columns.OBS: torch.from_numpy(seen)})[Columns.EMBEDDINGS])
pictures = np.vstack([np.hstack([*seen / 255]), np.hstack([*decoded.detach().numpy()])])[..., 0]
plt.imsave("decoded.png", pictures.repeat(8, 0).repeat(8, 1))
