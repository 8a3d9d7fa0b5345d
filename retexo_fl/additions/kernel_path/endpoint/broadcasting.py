"""How packets for several destinations leave: to each, or once for the kernel to clone."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from retexo_fl.additions.kernel_path.endpoint.records import (
    Destination,
    parse_endpoint,
    socket_address,
)
from retexo_fl.errors import ChannelUnavailable

#: "sendto": a system call for each packet and destination; "sendmmsg": one for many packets;
#: "gso": messages that the kernel cuts into packets; "tc": packets that the kernel clones.
BroadcastKind = Literal["auto", "sendto", "sendmmsg", "gso", "tc"]
#: How long a destination's Ethernet address is asked for.
_NEIGHBOUR_S: Final = 0.2


class Cloner(Protocol):
    """Clones packets to the members of a group.

    See :class:`retexo_fl.additions.kernel_path.xdp.broadcast`.

    Attributes:
        port: UDP port that packets to a group are sent to, at any member's address.
        token: What these packets have as their token; the group's number is their stream.
    """

    port: int
    token: int

    def set_group(self, number: int, members: Sequence[Any], *, timeout_s: float = ...) -> None:
        """Make a group, or change it."""
        ...

    def remove_group(self, number: int) -> None:
        """Forget a group."""
        ...

    def counters(self) -> dict[str, int]:
        """Return what was counted."""
        ...

    def close(self) -> None:
        """Take the program away."""
        ...


@dataclass(frozen=True, slots=True)
class Group:
    """Where a packet is sent so that all members get it.

    Attributes:
        number: Said by packets as their stream.
        token: Said by packets as their token.
        name: Socket address.
        members: Whom it reaches.
    """

    number: int
    token: int
    name: bytes
    members: frozenset[Destination]


class Groups:
    """The groups of a cloner; its own lock, since making one may wait for an Ethernet address.

    Args:
        cloner: Makes them; None where the kernel clones nothing.
        kind: "tc" makes what cannot be cloned an error.
    """

    def __init__(self, cloner: Cloner | None, kind: BroadcastKind) -> None:
        if kind == "tc" and cloner is None:
            raise ChannelUnavailable("datagrams: broadcast 'tc' needs a program that clones")
        self.kind = kind
        self._cloner = cloner if kind in ("auto", "tc") else None
        self._lock = threading.Lock()
        self._numbers: dict[bytes, int] = {}
        self._next = 0
        self.refused = 0

    def set(self, key: bytes, destinations: Sequence[Destination]) -> Group | None:
        """Return the group of what is sent under a key, with these members.

        Returns:
            None where packets have to be sent to each.

        Raises:
            ChannelUnavailable: The kind is "tc", and the cloner cannot reach a member.
        """
        cloner = self._cloner
        if cloner is None or len(destinations) < 2:
            return None
        with self._lock:
            number = self._numbers.get(key, self._next)
            try:
                cloner.set_group(number, _members(destinations), timeout_s=_NEIGHBOUR_S)
            except ChannelUnavailable:
                self.refused += 1
                if self.kind == "tc":
                    raise
                self._remove(key)
                return None
            if key not in self._numbers:
                self._numbers[key] = number
                self._next = (self._next + 1) % (2**32 - 1)
        host, _ = parse_endpoint(destinations[0].address)
        name = socket_address(f"{host}:{cloner.port}")
        return Group(number, cloner.token, name, frozenset(destinations))

    def remove(self, key: bytes) -> None:
        """Forget the group of a key, if there is one."""
        with self._lock:
            self._remove(key)

    def counters(self) -> dict[str, int]:
        """Return what the cloner counted, and how many groups it refused."""
        counted = {} if self._cloner is None else self._cloner.counters()
        return {f"clone_{name}": value for name, value in counted.items()} | {
            "clone_groups_refused": self.refused
        }

    def close(self) -> None:
        """Take the cloner away."""
        if self._cloner is not None:
            self._cloner.close()

    def _remove(self, key: bytes) -> None:
        number = self._numbers.pop(key, None)
        if number is not None and self._cloner is not None:
            self._cloner.remove_group(number)


def _members(destinations: Sequence[Destination]) -> list[Any]:
    from retexo_fl.additions.kernel_path.xdp.broadcast import BroadcastMember

    members = []
    for destination in destinations:
        host, port = parse_endpoint(destination.address)
        grant = destination.grant
        members.append(
            BroadcastMember(address=host, port=port, token=grant.token, stream=grant.stream)
        )
    return members
