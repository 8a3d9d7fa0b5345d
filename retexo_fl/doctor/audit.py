"""The audit: does an agent's account of its peers agree with what the interfaces carried?

The agent computes bytes on the wire from what TCP tells of each connection. Here the kernel counts
the same bytes once more, at the interface, by the peer's address. Both are read one after the
other, so what passes in between is allowed for.

Datagrams are shown on lines of their own. They are compared where the agent tells of them, and not
at an interface with an XDP program, which takes and answers packets before they are counted.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from retexo_fl.agent.remote import ask_agent
from retexo_fl.agent.settings import AgentSettings, read_settings
from retexo_fl.channels.addresses import DATAGRAM_SCHEMES
from retexo_fl.channels.xdp.account import ByteAccount, Flow, FlowVolume
from retexo_fl.doctor.audited_peers import AuditedPeers
from retexo_fl.errors import AgentUnreachable, ConfigurationError

#: Two counts agree when they differ by no more than this share of the larger.
TOLERANCE: Final = 0.001
#: Nor by more than one packet without data: a connection's last is the kernel's, not the agent's.
TOLERANCE_BYTES: Final = 60
#: Channels whose bytes go to the peer's own address, by protocol; a relay's go to the server.
_CHANNELS: Final = {"tcp": frozenset({"tcp"}), "udp": frozenset(DATAGRAM_SCHEMES)}
_NUMBERS: Final = {"tcp": socket.IPPROTO_TCP, "udp": socket.IPPROTO_UDP}
_LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Bytes of one direction between this client and some peers.

    Attributes:
        ledger: As the agent counted; None where the system did not tell it.
        least: At the interface, without what passed while both were read.
        most: With it.
    """

    ledger: int | None
    least: int
    most: int

    @property
    def interface(self) -> int:
        """What the interface counted: of what is possible, that which is nearest to the ledger."""
        return self.most if self.ledger is None else max(self.least, min(self.ledger, self.most))

    @property
    def difference(self) -> int | None:
        """Bytes that the ledger has more than the interface."""
        return None if self.ledger is None else self.ledger - self.interface

    @property
    def agrees(self) -> bool:
        """Whether both say the same, within the tolerance; nothing is said where one is silent."""
        if self.ledger is None or self.difference is None:
            return True
        allowed = max(TOLERANCE * max(self.ledger, self.interface), TOLERANCE_BYTES)
        return abs(self.difference) <= allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLine:
    """One peer, or several that an address does not tell apart.

    Attributes:
        protocol: ``tcp`` or ``udp``.
        clients: Client indices; empty for conversations with nobody known.
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
        lines: By peer.
    """

    interfaces: tuple[str, ...]
    with_xdp: tuple[str, ...]
    seconds: float
    lines: tuple[AuditLine, ...]

    @property
    def agrees(self) -> bool:
        """Whether every line does, in both directions."""
        return all(line.sent.agrees and line.received.agrees for line in self.lines)


def audit(config: Path, seconds: float, *, sleep: Callable[[float], None] = time.sleep) -> Audit:
    """Count at the interfaces for a while, and compare with what the agent counted meanwhile.

    Ctrl-C ends the counting early, and the comparison follows.

    Args:
        config: The agent's ``agent.toml``.
        seconds: How long.
        sleep: Waits.

    Raises:
        ConfigurationError: The configuration cannot be read, or names no roster.
        IdentityError: The roster cannot be used.
        AgentUnreachable: The agent does not run, or was restarted meanwhile.
        ChannelUnavailable: Programs for counting cannot be loaded: no privilege, no libbpf.
    """
    settings = read_settings(config)
    peers = AuditedPeers(settings, own=int(_ask(settings)["part"]["client"]))
    if not (names := peers.interfaces()):
        raise ConfigurationError("roster: no peer has an IPv4 address to which there is a way")
    with ExitStack() as stack:
        accounts = [stack.enter_context(ByteAccount(name)) for name in names]
        before = _look(settings, accounts)
        begun_s = time.monotonic()
        _wait(seconds, sleep)
        lasted_s = time.monotonic() - begun_s
        after = _look(settings, accounts)
        with_xdp = tuple(account.interface for account in accounts if account.has_xdp)
    if after.process != before.process:
        raise AgentUnreachable("the agent was restarted during the audit; begin it again")
    return Audit(
        interfaces=names,
        with_xdp=with_xdp,
        seconds=lasted_s,
        lines=tuple(compare(peers, before, after, has_xdp=bool(with_xdp))),
    )


def _wait(seconds: float, sleep: Callable[[float], None]) -> None:
    ends_s = time.monotonic() + seconds
    try:
        while (left_s := ends_s - time.monotonic()) > 0:
            sleep(min(left_s, _LOOK_EVERY_S))
    except KeyboardInterrupt:
        return


#: Of each peer and protocol, bytes sent and received; None where they are not told.
Ledger = Mapping[tuple[int, str], tuple[int | None, int | None]]


@dataclass(frozen=True, slots=True)
class Look:
    """What the agent told, and what the interfaces had counted before and after it was asked."""

    process: int
    ledger: Ledger
    earlier: Mapping[Flow, FlowVolume]
    later: Mapping[Flow, FlowVolume]


def _look(settings: AgentSettings, accounts: Sequence[ByteAccount]) -> Look:
    earlier = _sum_of(accounts)
    facts = _ask(settings)
    return Look(int(facts["pid"]), ledger_of(facts["peers"]), earlier, _sum_of(accounts))


def _ask(settings: AgentSettings) -> Mapping[str, Any]:
    return ask_agent(Path(settings.socket), "status")


def _sum_of(accounts: Sequence[ByteAccount]) -> dict[Flow, FlowVolume]:
    total: dict[Flow, FlowVolume] = {}
    for account in accounts:
        for flow, volume in account.flows().items():
            total[flow] = total.get(flow, FlowVolume()) + volume
    return total


def ledger_of(peers: Iterable[Mapping[str, Any]]) -> Ledger:
    """Return what an agent's status tells of bytes on the wire."""
    found: dict[tuple[int, str], tuple[int | None, int | None]] = {}
    for peer in peers:
        for protocol, names in _CHANNELS.items():
            counted = [it for name, it in peer.get("channels", {}).items() if name in names]
            found[int(peer["client"]), protocol] = (
                _total(it["wire_bytes_sent"] for it in counted),
                _total(it["wire_bytes_received"] for it in counted),
            )
    return found


def compare(
    peers: AuditedPeers, before: Look, after: Look, *, has_xdp: bool
) -> Iterator[AuditLine]:
    """Compare what was told with what passed, for each peer and protocol.

    Args:
        peers: Whose conversations are whose.
        before: At the beginning.
        after: At the end.
        has_xdp: Datagrams are not all counted at the interface.
    """
    clients = {client for client, _ in (*before.ledger, *after.ledger)}
    for owners, addresses in peers.groups(clients):
        for protocol, number in _NUMBERS.items():
            flows = [
                flow
                for flow in after.later
                if flow.protocol == number
                and peers.has(flow)
                and (flow.peer in addresses if addresses else flow.peer not in peers.owners)
            ]
            told = [_grown(before.ledger, after.ledger, owners, protocol, way) for way in (0, 1)]
            is_silent = not flows and not any(told)
            if is_silent and (protocol == "udp" or not owners & clients):
                continue
            if protocol == "udp" and (has_xdp or not any(told)):
                told = [None, None]
            least = _passed(flows, before.later, after.earlier)
            most = _passed(flows, before.earlier, after.later)
            yield AuditLine(
                protocol=protocol,
                clients=tuple(sorted(owners)),
                addresses=tuple(sorted(addresses)),
                sent=Count(ledger=told[0], least=least.sent_bytes, most=most.sent_bytes),
                received=Count(
                    ledger=told[1], least=least.received_bytes, most=most.received_bytes
                ),
            )


def _passed(
    flows: Sequence[Flow], begun: Mapping[Flow, FlowVolume], ended: Mapping[Flow, FlowVolume]
) -> FlowVolume:
    nothing = FlowVolume()
    moved = (ended.get(flow, nothing) - begun.get(flow, nothing) for flow in flows)
    return sum(moved, nothing)


def _grown(
    begun: Ledger, ended: Ledger, owners: Iterable[int], protocol: str, way: int
) -> int | None:
    """Return by how much the ledger's bytes of some clients have grown."""
    before, after = (
        _total(ledger.get((client, protocol), (0, 0))[way] for client in sorted(owners))
        for ledger in (begun, ended)
    )
    return None if before is None or after is None else after - before


def _total(counts: Iterable[int | None]) -> int | None:
    """Return the sum; None if one is not known."""
    known = list(counts)
    return None if None in known else sum(count for count in known if count is not None)
