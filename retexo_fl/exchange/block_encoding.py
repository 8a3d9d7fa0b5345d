"""Vectors of one block to its frames: HELLO, ROWS ..., DONE."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from retexo_fl.errors import LocalProtocolError
from retexo_fl.exchange.block import BlockHeader, BlockTraffic
from retexo_fl.exchange.codecs import (
    CODECS,
    Coding,
    encode_dense,
    encode_few_bits,
    encode_rows,
    row_costs,
)
from retexo_fl.exchange.frames import (
    DEFAULT_MAX_FRAME_BYTES,
    FrameHeader,
    FrameKind,
    check_frame_limit,
    encode_frame,
)
from retexo_fl.exchange.vectors import (
    Integers,
    Vectors,
    check_vectors,
    count_nonzeros,
    slice_rows,
)


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
    hello = block.hello_payload()
    made = [(FrameHeader(kind=FrameKind.HELLO, sequence=0, payload_bytes=len(hello)), hello)]
    bounds = _bounds(block, vectors, codec=codec, max_frame_bytes=max_frame_bytes)
    for first, end in pairwise(bounds):
        rows = slice_rows(vectors, first, end)
        coding, payload = _encoded(rows, codec, max_frame_bytes)
        header = FrameHeader(
            kind=FrameKind.ROWS,
            positions=coding.positions,
            values=coding.values,
            sequence=len(made),
            num_rows=end - first,
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
    bits = int(codec.removeprefix("levels"))
    return encode_few_bits(rows, bits, max_dense_bytes=max_frame_bytes)


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
