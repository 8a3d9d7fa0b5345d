"""What an audit compares with what, and when both sides agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.additions.kernel_path.audit.audit import ledger_of
from retexo_fl.additions.kernel_path.audit.comparison import Count, Look, compare, compare_datagrams
from retexo_fl.additions.kernel_path.audit.datagrams import DatagramLedger, datagram_ledger
from retexo_fl.additions.kernel_path.audit.peers import AuditedPeers
from retexo_fl.additions.kernel_path.xdp.account import Flow, FlowVolume
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.errors import ConfigurationError
from tests.support.loopback import make_members

TCP, UDP = 6, 17
ADDRESSES = (
    "tcp://198.51.100.10:7411",
    "tcp://198.51.100.1:7411",
    "tcp://198.51.100.2:7411",
    "tcp://198.51.100.2:7412",
    "bluetooth://02:00:00:00:00:01/3",
)


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> AuditedPeers:
    """Client 0's: 1 has an address, 2 and 3 share one, 4 has none of IP."""
    folder = tmp_path_factory.mktemp("peers")
    _, roster = make_members(folder, len(ADDRESSES), ADDRESSES)
    (folder / "roster.toml").write_text(roster.text())
    listen = ("tcp://0.0.0.0:7411", "udp://198.51.100.10:7500", "bluetooth:")
    return AuditedPeers(settings(folder / "roster.toml", listen), own=0)


def settings(roster: Path | str, listen: tuple[str, ...] = ()) -> AgentSettings:
    return AgentSettings(
        partition="part",
        state="state",
        socket="agent.sock",
        key="key.pem",
        certificate="certificate.pem",
        roster=str(roster),
        listen=listen,
        introductions=not roster,
    )


def test_conversations_are_the_agents_by_either_ends_port(peers: AuditedPeers) -> None:
    def has(peer: str, protocol: int, local: int, other: int) -> bool:
        return peers.has(flow(peer, protocol, local, other))

    assert has("198.51.100.1", TCP, 40_000, 7411), "we dialled"
    assert has("198.51.100.1", TCP, 7411, 40_000), "they dialled"
    assert has("203.0.113.5", TCP, 7411, 40_000), "somebody unknown dialled"
    assert has("198.51.100.1", UDP, 7500, 7500)
    assert not has("198.51.100.1", TCP, 40_000, 22)
    assert not has("198.51.100.1", UDP, 40_000, 7411)
    assert not has("198.51.100.10", TCP, 40_000, 7411), "this client's own address"


def test_clients_that_share_an_address_are_compared_together(peers: AuditedPeers) -> None:
    assert peers.groups([1, 2, 3, 4]) == [
        ({1}, {"198.51.100.1"}),
        ({2, 3}, {"198.51.100.2"}),
        ({4}, set()),
    ]


def test_lines_compare_growth_of_the_ledger_with_what_passed(peers: AuditedPeers) -> None:
    first, shared = flow("198.51.100.1", TCP, 40_000, 7411), flow("198.51.100.2", TCP, 7411, 999)
    other = flow("198.51.100.1", TCP, 40_001, 443)
    begun = look({1: (100, 50), 2: (0, 0), 3: (7, 7)}, {first: volume(1000, 500)})
    passed = {first: volume(6000, 900), shared: volume(40, 60), other: volume(9, 9)}
    ended = look({1: (5100, 450), 2: (40, 0), 3: (7, 67)}, passed)
    lines = list(compare(peers, begun, ended))
    assert [line.clients for line in lines] == [(1,), (2, 3)]
    assert lines[0].sent == Count(ledger=5000, least=5000, most=5000)
    assert lines[0].received == Count(ledger=400, least=400, most=400)
    assert lines[1].sent == Count(ledger=40, least=40, most=40)
    assert lines[1].received == Count(ledger=60, least=60, most=60)


@pytest.mark.parametrize(("told", "agrees"), [(5000, True), (5700, True), (4000, False)])
def test_what_tcp_may_leave_out_is_no_difference(
    peers: AuditedPeers, told: int, agrees: bool
) -> None:
    first = flow("198.51.100.1", TCP, 40_000, 7411)
    seen = replace(volume(5700, 5700), received_untold_bytes=700, sent_untold_bytes=700)
    begun, ended = look({1: (0, 0)}, {}), look({1: (told, told)}, {first: seen})
    (line,) = compare(peers, begun, ended)
    assert (line.sent.agrees, line.received.agrees) == (agrees, agrees)


def test_what_strangers_send_stands_with_peers_of_no_address(peers: AuditedPeers) -> None:
    stranger = flow("203.0.113.5", TCP, 7411, 40_000)
    lines = list(
        compare(peers, look({4: (0, 0)}, {}), look({4: (0, 0)}, {stranger: volume(0, 900)}))
    )
    (line,) = lines
    assert (line.clients, line.addresses) == ((4,), ())
    assert line.received.difference == -900
    assert not line.received.agrees


def test_datagrams_are_shown_by_peer_and_compared_by_packets(peers: AuditedPeers) -> None:
    seen = {flow("198.51.100.1", UDP, 7500, 7500): volume(8000, 300, packets=(900, 30))}
    begun, ended = (
        look({1: (0, 0)}, flows, datagrams=datagram_ledger(endpoint_facts(counted)))
        for flows, counted in (
            ({}, {"packets_sent": 5}),
            (seen, {"packets_sent": 880, "answers_sent": 25, "socket_packets": 30}),
        )
    )
    tcp, udp = compare(peers, begun, ended)
    assert (tcp.protocol, udp.protocol) == ("tcp", "udp")
    assert udp.sent == Count(ledger=None, least=8000, most=8000)
    found = compare_datagrams(begun, ended)
    assert found is not None
    assert [(count.ledger, count.interface) for count in found] == [(900, 900), (30, 30)]
    assert compare_datagrams(look({}, {}), ended) is None


def test_what_left_the_socket_depends_on_who_answers() -> None:
    counted = {"packets_sent": 100, "packets_refused": 2, "answers_sent": 7, "acks_sent": 40}
    sent = {
        kind: ledger.sent
        for kind in ("udp", "xdp", "af_xdp")
        if (ledger := datagram_ledger(endpoint_facts(counted, kind)))
    }
    assert sent == {"udp": 105, "xdp": 105, "af_xdp": None}
    cloned = datagram_ledger(endpoint_facts(counted | {"clone_copies": 3}))
    assert cloned is not None
    assert cloned.sent is None
    assert datagram_ledger(None) is None


def test_a_channel_that_does_not_tell_makes_the_count_unknown() -> None:
    channels = {"tcp": counters(None, 5), "relay": counters(99, 99)}
    told = ledger_of([{"client": 3, "channels": channels}, {"client": 4}])
    assert told == {3: (None, 5), 4: (0, 0)}


@pytest.mark.parametrize(
    ("ledger", "least", "most", "difference", "agrees"),
    [
        (1000, 1000, 1000, 0, True),
        # Something passed while both were read: anything in between may be right.
        (1000, 900, 1100, 0, True),
        (1000, 1200, 1300, -200, False),
        (1000, 700, 800, 200, False),
        # A connection's last packet is the kernel's.
        (1000, 1060, 1060, -60, True),
        (1000, 1061, 1061, -61, False),
        (1_000_000, 1_000_900, 1_000_900, -900, True),
        (1_000_000, 1_001_100, 1_001_100, -1100, False),
        (0, 0, 0, 0, True),
        (0, 61, 61, -61, False),
    ],
)
def test_counts_agree_within_a_thousandth_or_one_empty_packet(
    ledger: int, least: int, most: int, difference: int, agrees: bool
) -> None:
    count = Count(ledger=ledger, least=least, most=most)
    assert (count.difference, count.agrees) == (difference, agrees)


def test_nothing_is_said_where_the_ledger_is_silent() -> None:
    count = Count(ledger=None, least=5, most=900)
    assert (count.interface, count.difference, count.agrees) == (900, None, True)


def test_without_a_roster_nobody_is_known() -> None:
    with pytest.raises(ConfigurationError, match="roster: missing"):
        AuditedPeers(settings(""), own=0)


def flow(peer: str, protocol: int, local: int, other: int) -> Flow:
    return Flow(peer=peer, protocol=protocol, local_port=local, peer_port=other)


def volume(sent: int, received: int, *, packets: tuple[int, int] = (0, 0)) -> FlowVolume:
    return FlowVolume(
        sent_bytes=sent,
        received_bytes=received,
        sent_packets=packets[0],
        received_packets=packets[1],
    )


def look(
    told: Mapping[int, tuple[int, int]],
    seen: Mapping[Flow, FlowVolume],
    *,
    datagrams: DatagramLedger | None = None,
) -> Look:
    ledger = ledger_of(
        {"client": client, "channels": {"tcp": counters(*wire)}} for client, wire in told.items()
    )
    return Look(process=1, ledger=ledger, datagrams=datagrams, earlier=seen, later=seen)


def counters(sent: int | None, received: int | None) -> dict[str, Any]:
    return {"wire_bytes_sent": sent, "wire_bytes_received": received}


def endpoint_facts(counted: Mapping[str, int], kind: str = "udp") -> dict[str, Any]:
    names = ("packets_sent", "packets_refused", "answers_sent", "acks_sent", "socket_packets")
    return {
        "kind": kind,
        "address": "198.51.100.10:7500",
        "counters": dict.fromkeys(names, 0) | dict(counted),
    }
