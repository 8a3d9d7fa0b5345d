"""What names a block (its mailbox), what identifies it (as both ends build it), and its bytes."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias

import numpy as np

from retexo_fl.errors import LocalProtocolError, PartitionError, RemoteProtocolError
from retexo_fl.exchange.frames import HEADER_BYTES, FrameHeader, FrameKind
from retexo_fl.units import counted

#: What both ends must list alike: number of edges, digest of the plan, number of vectors.
Edges: TypeAlias = tuple[int, bytes, int]

DIGEST_BYTES: Final = 32
MAX_JOB_CHARS: Final = 64
#: Counts and column numbers are kept in int32 by scipy and in u32 on the wire.
_MAX_COUNT: Final = 2**31 - 1
#: The dtypes that an exchange carries, by their bytes per value, which is their code in HELLO.
_DTYPE_BY_ITEMSIZE: Final = {4: "float32", 8: "float64"}

# layer, sender, receiver, num_edges, num_vectors, width u32 | itemsize, job length u8
# | weights, plan | job
_HELLO: Final = struct.Struct("<IIIIIIBB32s32s")
#: What each end sends about the edges between the two clients.
_EDGE_FIELDS: Final = ("num_edges", "plan_digest")
MIN_HELLO_BYTES: Final = _HELLO.size + 1
MAX_HELLO_BYTES: Final = _HELLO.size + MAX_JOB_CHARS


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockKey:
    """The mailbox of one block: the vectors of one sender for one receiver in one exchange.

    Attributes:
        job: Name of the training.
        layer: Stage index of the exchange.
        weights_digest: 32 bytes that name the weights which made the vectors.
        sender: Client index.
        receiver: Client index.
    """

    job: str
    layer: int
    weights_digest: bytes
    sender: int
    receiver: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockHeader:
    """The identity of one block: vectors of one layer from one client to one peer.

    Both ends build it by themselves; the receiver compares field by field.

    Attributes:
        job: Name of the job, 1 to 64 printable ASCII characters.
        layer: Stage index, from 0.
        sender: Client index.
        receiver: Client index of the peer.
        weights_digest: 32 bytes that name the weights that made the rows.
        num_edges: Edges between nodes of the two clients, as this end lists them; 0 where the
            vectors do not go along edges.
        plan_digest: 32 bytes over the kind of plan and those edges, from which the vectors and
            their order follow.
        num_vectors: How many vectors the block holds.
        width: Values per vector, at least 1.
        dtype: ``float32`` or ``float64``.

    Raises:
        LocalProtocolError: A field is out of range.
    """

    job: str
    layer: int
    sender: int
    receiver: int
    weights_digest: bytes
    num_edges: int
    plan_digest: bytes
    num_vectors: int
    width: int
    dtype: str

    def __post_init__(self) -> None:
        """Check every field."""
        for name in ("layer", "sender", "receiver", "num_edges", "num_vectors", "width"):
            least = 1 if name == "width" else 0
            expected = f"a whole number from {least} to {_MAX_COUNT}"
            _demand(name, getattr(self, name), _is_count(getattr(self, name), least), expected)
        for name in ("weights_digest", "plan_digest"):
            value = getattr(self, name)
            is_digest = isinstance(value, bytes) and len(value) == DIGEST_BYTES
            _demand(name, value, is_digest, f"{DIGEST_BYTES} bytes")
        _demand("job", self.job, _is_job(self.job), "1 to 64 printable ASCII characters")
        is_dtype = self.dtype in _DTYPE_BY_ITEMSIZE.values()
        _demand("dtype", self.dtype, is_dtype, "float32 or float64")
        differs = self.sender != self.receiver
        _demand("receiver", self.receiver, differs, "another client than the sender")

    @property
    def itemsize(self) -> int:
        """Bytes per value."""
        return np.dtype(self.dtype).itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one dense vector."""
        return self.width * self.itemsize

    @property
    def raw_bytes(self) -> int:
        """Bytes of the block as a dense array."""
        return self.num_vectors * self.row_bytes

    @property
    def key(self) -> BlockKey:
        """Its mailbox."""
        return BlockKey(
            job=self.job,
            layer=self.layer,
            weights_digest=self.weights_digest,
            sender=self.sender,
            receiver=self.receiver,
        )

    def hello_payload(self) -> bytes:
        """Return the payload of the HELLO frame: 90 bytes and the job's name."""
        return _HELLO.pack(
            self.layer,
            self.sender,
            self.receiver,
            self.num_edges,
            self.num_vectors,
            self.width,
            self.itemsize,
            len(self.job),
            self.weights_digest,
            self.plan_digest,
        ) + self.job.encode("ascii")

    def seed(self) -> int:
        """Return the CRC-32 of the HELLO payload, from which the other frames' checksums start."""
        return zlib.crc32(self.hello_payload())

    def traffic_of(self, frame: FrameHeader) -> BlockTraffic:
        """Return what one frame of this block adds to the count of bytes."""
        is_rows = frame.kind is FrameKind.ROWS
        return BlockTraffic(
            raw_bytes=frame.num_rows * self.row_bytes if is_rows else 0,
            payload_bytes=frame.payload_bytes if is_rows else 0,
            control_bytes=0 if is_rows else frame.payload_bytes,
            wire_bytes=HEADER_BYTES + frame.payload_bytes,
        )


def parse_hello(payload: bytes) -> BlockHeader:
    """Read a HELLO payload.

    Raises:
        RemoteProtocolError: Its length, or a field, is not one that a block can have.
    """
    if not MIN_HELLO_BYTES <= len(payload) <= MAX_HELLO_BYTES:
        raise RemoteProtocolError(
            f"HELLO: {counted(len(payload), 'byte')}, expected {MIN_HELLO_BYTES} to "
            f"{MAX_HELLO_BYTES}"
        )
    layer, sender, receiver, num_edges, num_vectors, width, itemsize, job_chars, weights, plan = (
        _HELLO.unpack_from(payload)
    )
    job = payload[_HELLO.size :]
    if len(job) != job_chars:
        raise RemoteProtocolError(
            f"HELLO: job has {counted(len(job), 'byte')}, expected {job_chars}"
        )
    try:
        return BlockHeader(
            job=job.decode("latin-1"),
            layer=layer,
            sender=sender,
            receiver=receiver,
            weights_digest=weights,
            num_edges=num_edges,
            plan_digest=plan,
            num_vectors=num_vectors,
            width=width,
            dtype=_DTYPE_BY_ITEMSIZE.get(itemsize, f"{counted(itemsize, 'byte')} per value"),
        )
    except LocalProtocolError as error:
        raise RemoteProtocolError(f"HELLO: {error}") from error


def check_same_block(received: BlockHeader, expected: BlockHeader) -> None:
    """Compare HELLO with what this end expects.

    Raises:
        PartitionError: The two ends do not list the same edges, which comes before everything that
            follows from it; the message names both clients and how many edges each lists.
        RemoteProtocolError: The first other field that differs, by name.
    """
    for item in fields(BlockHeader):
        got, wanted = getattr(received, item.name), getattr(expected, item.name)
        if got == wanted:
            continue
        if item.name in _EDGE_FIELDS:
            raise PartitionError(_edges_differ(received, expected))
        raise RemoteProtocolError(f"HELLO: {item.name} is {_show(got)}, expected {_show(wanted)}")


def _edges_differ(received: BlockHeader, expected: BlockHeader) -> str:
    """Say who lists how many edges, the lower client first: the same words at both ends."""
    one, count = received.sender, received.num_edges
    two, other_count = expected.receiver, expected.num_edges
    if one > two:
        one, count, two, other_count = two, other_count, one, count
    advice = (
        "an edge must stand in both parts; compare your boundary tables, then make the parts again"
    )
    edges = counted(count, "edge") if count else "no edges"
    if count == other_count:
        return (
            f"client {one} and client {two} both list {edges} between them, but not the same "
            f"one{'' if count == 1 else 's'}, or follow two boundary plans; {advice}"
        )
    return (
        f"client {one} lists {edges} to client {two}, which lists {other_count or 'none'}; {advice}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockTraffic:
    """Bytes of frames that left or arrived; a frame that is sent twice counts twice.

    Attributes:
        raw_bytes: The rows as dense arrays.
        payload_bytes: The rows as encoded.
        control_bytes: Payload of HELLO.
        wire_bytes: Everything, with frame headers.
    """

    raw_bytes: int = 0
    payload_bytes: int = 0
    control_bytes: int = 0
    wire_bytes: int = 0

    def __add__(self, other: BlockTraffic) -> BlockTraffic:
        """Return the sum of two counts."""
        return BlockTraffic(
            raw_bytes=self.raw_bytes + other.raw_bytes,
            payload_bytes=self.payload_bytes + other.payload_bytes,
            control_bytes=self.control_bytes + other.control_bytes,
            wire_bytes=self.wire_bytes + other.wire_bytes,
        )


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MAX_COUNT


def _is_job(job: object) -> bool:
    return (
        isinstance(job, str)
        and 1 <= len(job) <= MAX_JOB_CHARS
        and job.isascii()
        and job.isprintable()
    )


def _demand(name: str, value: object, holds: bool, expected: str) -> None:
    if not holds:
        raise LocalProtocolError(f"{name} is {_show(value)}, expected {expected}")


def _show(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else repr(value)
