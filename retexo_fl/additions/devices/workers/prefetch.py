"""Prepares announced shares in threads, while the share before them is computed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retexo_fl.additions.devices.workers.task import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A share that is ready to be computed.

    Attributes:
        content: What the task made of it.
        prepare_s: How long that took.
        waited_s: How long the caller waited for it.
    """

    content: object
    prepare_s: float
    waited_s: float


@dataclass(slots=True, kw_only=True)
class _Entry:
    share: Share
    is_begun: bool = False
    content: object = None
    prepare_s: float = 0.0
    error: BaseException | None = None
    is_ready: bool = False


class Prefetcher:
    """A queue of announced shares, of which the first ``ahead`` are prepared or being prepared.

    The threads begin with the first announcement and do not hold the process.
    """

    def __init__(self, prepare: Callable[[Share], object], *, ahead: int, threads: int = 1) -> None:
        """Set up.

        Args:
            prepare: Makes a share ready; called so many times at once as there are threads.
            ahead: Shares that may wait prepared; with 0 none is prepared before it is asked for.
            threads: That prepare, each a share of its own; more than ``ahead`` have nothing to do.
        """
        self._prepare = prepare
        self._ahead = ahead
        self._entries: list[_Entry] = []
        self._changed = threading.Condition()
        self._at_once = threading.Semaphore(threads)
        self._num_threads = min(threads, ahead)
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def announce(self, keep: int, shares: Sequence[Share]) -> None:
        """Keep the first ``keep`` announced shares, and add ``shares`` behind them."""
        with self._changed:
            self._entries[keep:] = [_Entry(share=share) for share in shares]
            while len(self._threads) < self._num_threads:
                thread = threading.Thread(target=self._run, name="prepare", daemon=True)
                thread.start()
                self._threads.append(thread)
            self._changed.notify_all()

    def take(self, order: Share | int) -> Prepared:
        """Return a share prepared.

        Args:
            order: A share that was not announced, or how many announced ones to drop before the
                one to compute.
        """
        begun = time.perf_counter()
        entry = self._made_now(order) if isinstance(order, Share) else self._announced(order)
        waited_s = time.perf_counter() - begun
        if entry.error is not None:
            raise entry.error
        return Prepared(content=entry.content, prepare_s=entry.prepare_s, waited_s=waited_s)

    def close(self) -> None:
        """End the threads, once they have prepared what they are at."""
        with self._changed:
            self._is_closed = True
            self._entries.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _made_now(self, share: Share) -> _Entry:
        entry = _Entry(share=share)
        self._fill(entry)
        return entry

    def _announced(self, dropped: int) -> _Entry:
        with self._changed:
            del self._entries[:dropped]
            entry = self._entries[0]
            if self._ahead:
                self._changed.notify_all()
                self._changed.wait_for(lambda: entry.is_ready)
            del self._entries[0]
            self._changed.notify_all()
        if not self._ahead:
            self._fill(entry)
        return entry

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._next() is not None)
                entry = self._next()
                if self._is_closed or entry is None:
                    return
                entry.is_begun = True
            self._fill(entry)
            with self._changed:
                entry.is_ready = True
                self._changed.notify_all()
            # What was dropped meanwhile is freed before the next is prepared.
            del entry

    def _next(self) -> _Entry | None:
        window = self._entries[: self._ahead]
        return next((entry for entry in window if not entry.is_begun), None)

    def _fill(self, entry: _Entry) -> None:
        with self._at_once:
            begun = time.perf_counter()
            try:
                entry.content = self._prepare(entry.share)
            except BaseException as error:
                # Raised where the share is asked for; the caller there must not wait for ever.
                entry.error = error
            entry.prepare_s = time.perf_counter() - begun
