"""Env runners in processes of their own, whose envs go wrong on command, and all of whose steps are counted."""

import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from rlmodule import Columns, EnvRunnerGroup, RLModuleSpec, Rollout
from tests.fault_envs import HANGS, FaultEnv, num_step_calls, seeds_of_lives
from tests.rlmodule.toys import Settings, Small
from tests.waiting import wait_for

HANGS |= {
    "hold the GIL": lambda: re.match(r"(a+)+$", "a" * 60 + "b"),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}

SPEC = RLModuleSpec(Small, spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2))


class Commanded(FaultEnv):
    """A :class:`FaultEnv` that does what a file named after its process says, with its next step, once. If the file
    says "wait", that step waits until it says something else."""

    def __init__(self, folder: str, **settings: Any) -> None:
        super().__init__(folder, **settings)
        self._command = Path(folder, f"{os.getpid()}.command")

    def _planned(self, plan: Mapping[int, Mapping[int, str]], call: int) -> str | None:
        if plan is self._steps and self._command.exists():
            while (kind := self._command.read_text()) == "wait":
                time.sleep(0.005)
            self._command.unlink()
            return None if kind == "go on" else kind
        return super()._planned(plan, call)


def make_env(config: Mapping[str, Any]) -> Commanded:
    return Commanded(**config)


class CrowdSettings(Settings):
    num_env_runners = 2
    num_cpus_per_env_runner = 0.5
    num_envs_per_env_runner = 2
    env_step_timeout_s = 2.0


class Crowd:
    """A group of env runners, watched.

    Args:
        folder: For the files of the envs.
        env_config: Of the envs.
        **settings: Of the group.
    """

    def __init__(self, folder: Path, env_config: Mapping[str, Any] | None = None, **settings: Any) -> None:
        self.folder, self.steps, self.races = folder, 0, 0
        folder.mkdir(exist_ok=True)
        config = {"folder": str(folder), "pause": 0.0005, **(env_config or {})}
        self.settings = CrowdSettings(env=make_env, env_config=config, **settings)
        self.group = EnvRunnerGroup.create(self.settings, run_seed=1)  # type: ignore[arg-type]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.learned = SPEC.build()
        self.group.build_modules(SPEC, self.learned)
        self.version = 0

    def sample(self, num_steps: int = 20) -> list[Rollout]:
        """Rollouts with new weights, all of them acted by these."""
        with torch.no_grad():
            self.learned.get_parameter("pi.bias").add_(0.01)
        self.version += 1
        rollouts = []
        for rollout in self.group.sample(num_steps, policy_version=self.version):
            self.steps += rollout.num_env_steps
            rollouts.append(rollout)
            if rollout.policy_version < self.version:  # which was on its way when another failed
                continue
            with torch.no_grad():
                out = self.group.module.forward_inference({Columns.OBS: rollout[Columns.OBS]})
            message = rollout[Columns.ACTION_DIST_INPUTS]
            torch.testing.assert_close(message, out[Columns.ACTION_DIST_INPUTS], rtol=0, atol=1e-5)
        return rollouts

    def pid(self, worker: int) -> int:
        return self.group.workers.pids()[worker]  # type: ignore[attr-defined]

    def command(self, worker: int, kind: str) -> None:
        new = self.folder / f"{self.pid(worker)}.new"
        new.write_text(kind)
        new.rename(new.with_suffix(".command"))

    def lost(self) -> int:
        return sum(self.group.num_env_steps_lost.values())

    def check_accounts(self) -> None:
        """Every call of ``env.step`` is in a rollout or among the lost: exactly, but that the call at which a process
        is killed from outside may have been counted and not made."""
        assert 0 <= self.steps + self.lost() - num_step_calls(self.folder) <= self.races

    def check_seeds(self) -> None:
        seeds = [seed for life in seeds_of_lives(self.folder) for seed in life]
        assert len(set(seeds)) == len(seeds) >= self.settings.num_env_runners

    def wait_until_healthy(self) -> None:
        """Sample until all runners are back."""

        def all_are_back() -> bool:
            if self.group.num_healthy < self.settings.num_env_runners:
                self.sample(5)
            return self.group.num_healthy == self.settings.num_env_runners

        wait_for(all_are_back)


@contextmanager
def crowd(folder: Path, *args: Any, **settings: Any) -> Iterator[Crowd]:
    made = Crowd(folder, *args, **settings)
    try:
        yield made
    finally:
        made.group.stop()


def files_of(pid: int) -> list[Path]:
    """Files of a driver in shared memory."""
    return [*Path("/dev/shm").glob(f"rlmodule-{pid}-*")]
