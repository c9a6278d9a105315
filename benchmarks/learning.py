"""Measure how well our algorithms learn, and put a table for each into `docs/learning.md`.

    python -m benchmarks.learning [--algo DQN] [--envs CartPole-v1 Acrobot-v1] [--seeds 5] [--workers 2] [--write]

    python -m benchmarks.learning --algo PPO-agents

Each run is a process of its own with one torch thread: it trains for as long as the next iteration still fits into the
budget of env steps. PPO then plays 20 greedy episodes, and their mean return is the run's. DQN plays 20 after every
5,000 env steps, and the best of these means is the run's; the last one stands next to it. An env's figure is the median
over its seeds. The training window is the mean return of the last 100 training episodes, which explore.

Each run that ends is added to `benchmarks/learning.jsonl`, and is not repeated: a command that was interrupted
continues, its unfinished runs from their last checkpoint in `runs/learning`, and the tables show all seeds that were
run. `--stale` makes those runs again, and no others, that were measured with other code than today's or before digests
of it were kept, as `python -m benchmarks.tables` lists them. The last line of a seed counts.
"""

import argparse
import json
import os
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from algorithms.algorithm import Algorithm
from algorithms.registry import config_class
from algorithms.run.aggregates import Floats, bootstrap_interval, compare, iqm
from algorithms.run.jobs import Job, Jobs
from algorithms.sac.sac import FLASH, PLAIN
from algorithms.tuning.trials import raise_if_stopped
from benchmarks.run import machine, write
from benchmarks.tables import AGENTS, COMPUTING, FEWEST_FOR_INTERVAL, ROOT, SAMPLING, digest, typed

DOC = ROOT / "docs" / "learning.md"
RUNS = ROOT / "benchmarks" / "learning.jsonl"
"""Every run that has ended, a line of JSON each: what it depends on, its result, and where it ran."""
UNFINISHED = ROOT / "runs" / "learning"
"""A folder for each run that has not ended, with its last checkpoint."""
CHECKPOINTS = 10  # of a run
PROGRESS, RESULT = "progress ", "result "
"""What a run's own lines begin with: its process may print others, on stderr too, which is read with them."""


@dataclass(frozen=True)
class Goal:
    """What an algorithm must reach on an env: a mean return of 20 greedy episodes within a number of env steps.

    Attributes:
        algo: Its name in `algorithms.registry`.
        env_id: A Gymnasium id, or the name of an env of several agents.
        budget: Env steps; the last iteration is the last that fits.
        floor: The least mean return.
        settings: Those that are not the algorithm's defaults, JSON values.
        evaluate_every: Env steps between evaluations, of which the best counts; None evaluates at the end alone.
        part: What it is about, where there are several on one env.
        best: Whether the best evaluation counts, else the last.
        figure: What an evaluation measures, a key of `FIGURES`.
        episodes: Episodes of an evaluation.
        most_seeds: Seeds of a run that takes long.
    """

    algo: str
    env_id: str
    budget: int
    floor: float
    settings: dict[str, Any] = field(default_factory=dict)
    evaluate_every: int | None = None
    best: bool = True
    part: str = ""
    figure: str = "return"
    episodes: int = 20
    most_seeds: int = 5

    def __str__(self) -> str:
        return f"{self.algo} {self.where}"

    @property
    def where(self) -> str:
        """The env and the part."""
        return f"{self.env_id}, {self.part}" if self.part else self.env_id

    def job(self) -> dict[str, Any]:
        """All that a run depends on, but for its seed, as JSON values."""
        job = asdict(self)
        for name in ("floor", "part", "most_seeds"):
            del job[name]
        return json.loads(json.dumps(job))

    def folder(self, seed: int) -> Path:
        """Where an unfinished run is kept."""
        return UNFINISHED / sha256(json.dumps([self.job(), seed]).encode()).hexdigest()[:16]


def _return(algorithm: Algorithm) -> float:
    """Mean return of greedy episodes; of several agents, their sum."""
    return algorithm.evaluate()["env_runners"]["episode_return_mean"]


def _return_per_agent(algorithm: Algorithm) -> float:
    """Mean return of greedy episodes, over all agents."""
    return fmean(algorithm.evaluate()["env_runners"]["agent_episode_returns_mean"].values())


def _wins_against_random(algorithm: Algorithm) -> float:
    """Percentage of 100 games of connect four that the greedy policy wins against random moves, in its worse seat."""
    rng = np.random.default_rng(12345)
    return min(_wins(algorithm, seat, rng) for seat in ("player_0", "player_1"))


def _wins(algorithm: Algorithm, seat: str, rng: np.random.Generator, num_games: int = 100) -> int:
    import pettingzoo

    wins = 0
    for _ in range(num_games):
        env: Any = pettingzoo.make("aec", "classic/connect_four-v3")
        env.reset(seed=int(rng.integers(2**31)))
        state = None
        while not any(env.terminations.values()):
            agent = env.agent_selection
            obs = env.observe(agent)
            if agent == seat:
                actions, state = algorithm.policies.act({agent: obs}, state)
                env.step(actions[agent])
            else:
                env.step(int(rng.choice(np.flatnonzero(obs["action_mask"]))))
        wins += env.rewards[seat] == 1
    return wins


def _return_in_training(algorithm: Algorithm) -> float:
    """Mean return of the last 100 training episodes."""
    return algorithm.metrics.training_return


FIGURES = {
    "return": _return,
    "return in training": _return_in_training,
    "return per agent": _return_per_agent,
    "wins against random": _wins_against_random,
}
"""What an evaluation measures."""

PARTS: dict[str, dict[str, Any]] = {
    "none": {},
    "double": {"double_q": True},
    "dueling": {"dueling": True},
    "3-step": {"n_step": 3},
    "prioritized": {"prioritized_replay": True},
    "51 atoms": {"num_atoms": 51, "v_min": 0.0, "v_max": 100.0},
    "noisy": {"noisy": True},
}
"""Settings that turn on each part of Rainbow; all others are off."""

_NETS = PLAIN["model_config"]
SAC_PARTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "normalised observations": {"model_config": _NETS | {"normalize_observations": True}},
    "layer norm": {"model_config": _NETS | {"fcnet_norm": "layer"}},
    "residual blocks": {"model_config": _NETS | {"fcnet_hiddens": [256, 256], "fcnet_blocks": "simba"}},
    "half the target entropy": {"target_entropy": -3.0},
    "two updates of half a batch": {"train_batch_size_per_learner": 128},
    "layer norm, two updates of half a batch": {
        "train_batch_size_per_learner": 128,
        "model_config": _NETS | {"fcnet_norm": "layer"},
    },
    "normalised observations, layer norm": {
        "model_config": _NETS | {"fcnet_norm": "layer", "normalize_observations": True}
    },
}
"""Settings that may make SAC stronger: one at a time, and those that did, together."""
DEFAULT = "normalised observations"
"""The part that SAC has by default."""


def _on_presets(algo: str, floors: Mapping[str, float], **others: Any) -> dict[str, Goal]:
    """Goals on the envs that `algo` has presets for: their budgets and settings, and `others` of the attributes."""
    presets = config_class(algo).presets
    return {
        env_id: Goal(algo, env_id, presets[env_id].num_env_steps, floor, dict(presets[env_id].settings), **others)
        for env_id, floor in floors.items()
    }


CARTPOLES, SPREAD, CONNECT_FOUR = "rlmodule.agents.cartpoles", "mpe2.simple_spread_v3", "classic/connect_four-v3"
FORAGING = "benchmarks.foraging"
STATE_SPREAD = "benchmarks.spread_with_state"
BRICKS = "benchmarks.bricks:Bricks-v0"
PONG = "ALE/Pong-v5"
STATELESS = "benchmarks.stateless:StatelessCartPole-v0"

_FORAGING = {"train_batch_size_per_learner": 4096, "minibatch_size": 1024, "lr": 7e-4, "entropy_coeff": 0.01}
_TQC = {"num_critics": 5, "num_quantiles": 25, "drop_quantiles": 2}
_PENDULUM = dict(config_class("SAC").presets["Pendulum-v1"].settings)
_DROQ_PENDULUM = _PENDULUM | {
    "policy_value": "mean",
    "training_intensity": 20 * 128.0,
    "model_config": _PENDULUM["model_config"]
    | {"functions": {"value": {"fcnet_dropout": 0.01, "fcnet_norm": "layer"}}},
}
_QR_DQN_OF_ZOO = {  # 128 updates after every 256 steps; exploration ends after 16 % of the steps
    "num_quantiles": 10,
    "n_step": 1,
    "double_q": False,
    "num_envs_per_env_runner": 1,
    "rollout_fragment_length": 256,
    "train_batch_size_per_learner": 64,
    "training_intensity": 32.0,
    "target_network_update_freq": 256,
    "lr": 2.3e-3,
    "epsilon": [[0, 1.0], [8_000, 0.04]],
    "model_config": {"fcnet_hiddens": [256, 256]},
}
_BATCHED: dict[str, Any] = {"gym_env_vectorize_mode": "vector_entry_point"}
_SAC_BATCHED = _BATCHED | {
    "num_envs_per_env_runner": 512,
    "train_batch_size_per_learner": 256,
    "training_intensity": 8.0,  # 16 updates for each step of all envs
    "num_steps_sampled_before_learning_starts": 5120,
    "num_env_steps_per_iteration": 10_240,
}
_LSTM_BATCHED = _BATCHED | {
    "num_envs_per_env_runner": 64,
    "train_batch_size_per_learner": 4096,
    "minibatch_size": 1024,
    "num_epochs": 8,
    "lr": 1e-3,
    "model_config": {"use_lstm": True, "max_seq_len": 16},
}
_ALL_GAMES = dict(config_class("PPO").presets["ALE/*"].settings)
_PONG = config_class("PPO").presets[PONG].settings
_LARGER_STEPS = {name: value for name, value in _PONG.items() if name != "env_config"} | {
    "minibatch_size": 128,
    "num_epochs": 2,
    "lr": [[0, 5e-4], [2_000_000, 5e-4], [2_500_000, 0.0]],
}
_FEW_STEPS = {"num_epochs": 4, "minibatch_size": 256}
_BRICKS = {
    "num_envs_per_env_runner": 8,
    "train_batch_size_per_learner": 1024,
    "minibatch_size": 256,
    "num_epochs": 4,
    "lr": 5e-4,
    "entropy_coeff": 0.01,
}

GOALS = {
    "PPO": _on_presets(
        "PPO",
        {
            "CartPole-v1": 475,
            "Acrobot-v1": -90,
            "MountainCarContinuous-v0": 90,
            "Pendulum-v1": -200,
            "LunarLander-v3": 180,
            "HalfCheetah-v5": 1500,
        },
    ),
    "DQN": _on_presets(
        "DQN",
        {"CartPole-v1": 475, "Acrobot-v1": -90, "MountainCar-v0": -120, "LunarLander-v3": 250},
        evaluate_every=5000,
    ),
    "PPO-agents": {
        **_on_presets("PPO", {CARTPOLES: 450}, figure="return per agent"),
        "own": Goal(
            "PPO",
            CARTPOLES,
            300_000,
            450,
            {"policies": "own", "minibatch_size": 256},
            part="own",
            figure="return per agent",
        ),
        **_on_presets(
            "PPO",
            {SPREAD: -16.6},
            figure="return per agent",
            evaluate_every=1_000_000,
            best=False,
            episodes=100,
            most_seeds=3,
        ),
        **_on_presets("PPO", {CONNECT_FOUR: 90}, figure="wins against random", most_seeds=3),
        "8x8-2p-2f-coop": Goal(
            "PPO",
            FORAGING,
            3_000_000,
            0.9,
            {"policies": "shared", "num_envs_per_env_runner": 32, **_FORAGING},
            evaluate_every=1_000_000,
            best=False,
            part="8x8-2p-2f-coop",
            episodes=100,
            most_seeds=1,
        ),
    },
    "central-critic": {
        part: Goal(
            "PPO",
            env_id,
            1_000_000,
            -20,
            dict(config_class("PPO").presets[SPREAD].settings) | ({"model_config": model} if model else {}),
            part=part,
            figure="return per agent",
            episodes=100,
        )
        for part, env_id, model in (
            ("each agent's critic", SPREAD, {}),
            ("central critic", STATE_SPREAD, {"critic_only_keys": ["state"], "flatten_observations": True}),
        )
    },
    "PPO-ahead": {
        f"{env_id}, {part}{', sampled ahead' if ahead else ''}": Goal(
            "PPO",
            env_id,
            budget,
            floor,
            {**settings, "sample_ahead": 1} if ahead else settings,
            part=f"{part}{', sampled ahead' if ahead else ''}",
            figure="return in training",
            most_seeds=5 if env_id == "LunarLander-v3" else 20,
        )
        for env_id, part, budget, floor, settings in (
            ("CartPole-v1", "4 epochs of 256", 98_304, 200, {"train_batch_size_per_learner": 1024} | _FEW_STEPS),
            ("CartPole-v1", "10 epochs of 64", 49_152, 300, {"train_batch_size_per_learner": 1024}),
            ("HalfCheetah-v5", "10 epochs of 256", 204_800, 300, {"minibatch_size": 256}),
            ("HalfCheetah-v5", "10 epochs of 64", 122_880, -100, {}),
            ("LunarLander-v3", "10 epochs of 256", 184_320, -50, {"minibatch_size": 256}),
        )
        for ahead in (False, True)
    },
    "PPO-images": {
        part: Goal(
            "PPO",
            BRICKS,
            300_000,
            15,
            _BRICKS | {"model_config": {"vf_share_layers": share}},
            evaluate_every=50_000,
            best=False,
            part=part,
            episodes=50,
            most_seeds=3,
        )
        for part, share in (("two encoders", False), ("one encoder", True))
    },
    "PPO-novelty": {
        part: Goal(
            "PPO",
            "MountainCar-v0",
            500_000,
            -130,
            {"model_config": {"normalize_observations": True}} | added,
            evaluate_every=100_000,
            best=False,
            part=part,
            most_seeds=3,
        )
        for part, added in (("no bonus", {}), ("rnd_coeff=0.1", {"rnd_coeff": 0.1}))
    },
    "SAC": _on_presets("SAC", {"CartPole-v1": 475, "Pendulum-v1": -160})
    | _on_presets("SAC", {"LunarLanderContinuous-v3": 200}, most_seeds=3)
    | _on_presets("SAC", {"HalfCheetah-v5": 4520, "Hopper-v5": 798}, most_seeds=3)  # 1.15 times plain SAC's
    | {
        f"{env_id}, plain": Goal("SAC", env_id, 100_000, floor, PLAIN, part="plain", most_seeds=3)
        for env_id, floor in (("HalfCheetah-v5", 3900), ("Hopper-v5", 500))
    }
    | {
        "HalfCheetah-v5, plain, on to 300k": Goal(
            "SAC",
            "HalfCheetah-v5",
            300_000,
            3900,
            PLAIN,
            evaluate_every=100_000,
            best=False,
            part="plain, on to 300k",
            most_seeds=1,
        )
    },
    "SAC-parts": {
        part: Goal(
            "SAC", "HalfCheetah-v5", 100_000, 3900, {} if part == DEFAULT else PLAIN | on, part=part, most_seeds=2
        )
        for part, on in SAC_PARTS.items()
    },
    "DQN-quantiles": {
        env_id: Goal(
            "DQN",
            env_id,
            preset.num_env_steps,
            floor,
            {**preset.settings, "num_quantiles": 50},
            evaluate_every=preset.num_env_steps // 10,
            best=False,
        )
        for env_id, floor in {"CartPole-v1": 475, "LunarLander-v3": 230}.items()
        for preset in (config_class("DQN").presets[env_id],)
    }
    | {
        "rl-zoo's settings": Goal(
            "DQN",
            "CartPole-v1",
            50_000,
            500,
            _QR_DQN_OF_ZOO,
            evaluate_every=5_000,
            best=False,
            part="rl-zoo's settings",
        )
    },
    "SAC-critics": {
        "Pendulum-v1, TQC": Goal("SAC", "Pendulum-v1", 20_000, -160, _PENDULUM | _TQC, part="TQC"),
        "Pendulum-v1, DroQ": Goal("SAC", "Pendulum-v1", 5_000, -200, _DROQ_PENDULUM, part="DroQ"),
    },
    "SAC-Hopper": {
        part: Goal("SAC", "Hopper-v5", 100_000, floor, settings, part=part)
        for part, settings, floor in (("defaults", {}, 798), ("TQC", _TQC, 1000))
    },
    "SAC-flash": {
        part: Goal("SAC", "HalfCheetah-v5", 100_000, floor, settings, part=part, most_seeds=3)
        for part, settings, floor in (("defaults", {}, 4520), ("flash", FLASH, 6647))  # 1.15 times the defaults'
    },
    "tensors": {
        part: Goal(
            algo, f"benchmarks.tensor_envs:{env}", budget, floor, settings, None, True, part, "return in training", 1, 3
        )
        for algo, part, env, budget, floor, settings in (
            ("SAC", "512 Pendulums", "Pendulums-v0", 307_200, -200, _SAC_BATCHED),
            ("PPO", "64 CartPoles without velocities, LSTM", "PositionCarts-v0", 400_000, 450, _LSTM_BATCHED),
        )
    },
    "PPO-Pong": _on_presets("PPO", {PONG: 15}, evaluate_every=100_000, best=False, episodes=10, most_seeds=1)
    | {
        part: Goal(
            "PPO",
            PONG,
            2_500_000,
            15,
            settings,
            evaluate_every=250_000,
            best=False,
            part=part,
            episodes=10,
            most_seeds=1,
        )
        for part, settings in (
            ("sticky actions, the preset of all games", _ALL_GAMES),
            ("sticky actions, minibatches of 128", _LARGER_STEPS),
        )
    },
    "A2C": _on_presets("A2C", {"CartPole-v1": 475, "Acrobot-v1": -90}),
    "IMPALA": _on_presets("IMPALA", {"CartPole-v1": 475}),
    "APPO": _on_presets("APPO", {"CartPole-v1": 475, "Pendulum-v1": -200})
    | {
        "LSTM": Goal(
            "APPO", STATELESS, 500_000, 400, {"num_env_runners": 1, "model_config": {"use_lstm": True}}, part="LSTM"
        )
    },
    "TD3": _on_presets("TD3", {"Pendulum-v1": -160})
    | {"defaults": Goal("TD3", "HalfCheetah-v5", 100_000, 1560, part="defaults", most_seeds=3)},
    "DDPG": _on_presets("DDPG", {"Pendulum-v1": -200}),
    "DQN-parts": {
        part: Goal(
            "DQN", "CartPole-v1", 50_000, 475, {"double_q": False, "n_step": 1} | on, evaluate_every=5000, part=part
        )
        for part, on in PARTS.items()
    },
}
"""Table → what it is about → goal."""
COMPARED = ("central-critic", "PPO-images", "PPO-ahead", "PPO-novelty", "SAC-Hopper", "SAC-flash")
"""Tables whose second row is compared with the first, the fourth with the third, and so on."""
ENVS = list(dict.fromkeys(goal.env_id for goals in GOALS.values() for goal in goals.values()))

Report = Callable[[int, float], None]  # called after each iteration: env steps so far, mean return in training


@dataclass(frozen=True)
class Run:
    """The result of one run: the mean return of the greedy episodes that count, and of the last ones.

    Attributes:
        evaluations: Env steps and mean return of every evaluation.
        machine: Where it ran, and when.
        code: The digest of the code that it began with; None if it was measured before digests were kept.
    """

    goal: str
    seed: int
    env_steps: int
    figure: float
    last: float
    window: float
    seconds: float
    evaluations: list[tuple[int, float]] = field(default_factory=list)
    machine: str = ""
    code: str | None = None

    def __str__(self) -> str:
        return (
            f"{self.goal} seed {self.seed}: {self.figure:,.1f} greedy ({self.last:,.1f} at the end), "
            f"{self.window:,.1f} in training, {self.env_steps:,} steps in {self.seconds:,.0f} s"
        )


@dataclass(frozen=True)
class Row:
    """All runs towards one goal."""

    goal: Goal
    runs: list[Run]

    @property
    def figure(self) -> float:
        """Median over the seeds."""
        return median(run.figure for run in self.runs)

    @property
    def reached(self) -> bool:
        """Whether the figure is at least the floor."""
        return self.figure >= self.goal.floor

    def cells(self) -> dict[str, str]:
        """The line as text, by column."""
        many, digits = self.goal.evaluate_every is not None, 0 if abs(self.goal.floor) >= 50 else 1
        at_the_end = {"at the end": _listed((run.last for run in self.runs), digits)} if many and self.goal.best else {}
        return {
            "env": self.goal.where,
            "budget": f"{self.goal.budget:,}",
            "figure": f"{self.figure:,.{digits}f}",
            "IQM, 95 % interval": self._iqm(digits),
            "all seeds": _listed((run.figure for run in self.runs), digits),
            **at_the_end,
            "training window": _listed((run.window for run in self.runs), digits),
            "floor": f"≥ {self.goal.floor:,.{digits}f}",
            "reached": "yes" if self.reached else "no",
        }

    def _iqm(self, digits: int) -> str:
        """The interquartile mean and its interval; with few seeds none."""
        if len(self.runs) < FEWEST_FOR_INTERVAL:
            return "–"
        low, high = bootstrap_interval(iqm, self.scores)
        return f"{iqm(self.scores):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"

    @property
    def scores(self) -> list[Floats]:
        """The figures of the seeds, as the one task of `algorithms.run.aggregates`."""
        return [np.array([run.figure for run in self.runs])]

    def along_the_way(self) -> str:
        """The median of each evaluation but the last, by env steps."""
        found: dict[int, list[float]] = {}
        for run in self.runs:
            for steps, figure in run.evaluations[:-1]:
                found.setdefault(steps, []).append(figure)
        return ", ".join(f"{median(figures):,.1f} after {steps:,}" for steps, figures in found.items())


def difference(first: Row, second: Row) -> str:
    """By how much the second goal's interquartile mean exceeds the first one's, and whether it is better."""
    where = f" on {first.goal.env_id}" if first.goal.part in second.goal.part else ""  # one of several pairs
    found = compare(second.scores, first.scores)
    interval = f" its 95 % interval {found.low:+,.1f} to {found.high:+,.1f},"
    if min(len(first.runs), len(second.runs)) < FEWEST_FOR_INTERVAL:
        interval = ""
    return (
        f"IQMs: {iqm(second.scores):,.1f} with {second.goal.part} and {iqm(first.scores):,.1f} with "
        f"{first.goal.part}{where}; the difference is {found.difference:+,.1f},{interval} "
        f"p = {found.p_value:.2g}: {found.verdict}."
    )


def _listed(figures: Iterable[float], digits: int) -> str:
    return ", ".join(f"{figure:,.{digits}f}" for figure in figures)


def sources(goal: Goal) -> tuple[str, ...]:
    """The files and folders that a run towards `goal` depends on."""
    # evaluations make the figure, although the rest of what stands around a run does not
    places = [f"algorithms/{goal.algo.lower()}", "algorithms/run/evaluation.py", *COMPUTING, *SAMPLING]
    if goal.settings.get("policies") is not None:
        places += AGENTS
    module = goal.env_id.partition(":")[0]
    if module.startswith("benchmarks."):
        places.append(f"{module.replace('.', '/')}.py")
    return tuple(places)


def train(goal: Goal, seed: int, report: Report = lambda steps, mean: None) -> Run:
    """Train towards `goal` in this process, from the last checkpoint of the run if it was interrupted.

    Args:
        goal: Its `floor` is not looked at.
        seed: Of the run.
        report: Called as it goes.

    Raises:
        ValueError: If not even one iteration fits into the budget.
    """
    folder = goal.folder(seed)
    every = goal.budget if goal.evaluate_every is None else goal.evaluate_every
    figure_of, evaluations = FIGURES[goal.figure], list[tuple[int, float]]()
    iteration, window, seconds = 0, 0.0, 0.0
    code: str | None = digest(sources(goal))
    with _begun(goal, seed) as algorithm:
        if algorithm.env_steps:
            iteration, window, seconds, kept, code = json.loads((folder / "progress.json").read_text())
            evaluations = [(steps, figure) for steps, figure in kept if steps <= algorithm.env_steps]
        while algorithm.env_steps + iteration <= goal.budget:
            before = algorithm.env_steps
            result = algorithm.train()
            iteration = algorithm.env_steps - before
            if iteration > goal.budget:
                raise ValueError(f"budget: expected at least one iteration of {iteration}, got {goal.budget}")
            window, seconds = result["env_runners"]["episode_return_mean"], result["time_total_s"]
            report(algorithm.env_steps, window)
            if algorithm.env_steps // every > before // every:
                evaluations.append((algorithm.env_steps, round(figure_of(algorithm), 2)))
            if algorithm.env_steps * CHECKPOINTS // goal.budget > before * CHECKPOINTS // goal.budget:
                folder.mkdir(parents=True, exist_ok=True)
                (new := folder / "progress.new").write_text(json.dumps([iteration, window, seconds, evaluations, code]))
                new.replace(folder / "progress.json")  # in one step, for the run may be killed at any moment
                algorithm.save(folder / "checkpoint")
        if not evaluations or evaluations[-1][0] < algorithm.env_steps:
            evaluations.append((algorithm.env_steps, round(figure_of(algorithm), 2)))
        steps = algorithm.env_steps
    shutil.rmtree(folder, ignore_errors=True)
    figures = [figure for _, figure in evaluations]
    figure, rest = max(figures) if goal.best else figures[-1], (round(window, 2), round(seconds, 2))
    return Run(str(goal), seed, steps, figure, figures[-1], *rest, evaluations, machine(), code)


def _begun(goal: Goal, seed: int) -> Algorithm:
    """The run as its last checkpoint holds it, else at its start."""
    if (checkpoint := goal.folder(seed) / "checkpoint").exists():
        return Algorithm.from_checkpoint(checkpoint, allow=["benchmarks"])
    config = config_class(goal.algo)(**goal.settings).environment(goal.env_id).debugging(seed=seed)
    return config.evaluation(evaluation_duration=goal.episodes).build()


def stored(goal: Goal) -> list[Run]:
    """The runs towards `goal` that have ended, in the order of their seeds; of each seed the last."""
    lines = RUNS.read_text(encoding="utf-8").splitlines() if RUNS.exists() else []
    job = goal.job()
    found = [each["run"] for line in lines if (each := json.loads(line))["job"] == job]
    by_seed = {run["seed"]: Run(str(goal), **run) for run in found}
    return [by_seed[seed] for seed in sorted(by_seed)]


def store(goal: Goal, run: Run) -> None:
    """Add a run to those that have ended."""
    numbers = asdict(run)
    del numbers["goal"]
    with RUNS.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"job": goal.job(), "run": numbers, "command": typed()}) + "\n")


def _missing(goal: Goal, seeds: int) -> list[int]:
    """The first `seeds` without those that are stored."""
    found = {run.seed for run in stored(goal)}
    return [seed for seed in range(min(seeds, goal.most_seeds)) if seed not in found]


def _stale(goal: Goal) -> list[int]:
    """The seeds that are not stored with the digest of today's code."""
    code = digest(sources(goal))
    return [run.seed for run in stored(goal) if run.code != code]


def measure(goals: list[Goal], seeds: int, workers: int, console: Console, stale: bool = False) -> list[Row]:
    """Run every goal on every seed that is not stored, `workers` at a time, the longest first.

    Prints and stores each run as it finishes. Returns a row with all stored seeds for each goal that has any.

    Args:
        goals: What to reach.
        seeds: Of each goal.
        workers: Runs at a time.
        console: Shows how far they are.
        stale: Whether to make those runs again, instead, that are stored with another digest than today's or with none.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    waiting = [
        (goal, seed)
        for goal in sorted(goals, key=lambda goal: -goal.budget)
        for seed in (_stale(goal) if stale else _missing(goal, seeds))
    ]
    steps_done: dict[str, int] = {}
    tasks: dict[str, TaskID] = {}
    last_lines: dict[str, deque[str]] = {}
    results: dict[str, str] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        total = progress.add_task("env steps", total=sum(goal.budget for goal, _ in waiting))

        def report(name: str, line: str) -> None:
            last_lines[name].append(line)
            if line.startswith(RESULT):
                results[name] = line.removeprefix(RESULT)
            elif line.startswith(PROGRESS):
                steps_done[name], mean = json.loads(line.removeprefix(PROGRESS))
                progress.update(tasks[name], completed=steps_done[name], description=f"{name}: {mean:,.0f} in training")
                progress.update(total, completed=sum(steps_done.copy().values()))

        def start(goal_and_seed: tuple[Goal, int]) -> Job:
            goal, seed = goal_and_seed
            name = f"{goal} seed {seed}"
            tasks[name] = progress.add_task(name, total=goal.budget)
            last_lines[name] = deque(maxlen=15)
            return jobs.start(name, ["--one", json.dumps(asdict(goal)), str(seed)])

        with Jobs(workers, report, program="benchmarks.learning") as jobs:
            for (goal, _), job in jobs.run_all(waiting, start):
                progress.remove_task(tasks[job.name])
                if job.exit_code != 0:
                    if jobs.stopped_by is not None:
                        continue
                    tail = "\n".join(last_lines[job.name])
                    raise RuntimeError(f"{job.name} failed with exit status {job.exit_code}:\n{tail}")
                run = Run(**json.loads(results[job.name]))
                store(goal, run)
                console.print(str(run), highlight=False, soft_wrap=True)
    raise_if_stopped(jobs, UNFINISHED)
    return [Row(goal, runs) for goal in goals if (runs := stored(goal))]


def markdown(rows: list[Row], name: str) -> str:
    """The table called `name` for the page, and which settings were not the algorithm's defaults."""
    header = tuple(rows[0].cells())
    lines = [header, ("---",) * len(header), *(tuple(row.cells().values()) for row in rows)]
    table = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    tuned = [f"- {row.goal.where}: {_settings(row.goal)}" for row in rows if row.goal.settings]
    stated = "\n\nSettings other than the defaults:\n\n" + "\n".join(tuned) if tuned else ""
    way = [f"- {row.goal.where}: {text}" for row in rows if not row.goal.best and (text := row.along_the_way())]
    stated += "\n\nMedians along the way:\n\n" + "\n".join(way) if way else ""
    if name in COMPARED and len(rows) % 2 == 0:
        stated += "".join(f"\n\n{difference(*pair)}" for pair in zip(rows[::2], rows[1::2], strict=True))
    seeds = max(len(row.runs) for row in rows)
    command = f"python -m benchmarks.learning --algo {name} --seeds {seeds}"
    most = "at most " if any(len(row.runs) < seeds for row in rows) else ""
    where: dict[str, set[str]] = {}
    for run in (run for row in rows for run in row.runs):
        day, _, host = run.machine.partition(", ")
        where.setdefault(host, set()).add(day)
    machines = "; ".join(f"{' to '.join(sorted({min(days), max(days)}))}, {host}" for host, days in where.items())
    runs = f"Medians of {most}{seeds} seeds" if seeds > 1 else "One seed"
    return f"{table}{stated}\n\n{runs}, `{command}`. {machines}."


def _settings(goal: Goal) -> str:
    return ", ".join(f"`{name}={value!r}`" for name, value in goal.settings.items())


def show(rows: list[Row], name: str, console: Console) -> None:
    """Print the table called `name`."""
    if not console.is_terminal:
        print(markdown(rows, name))
        return
    table = Table(*rows[0].cells(), title=name, box=box.SIMPLE)
    for row in rows:
        table.add_row(*row.cells().values(), style=None if row.reached else "bold")
    console.print(table)


def _one(goal: Goal, seed: int) -> None:
    """A run as a process with one thread: a line per iteration, and its result at the end, as JSON."""
    torch.set_num_threads(1)
    os.environ["SDL_VIDEODRIVER"] = "dummy"
    os.environ["PYGAME_HIDE_SUPPORT_PROMPT"] = "1"

    def report(steps: int, mean: float) -> None:
        print(f"{PROGRESS}{json.dumps([steps, mean])}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # MuJoCo leaves a log where it runs
        run = train(goal, seed, report)
        os.chdir(ROOT)
    print(f"{RESULT}{json.dumps(asdict(run))}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--algo", nargs="+", choices=list(GOALS), default=list(GOALS), help="tables; default: all")
    parser.add_argument("--envs", nargs="+", choices=ENVS, default=ENVS, help="those it has goals for; default: all")
    parser.add_argument(
        "--seeds", type=int, default=5, help="runs on each env; 0 shows those stored (default: %(default)s)"
    )
    parser.add_argument("--workers", type=int, default=2, help="runs at a time (default: %(default)s)")
    parser.add_argument("--stale", action="store_true", help="only make again what other code than today's made")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/learning.md")
    parser.add_argument("--one", nargs=2, metavar=("GOAL", "SEED"), help="one run in this process, all as JSON")
    args = parser.parse_args(argv)
    if args.one:
        _one(Goal(**json.loads(args.one[0])), int(args.one[1]))
        return
    if args.seeds < 0 or args.workers < 1 or (args.write and set(args.envs) != set(ENVS)):
        parser.error("--seeds must be at least 0 and --workers at least 1; --write takes all envs")
    chosen = {name: [goal for goal in GOALS[name].values() if goal.env_id in args.envs] for name in args.algo}
    if not (goals := [goal for each in chosen.values() for goal in each]):
        parser.error(f"{', '.join(args.algo)} has no goal on {', '.join(args.envs)}")
    console = Console()
    rows = measure(goals, args.seeds, args.workers, console, args.stale)
    for name, goals in chosen.items():
        if not (table := [row for row in rows if row.goal in goals]):
            continue
        show(table, name, console)
        if args.write:
            write(markdown(table, name), DOC, name)
            console.print(f"written to {DOC}", highlight=False)


if __name__ == "__main__":
    main()
