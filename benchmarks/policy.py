"""Measure a deployed policy: how long it takes to act, compared with its bare nets, and to load; and its file size.

    python -m benchmarks.policy

For nets of 2 × 64 and Discrete or Box actions, prints one line of JSON each: microseconds per call, and how many times
the bare pass that is. What is compared takes turns in one process, on one thread; figures are medians. ``load`` is
``Policy.load`` with its imports, in new processes that have imported torch and Gymnasium.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
import onnxruntime
import torch
from gymnasium import Space, spaces

from algorithms.ppo import PPOCatalog, PPOModule
from rlmodule import Columns, Policy

ROUNDS, CALLS, BATCH = 600, 5, 256
OBS = spaces.Box(-np.inf, np.inf, (8,), np.float32)
ACTIONS: dict[str, Space] = {"Discrete": spaces.Discrete(4), "Box": spaces.Box(-1, 1, (3,))}
LOADING = """
import sys, time, torch, gymnasium
start = time.perf_counter()
from rlmodule import Policy
Policy.load(sys.argv[1])
print(time.perf_counter() - start)
"""


def medians(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Return the median microseconds of a call of each, and let them take turns."""
    seconds: list[list[float]] = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, taken in zip(calls, seconds, strict=True):
            start = perf_counter()
            for _ in range(CALLS):
                call()
            taken.append((perf_counter() - start) / CALLS)
    return [1e6 * median(taken) for taken in seconds]


def measured(kind: str, folder: Path) -> dict[str, float | str]:
    """Return the figures of one kind of actions."""
    settings = {"fcnet_hiddens": [64, 64]}
    module = PPOModule(
        observation_space=OBS, action_space=ACTIONS[kind], model_config=settings, catalog_class=PPOCatalog
    )
    policy, rng = Policy(module), np.random.default_rng(0)
    batch = rng.normal(size=(BATCH, 8)).astype(np.float32)
    one, many = ({Columns.OBS: torch.from_numpy(rows)} for rows in (batch[:1], batch))
    bare_pass = torch.inference_mode()(module.forward_inference)
    file = policy.export(folder / "x.onnx")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    bare, act, of_onnx, bare_batch, act_batch = medians(
        [
            lambda: bare_pass(one),
            lambda: policy.act(batch[0]),
            lambda: session.run(None, {"obs": batch[:1]}),
            lambda: bare_pass(many),
            lambda: policy.act_batch(batch),
        ]
    )
    saved = policy.save(folder / "policy")
    runs = [subprocess.run([sys.executable, "-c", LOADING, saved], capture_output=True, check=True) for _ in range(5)]
    weights = sum(weight.nbytes for weight in module.get_state(inference_only=True).values())
    return {
        "actions": kind,
        "act": round(act, 1),
        "act / bare": round(act / bare, 2),
        f"act_batch({BATCH}) / bare": round(act_batch / bare_batch, 2),
        "onnxruntime": round(of_onnx, 1),
        "load, s": round(median(float(run.stdout) for run in runs), 3),
        "file / weights": round(file.stat().st_size / weights, 3),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in ACTIONS:
        with TemporaryDirectory() as place:
            print(json.dumps(measured(name, Path(place))), flush=True)
