"""Runs of SAC: its iteration, settings, checkpoints, and several learners."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from algorithms import Algorithm
from algorithms.ppo import PPOCatalog
from algorithms.registry import config_class
from algorithms.sac import SAC, SACConfig, SACLearner, SACModelConfig
from algorithms.sac.sac import FLASH
from rlmodule import RLModuleSpec
from rlmodule.collective import Collective, SingleProcess
from rlmodule.data.columns import Batch
from rlmodule.learning.sharding import shard_batch
from rlmodule.testing.data import differences
from tests.algorithms.sac.conftest import ARM, BOX, OBS, tiny
from tests.together import Fleet, digest, weights

ID = "default_policy"


def test_it_is_registered() -> None:
    assert config_class("sac") is SACConfig
    assert SACConfig().algo_class is SAC


def test_updates_keep_the_ratio_to_env_steps_exactly() -> None:
    config = tiny(training_intensity=24.0)
    with config.build() as algorithm:
        for _ in range(3):
            algorithm.train()
        learner = algorithm.learner_group.learner
        assert algorithm.env_steps == 192
        # 24 steps are trained on per step from step 32 on, in batches of 16; that rollout's own two steps count
        assert learner.num_updates == int((192 - 32 + 2) * 24 / 16)
        assert learner.targets.num_updates[ID] == learner.num_updates


@pytest.mark.parametrize("values", [{}, {"prioritized_replay": True, "n_step": (1, 3)}], ids=["plain", "prioritized"])
def test_a_run_resumes_bit_by_bit(tmp_path: Path, values: dict[str, Any]) -> None:
    with tiny(**values).build() as algorithm:
        for _ in range(2):
            algorithm.train()
        path = algorithm.save(tmp_path / "run")
        with Algorithm.from_checkpoint(path) as loaded:
            for one in (algorithm, loaded):
                one.env_runner_group.reset()
            kept = [one.train()["learners"][ID] for one in (algorithm, loaded)]
            assert kept[0] == kept[1]
            assert differences(algorithm.get_state(), loaded.get_state()) in ([], ["/metrics/seconds"])


def test_equal_seeds_give_equal_runs() -> None:
    digests = []
    for seed in (3, 3, 4):
        with tiny(seed=seed).build() as algorithm:
            algorithm.train()
            digests.append(digest(algorithm.learner_group.learner.get_state()))
    assert digests[0] == digests[1] != digests[2]


def test_net_settings_reach_the_nets() -> None:
    config = tiny(num_critics=1, initial_alpha=0.5)
    module = config.get_rl_module_spec(OBS, BOX).build()
    assert module.compute_action_values({"obs": torch.rand(3, 4)}, torch.rand(3, 2)).shape == (1, 3)  # type: ignore[operator]
    assert float(module.log_temperature().detach().exp()) == pytest.approx(0.5)  # type: ignore[operator]
    two = tiny(initial_alpha=0.5, model_config=SACModelConfig(initial_alpha=2.0))
    with pytest.raises(
        ValueError, match=r"SACConfig\.initial_alpha: expected one value, got 0\.5\. model_config has 2\.0"
    ):
        two.get_rl_module_spec(OBS, BOX)
    with pytest.raises(ValueError, match=r"num_critics: expected a catalog_class derived from SACCatalog"):
        tiny(num_critics=1, rl_module_spec=RLModuleSpec(catalog_class=PPOCatalog)).get_rl_module_spec(OBS, BOX)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"initial_alpha": 0.0}, r"initial_alpha"),
        ({"target_entropy": "automatic"}, r"target_entropy"),
        ({"epsilon": 0.1}, r"epsilon"),
        ({"tau": 1.5}, r"tau"),
        (
            {"num_steps_sampled_before_learning_starts": 8},
            r"num_steps_sampled_before_learning_starts: expected at least 16",
        ),
        ({"replay_capacity": 10}, r"replay_capacity: expected at least 16"),
        ({"training_intensity": 0.1}, r"training_intensity: expected at least"),
        ({"burn_in_len": 3}, r"burn_in_len: expected 0"),
        ({"target_entropy": 5.0}, r"target_entropy: expected less than 0\.693"),
        ({"target_entropy": 0.5, "alpha_lr": 0.0}, r"target_entropy: expected 'auto' with alpha_lr=0"),
        (
            {"num_quantiles": 5, "num_atoms": 5, "v_min": 0.0, "v_max": 1.0},
            r"num_quantiles: expected 1, since num_atoms=5, got 5\. Describe",
        ),
        ({"num_atoms": 5}, r"SACConfig\.v_min: expected a number, since num_atoms=5"),
        ({"drop_quantiles": 5, "num_quantiles": 5}, r"drop_quantiles: expected fewer than num_quantiles=5, got 5"),
        ({"drop_quantiles": 1}, r"drop_quantiles: expected fewer than num_quantiles=1"),
        ({"target_critics": 2}, r"target_critics: expected fewer than num_critics=2, got 2"),
        ({"train_batch_size_per_learner": 1, "model_config": {"fcnet_norm": "batch"}}, r"batch norm .* got 1\. Make"),
        ({"policy_value": "mean", "num_critics": 1}, r"policy_value: expected None with num_critics=1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_settings_are_refused_when_a_run_is_built(values: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError), match=message):
        tiny(**values).build()


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "box": (BOX, {"model_config": {"fcnet_hiddens": [16], "normalize_observations": True}, "prioritized_replay": True}),
    "mixture": (ARM, {"n_step": 3}),
    "conservative": (BOX, {"cql_alpha": 1.0, "cql_num_actions": 2}),
    "recurrent": (
        BOX,
        {
            "model_config": {"fcnet_hiddens": [16], "use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4},
            "burn_in_len": 2,
            "num_steps_sampled_before_learning_starts": 64,
        },
    ),
}


class Wandering(gym.Env[Any, Any]):
    """Random observations, and rewards that depend on nothing else."""

    def __init__(self, action_space: gym.Space) -> None:
        self.observation_space, self.action_space, self.t = OBS, action_space, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._observe(), {}

    def _observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        obs = self._observe()
        return obs, float(obs[0]), self.t == 9, False, {}


def learn(collective: Collective, config: SACConfig, spec: Any, batches: list[Batch | None]) -> dict[str, Any]:
    """Take an update with each of ``batches``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        learner = SACLearner(config, spec, run_seed=1)
    learner.connect(collective)
    for i, batch in enumerate(batches):
        learner.step_on_batch(batch, env_steps=8 * i)
    return {"weights": weights(learner), "digest": digest(learner.get_state())}


@pytest.mark.parametrize("kind", list(KINDS))
def test_several_learners_come_to_what_one_does(fleet: Fleet, kind: str) -> None:
    space, values = KINDS[kind]
    config = tiny(lambda env_config: Wandering(space), **{"train_batch_size_per_learner": 24, "lr": 1e-3} | values)
    with config.build() as algorithm:
        assert isinstance(algorithm, SAC)
        algorithm.train()
        module = algorithm.get_module()
        spec = config.get_rl_module_spec(module.observation_space, module.action_space).as_multi()
        batches = [algorithm.replay.sample(24).batch for _ in range(6)]
    one = learn(SingleProcess(), config.copy().update({"env": None}).freeze(), spec, batches)
    for size in (2, 3):
        shared = config.copy().update({"env": None, "train_batch_size_per_learner": 24 // size}).freeze()
        shards = [shard_batch(batch, size) for batch in batches]
        args = [(shared, spec, [shard[rank] for shard in shards]) for rank in range(size)]
        several = fleet.values(learn, *args)
        assert len({each["digest"] for each in several}) == 1
        for each in several:
            assert float((each["weights"] - one["weights"]).abs().max()) <= 1e-6
    alone = fleet.values(
        learn, *[(config.copy().update({"env": None}).freeze(), spec, b) for b in (batches, [None] * 6)]
    )
    assert alone[0]["digest"] == alone[1]["digest"]


NORMED = {"fcnet_hiddens": [8, 8], "fcnet_blocks": "simba", "fcnet_norm": "batch"}


@pytest.mark.parametrize("memory", [{}, {"use_lstm": True, "lstm_cell_size": 8, "max_seq_len": 4}], ids=["", "LSTM"])
def test_learners_with_batch_norm_stay_equal(fleet: Fleet, memory: dict[str, Any]) -> None:
    config = tiny(lambda env_config: Wandering(BOX), **FLASH | {"model_config": NORMED | memory})
    config.training(train_batch_size_per_learner=24, num_steps_sampled_before_learning_starts=64)
    with config.build() as algorithm:
        algorithm.train()
        module, replay = algorithm.get_module(), algorithm.replay  # type: ignore[attr-defined]
        spec = config.get_rl_module_spec(module.observation_space, module.action_space).as_multi()
        shards = [shard_batch(replay.sample(24).batch, 2) for _ in range(4)]
    shards.append([replay.sample(24).batch, None])
    config = config.copy().update({"env": None}).freeze()
    first, second = fleet.values(learn, *[(config, spec, [shard[rank] for shard in shards]) for rank in range(2)])
    assert first["digest"] == second["digest"]


def test_target_nets_copy_statistics_and_follow_weights() -> None:
    config = tiny(lambda env_config: Wandering(BOX), **FLASH | {"model_config": NORMED})
    with config.build() as algorithm:
        algorithm.train()
        learner = algorithm.learner_group.learner
        module, target = learner.module[ID], learner.target[ID]  # type: ignore[attr-defined]
        statistics = {name: x for name, x in module.qf.named_buffers() if "running" in name}
        assert len(statistics) == 4
        for name, x in statistics.items():
            assert x.any()
            assert torch.equal(target.qf.get_buffer(name), x)
        assert all(not torch.equal(target.qf.get_parameter(name), x) for name, x in module.qf.named_parameters())
        acting = algorithm.env_runner_group.module
        for name, x in acting.named_buffers():
            assert torch.equal(x, module.get_buffer(name))


def test_flash_is_sac_with_other_settings() -> None:
    config = SACConfig.flash(gamma=0.9)
    assert (config.num_atoms, config.v_min, config.v_max, config.gamma) == (101, -5, 5, 0.9)
    assert config.normalize_rewards
    module: Any = config.get_rl_module_spec(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(-1, 1, (2,))).build()
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm1d)]
    assert [part.num_features for part in norms] == [64, 64, 64, 2 * 128, 2 * 128, 2 * 128]
    assert module.qf(torch.zeros(5, 3), torch.zeros(5, 2)).shape == (2, 5, 101)


def test_the_plain_settings_are_the_published_ones() -> None:
    config = SACConfig.plain(gamma=0.9)
    published = config.lr, config.train_batch_size_per_learner, config.training_intensity, config.tau, config.n_step
    assert published == (3e-4, 256, 256, 0.005, 1)
    assert (config.target_entropy, config.initial_alpha, config.gamma) == ("auto", 1, 0.9)
    spec = config.get_rl_module_spec(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(-1, 1, (2,)))
    module = spec.build()
    assert [name for name, _ in module.named_buffers() if "normalizer" in name] == []
    critics = module.get_submodule("qf")
    assert [tuple(p.shape[1:]) for p in critics.parameters() if p.shape[1] > 1] == [(5, 256), (256, 256), (256, 1)]
    with pytest.raises(TypeError, match="expected the class, got a config"):
        config.plain()
