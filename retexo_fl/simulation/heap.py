"""Memory of a process with thousands of clients goes back to the system when it is freed."""

from __future__ import annotations

import ctypes
import gc
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Clients of one process from which on it pays: an array then costs the system's pages anew.
_MANY_CLIENTS: Final = 256
#: Of glibc's ``mallopt``: larger allocations are mapped by themselves. Left alone, glibc raises the
#: limit to the largest array that was freed, and what each client keeps then lies between holes of
#: the size of an update: 2 GB for 800 clients with 0.7 million weights.
_M_MMAP_THRESHOLD: Final = -3
_MAPPED_BYTES: Final = 2**20
_TIMES_SELDOMER: Final = 10


def return_freed_memory(clients: int) -> None:
    """Have large arrays of this process mapped by themselves, if it has many clients.

    Args:
        clients: How many it has.
    """
    if clients < _MANY_CLIENTS or platform.libc_ver()[0] != "glibc":
        return
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Have Python's collector go through everything that there is a tenth as often.

    It does so whenever many objects were made, as those of a thousand clients are, and finds
    nothing: a twelfth of such a run. What is young it looks through as often as before.
    """
    young, middle, old = gc.get_threshold()
    gc.set_threshold(young, middle, _TIMES_SELDOMER * old)
    try:
        yield
    finally:
        gc.set_threshold(young, middle, old)
