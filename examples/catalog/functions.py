"""Another architecture for each function, and further outputs by name, by settings alone.

Run it as ``python examples/catalog/functions.py``.
"""

import gymnasium as gym
import torch

from algorithms.ppo import PPOConfig
from rlmodule import Columns

model_config = {
    "fcnet_hiddens": [32, 32],  # of every encoder that says nothing else
    "functions": {
        "value": {"fcnet_hiddens": [256, 256], "fcnet_activation": "relu"},
        "policy": {"head_fcnet_hiddens": [16]},
        "curiosity": {"output_dim": 3, "trunk": "own", "fcnet_hiddens": [128]},
        "risk": {"output_dim": 1, "trunk": "value", "head_fcnet_hiddens": [8]},
    },
}
config = PPOConfig().environment("Acrobot-v1").rl_module(model_config=model_config).debugging(seed=1)

with config.build() as algo:
    print(algo.explain())
    algo.learn(num_env_steps=4_096, progress=True)
    module = algo.get_module()
    envs = gym.make_vec("Acrobot-v1", num_envs=5)
    obs, info = envs.reset(seed=1)
    out = module.forward_train({Columns.OBS: torch.from_numpy(obs)})
    for name, output in out[Columns.EXTRA_OUTPUTS].items():  # what they learn is up to a loss, as in auxiliary_loss.py
        print(name, tuple(output.shape))
