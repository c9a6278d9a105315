"""The feature matrix: spaces and settings that PPO is held against in all pairs, and what it refuses.

docs/feature_matrix.py writes its page from these tables, so that a tick there is a case that the tests run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import tree
from gymnasium import Space, spaces

from algorithms.ppo import PPOCatalog, PPOConfig

MASK, VECTORS = "action_mask", "avail_actions"
DESCRIBED = "Discrete, described by vectors"
"""The action whose choices the observation describes, in the field :data:`VECTORS`."""


class Row(NamedTuple):
    """A space, and the model settings under which it is looked at."""

    space: Space
    settings: Mapping[str, Any] = {}


def box(shape: tuple[int, ...], dtype: type = np.float32, low: float = -1, high: float = 1) -> spaces.Box:
    return spaces.Box(low, high, shape, dtype)


def bounds(low: list[float], high: list[float], dtype: type = np.float32) -> spaces.Box:
    return spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


CAMERA = spaces.Dict([("rgb", box((3, 8, 8), np.uint8, 0, 255)), ("depth", box((8, 6)))])
ROBOT = spaces.Dict([("state", spaces.Tuple([box((2,)), spaces.Discrete(3, start=5)])), ("camera", CAMERA)])
TINY_FILTERS = [[4, 3, 2]]

OBSERVATIONS: dict[str, Row] = {
    "Box, rank 0": Row(box(())),
    "Box, rank 1": Row(box((3,))),
    "Box, rank 1, float64, unbounded": Row(box((3,), np.float64, -np.inf, np.inf)),
    "Box, rank 1, bytes": Row(box((3,), np.uint8, 0, 255)),
    "Box, rank 1, int16": Row(box((3,), np.int16, -7, 9)),
    "Box, rank 2, flattened": Row(box((2, 3))),
    "Box, rank 2, as an image": Row(box((7, 6)), {"matrix_observations": "image"}),
    "Box, rank 2, as a sequence of rows": Row(box((4, 3)), {"matrix_observations": "sequence"}),
    "Box, rank 3, bytes, channels last": Row(box((8, 8, 3), np.uint8, 0, 255)),
    "Box, rank 3, depths of 16 bits": Row(box((8, 7, 1), np.uint16, 0, 9)),
    "Box, rank 3, floats, channels first": Row(box((3, 8, 8))),
    "Box, rank 3, IMPALA net": Row(box((6, 5, 1)), {"conv_filters": "impala"}),
    "Box, rank 4, stacked frames": Row(box((2, 8, 8, 3), np.uint8, 0, 255)),
    "Discrete with a start": Row(spaces.Discrete(4, start=-2)),
    "Discrete, embedded": Row(spaces.Discrete(4, start=3), {"discrete_embedding_dim": 3}),
    "MultiDiscrete with starts": Row(spaces.MultiDiscrete([2, 3], start=[4, -1])),
    "MultiDiscrete, rank 2": Row(spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]))),
    "MultiBinary": Row(spaces.MultiBinary(3)),
    "MultiBinary, rank 2": Row(spaces.MultiBinary((2, 2))),
    "Dict of vectors": Row(spaces.Dict([("z", box((2,))), ("a", spaces.Discrete(3))])),
    "Tuple": Row(spaces.Tuple([box(()), spaces.MultiBinary(2), box((2, 2), np.int8, 0, 3)])),
    "Dict and Tuple nested, images and vectors": Row(
        ROBOT, {"leaf_overrides": {"camera.depth": {"fcnet_hiddens": [5]}}}
    ),
    "the same, flattened to one vector": Row(ROBOT, {"flatten_observations": True}),
}

ACTIONS: dict[str, Row] = {
    "Discrete": Row(spaces.Discrete(3)),
    "Discrete with a start": Row(spaces.Discrete(3, start=-2)),
    DESCRIBED: Row(spaces.Discrete(4)),
    "MultiDiscrete": Row(spaces.MultiDiscrete([2, 3, 3])),
    "MultiDiscrete with starts, rank 2": Row(
        spaces.MultiDiscrete(np.array([[2, 3], [4, 2]]), start=np.array([[1, 0], [-3, 9]]))
    ),
    "MultiBinary": Row(spaces.MultiBinary(3)),
    "MultiBinary, rank 2": Row(spaces.MultiBinary((2, 2))),
    "Box, bounded": Row(bounds([-2, 0], [5, 1])),
    "Box, bounded on one side": Row(bounds([0, -np.inf], [np.inf, 2])),
    "Box, unbounded": Row(box((2,), np.float32, -np.inf, np.inf)),
    "Box, rank 0": Row(box((), np.float32, 2, 3)),
    "Box, rank 2, float64": Row(box((2, 2), np.float64, -0.1, 0.3)),
    "Box, log-std per state": Row(box((2,)), {"free_log_std": False}),
    "Box, SquashedGaussian": Row(box((2,), np.float32, 3, 4), {"custom_action_dist": "SquashedGaussian"}),
    "Box, Beta": Row(box((2,), np.float32, 3, 4), {"custom_action_dist": "Beta"}),
    "Box of integers": Row(bounds([-1, 3], [2, 4], np.int8)),
    "Box of integers, rank 2": Row(box((2, 1), np.uint8, 0, 3)),
    "Dict": Row(spaces.Dict([("walk", box((2,))), ("arm", spaces.Discrete(4, start=1))])),
    "Tuple": Row(spaces.Tuple([spaces.Discrete(2), box((), np.float32, 0, 1), spaces.MultiBinary(2)])),
    "Dict and Tuple nested": Row(
        spaces.Dict(
            [
                ("legs", spaces.Tuple([spaces.MultiDiscrete([2, 3]), box((2,))])),
                ("hand", spaces.Dict([("grip", box((2,), np.int16, -1, 1)), ("force", box((1,)))])),
            ]
        )
    ),
    "MultiDiscrete, each part knowing those before it": Row(
        spaces.MultiDiscrete([2, 3, 3]), {"autoregressive_actions": True}
    ),
    "Dict and Tuple nested, each part knowing those before it": Row(
        spaces.Dict(
            [
                ("legs", spaces.Tuple([box((2,)), spaces.MultiDiscrete([2, 3])])),
                ("hand", spaces.Dict([("grip", spaces.MultiBinary(2)), ("force", box((1,)))])),
            ]
        ),
        {"autoregressive_actions": True, "free_log_std": False},
    ),
}

_PREVIOUS = {"lstm_use_prev_action": True, "lstm_use_prev_reward": True}
MEMORIES: dict[str, Mapping[str, Any]] = {
    "no memory": {},
    "no memory, previous action and reward": {**_PREVIOUS},
    "LSTM": {"use_lstm": True, "lstm_cell_size": 8},
    "GRU": {"use_gru": True, "lstm_cell_size": 8},
    "attention": {"use_attention": True, "attention_memory": 6},
    "LSTM, previous action and reward": {"use_lstm": True, "lstm_cell_size": 8, **_PREVIOUS},
    "GRU, previous action and reward": {"use_gru": True, "lstm_cell_size": 8, **_PREVIOUS},
    "attention, previous action and reward": {"use_attention": True, "attention_memory": 6, **_PREVIOUS},
}
SHARING = {"shared": True, "separate": False}
MASKS = {"no mask": False, "mask": True}
FACTORS: dict[str, Mapping[str, Any]] = {
    "observation": OBSERVATIONS,
    "action": ACTIONS,
    "memory": MEMORIES,
    "sharing": SHARING,
    "mask": MASKS,
}
"""What a case is a choice of: factor → name of a level → what it means."""
_NET = ("memory", "sharing", "mask")
TINY: Mapping[str, Any] = {
    "fcnet_hiddens": [8],
    "conv_filters": TINY_FILTERS,
    "conv_dense_dim": 8,
    "fusionnet_hiddens": [8],
    "max_seq_len": 4,
}


@dataclass(frozen=True)
class Case:
    """One level of each factor; see :data:`FACTORS`."""

    observation: str
    action: str
    memory: str
    sharing: str
    mask: str

    @property
    def name(self) -> str:
        return " | ".join(vars(self).values())

    @property
    def model_config(self) -> dict[str, Any]:
        own: dict[str, Any] = {"vf_share_layers": SHARING[self.sharing]}
        observation, action = OBSERVATIONS[self.observation], ACTIONS[self.action]
        own |= {**MEMORIES[self.memory], **action.settings, **observation.settings}
        return {**TINY, **own}

    @property
    def spaces(self) -> tuple[Space, Space]:
        """What the env declares."""
        return spaces_of(self.observation, self.action, self.mask)

    def catalog(self) -> PPOCatalog:
        return PPOCatalog(*self.spaces, self.model_config)

    def config(self) -> PPOConfig:
        """A run of two envs, whose every iteration is two gradient steps on all of ten steps of each."""
        return (
            PPOConfig()
            .environment(SpacesEnv, env_config=vars(self))
            .env_runners(num_envs_per_env_runner=2)
            .training(train_batch_size_per_learner=20, minibatch_size=None, num_epochs=2, lr=1e-2)
            .rl_module(model_config=self.model_config)
            .debugging(seed=3)
        )


# --- masks, written down a second time: what a case is checked with must not be what is checked ----------------------


def choices(action: Space) -> list[int]:
    """Sizes of the categorical parts, in order."""
    if isinstance(action, spaces.Dict | spaces.Tuple):
        return [size for part in parts_of(action).values() for size in choices(part)]
    if isinstance(action, spaces.Discrete):
        return [int(action.n)]
    if isinstance(action, spaces.MultiDiscrete):
        return action.nvec.flatten().tolist()
    if isinstance(action, spaces.Box) and action.dtype.kind in "iub":
        return (action.high.astype(int) - action.low.astype(int) + 1).flatten().tolist()
    return []


def picks(action_space: Space, action: Any) -> list[int]:
    """What was chosen in each of these parts, from 0."""
    if isinstance(action_space, spaces.Dict | spaces.Tuple):
        return [pick for key, part in parts_of(action_space).items() for pick in picks(part, action[key])]
    if isinstance(action_space, spaces.Discrete | spaces.MultiDiscrete):
        return np.reshape(action - np.asarray(action_space.start), -1).tolist()
    if isinstance(action_space, spaces.Box) and choices(action_space):
        return (np.asarray(action).astype(int) - action_space.low.astype(int)).flatten().tolist()
    return []


def parts_of(space: spaces.Dict | spaces.Tuple) -> dict[Any, Space]:
    return dict(space.spaces) if isinstance(space, spaces.Dict) else dict(enumerate(space.spaces))


def mask_space(action: Space) -> Space:
    """Masks of a Dict by key; of anything else, in one array."""
    if isinstance(action, spaces.Dict):
        return spaces.Dict([(key, mask_space(part)) for key, part in action.spaces.items() if choices(part)])
    return box((sum(choices(action)),), np.int8, 0, 1)


def with_fields(observation: Space, fields: Mapping[str, Space]) -> spaces.Dict:
    """The observation as a Dict that has ``fields``, too."""
    own = [*observation.spaces.items()] if isinstance(observation, spaces.Dict) else [("inner", observation)]
    return spaces.Dict([own[0], *fields.items(), *own[1:]])


def draw_mask(action: Space, rng: np.random.Generator) -> Any:
    """A random mask that leaves each part something."""
    if isinstance(action, spaces.Dict):
        return {key: draw_mask(part, rng) for key, part in action.spaces.items() if choices(part)}
    flags = [(rng.random(size) < 0.4) | (np.arange(size) == rng.integers(size)) for size in choices(action)]
    return np.concatenate(flags).astype(np.int8)


def is_allowed(action_space: Space, mask: Any, action: Any) -> bool:
    if isinstance(mask, Mapping):
        parts = parts_of(action_space)  # type: ignore[arg-type]  # a Dict
        return all(is_allowed(parts[key], part, action[key]) for key, part in mask.items())
    starts = [0, *itertools.accumulate(choices(action_space))]
    return all(mask[start + pick] for start, pick in zip(starts, picks(action_space, action), strict=False))


def spaces_of(observation: str, action: str, mask: str) -> tuple[Space, Space]:
    """The spaces of these levels, with the fields of masks and vectors in the observation."""
    observed, chosen = OBSERVATIONS[observation].space, ACTIONS[action].space
    fields = {VECTORS: box((choices(chosen)[0], 2))} if action == DESCRIBED else {}
    fields |= {MASK: mask_space(chosen)} if MASKS[mask] else {}
    return (with_fields(observed, fields) if fields else observed), chosen


class SpacesEnv(gym.Env[Any, Any]):
    """Draws observations of a case's space; refuses actions outside theirs and those that the mask forbids.

    Episodes of 3 steps terminate, those of 4, which follow them, are truncated.
    """

    def __init__(self, observation: str, action: str, mask: str, **_: str) -> None:
        self.observation_space, self.action_space = spaces_of(observation, action, mask)
        self.is_masked = MASKS[mask]
        self.length, self.t = 4, 0
        self.mask: Any = None

    def _observe(self) -> Any:
        obs = self.observation_space.sample()
        if self.is_masked:
            self.mask = draw_mask(self.action_space, self.np_random)
            obs[MASK] = self.mask
        return obs

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self.length, self.t = 7 - self.length, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        # Gymnasium's vector envs make numbers of arrays without dims, and its Box warns of them
        arrays = tree.map_structure(lambda x: np.asarray(x) if isinstance(x, np.floating) else x, action)
        if not self.action_space.contains(arrays):
            raise ValueError(f"{action!r} is not in {self.action_space}")
        if self.mask is not None and not is_allowed(self.action_space, self.mask, action):
            raise ValueError(f"{action!r} is forbidden by {self.mask}")
        self.t += 1
        ends = self.t == self.length
        reward = float(self.np_random.normal()) + self.t
        return self._observe(), reward, ends and self.length == 3, ends and self.length == 4, {}


# --- the cases -------------------------------------------------------------------------------------------------------

Levels = Mapping[str, str]
Pair = frozenset[tuple[str, str]]


def is_sensible(case: Levels) -> bool:
    """Whether the levels chosen so far go together: an action without choices cannot be masked."""
    return case.get("mask") != "mask" or "action" not in case or bool(choices(ACTIONS[case["action"]].space))


def pairs_of(case: Levels) -> Iterator[Pair]:
    """The pairs of levels in a case, but for those of the two spaces, which do not see each other's nets."""
    for first, second in itertools.combinations(case.items(), 2):
        if {first[0], second[0]} != {"observation", "action"}:
            yield frozenset((first, second))


def all_pairs(factors: Mapping[str, Iterable[str]], sensible: Callable[[Levels], bool]) -> frozenset[Pair]:
    """Every sensible pair."""
    found: set[Pair] = set()
    for (a, a_levels), (b, b_levels) in itertools.combinations(factors.items(), 2):
        pairs = ({a: x, b: y} for x in a_levels for y in b_levels)
        found |= {pair for levels in pairs if sensible(levels) for pair in pairs_of(levels)}
    return frozenset(found)


def covering(
    factors: Mapping[str, Iterable[str]],
    sensible: Callable[[Levels], bool],
    whole: Mapping[str, Iterable[str]] | None = None,
) -> Iterator[dict[str, str]]:
    """Few choices of levels that hold every sensible pair, and every combination of the factors in ``whole``: each
    level is the one that adds most pairs not yet met."""
    missing = dict.fromkeys(sorted(all_pairs(factors, sensible), key=sorted))
    uses: dict[tuple[str, str], int] = {}
    wanted = dict.fromkeys(itertools.product(*(whole or {}).values())) if whole else {}
    while missing or wanted:
        levels = (
            dict(sorted(next(iter(missing)))) if missing else dict(zip(whole or (), next(iter(wanted)), strict=True))
        )
        for factor in (name for name in factors if name not in levels):
            options = [level for level in factors[factor] if sensible({**levels, factor: level})]

            def gain(level: str, factor: str = factor, chosen: dict[str, str] = levels) -> tuple[int, int]:
                new = sum(frozenset(((factor, level), other)) in missing for other in chosen.items())
                return new, -uses.get((factor, level), 0)

            levels[factor] = max(options, key=gain)
        for pair in pairs_of(levels):
            missing.pop(pair, None)
        for item in levels.items():
            uses[item] = uses.get(item, 0) + 1
        wanted.pop(tuple(levels[factor] for factor in whole or ()), None)
        yield levels


@cache
def cases() -> tuple[Case, ...]:
    """Cases that hold every sensible pair, and every net with and without a mask."""
    nets = {factor: FACTORS[factor] for factor in _NET}
    return tuple(Case(**levels) for levels in covering(FACTORS, is_sensible, nets))


@cache
def meetings() -> tuple[Case, ...]:
    """Every observation with every action, and the settings of nets in turn."""
    nets = [*itertools.product(MEMORIES, SHARING)]
    pairs = ((i + j, o, a) for i, o in enumerate(OBSERVATIONS) for j, a in enumerate(ACTIONS))
    return tuple(Case(o, a, *nets[number % len(nets)], "no mask") for number, o, a in pairs)


@dataclass(frozen=True)
class Refused:
    """What raises when the catalog is made, and a part of what it says."""

    observation: Space = field(default_factory=lambda: box((3,)))
    action: Space = field(default_factory=lambda: spaces.Discrete(3))
    settings: Mapping[str, Any] = field(default_factory=dict)

    def message(self) -> str:
        """The text of the error.

        Raises:
            AssertionError: If there is none.
        """
        try:
            PPOCatalog(self.observation, self.action, self.settings)
        except ValueError as error:
            return str(error)
        raise AssertionError(f"not refused: {self}")


REFUSED: dict[str, Refused] = {
    "observation: Box, rank 5": Refused(observation=box((1, 2, 2, 2, 3))),
    "observation: Text": Refused(observation=spaces.Text(5)),
    "observation: Graph": Refused(observation=spaces.Graph(box((2,)), None)),
    "observation: Sequence, in a Dict": Refused(observation=spaces.Dict(words=spaces.Sequence(spaces.Discrete(3)))),
    "observation: OneOf": Refused(observation=spaces.OneOf([spaces.Discrete(2), box((2,))])),
    "observation: empty Box": Refused(observation=box((0,))),
    "observation: empty Dict": Refused(observation=spaces.Dict()),
    "observation: nothing but a mask": Refused(observation=spaces.Dict({MASK: box((3,), np.int8, 0, 1)})),
    "action: Box of integers, unbounded": Refused(action=spaces.Box(-(2**31), 2**31 - 1, (1,), np.int32)),
    "action: Text": Refused(action=spaces.Text(5)),
    "action: Sequence, in a Tuple": Refused(action=spaces.Tuple([spaces.Sequence(spaces.Discrete(3))])),
    "action: empty Box": Refused(action=box((0,))),
    "action: SquashedGaussian over an unbounded Box": Refused(
        action=box((2,), np.float32, -np.inf, np.inf), settings={"custom_action_dist": "SquashedGaussian"}
    ),
    "LSTM and GRU together": Refused(settings={"use_lstm": True, "use_gru": True}),
    "GRU and attention together": Refused(settings={"use_gru": True, "use_attention": True}),
    "image smaller than an unpadded kernel": Refused(
        observation=box((6, 6, 3)), settings={"conv_filters": [[4, 8, 2, "valid"]]}
    ),
    "running statistics of choices": Refused(observation=spaces.Discrete(3), settings={"normalize_observations": True}),
}
"""What no setting allows."""


def refused_mask(action: str) -> Refused:
    """A mask for an action without choices."""
    row = ACTIONS[action]
    observation = spaces.Dict([("inner", box((3,))), (MASK, box((2,), np.int8, 0, 1))])
    return Refused(observation, row.space, row.settings)
