"""Broadcasts where the kernel's clones are refused, never arrive, or reach only some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from retexo_fl.additions.kernel_path.endpoint import (
    DatagramEndpoint,
    StreamGrant,
    UserSpaceReceiver,
)
from retexo_fl.additions.kernel_path.endpoint.broadcasting import BroadcastKind
from retexo_fl.errors import ChannelUnavailable
from tests.support.datagram_endpoints import (
    SHORT,
    begin,
    endpoint,
    expected_sum,
    grant,
    places,
    send,
    sent,
    tables,
    vectors,
)

_VALUES = vectors(400, 64)


class _Cloner:
    """Knows groups, and loses what is sent to them."""

    port = 9
    token = 4711

    def __init__(self, *, refuses: bool = False) -> None:
        self.refuses = refuses
        self.groups: dict[int, list[Any]] = {}
        self.is_closed = False

    def set_group(self, number: int, members: Sequence[Any], *, timeout_s: float = 1.0) -> None:
        assert timeout_s < 1.0
        if self.refuses:
            raise ChannelUnavailable("eth0: a member does not answer")
        self.groups[number] = list(members)

    def remove_group(self, number: int) -> None:
        del self.groups[number]

    def counters(self) -> dict[str, int]:
        return {"copies": 0}

    def close(self) -> None:
        self.is_closed = True


@contextmanager
def _sender(cloner: _Cloner, kind: BroadcastKind) -> Iterator[DatagramEndpoint]:
    made = DatagramEndpoint(
        "127.0.0.1:0", UserSpaceReceiver(tables()), cloner=cloner, broadcast=kind, times=SHORT
    )
    made.start()
    try:
        yield made
    finally:
        made.close()


def _expect(receiver: DatagramEndpoint, number: int) -> tuple[DatagramEndpoint, StreamGrant]:
    begin(receiver, b"k", width=64, accumulators=20, streams=1)
    return receiver, grant(receiver, b"k", places(400, 20, number), width=64)


@pytest.mark.parametrize("refuses", [False, True])
def test_everybody_gets_all_though_clones_are_lost_or_refused(refuses: bool) -> None:
    cloner = _Cloner(refuses=refuses)
    with _sender(cloner, "auto") as sender, ExitStack() as stack:
        receivers = [stack.enter_context(endpoint()) for _ in range(3)]
        to = [_expect(receiver, number) for number, receiver in enumerate(receivers)]
        send(sender, b"s", _VALUES, to)
        assert len(cloner.groups) == (0 if refuses else 1)
        sent(sender, b"s")
        for number, receiver in enumerate(receivers):
            expected = expected_sum(20, [(_VALUES, places(400, 20, number))], 64)
            assert np.array_equal(receiver.rows(b"k", 0), expected)
        assert sender.counters()["clone_groups_refused"] == refuses
        assert bool(sender.sending(b"s").retransmitted) is not refuses
        sender.forget_sending(b"s")
        assert not cloner.groups
    assert cloner.is_closed


def test_a_later_destination_unknown_to_the_group_is_served() -> None:
    cloner = _Cloner()
    with _sender(cloner, "tc") as sender, ExitStack() as stack:
        receivers = [stack.enter_context(endpoint()) for _ in range(3)]
        to = [_expect(receiver, number) for number, receiver in enumerate(receivers)]
        send(sender, b"s", _VALUES, to[:2])
        send(sender, b"s", _VALUES, to[2:])
        sent(sender, b"s")
        assert all(receiver.progress(b"k").complete for receiver in receivers)


def test_clones_that_were_asked_for_must_be_had() -> None:
    with _sender(_Cloner(refuses=True), "tc") as sender, ExitStack() as stack:
        receivers = [stack.enter_context(endpoint()) for _ in range(2)]
        to = [_expect(receiver, number) for number, receiver in enumerate(receivers)]
        with pytest.raises(ChannelUnavailable, match="does not answer"):
            send(sender, b"s", _VALUES, to)
    with pytest.raises(ChannelUnavailable, match="needs a program that clones"):
        DatagramEndpoint("127.0.0.1:0", UserSpaceReceiver(tables()), broadcast="tc")


def test_an_endpoint_that_was_never_started_closes() -> None:
    cloner = _Cloner()
    made = DatagramEndpoint("127.0.0.1:0", UserSpaceReceiver(tables()), cloner=cloner)
    made.close()
    made.close()
    assert cloner.is_closed
