"""Memory of a process with thousands of clients goes back to the system when it is freed."""

from __future__ import annotations

import ctypes
import gc
import platform
from threading import Lock
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


class _SeldomCollected:
    """Has Python's collector go through everything that there is a tenth as often.

    It does so whenever many objects were made, as those of a thousand clients are, and finds
    nothing: a twelfth of such a run. What is young it looks through as often as before. Runs of
    several threads may overlap.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._entered = 0
        self._before = gc.get_threshold()

    def __enter__(self) -> None:
        with self._lock:
            if not self._entered:
                self._before = gc.get_threshold()
                young, middle, everything = self._before
                gc.set_threshold(young, middle, _TIMES_SELDOMER * everything)
            self._entered += 1

    def __exit__(self, *of_body: object) -> None:
        with self._lock:
            self._entered -= 1
            if not self._entered:
                gc.set_threshold(*self._before)


SELDOM_COLLECTED: Final = _SeldomCollected()
