"""How long TCP and TLS take to move bytes over a link: arithmetic, no clock and no socket.

After a pause slow start begins again, as in Linux (``tcp_slow_start_after_idle``; BBR does not). It
does not model losses. docs/links.md, "Network time of a deployment", describes it to users.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from retexo_fl.simulation.links import Link

#: Bytes of a stream in a packet of 1,500 B, behind its headers.
SEGMENT_BYTES: Final = 1448
#: Headers of IP (20) and TCP with time stamps (32).
HEADER_BYTES: Final = 52
#: Segments that may be sent before the first acknowledgement. Source: RFC 6928, section 2.
INITIAL_WINDOW: Final = 10
#: Most bytes of a stream in a TLS 1.3 record. Source: RFC 8446, section 5.1.
TLS_RECORD_BYTES: Final = 16_384
#: Its header (5), its type (1) and its tag (16). Source: RFC 8446, section 5.2.
TLS_RECORD_MORE_BYTES: Final = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """What lies between two ends: the link from the first to the second, and the one back."""

    there: Link
    back: Link

    @property
    def reverse(self) -> Path:
        """The same as the second end sees it."""
        return Path(there=self.back, back=self.there)

    @property
    def round_trip_s(self) -> float:
        """Seconds from sending a full segment on an idle link to its acknowledgement."""
        delays_s = float(self.there.delay_s + self.back.delay_s)
        full_s = (SEGMENT_BYTES + HEADER_BYTES) * float(self.there.byte_s)
        return delays_s + full_s + HEADER_BYTES * float(self.back.byte_s)


def transfer_s(path: Path, size_bytes: int) -> float:
    """Return the seconds from a stream's first byte that leaves to its last that arrives.

    Slow start: a window of 10 segments, doubled with every round trip until it fills the link.

    Args:
        path: From the sender to the receiver; idle before.
        size_bytes: Bytes of the stream, TLS included.

    Source: RFC 5681, section 3.1.
    """
    byte_s = float(path.there.byte_s)
    segments = max(1, math.ceil(size_bytes / SEGMENT_BYTES))
    full_s, trip_s = (SEGMENT_BYTES + HEADER_BYTES) * byte_s, path.round_trip_s
    left_bytes = size_bytes + segments * HEADER_BYTES
    window, waited_s = INITIAL_WINDOW, 0.0
    while segments > window and window * full_s < trip_s:
        segments -= window
        left_bytes -= window * (SEGMENT_BYTES + HEADER_BYTES)
        waited_s += trip_s
        window *= 2
    return waited_s + left_bytes * byte_s + float(path.there.delay_s)


def request_s(path: Path, up_bytes: int, down_bytes: int) -> float:
    """Return the seconds of a request and its answer over a connection that exists."""
    return transfer_s(path, up_bytes) + transfer_s(path.reverse, down_bytes)


def connect_s(path: Path) -> float:
    """Return the seconds from SYN to SYN-ACK."""
    return request_s(path, 0, 0)


def with_tls(size_bytes: int) -> int:
    """Return the bytes of the TLS records that carry so many bytes."""
    return size_bytes + math.ceil(size_bytes / TLS_RECORD_BYTES) * TLS_RECORD_MORE_BYTES
