"""A study: a folder with the trials of a search.

::

    study.json                       what is searched, and how
    trials.jsonl                     a line for each trial that was asked for, and one when it ended
    trial-0007/config.json           the settings of a trial, for rlmodule train --config
    trial-0007/seed-2/               the run of a seed: an ordinary run folder

All that a study knows is in these lines, of which each is on the disk before the study goes on. So a study that is
killed loses no trial that had ended, and the same command goes on.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Literal

from algorithms.loggers.base import replace_file
from algorithms.run.run_folder import lock_folder, not_written
from algorithms.run.text import path_text
from algorithms.tuning.search import Search, checked_shares, point_at
from catalog_rl import printable

State = Literal["running", "finished", "pruned", "failed"]
FIRST_TEST_SEED = 1001
"""Trials have the seeds 1, 2, …; the best are tested with seeds from this one on, which no trial saw."""


@dataclass
class SeedResult:
    """What a seed of a trial has reached.

    Attributes:
        rungs: Mean return at each rung that the run has reached; None where no episode had ended.
        final: Mean return of the last evaluation; None until the run has ended, or if there is none.
        steps: The run's clock at its end.
        digest: SHA-256 of all tensors of the last checkpoint.
    """

    rungs: list[float | None] = field(default_factory=list)
    final: float | None = None
    steps: int = 0
    digest: str = ""


@dataclass
class Trial:
    """Settings that are tried with several seeds.

    Attributes:
        number: Number of the trial, from 0.
        shares: Place of each setting in the search, see :mod:`algorithms.tuning.search`.
        point: Value of each setting.
        state: How it ended.
        value: Median of the final returns of the seeds, once it has finished.
        results: Results by seed; of the best trials also with seeds that no trial saw.
        error: The last line of a run that failed.
    """

    number: int
    shares: Mapping[str, float]
    point: Mapping[str, Any]
    state: State = "running"
    value: float | None = None
    results: dict[int, SeedResult] = field(default_factory=dict)
    error: str = ""

    def value_at(self, rung: int, seeds: tuple[int, ...]) -> float | None:
        """Return the median return of ``seeds`` at a rung; None unless all of them have one there."""
        known = []
        for seed in seeds:
            rungs = self.results[seed].rungs if seed in self.results else []
            known += [value for value in rungs[rung : rung + 1] if value is not None]
        return median(known) if len(known) == len(seeds) else None

    def finals(self, *, tested: bool) -> list[float]:
        """Return the final returns of the seeds that the trial was trained with, or if ``tested``, of those that no
        trial saw."""
        results = [result for seed, result in self.results.items() if tested == (seed >= FIRST_TEST_SEED)]
        return [result.final for result in results if result.final is not None]

    @property
    def num_rungs(self) -> int:
        """Number of rungs that all seeds which have begun have reached."""
        return min((len(result.rungs) for result in self.results.values()), default=0)

    @property
    def last_value(self) -> float | None:
        """The value, or of a trial without one that at its last rung; None if there is none."""
        if self.value is not None or not self.num_rungs:
            return self.value
        return self.value_at(self.num_rungs - 1, tuple(self.results))


class SearchFolder(ABC):
    """A folder with a file about a search and lines of what happened in it, locked until :meth:`close`.

    Somebody else may have written the folder. What it holds is compared and shown; the values of settings come from the
    search that the caller passes, and only places in it from the lines.

    Override points:
        ``lines_file``: Name of the file with the lines.
        ``_replay``: Do what the lines note.

    Args:
        folder: The folder; created if it does not exist.
        about: What is searched, and how: the content of study.json.
        search: What is searched.

    Attributes:
        about: The content of study.json.

    Raises:
        BlockingIOError: If the search goes on in another process.
        FileExistsError: If the folder holds something else, or another search.
        OSError: If the folder cannot be written to.
        ValueError: If the lines are damaged.
    """

    lines_file: str

    def __init__(self, folder: Path, about: Mapping[str, Any], search: Search) -> None:
        self.folder, self.about, self.search = folder, about, search
        self._file = folder / self.lines_file
        about_file = folder / "study.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = lock_folder(folder)
        except BlockingIOError:
            raise
        except OSError as error:
            raise not_written(folder, error) from error
        try:
            found = json.loads(about_file.read_text(encoding="utf-8")) if about_file.exists() else None
            self._check(found, json.loads(json.dumps(about)))
            replace_file(about_file, json.dumps(about, indent=1) + "\n")
            self._replay(self._read())
        except (ValueError, TypeError, LookupError) as error:
            self.close()
            raise ValueError(
                f"study {path_text(folder)!r}: expected study.json and {self.lines_file} of a study, got what cannot "
                f"be read ({printable(str(error))}). Choose another folder."
            ) from error
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _replay(self, lines: Sequence[Any]) -> None:
        """Begin with nothing, and do what the lines note. May raise ValueError, TypeError and LookupError for one that
        nobody wrote so."""

    def _check(self, found: Any, about: Mapping[str, Any]) -> None:
        where = f"study {path_text(self.folder)!r}"
        if found is None:
            # the lock, and what a process left that was killed before it had begun the study
            if others := [path.name for path in self.folder.iterdir() if not path.name.startswith(".")]:
                raise FileExistsError(
                    f"{where}: expected a new folder or that of a study, got one with {others[0]}. Choose another."
                )
            return
        # The config has a seed, too: that of the study counts. A folder may have been moved.
        was, now = ({**content["config"], **content} for content in (found, about))
        for name, value in now.items():
            if name not in ("config", "run_dir") and was.get(name) != value:
                raise FileExistsError(
                    f"{where}: expected a study with the same {name}, got {printable(str(was.get(name)))[:200]} there "
                    f"and {value!s:.200} here. Repeat the command that began it, or choose another folder."
                )

    def _read(self) -> list[dict[str, Any]]:
        """Return the lines. A last line that was cut off is removed."""
        content = self._file.read_bytes() if self._file.exists() else b""
        whole, _, rest = content.rpartition(b"\n")
        if rest:  # the process was killed while it wrote this line
            replace_file(self._file, (whole + b"\n").decode() if whole else "")
        return [json.loads(line) for line in whole.splitlines()]

    def append(self, line: Mapping[str, Any]) -> None:
        """Add a line, which is on the disk when this returns."""
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        """Unlock the folder."""
        self._lock.release()


class Study(SearchFolder):
    """The folder of a study.

    Attributes:
        trials: All trials that were asked for.
    """

    lines_file = "trials.jsonl"

    def _replay(self, lines: Sequence[Any]) -> None:
        self.trials: list[Trial] = []
        for line in lines:
            if "asked" in line:
                self._add(checked_shares(self.search, line["shares"]))
                continue
            trial = self.trials[line["ended"]]
            trial.state, trial.error = line["state"], str(line["error"])
            trial.results = {int(seed): SeedResult(**result) for seed, result in line["results"].items()}
            trial.value = None if line["value"] is None else float(line["value"])

    def ask(self, shares: Mapping[str, float]) -> Trial:
        """Add a trial with the values at ``shares``, and return it."""
        trial = self._add(shares)
        self.append({"asked": trial.number, "shares": shares, "point": trial.point})
        return trial

    def _add(self, shares: Mapping[str, float]) -> Trial:
        trial = Trial(len(self.trials), shares, point_at(self.search, shares))
        self.trials.append(trial)
        return trial

    def tell(self, trial: Trial, state: State, error: str = "") -> None:
        """Note how ``trial`` ended. Its value is the median of the final returns of its seeds, without those that no
        trial saw."""
        trial.state, trial.error = state, error
        if state == "finished":
            trial.value = median(trial.finals(tested=False))
        results = {str(seed): asdict(result) for seed, result in trial.results.items()}
        self.append({"ended": trial.number, "state": state, "value": trial.value, "results": results, "error": error})

    @property
    def best(self) -> Trial:
        """The best trial.

        Raises:
            ValueError: If none has finished.
        """
        if not (finished := self.finished()):
            raise ValueError(
                f"study {path_text(self.folder)!r}: expected a trial that has finished, got none. Allow more trials, "
                "or correct what made them fail and choose another folder."
            )
        return finished[0]

    def finished(self) -> list[Trial]:
        """Return the finished trials, the best first: the highest value, then the lowest number."""
        found = [trial for trial in self.trials if trial.value is not None]
        return sorted(found, key=lambda trial: trial.value or 0.0, reverse=True)

    def folder_of(self, trial: Trial) -> Path:
        """Return the folder of a trial."""
        return self.folder / f"trial-{trial.number:04d}"
