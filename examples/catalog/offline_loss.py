"""PPO that also imitates: its module draws batches of someone else's experience and adds their loss to PPO's own.

Run it as ``python examples/catalog/offline_loss.py``.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from algorithms.ppo import PPOConfig, PPOModule
from rlmodule import Columns, ExtraLoss, ExtraLossAPI, RLModuleSpec


def demonstrations(batch_size: int) -> Iterator[dict[str, Tensor]]:
    """Batches of what someone does who pushes the car the way it rolls; a reader of files would look the same."""
    envs, generator = gym.make_vec("MountainCar-v0", num_envs=8), np.random.default_rng(1)
    seen, done = [envs.reset(seed=1)[0]], []
    for _ in range(200):
        done.append(np.where(seen[-1][:, 1] > 0, 2, 0))
        seen.append(envs.step(done[-1])[0])
    columns = {Columns.OBS: np.concatenate(seen[:-1]), Columns.ACTIONS: np.concatenate(done)}
    while True:
        rows = generator.integers(len(columns[Columns.OBS]), size=batch_size)
        yield {name: torch.from_numpy(column[rows]) for name, column in columns.items()}


class AloneModule(PPOModule, ExtraLossAPI):
    weight = 0.0

    def setup(self) -> None:
        super().setup()
        self.demonstrations = demonstrations(batch_size=64)

    def compute_extra_losses(self, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]) -> dict[str, ExtraLoss]:
        shown = next(self.demonstrations)
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
