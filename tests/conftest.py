"""Tests run in parallel: one torch thread each, one Ray for all of them that need one, and no test of Hypothesis
fails because a machine is busy."""

import functools
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from tests.together import Fleet, fleet_of

torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # and in the processes that tests start
# Ray starts workers at the lowest priority, at which they get next to nothing of cores that others use.
os.environ.setdefault("RAY_worker_niceness", "0")
# A shell starts what it runs in the background with Ctrl-C ignored, which tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)
settings.register_profile("project", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("project")


TESTS = Path(__file__).parent

# Files and folders whose tests run the whole of something: an algorithm until it has learned, a benchmark, an exported
# policy, a page of the documentation, a run whose processes are killed, a group of processes. They are the second
# stage, after those that find most faults in less time.
END_TO_END = (
    "algorithms/dqn/test_dqn_learners_together.py",
    "algorithms/loggers/test_services.py",
    "algorithms/offline/test_learning_from_data.py",
    "algorithms/ppo/test_ppo_learners_together.py",
    "algorithms/td3/test_td3_learners_together.py",
    "algorithms/test_hostile_checkpoints.py",
    "algorithms/test_ray_tune.py",
    "algorithms/test_resume.py",
    "algorithms/test_sample_ahead.py",
    "algorithms/test_simulated_gpu.py",
    "algorithms/test_streams.py",
    "benchmarks",
    "deploy/test_browser_page.py",
    "deploy/test_export.py",
    "deploy/test_hub.py",
    "deploy/test_parity.py",
    "deploy/test_serve_example.py",
    "faults",
    "learning",
    "rlmodule/envs/test_env_faults.py",
    "rlmodule/groups/test_env_runner_group.py",
    "rlmodule/groups/test_learner_group.py",
    "rlmodule/groups/test_stream.py",
    "settings_act",
    "test_coming_from_cleanrl.py",
    "test_coming_from_d3rlpy.py",
    "test_coming_from_rllib.py",
    "test_coming_from_rllib_models.py",
    "test_coming_from_sb3.py",
    "test_docs_of_catalog.py",
    "test_docs_site.py",
    "test_faq.py",
    "test_pictures.py",
    "test_readme.py",
)


@functools.cache
def is_end_to_end(file: Path) -> bool:
    return any(file.is_relative_to(TESTS / place) for place in END_TO_END)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark the tests of the second stage before pytest leaves out tests by their marks. When all is in order, put the
    tests that share Ray first and those that share a fleet next: a single process of pytest-xdist runs the beginning,
    so each of the two is started once. The others follow, whose halves the processes take from each other."""
    for item in items:
        if is_end_to_end(item.path):
            item.add_marker(pytest.mark.end_to_end)
    result = yield
    items.sort(key=lambda item: [name not in getattr(item, "fixturenames", ()) for name in ("ray_started", "fleet")])
    return result


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
