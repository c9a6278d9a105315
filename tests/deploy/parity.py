"""What a runner, a policy, a policy loaded in a fresh process, and exported graphs do in the same episodes."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
import tree
from torch import Tensor

from catalog.base import Tree
from catalog.distributions.base import Distribution
from rlmodule import Columns, EnvRunner, Policy, RLModule, RLModuleSpec, Rollout
from rlmodule.modules.acting import ActingStep
from rlmodule.modules.apis import ExplorationAPI

STEPS = 50


@dataclass
class Episodes:
    """Fifty steps of ``N`` envs in which a runner acted: leaves ``[T, N, ...]`` as the envs returned and took them."""

    obs: Tree
    starts: np.ndarray
    rewards: np.ndarray
    actions: Tree

    def steps(self) -> Iterator[tuple[Tree, np.ndarray, np.ndarray | None]]:
        """The observations, starts and last rewards of each step."""
        for t in range(STEPS):
            yield at(self.obs, t), self.starts[t], self.rewards[t - 1] if t else None


def at(values: Tree, t: int) -> Tree:
    return tree.map_structure(lambda x: x[t], values)


def module_of(config: Any, seed: int = 0) -> RLModule:
    """A module that is not nearly uniform, as at the start of training, with statistics of some observations."""
    config = config.copy()
    runner = EnvRunner(config, run_seed=seed)
    runner.stop()
    return filled(config.get_rl_module_spec(runner.observation_space, runner.action_space), seed)


def filled(spec: RLModuleSpec, seed: int = 0) -> RLModule:
    """A module of ``spec``, with random weights and statistics."""
    torch.manual_seed(seed)
    module = spec.build()
    with torch.no_grad():
        for parameter in module.parameters():  # as large as trained weights are: larger ones magnify rounding
            scale = 0.2 if parameter.dim() < 2 else 0.5 * parameter[0].numel() ** -0.5
            parameter.add_(torch.randn_like(parameter), alpha=scale)
    if isinstance(module, ExplorationAPI):
        module.set_exploration(0.3)
    rows = [module.observation_space.sample() for _ in range(20)]
    obs = tree.map_structure(lambda *x: torch.from_numpy(np.stack(x).astype(np.float32)), *rows)
    module.update_observation_statistics({Columns.OBS: obs} if module.sees_more_than_the_env else obs)
    return module


def played(config: Any, module: RLModule, num: int) -> Episodes:
    """What the runner of a run does greedily in ``num`` envs."""
    runner = EnvRunner(config.copy().env_runners(num_envs_per_env_runner=num), run_seed=num)
    runner.set_module(module)
    rollout = runner.sample(STEPS, explore=False)
    runner.stop()
    return episodes_of(module, rollout)


def episodes_of(module: RLModule, rollout: Rollout) -> Episodes:
    """What is in a rollout of ``module``."""
    fitted = module.action_converter(rollout[Columns.ACTIONS])
    return Episodes(
        tree.map_structure(Tensor.numpy, module.env_part(rollout[Columns.OBS])),
        rollout[Columns.STARTS].numpy(),
        rollout[Columns.REWARDS].numpy(),
        tree.map_structure(Tensor.numpy, fitted),
    )


def acted(policy: Policy, episodes: Episodes) -> Tree:
    """What a policy does in the same episodes, all envs at once."""
    state, taken = None, []
    for obs, starts, rewards in episodes.steps():
        actions, state = policy.act_batch(obs, state, starts=starts, rewards=rewards)
        taken.append(actions)
    return tree.map_structure(lambda *x: np.stack(x), *taken)


class Server:
    """Runs an ONNX file with numpy alone, as a program without torch would."""

    def __init__(self, path: Path) -> None:
        self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        metadata = self.session.get_modelmeta().custom_metadata_map
        self.about = json.loads(metadata["catalog_rl"])

    def state(self, num: int) -> dict[str, np.ndarray]:
        known = self.about["inputs"].items()
        like = {name: item for name, item in known if name.startswith("state.")}
        return {name: np.zeros([num, *item["shape"][1:]], item["dtype"]) for name, item in like.items()}

    def step(
        self, obs: Tree, state: dict[str, np.ndarray], **further: Any
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """The outputs by name, and the next state."""
        known = self.about["inputs"]
        given = {".".join(map(str, ("obs", *path))): leaf for path, leaf in tree.flatten_with_path(obs)}
        given |= {name: value for name, value in further.items() if name in known}
        given = {name: np.asarray(value, known[name]["dtype"]) for name, value in given.items()}
        out = dict(zip(self.about["outputs"], self.session.run(self.about["outputs"], given | state), strict=True))
        return out, {name.removeprefix("next_"): x for name, x in out.items() if name.startswith("next_")}


def compare(path: Path, module: RLModule, episodes: Episodes, *, explore: bool = False) -> None:
    """Assert that an ONNX file acts as the runner did or, if it explores, as the module does with the same noise."""
    server, step, rng = Server(path), ActingStep(module), np.random.default_rng(0)
    num, dist_cls = episodes.starts.shape[1], module.action_dist_cls
    state, memory, noise = server.state(num), step.new_memory(num), None
    for t, (obs, starts, rewards) in enumerate(episodes.steps()):
        if explore:
            noise = dist_cls.draw_noise(rng, num, dist_cls.required_input_dim(module.action_space))
            assert noise is not None
            assert noise.shape[1] == sum(part["width"] for part in server.about["noise"])
        rewards = np.zeros(num, np.float32) if rewards is None else rewards

        def choose(dist: Distribution, noise: Tensor | None = noise) -> Tree:
            return dist.to_deterministic().sample() if noise is None else dist.sample_from(noise)

        out, state = server.step(obs, state, starts=starts, prev_reward=rewards, noise=noise)
        seen, more = tree.map_structure(torch.from_numpy, obs), (torch.from_numpy(starts), torch.from_numpy(rewards))
        with torch.no_grad():
            inputs, actions, memory = step(seen, memory, *more, choose, explore)
            ties = choose(dist_cls.from_logits(torch.from_numpy(out["dist_inputs"])))
        np.testing.assert_allclose(out["dist_inputs"], inputs, rtol=1e-5, atol=1e-5)
        expected = tree.map_structure(Tensor.numpy, actions) if explore else at(episodes.actions, t)
        mine = [out[name] for name in server.about["outputs"] if name.split(".")[0] == "action"]
        for own, theirs, tie in zip(mine, *map(tree.flatten, (expected, module.action_converter(ties))), strict=True):
            assert (own.dtype, own.shape) == (theirs.dtype, theirs.shape)
            if own.dtype.kind != "f" and not np.array_equal(own, theirs):
                assert np.array_equal(own, tie)  # two that are equally likely up to rounding
                return
            np.testing.assert_allclose(own, theirs, rtol=1e-5, atol=1e-5)
        following = dict(zip(state, map(Tensor.numpy, tree.flatten(memory)), strict=True))
        for name, own in state.items():
            np.testing.assert_allclose(own, following[name], rtol=1e-5, atol=1e-5)
        state = following  # so that rounding does not add up over the steps, through actions that the module sees


LOADING = """
import hashlib, sys
import numpy as np, torch, tree
from rlmodule import Policy
from rlmodule.agents import MultiAgentPolicy
torch.set_num_threads(1)
for folder in sys.argv[1:]:
    folder, _, module_id = folder.partition("@")
    policy = MultiAgentPolicy.load(folder)[module_id] if module_id else Policy.load(folder)
    folder += module_id
    data, state = np.load(folder + ".npz"), None
    leaves = [data[f"obs{i}"] for i in range(sum(name.startswith("obs") for name in data))]
    digest, rewards = hashlib.sha256(), None
    for t in range(len(data["starts"])):
        obs = tree.unflatten_as(policy.module.observation_space.sample(), [leaf[t] for leaf in leaves])
        actions, state = policy.act_batch(obs, state, starts=data["starts"][t], rewards=rewards)
        rewards = data["rewards"][t]
        for leaf in tree.flatten(actions):
            digest.update(leaf.tobytes())
    print(digest.hexdigest())
print(*sorted(sys.modules))
"""


def in_a_fresh_process(policies: Sequence[tuple[str, Episodes]]) -> tuple[list[str], list[str]]:
    """The digests of what saved policies do in another process, and the modules that it imported.

    A policy is a folder, or ``folder@id`` for one of several agents.
    """
    for folder, episodes in policies:
        leaves = {f"obs{i}": leaf for i, leaf in enumerate(tree.flatten(episodes.obs))}
        np.savez(f"{folder.replace('@', '')}.npz", starts=episodes.starts, rewards=episodes.rewards, **leaves)
    command = [sys.executable, "-c", LOADING, *(folder for folder, _ in policies)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    *digests, modules = done.stdout.splitlines()
    return digests, modules.split()


def digest_of(actions: Tree) -> str:
    """The digest that :data:`LOADING` prints of these actions."""
    digest = hashlib.sha256()
    for t in range(STEPS):
        for leaf in tree.flatten(at(actions, t)):
            digest.update(leaf.tobytes())
    return digest.hexdigest()
