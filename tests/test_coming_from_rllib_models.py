"""What RLlib's users asked of models and is named in docs/coming-from-rllib.md, where no other file holds it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import tree
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from algorithms.ppo import PPOCatalog, PPOConfig, PPOModule
from catalog import (
    ActionConverter,
    Catalog,
    Categorical,
    CNNEncoderConfig,
    DefaultModelConfig,
    Distribution,
    Encoder,
    EncoderOutput,
    MLPEncoderConfig,
    ModelConfig,
    ObservationNormalizer,
    RecurrentEncoderConfig,
)
from rlmodule import (
    BatchLearner,
    Columns,
    ExtraLoss,
    ExtraLossAPI,
    MultiRLModuleSpec,
    QNetAPI,
    RLModule,
    RLModuleSpec,
    ValueFunctionAPI,
)
from rlmodule.data.sequences import cut_into_sequences
from rlmodule.testing.data import random_observations

OBS, ACTIONS = spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(2)
IMAGE = spaces.Box(0, 255, (3, 16, 16), np.uint8)


def small(**rl_module: Any) -> PPOConfig:
    config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=2).debugging(seed=1)
    config.training(train_batch_size_per_learner=64, minibatch_size=None, num_epochs=2)
    return config.rl_module(**rl_module)


# --- what the tree decides, and replacing it --------------------------------------------------------------------------


class Called(ActionConverter):
    def __init__(self, calls: list[str]) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, actions: Any) -> Any:
        self.calls.append("converter")
        return actions


def test_every_step_from_observation_to_action_can_be_replaced() -> None:
    calls: list[str] = []

    class Normalizer(ObservationNormalizer):
        def forward(self, obs: Any) -> Any:
            calls.append("normalizer")
            return super().forward(obs)

    class Net(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            calls.append("net")
            return super().forward(input)

    class Chooser(Categorical):
        @classmethod
        def from_logits(cls, logits: Tensor) -> Categorical:
            calls.append("distribution")
            return super().from_logits(logits)

    class Replaced(PPOCatalog):
        def build_observation_normalizer(self) -> ObservationNormalizer:
            return Normalizer(self.observation_space)

        def build_encoder(self) -> nn.Module:
            return Net(4, 8)

        def get_action_dist_cls(self) -> type[Distribution]:
            return Chooser

        def build_action_converter(self) -> ActionConverter:
            return Called(calls)

    with small(rl_module_spec=RLModuleSpec(catalog_class=Replaced)).build() as algorithm:
        algorithm.train()
        calls.clear()
        algorithm.policy.act(OBS.sample())
    assert calls == ["normalizer", "net", "distribution", "converter"]


@pytest.mark.parametrize(
    ("space", "config_class"),
    [
        (spaces.Box(0, 1, (12, 12, 3)), CNNEncoderConfig),
        (spaces.Box(0, 1, (2, 12, 12, 3)), CNNEncoderConfig),
        (spaces.Box(0, 1, (4, 3)), MLPEncoderConfig),
        (spaces.Box(0, 1, (4,)), MLPEncoderConfig),
        (spaces.Box(0, 1, ()), MLPEncoderConfig),
        (spaces.MultiBinary(4), MLPEncoderConfig),
    ],
    ids=str,
)
def test_images_get_a_cnn_and_numbers_an_mlp(space: spaces.Space, config_class: type[ModelConfig]) -> None:
    assert type(PPOCatalog(space, ACTIONS).encoder_config) is config_class


@pytest.mark.parametrize(("padding", "size"), [([], 11), (["valid"], 1)], ids=["same", "valid"])
def test_listed_filters_fit_an_odd_size(padding: list[str], size: int) -> None:
    filters = [[16, [4, 4], 2], [32, [4, 4], 2], [512, [11, 11], 1, *padding]]
    small_image = spaces.Box(0, 255, (42, 42, 3), np.uint8)
    catalog = PPOCatalog(small_image, ACTIONS, {"conv_filters": filters, "conv_dense_dim": None})
    assert catalog.latent_dims == (512 * size * size,)
    latent = catalog.build_encoder()(torch.zeros(2, 42, 42, 3, dtype=torch.uint8)).latent
    assert latent.shape == (2, *catalog.latent_dims)


def test_use_lstm_puts_a_memory_behind_the_default_net() -> None:
    config = PPOCatalog(OBS, ACTIONS, {"use_lstm": True, "lstm_cell_size": 16}).encoder_config
    assert isinstance(config, RecurrentEncoderConfig)
    assert (config.recurrent_layer_type, config.output_dims) == ("lstm", (16,))
    assert config.tokenizer_config == PPOCatalog(OBS, ACTIONS).encoder_config


def test_the_net_before_a_memory_may_be_another_than_that_without() -> None:
    class Narrow(PPOCatalog):
        def get_tokenizer_config(
            self, observation_space: spaces.Space, model_config: DefaultModelConfig
        ) -> ModelConfig:
            return MLPEncoderConfig(input_space=observation_space, hidden_layer_dims=(5,))

    config = Narrow(OBS, ACTIONS, {"use_gru": True}).encoder_config
    assert isinstance(config, RecurrentEncoderConfig)
    assert config.tokenizer_config.output_dims == (5,)
    assert config.build()(torch.zeros(3, 2, 4)).latent.shape == (3, 2, 64)
    assert Narrow(OBS, ACTIONS).latent_dims == (64,)


class Fields(nn.Module):
    """Reads single fields of a nested observation."""

    def __init__(self, space: spaces.Space) -> None:
        super().__init__()
        self.dense = nn.Linear(3, 4)

    def forward(self, obs: Mapping[str, Any]) -> Tensor:
        choice, position = obs["pair"]
        return self.dense(torch.stack([choice.float(), position[..., 1], obs["inner"]["level"]], -1))


def test_a_net_of_ones_own_sees_nested_observations_by_their_fields() -> None:
    pair = spaces.Tuple([spaces.Discrete(3, start=5), spaces.Box(-1, 1, (2,))])
    space = spaces.Dict(pair=pair, inner=spaces.Dict(level=spaces.Box(0, 9, ())))
    config = {"custom_model": Fields, "head_fcnet_hiddens": []}
    module = PPOModule(observation_space=space, action_space=ACTIONS, model_config=config, catalog_class=PPOCatalog)
    obs = random_observations(space, 6)
    by_hand = torch.stack([obs["pair"][0].float(), obs["pair"][1][:, 1], obs["inner"]["level"]], -1)
    net = module.encoder.actor_encoder.net
    expected = module.pi_head(net.dense(by_hand))  # type: ignore[union-attr,operator]
    torch.testing.assert_close(module.forward_train({Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS], expected)
    assert obs["pair"][0].min() >= 5  # as the env counts


# --- modules and their losses -----------------------------------------------------------------------------------------


class Both(RLModule, ValueFunctionAPI, QNetAPI):
    """Values of states and of actions: a model for two kinds of algorithm."""

    def setup(self) -> None:
        self.encoder = self.catalog.build_encoder()
        self.state_value = self.catalog.head_config("state_value", 1).build()
        self.advantage = self.catalog.head_config("advantage", int(self.action_space.n)).build()  # type: ignore[attr-defined]

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        latent = self.encoder(batch[Columns.OBS]).latent
        return {Columns.ACTION_DIST_INPUTS: self.compute_q_values(batch, latent), Columns.EMBEDDINGS: latent}

    def compute_values(self, batch: Mapping[str, Any], embeddings: Tensor | None = None) -> Tensor:
        latent = self.encoder(batch[Columns.OBS]).latent if embeddings is None else embeddings
        return self.state_value(latent).squeeze(-1)

    def compute_q_values(self, batch: Mapping[str, Any], embeddings: Tensor | None = None) -> Tensor:
        latent = self.encoder(batch[Columns.OBS]).latent if embeddings is None else embeddings
        advantage = self.advantage(latent)
        return self.state_value(latent) + advantage - advantage.mean(-1, keepdim=True)


class BothCatalog(Catalog):
    """From scratch: an encoder as the tree has it, and two functions on it."""

    functions = ("advantage", "state_value")


class TD(BatchLearner):
    required_apis = (QNetAPI,)

    def compute_loss_for_module(
        self, module_id: str, batch: dict[str, Any], fwd_out: Mapping[str, Any]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        module = self.module[module_id]
        assert isinstance(module, QNetAPI)
        q = module.compute_q_values(batch, fwd_out[Columns.EMBEDDINGS])
        error = q.gather(-1, batch[Columns.ACTIONS][:, None]).squeeze(-1) - batch[Columns.REWARDS]
        return error.square().mean(), {"q": q.mean()}


def test_one_module_serves_several_algorithms_by_its_abilities() -> None:
    spec = RLModuleSpec(module_class=Both, catalog_class=BothCatalog)
    with small(rl_module_spec=spec).build() as algorithm:
        assert algorithm.train()["learners"]["default_policy"]["vf_loss"] > 0
    spec = dataclasses.replace(spec, observation_space=OBS, action_space=ACTIONS)
    learner = TD(PPOConfig().training(lr=1e-2), spec.as_multi(), run_seed=0)
    obs = torch.rand(64, 4)
    batch = {Columns.OBS: obs, Columns.ACTIONS: torch.arange(64) % 2, Columns.REWARDS: torch.arange(64) % 2 + obs[:, 0]}
    for _ in range(200):
        learner.update_from_batch(dict(batch), env_steps=0)
    module = learner.module["default_policy"]
    assert isinstance(module, Both)
    torch.testing.assert_close(module.compute_q_values(batch).diff(dim=-1).mean().item(), 1.0, atol=0.1, rtol=0)
    torch.testing.assert_close(module.compute_values(batch), module.compute_q_values(batch).mean(-1))


class Imitating(PPOModule, ExtraLossAPI):
    """Action 1 is what the demonstrations show, wherever they are."""

    def setup(self) -> None:
        super().setup()
        self.demonstrations: Iterator[dict[str, Tensor]] = itertools.repeat(
            {Columns.OBS: torch.rand(32, 4) - 0.5, Columns.ACTIONS: torch.ones(32, dtype=torch.int64)}
        )

    def compute_extra_losses(self, batch: Mapping[str, Any], fwd_out: Mapping[str, Any]) -> dict[str, ExtraLoss]:
        shown = next(self.demonstrations)
        dist = self.action_dist_cls.from_logits(self.forward_train(shown)[Columns.ACTION_DIST_INPUTS])
        logp = dist.logp(shown[Columns.ACTIONS])
        return {"imitation": ExtraLoss(-logp.mean(), weight=5.0, metrics={"agreement": logp.exp()})}


def test_a_module_mixes_imitation_of_other_data_into_any_loss() -> None:
    config = small(rl_module_spec=RLModuleSpec(module_class=Imitating)).training(lr=1e-2, num_epochs=10)
    with config.build() as algorithm:
        first = algorithm.train()["learners"]["default_policy"]
        second = algorithm.train()["learners"]["default_policy"]
        assert second["imitation_loss"] < 0.1 < first["imitation_loss"]
        assert second["agreement"] > 0.8
        assert "policy_loss" in second
        assert [algorithm.policy.act(np.zeros(4, np.float32))[0] for _ in range(3)] == [1, 1, 1]


# --- memory -----------------------------------------------------------------------------------------------------------


class TwoCells(Encoder):
    """A memory for each half of the observation."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.GRUCell(2, 6) for _ in range(2))

    def get_initial_state(self) -> dict[str, Tensor]:
        return {"first": torch.zeros(6), "second": torch.zeros(6)}

    def forward(self, obs: Any, state: Any = None, *, starts: Tensor | None = None) -> EncoderOutput:
        if state is None:
            state = {name: zeros.expand(obs.shape[1], -1) for name, zeros in self.get_initial_state().items()}
        latents = []
        for t in range(len(obs)):
            keep = 1.0 if starts is None else (~starts[t]).unsqueeze(-1)
            halves = zip(self.cells, state.items(), obs[t].chunk(2, -1), strict=True)
            state = {name: cell(half, h * keep) for cell, (name, h), half in halves}
            latents.append(torch.cat([*state.values()], -1))
        return EncoderOutput(torch.stack(latents), state)


class TwoCellsCatalog(PPOCatalog):
    def build_encoder(self) -> nn.Module:
        return TwoCells()


@pytest.mark.parametrize("shared", [True, False])
def test_a_memory_of_ones_own_may_have_several_cells(shared: bool) -> None:
    spec = RLModuleSpec(catalog_class=TwoCellsCatalog, model_config={"vf_share_layers": shared, "max_seq_len": 8})
    with small(rl_module_spec=spec).build() as algorithm:
        module, rollout = algorithm.get_module(), algorithm.sample()
        batch = cut_into_sequences(rollout, [Columns.OBS, Columns.ACTION_DIST_INPUTS], 8)
        out = module.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
        torch.testing.assert_close(out, batch[Columns.ACTION_DIST_INPUTS], atol=1e-5, rtol=0)
        assert batch[Columns.STARTS][1:].any()  # an episode began inside a sequence
        forgotten = tree.map_structure(torch.zeros_like, batch[Columns.STATE_IN])
        other = module.forward_train(batch | {Columns.STATE_IN: forgotten})[Columns.ACTION_DIST_INPUTS]
        assert not torch.allclose(other, out, atol=1e-3)  # what was before a sequence counts
        before = {name: p.clone() for name, p in module.named_parameters()}
        algorithm.train()
        assert not any(torch.equal(before[name], p) for name, p in module.named_parameters() if "cells" in name)


# --- environments and catalogs ----------------------------------------------------------------------------------------


class Pictures(gym.Env):
    """Random images for as long as it lasts, which is five steps."""

    observation_space, action_space = IMAGE, ACTIONS

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 5
        return self.observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return self.observe(), 1.0, self.left == 0, False, {}

    def observe(self) -> Any:
        return self.np_random.integers(0, 256, IMAGE.shape, np.uint8)


@dataclasses.dataclass(frozen=True)
class PooledConfig(ModelConfig):
    """A separable convolution, averaged over the image."""

    width: int = 12

    @property
    def output_dims(self) -> tuple[int, ...]:
        return (self.width,)

    def build(self) -> nn.Module:
        return Pooled(self.width)


class Pooled(Encoder):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise, self.pointwise = nn.Conv2d(3, 3, 3, groups=3), nn.Conv2d(3, width, 1)

    def forward(self, obs: Any, state: Any = None, *, starts: Tensor | None = None) -> EncoderOutput:
        return EncoderOutput(functional.relu(self.pointwise(self.depthwise(obs / 255))).mean((2, 3)))


class PooledCatalog(PPOCatalog):
    def _get_encoder_config(self, observation_space: spaces.Space, model_config: DefaultModelConfig) -> ModelConfig:
        if observation_space == IMAGE:
            return PooledConfig()
        return super()._get_encoder_config(observation_space, model_config)


def test_one_config_trains_on_images_with_ones_own_net_and_on_vectors_with_the_default() -> None:
    config = small(rl_module_spec=RLModuleSpec(catalog_class=PooledCatalog))
    found = []
    for env in (Pictures, "CartPole-v1"):
        with config.environment(env).build() as algorithm:
            algorithm.train()
            encoder = algorithm.get_module().encoder
            assert isinstance(encoder, nn.Module)
            found.append((type(encoder.actor_encoder), algorithm.get_module().catalog.latent_dims))
    assert [net.__name__ for net, _ in found] == ["Pooled", "MLPEncoder"]
    assert [dims for _, dims in found] == [(12,), (64,)]


def test_modules_of_one_spec_may_have_catalogs_of_their_own() -> None:
    first = RLModuleSpec(PPOModule, IMAGE, ACTIONS, catalog_class=PooledCatalog)
    second = RLModuleSpec(PPOModule, OBS, ACTIONS, {"fcnet_hiddens": [7]}, PPOCatalog)
    modules = MultiRLModuleSpec({"sees": first, "feels": second}).build()
    assert {name: module.catalog.latent_dims for name, module in modules.items()} == {"sees": (12,), "feels": (7,)}
    assert {name: type(module.catalog) for name, module in modules.items()} == {
        "sees": PooledCatalog,
        "feels": PPOCatalog,
    }


def with_env(factory: Callable[[dict[str, Any]], gym.Env], **env_config: Any) -> PPOConfig:
    return small().environment(factory, env_config=env_config)


def test_a_preprocessor_is_a_wrapper_in_the_factory_and_has_options() -> None:
    def coarse(env_config: dict[str, Any]) -> gym.Env:
        every = env_config["every"]
        space = spaces.Box(0, 255, (3, 16 // every, 16 // every), np.uint8)
        return gym.wrappers.TransformObservation(Pictures(), lambda obs: obs[:, ::every, ::every], space)

    with with_env(coarse, every=4).build() as algorithm:
        algorithm.train()
        assert algorithm.get_module().observation_space.shape == (3, 4, 4)


def test_frames_of_an_atari_game_are_stacked_by_wrappers_and_read_as_they_come() -> None:
    ale_py = pytest.importorskip("ale_py")

    def pong(env_config: dict[str, Any]) -> gym.Env:
        gym.register_envs(ale_py)
        env = gym.make("ALE/Pong-v5", obs_type="grayscale", frameskip=4)
        env = gym.wrappers.TransformObservation(env, lambda obs: obs[::5, ::4], spaces.Box(0, 255, (42, 40), np.uint8))
        return gym.wrappers.FrameStackObservation(env, env_config["frames"])

    config = with_env(pong, frames=4).training(train_batch_size_per_learner=8)
    with config.build() as algorithm:
        algorithm.train()
        encoder_config = algorithm.get_module().catalog.encoder_config
        assert isinstance(encoder_config, CNNEncoderConfig)
        assert (encoder_config.image_dims, encoder_config.scale) == ((4, 42, 40), 1 / 255)
