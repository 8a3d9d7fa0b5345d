"""Wakes waiting threads when something changed, once each, and none misses it."""

from __future__ import annotations

import threading


class Changes:
    """A counter of changes that threads wait for.

    A change between a thread's look and its wait is not missed: :meth:`wait` returns at once when
    something changed since the same thread's last wait.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._count = 0
        self._seen = threading.local()

    def tell(self) -> None:
        """Wake all who wait."""
        with self._condition:
            self._count += 1
            self._condition.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Return when something changed since this thread's last call, at the latest after a time.

        A thread's first call returns at once if anything has changed before.
        """
        seen = getattr(self._seen, "count", 0)
        with self._condition:
            self._condition.wait_for(lambda: self._count != seen, timeout_s)
            self._seen.count = self._count
