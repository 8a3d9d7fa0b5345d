"""A block's vectors to frames, each arriving frame checked, and frames back to vectors.

A block is HELLO (which block it is), ROWS (its vectors, in plan order), DONE. Where frames arrive,
everything but the rows is checked, once, and what has come is a :class:`BlockProgress`; rows are
decoded where they are used, once. All are pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from retexo_fl.errors import LocalProtocolError, PartitionError, RemoteProtocolError
from retexo_fl.exchange.block import (
    BlockHeader,
    BlockKey,
    BlockTraffic,
    check_same_block,
    parse_hello,
)
from retexo_fl.exchange.frames import (
    DEFAULT_MAX_FRAME_BYTES,
    Buffer,
    Frame,
    FrameHeader,
    FrameKind,
    check_frame_limit,
    encode_frame,
    parse_frame,
    split_frames,
)
from retexo_fl.exchange.row_coding import (
    CODECS,
    Coding,
    RowsShape,
    decode_rows,
    encode_bits,
    encode_dense,
    encode_few_bits,
    encode_on_grid,
    encode_rows,
    level_bits,
    parse_coding,
    row_costs,
)
from retexo_fl.exchange.vectors import (
    VALUES_PER_NONZERO,
    Integers,
    Vectors,
    check_vectors,
    count_nonzeros,
    slice_rows,
    to_csr,
    to_dense,
)

_KEY_FIELDS: Final = ("job", "layer", "weights_digest", "sender", "receiver")


# ---- vectors to frames ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBlock:
    """The frames of a whole block, in order, and their bytes."""

    frames: tuple[bytes, ...]
    traffic: BlockTraffic


def encode_block(
    block: BlockHeader,
    vectors: Vectors,
    *,
    codec: str = "lossless",
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
) -> EncodedBlock:
    """Return all frames of a block; the same arguments make the same bytes.

    Args:
        block: Identity of the block.
        vectors: Dense, or CSR with sorted columns.
        codec: One of :data:`.CODECS`.
        max_frame_bytes: Payload limit of a frame; the receiver's must be at least this.

    Raises:
        LocalProtocolError: The vectors do not match the header, hold NaN or infinity, a row
            does not fit a frame, there is no such codec, or the limit is out of range.

    Shapes:
        vectors: ``[num_vectors, width]`` of the header's dtype.
    """
    check_frame_limit(max_frame_bytes)
    if codec not in CODECS:
        raise LocalProtocolError(f"codec is {codec!r}, expected one of {', '.join(CODECS)}")
    vectors = check_vectors(vectors, block)
    bounds = _bounds(block, vectors, codec=codec, max_frame_bytes=max_frame_bytes)
    return frame_block(
        block,
        (
            (end - first, *_encoded(slice_rows(vectors, first, end), codec, max_frame_bytes))
            for first, end in pairwise(bounds)
        ),
    )


def frame_block(block: BlockHeader, parts: Iterable[tuple[int, Coding, bytes]]) -> EncodedBlock:
    """Return all frames of a block whose rows are encoded already.

    Args:
        block: Identity of the block.
        parts: Of each ROWS frame how many rows it has, in which coding, and their bytes.
    """
    hello = block.hello_payload()
    made = [(FrameHeader(kind=FrameKind.HELLO, sequence=0, payload_bytes=len(hello)), hello)]
    for num_rows, coding, payload in parts:
        header = FrameHeader(
            kind=FrameKind.ROWS,
            positions=coding.positions,
            values=coding.values,
            sequence=len(made),
            num_rows=num_rows,
            payload_bytes=len(payload),
        )
        made.append((header, payload))
    done = FrameHeader(
        kind=FrameKind.DONE, sequence=len(made), num_rows=block.num_vectors, payload_bytes=0
    )
    made.append((done, b""))
    seed = block.seed()
    return EncodedBlock(
        frames=tuple(encode_frame(header, payload, block_seed=seed) for header, payload in made),
        traffic=sum((block.traffic_of(header) for header, _ in made), BlockTraffic()),
    )


def _encoded(rows: Vectors, codec: str, max_frame_bytes: int) -> tuple[Coding, bytes]:
    if codec == "dense":
        return encode_dense(rows)
    if codec == "lossless":
        return encode_rows(rows)
    if codec == "bits":
        return encode_bits(rows)
    if codec == "grid8":
        return encode_on_grid(rows, max_dense_bytes=max_frame_bytes)
    return encode_few_bits(rows, level_bits(codec), max_dense_bytes=max_frame_bytes)


def _bounds(block: BlockHeader, vectors: Vectors, *, codec: str, max_frame_bytes: int) -> list[int]:
    # In few bits only what fits a frame as an array can be written.
    fits = codec != "lossless" and block.row_bytes <= max_frame_bytes
    if codec == "dense" or fits:
        return split_dense_rows(
            block.num_vectors, row_bytes=block.row_bytes, max_frame_bytes=max_frame_bytes
        )
    return split_rows(
        count_nonzeros(vectors),
        width=block.width,
        itemsize=block.itemsize,
        max_frame_bytes=max_frame_bytes,
    )


def split_rows(counts: Integers, *, width: int, itemsize: int, max_frame_bytes: int) -> list[int]:
    """Return the row numbers at which frames begin, and the number of rows at the end.

    A frame takes as many rows as fit uncoded, as DENSE or as plain sparse rows. So it always fits
    in its coding, and what a receiver unpacks from it stays within a few times the limit.

    Args:
        counts: Non-zero values of each row.
        width: Values per row.
        itemsize: Bytes per value.
        max_frame_bytes: Payload limit.

    Raises:
        LocalProtocolError: A row alone is over the limit.
    """
    sparse = np.concatenate(([0], np.cumsum(row_costs(counts, width=width, itemsize=itemsize))))
    dense_rows = max_frame_bytes // (width * itemsize)
    bounds = [0]
    while bounds[-1] < len(counts):
        first = bounds[-1]
        reachable = sparse[first] + max_frame_bytes
        sparse_end = int(np.searchsorted(sparse, reachable, side="right")) - 1
        end = min(len(counts), max(first + dense_rows, sparse_end))
        if end == first:
            needed = min(width * itemsize, int(sparse[first + 1] - sparse[first]))
            raise _too_small(max_frame_bytes, first, needed)
        bounds.append(end)
    return bounds


def split_dense_rows(num_rows: int, *, row_bytes: int, max_frame_bytes: int) -> list[int]:
    """Return the same for rows that are all written DENSE: as many as fit.

    Args:
        num_rows: Rows of the block.
        row_bytes: Bytes of one row as an array.
        max_frame_bytes: Payload limit.

    Raises:
        LocalProtocolError: A row is over the limit.
    """
    rows_per_frame = max_frame_bytes // row_bytes
    if num_rows and not rows_per_frame:
        raise _too_small(max_frame_bytes, 0, row_bytes)
    return [*range(0, num_rows, max(1, rows_per_frame)), num_rows] if num_rows else [0]


def _too_small(max_frame_bytes: int, vector: int, needed: int) -> LocalProtocolError:
    return LocalProtocolError(
        f"max_frame_bytes: {max_frame_bytes} is too small for vector {vector}, "
        f"expected at least {needed}"
    )


# ---- which frame comes next ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockProgress:
    """How much of a block has come.

    Attributes:
        num_frames: Frames that have come, which is the sequence of the next one.
        num_rows: Vectors in them.
        traffic: Their bytes.
        is_whole: DONE was the last of them.
        block: From HELLO, None before it.
        seed: CRC-32 of HELLO's payload, from which the checksums of the others start.
    """

    num_frames: int = 0
    num_rows: int = 0
    traffic: BlockTraffic = field(default_factory=BlockTraffic)
    is_whole: bool = False
    block: BlockHeader | None = None
    seed: int = 0


#: Before the first frame.
NOTHING: Final = BlockProgress()


def check_frame(
    data: Buffer, progress: BlockProgress, key: BlockKey, expected: BlockHeader | None = None
) -> BlockProgress:
    """Check bytes that must be the next whole frame of a block, its checksum included.

    Args:
        data: Whole frame.
        progress: What came before it.
        key: The block.
        expected: What its HELLO must contain, None while that is unknown.

    Raises:
        RemoteProtocolError: They are not.
        PartitionError: HELLO lists other edges than this end does.
    """
    try:
        frame = parse_frame(data)
        _check_checksum(frame, progress)
        return _follow(frame, progress, key, expected)
    except RemoteProtocolError as error:
        raise _located(error, progress, key) from error


def sound_prefix(key: BlockKey, stream: Buffer) -> BlockProgress:
    """Return what a stored block begins with that is as its sender made it."""
    progress = NOTHING
    try:
        for frame in split_frames(stream):
            progress = check_frame(frame.data, progress, key)
    except (RemoteProtocolError, PartitionError):
        pass
    return progress


def _check_checksum(frame: Frame, progress: BlockProgress) -> None:
    if not frame.has_checksum(progress.seed):
        raise RemoteProtocolError("checksum differs: the frame was altered, or is of another block")


def _located(
    error: RemoteProtocolError, progress: BlockProgress, key: BlockKey
) -> RemoteProtocolError:
    """Return an error that names block and frame, where the protocol is broken."""
    return RemoteProtocolError(
        f"block of layer {key.layer} from client {key.sender} to {key.receiver}, "
        f"frame {progress.num_frames}: {error}"
    )


def _follow(
    frame: Frame, progress: BlockProgress, key: BlockKey, expected: BlockHeader | None
) -> BlockProgress:
    """Check that a frame comes next in a block, without its checksum; see :func:`check_frame`."""
    header = frame.header
    _demand("sequence", header.sequence, progress.num_frames)
    if progress.is_whole:
        raise RemoteProtocolError(f"{header.kind.name} after DONE")
    if (header.kind is FrameKind.HELLO) != (progress.block is None):
        raise RemoteProtocolError(f"{header.kind.name} as frame {header.sequence}")
    if header.kind is not FrameKind.ROWS:
        _demand("positions", header.positions, 0)
        _demand("values", header.values, 0)
    if progress.block is None:
        _demand("num_rows", header.num_rows, 0)
        block = _read_hello(frame, key, expected)
        return BlockProgress(
            num_frames=1, traffic=block.traffic_of(header), block=block, seed=block.seed()
        )
    if header.kind is FrameKind.ROWS:
        _check_rows(header, progress.block, progress.block.num_vectors - progress.num_rows)
    else:
        _demand("rows before DONE", progress.num_rows, progress.block.num_vectors)
        _demand("num_rows", header.num_rows, progress.block.num_vectors)
        _demand("payload_bytes", header.payload_bytes, 0)
    is_rows = header.kind is FrameKind.ROWS
    return BlockProgress(
        num_frames=progress.num_frames + 1,
        num_rows=progress.num_rows + (header.num_rows if is_rows else 0),
        traffic=progress.traffic + progress.block.traffic_of(header),
        is_whole=not is_rows,
        block=progress.block,
        seed=progress.seed,
    )


def _read_hello(frame: Frame, key: BlockKey, expected: BlockHeader | None) -> BlockHeader:
    block = parse_hello(bytes(frame.payload))
    if expected is not None:
        check_same_block(block, expected)
    for name in _KEY_FIELDS:
        if getattr(block, name) != getattr(key, name):
            raise RemoteProtocolError(f"HELLO: {name} is not that of the block's key")
    return block


def _check_rows(header: FrameHeader, block: BlockHeader, missing: int) -> None:
    if not missing:
        raise RemoteProtocolError("ROWS after the last vector, expected DONE")
    _demand("num_rows", header.num_rows, 1, missing)
    parse_coding(header.positions, header.values)
    _demand("payload_bytes", header.payload_bytes, 1, header.num_rows * block.row_bytes)


def _demand(name: str, value: int, least: int, most: int | None = None) -> None:
    most = least if most is None else most
    if not least <= value <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise RemoteProtocolError(f"{name} is {value}, expected {expected}")


# ---- frames to vectors ---------------------------------------------------------------------------


def decode_block(
    expected: BlockHeader, stream: Buffer, *, max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES
) -> tuple[Vectors, BlockTraffic] | None:
    """Return the vectors of a block and its bytes, None while it is not whole.

    Args:
        expected: The block as this end expects it.
        stream: Whole frames from the first on, as a channel returns them: their checksums were
            checked where they arrived.
        max_frame_bytes: What the rows of a frame may take uncoded.

    Returns:
        CSR if less than a quarter of the values are not zero, else dense; the form depends on the
        values only, not on how they were cut into frames.

    Raises:
        RemoteProtocolError: The sender broke the protocol or the plan; the message names it.
        PartitionError: The two clients do not list the same edges.

    Shapes:
        result: ``[num_vectors, width]``; dense if there are no vectors.
    """
    progress, parts = NOTHING, []
    for frame in split_frames(stream):
        try:
            after = _follow(frame, progress, expected.key, expected)
            if frame.header.kind is FrameKind.ROWS:
                parts.append(_rows(frame, expected, max_frame_bytes))
        except RemoteProtocolError as error:
            raise _located(error, progress, expected.key) from error
        progress = after
    return (_joined(parts, expected), progress.traffic) if progress.is_whole else None


def _rows(frame: Frame, expected: BlockHeader, max_frame_bytes: int) -> Vectors:
    header = frame.header
    shape = RowsShape(
        num_rows=header.num_rows,
        width=expected.width,
        dtype=expected.dtype,
        max_frame_bytes=max_frame_bytes,
    )
    return decode_rows(parse_coding(header.positions, header.values), frame.payload, shape)


def _joined(parts: list[Vectors], expected: BlockHeader) -> Vectors:
    num_nonzeros = sum(int(count_nonzeros(part).sum()) for part in parts)
    if num_nonzeros * VALUES_PER_NONZERO < expected.num_vectors * expected.width:
        sparse = [to_csr(part) for part in parts]
        return sparse[0] if len(sparse) == 1 else sp.vstack(sparse, format="csr")
    block: npt.NDArray[Any] = np.empty((expected.num_vectors, expected.width), dtype=expected.dtype)
    first = 0
    for part in parts:
        end = first + part.shape[0]
        block[first:end] = to_dense(part)
        first = end
    return block
