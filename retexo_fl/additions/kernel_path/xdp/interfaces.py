"""What the kernel reports about a network interface, in this network namespace."""

from __future__ import annotations

import ctypes
import fcntl
import socket
import struct
from dataclasses import dataclass
from typing import Final

from retexo_fl.errors import ChannelUnavailable

#: linux/sockios.h, linux/ethtool.h.
_SIOCGIFMTU: Final = 0x8921
_SIOCETHTOOL: Final = 0x8946
_GET_CHANNELS: Final = 0x3C
#: ``struct ethtool_channels``: command, four maxima, then receiving, sending, other, combined.
_NAME_BYTES: Final = 16
_CHANNELS: Final = struct.Struct("=9I")
_RECEIVING, _COMBINED = 5, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class InterfaceFacts:
    """What a receiver needs of an interface.

    Attributes:
        index: Its number.
        mtu_bytes: Longest IP packet.
        receive_queues: How many queues fill at a time; 0 where that is unknown.
    """

    index: int
    mtu_bytes: int
    receive_queues: int


def interface_facts(interface: str) -> InterfaceFacts:
    """Return the facts of an interface.

    Raises:
        ChannelUnavailable: There is none of this name.
    """
    try:
        index = socket.if_nametoindex(interface)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            answer = fcntl.ioctl(control, _SIOCGIFMTU, _request(interface, b""))
            (mtu_bytes,) = struct.unpack_from("=i", answer, _NAME_BYTES)
            queues = _receive_queues(control, interface)
    except OSError as error:
        raise ChannelUnavailable(f"interface {interface}: {error.strerror or error}") from error
    return InterfaceFacts(index=index, mtu_bytes=mtu_bytes, receive_queues=queues)


def _receive_queues(control: socket.socket, interface: str) -> int:
    asked = ctypes.create_string_buffer(_CHANNELS.pack(_GET_CHANNELS, *[0] * 8), _CHANNELS.size)
    where = struct.pack("@P", ctypes.addressof(asked))
    try:
        fcntl.ioctl(control, _SIOCETHTOOL, _request(interface, where))
    except OSError:
        return 0
    fields = _CHANNELS.unpack(asked.raw)
    return int(fields[_RECEIVING] + fields[_COMBINED])


def _request(interface: str, rest: bytes) -> bytes:
    """Return a ``struct ifreq``: the name and a union of 24."""
    return struct.pack(f"={_NAME_BYTES}s24s", interface.encode(), rest)
