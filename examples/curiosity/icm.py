"""Intrinsic curiosity (Pathak et al. 2017) for any algorithm: a part for its module and one for its learner.

What an agent cannot foresee, it is rewarded for seeing. The features it foresees are a further output of its nets that
is called ``curiosity``; ``model_config`` says whether that sits on the encoder of the policy or of the action values,
or on its ``"own"``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gymnasium import spaces
from torch import Tensor, cat, nn
from torch.nn import functional

from algorithms.dqn import DQNConfig, DQNLearner, DQNModule
from algorithms.ppo import PPOLearner, PPOModule
from catalog import Tree
from rlmodule import (
    DEFAULT_MODULE_ID,
    Batch,
    BatchLearner,
    Columns,
    EpisodeLearner,
    ExtraLoss,
    ExtraLossAPI,
    InferenceOnlyAPI,
    MultiRLModuleSpec,
    RLModule,
    Rollout,
)

OUTPUT = "curiosity"
"""What the features are called in ``model_config.functions``."""
ETA = 0.01
"""Reward per unit of the forward model's error (η of eq. 6)."""
BETA = 0.2
"""Share of the forward model in the loss; the inverse model has the rest (β of eq. 7)."""


class Curiosity(nn.Module):
    """Two models between the features ``[..., D]`` of an observation and of the next one."""

    def __init__(self, num_features: int, num_actions: int, width: int = 64) -> None:
        super().__init__()
        self.num_actions = num_actions
        self.inverse_model = _net(2 * num_features, width, num_actions)
        self.forward_model = _net(num_features + num_actions, width, num_features)

    def inverse_errors(self, features: Tensor, following: Tensor, actions: Tensor) -> Tensor:
        """Return -log p of the action that led from one to the other, ``[B]`` for ``[B, D]`` (eq. 2, 3)."""
        return functional.cross_entropy(self.inverse_model(cat([features, following], -1)), actions, reduction="none")

    def forward_errors(self, features: Tensor, following: Tensor, actions: Tensor) -> Tensor:
        """Return half the squared distance of the predicted features to the true ones, ``[...]`` (eq. 4, 5)."""
        taken = functional.one_hot(actions, self.num_actions).to(features.dtype)
        return (self.forward_model(cat([features, taken], -1)) - following).square().sum(-1) / 2


def _net(inputs: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))


class CuriosityAPI(ABC):
    """The module is curious."""

    @abstractmethod
    def intrinsic_rewards(self, batch: Mapping[str, Tree]) -> Tensor:
        """Rewards ``[...]`` for the ``next_obs`` that ``actions`` on ``obs`` led to; 0 in ``terminateds``."""


class CuriousModule(RLModule, CuriosityAPI, ExtraLossAPI, InferenceOnlyAPI):
    """To be named before a module that has further outputs, of whatever algorithm."""

    def setup(self) -> None:
        super().setup()
        sizes, actions = self.catalog.extra_outputs, self.action_space
        if OUTPUT not in sizes:
            remedy = f"Add {OUTPUT!r}: {{'output_dim': 32}}."
            raise self._unfit("model_config.functions", f"an output called {OUTPUT!r}", [*sizes], remedy)
        if not isinstance(actions, spaces.Discrete):
            raise self._unfit("action_space", "a Discrete space", actions, "Write an inverse model for others.")
        if self.is_stateful():
            raise self._unfit("model_config", "no recurrent net", "one", "Leave use_lstm and use_gru out.")
        self.curiosity = Curiosity(sizes[OUTPUT], int(actions.n))

    def _unfit(self, where: str, expected: str, got: Any, remedy: str) -> ValueError:
        where = f"{where} of {type(self).__name__}"
        return ValueError(f"{where}: expected {expected}, got {got}. {remedy}")

    def get_non_inference_attributes(self) -> list[str]:
        return [*super().get_non_inference_attributes(), "curiosity"]

    def features(self, obs: Tree) -> Tensor:
        """Of observations ``[..., *obs_shape]``, ``[..., D]``."""
        return self.forward_train({Columns.OBS: obs})[Columns.EXTRA_OUTPUTS][OUTPUT]

    def intrinsic_rewards(self, batch: Mapping[str, Tree]) -> Tensor:
        features, following = self.features(batch[Columns.OBS]), self.features(batch[Columns.NEXT_OBS])
        errors = self.curiosity.forward_errors(features, following, batch[Columns.ACTIONS])
        return ETA * errors * ~batch[Columns.TERMINATEDS]

    def compute_extra_losses(self, batch: Mapping[str, Tree], fwd_out: Mapping[str, Tree]) -> dict[str, ExtraLoss]:
        features, following = fwd_out[Columns.EXTRA_OUTPUTS][OUTPUT], self.features(batch[Columns.NEXT_OBS])
        known = ~batch[Columns.TERMINATEDS]  # no rollout keeps what followed a terminated step
        share = known / known.sum().clamp_min(1)
        inverse = self.curiosity.inverse_errors(features, following, batch[Columns.ACTIONS])
        forward = self.curiosity.forward_errors(features, following, batch[Columns.ACTIONS])
        return {
            "inverse_model": ExtraLoss((inverse * share).sum(), weight=1 - BETA),
            "forward_model": ExtraLoss((forward * share).sum(), weight=BETA),
        }


class CuriousEpisodeLearner(EpisodeLearner):
    """To be named before a learner from rollouts."""

    def preprocess_train_data(self, rollout: Rollout) -> Rollout:
        rollout = super().preprocess_train_data(rollout)
        columns = rollout.columns | {Columns.NEXT_OBS: rollout.following_observations()}
        return replace(rollout, columns=_rewarded(self.module[DEFAULT_MODULE_ID], columns))

    def pack(self, module_id: str, rollout: Rollout, names: Sequence[str]) -> Batch:
        return super().pack(module_id, rollout, [*names, Columns.NEXT_OBS, Columns.TERMINATEDS])


class CuriousBatchLearner(BatchLearner):
    """To be named before a learner from a replay of single steps."""

    def prepare_batch(self, module_id: str, batch: Batch) -> Batch:
        batch = batch | {Columns.TERMINATEDS: batch[Columns.DISCOUNTS] == 0}
        return super().prepare_batch(module_id, _rewarded(self.module[module_id], batch))


def _rewarded(module: RLModule, columns: Batch) -> Batch:
    """The columns, with rewards for curiosity added to the env's."""
    assert isinstance(module, CuriosityAPI)  # which the learners require
    return columns | {Columns.REWARDS: columns[Columns.REWARDS] + module.intrinsic_rewards(columns)}


class CuriousPPOModule(CuriousModule, PPOModule):
    """PPO's nets and curiosity."""


class CuriousDQNModule(CuriousModule, DQNModule):
    """DQN's nets and curiosity."""


class CuriousPPOLearner(CuriousEpisodeLearner, PPOLearner):
    """PPO's loss, and rewards for curiosity."""

    required_apis = (*PPOLearner.required_apis, CuriosityAPI)


class CuriousDQNLearner(CuriousBatchLearner, DQNLearner):
    """DQN's loss, and rewards for curiosity."""

    required_apis = (*DQNLearner.required_apis, CuriosityAPI)

    def __init__(self, settings: DQNConfig, spec: MultiRLModuleSpec, *, run_seed: int) -> None:
        if settings.n_step != 1:
            raise ValueError(
                f"DQNConfig.n_step: expected 1, got {settings.n_step}. Set n_step=1: the result of several "
                "actions says nothing about one."
            )
        super().__init__(settings, spec, run_seed=run_seed)
