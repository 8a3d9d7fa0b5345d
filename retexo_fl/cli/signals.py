"""Being stopped from outside: once, and with time to leave everything whole."""

from __future__ import annotations

import signal
import time
from typing import Final

#: After a signal, further ones are passed over for so long: what is being closed is closed.
PATIENCE_S: Final = 5.0


def raise_when_stopped() -> None:
    """Have Ctrl-C, SIGTERM and SIGHUP raise ``KeyboardInterrupt`` in this process's main thread.

    A signal that was ignored when the process started (``nohup``) stays so.
    """
    last = -PATIENCE_S

    def stop(_number: int, _frame: object) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PATIENCE_S:
            last = now
            raise KeyboardInterrupt

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)
