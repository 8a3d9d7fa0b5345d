"""Notifies systemd of the agent's state: ready, what it does, its watchdog, that it stops.

Source: sd_notify(3) and sd_watchdog_enabled(3): datagrams to the socket in ``NOTIFY_SOCKET``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress


class Notifier:
    """Does nothing where the process was not started by a service manager.

    Args:
        environment: The process's.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        #: An abstract socket is written with @ for its first, zero byte.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        usec = environment.get("WATCHDOG_USEC", "")
        mine = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        #: Interval of the watchdog's sign of life, 0 for never: half of what is allowed.
        self.watchdog_s = int(usec) / 2e6 if self._address and mine and usec.isdecimal() else 0.0

    def ready(self, status: str) -> None:
        """Report that requests are answered from now on."""
        self._send(f"READY=1\nSTATUS={status}")

    def status(self, status: str) -> None:
        """Report the state in one line."""
        self._send(f"STATUS={status}")

    def stopping(self) -> None:
        """Report that the process ends on purpose."""
        self._send("STOPPING=1\nSTATUS=stopping")

    def alive(self) -> None:
        """Send the watchdog's sign of life."""
        self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        # A service manager that has ended must not end the agent.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stream:
            stream.connect(self._address)
            stream.send(text.encode())
