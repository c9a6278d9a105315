"""What docs/coming-from-rllib.md says: what raises there raises, and what its users asked for is there."""

from __future__ import annotations

import builtins
import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from algorithms.dqn import DQNConfig
from algorithms.ppo import PPOCatalog, PPOConfig, PPOLearner
from algorithms.run.run_folder import flatten
from catalog import (
    ActorCriticEncoderConfig,
    Catalog,
    CNNEncoderConfig,
    DefaultModelConfig,
    Deterministic,
    Distribution,
    FreeLogStdMLPHeadConfig,
    ImpalaEncoderConfig,
    MLPEncoderConfig,
    MLPHeadConfig,
    ModelConfig,
    MultiStreamEncoderConfig,
    RecurrentEncoderConfig,
    SequenceEncoderConfig,
)
from rlmodule import (
    Columns,
    Dataset,
    MultiRLModuleSpec,
    RLModule,
    RLModuleSpec,
    Rollout,
    ValueFunctionAPI,
)

ROOT = Path(__file__).parents[1]
PAGE, CONNECTORS = (ROOT / "docs" / f"{name}.md" for name in ("coming-from-rllib", "connectors"))
DEMANDS = ROOT / "tests" / "demands.md"
OBS, ACTIONS = spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(2)
IMAGE = spaces.Box(0, 255, (3, 16, 16), np.uint8)


def small(**rl_module: Any) -> PPOConfig:
    config = PPOConfig().environment("CartPole-v1").env_runners(num_envs_per_env_runner=2).debugging(seed=1)
    config.training(train_batch_size_per_learner=64, minibatch_size=None, num_epochs=2)
    return config.rl_module(**rl_module)


# --- what raises ------------------------------------------------------------------------------------------------------

RAISING = re.findall(r"^\| `((?:PPO|DQN).+?)` \| (\w+Error) \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.M)


def test_the_table_of_what_raises_is_read() -> None:
    assert len(RAISING) > 10


@pytest.mark.parametrize(("written", "error", "remedy"), RAISING)
def test_what_is_said_to_raise_raises_and_says_what_to_write(written: str, error: str, remedy: str) -> None:
    names = {"PPOConfig": PPOConfig, "PPOCatalog": PPOCatalog, "DQNConfig": DQNConfig, "spaces": (OBS, ACTIONS)}
    names["MultiRLModuleSpec"] = MultiRLModuleSpec
    with pytest.raises(vars(builtins)[error]) as caught:
        eval(written, names)
    asked = re.findall(r"\w+(?==)|(?<=\")\w+(?=\":)|(?<=\.)\w+(?=\()", written)  # keywords, keys and methods
    assert any(name in str(caught.value) for name in asked), caught.value
    ours = re.findall(r"\w{4,}", " ".join(re.findall(r"`(.+?)`", remedy)))
    assert not ours or any(name in str(caught.value) for name in ours), caught.value


# --- what has been asked for ------------------------------------------------------------------------------------------

ASKED = re.findall(r"^\| (S\d-\d\d) \| (.+) \| (.+) \| (.+) \|$", DEMANDS.read_text(encoding="utf-8"), re.M)
NUMBERED = [f"S{group}-{i:02}" for group, last in enumerate((11, 25, 25, 19)) for i in range(1, last + 1)]


def test_every_request_has_one_line() -> None:
    ids = [row[0] for row in ASKED]
    assert ids == sorted(set(ids))
    assert not {*NUMBERED} - {*ids}


@pytest.mark.parametrize("row", ASKED, ids=[row[0] for row in ASKED])
def test_every_request_names_a_test_or_says_when(row: tuple[str, ...]) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row[-1])
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
    assert not missing
    assert named or re.search(r"\bwith the rarer nets|\blater\b", row[-1])


# RLlib's connectors: those it ships for users, and those of its default pipelines.
CONNECTORS_OF_RLLIB = re.findall(
    r"\w+",
    """
    FlattenObservations FrameStacking MeanStdFilter PrevActionsPrevRewards SingleAgentObservationPreprocessor
    MultiAgentObservationPreprocessor WriteObservationsToEpisodes ComputeReturnsToGo AddInfosFromEpisodesToTrainBatch
    AddObservationsFromEpisodesToBatch AddTimeDimToBatchAndZeroPad AddStatesFromEpisodesToBatch AgentToModuleMapping
    BatchIndividualItems NumpyToTensor GetActions TensorToNumpy UnBatchToIndividualItems ModuleToAgentUnmapping
    RemoveSingleTsTimeRankFromBatch NormalizeAndClipActions ListifyDataForVectorEnv AddColumnsFromEpisodesToTrainBatch
    AddOneTsToEpisodesAndTruncate GeneralAdvantageEstimation AddNextObservationsFromEpisodesToTrainBatch
    """,
)


def test_every_connector_of_rllib_has_its_place() -> None:
    rows = re.findall(r"^\| (`.+`) \| (.+) \|$", CONNECTORS.read_text(encoding="utf-8"), re.M)
    named = [name for pieces, here in rows if here for name in re.findall(r"`(\w+)`", pieces)]
    assert sorted(named) == sorted(CONNECTORS_OF_RLLIB)


def test_every_key_of_a_result_is_reported() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("### Keys of a result")[2].partition("\n### ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([\w/]+)`", row[1])}
    assert len(named) > 8
    with small().training(use_kl_loss=True, entropy_coeff=[[0, 0.1], [1000, 0.0]]).build() as algorithm:
        assert named - dict(flatten(algorithm.train())).keys() == set()


def test_columns_that_rllib_records_are_read_as_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = np.arange(20, dtype=np.float32).reshape(5, 4)
    rows = {
        "obs": [*map(list, seen[:-1])],
        "new_obs": [*map(list, seen[1:])],
        "actions": [0, 1, 1, 0],
        "rewards": [1.0] * 4,
        "terminateds": [False] * 4,
        "truncateds": [False, False, False, True],
    }
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "part.parquet")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"Dataset": Dataset, "env": gym.make("CartPole-v1")}
    (code,) = re.findall(r"```python\n(columns = .+?)```", PAGE.read_text(encoding="utf-8"), re.S)
    exec(code, names)
    data = names["data"]
    assert (data.num_steps, data.truncated.tolist(), data.terminated.tolist()) == (4, [True], [False])
    assert np.array_equal(data.final_observations, seen[-1:])


def test_the_page_ends_with_what_helps() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", page, re.M)[-1] == "Where to go next"
    assert not re.search(r"\bS\d-\d\d\b", page)


# The names of RLlib's model settings, old and new; groups of alike ones by their beginning.
INITIALIZERS = ("kernel_initializer", "kernel_initializer_kwargs", "bias_initializer", "bias_initializer_kwargs")
OLD_SETTINGS = [
    *(f"{part}_{name}" for part in ("fcnet", "conv", "head_fcnet", "fusionnet", "lstm") for name in INITIALIZERS),
    *(f"{part}_{name}" for part in ("fcnet", "head_fcnet") for name in ("hiddens", "activation", "use_layernorm")),
    *("conv_filters", "conv_activation", "conv_transpose_", "fusionnet_hiddens", "fusionnet_activation"),
    *("post_fcnet_", "no_final_linear", "free_log_std", "log_std_clip_param", "vf_share_layers"),
    *("use_lstm", "max_seq_len", "lstm_cell_size", "lstm_use_prev_action", "lstm_use_prev_reward", "use_attention"),
    *("framestack", "dim", "grayscale", "zero_mean", "custom_preprocessor", "encoder_latent_dim"),
    *("custom_model", "custom_model_config", "custom_action_dist", "always_check_shapes"),
]


def test_every_model_setting_of_rllib_is_there_or_its_place_is_told() -> None:
    ours = {field.name for field in dataclasses.fields(DefaultModelConfig)}
    message = " ".join(written for written, *_ in RAISING)
    assert [
        name for name in OLD_SETTINGS if name not in ours and f'"{name.removesuffix("_kwargs")}' not in message
    ] == []


# --- catalogs ---------------------------------------------------------------------------------------------------------


def test_one_catalog_builds_as_many_nets_as_asked() -> None:
    catalog = PPOCatalog(OBS, ACTIONS)
    decided = catalog.encoder_config
    first, second = catalog.build_encoder(), catalog.build_encoder()
    assert catalog.encoder_config is decided
    assert not {id(p) for p in first.parameters()} & {id(p) for p in second.parameters()}
    assert not any(isinstance(value, nn.Module) for value in vars(catalog).values())


def test_the_base_catalog_knows_encoders_only() -> None:
    names = {name for name in dir(Catalog) if name.startswith("build_")}
    assert {"build_encoder", "build_actor_critic_encoder"} <= names
    assert {name for name in dir(PPOCatalog) if name.startswith("build_")} - names == {"build_pi_head", "build_vf_head"}
    assert not any("head" in name for name in names)


def test_configs_know_their_output_before_they_build() -> None:
    encoder = MLPEncoderConfig(input_dims=(3,), hidden_layer_dims=(8, 5))
    configs = [
        encoder,
        ActorCriticEncoderConfig(base_encoder_config=encoder),
        MLPHeadConfig(input_dims=(5,), output_layer_dim=2),
        FreeLogStdMLPHeadConfig(input_dims=(5,), output_layer_dim=6),
    ]
    assert [config.output_dims for config in configs] == [(5,), (5,), (2,), (6,)]
    assert encoder.build()(torch.zeros(7, 3)).latent.shape == (7, 5)
    assert configs[1].build()(torch.zeros(7, 3)).critic.shape == (7, 5)
    assert [config.build()(torch.zeros(7, 5)).shape for config in configs[2:]] == [(7, 2), (7, 6)]


@pytest.mark.parametrize(
    ("config", "obs", "width"),
    [
        (CNNEncoderConfig(input_dims=(9, 9, 2), dense_dim=None), torch.zeros(7, 9, 9, 2), 32 * 5 * 5),
        (ImpalaEncoderConfig(input_dims=(2, 9, 9), dense_dim=6), torch.zeros(7, 2, 9, 9), 6),
        (SequenceEncoderConfig(input_dims=(4, 3), hidden_dim=6), torch.zeros(7, 4, 3), 6),
        (MLPEncoderConfig(input_space=spaces.Discrete(3), embedding_dim=6), torch.zeros(7).long(), 64),
        (MLPEncoderConfig(input_space=spaces.Discrete(3), hidden_layer_dims=()), torch.zeros(7).long(), 3),
        (
            MultiStreamEncoderConfig(
                encoders={
                    "a": MLPEncoderConfig(input_space=OBS, hidden_layer_dims=()),
                    "b": MLPEncoderConfig(input_dims=(3,)),
                },
                fusion_hidden_dims=(),
            ),
            {"a": torch.zeros(7, 4), "b": torch.zeros(7, 3)},
            68,
        ),
        (RecurrentEncoderConfig(tokenizer_config=MLPEncoderConfig(input_dims=(3,))), torch.zeros(1, 7, 3), 64),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ModelConfig) else "",
)
def test_configs_of_encoders_know_theirs(config: ModelConfig, obs: Any, width: int) -> None:
    assert config.output_dims == (width,)
    assert config.build()(obs).latent.shape[-2:] == (7, width)


class FromScratch(Distribution):
    """A categorical that shares no code with ours; it draws its samples itself."""

    def __init__(self, logits: Tensor) -> None:
        self.torch = torch.distributions.Categorical(logits=logits)

    @classmethod
    def from_logits(cls, logits: Tensor) -> FromScratch:
        return cls(logits)

    @classmethod
    def required_input_dim(cls, space: spaces.Space) -> int:
        assert isinstance(space, spaces.Discrete)
        return int(space.n)

    def sample(self, generator: torch.Generator | None = None) -> Tensor:
        return torch.multinomial(self.torch.probs.detach(), 1, generator=generator).squeeze(-1)

    def logp(self, actions: Tensor) -> Tensor:
        return self.torch.log_prob(actions)

    def entropy(self) -> Tensor:
        return self.torch.entropy()

    def kl(self, other: Distribution) -> Tensor:
        assert isinstance(other, FromScratch)
        return torch.distributions.kl_divergence(self.torch, other.torch)

    def to_deterministic(self) -> Deterministic:
        return Deterministic(self.torch.probs.argmax(-1))


class FromScratchCatalog(PPOCatalog):
    def _get_dist_cls_from_action_space(self, action_space: spaces.Space) -> type[Distribution]:
        return FromScratch


@pytest.mark.parametrize(
    "spec",
    [RLModuleSpec(catalog_class=FromScratchCatalog), RLModuleSpec(model_config={"custom_action_dist": FromScratch})],
    ids=["hook", "setting"],
)
def test_a_distribution_written_from_scratch_trains(spec: RLModuleSpec) -> None:
    config = small(rl_module_spec=spec).training(use_kl_loss=True)
    with config.build() as algorithm:
        before = [p.clone() for p in algorithm.get_module().parameters()]
        reported = algorithm.train()["learners"]["default_policy"]
        assert 0 < reported["entropy"] < 0.7
        assert not all(torch.equal(a, b) for a, b in zip(before, algorithm.get_module().parameters(), strict=True))
        assert algorithm.policy.act(OBS.sample())[0] in (0, 1)


# --- modules and learners ---------------------------------------------------------------------------------------------


class TwoTrunks(RLModule, ValueFunctionAPI):
    """Never shares layers, whatever the settings say."""

    def setup(self) -> None:
        self.policy = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.value = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def _forward(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.policy(batch[Columns.OBS])}

    def compute_values(self, batch: Mapping[str, Any], embeddings: Tensor | None = None) -> Tensor:
        return self.value(batch[Columns.OBS]).squeeze(-1)


def test_a_module_of_ones_own_takes_the_place_and_may_ignore_hints() -> None:
    spec = RLModuleSpec(module_class=TwoTrunks, model_config={"vf_share_layers": True})
    with small(rl_module_spec=spec).build() as algorithm:
        module = algorithm.get_module()
        assert type(module) is TwoTrunks
        assert type(module.catalog) is PPOCatalog  # the default is still there, for what the module does not make
        before = {name: p.clone() for name, p in module.named_parameters()}
        algorithm.train()
        assert not any(torch.equal(before[name], p) for name, p in module.named_parameters())


class ClippedRewards(PPOLearner):
    def preprocess_train_data(self, rollout: Rollout) -> Rollout:
        rewards = rollout[Columns.REWARDS].clamp(-0.5, 0.5)
        return dataclasses.replace(rollout, columns=rollout.columns | {Columns.REWARDS: rewards})

    def make_train_batch(self, module_id: str, rollout: Rollout) -> Any:
        self.seen = rollout[Columns.REWARDS]
        return super().make_train_batch(module_id, rollout)


def test_rewards_are_clipped_for_training_only() -> None:
    with small().learners(learner_class=ClippedRewards).build() as algorithm:
        result = algorithm.train()
        learner = algorithm.learner_group.learner
        assert isinstance(learner, ClippedRewards)
        assert (learner.seen == 0.5).all()  # CartPole pays 1 a step
        assert result["env_runners"]["episode_return_mean"] == result["env_runners"]["episode_len_mean"]
