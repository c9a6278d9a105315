"""How sampling and learning scale with processes: up to 32 runners as measured here, up to 1,000 on paper.

    python -m benchmarks.scale             # prints the tables
    python -m benchmarks.scale --write     # puts them and the picture into docs/scale.md and benchmarks/README.md
    python -m benchmarks.scale runners 8   # one measurement alone: one line of JSON; or stream 8, weights 8, learners,
                                           # constants

Every measurement has a process and a Ray of its own. Envs sleep, so that many of them fit on few cores: what is left
besides the sleep is what a framework takes. `carried_on` is the model by which the curve goes on.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.run import ROOT, child, machine, write
from benchmarks.tables import SPEED, digest, typed

RUNNERS = (1, 2, 4, 8, 16, 32)
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
ON_PAPER = (32, 100, 300, 1000)
SLEEP_S = 0.005  # per env step
FRAGMENT = 64  # steps of each runner per iteration; each has one env
WARM_UP = 3
NODE = 32  # runners on a machine, on paper
LINK = 10e9 / 8  # bytes per second between machines, on paper
DATA = ROOT / "docs" / "pictures" / "scale.json"
PAGE = ROOT / "docs" / "scale.md"
README = ROOT / "benchmarks" / "README.md"

Numbers = dict[str, float]


# --- what is measured -------------------------------------------------------------------------------------------------


def runners(size: int, iterations: int = 20) -> Numbers:
    """Sampling by so many runners of one sleeping env each, with new weights in every iteration. Per iteration:
    `wall_s`, `runner_s` (of the slowest, as it says itself) and `driver_cpu_s`, and the bytes of one rollout."""
    from benchmarks.workers import all_of, seconds_reported
    from rlmodule import Rollout
    from rlmodule.distributed.serialization import num_bytes, pack

    walls, reported, cpus = [], [], []
    rollouts: list[Rollout] = []
    with sleepers(size).build() as algorithm:
        for version in range(WARM_UP + iterations):
            cpu, started = time.process_time(), time.perf_counter()
            rollouts = all_of(algorithm.env_runner_group, FRAGMENT, version)
            Rollout.concat(rollouts)
            walls.append(time.perf_counter() - started)
            cpus.append(time.process_time() - cpu)
            reported.append(max(seconds_reported(rollouts)))
        size_of_one = num_bytes(pack(rollouts[0]))
    times = {"wall_s": walls, "runner_s": reported, "driver_cpu_s": cpus}
    found = {name: median(seconds[WARM_UP:]) for name, seconds in times.items()}
    return {"runners": size, **found, "rollout_bytes": size_of_one}


def stream(size: int, iterations: int = 20) -> Numbers:
    """The same by runners that have two rollouts to sample, so that none waits for the others or for the driver. An
    iteration takes as many rollouts as there are runners, of whichever are first. Per iteration: `wall_s` and
    `driver_cpu_s`."""
    from rlmodule import Rollout

    times: dict[str, list[float]] = {"wall_s": [], "driver_cpu_s": []}
    with sleepers(size).build() as algorithm:
        group = algorithm.env_runner_group
        group.ask(FRAGMENT, in_flight=2)
        for version in range(1, 1 + WARM_UP + iterations):
            cpu, started = time.process_time(), time.perf_counter()
            Rollout.concat(group.take(size))
            group.post_weights(version)
            times["wall_s"].append(time.perf_counter() - started)
            times["driver_cpu_s"].append(time.process_time() - cpu)
        group.finish()
    # runners finish in bunches: the mean of the iterations, not their median, is what a long run takes for each
    return {"runners": size} | {name: float(np.mean(seconds[WARM_UP:])) for name, seconds in times.items()}


def sleepers(size: int) -> Any:
    """The settings of `size` runners of one sleeping env each."""
    from benchmarks.jobs import JOBS
    from benchmarks.ours_ppo import config
    from benchmarks.workers import SHARE_OF_CPU

    settings = config(JOBS["cartpole"], seed=0).environment(sleeper())
    settings.env_runners(num_env_runners=size, num_envs_per_env_runner=1, num_cpus_per_env_runner=SHARE_OF_CPU)
    return settings.training(train_batch_size_per_learner=size * FRAGMENT, minibatch_size=None)


def sleeper() -> Any:
    """The env that sleeps: a step of it takes `SLEEP_S`."""
    from benchmarks.workers import Instant

    class Sleeper(Instant):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            time.sleep(SLEEP_S)
            return super().step(action)

    return Sleeper


def weights(size: int, repeats: int = 10) -> Numbers:
    """By number of parameters: ms until so many workers have new weights, `ms 10000` …, and bytes of one copy."""
    from benchmarks.catalog import in_turn
    from benchmarks.workers import Keeper, send, spec_of_size, worker_group

    found: Numbers = {"runners": size}
    for num_parameters in SIZES:
        spec = spec_of_size(num_parameters)
        module = spec.build(inference_only=True)
        workers = worker_group(size, partial(Keeper, spec))
        try:
            (seconds,) = in_turn(2 + repeats, partial(send, workers, module))
            found[f"bytes {num_parameters}"] = send(workers, module)
        finally:
            workers.stop()
        found[f"ms {num_parameters}"] = median(seconds) * 1e3
    return found


class Summer:
    """A worker that sums with another one, as learners sum their gradients."""

    progress = 0

    def __init__(self, index: int, incarnation: int) -> None:
        self._rank = index

    def serve(self) -> tuple[str, int]:
        """Open a place to meet."""
        from rlmodule.distributed.process_group import Rendezvous

        self._place = Rendezvous()
        return self._place.host, self._place.port

    def connect(self, size: int, host: str, port: int) -> None:
        """Meet the others."""
        from rlmodule.distributed.process_group import ProcessGroupCollective

        self._collective = ProcessGroupCollective(self._rank, size, host, port)

    def sum_s(self, num_parameters: int, repeats: int) -> float:
        """Median of the seconds for the sum of so many numbers, and the two that come with a gradient."""
        import torch

        flat = torch.ones(num_parameters + 2)
        seconds = []
        for _ in range(repeats):
            started = time.perf_counter()
            self._collective.all_reduce(flat)
            seconds.append(time.perf_counter() - started)
            flat.fill_(1.0)
        return median(seconds)

    def stop(self) -> None:
        """Leave the others."""
        self._collective.close()


def learners(repeats: int = 20) -> Numbers:
    """By number of parameters: ms of two learners for the sum of one gradient step, `ms 10000` …"""
    from benchmarks.workers import values_of, worker_group

    workers = worker_group(2, Summer)
    try:
        (place,) = values_of(workers, "serve", {0: ()})
        values_of(workers, "connect", dict.fromkeys(range(2), (2, *place)))
        seconds = {number: values_of(workers, "sum_s", dict.fromkeys(range(2), (number, repeats))) for number in SIZES}
        return {f"ms {number}": max(each) * 1e3 for number, each in seconds.items()}
    finally:
        workers.stop()


class Idle:
    """A worker that has nothing to do."""

    progress = 0

    def __init__(self, index: int, incarnation: int) -> None:
        pass

    def nothing(self) -> None:
        """Answer."""

    def stop(self) -> None:
        """Nothing is open."""


def constants(num_workers: int = 8, repeats: int = 50) -> Numbers:
    """Seconds of the driver: `call_s` of its CPU for a call without content and its answer, `take_s` to read a rollout
    of `FRAGMENT` steps and put it next to others, `learn_s` to learn from one in this process."""
    import torch

    from benchmarks.catalog import in_turn
    from benchmarks.jobs import JOBS
    from benchmarks.ours_ppo import config
    from benchmarks.workers import Instant, values_of, worker_group
    from rlmodule import Rollout
    from rlmodule.distributed.serialization import pack, unpack

    torch.set_num_threads(1)
    many = 32
    settings = (
        config(JOBS["cartpole"], seed=0)
        .environment(Instant)
        .env_runners(num_envs_per_env_runner=1)
        .training(train_batch_size_per_learner=FRAGMENT)
    )
    with settings.copy().training(minibatch_size=FRAGMENT).build() as algorithm:
        packed = [pack(algorithm.env_runner_group.sample(FRAGMENT)[0]) for _ in range(many)]
    batch = Rollout.concat([unpack(one) for one in packed])
    job = JOBS["cartpole"]
    with config(job, seed=0).environment(Instant).build() as algorithm:
        learn = partial(algorithm.learner_group.update_from_episodes, batch, env_steps=0)
        taking, learning = in_turn(2 + repeats, lambda: Rollout.concat([unpack(one) for one in packed]), learn)
    workers = worker_group(num_workers, Idle)
    try:
        cpus = []
        for _ in range(2 + repeats):
            cpu = time.process_time()
            values_of(workers, "nothing", dict.fromkeys(range(num_workers), ()))
            cpus.append(time.process_time() - cpu)
    finally:
        workers.stop()
    return {
        "call_s": float(np.mean(cpus[2:])) / num_workers,
        "take_s": median(taking) / many,
        "learn_s": median(learning) / many,
    }


# --- on paper ---------------------------------------------------------------------------------------------------------


def carried_on(
    found: Mapping[str, float],
    num_runners: int,
    *,
    fragments: int = 1,
    per_gatherer: int = 1,
    keeps_rows: bool = True,
    waits: bool = True,
) -> float:
    """Env steps per second of sampling by the model: an iteration lasts as long as a runner samples, and then as long
    as the driver takes for all answers, one after the other.

    Args:
        found: `sampling_s` of a fragment; of the driver, `once_s` per iteration, `call_s` and `take_s` for one answer.
        num_runners: Their number.
        fragments: How many times longer than measured a fragment is.
        per_gatherer: Runners whose rollouts somebody puts side by side before the driver sees them.
        keeps_rows: Whether rollouts come to the driver at all, or only word of them.
        waits: Whether runners wait for the driver. In a stream they do not: what takes longer sets the pace.
    """
    answers = num_runners / per_gatherer
    rows = num_runners * fragments * (found["take_s"] if keeps_rows else 0.0)
    sampling = fragments * found["sampling_s"]
    driver = found["once_s"] + answers * found["call_s"] + rows
    seconds = sampling + driver if waits else max(sampling, driver)
    return num_runners * fragments * FRAGMENT / seconds


def limits(found: Mapping[str, float]) -> list[tuple[str, float, float]]:
    """What one iteration asks per runner of something that there is once, and how many runners keep that busy all the
    time of an iteration: the least first."""
    budget = found["sampling_s"]
    costs = {
        "one learner in one process, 4 epochs": found["learn_s"],
        "the driver: calls and answers": found["call_s"],
        "the driver: reading rollouts, putting them side by side": found["take_s"],
        f"the driver's link of {LINK * 8 / 1e9:.0f} Gb/s: rollouts": found["rollout_bytes"] / LINK,
        f"the same: weights, once per machine of {NODE} runners": found["weight_bytes"] / NODE / LINK,
    }
    return sorted(((what, cost, budget / cost) for what, cost in costs.items()), key=lambda limit: limit[2])


def model_of(results: Mapping[str, Any]) -> Numbers:
    """The constants of the model, from what was measured. What the driver takes for an iteration and for each runner in
    it is the line that fits its CPU time best."""
    most, constants = results["runners"][-1], results["constants"]
    sizes, seconds = ([one[name] for one in results["runners"]] for name in ("runners", "driver_cpu_s"))
    per_runner, once = np.polyfit(sizes, seconds, 1)
    return {
        "sampling_s": results["runners"][0]["runner_s"],
        "once_s": max(0.0, float(once)),
        "call_s": max(constants["call_s"], float(per_runner) - constants["take_s"]),
        "take_s": constants["take_s"],
        "learn_s": constants["learn_s"],
        "rollout_bytes": most["rollout_bytes"],
        "weight_bytes": results["weights"][0][f"bytes {SIZES[0]}"],
    }


# --- the tables -------------------------------------------------------------------------------------------------------


def table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Markdown."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def tables(results: Mapping[str, Any]) -> dict[str, str]:
    """All tables of docs/scale.md, by the names of their markers there."""
    found = model_of(results)
    ideal = FRAGMENT * SLEEP_S
    sampled = [
        (
            f"{one['runners']:.0f}",
            f"{one['runners'] * FRAGMENT / one['wall_s']:,.0f}",
            f"{ideal / one['wall_s']:.2f}",
            f"{ideal / one['runner_s']:.2f}",
            f"{carried_on(found, int(one['runners'])) * ideal / FRAGMENT / one['runners']:.2f}",
            f"{one['driver_cpu_s'] / one['runners'] * 1e3:.2f} ms",
        )
        for one in results["runners"]
    ]
    streamed = [
        (
            f"{one['runners']:.0f}",
            f"{one['runners'] * FRAGMENT / one['wall_s']:,.0f}",
            f"{ideal / one['wall_s']:.2f}",
            f"{carried_on(found, int(one['runners']), waits=False) * ideal / FRAGMENT / one['runners']:.2f}",
            f"{one['driver_cpu_s'] / one['runners'] * 1e3:.2f} ms",
        )
        for one in results["stream"]
    ]
    sent = [
        (
            f"{number:,}",
            f"{results['weights'][0][f'bytes {number}'] / 1e6:.2f} MB",
            *(f"{one[f'ms {number}']:.1f} ms" for one in results["weights"]),
            f"{results['learners'][f'ms {number}']:.2f} ms",
        )
        for number in SIZES
    ]
    asked = [(what, f"{cost * 1e3:.3f} ms", f"{number:,.0f}") for what, cost, number in limits(found)]
    ways: list[tuple[str, dict[str, Any]]] = [
        ("as it is", {}),
        ("fragments four times as long", {"fragments": 4}),
        (f"rollouts put side by side per {NODE} runners", {"per_gatherer": NODE}),
        ("that, and learners that fetch rollouts themselves", {"per_gatherer": NODE, "keeps_rows": False}),
        ("a stream", {"waits": False}),
        ("a stream, fragments four times as long", {"waits": False, "fragments": 4}),
    ]
    on_paper = [
        (name, *(f"{carried_on(found, number, **way) * SLEEP_S / number:.2f}" for number in ON_PAPER))
        for name, way in ways
    ]
    who = [f"to {one['runners']:.0f}" for one in results["weights"]]
    return {
        "runners": table(
            (
                "runners",
                "steps/s",
                "of the ideal",
                "of which the runners' part",
                "by the model",
                "driver's CPU per runner",
            ),
            sampled,
        ),
        "stream": table(
            ("runners", "steps/s", "of the ideal", "by the model", "driver's CPU per runner"),
            streamed,
        ),
        "weights": table(("parameters", "bytes", *who, "sum of two learners"), sent),
        "limits": table(("what there is once", "per runner and iteration", "runners that fill it"), asked),
        "paper": table(("share of the ideal, runners", *(f"{number:,}" for number in ON_PAPER)), on_paper),
        "machine": f"Medians. {results['machine']}.",
    }


# --- the command line -------------------------------------------------------------------------------------------------


def measured(numbers: tuple[int, ...]) -> dict[str, Any]:
    """Everything, each in a process of its own."""

    def part(*args: str) -> Numbers:
        result = child("-m", "benchmarks.scale", *args)
        print(" ".join(args), result, flush=True)
        return result

    return {
        "runners": [part("runners", str(number)) for number in numbers],
        "stream": [part("stream", str(number)) for number in numbers],
        "weights": [part("weights", str(number)) for number in numbers if number in (1, 8, 32)],
        "learners": part("learners"),
        "constants": part("constants"),
        "machine": machine(),
        "code": digest(SPEED),
        "command": typed(),
    }


def put(results: Mapping[str, Any], data: Path = DATA, page: Path = PAGE, readme: Path = README) -> None:
    """Write the results, and the tables to where they are read."""
    data.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    made = tables(results)
    for name, text in made.items():
        write(text, page, name)
    write(f"{made['runners']}\n\n{made['machine']}", readme, "scale")


def main() -> None:
    """Measure one thing, or all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", nargs="?", choices=("runners", "stream", "weights", "learners", "constants"))
    parser.add_argument("number", nargs="?", type=int, default=2, help="of runners (default: %(default)s)")
    parser.add_argument("--write", action="store_true", help="put tables and picture where they belong")
    args = parser.parse_args()
    if args.what is not None:
        parts = {
            "runners": lambda: runners(args.number),
            "stream": lambda: stream(args.number),
            "weights": lambda: weights(args.number),
            "learners": learners,
            "constants": constants,
        }
        print(json.dumps(parts[args.what]()))
        return
    results = measured(RUNNERS)
    print("\n\n".join(tables(results).values()))
    if args.write:
        put(results)
        subprocess.run([sys.executable, str(DATA.with_suffix(".py"))], check=True)


if __name__ == "__main__":
    main()
