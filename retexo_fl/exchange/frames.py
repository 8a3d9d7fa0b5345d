"""Frames: a 24-byte header and a payload; a block is a stream of them.

Header, little-endian::

    magic "RTXO" | version u8 | kind u8 | positions u8 | values u8
    sequence u32 | num_rows u32 | payload_bytes u32 | checksum u32

``positions`` and ``values`` name the coding of a ROWS frame (:mod:`.row_coding`), else they are 0.
The checksum is the CRC-32 of the header's first 20 bytes and the payload. It starts from the CRC-32
of the block's HELLO payload (from 0 in HELLO itself), so a frame of another block never fits in.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import Final, Self

from retexo_fl.errors import LocalProtocolError, RemoteProtocolError
from retexo_fl.units import counted

Buffer = bytes | bytearray | memoryview

MAGIC: Final = b"RTXO"
#: Version of everything this room puts on the wire.
WIRE_VERSION: Final = 3

_HEADER: Final = struct.Struct("<4sBBBBIII")
_CHECKSUM: Final = struct.Struct("<I")
HEADER_BYTES: Final = _HEADER.size + _CHECKSUM.size

#: Payload limit of a frame. A row of 100,000 float64 values (800 kB) must fit. Headers then cost
#: 0.002 %, a Raspberry Pi holds a frame with ease, and a link that breaks loses at most one frame:
#: about 6 s at the 1.4 Mbit/s of Bluetooth RFCOMM. Chosen, not tuned.
DEFAULT_MAX_FRAME_BYTES: Final = 2**20
#: Every control payload fits the least limit; under the greatest, counts of bits fit int32.
MIN_MAX_FRAME_BYTES: Final = 256
MAX_MAX_FRAME_BYTES: Final = 2**28


@unique
class FrameKind(IntEnum):
    """What a frame is; the numbers are those on the wire."""

    #: The first: which block it is.
    HELLO = 1
    #: Vectors, in plan order.
    ROWS = 2
    #: The last: every vector has passed.
    DONE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameHeader:
    """The first 24 bytes of a frame; the checksum is kept beside the payload."""

    kind: FrameKind
    positions: int = 0
    values: int = 0
    sequence: int
    num_rows: int = 0
    payload_bytes: int
    checksum: int = 0

    def signed_bytes(self) -> bytes:
        """Return the first 20 bytes, which the checksum covers."""
        return _HEADER.pack(
            MAGIC,
            WIRE_VERSION,
            self.kind,
            self.positions,
            self.values,
            self.sequence,
            self.num_rows,
            self.payload_bytes,
        )

    @classmethod
    def parse(cls, data: Buffer) -> Self:
        """Read the header that bytes begin with, 24 or more.

        Raises:
            RemoteProtocolError: Not a frame of this protocol, version, or of a known kind.
        """
        magic, version, kind, positions, values, sequence, num_rows, size = _HEADER.unpack_from(
            data
        )
        (checksum,) = _CHECKSUM.unpack_from(data, _HEADER.size)
        if magic != MAGIC:
            raise RemoteProtocolError(f"not a frame: starts with {magic!r}, expected {MAGIC!r}")
        if version != WIRE_VERSION:
            raise RemoteProtocolError(f"wire version is {version}, expected {WIRE_VERSION}")
        if kind not in FrameKind.__members__.values():
            raise RemoteProtocolError(f"frame kind {kind} is unknown")
        return cls(
            kind=FrameKind(kind),
            positions=positions,
            values=values,
            sequence=sequence,
            num_rows=num_rows,
            payload_bytes=size,
            checksum=checksum,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One whole frame as it arrived.

    Attributes:
        header: Its first 24 bytes.
        data: All its bytes.
    """

    header: FrameHeader
    data: Buffer

    @property
    def payload(self) -> memoryview:
        """What follows the header."""
        return memoryview(self.data)[HEADER_BYTES:]

    def has_checksum(self, block_seed: int) -> bool:
        """Return whether header and payload are as sent, in the block of ``block_seed``."""
        return self.header.checksum == _checksum(self.header, self.payload, block_seed)


def encode_frame(header: FrameHeader, payload: Buffer, *, block_seed: int) -> bytes:
    """Return header and payload as one frame; the header's own ``checksum`` is not used.

    Args:
        header: Header whose ``payload_bytes`` is the length of ``payload``.
        payload: Content of the frame.
        block_seed: CRC-32 of the block's HELLO payload.
    """
    checksum = _CHECKSUM.pack(_checksum(header, payload, block_seed))
    return b"".join((header.signed_bytes(), checksum, payload))


def check_frame_limit(max_frame_bytes: int) -> None:
    """Refuse a frame limit that the protocol cannot keep.

    Raises:
        LocalProtocolError: It is out of range.
    """
    if not MIN_MAX_FRAME_BYTES <= max_frame_bytes <= MAX_MAX_FRAME_BYTES:
        raise LocalProtocolError(
            f"max_frame_bytes: {max_frame_bytes} is out of range, expected "
            f"{MIN_MAX_FRAME_BYTES} to {MAX_MAX_FRAME_BYTES}"
        )


def parse_frame(data: Buffer) -> Frame:
    """Read bytes that must be one whole frame; its payload is a view of them.

    Raises:
        RemoteProtocolError: They are not.
    """
    header = _header_of(memoryview(data))
    if HEADER_BYTES + header.payload_bytes != len(data):
        raise RemoteProtocolError(
            f"a frame has {counted(len(data), 'byte')}, expected "
            f"{HEADER_BYTES + header.payload_bytes}"
        )
    return Frame(header=header, data=data)


def split_frames(stream: Buffer) -> Iterator[Frame]:
    """Yield the whole frames of a stream; a frame that is not whole at its end is left out.

    Raises:
        RemoteProtocolError: Something in it is no frame.
    """
    view = memoryview(stream)
    while len(view) >= HEADER_BYTES:
        header = _header_of(view)
        end = HEADER_BYTES + header.payload_bytes
        if len(view) < end:
            return
        yield Frame(header=header, data=view[:end])
        view = view[end:]


def _header_of(data: memoryview) -> FrameHeader:
    if len(data) < HEADER_BYTES:
        raise RemoteProtocolError(
            f"a frame has {counted(len(data), 'byte')}, expected {HEADER_BYTES} or more"
        )
    return FrameHeader.parse(data)


def _checksum(header: FrameHeader, payload: Buffer, block_seed: int) -> int:
    seed = 0 if header.kind is FrameKind.HELLO else block_seed
    return zlib.crc32(payload, zlib.crc32(header.signed_bytes(), seed))
