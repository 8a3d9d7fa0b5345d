"""Ethernet frames with a UDP packet, for self-tests of programs: nothing here is ever sent."""

from __future__ import annotations

import socket
import struct
from typing import Final

_ETHERNET: Final = struct.Struct("!6s6sH")
_IP: Final = struct.Struct("!BBHHHBBH4s4s")
_UDP: Final = struct.Struct("!HHHH")
_IPV4: Final = 0x0800
_DO_NOT_FRAGMENT: Final = 0x4000
_TIME_TO_LIVE: Final = 64


def udp_frame(
    macs: tuple[bytes, bytes],
    source: tuple[str, int],
    destination: tuple[str, int],
    payload: bytes,
    *,
    has_checksum: bool = False,
) -> bytes:
    """Return a frame as it lies on the wire.

    Args:
        macs: Ethernet addresses, six bytes each: to, from.
        source: IPv4 address and UDP port of the sender.
        destination: Those of the receiver.
        payload: Of UDP.
        has_checksum: Fill UDP's checksum in; it is 0, which means none, otherwise.
    """
    addresses = socket.inet_aton(source[0]), socket.inet_aton(destination[0])
    udp_bytes = _UDP.size + len(payload)
    udp = _UDP.pack(source[1], destination[1], udp_bytes, 0) + payload
    if has_checksum:
        pseudo = struct.pack("!4s4sBBH", *addresses, 0, socket.IPPROTO_UDP, udp_bytes)
        filled = internet_checksum(pseudo + udp) or 0xFFFF
        udp = _UDP.pack(source[1], destination[1], udp_bytes, filled) + payload
    fields = (0x45, 0, _IP.size + udp_bytes, 0, _DO_NOT_FRAGMENT, _TIME_TO_LIVE, socket.IPPROTO_UDP)
    ip = _IP.pack(*fields, internet_checksum(_IP.pack(*fields, 0, *addresses)), *addresses)
    return _ETHERNET.pack(*macs, _IPV4) + ip + udp


def internet_checksum(data: bytes) -> int:
    """Return the ones' complement of the ones' complement sum of 16-bit words (RFC 1071)."""
    words = struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2))
    total: int = sum(words)
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
