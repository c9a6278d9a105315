"""What the catalog's parts cost: building them, reading observations inside the net, masking actions.

    python -m benchmarks.catalog building     # spaces → tree → a PPO module, the start of the weights apart
    python -m benchmarks.catalog reading      # encoders with their preprocessing, over the same nets by hand
    python -m benchmarks.catalog masking      # acting for 8 envs with an action mask, over the same without

Each prints one line of JSON. What is compared takes turns in one process, on one thread; figures are medians. Nets by
hand are what one would write in plain torch for that one space; they are given the encoder's weights, and that both
say the same is checked first.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import tree
from gymnasium import Space, spaces
from gymnasium.vector.utils import batch_space
from torch import Tensor, nn
from torch.nn import functional as F

from algorithms.ppo import PPOCatalog, PPOModule
from catalog.base import EncoderOutput, Tree
from catalog.spaces import to_tensor
from rlmodule import Columns, RLModule, RLModuleSpec

BATCH = 256
NUM_ENVS = 8
STEPS = 16  # vector steps that are timed as one: a pause of the process spoils few of them
VECTOR = spaces.Box(-np.inf, np.inf, (4,), np.float32)
IMAGE = spaces.Box(0, 255, (84, 84, 4), np.uint8)
NESTED = spaces.Dict(
    {
        "inside": spaces.Dict(
            {"phase": spaces.Discrete(10), "speed": spaces.Box(-np.inf, np.inf, (16,), np.float32)},
        ),
        "position": spaces.Box(-np.inf, np.inf, (8,), np.float32),
    }
)

BUILT: dict[str, tuple[Space, Space, dict[str, Any]]] = {
    "CartPole": (VECTOR, spaces.Discrete(2), {}),
    "image": (IMAGE, spaces.Discrete(6), {}),
    "nested Dict": (NESTED, spaces.Discrete(6), {}),
    "LSTM": (VECTOR, spaces.Discrete(2), {"use_lstm": True}),
}
"""Observation space, action space and model settings of what `building` builds."""


@contextmanager
def timed_initialisers() -> Iterator[list[float]]:
    """The seconds of every call of a function of `torch.nn.init` in here: ours, and those by which layers of torch
    start before that."""
    seconds: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                seconds.append(time.perf_counter() - started)

        return call

    functions = {name: item for name, item in vars(nn.init).items() if name.endswith("_") and name[0] != "_"}
    with patch.dict(vars(nn.init), {name: timed(function) for name, function in functions.items()}):
        yield seconds


def building(repeats: int = 15) -> dict[str, dict[str, float]]:
    """For each of `BUILT`: ms to decide (`tree_ms`), to decide and build a PPO module but for the start of its weights
    (`module_ms`), and of that start (`weights_ms`)."""
    torch.set_num_threads(1)
    results = {}
    for name, (observation_space, action_space, settings) in BUILT.items():
        spec = RLModuleSpec(PPOModule, observation_space, action_space, settings, PPOCatalog)
        deciding, assembling, filling = [], [], []
        for _ in range(repeats):
            started = time.perf_counter()
            PPOCatalog(observation_space, action_space, settings)
            deciding.append(time.perf_counter() - started)
            with timed_initialisers() as seconds:
                started = time.perf_counter()
                spec.build()
                took = time.perf_counter() - started
            filling.append(sum(seconds))
            assembling.append(took - filling[-1])
        columns = {"tree_ms": deciding, "module_ms": assembling, "weights_ms": filling}
        results[name] = {key: round(median(times) * 1e3, 2) for key, times in columns.items()}
    return results


def dense(num_in: int) -> nn.Sequential:
    """The layers of the default MLP encoder."""
    return nn.Sequential(nn.Linear(num_in, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh())


class PlainOneHot(nn.Module):
    """An MLP on 500 values, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.net = dense(500)

    def forward(self, obs: Tensor) -> Tensor:
        return self.net(F.one_hot(obs, 500).float())


class PlainNested(nn.Module):
    """An MLP on `NESTED` as one vector, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.net = dense(34)

    def forward(self, obs: Mapping[str, Any]) -> Tensor:
        inside = obs["inside"]
        return self.net(torch.cat([F.one_hot(inside["phase"], 10).float(), inside["speed"], obs["position"]], -1))


class PlainImage(nn.Module):
    """The Nature CNN on `IMAGE`, by hand."""

    def __init__(self) -> None:
        super().__init__()
        convs = nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)
        self.net = nn.Sequential(*(layer for conv in convs for layer in (conv, nn.ReLU())), nn.Flatten())
        self.dense = nn.Sequential(nn.Linear(3136, 512), nn.ReLU())

    def forward(self, obs: Tensor) -> Tensor:
        return self.dense(self.net(obs.permute(0, 3, 1, 2).float() / 255))


@dataclass(frozen=True)
class Reading:
    """An observation space, the settings of its encoder, and the same net by hand."""

    space: Space
    settings: dict[str, Any]
    plain: Callable[[], nn.Module]
    repeats: int


READ = {
    "one-hot": Reading(spaces.Discrete(500), {}, PlainOneHot, 1000),
    "nested Dict": Reading(NESTED, {"flatten_observations": True}, PlainNested, 1000),
    "image": Reading(IMAGE, {"conv_filters": "nature"}, PlainImage, 15),
}


def same_net(reading: Reading, obs: Tree) -> tuple[nn.Module, nn.Module]:
    """The catalog's encoder and the net by hand, with the same weights.

    Raises:
        RuntimeError: If they do not say the same about `obs`.
    """
    encoder = PPOCatalog(reading.space, spaces.Discrete(2), reading.settings).build_encoder()
    plain = reading.plain()
    with torch.no_grad():
        for mine, other in zip(encoder.parameters(), plain.parameters(), strict=True):
            other.copy_(mine)
        if not torch.allclose(encoder(obs).latent, plain(obs), atol=1e-5):
            raise RuntimeError(f"the net by hand is another one than the encoder of {reading.space}")
    return encoder, plain


def reading(repeats: float = 1.0) -> dict[str, dict[str, float]]:
    """For each of `READ`: ms of a forward and a backward pass over 256 observations, of the encoder (`ours_ms`) and of
    the net by hand (`plain_ms`), and the median of the ratios of neighbours (`ratio`).

    Args:
        repeats: Share of the usual number of passes.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    results = {}
    for name, case in READ.items():
        observations = batch_space(case.space, BATCH)
        observations.seed(0)
        obs = tree.map_structure(to_tensor, observations.sample())
        encoder, plain = same_net(case, obs)

        passes = [partial(gradient_pass, net, [*net.parameters()], obs) for net in (encoder, plain)]
        times = in_turn(2 + max(1, int(case.repeats * repeats)), *passes)
        results[name] = _compared("ours_ms", times[0], "plain_ms", times[1], 1e3)
    return results


def gradient_pass(net: nn.Module, parameters: list[nn.Parameter], obs: Tree) -> None:
    """The gradients of some loss of what `net` says about `obs`."""
    for parameter in parameters:
        parameter.grad = None
    out = net(obs)
    latent = out.latent if isinstance(out, EncoderOutput) else out
    latent.square().mean().backward()


def in_turn(repeats: int, *works: Callable[[], object]) -> list[list[float]]:
    """Seconds that each of `works` takes, in turns; those of the first two are left out."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(repeats):
        for work, seconds in zip(works, times, strict=True):
            started = time.perf_counter()
            work()
            seconds.append(time.perf_counter() - started)
    return [seconds[2:] for seconds in times]


def _compared(our_name: str, ours: list[float], their_name: str, theirs: list[float], scale: float) -> dict[str, float]:
    ratio = median(a / b for a, b in zip(ours, theirs, strict=True))
    return {
        our_name: round(median(ours) * scale, 3),
        their_name: round(median(theirs) * scale, 3),
        "ratio": round(ratio, 3),
    }


SEEN = spaces.Dict({"seen": spaces.Box(-np.inf, np.inf, (8,), np.float32)})
MASKED = spaces.Dict({"seen": SEEN["seen"], "action_mask": spaces.Box(0, 1, (6,), np.int8)})


def actor(observation_space: Space) -> RLModule:
    """A PPO module for six choices that acts on a Dict as one vector."""
    settings = {"flatten_observations": True}
    return RLModuleSpec(PPOModule, observation_space, spaces.Discrete(6), settings, PPOCatalog).build().eval()


def act(module: RLModule, steps: Sequence[tuple[Tree, Tensor]]) -> list[Tensor]:
    """Actions of a vector step each, from observations and noise, as the env runner takes them."""
    actions = []
    with torch.inference_mode():
        for obs, noise in steps:
            logits = module.forward_exploration({Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS]
            actions.append(module.action_dist_cls.from_logits(logits).sample_from(noise))
    return actions


def masked_steps() -> list[tuple[dict[str, Tensor], Tensor]]:
    """Observations of 8 envs with masks that allow about half of six choices, and noise to choose with."""
    rng = np.random.default_rng(0)
    shape = (STEPS, NUM_ENVS, 6)
    seen = torch.from_numpy(rng.standard_normal((STEPS, NUM_ENVS, 8), np.float32))
    masks = rng.integers(0, 2, shape, np.int8)
    masks[..., 0] = 1
    noise = -torch.from_numpy(rng.standard_exponential(shape, np.float32)).log()
    return [
        ({"seen": row, "action_mask": mask}, draw)
        for row, mask, draw in zip(seen, torch.from_numpy(masks), noise, strict=True)
    ]


def masking(repeats: int = 500) -> dict[str, float]:
    """µs to act, per vector step of 8 envs: forward pass, mask and sample. `masked_us` with a mask, `plain_us` without,
    and the median `ratio` of neighbours; and `check_us`, what the env runner's check takes that a choice is left."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    masked, plain, steps = actor(MASKED), actor(SEEN), masked_steps()
    unmasked_steps = [({"seen": obs["seen"]}, noise) for obs, noise in steps]
    mask = masked.action_mask
    assert mask is not None

    def check() -> None:
        for obs, _ in steps:
            np.count_nonzero(mask.rows_without_choice(obs).numpy())

    ours, theirs = in_turn(2 + repeats, lambda: act(masked, steps), lambda: act(plain, unmasked_steps))
    figures = _compared("masked_us", ours, "plain_us", theirs, 1e6 / STEPS)
    (checks,) = in_turn(2 + repeats, check)
    return figures | {"check_us": round(median(checks) * 1e6 / STEPS, 3)}


MEASUREMENTS: dict[str, Callable[[], Any]] = {"building": building, "reading": reading, "masking": masking}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=sorted(MEASUREMENTS))
    print(json.dumps(MEASUREMENTS[parser.parse_args().what]()))
