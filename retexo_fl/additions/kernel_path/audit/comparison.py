"""What an audit compares with what: the two counts of one thing, and when they agree."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from retexo_fl.additions.kernel_path.audit.datagrams import DatagramLedger
from retexo_fl.additions.kernel_path.audit.peers import AuditedPeers
from retexo_fl.additions.kernel_path.xdp.account import Flow, FlowVolume

#: Two counts agree when they differ by no more than this share of the larger.
TOLERANCE: Final = 0.001
#: Nor by more than one packet without data: a connection's last is the kernel's, not the agent's.
TOLERANCE_BYTES: Final = 60
#: Of datagrams, so many packets may wait in a socket's buffer while both are read.
WAITING_PACKETS: Final = 256
#: The protocol whose bytes the agent counts by peer.
_TOLD: Final = "tcp"
_PROTOCOLS: Final = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP}


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Bytes or packets of one direction between this client and some peers.

    Attributes:
        ledger: As the agent counted; None where it, or the system, does not.
        least: At the interface, without what passed while both were read, and without bytes that
            TCP's own counters may leave out.
        most: With both.
        slack: So much is no difference.
    """

    ledger: int | None
    least: int
    most: int
    slack: int = TOLERANCE_BYTES

    @property
    def interface(self) -> int:
        """What the interface counted: of what is possible, the value nearest to the ledger."""
        return self.most if self.ledger is None else max(self.least, min(self.ledger, self.most))

    @property
    def difference(self) -> int | None:
        """Bytes that the ledger has more than the interface."""
        return None if self.ledger is None else self.ledger - self.interface

    @property
    def agrees(self) -> bool:
        """Whether both agree within the tolerance; true where the ledger's is unknown."""
        if self.ledger is None or self.difference is None:
            return True
        allowed = max(TOLERANCE * max(self.ledger, self.interface), self.slack)
        return abs(self.difference) <= allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """One peer, or several with one address.

    Attributes:
        protocol: ``tcp`` or ``udp``.
        clients: Client indices; empty for conversations with unknown machines.
        addresses: IPv4 addresses; empty if none is known.
        sent: Bytes to them; ``received`` from them.
        received: See ``sent``.
    """

    protocol: str
    clients: tuple[int, ...]
    addresses: tuple[str, ...]
    sent: Count
    received: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What was compared.

    Attributes:
        interfaces: Where was counted.
        with_xdp: Those of them at which an XDP program takes packets before they are counted.
        seconds: For how long.
        lines: Bytes by peer.
        datagrams: Packets of all peers, sent and received; None where the agent takes none.
    """

    interfaces: tuple[str, ...]
    with_xdp: tuple[str, ...]
    seconds: float
    lines: tuple[AuditLine, ...]
    datagrams: tuple[Count, Count] | None

    @property
    def agrees(self) -> bool:
        """Whether every line does, in both directions, and datagrams do."""
        counts = [count for line in self.lines for count in (line.sent, line.received)]
        return all(count.agrees for count in (*counts, *(self.datagrams or ())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the agent reported, and the interfaces' counts before and after that.

    Attributes:
        process: The agent's.
        ledger: By peer, bytes of TCP sent and received; None where they are unknown.
        datagrams: Of its endpoint: port, packets sent and received; None for what is unknown.
        earlier: At the interfaces, before; ``later`` after.
        later: See ``earlier``.
    """

    process: int
    ledger: Mapping[int, tuple[int | None, int | None]]
    datagrams: DatagramLedger | None
    earlier: Mapping[Flow, FlowVolume]
    later: Mapping[Flow, FlowVolume]


def compare(peers: AuditedPeers, before: Look, after: Look) -> Iterator[AuditLine]:
    """Compare what was reported with what passed, for each peer and protocol."""
    clients = {*before.ledger, *after.ledger}
    for owners, addresses in peers.groups(clients):
        for protocol, number in _PROTOCOLS.items():
            flows = [
                flow
                for flow in after.later
                if flow.protocol == number
                and peers.has(flow)
                and (flow.peer in addresses if addresses else flow.peer not in peers.owners)
            ]
            has_ledger = protocol == _TOLD and bool(owners & clients)
            if not flows and not has_ledger:
                continue
            told = (_grown(before, after, owners, way) for way in (0, 1))
            sent, received = told if protocol == _TOLD else (None, None)
            least = passed(flows, before.later, after.earlier)
            most = passed(flows, before.earlier, after.later)
            yield AuditLine(
                protocol=protocol,
                clients=tuple(sorted(owners)),
                addresses=tuple(sorted(addresses)),
                sent=Count(
                    ledger=sent,
                    least=least.sent_bytes - most.sent_untold_bytes,
                    most=most.sent_bytes,
                ),
                received=Count(
                    ledger=received,
                    least=least.received_bytes - most.received_untold_bytes,
                    most=most.received_bytes,
                ),
            )


def compare_datagrams(before: Look, after: Look) -> tuple[Count, Count] | None:
    """Compare packets of the agent's datagrams, sent and received, with all that passed its port.

    Returns:
        None where it takes no datagrams.
    """
    begun, ended = before.datagrams, after.datagrams
    if begun is None or ended is None:
        return None
    flows = [
        flow
        for flow in after.later
        if flow.protocol == _PROTOCOLS["udp"] and flow.local_port == ended.port
    ]
    least = passed(flows, before.later, after.earlier)
    most = passed(flows, before.earlier, after.later)
    return (
        Count(
            ledger=None if begun.sent is None or ended.sent is None else ended.sent - begun.sent,
            least=least.sent_packets,
            most=most.sent_packets,
            slack=WAITING_PACKETS,
        ),
        Count(
            ledger=ended.received - begun.received,
            least=least.received_packets,
            most=most.received_packets,
            slack=WAITING_PACKETS,
        ),
    )


def passed(
    flows: Sequence[Flow], begun: Mapping[Flow, FlowVolume], ended: Mapping[Flow, FlowVolume]
) -> FlowVolume:
    """Return what passed in some conversations between two moments."""
    nothing = FlowVolume()
    moved = (ended.get(flow, nothing) - begun.get(flow, nothing) for flow in flows)
    return sum(moved, nothing)


def _grown(before: Look, after: Look, owners: Iterable[int], way: int) -> int | None:
    """Return by how much the ledger's bytes of some clients have grown; None if unknown."""
    total = 0
    for client in owners:
        begun, ended = (look.ledger.get(client, (0, 0))[way] for look in (before, after))
        if begun is None or ended is None:
            return None
        total += ended - begun
    return total
