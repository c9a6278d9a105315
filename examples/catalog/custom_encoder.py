"""An encoder of your own, a small MobileNet, for large images only; the catalog decides for all other observations.

Run it as ``python examples/catalog/custom_encoder.py``.
"""

from dataclasses import dataclass

import gymnasium as gym
from torch import Tensor, nn

from algorithms.ppo import PPOCatalog, PPOConfig
from catalog import DefaultModelConfig, Encoder, EncoderOutput, ModelConfig
from rlmodule import RLModuleSpec


@dataclass(frozen=True)
class MobileNetConfig(ModelConfig):
    output_dims: tuple[int, ...] = (64,)  # known before the net is built

    def build(self) -> Encoder:
        return MobileNet(self.output_dims[0])


class MobileNet(Encoder):  # one full convolution, then depthwise and pointwise ones in turn (Howard et al. 2017)
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, width // 8, 3, stride=4))
        for w in (width // 8, width // 4, width // 2):
            self.net.extend([nn.Conv2d(w, w, 3, 2, groups=w), nn.Conv2d(w, 2 * w, 1), nn.BatchNorm2d(2 * w), nn.ReLU()])

    def forward(self, obs: Tensor, state: object = None, *, starts: Tensor | None = None) -> EncoderOutput:
        return EncoderOutput(self.net(obs / 255).mean((-2, -1)))  # obs is what the env gave, batched


class MobileCatalog(PPOCatalog):
    def _get_encoder_config(self, observation_space: gym.Space, model_config: DefaultModelConfig) -> ModelConfig:
        is_ours = isinstance(observation_space, gym.spaces.Box) and observation_space.shape == (3, 224, 224)
        return MobileNetConfig() if is_ours else super()._get_encoder_config(observation_space, model_config)


class Stripes(gym.Env):  # a look at noise with stripes, which lie (0) or stand (1), as the action has to say
    observation_space, action_space = gym.spaces.Box(0, 255, (3, 224, 224), "uint8"), gym.spaces.Discrete(2)

    def reset(self, **options: object) -> tuple[object, dict[str, object]]:
        super().reset(**options)
        self.kind, self.image = self.np_random.integers(2), self.np_random.integers(0, 200, (3, 224, 224), "uint8")
        (self.image.swapaxes(1, 2) if self.kind == 1 else self.image)[:, ::16] += 55
        return self.image, {}

    def step(self, action: int) -> tuple[object, float, bool, bool, dict[str, object]]:
        return self.image, float(action == self.kind), True, False, {}


config = PPOConfig().rl_module(rl_module_spec=RLModuleSpec(catalog_class=MobileCatalog)).debugging(seed=1)
config.training(train_batch_size_per_learner=128, minibatch_size=32, num_epochs=4, lr=1e-3)
for env in (Stripes, "CartPole-v1"):
    with config.environment(env).build() as algo:
        result = algo.learn(num_env_steps=1024, progress=True)
        print(type(algo.get_module().encoder.actor_encoder).__name__, result["env_runners"]["episode_return_mean"])
