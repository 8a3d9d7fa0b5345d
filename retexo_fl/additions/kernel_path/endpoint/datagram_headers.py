"""Tables of the kernel's message headers, so that one system call carries many datagrams.

``sendmmsg`` and ``recvmmsg`` read and write arrays of C structs; here these are NumPy arrays with
the same layout, filled once and then changed by columns. The layout is that of 64-bit Linux.
"""

from __future__ import annotations

import ctypes
from typing import Final

import numpy as np

from retexo_fl.additions.kernel_path.endpoint.records import SOCKADDR_BYTES

SOL_UDP: Final = 17
UDP_SEGMENT: Final = 103
UDP_GRO: Final = 104
#: ``struct mmsghdr``.
MESSAGE: Final = np.dtype(
    {
        "names": [
            "name",
            "name_bytes",
            "pieces",
            "piece_count",
            "control",
            "control_bytes",
            "flags",
            "bytes",
        ],
        "formats": ["<u8", "<u4", "<u8", "<u8", "<u8", "<u8", "<i4", "<u4"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 56],
        "itemsize": 64,
    }
)
#: ``struct iovec``.
PIECE: Final = np.dtype([("start", "<u8"), ("bytes", "<u8")])
#: ``struct cmsghdr`` with room for a number.
CONTROL: Final = np.dtype(
    [("bytes", "<u8"), ("level", "<i4"), ("kind", "<i4"), ("value", "<i4"), ("pad", "<i4")]
)
_SEGMENT_CONTROL_BYTES: Final = 18


class MessageTable:
    """Headers for up to ``count`` messages.

    Attributes:
        messages: (count,) of :data:`MESSAGE`.
        names: (count, 16) uint8: socket addresses.
        pieces: (count,) of :data:`PIECE`: where each message's bytes lie.
        controls: (count,) of :data:`CONTROL`.
    """

    def __init__(self, count: int) -> None:
        self.names = np.zeros((count, SOCKADDR_BYTES), np.uint8)
        self.pieces = np.zeros(count, PIECE)
        self.controls = np.zeros(count, CONTROL)
        self.messages = np.zeros(count, MESSAGE)
        at = np.arange(count, dtype=np.uint64)
        self.messages["name"] = address_of(self.names) + at * np.uint64(SOCKADDR_BYTES)
        self.messages["name_bytes"] = SOCKADDR_BYTES
        self.messages["pieces"] = address_of(self.pieces) + at * np.uint64(PIECE.itemsize)
        self.messages["piece_count"] = 1
        self.messages["control"] = address_of(self.controls) + at * np.uint64(CONTROL.itemsize)
        self._pointer = ctypes.c_void_p(int(address_of(self.messages)))
        # Columns, made once: a field of a structured array is looked up by name each time.
        self.name_bytes = self.messages["name_bytes"]
        self.control_bytes = self.messages["control_bytes"]
        self.message_bytes = self.messages["bytes"]
        self.piece_starts = self.pieces["start"]
        self.piece_bytes = self.pieces["bytes"]
        self.control_values = self.controls["value"]

    @property
    def count(self) -> int:
        """Messages there is room for."""
        return len(self.messages)

    def pointer(self, first: int = 0) -> ctypes.c_void_p:
        """Return where the headers from ``first`` on lie."""
        if first == 0:
            return self._pointer
        return ctypes.c_void_p(int(address_of(self.messages)) + first * MESSAGE.itemsize)

    def ask_for_segments(self) -> None:
        """Prepare all controls to give the kernel the size of a message's packets."""
        self.controls["bytes"] = _SEGMENT_CONTROL_BYTES
        self.controls["level"] = SOL_UDP
        self.controls["kind"] = UDP_SEGMENT


def address_of(array: np.ndarray) -> np.uint64:
    """Return where an array's bytes lie in memory."""
    return np.uint64(array.ctypes.data)
