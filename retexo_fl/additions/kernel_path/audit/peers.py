"""By which addresses and ports an agent's packets to its peers are known at an interface."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from retexo_fl.additions.kernel_path.xdp.account import Flow
from retexo_fl.additions.kernel_path.xdp.neighbours import interface_towards
from retexo_fl.agent.settings import AgentSettings
from retexo_fl.channels.addresses import DATAGRAM_SCHEMES, parse_datagram, parse_tcp, scheme_of
from retexo_fl.channels.roster import Roster
from retexo_fl.errors import ChannelUnavailable, ConfigurationError

_TCP: Final = socket.IPPROTO_TCP
_UDP: Final = socket.IPPROTO_UDP


class AuditedPeers:
    """Which clients are reached at which IPv4 address, by the roster.

    Agents that share a machine, and so an address, differ in their ports alone.

    Args:
        settings: The agent's.
        own: Its client index.

    Attributes:
        owners: Clients by IPv4 address.

    Raises:
        ConfigurationError: There is no roster file.
        IdentityError: It cannot be used.
    """

    def __init__(self, settings: AgentSettings, *, own: int) -> None:
        if not settings.roster:
            raise ConfigurationError("roster: missing; an audit needs the peers' addresses")
        listening = (_place(text) for text in settings.listen)
        self._own = {(place.protocol, place.port) for place in listening if place is not None}
        self._ports: set[tuple[str, int, int]] = set()
        self.owners: dict[str, set[int]] = {}
        for client, member in Roster.read(Path(settings.roster)).members.items():
            if client != own:
                self._add(client, member.addresses)

    def interfaces(self) -> tuple[str, ...]:
        """Return the interfaces by which peers are reached, by name."""
        found = set()
        for address in self.owners:
            # To a peer without a way nothing goes.
            with suppress(ChannelUnavailable):
                found.add(interface_towards(address))
        return tuple(sorted(found))

    def has(self, flow: Flow) -> bool:
        """Return whether a conversation is one of the agent with a peer."""
        by_peer = (flow.peer, flow.protocol, flow.peer_port) in self._ports
        return by_peer or (flow.protocol, flow.local_port) in self._own

    def groups(self, clients: Iterable[int]) -> list[tuple[set[int], set[str]]]:
        """Return clients and their addresses, together those that share one.

        Args:
            clients: All peers in the agent's status; the last group are those without address.
        """
        found: list[tuple[set[int], set[str]]] = []
        for address, owners in sorted(self.owners.items()):
            group = (set(owners), {address})
            for other in [other for other in found if other[0] & owners]:
                found.remove(other)
                group = (group[0] | other[0], group[1] | other[1])
            found.append(group)
        known = {client for owners, _ in found for client in owners}
        return [*sorted(found, key=lambda group: min(group[0])), (set(clients) - known, set())]

    def _add(self, client: int, addresses: Iterable[str]) -> None:
        for text in addresses:
            place = _place(text)
            if place is None:
                continue
            for address in _resolved(place.host):
                self.owners.setdefault(address, set()).add(client)
                self._ports.add((address, place.protocol, place.port))


@dataclass(frozen=True, slots=True)
class _Place:
    protocol: int
    host: str
    port: int


def _place(address: str) -> _Place | None:
    """Return where an address of IP leads; None for others."""
    scheme = scheme_of(address)
    if scheme == "tcp":
        tcp = parse_tcp(address, least_port=0)
        return _Place(_TCP, tcp.host, tcp.port)
    if scheme in DATAGRAM_SCHEMES:
        datagram = parse_datagram(address)
        return _Place(_UDP, datagram.host, datagram.port)
    return None


def _resolved(host: str) -> set[str]:
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return set()
    return {str(entry[4][0]) for entry in found}
