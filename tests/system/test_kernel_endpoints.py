"""Endpoints of several machines: each kind of receiver gets the same bits, whatever is lost."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from retexo_fl.additions.kernel_path.endpoint import DatagramEndpoint, Receiver, UserSpaceReceiver
from retexo_fl.additions.kernel_path.endpoint.broadcasting import BroadcastKind
from retexo_fl.additions.kernel_path.packets.layout import Tables
from retexo_fl.additions.kernel_path.packets.stream_shape import StreamShape
from retexo_fl.additions.kernel_path.xdp.af_xdp import AfXdpReceiver
from retexo_fl.additions.kernel_path.xdp.aggregate import TableSizes
from retexo_fl.additions.kernel_path.xdp.attachments import XdpMode
from retexo_fl.additions.kernel_path.xdp.broadcast import TcBroadcast
from retexo_fl.additions.kernel_path.xdp.receiver import XdpReceiver
from tests.support.datagram_endpoints import (
    begin,
    complete,
    expected_sum,
    grant,
    places,
    send,
    sent,
    vectors,
    wait_until,
)
from tests.support.host import Host, ip
from tests.support.hosts import Hosts
from tests.support.inside import inside
from tests.support.kernel import require_bpf
from tests.support.loss import BadCable, bad_cables

pytestmark = [pytest.mark.system]

PORT = 7411
ROWS, ACCUMULATORS = 8000, 300
_SIZES = {"cells": 2**15, "seen_blocks": 64, "slots": 2**16, "streams": 16, "regions": 8}
#: ``xdp`` in the driver, behind it, and the same frames in user space; ``udp`` needs nothing.
KINDS = ("udp", "xdp", "xdp generic", "af_xdp")


@pytest.fixture(scope="module")
def hosts() -> Generator[Hosts]:
    require_bpf()
    with Hosts([f"host{number}" for number in range(5)]) as made:
        yield made


@pytest.mark.parametrize("width", [64, 602])
@pytest.mark.parametrize("kind", KINDS)
def test_each_receiver_adds_the_same_and_takes_all_of_it_itself(
    hosts: Hosts, kind: str, width: int
) -> None:
    rows = ROWS * 64 // width
    with Machines(hosts, kind) as machines:
        gathered = machines.gather(rows, width)
        assert np.array_equal(gathered.rows, gathered.expected)
        counters = gathered.counters
        assert counters["data_new"] == 3 * StreamShape(rows, width, 22).packets
        assert counters["malformed"] == counters["bad_checksum"] == counters["foreign"] == 0
        assert counters["events"] == 1
        if kind != "udp":
            assert counters["socket_data"] == counters["socket_packets"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_doubling_change_no_bit(hosts: Hosts, kind: str) -> None:
    with Machines(hosts, kind, lost=0.05, doubled=0.05) as machines:
        gathered = machines.gather(ROWS, 64)
        assert np.array_equal(gathered.rows, gathered.expected)
        assert gathered.counters["data_new"] == 3 * StreamShape(ROWS, 64, 22).packets
        assert gathered.counters["data_duplicate"] > 0
        if kind != "udp":
            assert gathered.counters["socket_data"] == 0


def test_user_space_answers_where_the_cable_takes_none_from_xdp(hosts: Hosts) -> None:
    """A virtual cable brings what XDP sends back only if its other end has a program, too."""
    with Machines(hosts, "xdp", answers_arrive=False) as machines:
        gathered = machines.gather(ROWS, 64)
        assert np.array_equal(gathered.rows, gathered.expected)
        assert gathered.counters["socket_user_acks"] > 0
        assert gathered.counters["socket_data"] == 0


def test_path_whose_mtu_falls_is_named_and_used_when_wide_again(hosts: Hosts) -> None:
    first, second = list(hosts)[:2]
    values, where = vectors(ROWS, 64), places(ROWS, ACCUMULATORS)
    with machine(first, "udp") as receiver, machine(second, "udp") as sender:
        with inside(second.namespace):
            assert sender.packet_cells_to(receiver.address) == 22
        ip("-netns", second.namespace, "link", "set", "eth0", "mtu", "1400")
        try:
            begin(receiver, b"k", width=64, accumulators=ACCUMULATORS, streams=1)
            send(sender, b"s", values, [(receiver, grant(receiver, b"k", where, width=64))])
            wait_until(sender, lambda: sender.sending(b"s").stalled)
            (state,) = sender.sending(b"s").by_destination.values()
            assert "its MTU fell" in state.reason
            with inside(second.namespace):
                assert sender.packet_cells_to(receiver.address) == 20
        finally:
            ip("-netns", second.namespace, "link", "set", "eth0", "mtu", "1500")
        sent(sender, b"s")
        assert receiver.progress(b"k").complete


@pytest.mark.parametrize("lost", [0.0, 0.05])
@pytest.mark.parametrize("broadcast", ["tc", "gso", "sendmmsg", "sendto"])
def test_a_broadcast_reaches_all_however_it_is_sent(
    hosts: Hosts, broadcast: BroadcastKind, lost: float
) -> None:
    values = vectors(ROWS, 64)
    everybody = list(hosts)
    with (
        bad_cables(*everybody, udp_port=PORT, lost=lost, with_xdp=True),
        ExitStack() as stack,
    ):
        sender = stack.enter_context(machine(everybody[0], "udp", broadcast=broadcast))
        receivers = [stack.enter_context(machine(host, "xdp")) for host in everybody[1:]]
        to, wanted = [], []
        for number, receiver in enumerate(receivers):
            where = places(ROWS, ACCUMULATORS, number)
            where[number::3] = -1
            begin(receiver, b"k", width=64, accumulators=ACCUMULATORS, streams=1)
            to.append((receiver, grant(receiver, b"k", where, width=64)))
            wanted.append(expected_sum(ACCUMULATORS, [(values, where)], 64))
        with inside(everybody[0].namespace):
            send(sender, b"s", values, to)
        sent(sender, b"s")
        packets = StreamShape(ROWS, 64, 22).packets
        for receiver, expected in zip(receivers, wanted, strict=True):
            assert receiver.progress(b"k").complete
            assert np.array_equal(receiver.rows(b"k", 0), expected)
            counters = receiver.counters()
            assert counters["data_new"] == packets
            assert counters["socket_data"] == 0
        if broadcast == "tc":
            counters = sender.counters()
            assert counters["clone_copies"] == 4 * packets
            assert counters["clone_failed"] == counters["clone_segmented"] == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What one machine got of three others."""

    rows: NDArray[np.int32]
    expected: NDArray[np.int32]
    counters: dict[str, int]


class Machines:
    """Three senders and a receiver of some kind, with cables that may be bad."""

    def __init__(
        self,
        hosts: Hosts,
        kind: str,
        *,
        lost: float = 0.0,
        doubled: float = 0.0,
        answers_arrive: bool = True,
    ) -> None:
        self._hosts = list(hosts)[:4]
        self._kind = kind
        self._lost, self._doubled = lost, doubled
        self._answers_arrive = answers_arrive

    def __enter__(self) -> Machines:
        with ExitStack() as stack:
            for number, host in enumerate(self._hosts):
                cable = BadCable(
                    host,
                    udp_port=PORT,
                    lost=self._lost,
                    doubled=self._doubled,
                    seed=number,
                    with_xdp=self._answers_arrive,
                )
                stack.enter_context(cable)
            self.receiver = stack.enter_context(machine(self._hosts[0], self._kind))
            self.senders = [stack.enter_context(machine(host, "udp")) for host in self._hosts[1:]]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def gather(self, rows: int, width: int) -> Gathered:
        parts = [(vectors(rows, width, n), places(rows, ACCUMULATORS, n)) for n in range(3)]
        begin(self.receiver, b"k", width=width, accumulators=ACCUMULATORS, streams=3)
        for number, (values, where) in enumerate(parts):
            granted = grant(self.receiver, b"k", where, width=width, sender=number)
            send(self.senders[number], b"s", values, [(self.receiver, granted)], number=number)
        complete(self.receiver, b"k")
        for sender in self.senders:
            sent(sender, b"s")
        return Gathered(
            rows=self.receiver.rows(b"k", 0).copy(),
            expected=expected_sum(ACCUMULATORS, parts, width),
            counters=self.receiver.counters(),
        )


@contextmanager
def machine(
    host: Host, kind: str, *, broadcast: BroadcastKind = "auto"
) -> Iterator[DatagramEndpoint]:
    with inside(host.namespace):
        cloner = TcBroadcast("eth0") if broadcast == "tc" else None
        made = DatagramEndpoint(
            f"{host.address}:{PORT}",
            receiver_of(kind),
            interface="eth0",
            cloner=cloner,
            broadcast=broadcast,
        )
    made.start()
    try:
        yield made
    finally:
        made.close()


def receiver_of(kind: str) -> Receiver:
    """Return a receiver at eth0 of this thread's namespace."""
    if kind == "udp":
        return UserSpaceReceiver(Tables.allocate(**_SIZES))
    if kind == "af_xdp":
        return AfXdpReceiver("eth0", PORT, Tables.allocate(**_SIZES))
    mode: XdpMode = "generic" if kind == "xdp generic" else "native"
    return XdpReceiver("eth0", PORT, sizes=TableSizes(**_SIZES), mode=mode)
