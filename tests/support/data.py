"""Where tests find the real graphs; a user's machine has none and skips with the reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_DEFAULT = Path(__file__).resolve().parents[3] / "shared" / "data"


def data_dir() -> Path:
    """Return the folder of real graphs, or skip the calling test.

    ``RETEXO_TEST_DATA`` overrides the place.
    """
    folder = Path(os.environ.get("RETEXO_TEST_DATA", _DEFAULT))
    if not (folder / "cora.npz").is_file():
        pytest.skip(f"real graphs are not at {folder} (set RETEXO_TEST_DATA)")
    return folder
