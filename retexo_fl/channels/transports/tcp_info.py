"""What Linux counts for one TCP connection, and the bytes on the wire that follow from it."""

from __future__ import annotations

import socket
import struct
from typing import Final

from retexo_fl.channels.streams import WireCounters

#: ``struct tcp_info`` of linux/tcp.h as far as ``tcpi_bytes_retrans``; it only ever grows.
_INFO: Final = struct.Struct("<8B24I4Q6I4Q2I2Q")
_OPTIONS, _BYTES_RECEIVED, _SEGMENTS_OUT, _SEGMENTS_IN = 5, 35, 36, 37
_BYTES_SENT: Final = 48
_HAS_TIMESTAMPS: Final = 1

_TCP_HEADER: Final = 20
_TIMESTAMP_OPTION: Final = 12
#: A SYN carries maximum segment size, SACK permitted, timestamp and window scale.
_SYN_OPTIONS: Final = 20


def tcp_wire_counters(stream: socket.socket, *, is_accepting: bool) -> WireCounters | None:
    """Return the bytes of a connection on the wire, with IP and TCP headers; None if unknown.

    Segments that came twice are counted with their headers only: the kernel counts no more.

    Args:
        stream: A connected TCP socket, not closed.
        is_accepting: Whether the other end opened it.
    """
    try:
        data = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        ip_header = _ip_header_bytes(stream)
    except (OSError, AttributeError):
        return None
    if len(data) < _INFO.size:
        return None
    info = _INFO.unpack(data)
    options = _TIMESTAMP_OPTION if info[_OPTIONS] & _HAS_TIMESTAMPS else 0
    header = ip_header + _TCP_HEADER + options
    # SYN and SYN-ACK are longer than the segments after them. The kernel counts both but for the
    # SYN-ACK of the end that accepts, which leaves before the connection has counters.
    more = _SYN_OPTIONS - options
    more_sent = more + header if is_accepting else more
    return WireCounters(
        sent_bytes=info[_BYTES_SENT] + info[_SEGMENTS_OUT] * header + more_sent,
        received_bytes=info[_BYTES_RECEIVED] + info[_SEGMENTS_IN] * header + more,
    )


def _ip_header_bytes(stream: socket.socket) -> int:
    if stream.family == socket.AF_INET:
        return 20
    # The peer's own address is unknown once both ends have closed.
    return 20 if str(stream.getsockname()[0]).startswith("::ffff:") else 40
