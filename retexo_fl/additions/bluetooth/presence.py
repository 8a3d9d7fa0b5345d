"""Which parts of Bluetooth are missing on this machine, and how to get each."""

from __future__ import annotations

import errno
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from retexo_fl.additions.bluetooth.hci import local_adapters
from retexo_fl.additions.bluetooth.sockets import (
    AF_BLUETOOTH,
    BTPROTO_RFCOMM,
    NO_SOCKETS,
    SOCKETS_REMEDY,
    rfcomm_sockets,
)
from retexo_fl.errors import ChannelUnavailable

_BLUETOOTH_CLASS: Final = Path("/sys/class/bluetooth")
_RFKILL_CLASS: Final = Path("/sys/class/rfkill")
_PROCESSES: Final = Path("/proc")
_BUS: Final = Path("/run/dbus/system_bus_socket")


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPart:
    """One part that is not there.

    Attributes:
        name: Which: ``kernel``, ``python``, ``adapter``, ``bluetoothd``, ``dbus-fast``.
        seen: What was seen.
        remedy: How to get it.
    """

    name: str
    seen: str
    remedy: str

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.seen} ({self.remedy})"


def missing_parts() -> tuple[MissingPart, ...]:
    """Return all that is missing, the deepest part first; empty where Bluetooth can be used."""
    return (*missing_for_sockets(), *missing_for_discovery())


def missing_for_sockets() -> tuple[MissingPart, ...]:
    """Return what keeps this process from connecting to, and listening at, a given channel."""
    return tuple(_sockets_lack())


def missing_for_discovery() -> tuple[MissingPart, ...]:
    """Return what keeps this process from pairing, and from finding a device's channel."""
    return tuple(_discovery_lacks())


def _sockets_lack() -> Iterator[MissingPart]:
    kernel = _kernel()
    if kernel is not None:
        yield kernel
    try:
        rfcomm_sockets()
    except ChannelUnavailable:
        yield MissingPart(name="python", seen=NO_SOCKETS, remedy=SOCKETS_REMEDY)
    # Without the kernel's part the adapters are unknown.
    if kernel is None and (adapter := _adapter()) is not None:
        yield adapter


def _kernel() -> MissingPart | None:
    if sys.platform != "linux":
        seen = "Bluetooth is used through Linux only"
        return MissingPart(name="kernel", seen=seen, remedy="reach peers over TCP here")
    try:
        socket.socket(AF_BLUETOOTH, socket.SOCK_STREAM, BTPROTO_RFCOMM).close()
    except OSError as error:
        if error.errno == errno.EPROTONOSUPPORT:
            seen, remedy = "the kernel has no RFCOMM", "load it: modprobe rfcomm"
        elif _BLUETOOTH_CLASS.is_dir():
            seen = "this process may not use Bluetooth sockets"
            remedy = "add AF_BLUETOOTH to RestrictAddressFamilies of its unit"
        else:
            seen = "the kernel has no Bluetooth"
            remedy = "load it: modprobe -a bluetooth rfcomm; kernels for the cloud lack it"
        return MissingPart(name="kernel", seen=seen, remedy=remedy)
    return None


def _adapter() -> MissingPart | None:
    adapters = local_adapters()
    if not adapters:
        remedy = "plug one in, or enable the built-in one; see: dmesg | grep -i bluetooth"
        return MissingPart(name="adapter", seen="there is no Bluetooth adapter", remedy=remedy)
    if any(adapter.is_up for adapter in adapters):
        return None
    names = ", ".join(adapter.name for adapter in adapters) + (
        " is" if len(adapters) == 1 else " are"
    )
    if _is_blocked():
        seen, remedy = f"{names} blocked by rfkill", "rfkill unblock bluetooth"
    else:
        seen, remedy = f"{names} switched off", "bluetoothctl power on"
    return MissingPart(name="adapter", seen=seen, remedy=remedy)


def _is_blocked() -> bool:
    for switch in _RFKILL_CLASS.glob("rfkill*"):
        if _text(switch / "type") == "bluetooth" and "1" in (
            _text(switch / "soft"),
            _text(switch / "hard"),
        ):
            return True
    return False


def _discovery_lacks() -> Iterator[MissingPart]:
    has_library = find_spec("dbus_fast") is not None
    has_pybluez = find_spec("bluetooth") is not None
    if not has_library and not has_pybluez:
        yield MissingPart(
            name="dbus-fast",
            seen="the package dbus-fast is not installed",
            remedy="pip install dbus-fast",
        )
    if not _BUS.exists() and (has_library or not has_pybluez):
        yield MissingPart(
            name="bluetoothd",
            seen="there is no D-Bus system bus, which bluetoothd needs",
            remedy="apt install dbus bluez; in a container, mount the host's /run/dbus",
        )
    elif not _runs("bluetoothd"):
        yield MissingPart(
            name="bluetoothd",
            seen="bluetoothd does not run",
            remedy="apt install bluez && systemctl enable --now bluetooth",
        )


def _runs(name: str) -> bool:
    if not (_PROCESSES / "1").exists():
        # Unknown where the processes of others are hidden.
        return True
    return any(_text(folder / "comm") == name for folder in _PROCESSES.glob("[0-9]*"))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        # A process that has ended, or a switch that was unplugged.
        return ""
