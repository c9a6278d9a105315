"""The Ray cluster: how a run connects to it, and whether it has the CPUs and GPUs that workers ask for."""

from __future__ import annotations

import importlib.metadata
import logging
import os
import sys
from collections.abc import Mapping

from rlmodule.settings import LearnerSettings, RunnerSettings

OLDEST_RAY = (2, 55)
"""Before it, a Ray cluster could be taken over by a web page (CVE-2026-27482, CVE-2026-41486)."""

Resources = Mapping[str, float]
"""Numbers by the name of a resource: ``CPU``, ``GPU``."""


def start_ray() -> None:
    """Connect to the Ray that ``RAY_ADDRESS`` names, or start one on this machine; do nothing if it is connected.

    Raises:
        ImportError: If Ray is missing or too old.
        ConnectionError: If the cluster does not answer, or asks for a token.
    """
    try:
        version = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        version = None
    if version is None or tuple(int(part) for part in version.split(".")[:2]) < OLDEST_RAY:
        oldest = ".".join(map(str, OLDEST_RAY))
        raise ImportError(
            f"ray: expected version {oldest} or later, got {version or 'none'}. Run: pip install "
            f'"ray>={oldest}", or set num_env_runners=0 and num_learners=0.'
        )
    # not what Ray finds running on this machine, which may be somebody else's
    address = os.environ.get("RAY_ADDRESS", "local")
    if address == "local":
        # Ray starts workers at a niceness of 15, at which they get next to nothing of cores that others use
        os.environ.setdefault("RAY_worker_niceness", "0")
        if "ray" not in sys.modules:
            # Ray's switch for one machine alone: its processes then listen on 127.0.0.1. Ray reads it when it is
            # imported, and its processes when they start, which must agree.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import ray
    from ray.exceptions import RayError

    if ray.is_initialized():
        return
    try:
        ray.init(address, include_dashboard=False, logging_level=logging.ERROR)
    except (ConnectionError, RayError) as error:
        if address == "local":
            raise
        got = (str(error).splitlines() or ["(no message)"])[0].rstrip(".")
        remedy = "`ray status` shows whether it runs; without RAY_ADDRESS, a Ray of its own starts on this machine."
        if "authentication" in f"{error} {error.__cause__}".lower():
            got = "one that asks for its token"
            remedy = "In the shell of the script: export RAY_AUTH_MODE=token, with the cluster's token in "
            remedy += "~/.ray/auth_token. `ray start` asks for tokens wherever it finds that file."
        raise ConnectionError(
            f"RAY_ADDRESS={address}: expected a Ray cluster that lets this process in, got {got}. {remedy}"
        ) from None


def check_resources(settings: str, *workers: tuple[int, Resources]) -> None:
    """Check that the cluster has what workers ask for, whether it is free or not; start Ray if there are any.

    Args:
        settings: The settings that ask for it, for the error.
        workers: How many of each kind, and what one of the kind asks for, which it must find on one node.

    Raises:
        ValueError: If the cluster has less; names what is asked for and what there is.
    """
    workers = tuple((number, each) for number, each in workers if number)
    if not workers:
        return
    start_ray()
    import ray

    present = ray.cluster_resources()
    for name in ("CPU", "GPU"):
        asked = sum(number * each.get(name, 0.0) for number, each in workers)
        if asked > present.get(name, 0.0) + 1e-9:
            remedy = "Take fewer learners, or num_gpus_per_learner=0. `ray status` shows which GPUs Ray has found."
            if name == "CPU":
                remedy = (
                    "Ask for fewer processes or for fractions, num_cpus_per_env_runner=0.5 and "
                    f"num_cpus_per_learner=0.5, or begin with ray.init(num_cpus={asked:g}), as if there were so many."
                )
            raise ValueError(
                f"{settings}: expected at most the {present.get(name, 0.0):g} {name}s of the cluster, "
                f"got {asked:g} {name}s. {remedy}"
            )
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for _, each in workers:
        if not any(all(node.get(name, 0.0) + 1e-9 >= number for name, number in each.items()) for node in nodes):
            there = "; ".join(sorted({_listed(node, each) for node in nodes}))
            raise ValueError(
                f"{settings}: expected workers that each fit on one node: {there}, got one with "
                f"{_listed(each, each)}. Ask for less for each, or add a larger node."
            )


def check_resources_of(runners: RunnerSettings, learners: LearnerSettings) -> None:
    """Check that the cluster has what all workers of a run ask for together; see :func:`check_resources`."""
    check_resources(
        f"num_env_runners={runners.num_env_runners}, num_learners={learners.num_learners}",
        (runners.num_env_runners, {"CPU": runners.num_cpus_per_env_runner}),
        (learners.num_learners, {"CPU": learners.num_cpus_per_learner, "GPU": learners.num_gpus_per_learner}),
    )


def no_room(asked: Resources) -> str:
    """Describe what a worker that found no room asks for, and what is free."""
    import ray

    free, present = ray.available_resources(), ray.cluster_resources()
    named = [name for name, number in asked.items() if number]
    there = ", ".join(f"{free.get(name, 0.0):g} of {present.get(name, 0.0):g} {name}s" for name in named)
    return f"no room in time: it asks for {_listed(asked, asked)}, and {there} are free"


def room_remedy(name: str) -> str:
    """Say what to do if others hold what workers called ``name`` ask for."""
    name = name.replace(" ", "_")
    return (
        f"Wait until what holds them has ended, lower num_{name}s, or ask for a fraction of a CPU, "
        f"num_cpus_per_{name}=0.5."
    )


def _listed(numbers: Resources, asked: Resources) -> str:
    """List those of ``numbers`` that are asked for."""
    return ", ".join(f"{numbers.get(name, 0.0):g} {name}s" for name, number in asked.items() if number)
