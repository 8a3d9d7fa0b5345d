"""Frames: a 24-byte header and a payload, and the reader that cuts a byte stream into them.

Header, little-endian::

    magic "RTXO" | version u8 | kind u8 | positions u8 | values u8
    sequence u32 | num_rows u32 | payload_bytes u32 | checksum u32

``positions`` and ``values`` name the coding of a ROWS frame (see :mod:`.codecs`), else they are 0.
The checksum is the CRC-32 of the header's first 20 bytes and the payload. It starts from the CRC-32
of the block's HELLO payload (from 0 in HELLO itself), so a frame of another block never fits in.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from retexo_fl.errors import LocalProtocolError, RemoteProtocolError
from retexo_fl.exchange.states import FrameKind

Buffer = bytes | bytearray | memoryview

MAGIC: Final = b"RTXO"
#: Version of everything this room puts on the wire.
WIRE_VERSION: Final = 2

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameHeader:
    """What the first 24 bytes of a frame say; the checksum is kept beside the payload."""

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
        """Read a header from exactly 24 bytes.

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
    """One whole frame as it arrived."""

    header: FrameHeader
    payload: Buffer

    def has_checksum(self, block_seed: int) -> bool:
        """Say whether header and payload are as they were sent, in the block of ``block_seed``."""
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


class FrameReader:
    """Cuts a stream of bytes into frames and owns the bytes of at most one.

    Bytes that were given stay the caller's until the reader has copied what it needs.

    Args:
        check_header: Called once per frame, before any byte of its payload is kept; raises
            RemoteProtocolError to refuse it.
    """

    def __init__(self, check_header: Callable[[FrameHeader], None]) -> None:
        self._check_header = check_header
        self._given = memoryview(b"")
        self._kept = bytearray()
        self._header: FrameHeader | None = None

    @property
    def kept_bytes(self) -> int:
        """Bytes of the current, incomplete frame that the reader owns."""
        return len(self._kept) + (HEADER_BYTES if self._header else 0)

    @property
    def is_drained(self) -> bool:
        """Whether all given bytes were used or copied."""
        return not self._given

    def give(self, data: Buffer) -> None:
        """Add bytes; the previous ones must be drained."""
        assert self.is_drained, "bytes given before the last ones were drained"
        self._given = memoryview(data).cast("B")

    def drop(self) -> None:
        """Forget the incomplete frame and everything given."""
        self._given = memoryview(b"")
        self._kept = bytearray()
        self._header = None

    def next_frame(self) -> Frame | None:
        """Return the next whole frame, or None when more bytes are needed.

        Raises:
            RemoteProtocolError: The header is not one, or ``check_header`` refuses it.
        """
        if self._header is None:
            if not self._keep_up_to(HEADER_BYTES):
                return None
            header = FrameHeader.parse(self._kept)
            self._check_header(header)
            self._header, self._kept = header, bytearray()
        if not self._keep_up_to(self._header.payload_bytes):
            return None
        frame = Frame(header=self._header, payload=self._kept)
        # A new buffer, never a cleared one: arrays may still look at the old one.
        self._header, self._kept = None, bytearray()
        return frame

    def _keep_up_to(self, size_bytes: int) -> bool:
        missing = size_bytes - len(self._kept)
        self._kept += self._given[:missing]
        # An empty slice would still hold on to the caller's buffer.
        self._given = self._given[missing:] or memoryview(b"")
        return len(self._kept) == size_bytes


def _checksum(header: FrameHeader, payload: Buffer, block_seed: int) -> int:
    seed = 0 if header.kind is FrameKind.HELLO else block_seed
    return zlib.crc32(payload, zlib.crc32(header.signed_bytes(), seed))
