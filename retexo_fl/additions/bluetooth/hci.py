"""The adapters of this machine, as the kernel lists them for every user."""

from __future__ import annotations

import fcntl
import socket
import struct
from dataclasses import dataclass
from typing import Final

from retexo_fl.additions.bluetooth.sockets import AF_BLUETOOTH

#: Source: linux, include/net/bluetooth/hci_sock.h.
_BTPROTO_HCI: Final = 1
_HCIGETDEVLIST: Final = 0x800448D2
_HCIGETDEVINFO: Final = 0x800448D3
_MOST_ADAPTERS: Final = 16
_IS_UP: Final = 1
#: struct hci_dev_info up to its flags, and its whole size.
_INFO: Final = struct.Struct("=H8s6sI")
_INFO_BYTES: Final = 92


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAdapter:
    """One adapter.

    Attributes:
        name: ``hci0``.
        address: ``AA:BB:CC:DD:EE:FF``; all zero until it was up once.
        is_up: Whether it is switched on.
    """

    name: str
    address: str
    is_up: bool


def local_adapters() -> tuple[LocalAdapter, ...]:
    """Return this machine's adapters by number; none where the kernel has no Bluetooth."""
    try:
        asking = socket.socket(AF_BLUETOOTH, socket.SOCK_RAW, _BTPROTO_HCI)
    except OSError:
        return ()
    with asking:
        listed = bytearray(struct.pack("=HH", _MOST_ADAPTERS, 0) + bytes(8 * _MOST_ADAPTERS))
        try:
            fcntl.ioctl(asking, _HCIGETDEVLIST, listed)
        except OSError:
            return ()
        (count,) = struct.unpack_from("=H", listed)
        numbers = [struct.unpack_from("=H", listed, 4 + 8 * i)[0] for i in range(count)]
        found = [_ask(asking, number) for number in sorted(numbers)]
    return tuple(adapter for adapter in found if adapter is not None)


def _ask(asking: socket.socket, number: int) -> LocalAdapter | None:
    info = bytearray(struct.pack("=H", number) + bytes(_INFO_BYTES - 2))
    try:
        fcntl.ioctl(asking, _HCIGETDEVINFO, info)
    except OSError:
        # It was removed since it was listed.
        return None
    _, name, address, flags = _INFO.unpack_from(info)
    return LocalAdapter(
        name=name.rstrip(b"\0").decode("ascii", "replace"),
        address=":".join(f"{byte:02X}" for byte in reversed(address)),
        is_up=bool(flags & _IS_UP),
    )
