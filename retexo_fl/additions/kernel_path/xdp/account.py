"""Bytes that pass an interface, by peer, protocol and port: counted by the kernel, not by us.

What an XDP program takes, or answers itself, does not come by; of everything else IP packets are
counted as they are on the wire, whatever the interface joins or cuts.
"""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from retexo_fl.additions.kernel_path.xdp.attachments import TcDirection, xdp_program_at
from retexo_fl.additions.kernel_path.xdp.libbpf import BpfMap, BpfObject
from retexo_fl.additions.kernel_path.xdp.library import libbpf
from retexo_fl.additions.kernel_path.xdp.neighbours import has_ethernet_headers

_PROGRAM: Final = Path(__file__).with_name("programs") / "account.bpf.o"
#: As in the program.
_FLOW: Final = struct.Struct("<4s2s2sB3x")
_VOLUME: Final = struct.Struct("<QQQQQQ8x")
_ETHERNET_BYTES: Final = 14
_DIRECTIONS: Final[tuple[tuple[str, TcDirection], ...]] = (
    ("arriving", "ingress"),
    ("leaving", "egress"),
)


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
    """Bytes of IP packets, their headers included, and packets.

    Attributes:
        received_bytes: Of all packets from the peer, ``received_packets`` of them.
        received_packets: See above; ``sent_bytes`` and ``sent_packets`` likewise.
        sent_bytes: See above.
        sent_packets: See above.
        received_untold_bytes: Of these, so many TCP's own counters may leave out: data that had
            come before, or filled a gap, and options other than the timestamp.
        sent_untold_bytes: Likewise, of options alone.
    """

    received_bytes: int = 0
    received_packets: int = 0
    sent_bytes: int = 0
    sent_packets: int = 0
    received_untold_bytes: int = 0
    sent_untold_bytes: int = 0

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

    Raises:
        ChannelUnavailable: There is no such interface, or no privilege.
    """

    def __init__(self, interface: str) -> None:
        self.interface = interface
        link_bytes = _ETHERNET_BYTES if has_ethernet_headers(interface) else 0
        number = socket.if_nametoindex(interface)
        with ExitStack() as stack:
            self._object = BpfObject(_PROGRAM)
            stack.callback(self._object.close)
            self._object.set_constant("link_bytes", link_bytes)
            self._object.load()
            self._flows = self._object.maps["flows"]
            for name, direction in _DIRECTIONS:
                attached = self._object.programs[name].attach_tc(number, direction)
                stack.callback(attached.detach)
            self._held = stack.pop_all()

    @property
    def has_xdp(self) -> bool:
        """Whether an XDP program is at the interface: what it takes or answers is not counted."""
        return xdp_program_at(socket.if_nametoindex(self.interface)) != 0

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


def _flow(key: bytes) -> Flow:
    peer, local_port, peer_port, protocol = _FLOW.unpack(key)
    return Flow(
        peer=socket.inet_ntoa(peer),
        protocol=protocol,
        local_port=int.from_bytes(local_port, "big"),
        peer_port=int.from_bytes(peer_port, "big"),
    )


def _volume(figures: Iterator[int] | tuple[int, ...]) -> FlowVolume:
    names = (field.name for field in fields(FlowVolume))
    return FlowVolume(**dict(zip(names, figures, strict=True)))


def _keys(table: BpfMap) -> list[bytes]:
    """Return the keys of a hash map."""
    following = libbpf().bpf_map_get_next_key
    found: dict[bytes, None] = {}
    key: bytes | None = None
    after = ctypes.create_string_buffer(_FLOW.size)
    # After a key that has just been removed the walk starts again; bounded, as that may recur.
    for _ in range(2 * table.max_entries):
        if following(table.fd, key, after):
            break
        key = after.raw
        found[key] = None
    return list(found)
