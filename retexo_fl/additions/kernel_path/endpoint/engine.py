"""One thread that waits for the socket, the receiver and its callers, and does all the work."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

#: Nothing is waited for longer, should a wake-up have been missed.
_LONGEST_WAIT_S: Final = 1.0
_CLOSE_S: Final = 5.0


class Work(Protocol):
    """What the thread does; no method waits."""

    def readable(self) -> bool:
        """Read some of what arrived; True where there may be more."""
        ...

    def event(self) -> None:
        """Take the receiver's event."""
        ...

    def advance(self, now_s: float) -> bool:
        """Send what may be sent; True where there may be more at once."""
        ...

    def next_deadline_s(self) -> float:
        """Return when :meth:`advance` is due; infinity: not before something happens."""
        ...

    @property
    def wants_write(self) -> bool:
        """Whether it waits for room in the socket's buffer."""
        ...


class Engine:
    """The thread of an endpoint.

    Args:
        name: Of the thread.
        socket_fd: Brings packets.
        event_fd: The receiver's, if it has one.
        work: What is done.
        failed: Called with what ended the thread, should anything.
    """

    def __init__(
        self,
        *,
        name: str,
        socket_fd: int,
        event_fd: int | None,
        work: Work,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._work = work
        self._failed = failed
        self._socket_fd = socket_fd
        self._event_fd = event_fd
        self._epoll = select.epoll()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        for descriptor in (socket_fd, self._wake_fd, *([] if event_fd is None else [event_fd])):
            self._epoll.register(descriptor, select.EPOLLIN)
        self._waits_for_write = False
        self._is_ending = False
        self._wake_lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Have the thread look at its work at once."""
        with self._wake_lock:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def close(self) -> bool:
        """End the thread; False where it did not end within 5 seconds."""
        self._is_ending = True
        self.wake()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S)
            if self._thread.is_alive():
                return False
        with self._wake_lock:
            if self._wake_fd >= 0:
                os.close(self._wake_fd)
                self._wake_fd = -1
        self._epoll.close()
        return True

    def _run(self) -> None:
        try:
            has_more = False
            while not self._is_ending:
                has_more = self._turn(0.0 if has_more else self._patience_s())
        except BaseException as error:  # raised in the threads that wait
            self._failed(error)

    def _turn(self, timeout_s: float) -> bool:
        self._watch_writing()
        has_more = False
        for descriptor, happened in self._epoll.poll(timeout_s):
            if descriptor == self._socket_fd:
                if happened & ~select.EPOLLOUT:
                    has_more |= self._work.readable()
            elif descriptor == self._event_fd:
                self._work.event()
            else:
                with suppress(BlockingIOError):
                    os.eventfd_read(descriptor)
        return self._work.advance(time.monotonic()) or has_more

    def _patience_s(self) -> float:
        left_s = self._work.next_deadline_s() - time.monotonic()
        return min(max(left_s, 0.0), _LONGEST_WAIT_S)

    def _watch_writing(self) -> None:
        wanted = self._work.wants_write
        if wanted != self._waits_for_write:
            self._waits_for_write = wanted
            extra = select.EPOLLOUT if wanted else 0
            self._epoll.modify(self._socket_fd, select.EPOLLIN | extra)
