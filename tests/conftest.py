"""Tests run beside each other: one torch thread each, one Ray for all of them that need one, and no test of Hypothesis
fails because a machine is busy."""

import logging
import os
import signal
from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.together import Fleet, fleet_of

torch.set_num_threads(1)
# Ray starts workers at the lowest priority, at which they get next to nothing of cores that others use.
os.environ.setdefault("RAY_worker_niceness", "0")
# A shell starts what it runs in the background with Ctrl-C ignored, which tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests that share Ray first and those that share a fleet next, so that a single process of pytest-xdist
    starts each of the two, once."""
    items.sort(key=lambda item: [name not in getattr(item, "fixturenames", ()) for name in ("ray_started", "fleet")])


def asks_for_ray(item: pytest.Item | None) -> bool:
    return isinstance(item, pytest.Function) and "ray_started" in item.fixturenames


@pytest.fixture(scope="module")
def ray_started() -> None:
    """Ray with more CPUs than the machine has, so that workers wait for each other and not for Ray. It goes on until a
    test follows that does not ask for it."""
    import ray

    if not ray.is_initialized():
        ray.init(
            "local",
            num_cpus=8,
            include_dashboard=False,
            object_store_memory=150_000_000,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """Three processes, in which learners train together."""
    with fleet_of(3) as fleet:
        yield fleet


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    result = yield
    if asks_for_ray(item) and not asks_for_ray(nextitem):  # now that fixtures of the file have ended, too
        import ray

        ray.shutdown()
    return result
