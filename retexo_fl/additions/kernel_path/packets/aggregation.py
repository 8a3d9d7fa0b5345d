"""The user-space twin of the XDP program: takes packets into tables, a batch at a time."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.packets.layout import (
    CELL_BYTES,
    HEADER,
    HEADER_BYTES,
    MAX_PACKET_CELLS,
    NUM_COUNTERS,
    Tables,
)
from retexo_fl.additions.kernel_path.packets.taking import take
from retexo_fl.errors import LocalProtocolError

#: Room that an answer needs: an ACK has one cell.
MAX_REPLY_BYTES: Final = HEADER_BYTES + CELL_BYTES


def take_packets(  # noqa: PLR0913, PLR0917 - what the kernel is given, and three ways to differ
    tables: Tables,
    buffers: NDArray[np.uint8],
    lengths: NDArray[np.int64],
    counters: NDArray[np.uint64],
    replies: NDArray[np.uint8],
    reply_lengths: NDArray[np.int64],
    *,
    max_cells: int = MAX_PACKET_CELLS,
    answers_user_acks: bool = True,
    takes_data: bool = True,
) -> None:
    """Take UDP payloads in their order; packet for packet what the XDP program does.

    Only one thread may do so on the same tables, and no XDP program beside it: nothing is atomic.
    Each packet adds 1 to one of ``passed``, ``data_new``, ``data_duplicate``, ``malformed``,
    ``bad_checksum``, ``foreign``, ``pings`` and ``user_acks``.

    Args:
        tables: Where the values go.
        buffers: uint8 [n, stride], contiguous; the stride is a multiple of 8.
        lengths: Bytes of each payload, int64 [n]; longer than the stride: it was cut off.
        counters: uint64 in the order of ``COUNTER_NAMES``, added to.
        replies: uint8 [at least n, at least ``MAX_REPLY_BYTES``], a multiple of 8: the answers.
        reply_lengths: Bytes of each answer, 0 for none; int64 [at least n].
        max_cells: Longest packet taken.
        answers_user_acks: Whether a PING with ``USER_ACK`` is answered; XDP leaves it to user
            space.
        takes_data: Whether DATA is taken; else it counts as passed. False for a socket beside
            an XDP program.

    Raises:
        LocalProtocolError: An array has another form.
    """
    count = len(lengths)
    _check_forms(buffers, counters, replies, count)
    if not count:
        return
    headers: NDArray[np.void] = np.ndarray(
        count, dtype=HEADER, buffer=buffers, strides=(buffers.strides[0],)
    )
    take(
        tables.acc.reshape(-1),
        tables.seen,
        tables.slots,
        tables.streams,
        tables.regions,
        headers,
        buffers.view(np.uint64),
        buffers.view(np.int32),
        buffers,
        lengths,
        counters,
        replies.view(np.uint64),
        reply_lengths,
        max_cells,
        answers_user_acks,
        takes_data,
    )


def _check_forms(
    buffers: NDArray[np.uint8],
    counters: NDArray[np.uint64],
    replies: NDArray[np.uint8],
    count: int,
) -> None:
    for name, array, least in (
        ("packets", buffers, HEADER_BYTES),
        ("answers", replies, MAX_REPLY_BYTES),
    ):
        if array.ndim != 2 or len(array) < count or array.shape[1] < least or array.shape[1] % 8:
            raise LocalProtocolError(
                f"room for {name} of shape {array.shape}, expected at least {(count, least)} and "
                f"a row of whole 8 bytes"
            )
    if len(counters) != NUM_COUNTERS:
        raise LocalProtocolError(f"{len(counters)} counters, expected {NUM_COUNTERS}")
