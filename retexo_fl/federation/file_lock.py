"""One process at a time: a lock on a file that the system releases when its process ends."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import BinaryIO, Final

from retexo_fl.errors import RunDirectoryError

_LOOK_S: Final = 0.05


def lock_run(path: Path, *, within_s: float = 0.0) -> BinaryIO:
    """Hold the run whose ``config.toml`` is ``path`` until the returned file is closed.

    Args:
        path: The file.
        within_s: How long to wait for another process to release it.

    Raises:
        RunDirectoryError: Another process holds it.
    """
    deadline = time.monotonic() + within_s
    file = path.open("rb")
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() < deadline:
                time.sleep(_LOOK_S)
                continue
            file.close()
            raise RunDirectoryError(
                f"resume: another process is using the run in {path.parent}{_holder(path)}; "
                "expected none"
            ) from error
        return file


def _holder(path: Path) -> str:
    """Say which process holds a file, where the system shows that (Linux, on the same machine)."""
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return ""
    inode = str(path.stat().st_ino)
    for _, kind, _, _, process, place, *_ in (line.split() for line in locks if "->" not in line):
        if kind == "FLOCK" and place.rpartition(":")[2] == inode:
            return f" (process {process}; a ServerApp ends half a minute after its SuperLink)"
    return ""
