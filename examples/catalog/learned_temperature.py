"""An action distribution that asks for the module it acts for: its temperature is a parameter the module learns.

Run it as ``python examples/catalog/learned_temperature.py``.
"""

import torch
from torch import Tensor, nn

from algorithms.ppo import PPOConfig, PPOModule
from catalog import Categorical
from rlmodule import RLModuleSpec


class Tempered(Categorical):
    module: "TemperedModule"
    inputs_suffice = False  # what it is depends on the temperature too

    @classmethod
    def for_module(cls, module: nn.Module) -> type["Tempered"]:
        # Asked once per module. Hold the module, not its tensors, which the runner's copy shares with the learner's.
        return type("Tempered", (cls,), {"module": module})

    @classmethod
    def from_logits(cls, logits: Tensor) -> "Tempered":
        return cls(logits / cls.module.log_temperature.exp())


class TemperedModule(PPOModule):
    def setup(self) -> None:
        super().setup()
        self.log_temperature = nn.Parameter(torch.zeros(()))


spec = RLModuleSpec(module_class=TemperedModule, model_config={"custom_action_dist": Tempered})
config = PPOConfig().environment("CartPole-v1").rl_module(rl_module_spec=spec).debugging(seed=1)

with config.build() as algo:
    for _ in range(5):
        algo.learn(num_env_steps=10_000, progress=True)
        entropy = algo.train()["learners"]["default_policy"]["entropy"]
        print(f"temperature {algo.get_module().log_temperature.exp():.3f}, entropy {entropy:.3f}")
