"""Work of this process inside a test host's network namespace: its sockets stay there."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Have this thread work in a network namespace; files, processes and memory stay its own.

    What is opened in it (sockets, attached programs) remains in it afterwards.
    """
    with Path("/proc/thread-self/ns/net").open("rb") as own, _opened(namespace) as other:
        _enter(other)
        try:
            yield
        finally:
            _enter(own.fileno())


@contextlib.contextmanager
def _opened(namespace: str) -> Iterator[int]:
    fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _enter(fd: int) -> None:
    if _LIBC.setns(fd, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
