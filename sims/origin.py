"""Which state of the code made a figure."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

_REPOSITORY: Final = Path(__file__).resolve().parents[1]


@cache
def commit() -> str:
    """Return the commit, marked where the tree differs from it; ``unknown`` outside a clone."""
    command = ["git", "-C", str(_REPOSITORY), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
