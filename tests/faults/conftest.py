"""One Ray for all tests of a file, with more CPUs than the machine has: workers wait for each other, not for Ray."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def ray_here() -> Iterator[None]:
    import ray

    ray.init(
        "local",
        num_cpus=8,
        include_dashboard=False,
        object_store_memory=150_000_000,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()
