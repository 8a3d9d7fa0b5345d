"""Tickets: what one grant hands over for later exchanges of the same form, so that none asks again.

An exchange inside a round comes back in the next one, with as many vectors between the same two
clients. Its receiver makes room for many of them beforehand, and its grant holds a *book*: a
secret, and the streams that are open. The token of each follows from the secret by a keyed hash, so
that one reveals nothing of the others, and opens its own stream alone. A sender with a ticket sends
at once, without a notice; the vectors are followed by the grid that they are on and by the digest
of their exchange, which a notice would have said.

Both ends count tickets alone. Where their counts differ, as after a restart, the digest shows it or
nothing arrives, and the receiver asks for a notice.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.carrying.control import (
    MOST_TICKETS,
    TAIL_NUMBERS,
    Book,
    Notice,
    job_number,
    tail_rows,
)
from retexo_fl.additions.kernel_path.endpoint.endpoint import DatagramEndpoint
from retexo_fl.additions.kernel_path.endpoint.records import IncomingStream, StreamGrant
from retexo_fl.additions.kernel_path.packets.layout import CELL_BYTES, CELL_VALUES
from retexo_fl.errors import ChannelUnavailable
from retexo_fl.exchange import BlockHeader
from retexo_fl.exchange.block import DIGEST_BYTES
from retexo_fl.exchange.fixed_point import MAX_EXPONENT, MIN_EXPONENT

#: Of larger vectors a notice costs little beside them, and saves all of those that are kept; what
#: several senders add up to is added as it comes.
MOST_TICKET_BYTES: Final = 1 << 18
#: One book takes at most this part of an agent's memory for sums, all of them together at most
#: half of it.
_BOOK_SHARE: Final = 64
_ALL_SHARE: Final = 2
#: With fewer a book is not worth its place.
_LEAST_TICKETS: Final = 2
#: Tickets of all books: each takes an exchange of the receiver's table.
_MOST_SEATS: Final = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A sender's leave to send one exchange.

    Attributes:
        grant: The stream that is open for it.
        packet_cells: Cells of its packets.
    """

    grant: StreamGrant
    packet_cells: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The same at the receiver: an exchange that is open before its vectors come.

    Attributes:
        name: Names it at the endpoint.
        packet_cells: Cells of its packets.
    """

    name: bytes
    packet_cells: int


def form_of(header: BlockHeader) -> BlockHeader:
    """Return what blocks of recurring exchanges have in common."""
    return replace(header, weights_digest=bytes(DIGEST_BYTES))


def may_recur(header: BlockHeader) -> bool:
    """Return whether vectors are few enough for tickets."""
    return _bytes_of(header) <= MOST_TICKET_BYTES


def with_tail(values: NDArray[np.int32], exponent: int, digest: bytes) -> NDArray[np.int32]:
    """Return [n, width] vectors and what follows them."""
    width = values.shape[1]
    tail = np.zeros(tail_rows(width) * width, dtype=np.int32)
    tail[0] = exponent
    tail[1:TAIL_NUMBERS] = np.frombuffer(digest, dtype="<i4")
    return np.concatenate([values, tail.reshape(-1, width)])


def read_tail(rows: NDArray[np.int32], vectors: int, digest: bytes) -> int | None:
    """Return the exponent that follows some vectors; None where they are of another exchange."""
    tail = rows[vectors:].reshape(-1)[:TAIL_NUMBERS]
    exponent = int(tail[0])
    is_valid = MIN_EXPONENT <= exponent <= MAX_EXPONENT
    return exponent if is_valid and tail[1:].astype("<i4").tobytes() == digest else None


def _token(book: Book, form: BlockHeader, number: int) -> int:
    place = f"{form.job}/{form.layer}/{form.sender}/{form.receiver}/{number}/".encode()
    found = hmac.digest(book.secret, place + form.plan_digest, hashlib.sha256)
    return int.from_bytes(found[:8], "little") or 1


class HeldBooks:
    """The books of a sender; the path's lock guards them."""

    def __init__(self) -> None:
        self._held: dict[BlockHeader, tuple[Book, int, int]] = {}
        #: Jobs and receivers that take blocks alone.
        self._ended: set[tuple[str, int]] = set()

    def keep(self, header: BlockHeader, book: Book | None, packet_cells: int) -> None:
        """Take what a grant holds in place of what was held."""
        form = form_of(header)
        self._held.pop(form, None)
        if book is not None:
            self._held[form] = (book, 0, packet_cells)

    def take(self, header: BlockHeader, *, packet_cells: int) -> Ticket | None:
        """Return the next ticket; None where there is none, or for packets of another size."""
        form = form_of(header)
        book, number, cells = self._held.pop(form, (None, 0, 0))
        if book is None or cells != packet_cells:
            return None
        if number + 1 < len(book.places):
            self._held[form] = (book, number + 1, cells)
        grant = StreamGrant(token=_token(book, form, number), stream=book.places[number])
        return Ticket(grant=grant, packet_cells=cells)

    def end(self, header: BlockHeader) -> None:
        """Note that a receiver takes blocks alone in a job, and issues no book."""
        self._ended.add((header.job, header.receiver))

    def have_ended(self, header: BlockHeader) -> bool:
        """Return whether that was noted."""
        return (header.job, header.receiver) in self._ended

    def forget_job(self, job: str) -> None:
        """Let go of all of a job."""
        self.forget(lambda form: form.job == job)
        self._ended = {ended for ended in self._ended if ended[0] != job}

    def forget(self, is_over: Callable[[BlockHeader], bool]) -> None:
        """Let go of some."""
        self._held = {form: held for form, held in self._held.items() if not is_over(form)}


class IssuedBooks:
    """The books of a receiver, and the room that is made for them; the path's lock guards them.

    Args:
        endpoint: Takes the datagrams.
    """

    def __init__(self, endpoint: DatagramEndpoint) -> None:
        self._endpoint = endpoint
        self._open: dict[BlockHeader, deque[Seat]] = {}
        self._bytes = 0
        self._seats = 0

    def may_issue(self, header: BlockHeader) -> bool:
        """Return whether there is room for more exchanges of this form."""
        return self._room(form_of(header)) >= _LEAST_TICKETS

    def issue(self, header: BlockHeader, notice: Notice) -> Book | None:
        """Make room for exchanges to come; None where there is none, or they would be too large."""
        form = form_of(header)
        self.withdraw(header)
        if notice.num_streams != 1:
            return None
        book = Book(secret=secrets.token_bytes(16), places=())
        seats: deque[Seat] = deque()
        places = []
        for number in range(self._room(form)):
            name = hashlib.sha256(book.secret + number.to_bytes(2, "little")).digest()
            try:
                places.append(self._make_room(name, form, notice, _token(book, form, number)))
            except ChannelUnavailable:
                self._endpoint.close_exchange(name)
                break
            seats.append(Seat(name=name, packet_cells=notice.packet_cells))
        if not seats:
            return None
        self._open[form] = seats
        self._bytes += _bytes_of(form) * len(seats)
        self._seats += len(seats)
        return replace(book, places=tuple(places))

    def take(self, header: BlockHeader) -> Seat | None:
        """Return the next exchange that is open; its taker closes it."""
        form = form_of(header)
        seats = self._open.get(form)
        if seats is None:
            return None
        seat = seats.popleft()
        self._bytes -= _bytes_of(form)
        self._seats -= 1
        if not seats:
            del self._open[form]
        return seat

    def withdraw(self, header: BlockHeader) -> None:
        """Take nothing more under what was issued."""
        while (seat := self.take(header)) is not None:
            self._endpoint.close_exchange(seat.name)

    def forget(self, is_over: Callable[[BlockHeader], bool]) -> None:
        """Withdraw some."""
        for form in [form for form in self._open if is_over(form)]:
            self.withdraw(form)

    def _room(self, form: BlockHeader) -> int:
        """Return how many exchanges of one form may be opened."""
        each, memory = _bytes_of(form), self._endpoint.memory_bytes
        if not may_recur(form):
            return 0
        room = min(memory // _BOOK_SHARE, memory // _ALL_SHARE - self._bytes)
        return min(MOST_TICKETS, room // each, _MOST_SEATS - self._seats)

    def _make_room(self, name: bytes, form: BlockHeader, notice: Notice, token: int) -> int:
        rows = form.num_vectors + tail_rows(form.width)
        self._endpoint.open_exchange(
            name,
            job=job_number(form.job),
            stage=form.layer,
            width=form.width,
            streams_expected=1,
        )
        handle = self._endpoint.add_rows(name, rows)
        incoming = IncomingStream(
            sender=form.sender,
            number=0,
            rows=rows,
            width=form.width,
            packet_cells=notice.packet_cells,
            places=np.arange(rows, dtype=np.int64),
        )
        return self._endpoint.open_stream(name, incoming, handle, token=token).stream


def _bytes_of(form: BlockHeader) -> int:
    row_cells = -(-form.width // CELL_VALUES)
    return (form.num_vectors + tail_rows(form.width)) * row_cells * CELL_BYTES
