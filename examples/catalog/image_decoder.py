"""The way back from latents to images: PPO's CNN, and beside its heads a decoder that mirrors it, with its own loss.

Run it as ``python examples/catalog/image_decoder.py``. Draws what the encoder saw and what the decoder makes of it into
decoded.png.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import matplotlib
import numpy as np
import torch
from gymnasium import spaces

from algorithms.ppo import PPOConfig, PPOModule
from catalog import CNNEncoderConfig, CNNTransposeHeadConfig
from rlmodule import Columns, ExtraLoss, ExtraLossAPI, RLModuleSpec

matplotlib.use("Agg")  # no screen needed
from matplotlib import pyplot as plt

SIZE = 16


class Chase(gym.Env):
    """A bright square that walks, and a dim one to put upon it: one point for each step on which they meet."""

    observation_space = spaces.Box(0, 255, (SIZE, SIZE, 1), np.uint8)
    action_space = spaces.Discrete(5)  # stay, up, down, left, right

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.places = self.np_random.integers(0, SIZE - 2, (2, 2))
        self.steps = 0
        return self.look(), {}

    def step(self, action):
        moves = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]])
        walk = moves[self.np_random.integers(5)]
        self.places = np.clip(self.places + np.stack([walk, 2 * moves[action]]), 0, SIZE - 3)
        self.steps += 1
        meets = np.abs(self.places[0] - self.places[1]).max() <= 1
        return self.look(), float(meets), False, self.steps == 32, {}

    def look(self):
        picture = np.zeros((SIZE, SIZE, 1), np.uint8)
        for (row, column), light in zip(self.places, (255, 100), strict=True):
            picture[row : row + 3, column : column + 3] = light
        return picture


class DecodingModule(PPOModule, ExtraLossAPI):
    """PPO's nets, and a decoder from the encoder's latents to the pictures they came from."""

    def setup(self) -> None:
        super().setup()
        encoder = self.catalog.encoder_config
        assert isinstance(encoder, CNNEncoderConfig)
        self.decoder = CNNTransposeHeadConfig.mirror(encoder, output_activation="sigmoid").build()

    def get_non_inference_attributes(self) -> list[str]:
        return [*super().get_non_inference_attributes(), "decoder"]  # which env runners do without

    def compute_extra_losses(self, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]) -> dict[str, ExtraLoss]:
        seen = batch[Columns.OBS] / 255
        error = (self.decoder(fwd_out[Columns.EMBEDDINGS]) - seen).square().mean()
        unexplained = error / (seen - seen.mean(0)).square().mean()
        return {"decoder": ExtraLoss(error, weight=10.0, metrics={"unexplained": unexplained})}


model_config = {"conv_filters": [[16, 4, 2], [32, 4, 2]], "conv_dense_dim": 64, "vf_share_layers": True}
spec = RLModuleSpec(module_class=DecodingModule, model_config=model_config)
config = (
    PPOConfig()
    .environment(Chase)
    .rl_module(rl_module_spec=spec)
    .training(lr=1e-3, train_batch_size_per_learner=1024, num_epochs=4)
    .debugging(seed=1)
)

with config.build() as algo:
    for _ in range(3):
        result = algo.learn(num_env_steps=10_000, progress=True)
        learned = result["learners"]["default_policy"]
        print(
            f"return {result['env_runners']['episode_return_mean']:5.1f}, "
            f"of the pictures' variance lost {learned['unexplained']:.1%}"
        )
    module, env = algo.get_module(), Chase()
    pictures = np.stack([env.reset(seed=seed)[0] for seed in range(6)])
    with torch.no_grad():
        out = module.forward_train({Columns.OBS: torch.from_numpy(pictures)})
        decoded = module.decoder(out[Columns.EMBEDDINGS])

figure, axes = plt.subplots(2, 6, figsize=(9, 3.2))
for column, (seen, made) in enumerate(zip(pictures / 255, decoded.numpy(), strict=True)):
    for axis, picture in zip(axes[:, column], (seen, made), strict=True):
        axis.imshow(picture[..., 0], cmap="gray", vmin=0, vmax=1)
        axis.axis("off")
figure.suptitle("seen, and decoded from 64 numbers")
figure.savefig("decoded.png")
print("drawn: decoded.png")
