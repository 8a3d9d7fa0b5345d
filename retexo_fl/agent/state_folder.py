"""The folder that an agent keeps everything in: one agent at a time, its owner only."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from retexo_fl.errors import AgentUnreachable, ConfigurationError

_LOCK_NAME: Final = "agent.lock"
_PAUSE_S: Final = 0.05


@contextmanager
def owned_state(folder: Path) -> Iterator[Path]:
    """Hold the folder; no other agent may use it meanwhile.

    Raises:
        ConfigurationError: It cannot be used, or another agent uses it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        descriptor = os.open(folder / _LOCK_NAME, flags, 0o600)
    except OSError as error:
        raise ConfigurationError(f"state: {folder} cannot be used ({error.strerror})") from error
    with os.fdopen(descriptor, "r+") as lock:
        if not _is_free(lock):
            raise ConfigurationError(
                f"state: {folder} is used by another agent (process {lock.read().strip()}); "
                "expected a folder of its own for each agent"
            )
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield folder


def wait_until_free(folder: Path, *, timeout_s: float = 15.0) -> None:
    """Wait until the agent that uses the folder has ended.

    Raises:
        AgentUnreachable: It is still there when the time is over.
    """
    deadline = time.monotonic() + timeout_s
    try:
        with (folder / _LOCK_NAME).open("r+") as lock:
            while not _is_free(lock):
                if time.monotonic() > deadline:
                    raise AgentUnreachable(
                        f"{folder}: the agent (process {lock.read().strip()}) has not ended within "
                        f"{timeout_s:g} s; see `systemctl status retexo-agent`"
                    )
                time.sleep(_PAUSE_S)
    except FileNotFoundError:
        return


def _is_free(lock: IO[str]) -> bool:
    """Take the lock, if it is free."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
