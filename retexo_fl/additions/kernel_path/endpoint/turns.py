"""A lock that a busy thread leaves to those who call once in a while."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Final, Self

_WAY_S: Final = 50e-6


class TurnLock:
    """A lock for a ``with`` block of the busy thread; callers use :attr:`calling`.

    The busy thread takes it again so soon after its release that a caller who waits for it
    would not be fast enough: it yields when a caller waits.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count_lock = threading.Lock()
        self._waiting = 0
        self.calling = Calling(self)

    def __enter__(self) -> Self:
        if self._waiting:
            time.sleep(_WAY_S)
        self._lock.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def acquire_calling(self) -> None:
        """Take the lock as a caller."""
        with self._count_lock:
            self._waiting += 1
        self._lock.acquire()
        with self._count_lock:
            self._waiting -= 1

    def release(self) -> None:
        """Give the lock back."""
        self._lock.release()


class Calling:
    """The lock for a ``with`` block of a caller."""

    def __init__(self, lock: TurnLock) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        self._lock.acquire_calling()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
