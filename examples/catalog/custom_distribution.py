"""An action distribution of your own, written out in full: a categorical that is colder than its logits.

Run it as ``python examples/catalog/custom_distribution.py``.
"""

import torch
from gymnasium import Space
from torch import Tensor, nn

from algorithms.ppo import PPOCatalog, PPOConfig
from catalog import Deterministic, Distribution, register_distribution
from rlmodule import RLModuleSpec


@register_distribution("cold")
class Cold(Distribution):
    temperature = 0.5

    def __init__(self, logits: Tensor) -> None:
        self.log_probs = (logits / self.temperature).log_softmax(-1)

    @classmethod
    def from_logits(cls, logits: Tensor) -> "Cold":
        return cls(logits)

    @classmethod
    def required_input_dim(cls, space: Space) -> int:
        return int(space.n)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        waiting = torch.empty_like(self.log_probs).exponential_(generator=generator) / self.log_probs.exp()
        return waiting.argmin(-1)  # of events at these rates, each is the first with its probability

    def rsample(self, generator: torch.Generator | None = None) -> Tensor:
        probs = self.log_probs.exp()  # a one-hot code with the gradient of the probabilities
        return nn.functional.one_hot(self.sample(generator), probs.shape[-1]) + probs - probs.detach()

    def logp(self, actions: Tensor) -> Tensor:
        return self.log_probs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        return -(self.log_probs.exp() * self.log_probs).sum(-1)

    def kl(self, other: "Cold") -> Tensor:
        return (self.log_probs.exp() * (self.log_probs - other.log_probs)).sum(-1)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self.log_probs.argmax(-1))


class ColdCatalog(PPOCatalog):
    def get_action_dist_cls(self) -> type[Distribution]:
        return Cold


# by a hook or by a setting: a registered name, the class itself, or an import path "my_module:Cold"
for spec in (RLModuleSpec(catalog_class=ColdCatalog), RLModuleSpec(model_config={"custom_action_dist": "cold"})):
    with PPOConfig().environment("CartPole-v1").rl_module(rl_module_spec=spec).debugging(seed=1).build() as algo:
        print(algo.learn(num_env_steps=30_000, target_return=150, progress=True)["learners"]["default_policy"])
