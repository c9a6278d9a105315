"""Use the catalog without any training loop: encode an observation, sample an action, step an environment.

Run it as ``python examples/catalog/catalog_alone.py``.
"""

import gymnasium as gym
import torch
from gymnasium import spaces
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
print(f"\nAn episode with untrained nets: return {total:g}\n")

# The same few lines for other spaces: what stands above the head adapts by itself.
image, vector = spaces.Box(0, 255, (84, 84, 3), "uint8"), spaces.Box(-1, 1, (6,))
for observation_space, action_space in (
    (spaces.Discrete(16), spaces.MultiDiscrete([3, 4])),
    (image, spaces.Box(-2, 2, (3,))),
    (spaces.Dict(camera=image, speed=vector), spaces.Dict(move=spaces.Discrete(4), turn=spaces.Box(-1, 1, (1,)))),
):
    catalog = Catalog(observation_space, action_space)
    distribution_class = catalog.get_action_dist_cls()
    print(
        f"{catalog.encoder_node.rule.name:40} latent {catalog.latent_dims}, "
        f"{distribution_class.__name__} of {distribution_class.required_input_dim(action_space)} inputs"
    )
