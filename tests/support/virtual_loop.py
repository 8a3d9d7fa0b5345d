"""An event loop whose clock never waits: it goes on to the next timer when nothing else is left.

Work in threads takes real time and no virtual time: while a thread is at work, the clock stands.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any, Final

#: Real time after which a thread that has not ended never will.
_THREAD_S: Final = 60.0


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which a second passes when nobody has anything to do before it.

    Its time begins at 0. Between two calls of ``run_until_complete`` the clock stands, so code that
    is not asynchronous may take as long as it likes.

    Attributes:
        busy_threads: Calls that are under way in threads of an executor.
    """

    def __init__(self) -> None:
        self._virtual_s = 0.0
        self.busy_threads = 0
        super().__init__(_Impatient(self))

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._virtual_s

    def skip(self, seconds: float) -> None:
        """Let time pass at once."""
        self._virtual_s += seconds

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """See :meth:`asyncio.loop.run_in_executor`; the clock stands until it is done."""
        future = super().run_in_executor(executor, func, *args)
        self.busy_threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, future: asyncio.Future[Any]) -> None:
        self.busy_threads -= 1

    def now_s(self) -> float:
        """Return the virtual time, for code that is not asynchronous."""
        return self._virtual_s

    def pause(self, seconds: float) -> None:
        """Let the tasks of the loop run for so many virtual seconds."""
        self.run_until_complete(asyncio.sleep(seconds))


class _Impatient(selectors.BaseSelector):
    """Waits for files only while a thread is at work; otherwise it lets the clock skip."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._inner = selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return files that are ready now; else let the time of ``timeout`` pass at once."""
        ready = self._inner.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self._loop.busy_threads:
            ready = self._inner.select(_THREAD_S)
            assert ready, "a thread does not end"
            return ready
        assert timeout is not None, "nothing will ever happen any more in this loop"
        self._loop.skip(timeout)
        return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """See :class:`selectors.BaseSelector`."""
        return self._inner.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """See :class:`selectors.BaseSelector`."""
        return self._inner.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """See :class:`selectors.BaseSelector`."""
        return self._inner.modify(fileobj, events, data)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """See :class:`selectors.BaseSelector`."""
        return self._inner.get_map()

    def close(self) -> None:
        """See :class:`selectors.BaseSelector`."""
        self._inner.close()
