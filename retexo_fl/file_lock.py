"""One process at a time: a lock on a file that the system releases when its process ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from retexo_fl.errors import ConfigurationError, RunDirectoryError

_LOOK_S: Final = 0.05


def lock_run(path: Path, *, within_s: float = 0.0, option: str = "resume") -> BinaryIO:
    """Hold the run whose ``config.toml`` is ``path`` until the returned file is closed.

    Args:
        path: The file.
        within_s: How long to wait for another process to release it.
        option: Which the error names.

    Raises:
        RunDirectoryError: Another process holds it, or has just put another run in its place.
    """
    file = path.open("rb")
    if not _lock(file.fileno(), within_s) or not _is_there(path, file.fileno()):
        file.close()
        raise RunDirectoryError(
            f"{option}: another process is using the run in {path.parent}{_holder(path)}; "
            "expected none"
        )
    return file


@contextmanager
def locked_folder(
    out: Path, *, within_s: float = 0.0, shared: bool = False, doing: str = "making predictions in"
) -> Iterator[None]:
    """Hold an existing folder.

    Args:
        out: The folder.
        within_s: How long to wait for another process to release it.
        shared: Others may hold it so, too.
        doing: What the error says of another process.

    Raises:
        ConfigurationError: It cannot be used, or another process holds it.
    """
    try:
        handle = os.open(out, os.O_RDONLY)
    except OSError as error:
        raise ConfigurationError(f"out: {out} cannot be used ({error.strerror})") from error
    try:
        if not _lock(handle, within_s, shared=shared):
            raise ConfigurationError(f"out: another process is {doing} {out}; expected none")
        yield
    finally:
        os.close(handle)


def _lock(handle: int, within_s: float, *, shared: bool = False) -> bool:
    """Lock an open file or folder; return whether that was possible in time."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_LOOK_S)
        else:
            return True


def _is_there(path: Path, handle: int) -> bool:
    """Return whether the open file is still the one at its path."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    """Say which process holds a file, where the system shows that (Linux, on the same machine)."""
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return ""
    try:
        inode = str(path.stat().st_ino)
    except FileNotFoundError:
        return ""
    for _, kind, _, _, process, place, *_ in (line.split() for line in locks if "->" not in line):
        if kind == "FLOCK" and place.rpartition(":")[2] == inode:
            return f" (process {process}; a ServerApp ends half a minute after its SuperLink)"
    return ""
