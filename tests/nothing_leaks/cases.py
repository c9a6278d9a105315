"""Learners of all algorithms with data for them, in float64.

Algorithms come from the registry, and scenes are used by the algorithms that have their settings, so that a new
algorithm is covered as it is. A new kind of data, such as another way to draw from replay, is a scene.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
import tree
from torch import Tensor, nn

from algorithms import AlgorithmConfig
from algorithms.registry import ALGORITHMS, config_class
from algorithms.replay.buffer import ReplayBuffer
from catalog.base import as_encoder
from catalog.settings import settings_of
from rlmodule import Columns, MultiRLModuleSpec, RLModule, RLModuleSpec, Rollout
from rlmodule.data.rollout import random_observations
from rlmodule.learning.episode_learner import EpisodeLearner
from rlmodule.learning.learner import Learner
from rlmodule.learning.target_nets import TargetedLearner
from rlmodule.seeding import seed_sequence
from rlmodule.testing.data import random_rollout
from tests.settings_act.footprint import SMALL, Slope, Track

STEPS, SLOTS, LENGTH = 13, 4, 4
"""Time steps and slots of a rollout, and steps of a sequence, of which the last one of a rollout is padded."""
ID = "default_policy"


def memory(kind: str, **more: Any) -> dict[str, Any]:
    size = {"attention_memory": 3} if kind == "use_attention" else {"lstm_cell_size": 5}
    return {"model_config": {kind: True, **size, "max_seq_len": LENGTH, **more}}


SCENES: dict[str, dict[str, Any]] = {
    "plain": {"model_config": {"normalize_observations": True}},
    "LSTM": memory("use_lstm", normalize_observations=True),
    "GRU": memory("use_gru"),
    "attention": memory("use_attention"),
    "two memories": memory("use_lstm", vf_share_layers=False),
    "batch norm": {"normed": True},
    "LSTM and batch norm": {"normed": True, **memory("use_lstm")},
    # the gradient of a bias before batch norm is rounding alone, which Adam makes as large as lr
    "batch norm of the settings": {"lr": 1e-5, **memory("use_lstm", fcnet_norm="batch")},
    "3 steps": {"n_step": 3},
    "prioritized": {"n_step": 2, "prioritized_replay": True},
    "LSTM, burn-in, prioritized": {"n_step": 2, "prioritized_replay": True, "burn_in_len": 2, **memory("use_lstm")},
    "attention, 3 steps": {"n_step": 3, **memory("use_attention")},
    "atoms": {"num_atoms": 5, "v_min": -9.0, "v_max": 9.0},
    "LSTM, quantiles": {"num_quantiles": 5, "n_step": 2, **memory("use_lstm")},
    "novelty": {"rnd_coeff": 0.5, "model_config": {"normalize_observations": True}},
    "LSTM, novelty": {"rnd_coeff": 0.5, **memory("use_lstm")},
    "novelty and batch norm": {"rnd_coeff": 0.5, "normed": True},
    "conservative": {"cql_alpha": 2.0},
    "LSTM, conservative": {"cql_alpha": 2.0, "n_step": 2, **memory("use_lstm")},
    "drawn to the data": {"bc_coeff": 0.5, "critic_bc_coeff": 0.5, "n_step": 2},
    "LSTM, drawn to the data": {"bc_coeff": 0.5, "critic_bc_coeff": 0.5, **memory("use_lstm")},
    "a few of many critics": {"num_critics": 4, "target_critics": 2, "num_quantiles": 3, "drop_quantiles": 1},
}
"""Settings of learners. A scene is left out for an algorithm that lacks one of its settings. Hindsight, which needs
goals, is in ``tests/algorithms/replay/test_hindsight.py``."""
FIRST = ("plain", "LSTM", "3 steps", "novelty")
"""Scenes of the first stage."""
SECOND = ("A2C", "DDPG", "IMPALA")
"""Algorithms of the second stage: all that their learners do, APPO's and TD3's do, too."""


class Normed(nn.Module):
    """A layer and batch norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(width, 6), nn.BatchNorm1d(6)

    def forward(self, obs: Tensor) -> Tensor:
        rows = self.norm(self.layer(obs).flatten(0, -2))
        return rows.unflatten(0, obs.shape[:-1])


class InFloat64(RLModuleSpec):
    """Builds modules in float64."""

    def build(self, **options: Any) -> RLModule:
        return super().build(**options).double()


@dataclass(frozen=True)
class Case:
    """An algorithm in a scene.

    Attributes:
        algorithm: Its name in the registry.
        scene: A key of :data:`SCENES`.
        settings: Settings on top of those of the scene.
    """

    algorithm: str
    scene: str = "plain"
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __str__(self) -> str:
        return f"{self.algorithm}-{self.scene}"

    def having(self, **settings: Any) -> Case:
        """Return the same case with ``settings`` on top, as far as the algorithm has them. Those of ``model_config``
        are added to the others."""
        known = settings_of(config_class(self.algorithm))
        more = {name: value for name, value in settings.items() if name in known}
        if "model_config" in settings:
            more["model_config"] = {**self.settings.get("model_config", {}), **settings["model_config"]}
        return replace(self, settings={**self.settings, **more})

    @property
    def config(self) -> AlgorithmConfig:
        chosen = config_class(self.algorithm)
        known, scene = settings_of(chosen), dict(SCENES[self.scene])
        normed = scene.pop("normed", False)
        few_steps = {"n_step": 3} if "beta" in known and chosen().beta else {}
        values = (
            {name: value for name, value in SMALL.items() if name in known} | few_steps | scene | dict(self.settings)
        )
        nets = {"fcnet_hiddens": [6], **scene.get("model_config", {}), **self.settings.get("model_config", {})}
        config = chosen(**values | {"env": env_of(self.algorithm), "model_config": nets})
        if normed:
            config.rl_module(rl_module_spec=RLModuleSpec(catalog_class=normed_catalog(chosen)))
        return config

    @property
    def is_stateful(self) -> bool:
        return "max_seq_len" in SCENES[self.scene].get("model_config", {})

    @property
    def learns_from_episodes(self) -> bool:
        return issubclass(config_class(self.algorithm)().default_learner_class(), EpisodeLearner)

    @property
    def is_refused(self) -> bool:
        """Whether the algorithm refuses the scene."""
        spec: Any = self.spec(self.config)
        try:
            self.config.validate()
            spec.catalog_class(spec.observation_space, spec.action_space, spec.model_config)
        except ValueError:
            return True
        return False

    def spec(self, config: AlgorithmConfig) -> RLModuleSpec:
        env = env_of(self.algorithm)
        return config.get_rl_module_spec(env.observation_space, env.action_space)

    def learner(self, module_ids: tuple[str, ...] = (ID,), **more: Any) -> Learner:
        """Return a new learner in float64, with a module of the same weights at each call."""
        config = self.config.update(more)
        config.freeze()
        spec = InFloat64(**vars(self.spec(config)))
        modules = MultiRLModuleSpec(
            dict.fromkeys(module_ids, spec), shared_parts=getattr(config, "shared_parts", None) or {}
        )
        # probes of nets are in float32
        with mock.patch("rlmodule.learning.learner.check_module"), torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            learner = config.default_learner_class()(config, modules, run_seed=1)
        if isinstance(learner, TargetedLearner) and self.learns_from_episodes:
            # a target policy that equals the module's makes losses 0, of which only rounding is left to compare
            for tensor in learner.target.parameters():
                tensor.data.mul_(1.5)
        return learner

    def module(self) -> RLModule:
        """Return a module that acts, in float32."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            return self.spec(self.config).build()

    def rollout(self, seed: int = 0, steps: int = STEPS, slots: int = SLOTS) -> Rollout:
        """Return a rollout with episodes that end in both ways, invalid rows after them, and episodes left open. It
        lists the true final observations that runners with the same settings list. Change only copies of it."""
        return _rollout(self, seed, steps, slots)

    def batches(self, num: int = 2, seed: int = 0) -> list[Any]:
        """Return batches that the algorithm draws from its replay of three rollouts."""
        return [in_float64(batch) for batch in _batches(self, num, seed)]

    def drawn(self, rollouts: Sequence[Rollout], num: int, size: int) -> list[Any]:
        """Return ``num`` batches of ``size`` steps that the algorithm draws from its replay of ``rollouts``."""
        config: Any = self.config
        algorithm: Any = object.__new__(config.algo_class)  # only its settings of buffers are needed
        settings = algorithm._buffer_settings(config, self.module())
        replay = ReplayBuffer(**settings, capacity=400, num_envs=SLOTS, seed=seed_sequence(1, "replay"))
        for rollout in rollouts:
            replay.add(rollout)
        return [in_float64(replay.sample(size).batch) for _ in range(num)]


@cache
def _rollout(case: Case, seed: int, steps: int, slots: int) -> Rollout:
    module = case.module()
    rollout = random_rollout(module, steps, slots, seed)
    if case.config.records_final_obs == "truncated":
        return rollout
    index = ended(rollout).nonzero()
    final_obs = random_observations(module.input_space, len(index), seed + 1)
    return replace(rollout, final_index=index, final_obs=final_obs)


@cache
def _batches(case: Case, num: int, seed: int) -> list[Any]:
    return case.drawn([case.rollout(seed + i) for i in range(3)], num, 24)


@cache
def env_of(algorithm: str) -> Any:
    """Return the first env whose actions suit the algorithm."""
    chosen, errors = config_class(algorithm), []
    for env in (Track, Slope):
        try:
            spec = chosen(model_config={"fcnet_hiddens": [6]}).get_rl_module_spec(
                env.observation_space, env.action_space
            )
            with torch.random.fork_rng(devices=[]):
                spec.build()
            return env
        except ValueError as error:
            errors.append(error)
    raise AssertionError(f"{algorithm}: no env to begin with: {errors}")


@cache
def normed_catalog(config: type[AlgorithmConfig]) -> type[Any]:
    """Return the catalog of an algorithm with batch norm in its encoders."""
    default: Any = config().default_rl_module_spec().catalog_class

    class NormedCatalog(default):
        """Puts batch norm into encoders."""

        def build_encoder(self) -> Any:
            normed = Normed(self.observation_space.shape[0])
            if not self.model_config.is_recurrent:
                return normed
            encoder = super().build_encoder()
            encoder.tokenizer = as_encoder(normed)
            return encoder

    return NormedCatalog


def cases(*scenes: str, episodes: bool | None = None, first: tuple[str, ...] = FIRST) -> Any:
    """Return parameters of a test: all algorithms in all scenes that they have the settings for, or in ``scenes``
    alone. Those of scenes that are not among the ``first``, and of :data:`SECOND`, belong to the second stage.

    Args:
        scenes: Keys of :data:`SCENES`.
        episodes: True leaves only algorithms that learn from episodes, False only the others.
        first: Scenes of the first stage.
    """
    found = []
    for case in _accepted():
        if scenes and case.scene not in scenes:
            continue
        if episodes is None or case.learns_from_episodes is episodes:
            is_first = case.scene in first and case.algorithm not in SECOND
            marks = () if is_first else pytest.mark.end_to_end
            found.append(pytest.param(case, id=str(case), marks=marks))
    return found


@cache  # each test asks for some of them, and to find out takes a second
def _accepted() -> list[Case]:
    """Return all algorithms in all scenes that they have the settings for and do not refuse."""
    accepted = []
    for algorithm in ALGORITHMS:
        known = settings_of(config_class(algorithm))
        for name, scene in SCENES.items():
            has_settings = scene.keys() - {"normed"} <= known.keys()
            if has_settings and not (case := Case(algorithm, name)).is_refused:
                accepted.append(case)
    return accepted


_FUSED_ADAM = torch._fused_adam_


def _fused_adam(*tensors: Any, found_inf: Tensor, **options: Any) -> None:
    """Call the kernel of Adam, which takes this one number in float32 alone."""
    _FUSED_ADAM(*tensors, found_inf=found_inf.to(torch.float32), **options)


@contextmanager
def float64() -> Iterator[None]:
    """Within the block, new tensors are in float64, and what is made a float is, too."""
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch.object(Tensor, "float", Tensor.double), mock.patch.object(torch, "_fused_adam_", _fused_adam):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


def in_float64(data: Any) -> Any:
    """Return a copy of a rollout or batch with all floats in float64."""
    if isinstance(data, Rollout):
        names = ("columns", "last_obs", "final_obs", "final_index", "state_in")
        return replace(data, **{name: in_float64(getattr(data, name)) for name in names})

    def copied(leaf: Any) -> Any:
        is_float = leaf is not None and leaf.is_floating_point()
        return leaf.to(torch.float64, copy=True) if is_float else None if leaf is None else leaf.clone()

    return tree.map_structure(copied, data)


def times_a_million(column: Tensor, where: Tensor) -> None:
    """Multiply the entries of ``column`` ``[*where, ...]`` that ``where`` marks by 10⁶, or if they are choices, replace
    them with the first one."""
    if column.is_floating_point():
        column[where] = column[where] * 1e6 + 1e6
    elif column.dtype is not torch.bool:
        column[where] = 0


def not_a_number(column: Tensor, where: Tensor) -> None:
    """Replace the numbers of ``column`` that ``where`` marks with NaN."""
    if column.is_floating_point():
        column[where] = torch.nan


def on_leaves(spoil: Any, column: Any, where: Tensor) -> None:
    for leaf in tree.flatten(column):
        spoil(leaf, where)


def ended(rollout: Rollout) -> Tensor:
    return rollout[Columns.TERMINATEDS] | rollout[Columns.TRUNCATEDS]


def one_after_another(rollout: Rollout, seed: int = 0) -> Rollout:
    """Return ``rollout`` as with same-step autoreset: all rows are valid, and an episode starts after each end."""
    generator = torch.Generator().manual_seed(seed)
    columns = {**rollout.columns}
    shape = rollout.shape
    columns[Columns.VALID] = torch.ones(shape, dtype=torch.bool)
    columns[Columns.REWARDS] = torch.randn(shape, generator=generator).to(rollout[Columns.REWARDS].dtype)
    starts = torch.ones(shape, dtype=torch.bool)
    starts[1:] = ended(rollout)[:-1]
    columns[Columns.STARTS] = starts
    return replace(copy.copy(rollout), columns=columns, state_in=None)
