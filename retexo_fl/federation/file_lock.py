"""One process at a time: a lock on a file that the system lets go when its process ends."""

from __future__ import annotations

import fcntl
from pathlib import Path
from typing import BinaryIO

from retexo_fl.errors import RunDirectoryError


def lock_run(path: Path) -> BinaryIO:
    """Hold the run whose ``config.toml`` is ``path`` until the returned file is closed.

    Raises:
        RunDirectoryError: Another process holds it.
    """
    file = path.open("rb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise RunDirectoryError(
            f"resume: another process is at work on the run in {path.parent}{_holder(path)}; "
            "expected none"
        ) from error
    return file


def _holder(path: Path) -> str:
    """Say which process holds a file, where the system tells (Linux, on the same machine)."""
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return ""
    inode = str(path.stat().st_ino)
    for _, kind, _, _, process, place, *_ in (line.split() for line in locks if "->" not in line):
        if kind == "FLOCK" and place.rpartition(":")[2] == inode:
            return f" (process {process}; a ServerApp ends half a minute after its SuperLink)"
    return ""
