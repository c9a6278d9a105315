"""Envs whose every number can be computed beforehand, and small modules and learners to run on them."""

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import torch
import tree
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor, nn

from catalog import Catalog, PastView
from catalog.base import Tree, as_encoder
from rlmodule import BatchLearner, Columns, EpisodeLearner, InferenceOnlyAPI, RLModule, Rollout, ValueFunctionAPI
from rlmodule.settings import EpisodeLearnerSettings, RunnerSettings

LENGTHS = (3, 1, 5, 4, 2)
ENDS = ((True, False), (False, True), (True, True), (False, True))
NUM_ACTIONS = 3


class Counter(gym.Env):
    """Observes (env, episode, step); episodes end by a script, and rewards depend on all three and the action."""

    def __init__(self, index: int = 0, dtype: type = np.float32, lengths: tuple[int, ...] = LENGTHS) -> None:
        self.index, self.lengths, self.episode, self.t = index, lengths, -1, 0
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), dtype)
        self.action_space = spaces.Discrete(NUM_ACTIONS)

    def _obs(self) -> Any:
        return np.array([self.index, self.episode, self.t], self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        ends = self.t >= self.lengths[(self.index + self.episode) % len(self.lengths)]
        terminated, truncated = ENDS[(self.index + self.episode) % len(ENDS)] if ends else (False, False)
        return self._obs(), 100 * self.index + 10 * self.episode + self.t + int(action) / 4, terminated, truncated, {}


class NestedCounter(Counter):
    """The same numbers in a Dict of a Tuple, whose keys stand in another order than sorted."""

    def __init__(self, index: int = 0) -> None:
        super().__init__(index)
        one = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        where = spaces.Tuple((one, spaces.Discrete(1000)))
        self.observation_space = spaces.Dict(OrderedDict(z=one, a=where))  # type: ignore[assignment]

    def _obs(self) -> Any:
        return {"z": np.array([self.index], np.float64), "a": (np.array([self.episode], np.float64), self.t)}


def counters(mode: AutoresetMode, cls: type[Counter] = Counter, **settings: Any) -> Callable[..., SyncVectorEnv]:
    """A factory of ready vector envs of three, which hand out the same memory at every step."""
    return lambda config: SyncVectorEnv(
        [lambda i=i: cls(i, **settings) for i in range(3)], copy=False, autoreset_mode=mode
    )


def counters_one_by_one(cls: type[Counter] = Counter, **settings: Any) -> Callable[..., gym.Env]:
    """A factory of single envs, numbered as they are made."""
    numbers = itertools.count()
    return lambda config: cls(next(numbers), **settings)


def scripted_action(env: Any, episode: Any, t: Any) -> Any:
    return (env + 2 * episode + t) % NUM_ACTIONS


@dataclass
class Step:
    """One transition as it ought to be recorded."""

    obs: tuple[float, ...]
    action: int
    reward: float
    terminated: bool
    truncated: bool
    next_obs: tuple[float, ...]


def expected_steps(index: int) -> Iterator[Step]:
    """What env `index` does under :func:`scripted_action`, found by stepping one env by hand."""
    env = Counter(index)
    while True:
        obs, _ = env.reset()
        ended = False
        while not ended:
            action = int(scripted_action(*obs))
            after, reward, terminated, truncated, _ = env.step(action)
            yield Step(tuple(obs), action, reward, terminated, truncated, tuple(after))
            obs, ended = after, terminated or truncated


class NoNets(Catalog):
    """For modules that make their own nets, of whatever space."""

    def build_encoder(self) -> nn.Module:
        raise NotImplementedError


class Scripted(RLModule):
    """Acts by :func:`scripted_action`; knows plain and nested counters."""

    def setup(self) -> None:
        self.anchor = nn.Parameter(torch.zeros(()))

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        obs = batch[Columns.OBS]
        if isinstance(obs, dict):
            assert list(obs) == ["z", "a"]
            assert isinstance(obs["a"], tuple)
            obs = torch.cat([obs["z"], obs["a"][0], obs["a"][1].unsqueeze(-1)], -1)
        action = scripted_action(*obs.unbind(-1)).long()
        return {Columns.ACTION_DIST_INPUTS: 50.0 * nn.functional.one_hot(action, NUM_ACTIONS) + self.anchor}


class Small(RLModule, ValueFunctionAPI, InferenceOnlyAPI):
    """An encoder, a policy and a value, and a count of forward passes in training, as a buffer."""

    trained_on: Tensor

    def setup(self) -> None:
        self.encoder = as_encoder(self.catalog.build_encoder())
        width = self.catalog.latent_dims[0]
        self.pi = nn.Linear(width, self.action_dist_cls.required_input_dim(self.action_space))
        self.vf = nn.Linear(width, 1)
        self.register_buffer("trained_on", torch.zeros((), dtype=torch.int64))

    def get_non_inference_attributes(self) -> list[str]:
        return ["vf"]

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        latent = self.encoder(batch[Columns.OBS]).latent
        return {Columns.ACTION_DIST_INPUTS: self.pi(latent), Columns.EMBEDDINGS: latent}

    def compute_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        if embeddings is None:
            embeddings = self.encoder(batch[Columns.OBS]).latent
        return self.vf(embeddings).squeeze(-1)

    def update_observation_statistics(self, obs: Tree) -> None:
        self.trained_on += len(obs)


class Recurrent(RLModule, ValueFunctionAPI, InferenceOnlyAPI):
    """A GRU over all numbers of the observation, stepped by hand; its state is a nest of tensors, one of them the age
    of the episode. Knows any observation of arrays."""

    width = 8

    def setup(self) -> None:
        self.obs = nn.LazyLinear(self.width)
        self.core = nn.GRUCell(self.width, self.width)
        self.pi = nn.Linear(self.width, self.action_dist_cls.required_input_dim(self.action_space))
        self.vf = nn.Linear(self.width, 1)
        batch = {
            Columns.OBS: tree.map_structure(lambda x: torch.as_tensor(x)[None, None], self.input_space.sample()),
            Columns.STARTS: torch.zeros(1, 1, dtype=torch.bool),
            Columns.STATE_IN: tree.map_structure(lambda x: x[None], self.get_initial_state()),
        }
        with torch.no_grad():
            self._forward(batch)
        with torch.no_grad():
            for p in self.parameters():
                p.copy_(torch.randn_like(p))  # so that states matter

    def get_initial_state(self) -> Tree:
        return {"h": torch.zeros(self.width), "more": (torch.zeros(()),)}

    def get_non_inference_attributes(self) -> list[str]:
        return ["vf"]

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        starts, state = batch[Columns.STARTS], batch[Columns.STATE_IN]
        leaves = [x.float().reshape(*starts.shape, -1) for x in tree.flatten(batch[Columns.OBS])]
        h, age = state["h"], state["more"][0]
        latents = []
        for x, start in zip(self.obs(torch.cat(leaves, -1) / 100).tanh(), starts, strict=True):
            h = self.core(x, h.masked_fill(start[:, None], 0.0))
            age = age.masked_fill(start, 0.0) + 1
            latents.append(h)
        latent = torch.stack(latents)
        return {
            Columns.ACTION_DIST_INPUTS: self.pi(latent),
            Columns.EMBEDDINGS: latent,
            Columns.STATE_OUT: {"h": h, "more": (age,)},
        }

    def compute_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        assert embeddings is not None
        return self.vf(embeddings).squeeze(-1)


class SeesPast(Recurrent):
    """One that asks for earlier steps, of every kind another number."""

    def get_past_view(self) -> PastView:
        return PastView(observations=2, actions=3, rewards=1)


class Forgetful(RLModule, ValueFunctionAPI):
    """The same without a state: linear in all numbers it sees."""

    def get_past_view(self) -> PastView:
        return PastView(observations=1, actions=1, rewards=3)

    def setup(self) -> None:
        width = sum(np.size(leaf) for leaf in tree.flatten(self.input_space.sample()))
        self.pi = nn.Linear(width, self.action_dist_cls.required_input_dim(self.action_space))
        self.vf = nn.Linear(width, 1)

    def _forward(self, batch: Mapping[str, Tree]) -> dict[str, Tree]:
        leaves = [x.float().flatten(1) if x.dim() > 1 else x.float()[:, None] for x in tree.flatten(batch[Columns.OBS])]
        latent = torch.cat(leaves, -1) / 10
        return {Columns.ACTION_DIST_INPUTS: self.pi(latent), Columns.EMBEDDINGS: latent}

    def compute_values(self, batch: Mapping[str, Tree], embeddings: Tensor | None = None) -> Tensor:
        if embeddings is None:
            embeddings = self._forward(batch)[Columns.EMBEDDINGS]
        return self.vf(embeddings).squeeze(-1)


class Reinforce(EpisodeLearner):
    """Policy gradient with the reward as return; remembers the minibatches it saw."""

    required_apis: ClassVar[tuple[type, ...]] = (ValueFunctionAPI,)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[list[float]] = []
        self.stop_after = 1000

    def make_train_batch(self, module_id: str, rollout: Rollout) -> tuple[dict[str, Tree], dict[str, float]]:
        self.seen.clear()
        names = [Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.ACTION_LOGP]
        return self.pack(module_id, rollout, names), {"extra": 1.5}

    def compute_loss_for_module(
        self, module_id: str, batch: dict[str, Tree], fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        module = self.module[module_id]
        assert isinstance(module, ValueFunctionAPI)
        self.seen.append(batch[Columns.REWARDS].tolist())
        dist = module.action_dist_cls.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        value = module.compute_values(batch, fwd_out.get(Columns.EMBEDDINGS))
        reward = batch[Columns.REWARDS]
        return (value - reward).square().mean() - (dist.logp(batch[Columns.ACTIONS]) * reward).mean(), {}

    def should_stop(self, module_id: str, metrics: Mapping[str, Tensor]) -> bool:
        self.stop_after -= 1
        return self.stop_after <= 0


class Regression(BatchLearner):
    """Fits the distribution's inputs to a target column."""

    def compute_loss_for_module(
        self, module_id: str, batch: dict[str, Tree], fwd_out: Mapping[str, Tree]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        return (fwd_out[Columns.ACTION_DIST_INPUTS] - batch["target"]).square().mean(), {}


class Settings(RunnerSettings, EpisodeLearnerSettings):
    """What runners and learners read."""

    env = "CartPole-v1"
    num_envs_per_env_runner = 3
    gym_env_vectorize_mode = "sync"
    records_episode_infos: bool = False
    lr = 0.01
    num_cpus_per_learner = 0.1
    learner_timeout_s = 30.0
    minibatch_size = 16
    num_epochs = 2
