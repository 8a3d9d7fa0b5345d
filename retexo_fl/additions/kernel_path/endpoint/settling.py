"""Wait until the kernel has finished every packet that it had started to take."""

from __future__ import annotations

import ctypes
import platform
import time
from typing import Final

#: The system call's number; the C library has no function for it.
_MEMBARRIER: Final = {"x86_64": 324, "aarch64": 283}
_GLOBAL: Final = 1
#: Far longer than a program may run for one packet.
_LONG_S: Final = 0.05


def settle_kernel() -> None:
    """Return when no XDP program runs any more that ran when this was called.

    ``membarrier`` returns after every processor has left what it does in the kernel (a grace period
    of RCU, in which such programs run): some ten milliseconds.
    """
    number = _MEMBARRIER.get(platform.machine())
    if number is not None and ctypes.CDLL(None).syscall(number, _GLOBAL, 0, 0) == 0:
        return
    # A processor without a tick: the call is refused.
    time.sleep(_LONG_S)
