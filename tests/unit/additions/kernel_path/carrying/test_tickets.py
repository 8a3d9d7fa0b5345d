"""Tickets: each opens one exchange alone, no more than there is room for, and none is guessed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.carrying import tickets
from retexo_fl.additions.kernel_path.carrying.control import Book, Notice, job_number, tail_rows
from retexo_fl.additions.kernel_path.carrying.tickets import (
    MOST_TICKET_BYTES,
    HeldBooks,
    IssuedBooks,
    read_tail,
    with_tail,
)
from retexo_fl.additions.kernel_path.carrying.traffic import datagram_traffic
from retexo_fl.additions.kernel_path.endpoint import (
    DatagramEndpoint,
    Destination,
    UserSpaceReceiver,
)
from retexo_fl.additions.kernel_path.packets.layout import Tables
from retexo_fl.exchange import BlockHeader
from tests.support.datagram_endpoints import complete, endpoint
from tests.support.part import wait_until

_CELLS = 22
_FIRST, _SECOND = b"1" * 32, b"2" * 32
_HEADER = BlockHeader(
    job="job-0123456789ab",
    layer=0,
    sender=3,
    receiver=8,
    weights_digest=_FIRST,
    num_edges=0,
    plan_digest=bytes(range(32)),
    num_vectors=40,
    width=20,
    dtype="float32",
)
_NOTICE = Notice(
    exponent=5,
    packet_cells=_CELLS,
    stored=0,
    digest=bytes(16),
    streams=np.zeros(_HEADER.num_vectors, dtype=np.int64),
)


def _book(issued: IssuedBooks, header: BlockHeader = _HEADER) -> Book:
    assert issued.may_issue(header)
    book = issued.issue(header, _NOTICE)
    assert book is not None
    return book


def _values(seed: int = 0) -> NDArray[np.int32]:
    shape = (_HEADER.num_vectors, _HEADER.width)
    return np.random.default_rng(seed).integers(-9, 9, shape).astype(np.int32)


def _send(
    sender: DatagramEndpoint, receiver: DatagramEndpoint, held: HeldBooks, digest: bytes
) -> None:
    header = replace(_HEADER, weights_digest=digest)
    ticket = held.take(header, packet_cells=_CELLS)
    assert ticket is not None
    sender.send(
        digest,
        with_tail(_values(), 5, digest),
        [Destination(address=receiver.address, grant=ticket.grant)],
        job=job_number(header.job),
        stage=header.layer,
        sender=header.sender,
        packet_cells=_CELLS,
    )


def test_what_is_sent_by_ticket_arrives_with_its_grid_and_exchange() -> None:
    with endpoint() as sender, endpoint() as receiver:
        issued, held = IssuedBooks(receiver), HeldBooks()
        held.keep(_HEADER, _book(issued), _CELLS)
        for digest in (_FIRST, _SECOND):
            seat = issued.take(_HEADER)
            assert seat is not None
            _send(sender, receiver, held, digest)
            complete(receiver, seat.name)
            rows = receiver.rows(seat.name, 0)
            np.testing.assert_array_equal(rows[: _HEADER.num_vectors], _values())
            assert read_tail(rows, _HEADER.num_vectors, digest) == 5
            other = _SECOND if digest == _FIRST else _FIRST
            assert read_tail(rows, _HEADER.num_vectors, other) is None
        assert receiver.counters()["foreign"] == 0


def test_a_ticket_opens_no_exchange_but_its_own_and_none_that_was_withdrawn() -> None:
    with endpoint() as sender, endpoint() as receiver:
        issued, held = IssuedBooks(receiver), HeldBooks()
        book = _book(issued)
        # The place of the second under the token of the first.
        held.keep(_HEADER, replace(book, places=book.places[1:]), _CELLS)
        _send(sender, receiver, held, _FIRST)
        wait_until(lambda: receiver.counters()["foreign"] > 0, "the first is not refused")
        issued.withdraw(_HEADER)
        held.keep(_HEADER, book, _CELLS)
        before = receiver.counters()["foreign"]
        _send(sender, receiver, held, _SECOND)
        wait_until(lambda: receiver.counters()["foreign"] > before, "the second is not refused")
        assert receiver.counters()["data_new"] == 0


def test_tokens_follow_from_the_secret_and_differ_between_exchanges_and_clients() -> None:
    tokens = set()
    for secret in (bytes(16), bytes(range(16))):
        for other in (
            *({}, {"sender": 4}, {"receiver": 9}, {"layer": 1}),
            *({"job": "job-ba9876543210"}, {"plan_digest": bytes(32)}),
        ):
            header = replace(_HEADER, **other)
            held = HeldBooks()
            held.keep(header, Book(secret=secret, places=(1, 1, 1)), _CELLS)
            for _ in range(3):
                ticket = held.take(header, packet_cells=_CELLS)
                assert ticket is not None
                tokens.add(ticket.grant.token)
            assert held.take(header, packet_cells=_CELLS) is None
    assert len(tokens) == 2 * 6 * 3
    assert job_number("job-0123456789ab") != job_number("job-ba9876543210")


def test_a_ticket_for_packets_of_another_size_is_none() -> None:
    held = HeldBooks()
    held.keep(_HEADER, Book(secret=bytes(16), places=(1, 2)), _CELLS)
    assert held.take(_HEADER, packet_cells=_CELLS - 1) is None


@pytest.mark.parametrize(
    ("memory_bytes", "most"), [(2**26, 16), (2**20, 3), (2**19, 1), (2**18, 0)]
)
def test_a_book_takes_its_share_of_the_memory(memory_bytes: int, most: int) -> None:
    # The table of exchanges has 16 places.
    with endpoint() as receiver:
        receiver.memory_bytes = memory_bytes
        issued = IssuedBooks(receiver)
        book = issued.issue(_HEADER, _NOTICE)
        assert (0 if book is None else len(book.places)) == most


def test_all_books_take_half_of_the_memory_and_give_it_back() -> None:
    tables = Tables.allocate(cells=2**16, seen_blocks=512, slots=2**15, streams=64, regions=64)
    with endpoint(receiver=UserSpaceReceiver(tables)) as receiver:
        # A book is a 64th: here one exchange of 41 rows of two cells.
        receiver.memory_bytes = 64 * 41 * 2 * 64
        issued = IssuedBooks(receiver)
        headers = [replace(_HEADER, sender=number) for number in range(10, 50)]
        assert sum(issued.issue(header, _NOTICE) is not None for header in headers) == 32
        issued.withdraw(headers[0])
        assert issued.issue(headers[-1], _NOTICE) is not None
        assert issued.issue(headers[0], _NOTICE) is None


def test_all_books_take_no_more_places_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tickets, "_MOST_SEATS", 5)
    with endpoint() as receiver:
        receiver.memory_bytes = 2**26
        issued, other = IssuedBooks(receiver), replace(_HEADER, sender=4)
        assert len(_book(issued).places) == 5
        assert issued.issue(other, _NOTICE) is None
        issued.withdraw(_HEADER)
        assert len(_book(issued, other).places) == 5


def test_a_book_takes_the_place_of_the_one_before_and_has_one_stream_for_each() -> None:
    with endpoint() as receiver:
        issued = IssuedBooks(receiver)
        # The table of exchanges has no room for both.
        assert len(_book(issued).places) == len(_book(issued).places) > 1
        several = replace(_NOTICE, streams=np.arange(_HEADER.num_vectors) % 2)
        assert issued.issue(_HEADER, several) is None
        assert issued.take(_HEADER) is None


def test_only_small_exchanges_have_books() -> None:
    with endpoint() as receiver:
        issued = IssuedBooks(receiver)
        large = replace(_HEADER, num_vectors=MOST_TICKET_BYTES // 64)
        assert issued.may_issue(_HEADER)
        assert not issued.may_issue(large)
        receiver.memory_bytes = 2**19
        assert not issued.may_issue(_HEADER)
        receiver.memory_bytes = 2**20
        assert issued.may_issue(_HEADER)


@pytest.mark.parametrize("width", [1, 9, 20])
def test_a_tail_that_says_what_none_says_is_refused(width: int) -> None:
    rows = with_tail(np.zeros((3, width), dtype=np.int32), -104, _FIRST)
    assert len(rows) == 3 + tail_rows(width)
    assert read_tail(rows, 3, _FIRST) == -104
    for exponent in (127, -105):
        rows[3, 0] = exponent
        assert read_tail(rows, 3, _FIRST) is None


def test_by_ticket_no_byte_of_control_is_counted() -> None:
    announced = datagram_traffic(_HEADER, _NOTICE)
    by_ticket = datagram_traffic(_HEADER, replace(_NOTICE, by_ticket=True))
    assert (announced.control.wire or 0) > (by_ticket.control.wire or 0) == 0
    assert by_ticket.boundary.payload == announced.boundary.payload
    assert (by_ticket.boundary.wire or 0) > (announced.boundary.wire or 0)
