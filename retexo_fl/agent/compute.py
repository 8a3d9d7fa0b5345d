"""The one thread in which an agent computes, so that its sockets are served meanwhile."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

Result = TypeVar("Result")


class ComputeThread:
    """Runs calls one after the other; a client of a job is only ever touched in here.

    The thread does not hold the process: what it computes when the agent stops is on disk or can be
    computed again. It begins with the first call, so that privileges which the process drops before
    that are none of its own.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._busy = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)

    @property
    def busy(self) -> bool:
        """Whether a call is running."""
        return self._busy.is_set()

    async def run(self, call: Callable[[], Result]) -> Result:
        """Return what ``call`` returns, or raise what it raises; from one event loop's thread."""
        if not self._thread.is_alive():
            self._thread.start()
        future: Future[Result] = Future()
        self._calls.put((future, call))
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while True:
            future, call = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            self._busy.set()
            try:
                result = call()
            except BaseException as error:
                # The caller gets the error; the thread continues.
                self._busy.clear()
                future.set_exception(error)
            else:
                self._busy.clear()
                future.set_result(result)
            del future, call
