"""Acknowledgements read in batches, by the words of their headers: a sender gets very many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.packets.layout import (
    BLOCK_PACKETS,
    CELL_BYTES,
    DATAGRAM_VERSION,
    HEADER_BYTES,
    MAGIC,
    PacketKind,
)
from retexo_fl.additions.kernel_path.packets.packets import PacketHead, checksum

ACK_BYTES: Final = HEADER_BYTES + CELL_BYTES
_HEADER_WORDS: Final = HEADER_BYTES // 8
#: In a header's 64-bit words.
_TOKEN, _JOB, _SEQ, _FIRST = 1, 2, 4, 5
_CHECKSUM: Final = 3
_HALF: Final = 32
_LOW_HALF: Final = 2**32 - 1
#: The upper half of an ACK's word ``_FIRST``: no offset, one cell.
_ONE_CELL: Final = 1 << 16
_START: Final = np.frombuffer(
    MAGIC.to_bytes(4, "little") + bytes((DATAGRAM_VERSION, PacketKind.ACK)), np.uint8
)


@dataclass(frozen=True, slots=True)
class Heard:
    """The content of one acknowledgement.

    Attributes:
        token: Of the stream.
        terms: What else its header must have in common with the stream's; see :func:`ack_terms`.
        seq: The packet that it answers.
        base: The packet of the first bit.
        bits: uint64 [8].
    """

    token: int
    terms: tuple[int, int, int]
    seq: int
    base: int
    bits: NDArray[np.uint64]


def ack_terms(head: PacketHead) -> tuple[int, int, int]:
    """Return what the headers of a stream's acknowledgements have in common, beside the token."""
    start = int.from_bytes(bytes((*_START, head.in_bytes)), "little")
    return start, head.stream | head.job << _HALF, head.stage | head.sender << 16


def ack_places(packets: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return which rows of a table of packets look like acknowledgements."""
    is_ack: NDArray[np.bool_] = (packets[:, 5] == PacketKind.ACK) & (lengths == ACK_BYTES)
    return is_ack.nonzero()[0]


def read_acks(packets: NDArray[np.uint8], places: NDArray[np.int64]) -> list[Heard]:
    """Read acknowledgements; of several for the same packets the last, which includes the others.

    What is damaged is left out.
    """
    words = packets[places, :ACK_BYTES].view(np.uint64)
    headers = words[:, :_HEADER_WORDS].tolist()
    latest = {(header[_TOKEN], header[_FIRST]): row for row, header in enumerate(headers)}
    heard = []
    for row in latest.values():
        start, token, job, told, seq, first = headers[row]
        base = first & _LOW_HALF
        if first >> _HALF != _ONE_CELL or base % BLOCK_PACKETS or told != checksum(words[row]):
            continue
        terms = (start, job, seq & _LOW_HALF)
        heard.append(Heard(token, terms, seq >> _HALF, base, words[row, _HEADER_WORDS:]))
    return heard
