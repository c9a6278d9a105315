"""Scores of losses that learn what actions are worth from data sets, next to those of cloning.

    python -m benchmarks.offline_values [--only Pendulum] [--seeds 3]    # minutes
    python -m benchmarks.offline_values --long [--only Hopper]           # hours: MuJoCo
    python -m benchmarks.offline_values --online                         # from data to env steps, on Pendulum

A data set is made by a run of SAC with a fixed seed, which no run that learns from it has. Its expert is the best of
the policies that the run had after every 5,000 steps. The medium data are 100 episodes of the first of them that is a
third of the way from random actions to the expert; the medium-replay data are all steps up to it.

Each score that is found is added to `benchmarks/offline.jsonl` and is not looked for again, and data sets are kept in
`runs/offline`: a command that was interrupted continues. `--stale` finds those scores again, and no others, that were
found with other code than today's or before digests of it were kept, as `python -m benchmarks.tables` lists them. The
last line of a seed counts.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from algorithms import Algorithm
from algorithms.bc import BCConfig
from algorithms.dqn import DQNConfig
from algorithms.iql import IQLConfig
from algorithms.recording import record, record_replay
from algorithms.sac import SACConfig
from algorithms.td3 import TD3Config
from benchmarks.offline import DATA_SEED, Data, cartpole, keep, kept, random_score, score_of, sources
from benchmarks.tables import ROOT, digest
from rlmodule import Dataset
from rlmodule.modules.rl_module import DEFAULT_MODULE_ID

FOLDER = ROOT / "runs" / "offline"
"""Data sets, and checkpoints of the runs that made them."""
STEPS_PER_CHECKPOINT = 5_000


def play(env_id: str, num_env_steps: int, settings: dict[str, Any]) -> list[dict[str, Any]]:
    """Train SAC and save it after every 5,000 steps. Return the path, env steps and score of each checkpoint."""
    folder = FOLDER / f"sac-{env_id}"
    listed = folder / "scores.json"
    if listed.exists():
        return json.loads(listed.read_text())
    newest = max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=0)
    config = SACConfig(env=env_id, seed=DATA_SEED, **settings)
    scores = json.loads((folder / "so_far.json").read_text()) if newest else []
    with Algorithm.from_checkpoint(folder / str(newest)) if newest else config.build() as sac:
        for env_steps in range(newest + STEPS_PER_CHECKPOINT, num_env_steps + 1, STEPS_PER_CHECKPOINT):
            sac.learn(num_env_steps=env_steps - sac.env_steps, progress=True)
            path = sac.save(folder / str(env_steps))
            scores.append({"path": str(path), "env_steps": env_steps, "score": score_of(sac, num_episodes=20)})
            (folder / "so_far.json").write_text(json.dumps(scores))
    listed.write_text(json.dumps(scores))
    return scores


def medium(env_id: str, *, replay: bool, num_env_steps: int = 100_000, **settings: Any) -> Data:
    """Return the medium or medium-replay data of SAC on an env."""
    scores, random = play(env_id, num_env_steps, settings), random_score(env_id)
    expert = max(entry["score"] for entry in scores)
    chosen = next(entry for entry in scores if entry["score"] >= random + (expert - random) / 3)
    path = FOLDER / f"{env_id}-{'medium-replay' if replay else 'medium'}"
    if not path.exists():
        with Algorithm.from_checkpoint(chosen["path"]) as sac:
            found = record_replay(sac) if replay else record(sac, num_episodes=100, explore=True)
            found[DEFAULT_MODULE_ID].save(path)
    return Data(Dataset.load(path), random, expert)


def pendulum_replay() -> Data:
    """Return the first 10,000 steps of SAC on Pendulum, most of them before it can swing up the pendulum."""
    path = FOLDER / "pendulum-replay"
    if not path.exists():
        with SACConfig.preset("Pendulum-v1").debugging(seed=DATA_SEED).build() as sac:
            sac.learn(num_env_steps=10_000)
            record_replay(sac)[DEFAULT_MODULE_ID].save(path)
    return Data(Dataset.load(path), random_score("Pendulum-v1"), -150.0)


def half_random_cartpole() -> Data:
    """Return 200 episodes of DQN on CartPole, with every second action drawn at random."""
    path = FOLDER / "cartpole-half-random"
    if not path.exists():
        cartpole(200, 0.5).dataset.save(path)
    return Data(Dataset.load(path), random_score("CartPole-v1"), 500.0)


DATA: dict[str, Callable[[], Data]] = {
    "Pendulum replay": pendulum_replay,
    "CartPole half-random": half_random_cartpole,
    "HalfCheetah medium": lambda: medium("HalfCheetah-v5", replay=False),
    "HalfCheetah medium-replay": lambda: medium("HalfCheetah-v5", replay=True),
    "Hopper medium": lambda: medium("Hopper-v5", replay=False),
}


@dataclass(frozen=True)
class Row:
    """What learns from which data.

    Attributes:
        data: A key of :data:`DATA`.
        name: Name of the algorithm in the table.
        config: Makes its config.
        settings: Settings that differ from those of ``config``.
        num_updates: Gradient steps.
        num_episodes: Episodes of the evaluation.
        bar: The score, or the multiple of BC's normalised score, to reach.
    """

    data: str
    name: str
    config: Callable[..., Any]
    settings: dict[str, Any] = field(default_factory=dict)
    num_updates: int = 10_000
    num_episodes: int = 100
    bar: str = ""

    def key(self) -> dict[str, Any]:
        """All that a score depends on, but for its seed, as JSON values."""
        return {"data": self.data, "name": self.name, "num_updates": self.num_updates, "settings": self.settings}


_SMALL: dict[str, Any] = {"model_config": {"fcnet_hiddens": [64, 64]}, "lr": 1e-3}
IQL_PENDULUM: dict[str, Any] = _SMALL | {"expectile": 0.8, "beta": 0.5}
CQL_PENDULUM = _SMALL | {"cql_alpha": 1.0, "cql_num_actions": 4, "actor_lr": 3e-4, "train_batch_size_per_learner": 128}
_LONG: dict[str, Any] = {"num_updates": 100_000, "num_episodes": 20}
# What Tarasov et al. (2023) publish for each of D4RL's data sets, times the width of its actions, as they sum distances
# over the numbers of an action.
_REBRAC: dict[str, dict[str, Any]] = {
    "HalfCheetah": {"bc_coeff": 0.006, "critic_bc_coeff": 0.06},
    "Hopper": {"bc_coeff": 0.03, "critic_bc_coeff": 0.03},
}
SHORT_ROWS = [
    Row("Pendulum replay", "BC", BCConfig),
    Row("Pendulum replay", "IQL", IQLConfig, IQL_PENDULUM, bar=">= -180"),
    Row("Pendulum replay", "CQL", SACConfig.cql, CQL_PENDULUM, bar=">= -180"),
    Row("CartPole half-random", "BC", BCConfig),
    Row("CartPole half-random", "DQN with CQL", DQNConfig.cql, bar=">= 475"),
]
LONG_ROWS = [
    row
    for env in ("HalfCheetah", "Hopper")
    for row in (
        Row(f"{env} medium", "BC", BCConfig, **_LONG),
        Row(f"{env} medium", "TD3+BC", TD3Config.td3_bc, bar=">= 1.1 x BC", **_LONG),
        Row(f"{env} medium", "IQL", IQLConfig, bar=">= 1.1 x BC", **_LONG),
        Row(
            f"{env} medium", "ReBRAC", TD3Config.rebrac, {"train_batch_size_per_learner": 256} | _REBRAC[env],
            bar=">= 1.15 x BC", **_LONG,
        ),
    )
] + [
    Row("HalfCheetah medium-replay", "BC", BCConfig, **_LONG),
    Row("HalfCheetah medium-replay", "IQL", IQLConfig, bar=">= 1.2 x BC", **_LONG),
    Row("HalfCheetah medium-replay", "CQL", SACConfig.cql, {"cql_num_actions": 4}, bar=">= 1.2 x BC", **_LONG),
]  # fmt: skip


def scores_of(row: Row, data: Data, seeds: int, stale: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the score of each seed, found before or now. `stale` takes the seeds found before, and finds those again
    that have another digest than today's code."""
    known, code = kept(row.key()), digest(sources(row.config()))
    for seed in sorted(known) if stale else range(1, seeds + 1):
        if seed not in known or (stale and known[seed].get("code") != code):
            begin = time.process_time()
            config = row.config(env=data.dataset.env, data=data.dataset, seed=seed, torch_num_threads=1, **row.settings)
            with config.build() as algorithm:
                algorithm.learn(num_updates=row.num_updates, progress=True)
                score = score_of(algorithm, num_episodes=row.num_episodes)
            known[seed] = row.key() | {"seed": seed, "score": score, "digest": data.dataset.digest, "code": code}
            known[seed] |= {"cpu_seconds": round(time.process_time() - begin)}
            keep(known[seed])
        yield known[seed]


def table(rows: list[Row], seeds: int, only: str, stale: bool) -> None:
    """Print a table of scores."""
    print("| data: steps, mean return, expert | what learns | scores | median | normalised | times BC | bar | CPU s |")
    print("|---|---|---|---|---|---|---|---|")
    of_bc: dict[str, float] = {}
    for row in rows:
        if only not in row.data or (stale and not kept(row.key())):
            continue
        data = DATA[row.data]()
        found = [*scores_of(row, data, seeds, stale)]
        median = statistics.median(entry["score"] for entry in found)
        normalised = data.normalised(median)
        if row.name == "BC":
            of_bc[row.data] = normalised
        each = ", ".join(f"{entry['score']:.0f}" for entry in found)
        about = f"{row.data}: {data.dataset.num_steps:,}, {data.dataset.returns.mean():.0f}, {data.expert:.0f}"
        seconds = sum(entry["cpu_seconds"] for entry in found)
        print(
            f"| {about} | {row.name} | {each} | **{median:.0f}** | {normalised:.0f} % | "
            f"{normalised / of_bc[row.data]:.2f} | {row.bar} | {seconds} |",
            flush=True,
        )


def online(seeds: int) -> None:
    """Print how a policy from data goes on with env steps: its score after every 2,000 of 20,000 steps."""
    data = pendulum_replay()
    print("| seed | from data | after 2,000, 4,000, ... 20,000 env steps (normalised) | least difference |")
    print("|---|---|---|---|")
    for seed in range(1, seeds + 1):
        config = IQLConfig(env="Pendulum-v1", seed=seed, torch_num_threads=1, **IQL_PENDULUM)
        with config.offline(data=data.dataset).build() as algorithm:
            algorithm.learn(num_updates=10_000, progress=True)
            from_data = data.normalised(score_of(algorithm, num_episodes=20))
            scores = []
            for _ in range(10):
                algorithm.learn(num_env_steps=2_000, progress=True)
                scores.append(data.normalised(score_of(algorithm, num_episodes=20)))
        listed = ", ".join(f"{score:.0f}" for score in scores)
        print(f"| {seed} | {from_data:.0f} | {listed} | {min(scores) - from_data:+.0f} |", flush=True)


def main() -> None:
    """Print what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of the name of a data set")
    parser.add_argument("--long", action="store_true", help="MuJoCo, hours")
    parser.add_argument("--stale", action="store_true", help="only find again what other code than today's found")
    parser.add_argument("--online", action="store_true", help="from data to env steps")
    args = parser.parse_args()
    if args.online:
        online(args.seeds)
    else:
        table(LONG_ROWS if args.long else SHORT_ROWS, args.seeds, args.only, args.stale)


if __name__ == "__main__":
    main()
