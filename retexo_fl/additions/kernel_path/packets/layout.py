"""The bytes of a packet and of a receiver's tables: the same in Python, in numba and in C.

A packet is a 48-byte header and a payload of cells. A cell is 16 values, of int32 or of a byte
each; the payload is padded with zeros to whole 64 bytes. All of it is little-endian. The tables are
plain numpy arrays here; the XDP program has them as maps, of which the arrays are views.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from retexo_fl.errors import LocalProtocolError

MAGIC: Final = 0x56585452  # "RTXV"
#: Version of everything this room puts on the wire.
DATAGRAM_VERSION: Final = 1

HEADER_BYTES: Final = 48
#: Headers of IPv4 without options and of UDP.
IP_UDP_BYTES: Final = 28
CELL_VALUES: Final = 16
CELL_BYTES: Final = 64
#: Cells of a byte a value that take the bytes of one of int32.
CELLS_IN_BYTES: Final = 4
#: The longest packet: 9,008 bytes, which jumbo frames of 9,216 bytes carry.
MAX_PACKET_CELLS: Final = 140
MAX_PACKET_BYTES: Final = HEADER_BYTES + MAX_PACKET_CELLS * CELL_BYTES

#: Packets whose seen bits one block keeps and one ACK carries.
BLOCK_PACKETS: Final = 512
BLOCK_WORDS: Final = 8

#: Flag on DATA: answer with ACK.
ACK_WANTED: Final = 1
#: Flag on PING: user space answers, for devices on which XDP_TX does not work.
USER_ACK: Final = 2

#: Value of ``slots``: the vector is not for this receiver.
SKIP: Final = 2**64 - 1
#: Else its lower half is that cell. The upper half is, in a stream of bytes, the form of the
#: vector: by how many bits its numbers are shifted, and 128 more if they are signed.
FORM_AT: Final = 32
#: Value of ``regions["expected"]`` until every stream of the exchange is open.
NOT_YET: Final = 2**64 - 1


class PacketKind(IntEnum):
    """What a packet is."""

    DATA = 1
    ACK = 2
    PING = 3


HEADER: Final = np.dtype(
    [
        ("magic", "<u4"),
        ("version", "u1"),
        ("kind", "u1"),
        ("in_bytes", "u1"),
        ("flags", "u1"),
        ("token", "<u8"),
        ("stream", "<u4"),
        ("job", "<u4"),
        ("checksum", "<u8"),
        ("stage", "<u2"),
        ("sender", "<u2"),
        ("seq", "<u4"),
        ("first", "<u4"),
        ("offset", "<u2"),
        ("cells", "<u2"),
    ]
)

#: A sender's stream; ``token`` 0: free or closed. ``done`` and ``duplicates`` count packets. With
#: ``in_bytes`` 1 its values are numbers of a byte, and its slots say how they are added.
STREAM: Final = np.dtype(
    [
        ("token", "<u8"),
        ("region", "<u4"),
        ("slot_base", "<u4"),
        ("rows", "<u4"),
        ("row_cells", "<u4"),
        ("packet_cells", "<u4"),
        ("packets", "<u4"),
        ("seen_base", "<u4"),
        ("job", "<u4"),
        ("sender", "<u2"),
        ("stage", "<u2"),
        ("atomic", "u1"),
        ("in_bytes", "u1"),
        ("pad0", "u1", 2),
        ("done", "<u4"),
        ("duplicates", "<u4"),
        ("pad1", "<u8"),
    ]
)

#: What an exchange waits for; ``expected`` and ``done`` count packets of all its streams.
REGION: Final = np.dtype(
    [
        ("expected", "<u8"),
        ("done", "<u8"),
        ("complete", "<u4"),
        ("generation", "<u4"),
        ("pad", "<u8"),
    ]
)

#: What a receiver counts, in the order of its uint64 array. Each packet is counted in exactly one
#: of the first eight but the three of acknowledgements; events are completed regions.
COUNTER_NAMES: Final = (
    "passed",
    "data_new",
    "data_duplicate",
    "malformed",
    "bad_checksum",
    "foreign",
    "acks_sent",
    "pings",
    "events",
    "user_acks",
)
NUM_COUNTERS: Final = len(COUNTER_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """A receiver's tables; the arrays are shared with whatever takes packets.

    A stream is opened in a live table by writing everything and its token last, and closed by
    writing token 0 first.

    Attributes:
        acc: Accumulators, int32 [cells, 16].
        seen: Which packets were taken, uint64 [blocks, 8]; one block is 512 packets of a stream.
        slots: For each vector of a stream the first of its cells in ``acc`` and its form, or
            ``SKIP``; uint64 [n].
        streams: Records of ``STREAM`` [n].
        regions: Records of ``REGION`` [n].
    """

    acc: NDArray[np.int32]
    seen: NDArray[np.uint64]
    slots: NDArray[np.uint64]
    streams: NDArray[np.void]
    regions: NDArray[np.void]

    @classmethod
    def allocate(
        cls, *, cells: int, seen_blocks: int, slots: int, streams: int, regions: int
    ) -> Self:
        """Return zeroed tables in this process's memory; pages are taken when first written.

        Raises:
            LocalProtocolError: A size is below 1.
        """
        sizes = {
            "cells": cells,
            "seen_blocks": seen_blocks,
            "slots": slots,
            "streams": streams,
            "regions": regions,
        }
        for name, size in sizes.items():
            if size < 1:
                raise LocalProtocolError(f"tables: {name} is {size}, expected at least 1")
        return cls(
            acc=_aligned_zeros((cells, CELL_VALUES), np.dtype("<i4")),
            seen=_aligned_zeros((seen_blocks, BLOCK_WORDS), np.dtype("<u8")),
            slots=_aligned_zeros((slots,), np.dtype("<u8")),
            streams=_aligned_zeros((streams,), STREAM),
            regions=_aligned_zeros((regions,), REGION),
        )


def _aligned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return zeros that begin at a cache line, so that a cell never lies in two."""
    size_bytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.zeros(size_bytes + CELL_BYTES, dtype=np.uint8)
    start = -raw.ctypes.data % CELL_BYTES
    return raw[start : start + size_bytes].view(dtype).reshape(shape)
