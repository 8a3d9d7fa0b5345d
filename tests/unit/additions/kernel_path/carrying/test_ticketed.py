"""Two agents' ends, whose exchanges recur: with notices, by ticket, and after one started anew."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.carrying import choice, incoming, ticketed
from retexo_fl.additions.kernel_path.carrying.arrivals import VectorArrivals
from retexo_fl.additions.kernel_path.carrying.broadcasts import alone
from retexo_fl.additions.kernel_path.carrying.choice import LEAST_TIMES, WayChoice
from retexo_fl.additions.kernel_path.carrying.control import (
    Grant,
    Notice,
    control_frames,
    notice_header,
)
from retexo_fl.additions.kernel_path.carrying.incoming import IncomingExchange
from retexo_fl.additions.kernel_path.carrying.path import VectorPath
from retexo_fl.additions.kernel_path.carrying.port import JobVectors
from retexo_fl.additions.kernel_path.carrying.ticketed import TicketedExchange
from retexo_fl.additions.kernel_path.carrying.tickets import IssuedBooks
from retexo_fl.additions.kernel_path.endpoint import DatagramEndpoint, UserSpaceReceiver
from retexo_fl.additions.kernel_path.packets.layout import Tables
from retexo_fl.channels import BlockKey
from retexo_fl.channels.depot import BlockDepot
from retexo_fl.errors import LocalProtocolError
from retexo_fl.exchange import BlockHeader, FixedVectors, encode_block
from retexo_fl.exchange.fixed_point import unsnap
from tests.support.datagram_endpoints import endpoint
from tests.support.depots import Open, running_apart
from tests.support.hand_clock import HandClock
from tests.support.part import wait_until
from tests.support.peer_networks import JOB, Client, World

_EXPONENT = 7
_CLIENTS = (0, 1)


class _Pair:
    """Two ends over TLS and UDP of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        #: Who may choose, and who is known to.
        self.automatic, self.chooses = [False, False], [False, False]
        self._world = World.of(root, len(_CLIENTS))
        self.clients: list[Client] = [self._world.client(number) for number in _CLIENTS]
        self.addresses = ["127.0.0.1:0"] * len(_CLIENTS)
        self.times = 9
        self.paths: dict[int, VectorPath] = {}
        self.endpoints: dict[int, DatagramEndpoint] = {}
        for client in self.clients:
            client.depot.admit_job(JOB, Open())
        for number in _CLIENTS:
            self.start(number)

    def start(self, number: int) -> None:
        """Begin, or begin anew: what lies on disk is all that is known."""
        if number in self.paths:
            self.paths[number].close()
        tables = Tables.allocate(cells=2**14, seen_blocks=512, slots=2**14, streams=256, regions=64)
        made = DatagramEndpoint(
            self.addresses[number], UserSpaceReceiver(tables), memory_bytes=2**22
        )
        self.addresses[number] = made.address
        self.endpoints[number] = made
        self.paths[number] = VectorPath(
            number,
            self.clients[number].depot,
            made,
            automatic=self.automatic[number],
            address_of=self.addresses.__getitem__,
            chooses=self.chooses.__getitem__,
        )
        self.paths[number].start()

    def send(self, number: int) -> dict[int, bool]:
        """Both send the vectors of one exchange; return who did so by ticket."""
        by_ticket = {}
        for sender in _CLIENTS:
            header = _header(sender, number)
            headers = {header.receiver: header}
            fixed = _fixed(header.receiver, _values(sender, number))
            streams = alone({header.receiver: header.num_vectors})
            notices = self.paths[sender].send(headers, fixed, streams)
            by_ticket[sender] = notices[header.receiver].by_ticket
        return by_ticket

    def expect(self, number: int) -> None:
        for sender in _CLIENTS:
            header = _header(sender, number)
            expect = self.paths[header.receiver].expect
            expect({sender: header}, None, together=True, times=self.times, most_senders=1)

    def check(self, number: int) -> None:
        """Wait for both, and compare what came."""
        for sender in _CLIENTS:
            header = _header(sender, number)
            path = self.paths[header.receiver]
            exchange = (header.job, header.layer, header.weights_digest)
            wait_until(lambda p=path, e=exchange: p.arrived(e), f"nothing came of {sender}")  # type: ignore[misc]
            ((vectors, _, _),) = (unit[sender] for unit in path.arrived(exchange))
            expected = _values(sender, number) * 2.0**-_EXPONENT
            np.testing.assert_array_equal(vectors, expected.astype(np.float32))

    def exchange(self, number: int) -> dict[int, bool]:
        self.expect(number)
        by_ticket = self.send(number)
        self.check(number)
        return by_ticket


def _header(sender: int, number: int) -> BlockHeader:
    return BlockHeader(
        job=JOB,
        layer=0,
        sender=sender,
        receiver=1 - sender,
        weights_digest=bytes([number]) * 32,
        num_edges=0,
        plan_digest=b"p" * 32,
        num_vectors=30,
        width=24,
        dtype="float32",
    )


def _fixed(peer: int, values: NDArray[np.int32]) -> FixedVectors:
    rows = unsnap(values, _EXPONENT, np.float32)
    return FixedVectors(exponent=_EXPONENT, vectors={peer: rows}, bits=24, error_bound=0.0)


def _values(sender: int, number: int) -> NDArray[np.int32]:
    rng = np.random.default_rng([sender, number])
    return rng.integers(-(2**24), 2**24, (30, 24), dtype=np.int32)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Pair]:
    monkeypatch.setattr("retexo_fl.additions.kernel_path.carrying.ticketed.ASK_AFTER_S", 0.3)
    monkeypatch.setattr(incoming, "ASK_AFTER_S", 0.3)
    with _made(tmp_path) as made:
        yield made


@contextmanager
def _made(root: Path) -> Iterator[_Pair]:
    made = _Pair(root)
    try:
        with running_apart(*made.clients):
            yield made
    finally:
        for path in made.paths.values():
            path.close()


@pytest.mark.parametrize("recurs", [True, False])
def test_of_exchanges_that_recur_the_first_alone_is_announced(pair: _Pair, recurs: bool) -> None:
    pair.times = 9 if recurs else 1
    ways = [pair.exchange(number) for number in range(5)]
    assert ways == [{0: False, 1: False}] + [{0: recurs, 1: recurs}] * 4
    for each in pair.endpoints.values():
        assert each.counters()["foreign"] == 0


@pytest.mark.parametrize("restarted", _CLIENTS)
@pytest.mark.parametrize("has_sent", [True, False])
def test_an_end_that_starts_anew_gets_and_sends_all(
    pair: _Pair, restarted: int, has_sent: bool
) -> None:
    for number in range(3):
        pair.exchange(number)
    pair.expect(3)
    if has_sent:
        assert all(pair.send(3).values())
        pair.check(3)
    pair.start(restarted)
    # What was under way is under way again; to the end that stayed it is no news.
    pair.expect(3)
    pair.send(3)
    pair.check(3)
    pair.exchange(4)
    pair.exchange(5)
    wait_until(
        lambda: (
            not any(
                pair.paths[sender].untaken([(JOB, 0, bytes([number]) * 32)])
                for sender in _CLIENTS
                for number in (3, 4, 5)
            )
        ),
        "something was not taken",
    )


def test_ends_that_count_apart_come_together(pair: _Pair) -> None:
    for number in range(3):
        pair.exchange(number)
    # One ticket is used up at one end alone.
    skipped = _header(0, 99)
    pair.paths[0].send({1: skipped}, _fixed(1, _values(0, 99)), alone({1: 30}))
    pair.exchange(4)
    assert pair.exchange(5)[1]
    pair.exchange(6)
    assert pair.exchange(7) == {0: True, 1: True}


def test_of_a_job_that_is_over_no_ticket_is_left(pair: _Pair) -> None:
    for number in range(3):
        pair.exchange(number)
    for path in pair.paths.values():
        path.forget_job(JOB)
    assert pair.exchange(4) == {0: False, 1: False}


def test_where_nothing_comes_for_a_ticket_a_notice_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = HandClock()
    for module in (ticketed, incoming):
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock.now_s))
    client = World.of(tmp_path, 2).client(1)
    client.depot.admit_job(JOB, Open())
    header = _header(0, 1)
    with endpoint() as receiver:
        books = IssuedBooks(receiver)
        notice = Notice(
            exponent=5, packet_cells=22, stored=0, digest=bytes(16), streams=np.zeros(30, np.int64)
        )
        assert books.issue(header, notice) is not None
        seat = books.take(header)
        assert seat is not None
        exchange = TicketedExchange(
            header,
            seat,
            endpoint=receiver,
            books=books,
            otherwise=lambda: IncomingExchange(
                b"next",
                {0: header},
                None,
                endpoint=receiver,
                choice=WayChoice(automatic=False, in_kernel=False),
                books=books,
                times=9,
                most_senders=1,
            ),
        )
        clock.pause(incoming.ASK_AFTER_S)
        assert not exchange.step(client.depot)
        assert client.depot.num_owed(0) == 0
        clock.pause(0.001)
        assert not exchange.step(client.depot)
        clock.pause(0.001)
        assert not exchange.step(client.depot)
        # One grant, which asks for a notice; what was issued is void, and the seat is free.
        assert client.depot.num_owed(0) == 1
        assert books.take(header) is None
        assert not exchange.is_complete
        with pytest.raises(LocalProtocolError, match="not open"):
            receiver.progress(seat.name)


def test_an_exchange_without_room_comes_as_blocks_and_takes_none(pair: _Pair) -> None:
    header = _header(0, 1)
    pair.paths[0].send({1: header}, _fixed(1, _values(0, 1)), alone({1: 30}))
    tables = Tables.allocate(cells=16, seen_blocks=512, slots=2**14, streams=256, regions=64)
    with endpoint(receiver=UserSpaceReceiver(tables)) as receiver:
        exchange = IncomingExchange(
            b"next",
            {0: header},
            None,
            endpoint=receiver,
            choice=WayChoice(automatic=True, in_kernel=True),
            books=IssuedBooks(receiver),
            times=LEAST_TIMES,
            most_senders=1,
        )
        wait_until(lambda: exchange.step(pair.clients[1].depot), "no notice came")
        assert exchange.by_block == {0}
        with pytest.raises(LocalProtocolError, match="not open"):
            receiver.progress(b"next")


def test_where_both_know_that_a_block_is_taken_nothing_else_crosses(pair: _Pair) -> None:
    pair.automatic, pair.chooses = [True, True], [True, True]
    for number in _CLIENTS:
        pair.start(number)
    header, (sender, receiver) = _header(0, 1), pair.clients
    ends = [
        JobVectors(pair.paths[n], pair.root, clients=2, all_needed=True, times=1, broadcasts=False)
        for n in _CLIENTS
    ]
    ends[1].expect({0: header}, None)
    # Whoever sent a notice, or awaited one, would have bytes to tell.
    assert not ends[0].send({1: header}, _fixed(1, _values(0, 1)))
    assert not ends[1].carries(header.key)
    _send_block(sender, header)
    assert not VectorArrivals(receiver.depot, pair.paths[1]).wait_for({header.key}, 60.0)
    for client, peer in ((sender, 1), (receiver, 0)):
        assert {offer.key for offer in client.depot.offers(peer)} <= {header.key}
        assert not any(client.depot.asks(peer))
    layers = [fact["layer"] for client in pair.clients for fact in client.depot.deliveries()]
    assert layers == [0]


@pytest.mark.parametrize("automatic", [True, False])
def test_a_block_without_a_notice_is_taken_and_a_notice_after_it_is_answered(
    pair: _Pair, automatic: bool
) -> None:
    pair.automatic = [automatic, automatic]
    for number in _CLIENTS:
        pair.start(number)
    header, (sender, receiver) = _header(0, 1), pair.clients
    pair.times = 1
    pair.expect(1)
    _send_block(sender, header)
    wait_until(lambda: receiver.depot.has_arrived(header.key), "no block came")
    wait_until(lambda: not pair.paths[1].carries(header.key), "datagrams are awaited")
    # As a sender does that has begun anew with another roster.
    pair.paths[0].send({1: header}, _fixed(1, _values(0, 1)), alone({1: 30}))
    exchange = (header.job, header.layer, header.weights_digest)
    wait_until(lambda: not pair.paths[0].untaken([exchange]), "no answer came")
    assert pair.endpoints[0].counters()["packets_sent"] == 0


@pytest.mark.parametrize("times", [1, LEAST_TIMES])
def test_a_needless_notice_is_the_only_one_of_its_job(pair: _Pair, times: int) -> None:
    # No program takes datagrams here, of which the sender is told.
    pair.automatic, pair.times = [True, True], times
    for number in _CLIENTS:
        pair.start(number)
    header, receiver = _header(0, 1), pair.clients[1]
    end = JobVectors(
        pair.paths[0], pair.root, clients=2, all_needed=True, times=times, broadcasts=False
    )
    assert list(end.send({1: header}, _fixed(1, _values(0, 1)))) == [1]
    pair.expect(1)
    assert not receiver.depot.wait_for({header.key}, 60.0)
    for number in (2, 3):
        assert not end.send({1: _header(0, number)}, _fixed(1, _values(0, number)))
    pair.paths[0].forget_job(JOB)
    assert list(end.send({1: _header(0, 4)}, _fixed(1, _values(0, 4)))) == [1]


def _send_block(client: Client, header: BlockHeader) -> None:
    block = encode_block(header, _fixed(1, _values(0, 1)).vectors[1], codec="lossless")
    client.depot.send_block(header.key, block.frames)


def test_a_wait_ends_once_all_is_there_or_time_is_over(pair: _Pair) -> None:
    key, arrivals = _header(0, 1).key, VectorArrivals(pair.clients[1].depot, pair.paths[1])
    pair.expect(1)
    begun_s = time.monotonic()
    assert arrivals.wait_for({key}, 0.2) == {key}
    assert time.monotonic() - begun_s >= 0.2
    pair.send(1)
    assert not arrivals.wait_for({key}, 60.0)
    assert time.monotonic() - begun_s < 60.0


class _Papers:
    """A depot of which a test says what has come, and which keeps what is sent."""

    def __init__(self) -> None:
        self.come: dict[BlockKey, bytes] = {}
        self.sent: list[BlockKey] = []

    def announce(self, header: BlockHeader) -> None:
        notice = Notice(
            exponent=5,
            packet_cells=22,
            stored=header.num_vectors * header.width,
            digest=bytes(16),
            streams=np.zeros(header.num_vectors, np.int64),
        )
        told = notice_header(header)
        self.come[told.key] = b"".join(control_frames(told, notice.numbers()))

    def has_arrived(self, key: BlockKey) -> bool:
        return key in self.come

    def receive_block(self, key: BlockKey) -> bytes | None:
        return self.come.get(key)

    def has_sent(self, key: BlockKey) -> bool:
        return key in self.sent

    def send_block(self, key: BlockKey, _: object) -> None:
        self.sent.append(key)


def _awaited_of(choice: WayChoice, headers: dict[int, BlockHeader]) -> IncomingExchange:
    return IncomingExchange(
        b"awaited",
        headers,
        None,
        endpoint=cast(
            DatagramEndpoint,
            SimpleNamespace(max_cells=22, progress=lambda name: SimpleNamespace(complete=False)),
        ),
        choice=choice,
        books=cast(IssuedBooks, SimpleNamespace(withdraw=lambda header: None)),
        times=1,
        most_senders=2,
    )


def _granted_by(exchange: IncomingExchange, monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """Whose datagrams it makes room for, which then do not come."""
    granted: list[set[int]] = []

    def accept(taken: dict[int, Notice], *_: object) -> dict[int, Grant]:
        granted.append({*taken})
        return {}

    monkeypatch.setattr(exchange, "_accept", accept)
    return granted


def _of_two() -> dict[int, BlockHeader]:
    rows = {0: 30, 2: 29}
    return {n: replace(_header(0, 1), sender=n, num_vectors=rows[n]) for n in rows}


def test_who_has_sent_a_block_is_granted_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    headers, depot = _of_two(), _Papers()
    exchange = _awaited_of(WayChoice(automatic=False, in_kernel=False), headers)
    granted = _granted_by(exchange, monkeypatch)
    depot.come[headers[0].key] = b"whole"
    assert not exchange.step(cast(BlockDepot, depot))
    depot.announce(headers[0])
    assert not exchange.step(cast(BlockDepot, depot))
    assert [key.receiver for key in depot.sent] == [0]
    depot.announce(headers[2])
    assert not exchange.step(cast(BlockDepot, depot))
    assert granted == [{2}]
    assert [key.receiver for key in depot.sent] == [0, 2]
    assert exchange.by_block == {0}


def test_who_sends_a_block_without_a_notice_is_a_sender_to_the_choice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    headers, depot = _of_two(), _Papers()
    monkeypatch.setattr(choice, "LEAST_SENDERS", 2)
    monkeypatch.setattr(choice, "LEAST_BYTES", 4 * 30 * 24)
    exchange = _awaited_of(WayChoice(automatic=True, in_kernel=True), headers)
    assert exchange.by_block == {2}
    granted = _granted_by(exchange, monkeypatch)
    depot.announce(headers[0])
    assert not exchange.step(cast(BlockDepot, depot))
    assert granted == [{0}]
