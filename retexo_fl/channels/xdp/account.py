"""Bytes that pass an interface, by peer, protocol and port: counted by the kernel, not by us.

IP packets are counted as they are on the wire, whatever the interface joins or cuts. Where an XDP
program takes or answers some itself, two more programs look on at it.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from retexo_fl.channels.xdp.attachments import TcDirection
from retexo_fl.channels.xdp.libbpf import BpfMap, BpfObject
from retexo_fl.channels.xdp.library import libbpf
from retexo_fl.channels.xdp.neighbours import has_ethernet_headers
from retexo_fl.channels.xdp.tracing import attach_trace, xdp_function_at
from retexo_fl.errors import ChannelUnavailable

_PROGRAM: Final = Path(__file__).with_name("programs") / "account.bpf.o"
#: As in the program.
_FLOW: Final = struct.Struct("<4s2s2sB3x")
_VOLUME: Final = struct.Struct("<QQQQ")
_ETHERNET_BYTES: Final = 14
_DIRECTIONS: Final[tuple[tuple[str, TcDirection], ...]] = (
    ("arriving", "ingress"),
    ("leaving", "egress"),
)
_TRACERS: Final = ("before_xdp", "after_xdp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One conversation with a peer.

    Attributes:
        peer: Its IPv4 address.
        protocol: As IP numbers them: 6 TCP, 17 UDP.
        local_port: Port of this end; 0 where there are none, as in a fragment.
        peer_port: Port of the other.
    """

    peer: str
    protocol: int
    local_port: int
    peer_port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowVolume:
    """Bytes of IP packets, their headers included, and packets."""

    received_bytes: int = 0
    received_packets: int = 0
    sent_bytes: int = 0
    sent_packets: int = 0

    def __add__(self, other: FlowVolume) -> FlowVolume:
        """Return both together."""
        return _volume(one + two for one, two in zip(astuple(self), astuple(other), strict=True))

    def __sub__(self, before: FlowVolume) -> FlowVolume:
        """Return what passed between two moments."""
        return _volume(one - two for one, two in zip(astuple(self), astuple(before), strict=True))


class ByteAccount:
    """The counting programs at an interface, both ways; until :meth:`close`.

    Of more than 16,384 conversations those that were silent longest are forgotten.

    Args:
        interface: Name of an interface of this machine.

    Attributes:
        interface: See above.
        misses_xdp: An XDP program is there that lets nobody look on: what it takes or answers is
            not counted.

    Raises:
        ChannelUnavailable: There is no such interface, or no privilege.
    """

    def __init__(self, interface: str) -> None:
        self.interface = interface
        self.misses_xdp = False
        self._link_bytes = _ETHERNET_BYTES if has_ethernet_headers(interface) else 0
        number = socket.if_nametoindex(interface)
        with ExitStack() as stack:
            self._object = self._loaded(number)
            stack.callback(self._object.close)
            self._flows = self._object.maps["flows"]
            programs = self._object.programs
            for name, direction in _DIRECTIONS:
                stack.callback(programs[name].attach_tc(number, direction).detach)
            if programs["after_xdp"].fd >= 0:
                # The later one first: it counts what the earlier one has seen.
                stack.callback(attach_trace(programs["after_xdp"], "after").detach)
                stack.callback(attach_trace(programs["before_xdp"], "before").detach)
            self._held = stack.pop_all()

    def flows(self) -> dict[Flow, FlowVolume]:
        """Return what passed since the beginning, by conversation."""
        found = {}
        for key in _keys(self._flows):
            # One that has just been forgotten has no value any more.
            if (value := self._flows.lookup(key)) is not None:
                found[_flow(key)] = _volume(_VOLUME.unpack(value))
        return found

    def close(self) -> None:
        """Take the programs away; a second call does nothing."""
        self._held.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Take the programs away."""
        self.close()


    def _loaded(self, number: int) -> BpfObject:
        """Return the programs, with those that look on at an XDP program if one is there."""
        with xdp_function_at(number) as target:
            if target is not None:
                with suppress(ChannelUnavailable):
                    return self._load(only=None, target=target)
            self.misses_xdp = target is not None
            return self._load(only=frozenset(name for name, _ in _DIRECTIONS), target=None)

    def _load(self, *, only: frozenset[str] | None, target: tuple[int, str] | None) -> BpfObject:
        opened = BpfObject(_PROGRAM)
        try:
            opened.set_constant("link_bytes", self._link_bytes)
            if target is not None:
                for name in _TRACERS:
                    opened.programs[name].set_target(*target)
            opened.load(only=only)
        except BaseException:
            opened.close()
            raise
        return opened


def _flow(key: bytes) -> Flow:
    peer, local_port, peer_port, protocol = _FLOW.unpack(key)
    return Flow(
        peer=socket.inet_ntoa(peer),
        protocol=protocol,
        local_port=int.from_bytes(local_port, "big"),
        peer_port=int.from_bytes(peer_port, "big"),
    )


def _volume(figures: Iterator[int] | tuple[int, ...]) -> FlowVolume:
    received_bytes, received_packets, sent_bytes, sent_packets = figures
    return FlowVolume(
        received_bytes=received_bytes,
        received_packets=received_packets,
        sent_bytes=sent_bytes,
        sent_packets=sent_packets,
    )


def _keys(table: BpfMap) -> list[bytes]:
    """Return the keys of a hash map."""
    following = libbpf().bpf_map_get_next_key
    found: dict[bytes, None] = {}
    key: bytes | None = None
    after = ctypes.create_string_buffer(_FLOW.size)
    # After a key that has just vanished the walk begins anew: bounded, for that may go on.
    for _ in range(2 * table.max_entries):
        if following(table.fd, key, after):
            break
        key = after.raw
        found[key] = None
    return list(found)
