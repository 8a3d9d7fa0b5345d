"""The sender's end: the frames of one block, one by one, from any frame on."""

from __future__ import annotations

from typing import Final

import numpy as np

from retexo_fl.errors import LocalProtocolError
from retexo_fl.exchange.block import BlockHeader, BlockTraffic
from retexo_fl.exchange.codecs import CODECS, encode_dense, encode_rows, row_costs
from retexo_fl.exchange.frames import (
    DEFAULT_MAX_FRAME_BYTES,
    FrameHeader,
    check_frame_limit,
    encode_frame,
)
from retexo_fl.exchange.states import TRANSITIONS, FrameKind, State, expected_triggers
from retexo_fl.exchange.vectors import (
    Integers,
    Vectors,
    check_vectors,
    count_nonzeros,
    slice_rows,
)
from retexo_fl.units import counted

#: An ABORT's reason is for a person: one line. Fits the least frame limit.
MAX_REASON_BYTES: Final = 200


class SendingSession:
    """Makes the frames of one block in order: HELLO, ROWS ..., DONE.

    A frame depends on header, vectors, codec, limit and its sequence number only, so a session
    built again makes the same frames and goes on from any of them. Frames are encoded when asked
    for; the session holds one at a time.

    Args:
        header: Identity of the block.
        vectors: Its vectors; they must not change while the session lives.
        codec: ``lossless`` or ``dense``.
        max_frame_bytes: Payload limit of a frame; the receiver's must be at least this.

    Raises:
        LocalProtocolError: The vectors are not what the header says, hold NaN or infinity, a row
            does not fit a frame, there is no such codec, or the limit is out of range.
    """

    def __init__(
        self,
        header: BlockHeader,
        vectors: Vectors,
        *,
        codec: str = "lossless",
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
    ) -> None:
        check_frame_limit(max_frame_bytes)
        if codec not in CODECS:
            raise LocalProtocolError(f"codec is {codec!r}, expected one of {', '.join(CODECS)}")
        self._header = header
        self._vectors = check_vectors(vectors, header)
        self._is_dense = codec == "dense"
        self._bounds = self._split(max_frame_bytes)
        self._seed = header.seed()
        self._state = State.HELLO
        self._next_sequence = 0
        self._traffic = BlockTraffic()

    @property
    def state(self) -> State:
        """Where the block stands; DONE or ABORTED when there is no further frame."""
        return self._state

    @property
    def next_sequence(self) -> int:
        """Number of the frame that comes next."""
        return self._next_sequence

    @property
    def num_frames(self) -> int:
        """Frames of the whole block: HELLO, one per group of rows, DONE."""
        return len(self._bounds) + 1

    @property
    def traffic(self) -> BlockTraffic:
        """Bytes of all frames made so far; a frame made again after :meth:`resume` counts again."""
        return self._traffic

    def next_frame(self) -> bytes:
        """Return the next frame, whole.

        Raises:
            LocalProtocolError: There is none: the block is done or aborted.
        """
        sequence = self._next_sequence
        if sequence == 0:
            return self._make(FrameKind.HELLO, self._header.hello_payload())
        if sequence < len(self._bounds):
            return self._make_rows(self._bounds[sequence - 1], self._bounds[sequence])
        return self._make(FrameKind.DONE, b"", num_rows=self._header.num_vectors)

    def abort(self, reason: str) -> bytes:
        """Take the block back and return the frame that says so.

        Args:
            reason: One line for the receiver's log, at most 200 bytes of UTF-8.

        Raises:
            LocalProtocolError: The block is done or aborted, or the reason is not one line.
        """
        payload = reason.encode("utf-8", errors="replace")
        if not (reason.isprintable() and 1 <= len(payload) <= MAX_REASON_BYTES):
            raise LocalProtocolError(
                f"reason: {reason!r} is not a line of 1 to {MAX_REASON_BYTES} bytes"
            )
        return self._make(FrameKind.ABORT, payload)

    def resume(self, sequence: int) -> None:
        """Go on with frame ``sequence``: the receiver's ``next_sequence``.

        Raises:
            LocalProtocolError: The block has no such frame, or was aborted.
        """
        if not 0 <= sequence <= self.num_frames or self._state is State.ABORTED:
            raise LocalProtocolError(
                f"{self._state.name} block of {counted(self.num_frames, 'frame')} cannot "
                f"resume at {sequence}"
            )
        self._next_sequence = sequence
        if sequence == self.num_frames:
            self._state = State.DONE
        else:
            self._state = State.ROWS if sequence else State.HELLO

    def _split(self, max_frame_bytes: int) -> list[int]:
        header = self._header
        if self._is_dense:
            return split_dense_rows(
                header.num_vectors, row_bytes=header.row_bytes, max_frame_bytes=max_frame_bytes
            )
        return split_rows(
            count_nonzeros(self._vectors),
            width=header.width,
            itemsize=header.itemsize,
            max_frame_bytes=max_frame_bytes,
        )

    def _make_rows(self, first: int, end: int) -> bytes:
        rows = slice_rows(self._vectors, first, end)
        coding, payload = encode_dense(rows) if self._is_dense else encode_rows(rows)
        return self._make(
            FrameKind.ROWS,
            payload,
            positions=coding.positions,
            values=coding.values,
            num_rows=end - first,
        )

    def _make(
        self,
        kind: FrameKind,
        payload: bytes,
        *,
        positions: int = 0,
        values: int = 0,
        num_rows: int = 0,
    ) -> bytes:
        after = TRANSITIONS.get((self._state, kind))
        if after is None:
            raise LocalProtocolError(
                f"{kind.name} cannot be sent in state {self._state.name}, expected "
                f"{expected_triggers(self._state)}"
            )
        header = FrameHeader(
            kind=kind,
            positions=positions,
            values=values,
            sequence=self._next_sequence,
            num_rows=num_rows,
            payload_bytes=len(payload),
        )
        frame = encode_frame(header, payload, block_seed=self._seed)
        self._state = after
        self._next_sequence += 1
        self._traffic += self._header.traffic_of(header)
        return frame


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
