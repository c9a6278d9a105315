"""Use the catalog without any training loop: encode an observation, sample an action, step an environment.

Run it as ``python examples/catalog_alone.py``.
"""

import gymnasium as gym
import torch
from torch import nn

from catalog import Catalog

env = gym.make("CartPole-v1")

# The base catalog knows encoders and distributions; heads belong to algorithms, or to you.
catalog = Catalog(env.observation_space, env.action_space, {"fcnet_hiddens": [32, 32], "fcnet_activation": "relu"})
print(catalog.explain())

distribution_class = catalog.get_action_dist_cls()
num_outputs = distribution_class.required_input_dim(env.action_space)
encoder = catalog.build_encoder()
head = nn.Linear(catalog.latent_dims[0], num_outputs)

obs, info = env.reset(seed=1)
total, over = 0.0, False
with torch.no_grad():
    while not over:
        latent = encoder(torch.from_numpy(obs)[None]).latent
        action = distribution_class.from_logits(head(latent)).sample()
        obs, reward, terminated, truncated, info = env.step(action.item())
        total, over = total + float(reward), terminated or truncated
print(f"An episode with untrained nets: return {total:g}")
