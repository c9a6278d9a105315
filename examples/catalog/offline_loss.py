"""PPO that also imitates: its module draws batches of someone else's data and adds their loss to PPO's own.

Run it as ``python examples/catalog/offline_loss.py``.
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from algorithms.ppo import PPOConfig, PPOModule
from algorithms.replay import ReplayBuffer
from algorithms.replay.data_rollout import data_rollout
from rlmodule import Columns, Dataset, Episode, ExtraLoss, ExtraLossAPI, RLModuleSpec

# What someone does who pushes the car the way it rolls. ``Dataset.load(path)`` would read the same from a folder.
env, episodes = gym.make("MountainCar-v0"), []
for seed in range(8):
    episode = Episode()
    episode.add_reset(env.reset(seed=seed)[0])
    while not episode.is_finished:
        action = 2 if episode.get_observations(-1)[1] > 0 else 0
        obs, reward, terminated, truncated, _ = env.step(action)
        episode.add_step(action, obs, float(reward), terminated, truncated)
    episodes.append(episode)
DATA = Dataset.from_episodes(episodes, observation_space=env.observation_space, action_space=env.action_space)


class AloneModule(PPOModule, ExtraLossAPI):
    weight = 0.0

    def setup(self) -> None:
        super().setup()
        spaces, generator = (self.input_space, self.action_space), np.random.default_rng(1)
        self.shown = ReplayBuffer(*spaces, capacity=DATA.num_steps, num_envs=1, gamma=0.99, seed=generator)
        self.shown.add(data_rollout(DATA, self))  # with actions as the distribution samples them

    def compute_extra_losses(self, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]) -> dict[str, ExtraLoss]:
        shown = self.shown.sample(64).batch
        policy = self.action_dist_cls.from_logits(self.forward_train(shown)[Columns.ACTION_DIST_INPUTS])
        return {"imitation": ExtraLoss(-policy.logp(shown[Columns.ACTIONS]).mean(), self.weight)}


class ImitatingModule(AloneModule):
    weight = 0.5


for module_class in (AloneModule, ImitatingModule):
    spec = RLModuleSpec(module_class=module_class, model_config={"normalize_observations": True})
    config = PPOConfig().environment("MountainCar-v0").rl_module(rl_module_spec=spec).debugging(seed=1)
    with config.build() as algo:
        result = algo.learn(num_env_steps=20_000, progress=True)
        print(
            f"{module_class.__name__}: return {result['env_runners']['episode_return_mean']:.0f}, "
            f"imitation loss {result['learners']['default_policy']['imitation_loss']:.3f}"
        )
