"""The Ray cluster that workers run on: the connection to it, and the CPUs and GPUs that it has."""

import importlib.metadata
import logging
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rlmodule.distributed.resources import Resources, check_room
from rlmodule.settings import LearnerSettings, RunnerSettings

# Oldest version in which no web page can take control of a cluster (CVE-2026-27482, CVE-2026-41486).
OLDEST_RAY = (2, 55)


def start_ray() -> None:
    """Connect to the Ray cluster at ``RAY_ADDRESS``, or start Ray on this machine if ``RAY_ADDRESS`` is not set.

    A second call does nothing.

    Raises:
        ImportError: If Ray is not installed, or its version is too old.
        ConnectionError: If the cluster does not answer, or asks for a token.
    """
    version = importlib.metadata.version("ray")
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST_RAY:
        oldest = ".".join(map(str, OLDEST_RAY))
        raise ImportError(
            f"ray: expected version {oldest} or later, got {version}. Run: pip install "
            f'"ray>={oldest}", or set num_env_runners=0 and num_learners=0.'
        )
    # Without an address, ray.init() would join any cluster that runs on this machine, even another user's.
    address = os.environ.get("RAY_ADDRESS", "local")
    if address == "local":
        # Ray's default niceness of 15 leaves workers almost no time on a core that another program uses.
        os.environ.setdefault("RAY_worker_niceness", "0")
        if "ray" not in sys.modules:
            # With 0, Ray's processes listen on 127.0.0.1 alone. Ray reads this when it is imported and again in each
            # process that it starts. Both must read the same value, so it is too late once Ray is imported.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import ray
    from ray.exceptions import RayError

    if ray.is_initialized():
        return
    try:
        with _sighup_blocked():
            ray.init(address, include_dashboard=False, logging_level=logging.ERROR)
    except (ConnectionError, RayError) as error:
        if address == "local":
            raise
        got = (str(error).splitlines() or ["(no message)"])[0].rstrip(".")
        remedy = "`ray status` shows whether it runs. Unset RAY_ADDRESS to start Ray on this machine instead."
        if "authentication" in f"{error} {error.__cause__}".lower():
            got = "one that asks for a token"
            remedy = "Put the cluster's token in ~/.ray/auth_token and run: export RAY_AUTH_MODE=token. A cluster asks "
            remedy += "for a token if `ray start` found that file on its machine."
        raise ConnectionError(
            f"RAY_ADDRESS={address}: expected a Ray cluster that accepts this process, got {got}. {remedy}"
        ) from None


@contextmanager
def _sighup_blocked() -> Iterator[None]:
    """Start processes in this block that a closed terminal does not end, since the run is saved with them. They inherit
    which signals are blocked, and Ray itself blocks Ctrl-C for them."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def check_resources(settings: str, *workers: tuple[int, Resources]) -> None:
    """Raise unless the cluster is large enough for the workers. Start Ray first if any workers are asked for.

    Resources that other programs use at the moment count as available.

    Args:
        settings: The settings that ask for the workers; the error text begins with them.
        *workers: For each kind of worker, the number of workers, and the resources of one worker, which a single node
            must have, such as ``(4, {"CPU": 1.0, "GPU": 0.5})``.

    Raises:
        ValueError: If the cluster is too small; names the resources that are asked for and those that exist.
    """
    asked = [(number, resources) for number, resources in workers if number]
    if asked:
        start_ray()
        import ray

        check_room(settings, asked, [node["Resources"] for node in ray.nodes() if node["Alive"]])


def check_resources_of(runners: RunnerSettings, learners: LearnerSettings) -> None:
    """Raise unless the cluster is large enough for all env runners and learners of a run together; see
    :func:`check_resources`."""
    check_resources(
        f"num_env_runners={runners.num_env_runners}, num_learners={learners.num_learners}",
        (runners.num_env_runners, {"CPU": runners.num_cpus_per_env_runner}),
        (learners.num_learners, {"CPU": learners.num_cpus_per_learner, "GPU": learners.num_gpus_per_learner}),
    )


def reserve(resources: Resources) -> Any:
    """Reserve the CPUs and GPUs of one worker until :func:`free`, so that it still has them after a restart. Return the
    placement group, or None if the worker needs no group."""
    from ray.util import get_current_placement_group, placement_group

    asked = {name: number for name, number in resources.items() if number}
    if not asked or get_current_placement_group() is not None:  # a trial of Ray Tune has its own room
        return None
    return placement_group([asked])


def free(rooms: Sequence[Any]) -> None:
    """Free what :func:`reserve` reserved in ``rooms``."""
    import ray
    from ray.util import remove_placement_group

    if ray.is_initialized():
        for room in rooms:
            if room is not None:
                remove_placement_group(room)
