"""Frames of one block back to its vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from retexo_fl.errors import RemoteProtocolError
from retexo_fl.exchange.block import BlockHeader, BlockTraffic
from retexo_fl.exchange.block_check import NOTHING, follow, located
from retexo_fl.exchange.frames import (
    DEFAULT_MAX_FRAME_BYTES,
    Buffer,
    Frame,
    FrameKind,
    split_frames,
)
from retexo_fl.exchange.row_decoding import RowsShape, decode_rows, parse_coding
from retexo_fl.exchange.vectors import VALUES_PER_NONZERO, Vectors, count_nonzeros, to_csr, to_dense


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
        after = follow(frame, progress, expected.key, expected)
        if frame.header.kind is FrameKind.ROWS:
            try:
                parts.append(_rows(frame, expected, max_frame_bytes))
            except RemoteProtocolError as error:
                raise located(error, progress, expected.key) from error
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
        found = [to_csr(part) for part in parts]
        return found[0] if len(found) == 1 else sp.vstack(found, format="csr")
    block: npt.NDArray[Any] = np.empty((expected.num_vectors, expected.width), dtype=expected.dtype)
    first = 0
    for part in parts:
        end = first + part.shape[0]
        block[first:end] = to_dense(part)
        first = end
    return block
