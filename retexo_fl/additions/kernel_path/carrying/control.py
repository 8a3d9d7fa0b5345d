"""The two small blocks by which a pair of agents agrees on datagrams: a notice and a grant.

Both travel as ordinary blocks, over links that TLS has proved, and outlive either process. The
sender's notice holds how its vectors were rounded and what they are; the receiver's grant, how
it takes them, and names the streams. A receiver that has lost what arrived grants once more, under
the next number.
"""

from __future__ import annotations

import hashlib
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
from retexo_fl.exchange.block import DIGEST_BYTES
from retexo_fl.exchange.fixed_point import MAX_SHIFT, SIGNED

_VERSION: Final = 3
_EXPONENT_BIAS: Final = 1024
_WORD: Final = 1 << 32
#: Exchanges of one book: as many places as a grant's spare numbers hold, three in each.
MOST_TICKETS: Final = 24
_SECRET_WORDS: Final = 4
_PLACES_AT: Final = 3 + _SECRET_WORDS
_PLACE: Final = 1 << 16
_PLACES_IN_NUMBER: Final = 3
#: Forms of vectors in one number of a notice: 8 bits each, of 53.
_FORMS_IN_NUMBER: Final = 6
#: What follows vectors that were sent by ticket: the exponent, the words of the digest.
TAIL_NUMBERS: Final = 1 + DIGEST_BYTES // 4
#: A packet's cells at most: programs in the kernel take no longer ones.
MOST_PACKET_CELLS: Final = 53


class Way(IntEnum):
    """The way in which a receiver requests what a notice announces."""

    BLOCK = 1  # as an ordinary block, over whatever channel there is
    DATAGRAMS = 2
    KEPT = 3  # it has the same vectors from before
    NOTICE = 4  # it awaits a notice: what came without one is lost, or was not this exchange's
    BLOCKS = 5  # as a block, and all that follows in the job, without a notice


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Notice:
    """A sender's description of the vectors that it has for one receiver in one exchange.

    Attributes:
        exponent: The values are whole numbers times ``2 ** -exponent``.
        packet_cells: Cells of 64 bytes that a packet on the path to the receiver holds.
        stored: Values that are not zero.
        digest: 16 bytes over the whole numbers.
        streams: [n] int64, for each vector the stream that it goes in; ascending within a stream.
        by_ticket: The vectors were first sent without it, by a ticket.
        forms: [n] uint8 where numbers of a byte are sent: how many bits those of each vector are
            shifted by, and 128 more if they are signed; None where int32 are sent.
    """

    exponent: int
    packet_cells: int
    stored: int
    digest: bytes
    streams: np.ndarray
    by_ticket: bool = False
    forms: np.ndarray | None = None

    @property
    def in_bytes(self) -> bool:
        """Whether numbers of a byte are sent."""
        return self.forms is not None

    @property
    def num_streams(self) -> int:
        """Streams that the receiver is to open."""
        return int(self.streams.max(initial=0)) + 1

    def numbers(self) -> np.ndarray:
        """Return it as the (1, 16 + n + n / 6) float64 block that crosses."""
        found = np.zeros((1, _notice_width(len(self.streams))))
        found[0, :5] = (
            _VERSION,
            self.exponent + _EXPONENT_BIAS,
            self.packet_cells,
            self.num_streams,
            self.stored,
        )
        found[0, 5:9] = np.frombuffer(self.digest, dtype="<u4")
        found[0, 9] = self.by_ticket
        found[0, 10] = self.in_bytes
        forms_at = CONTROL_NUMBERS + len(self.streams)
        found[0, CONTROL_NUMBERS:forms_at] = self.streams
        if self.forms is not None:
            padded = np.zeros((found.shape[1] - forms_at, 8), dtype=np.uint8)
            of_vectors = np.zeros(len(padded) * _FORMS_IN_NUMBER, dtype=np.uint8)
            of_vectors[: len(self.forms)] = self.forms
            padded[:, :_FORMS_IN_NUMBER] = of_vectors.reshape(-1, _FORMS_IN_NUMBER)
            found[0, forms_at:] = padded.view("<u8")[:, 0]
        return found

    @classmethod
    def read(cls, block: np.ndarray, sender: int) -> Notice:
        """Read what arrived.

        Raises:
            RemoteProtocolError: It is no valid notice.
        """
        numbers = _whole(block, sender, "notice")
        version, exponent, packet_cells, num_streams, stored, *digest = numbers[:9].tolist()
        by_ticket, in_bytes = int(numbers[9]), int(numbers[10])
        count = (len(numbers) - CONTROL_NUMBERS) * _FORMS_IN_NUMBER // (_FORMS_IN_NUMBER + 1)
        streams = numbers[CONTROL_NUMBERS : CONTROL_NUMBERS + count]
        words = numbers[CONTROL_NUMBERS + count :].astype("<u8")
        forms = words.view(np.uint8).reshape(-1, 8)[:, :_FORMS_IN_NUMBER].reshape(-1)[:count]
        if (
            version != _VERSION
            or not 1 <= packet_cells <= MOST_PACKET_CELLS
            or not 0 < exponent < 2 * _EXPONENT_BIAS
            or num_streams != streams.max(initial=0) + 1
            or not 1 <= num_streams <= MOST_STREAMS
            or not (numbers[5:9] < _WORD).all()
            or by_ticket + in_bytes > 1
            or not (words < 1 << 8 * _FORMS_IN_NUMBER).all()
            or not in_bytes >= words.any()
            or ((forms & (SIGNED - 1)) > MAX_SHIFT).any()
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
            by_ticket=bool(by_ticket),
            forms=forms if in_bytes else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """What a receiver has open for exchanges to come; see :mod:`.tickets`.

    Attributes:
        secret: 16 bytes, of which the tokens follow.
        places: Of each exchange's stream, in the receiver's table.
    """

    secret: bytes
    places: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a receiver answers.

    Attributes:
        way: How it takes the vectors.
        streams: For each stream its token and its number; empty unless by datagrams.
        book: For later exchanges of the same form.
    """

    way: Way
    streams: tuple[tuple[int, int], ...] = ()
    book: Book | None = None

    @staticmethod
    def width(num_streams: int) -> int:
        """Return the numbers of a grant of so many streams."""
        return CONTROL_NUMBERS + STREAM_NUMBERS * num_streams

    def numbers(self, num_streams: int) -> np.ndarray:
        """Return it as the (1, 16 + 3 S) float64 block that crosses."""
        found = np.zeros((1, self.width(num_streams)))
        found[0, :2] = _VERSION, self.way
        if self.book is not None:
            found[0, 2] = len(self.book.places)
            found[0, 3:_PLACES_AT] = np.frombuffer(self.book.secret, dtype="<u4")
            for at, place in enumerate(self.book.places):
                number, shift = divmod(at, _PLACES_IN_NUMBER)
                found[0, _PLACES_AT + number] += place * _PLACE**shift
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
        if (
            numbers[0] != _VERSION
            or int(numbers[1]) not in set(Way)
            or numbers[2] > MOST_TICKETS
            or not (numbers[3:_PLACES_AT] < _WORD).all()
            or not (words < _WORD).all()
        ):
            raise RemoteProtocolError(
                f"client {receiver}: a grant of datagrams with {numbers[:2].tolist()}; "
                f"expected version {_VERSION} and a way from 1 to {max(Way)}"
            )
        way = Way(int(numbers[1]))
        granted = [(int(high) * _WORD + int(low), int(stream)) for high, low, stream in words]
        return cls(
            way=way,
            streams=tuple(granted) if way is Way.DATAGRAMS else (),
            book=_book(numbers),
        )


def _book(numbers: np.ndarray) -> Book | None:
    count = int(numbers[2])
    places = [
        int(number) // _PLACE**shift % _PLACE
        for number in numbers[_PLACES_AT:CONTROL_NUMBERS]
        for shift in range(_PLACES_IN_NUMBER)
    ]
    secret = numbers[3:_PLACES_AT].astype("<u4").tobytes()
    return Book(secret=secret, places=tuple(places[:count])) if count else None


#: By peer: [n, width] vectors, the header of the block that they would have made, their notice.
Arrived = Mapping[int, tuple[np.ndarray, BlockHeader, Notice]]


def notice_header(block: BlockHeader) -> BlockHeader:
    """Return how the notice of a block begins: it proves the plan as the block would."""
    return replace(
        block,
        layer=block.layer + CONTROL_LAYERS,
        num_vectors=1,
        width=_notice_width(block.num_vectors),
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


def tail_rows(width: int) -> int:
    """Return how many rows follow vectors that were sent by ticket."""
    return -(-TAIL_NUMBERS // width)


def job_number(job: str) -> int:
    """Return the 32 bits that name a job in packets."""
    return int.from_bytes(hashlib.sha256(job.encode()).digest()[:4], "little")


def _notice_width(vectors: int) -> int:
    return CONTROL_NUMBERS + vectors + -(-vectors // _FORMS_IN_NUMBER)


def _whole(block: np.ndarray, client: int, what: str) -> np.ndarray:
    """Return a (1, k) block's numbers as int64; they are below 2^53 and so exact."""
    numbers = to_dense(block)[0]
    if not ((numbers >= 0) & (numbers == np.floor(numbers)) & (numbers < 2.0**53)).all():
        raise RemoteProtocolError(
            f"client {client}: a {what} of datagrams with a number that is not whole"
        )
    found: np.ndarray = numbers.astype(np.int64)
    return found
