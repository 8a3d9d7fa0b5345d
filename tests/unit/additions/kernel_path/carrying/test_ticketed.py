"""Two agents' ends, whose exchanges recur: with notices, by ticket, and after one started anew."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.carrying import incoming, ticketed
from retexo_fl.additions.kernel_path.carrying.arrivals import VectorArrivals
from retexo_fl.additions.kernel_path.carrying.broadcasts import alone
from retexo_fl.additions.kernel_path.carrying.choice import LEAST_TIMES, WayChoice
from retexo_fl.additions.kernel_path.carrying.control import Notice
from retexo_fl.additions.kernel_path.carrying.incoming import IncomingExchange
from retexo_fl.additions.kernel_path.carrying.path import VectorPath
from retexo_fl.additions.kernel_path.carrying.ticketed import TicketedExchange
from retexo_fl.additions.kernel_path.carrying.tickets import IssuedBooks
from retexo_fl.additions.kernel_path.endpoint import DatagramEndpoint, UserSpaceReceiver
from retexo_fl.additions.kernel_path.packets.layout import Tables
from retexo_fl.errors import LocalProtocolError
from retexo_fl.exchange import BlockHeader, FixedVectors
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
            automatic=False,
            address_of=self.addresses.__getitem__,
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
            expect({sender: header}, None, together=True, times=self.times)

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
        )
        wait_until(lambda: exchange.step(pair.clients[1].depot), "no notice came")
        assert exchange.by_block == {0}
        with pytest.raises(LocalProtocolError, match="not open"):
            receiver.progress(b"next")


def test_a_wait_ends_once_all_is_there_or_time_is_over(pair: _Pair) -> None:
    key, arrivals = _header(0, 1).key, VectorArrivals(pair.clients[1].depot, pair.paths[1])
    pair.expect(1)
    begun_s = time.monotonic()
    assert arrivals.wait_for({key}, 0.2) == {key}
    assert time.monotonic() - begun_s >= 0.2
    pair.send(1)
    assert not arrivals.wait_for({key}, 60.0)
    assert time.monotonic() - begun_s < 60.0
