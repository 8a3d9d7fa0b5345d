"""Being stopped from outside: once, and with time to leave everything whole."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: After a signal, further ones are passed over for so long: what is being closed is closed.
PATIENCE_S: Final = 5.0


@contextmanager
def stoppable() -> Iterator[None]:
    """Have Ctrl-C, SIGTERM and SIGHUP raise ``KeyboardInterrupt`` in the body.

    After the body they are ignored: the process is about to end, with the exit code that its
    caller waits for. A signal that was ignored when the process started (``nohup``) stays so.
    """
    last = -PATIENCE_S

    def stop(_number: int, _frame: object) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PATIENCE_S:
            last = now
            raise KeyboardInterrupt

    names = [name for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    numbers = [getattr(signal, name) for name in names]
    for number in numbers:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
