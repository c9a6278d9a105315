"""What slow parts of a stream cost, and how streams scale: IMPALA with envs and learners that sleep.

    python -m benchmarks.streams slow-runners   # 2 runners that sleep, a quick learner in another process
    python -m benchmarks.streams slow-learner   # 2 runners, a learner in another process that sleeps
    python -m benchmarks.streams straggler      # steps of 3 runners next to one that sleeps 50 ms a step, and without
    python -m benchmarks.streams memory         # of all processes, first as it is, then with a learner slowed tenfold
    python -m benchmarks.streams returned       # by a learner of 5 million parameters per update
    python -m benchmarks.streams scale          # 1, 2, 4 and 8 runners, streams and PPO in turn

Each prints one line of JSON. Ray is started for it on this machine.
"""

import argparse
import contextlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import torch

from algorithms import Algorithm, AlgorithmConfig
from algorithms.impala import IMPALAConfig
from algorithms.impala.impala import IMPALALearner
from algorithms.ppo import PPOConfig
from benchmarks.workers import SHARE_OF_CPU, Instant

FRAGMENT = 32  # steps of a rollout; each runner has one env
SLEEP_S = 0.005  # per env step
STRAGGLER_SLEEP_S = 0.05
LEARNER_SLEEP_S = 0.02  # per update; ten times as much when it is slowed
SECONDS = 10.0  # for which a job is watched
WARM_UP = 3  # iterations

Numbers = dict[str, Any]


class Sleeper(Instant):
    """An env without a task that sleeps.

    Args:
        sleep_s: Seconds per step.
        straggler: Path of a file that the first env to step creates; this env sleeps longer.
    """

    def __init__(self, sleep_s: float = SLEEP_S, straggler: str = "") -> None:
        super().__init__()
        self._sleep_s, self._straggler = sleep_s, straggler

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._straggler:
            with contextlib.suppress(FileExistsError):
                Path(self._straggler).touch(exist_ok=False)
                self._sleep_s = STRAGGLER_SLEEP_S
            self._straggler = ""
        time.sleep(self._sleep_s)
        return super().step(action)


class SleepyLearner(IMPALALearner):
    """A learner that sleeps in each update."""

    sleep_s = LEARNER_SLEEP_S

    def update_from_episodes(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(self.sleep_s)
        return super().update_from_episodes(*args, **kwargs)


class SlowLearner(SleepyLearner):
    """A learner slowed tenfold."""

    sleep_s = 10 * LEARNER_SLEEP_S


def job(
    num_runners: int, *, config: AlgorithmConfig | None = None, num_learners: int = 0, **env_config: Any
) -> AlgorithmConfig:
    """A job of `num_runners` runners of one env each; a train batch has one rollout per runner."""
    config = (config or IMPALAConfig()).environment(Sleeper, env_config=env_config)
    config.env_runners(
        num_env_runners=num_runners,
        num_envs_per_env_runner=1,
        rollout_fragment_length=FRAGMENT,
        num_cpus_per_env_runner=SHARE_OF_CPU,
    )
    config.update({"train_batch_size_per_learner": num_runners * FRAGMENT, "minibatch_size": None, "num_epochs": 1})
    config.learners(num_learners=num_learners, num_cpus_per_learner=SHARE_OF_CPU)
    if isinstance(config, IMPALAConfig):
        config.reporting(num_env_steps_per_iteration=4 * num_runners * FRAGMENT)
    return config.debugging(seed=0)


@contextlib.contextmanager
def counted(algorithm: Algorithm) -> Iterator[Counter[int]]:
    """Count the env steps that the algorithm takes, by the first env of the runner."""
    group, steps = algorithm.env_runner_group, Counter[int]()
    take = group.take

    def take_and_count(count: int | None = None) -> list[Any]:
        rollouts = take(count)
        for rollout in rollouts:
            steps[rollout.first_env_index] += rollout.num_env_steps
        return rollouts

    group.take = take_and_count
    yield steps
    group.take = take


def watched(algorithm: Algorithm, seconds: float = SECONDS) -> Numbers:
    """Train for some seconds after a warm-up. Return steps per second, the mean lag, the share of the time for which
    the driver waited for runners or learners, and for which runners waited."""
    for _ in range(WARM_UP - 1):
        algorithm.train()
    result = before = algorithm.train()
    started, steps, lags = time.perf_counter(), algorithm.env_steps, []
    while time.perf_counter() - started < seconds:
        result = algorithm.train()
        lags.append(result.get("stream", {}).get("policy_lag_mean", 0.0))
    took = time.perf_counter() - started
    waited = {
        name: (result["workers"][name] - before["workers"].get(name, 0.0)) / took
        for name in ("waited_for_env_runners_s", "waited_for_learners_s", "env_runners_waited_s")
        if name in result["workers"]
    }
    numbers = {name.removesuffix("_s"): round(share, 3) for name, share in waited.items()}
    return {"steps_per_s": round((algorithm.env_steps - steps) / took, 1), "lag": round(median(lags), 2), **numbers}


def slow_runners() -> Numbers:
    """Two runners whose rollouts take far longer than an update of the learner in another process."""
    with job(2, num_learners=1, sleep_s=0.01).build() as algorithm:
        return watched(algorithm)


def slow_learner() -> Numbers:
    """A learner in another process whose updates take longer than the rollouts of two runners."""
    config = job(2, num_learners=1, sleep_s=SLEEP_S / 5).learners(learner_class=SlowLearner)
    with config.build() as algorithm:
        return watched(algorithm)


def straggler() -> Numbers:
    """Env steps per second of each of three runners: `alone` with a fourth of their speed, `next_to_straggler` with a
    fourth that sleeps ten times as long."""
    speeds: dict[str, list[float]] = {"alone": [], "next_to_straggler": []}
    for _ in range(3):
        for name in speeds:
            with TemporaryDirectory() as folder:
                first = f"{folder}/first" if name == "next_to_straggler" else ""
                with job(4, straggler=first).build() as algorithm:
                    for _ in range(WARM_UP):
                        algorithm.train()
                    started = time.perf_counter()
                    with counted(algorithm) as steps:
                        while time.perf_counter() - started < SECONDS:
                            algorithm.train()
                    took = time.perf_counter() - started
            *others, _ = sorted(steps.values(), reverse=True)
            speeds[name].append(sum(others) / len(others) / took)
    numbers = {name: round(median(found), 1) for name, found in speeds.items()}
    shares = [slow / alone for alone, slow in zip(speeds["alone"], speeds["next_to_straggler"], strict=True)]
    return {**numbers, "share": round(median(shares), 3)}


def resident_mb() -> float:
    """Memory of this process and of those that it started, in MB; memory that several share counts once in each."""
    this = psutil.Process()
    total = 0
    for process in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            if process == this or process.name().startswith("ray::"):
                total += process.memory_info().rss
    return total / 2**20


def memory() -> Numbers:
    """MB of this process, the runners and a learner, when half of a run is over and at its end, for the learner as it
    is and slowed tenfold; runners sample far more than the slow one learns from."""
    numbers: Numbers = {}
    for name, learner_class in (("quick", SleepyLearner), ("slow", SlowLearner)):
        config = job(2, num_learners=1, sleep_s=SLEEP_S / 5).learners(learner_class=learner_class)
        with config.build() as algorithm:
            watched(algorithm)
            halfway = resident_mb()
            watched(algorithm)
            numbers[name] = {"halfway_mb": round(halfway), "end_mb": round(resident_mb())}
            numbers[name]["change"] = round(resident_mb() / halfway - 1, 4)
    return numbers


def returned(width: int = 1500) -> Numbers:
    """MB that the learner returns per update of two separate nets of 5 million parameters in all, and updates per
    second."""
    import ray

    config = job(2, num_learners=1).rl_module(model_config={"fcnet_hiddens": (width, width), "vf_share_layers": False})
    with config.build() as algorithm:
        num_parameters = sum(x.numel() for x in algorithm.get_module().parameters())
        size, get = 0, ray.get

        def counting_get(*args: Any, **kwargs: Any) -> Any:
            nonlocal size
            got = get(*args, **kwargs)
            size += sum(part.nbytes for part in got if hasattr(part, "nbytes")) if isinstance(got, list) else 0
            return got

        for _ in range(WARM_UP):
            algorithm.train()
        ray.get, started, updates = counting_get, time.perf_counter(), algorithm.learner_group.num_updates
        while time.perf_counter() - started < SECONDS:
            algorithm.train()
        ray.get, took = get, time.perf_counter() - started
        updates = algorithm.learner_group.num_updates - updates
    return {
        "parameters": num_parameters,
        "mb_per_update": round(size / 1e6 / updates, 2),
        "updates_per_s": round(updates / took, 2),
    }


def scale(repeats: int = 1) -> Numbers:
    """Env steps per second by number of runners, of a stream and of PPO with equal batches and one epoch, in turn."""
    numbers: Numbers = {}
    for num_runners in (1, 2, 4, 8):
        speeds: dict[str, list[float]] = {"stream": [], "ppo": []}
        for _ in range(repeats):
            for name, config in (("stream", IMPALAConfig()), ("ppo", PPOConfig())):
                with job(num_runners, config=config).build() as algorithm:
                    speeds[name].append(watched(algorithm, SECONDS / 4)["steps_per_s"])
        numbers[str(num_runners)] = {name: median(found) for name, found in speeds.items()}
    return numbers


MEASUREMENTS: dict[str, Callable[[], Numbers]] = {
    "slow-runners": slow_runners,
    "slow-learner": slow_learner,
    "straggler": straggler,
    "memory": memory,
    "returned": returned,
    "scale": scale,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=sorted(MEASUREMENTS))
    torch.set_num_threads(1)
    print(json.dumps(MEASUREMENTS[parser.parse_args().what]()))
