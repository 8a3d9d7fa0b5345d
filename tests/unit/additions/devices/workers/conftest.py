"""Workers that several test files use, since each takes a second to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from retexo_fl.additions.devices.workers.pool import WorkerPool
from tests.support.device_pools import pool_of


@pytest.fixture(scope="session")
def process_pool() -> Iterator[WorkerPool]:
    """Return three CPU workers; a test that makes one fail needs a pool of its own."""
    with pool_of("cpu:3", threads=1) as pool:
        yield pool
