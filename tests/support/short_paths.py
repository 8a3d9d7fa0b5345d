"""A test's folder whose path leaves room for sockets below it, as pytest's own may not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Take the place of pytest's own in a module that imports it."""
    with TemporaryDirectory(prefix="fleet", dir="/tmp") as folder:
        yield Path(folder)
