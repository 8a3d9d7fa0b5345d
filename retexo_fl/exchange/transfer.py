"""Whole blocks: vectors to frames in one call, and received rows back to one block of vectors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from retexo_fl.errors import LocalProtocolError
from retexo_fl.exchange.block import BlockHeader, BlockTraffic
from retexo_fl.exchange.events import RowsReceived
from retexo_fl.exchange.frames import DEFAULT_MAX_FRAME_BYTES
from retexo_fl.exchange.sending import SendingSession
from retexo_fl.exchange.states import State
from retexo_fl.exchange.vectors import Vectors, count_nonzeros, to_csr, to_dense
from retexo_fl.units import counted

#: A block is handed over as CSR if less than one value in so many is not zero: CSR then takes less
#: than half of the dense memory (8 bytes per non-zero float32 against 4 per value).
VALUES_PER_NONZERO: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedBlock:
    """The frames of a whole block, in order, and their bytes."""

    frames: tuple[bytes, ...]
    traffic: BlockTraffic


def encode_block(
    header: BlockHeader,
    vectors: Vectors,
    *,
    codec: str = "lossless",
    max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
) -> EncodedBlock:
    """Return all frames of a block; :class:`SendingSession` makes the same ones one by one.

    Args:
        header: Identity of the block.
        vectors: Dense, or CSR with sorted columns.
        codec: ``lossless`` or ``dense``.
        max_frame_bytes: Payload limit of a frame.

    Raises:
        LocalProtocolError: The vectors are not what the header says, hold NaN or infinity, a row
            does not fit a frame, or there is no such codec.

    Shapes:
        vectors: ``[num_vectors, width]`` of the header's dtype.
    """
    session = SendingSession(header, vectors, codec=codec, max_frame_bytes=max_frame_bytes)
    frames = tuple(session.next_frame() for _ in range(session.num_frames))
    assert session.state is State.DONE
    return EncodedBlock(frames=frames, traffic=session.traffic)


class BlockAssembler:
    """Collects the rows of one block in order.

    Args:
        expected: The block.
    """

    def __init__(self, expected: BlockHeader) -> None:
        self._expected = expected
        self._parts: list[Vectors] = []
        self._num_nonzeros = 0
        self._rows_received = 0

    @property
    def rows_received(self) -> int:
        """Vectors collected so far."""
        return self._rows_received

    @property
    def is_complete(self) -> bool:
        """Whether every vector of the block is there."""
        return self._rows_received == self._expected.num_vectors

    def add(self, rows: RowsReceived) -> None:
        """Add the next rows.

        Raises:
            LocalProtocolError: They do not follow the last ones, or are not of this block.
        """
        num_rows, width = rows.vectors.shape
        end = rows.first + num_rows
        if rows.first != self._rows_received or end > self._expected.num_vectors:
            raise LocalProtocolError(
                f"rows {rows.first} to {end} do not follow the {self._rows_received} "
                f"of {self._expected.num_vectors} received"
            )
        if width != self._expected.width or rows.vectors.dtype != self._expected.dtype:
            raise LocalProtocolError(
                f"rows are {rows.vectors.dtype} of width {width}, expected "
                f"{self._expected.dtype} of width {self._expected.width}"
            )
        self._parts.append(rows.vectors)
        self._num_nonzeros += int(count_nonzeros(rows.vectors).sum())
        self._rows_received = end

    def finish(self) -> Vectors:
        """Return the block: CSR if less than a quarter of its values are not zero, else dense.

        The form depends on the values only, not on how they were cut into frames.

        Raises:
            LocalProtocolError: Rows are missing.

        Shapes:
            result: ``[num_vectors, width]``; dense if there are no vectors.
        """
        if not self.is_complete:
            raise LocalProtocolError(
                f"received {self._rows_received} of {counted(self._expected.num_vectors, 'vector')}"
            )
        num_values = self._expected.num_vectors * self._expected.width
        if self._num_nonzeros * VALUES_PER_NONZERO < num_values:
            return sp.vstack([to_csr(part) for part in self._parts], format="csr")
        return self._stack_dense()

    def _stack_dense(self) -> npt.NDArray[Any]:
        shape = (self._expected.num_vectors, self._expected.width)
        block = np.empty(shape, dtype=self._expected.dtype)
        first = 0
        for part in self._parts:
            end = first + part.shape[0]
            block[first:end] = to_dense(part)
            first = end
        return block


def assemble(expected: BlockHeader, rows_events: Iterable[RowsReceived]) -> Vectors:
    """Return the block that all its rows make up, as :meth:`BlockAssembler.finish` does.

    Raises:
        LocalProtocolError: The rows are not the whole block, in order.
    """
    assembler = BlockAssembler(expected)
    for rows in rows_events:
        assembler.add(rows)
    return assembler.finish()
