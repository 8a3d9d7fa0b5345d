"""What a command calls first in its own process (``nursery.py``): what hinders it, or helps it."""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path


def limit_file_size(most_bytes: int) -> None:
    """Have a file that grows beyond this refused, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))


def kill_before_rename(count: int) -> None:
    """Have the process kill itself just before it renames a file for the ``count``-th time."""
    replace, left = Path.replace, count

    def counted(self: Path, target: str | os.PathLike[str]) -> Path:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(self, target)

    Path.replace = counted  # type: ignore[method-assign,assignment]


def find_modules_in(folder: str) -> None:
    """Have modules of a folder imported by name, as by PYTHONPATH."""
    sys.path.insert(0, folder)
