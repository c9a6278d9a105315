"""Population based training (Jaderberg et al. 2017): members train side by side, and the worst go on from the best with
other settings.

::

    study.json                           what is searched, and how
    generations.jsonl                    a line for each generation that has ended: all members
    member-3/generation-002/             the run of a member: an ordinary run folder

A member that takes over loads the checkpoint of its donor, so its weights, optimizers and replay are the donor's bit
for bit. Then its settings change by the keywords of ``from_checkpoint``, which act on the next update.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from algorithms.algorithm import Algorithm
from algorithms.config import AlgorithmConfig
from algorithms.registry import name_of
from algorithms.run.checkpoints import read_checkpoint
from algorithms.run.jobs import Job, Jobs, allow_flag
from algorithms.run.progress import Show, display
from algorithms.run.results import read_result
from algorithms.run.text import return_text, table_text
from algorithms.tuning.point import applied
from algorithms.tuning.search import Search, check_search, checked_shares, parse_search, point_at, random_shares
from algorithms.tuning.study import SearchFolder
from algorithms.tuning.trials import check_jobs, raise_if_stopped, settings_of_trials, wait_until_free, write_config
from catalog.settings import settings_of

SHARE = 0.25
"""Share of the members that take over from as many of the best."""
STEP = 0.1
"""How far a setting moves in its range, up or down."""
RESAMPLED = 0.25
"""Probability that a setting is drawn at random instead."""
SECTIONS = ("training", "replay", "offline")
"""Sections whose settings may change: those of learning."""
ADAPTED = ("kl_coeff", "initial_alpha")
"""Settings that begin what a run then adapts: a member that takes over would lose what its donor has adapted."""


@dataclass
class Member:
    """A member in one generation.

    Attributes:
        parent: The member whose checkpoint it went on from; its own number unless it took over.
        shares: Place of each setting in the search.
        point: Value of each setting.
        value: Mean return of the evaluation at the end of the generation.
        digest: SHA-256 of all tensors of its checkpoint.
    """

    parent: int
    shares: dict[str, float]
    point: dict[str, Any]
    value: float = 0.0
    digest: str = ""


def check_perturbable(config: AlgorithmConfig, search: Search) -> None:
    """Load a checkpoint with both ends of each range, to find settings that cannot change while a run goes on.

    Raises:
        ValueError: If a setting cannot change; names it.
    """
    local = config.copy().update({"num_env_runners": 0, "num_learners": 0})
    known = settings_of(type(config))
    allow = [*config.modules_to_allow()]
    with TemporaryDirectory() as folder, local.build() as algorithm:
        checkpoint = algorithm.save(Path(folder) / "checkpoint")
        for name, dimension in search.items():
            why = ""
            if name not in known:
                why = "a part of one"
            elif name in ADAPTED:
                why = "what the run adapts"
            elif known[name].for_new_runs:
                why = "what acts on new runs only"
            elif known[name].section not in SECTIONS:
                why = f"a setting of .{known[name].section}()"
            for share in (0.0, 1.0) if not why else ():
                try:
                    Algorithm.from_checkpoint(checkpoint, allow=allow, **{name: dimension.at(share)}).stop()
                except (TypeError, ValueError) as error:
                    why = f"what does not fit a resumed run ({error})"
            if why:
                raise ValueError(f"search: expected settings that a run reads as it goes on, got {name}, {why}.")


def train_population(
    config: AlgorithmConfig,
    search: Sequence[str],
    *,
    size: int,
    num_env_steps: int,
    interval: int,
    jobs: int = 1,
    seed: int = 0,
    run_dir: str | Path = "runs/population",
    progress: bool = True,
) -> Population:
    """Train a population, and return it. All is written to ``run_dir``; a population that was interrupted or killed
    goes on from its last whole generation if it is trained again.

    Args:
        config: The settings of all members.
        search: What to change while members train: texts such as ``"lr=log:1e-5..1e-2"``, see
            :mod:`algorithms.tuning.search`.
        size: Number of members, at least 4.
        num_env_steps: Env steps of each member, rounded up to whole intervals.
        interval: Env steps between two times at which members take over.
        jobs: Number of members that train at the same time.
        seed: Seed of the choices. Member 0 trains with seed 1, and so on.
        run_dir: Folder of the population.
        progress: Whether to show progress.

    Raises:
        TypeError, ValueError: If a name or value does not fit, or cannot change while a run goes on.
        RuntimeError: If the run of a member fails.
        FileExistsError, BlockingIOError: If ``run_dir`` holds something else, or another process trains there.
        KeyboardInterrupt, SystemExit: After Ctrl-C or SIGTERM.
    """
    if size < 4 or not 1 <= interval <= num_env_steps:
        raise ValueError(
            f"train_population(): expected at least 4 members, and an interval from 1 to {num_env_steps:,} env steps, "
            f"got {size} and {interval:,}. Pass others."
        )
    check_jobs(jobs)
    config = settings_of_trials(config, run_dir)
    dimensions = parse_search(search)
    check_search(config, dimensions)
    check_perturbable(config, dimensions)
    about = {
        "algorithm": name_of(config),
        "config": config.to_dict(),
        "search": [*search],
        "size": size,
        "interval": interval,
        "seed": seed,
    }
    num_generations = math.ceil(num_env_steps / interval)
    with closing(Population(Path(run_dir), about, dimensions)) as population:
        with (
            Jobs(jobs, lambda name, line: None) as running,
            display(num_generations * size, enabled=progress, waiting="first generation …") as show,
        ):
            while len(population.generations) < num_generations and running.stopped_by is None:
                # of the generation alone, so that a population that goes on draws the same
                rng = np.random.default_rng((seed, len(population.generations)))
                members = population.next_members(size, rng)
                population.train(members, config, interval, running, show)
        raise_if_stopped(running, population.folder)
        _draw(population, population.folder / "population.png")
        return population


class Population(SearchFolder):
    """The folder of a population.

    Attributes:
        generations: The members of each generation that has ended.
    """

    lines_file = "generations.jsonl"

    def _replay(self, lines: Sequence[Any]) -> None:
        self.generations: list[list[Member]] = []
        for line in lines:
            members = [Member(**member) for member in line["members"]]
            for member in members:
                member.point = point_at(self.search, checked_shares(self.search, member.shares))
                member.value = float(member.value)
            self.generations.append(members)

    @property
    def best_run(self) -> Path:
        """The run of the best member in the last generation."""
        members = self.generations[-1]
        best = max(range(len(members)), key=lambda number: members[number].value)
        return self._run(best, len(self.generations) - 1)

    def next_members(self, size: int, rng: np.random.Generator) -> list[Member]:
        """Return the members of the next generation: at first drawn at random, then those of the last one, the worst of
        which take over from the best and change their settings."""
        if not self.generations:
            drawn = [random_shares(self.search, rng) for _ in range(size)]
            return [Member(number, shares, point_at(self.search, shares)) for number, shares in enumerate(drawn)]
        last = self.generations[-1]
        order = sorted(range(size), key=lambda number: last[number].value)
        num_replaced = max(1, int(size * SHARE))
        members = [Member(number, member.shares, member.point) for number, member in enumerate(last)]
        for number in order[:num_replaced]:
            donor = int(rng.choice(order[-num_replaced:]))
            shares = {name: _perturbed(share, rng) for name, share in last[donor].shares.items()}
            members[number] = Member(donor, shares, point_at(self.search, shares))
        return members

    def train(self, members: list[Member], config: AlgorithmConfig, interval: int, jobs: Jobs, show: Show) -> None:
        """Train a generation, and add it; after a signal, only as far as its runs have come.

        Raises:
            RuntimeError: If a run fails, or has no return.
        """
        generation, size = len(self.generations), len(members)
        best = max((member.value for members in self.generations for member in members), default=math.nan)

        def start(number: int) -> Job:
            return jobs.start("", self._command(number, members[number], config, interval))

        waiting = [number for number in range(size) if not self._has_ended(number, interval, jobs)]
        for num_ended, (number, job) in enumerate(jobs.run_all(waiting, start), size - len(waiting) + 1):
            if job.exit_code != 0 and jobs.stopped_by is None:
                raise RuntimeError(f"member {number}: expected a run that trains, got an error. {job.last_line}")
            facts = f"generation {generation}, {num_ended}/{size}  best {return_text(best)}"
            show(generation * size + num_ended, facts)
        if jobs.stopped_by is not None:
            return
        # The line is written once all members have ended: a part of a generation is trained again after a kill.
        for number, member in enumerate(members):
            reached = read_result(self._run(number, generation))
            if math.isnan(reached.final_return):
                raise RuntimeError(f"member {number}: expected a return, got none. Choose a longer interval.")
            member.value, member.digest = reached.final_return, reached.digest
        self.append({"members": [asdict(member) for member in members]})
        self.generations.append(members)

    def _run(self, number: int, generation: int) -> Path:
        return self.folder / f"member-{number}" / f"generation-{generation:03d}"

    def _has_ended(self, number: int, interval: int, jobs: Jobs) -> bool:
        """Return whether a member has ended in the next generation: its steps, and the evaluation after them, which a
        run leaves out that is stopped in its last iteration. A run that has not ended is removed: its parent's
        checkpoint is there, and it would repeat the same steps."""
        run = self._run(number, len(self.generations))
        wait_until_free(run, jobs)
        try:
            metrics = read_checkpoint(run / "checkpoint", replay=False)["state"]["metrics"]
            has_steps = metrics["env_steps"] >= interval * (len(self.generations) + 1)
            has_ended = has_steps and metrics["evaluated_at"] == metrics["iterations"]
        except (FileNotFoundError, ValueError):
            has_ended = False
        if not has_ended and run.exists():
            shutil.rmtree(run)
        return has_ended

    def _command(self, number: int, member: Member, config: AlgorithmConfig, interval: int) -> list[str]:
        """Return the command of a member in the next generation."""
        generation = len(self.generations)
        folder = self.folder / f"member-{number}"
        train = ["train", f"--run-dir={self._run(number, generation)}", "--quiet", *allow_flag(config)]
        if not generation:
            file = write_config(folder, applied(config, member.point))
            return [*train, f"--config={file}", f"--seed={number + 1}", f"--num-env-steps={interval}"]
        # Up to the next multiple of the interval: iterations may have gone beyond the last.
        parent = self._run(member.parent, generation - 1)
        left = interval * (generation + 1) - read_result(parent).env_steps
        settings = [_flag(name, value) for name, value in member.point.items()]
        return [*train, f"--load={parent / 'checkpoint'}", f"--num-env-steps={max(1, left)}", *settings]


def _flag(name: str, value: Any) -> str:
    """Return the flag that sets a setting to ``value``."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag}={value}"


def _perturbed(share: float, rng: np.random.Generator) -> float:
    """Return a place in a range that is a step up or down from ``share``, or sometimes anywhere."""
    if rng.random() < RESAMPLED:
        return round(float(rng.random()), 6)
    return round(float(np.clip(share + rng.choice((-STEP, STEP)), 0.0, 1.0)), 6)


def population_table(population: Population) -> str:
    """Format the members of the last generation as a table, the best first."""
    lines = [("member", "return", "settings now")]
    for number, member in sorted(enumerate(population.generations[-1]), key=lambda item: -item[1].value):
        settings = ", ".join(f"{name} {value}" for name, value in member.point.items())
        lines.append((str(number), return_text(member.value), settings))
    return table_text(lines, ">><", indent="")


def _draw(population: Population, out: Path) -> None:
    """Draw the return and the settings of each member over the generations."""
    from matplotlib.figure import Figure

    names = [*population.generations[0][0].shares]
    figure = Figure(figsize=(4.5 * (1 + len(names)), 4), layout="constrained")
    axes = figure.subplots(1, 1 + len(names))
    for members in zip(*population.generations, strict=True):
        axes[0].plot([member.value for member in members], marker="o")
        for axis, name in zip(axes[1:], names, strict=True):
            axis.plot([member.shares[name] for member in members], marker="o")
    axes[0].set(title="mean episode return", xlabel="generation")
    for axis, name in zip(axes[1:], names, strict=True):
        axis.set(title=f"{name}: place in its range", xlabel="generation", ylim=(-0.05, 1.05))
    figure.savefig(out, dpi=120)
