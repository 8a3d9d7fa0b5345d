"""This machine as if it had no Bluetooth, whether it has or not."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from retexo_fl.additions.bluetooth import hci, presence, sockets

#: A family of sockets that no kernel has.
_NO_FAMILY = 63


def take_bluetooth_away(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Take away the kernel's part, Python's, and the services; ``folder`` is empty."""
    for module in (hci, presence, sockets):
        monkeypatch.setattr(module, "AF_BLUETOOTH", _NO_FAMILY)
    monkeypatch.delattr(socket, "AF_BLUETOOTH", raising=False)
    monkeypatch.setitem(sys.modules, "bluetooth", None)
    for name in ("_BLUETOOTH_CLASS", "_RFKILL_CLASS", "_PROCESSES", "_BUS"):
        monkeypatch.setattr(presence, name, folder / "nothing")
