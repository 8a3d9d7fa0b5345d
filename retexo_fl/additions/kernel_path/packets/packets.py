"""Packets: written from vectors in batches, read one by one, and their checksum."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.packets.layout import (
    BLOCK_PACKETS,
    BLOCK_WORDS,
    CELL_BYTES,
    DATAGRAM_VERSION,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    MAX_PACKET_CELLS,
    USER_ACK,
    PacketKind,
)
from retexo_fl.additions.kernel_path.packets.packet_kernels import checksum_of, pack
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape, units_of
from retexo_fl.errors import LocalProtocolError

Buffer = bytes | bytearray | memoryview | NDArray[np.uint8]

_TOKEN_AT: Final = 8
_JOB_AT: Final = 20
_CHECKSUM_AT: Final = 24
_HEADER: Final = struct.Struct("<IBBBBQIIQHHIIHH")


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketHead:
    """The fields that a stream's packets share; ``token`` and ``stream`` are from the grant.

    ``in_bytes``: values are of a byte each, not int32.
    """

    token: int
    stream: int
    job: int
    stage: int
    sender: int
    in_bytes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PacketHeader:
    """The header of a packet that arrived whole and undamaged."""

    kind: PacketKind
    head: PacketHead
    flags: int
    seq: int
    first: int
    offset: int
    cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """Which packets of a stream were taken.

    Attributes:
        header: That of the packet; its ``seq`` is the one that was answered.
        base: The packet of the first bit, a multiple of 512.
        bits: uint64 [8], the lowest bit of the first word first.
    """

    header: PacketHeader
    base: int
    bits: NDArray[np.uint64]


def pack_packets(
    shape: StreamShape,
    head: PacketHead,
    values: NDArray[np.int32] | NDArray[np.uint8],
    seqs: NDArray[np.int64],
    out: NDArray[np.uint8],
    *,
    flags: NDArray[np.uint8],
) -> NDArray[np.int64]:
    """Write DATA packets of a stream.

    Args:
        shape: The stream.
        head: The fields that they share.
        values: All its vectors, int32 [rows, width], contiguous; uint8 in a stream of bytes.
        seqs: Which packets, int64 [n].
        out: uint8 [n, at least packet_bytes, a multiple of 8], contiguous. With exactly
            ``shape.packet_bytes`` it is one buffer for segmentation offload as long as a shorter
            last packet of the stream is last in ``seqs``.
        flags: ``ACK_WANTED`` or 0 for each, uint8 [n].

    Returns:
        Bytes of each packet, int64 [n].

    Raises:
        LocalProtocolError: An array has another form, or a packet is none of the stream's.
    """
    _check_packing(shape, values, seqs, flags, out)
    lengths = np.empty(len(seqs), dtype=np.int64)
    used = out[: len(seqs)]
    are_written = pack(
        np.frombuffer(_pack_header(head, PacketKind.DATA), dtype=np.uint64),
        values.reshape(-1),
        shape.width,
        shape.row_cells,
        shape.packet_cells,
        shape.cells,
        seqs,
        flags,
        used.view(np.uint64),
        used.view(values.dtype),
        lengths,
    )
    if not are_written:
        raise LocalProtocolError(
            f"packets {int(seqs.min())} to {int(seqs.max())} of a stream of {shape.packets}"
        )
    return lengths


def readdress(buffer: NDArray[np.uint8], token: int, stream: int) -> None:
    """Turn packets to another receiver's stream, in place; the checksum does not cover these.

    Args:
        buffer: uint8 [packet bytes] or [n, packet bytes].
        token: From that receiver's grant.
        stream: From that receiver's grant.
    """
    part = int(token).to_bytes(8, "little") + int(stream).to_bytes(4, "little")
    buffer[..., _TOKEN_AT:_JOB_AT] = np.frombuffer(part, dtype=np.uint8)


def parse_header(packet: Buffer) -> PacketHeader | None:
    """Read the header of a packet; None if it is not ours, not whole, or damaged."""
    data = np.frombuffer(packet, dtype=np.uint8)
    if len(data) < HEADER_BYTES:
        return None
    fields = data[:HEADER_BYTES].view(HEADER)[0]
    if fields["magic"] != MAGIC or fields["version"] != DATAGRAM_VERSION:
        return None
    if fields["kind"] not in PacketKind.__members__.values() or fields["in_bytes"] > 1:
        return None
    units = units_of(int(fields["cells"]), bool(fields["in_bytes"]))
    if not 1 <= units <= MAX_PACKET_CELLS or len(data) != HEADER_BYTES + units * CELL_BYTES:
        return None
    if checksum(data) != int(fields["checksum"]):
        return None
    return _header_of(fields)


def read_ack(packet: Buffer) -> Ack | None:
    """Read an ACK; None if the packet is not a whole and undamaged one."""
    header = parse_header(packet)
    if header is None or header.kind is not PacketKind.ACK or header.cells != 1:
        return None
    if header.first % BLOCK_PACKETS or header.offset:
        return None
    bits = np.frombuffer(packet, dtype=np.uint8)[HEADER_BYTES:].view(np.uint64).copy()
    return Ack(header=header, base=header.first, bits=bits)


def ack_packet(head: PacketHead, seq: int, base: int, bits: NDArray[np.uint64]) -> bytes:
    """Return the answer to packet ``seq``: uint64 [8] bits of what was taken from ``base`` on."""
    payload = np.ascontiguousarray(bits, dtype=np.uint64)
    assert payload.shape == (BLOCK_WORDS,), "an ACK covers 512 packets"
    return _build(head, PacketKind.ACK, payload.view(np.uint8), seq=seq, first=base)


def ping_packet(head: PacketHead, seq: int, *, user_ack: bool = False) -> bytes:
    """Return a question for the ACK of the block that packet ``seq`` is in."""
    payload = np.zeros(CELL_BYTES, dtype=np.uint8)
    flags = USER_ACK if user_ack else 0
    return _build(head, PacketKind.PING, payload, seq=seq, flags=flags)


def checksum(packet: Buffer) -> int:
    """Return what the checksum of a packet has to be.

    With ``w0`` to ``w3`` the words of the header that it covers (bytes 0 to 7, the job, bytes 32
    to 39 and 40 to 47) and the payload's words ``p0, p1, ...``, modulo 2**64::

        w0 * C0 + w1 * C1 + w2 * C2 + w3 * C3 + sum of even p + K * sum of odd p

    All factors are odd, so a change within one word is always found. It finds damage, not forgery.
    """
    words = np.frombuffer(packet, dtype=np.uint64)
    return int(checksum_of(words))


def _check_packing(
    shape: StreamShape,
    values: NDArray[np.int32] | NDArray[np.uint8],
    seqs: NDArray[np.int64],
    flags: NDArray[np.uint8],
    out: NDArray[np.uint8],
) -> None:
    dtype = np.dtype(np.uint8 if shape.in_bytes else np.int32)
    if values.shape != (shape.rows, shape.width) or values.dtype != dtype:
        raise LocalProtocolError(
            f"vectors of shape {values.shape}, {values.dtype}; expected "
            f"{(shape.rows, shape.width)}, {dtype}"
        )
    has_room = out.ndim == 2 and len(out) >= len(seqs) and out.shape[1] >= shape.packet_bytes
    if not has_room or out.shape[1] % 8:
        raise LocalProtocolError(
            f"room for packets of shape {out.shape}, expected at least "
            f"{(len(seqs), shape.packet_bytes)} and a row of whole 8 bytes"
        )
    if len(flags) != len(seqs):
        raise LocalProtocolError(f"{len(flags)} flags for {len(seqs)} packets")


def _build(
    head: PacketHead,
    kind: PacketKind,
    payload: NDArray[np.uint8],
    *,
    seq: int,
    first: int = 0,
    flags: int = 0,
) -> bytes:
    cells = len(payload) // CELL_BYTES
    packet = bytearray(_pack_header(head, kind, flags=flags, seq=seq, first=first, cells=cells))
    packet += payload.tobytes()
    packet[_CHECKSUM_AT : _CHECKSUM_AT + 8] = checksum(packet).to_bytes(8, "little")
    return bytes(packet)


def _pack_header(
    head: PacketHead,
    kind: PacketKind,
    *,
    flags: int = 0,
    seq: int = 0,
    first: int = 0,
    cells: int = 0,
) -> bytes:
    """Return a header without its checksum."""
    return _HEADER.pack(
        MAGIC,
        DATAGRAM_VERSION,
        kind,
        head.in_bytes,
        flags,
        head.token,
        head.stream,
        head.job,
        0,
        head.stage,
        head.sender,
        seq,
        first,
        0,
        cells,
    )


def _header_of(fields: Any) -> PacketHeader:
    head = PacketHead(
        token=int(fields["token"]),
        stream=int(fields["stream"]),
        job=int(fields["job"]),
        stage=int(fields["stage"]),
        sender=int(fields["sender"]),
        in_bytes=bool(fields["in_bytes"]),
    )
    return PacketHeader(
        kind=PacketKind(int(fields["kind"])),
        head=head,
        flags=int(fields["flags"]),
        seq=int(fields["seq"]),
        first=int(fields["first"]),
        offset=int(fields["offset"]),
        cells=int(fields["cells"]),
    )
