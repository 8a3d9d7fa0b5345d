"""The two small blocks by which a pair of agents agrees on datagrams: a notice and a grant.

Both travel as ordinary blocks, over links that TLS has proved, and outlive either process. The
sender's notice holds how its vectors were rounded and what they are; the receiver's grant, how
it takes them, and names the streams. A receiver that has lost what arrived grants once more, under
the next number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

import numpy as np

from retexo_fl.client.vector_carrier import (
    CONTROL_LAYERS,
    CONTROL_NUMBERS,
    FIRST_GRANT,
    MOST_STREAMS,
    STREAM_NUMBERS,
)
from retexo_fl.errors import RemoteProtocolError
from retexo_fl.exchange import BlockHeader, encode_block, to_dense

_VERSION: Final = 1
_EXPONENT_BIAS: Final = 1024
_WORD: Final = 1 << 32
#: A packet's cells at most: programs in the kernel take no longer ones.
MOST_PACKET_CELLS: Final = 53


class Way(IntEnum):
    """The way in which a receiver requests what a notice announces."""

    BLOCK = 1  # as an ordinary block, over whatever channel there is
    DATAGRAMS = 2
    KEPT = 3  # it has the same vectors from before


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Notice:
    """A sender's description of the vectors that it has for one receiver in one exchange.

    Attributes:
        exponent: The values are whole numbers times ``2 ** -exponent``.
        packet_cells: Cells of 64 bytes that a packet on the path to the receiver holds.
        stored: Values that are not zero.
        digest: 16 bytes over the whole numbers.
        streams: [n] int64, for each vector the stream that it goes in; ascending within a stream.
    """

    exponent: int
    packet_cells: int
    stored: int
    digest: bytes
    streams: np.ndarray

    @property
    def num_streams(self) -> int:
        """Streams that the receiver is to open."""
        return int(self.streams.max(initial=0)) + 1

    def numbers(self) -> np.ndarray:
        """Return it as the (1, 16 + n) float64 block that crosses."""
        found = np.zeros((1, CONTROL_NUMBERS + len(self.streams)))
        found[0, :5] = (
            _VERSION,
            self.exponent + _EXPONENT_BIAS,
            self.packet_cells,
            self.num_streams,
            self.stored,
        )
        found[0, 5:9] = np.frombuffer(self.digest, dtype="<u4")
        found[0, CONTROL_NUMBERS:] = self.streams
        return found

    @classmethod
    def read(cls, block: np.ndarray, sender: int) -> Notice:
        """Read what arrived.

        Raises:
            RemoteProtocolError: It is no valid notice.
        """
        numbers = _whole(block, sender, "notice")
        version, exponent, packet_cells, num_streams, stored, *digest = numbers[:9].tolist()
        streams = numbers[CONTROL_NUMBERS:]
        if (
            version != _VERSION
            or not 1 <= packet_cells <= MOST_PACKET_CELLS
            or not 0 < exponent < 2 * _EXPONENT_BIAS
            or num_streams != streams.max(initial=0) + 1
            or not 1 <= num_streams <= MOST_STREAMS
            or not (numbers[5:9] < _WORD).all()
        ):
            raise RemoteProtocolError(
                f"client {sender}: a notice of datagrams with {numbers[:5].tolist()}; "
                f"expected version {_VERSION} and fields in their range"
            )
        return cls(
            exponent=exponent - _EXPONENT_BIAS,
            packet_cells=packet_cells,
            stored=stored,
            digest=np.array(digest, dtype="<u4").tobytes(),
            streams=streams,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a receiver answers.

    Attributes:
        way: How it takes the vectors.
        streams: For each stream its token and its number; empty unless by datagrams.
    """

    way: Way
    streams: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def width(num_streams: int) -> int:
        """Return the numbers of a grant of so many streams."""
        return CONTROL_NUMBERS + STREAM_NUMBERS * num_streams

    def numbers(self, num_streams: int) -> np.ndarray:
        """Return it as the (1, 16 + 3 S) float64 block that crosses."""
        found = np.zeros((1, self.width(num_streams)))
        found[0, :2] = _VERSION, self.way
        for at, (token, stream) in enumerate(self.streams):
            begin = CONTROL_NUMBERS + STREAM_NUMBERS * at
            found[0, begin : begin + STREAM_NUMBERS] = token // _WORD, token % _WORD, stream
        return found

    @classmethod
    def read(cls, block: np.ndarray, receiver: int) -> Grant:
        """Read what arrived.

        Raises:
            RemoteProtocolError: It is no valid grant.
        """
        numbers = _whole(block, receiver, "grant")
        words = numbers[CONTROL_NUMBERS:].reshape(-1, STREAM_NUMBERS)
        if numbers[0] != _VERSION or int(numbers[1]) not in set(Way) or not (words < _WORD).all():
            raise RemoteProtocolError(
                f"client {receiver}: a grant of datagrams with {numbers[:2].tolist()}; "
                f"expected version {_VERSION} and a way from 1 to {max(Way)}"
            )
        way = Way(int(numbers[1]))
        granted = [(int(high) * _WORD + int(low), int(stream)) for high, low, stream in words]
        return cls(way=way, streams=tuple(granted) if way is Way.DATAGRAMS else ())


#: By peer: [n, width] vectors, the header of the block that they would have made, their notice.
Arrived = Mapping[int, tuple[np.ndarray, BlockHeader, Notice]]


def notice_header(block: BlockHeader) -> BlockHeader:
    """Return how the notice of a block begins: it proves the plan as the block would."""
    return replace(
        block,
        layer=block.layer + CONTROL_LAYERS,
        num_vectors=1,
        width=CONTROL_NUMBERS + block.num_vectors,
        dtype="float64",
    )


def grant_header(block: BlockHeader, number: int, num_streams: int) -> BlockHeader:
    """Return how a grant for a block begins; it goes the other way."""
    return replace(
        block,
        layer=block.layer + CONTROL_LAYERS * (FIRST_GRANT + number),
        sender=block.receiver,
        receiver=block.sender,
        num_vectors=1,
        width=Grant.width(num_streams),
        dtype="float64",
    )


def control_frames(
    header: BlockHeader, numbers: np.ndarray, *, codec: str = "lossless"
) -> tuple[bytes, ...]:
    """Return the frames of a notice, or with the codec ``dense`` of a grant: all as long."""
    return encode_block(header, numbers, codec=codec).frames


def _whole(block: np.ndarray, client: int, what: str) -> np.ndarray:
    """Return a (1, k) block's numbers as int64; they are below 2^53 and so exact."""
    numbers = to_dense(block)[0]
    if not ((numbers >= 0) & (numbers == np.floor(numbers)) & (numbers < 2.0**53)).all():
        raise RemoteProtocolError(
            f"client {client}: a {what} of datagrams with a number that is not whole"
        )
    found: np.ndarray = numbers.astype(np.int64)
    return found
