"""Ethernet addresses of peers, from the kernel's own tables of routes and neighbours."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from retexo_fl.errors import ChannelUnavailable

#: linux/sockios.h, linux/if_arp.h.
_SIOCGIFHWADDR: Final = 0x8927
_ETHERNET: Final = 1
_LOOPBACK: Final = 772
_MAC_BYTES: Final = 6

#: linux/netlink.h, linux/rtnetlink.h, linux/neighbour.h.
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_ROUTE: Final = struct.Struct("=BBBBBBBBI")
_NEIGHBOUR: Final = struct.Struct("=BxxxiHBB")
_REQUEST: Final = 1
_ERROR: Final = 2
_GET_ROUTE: Final = 26
_GET_NEIGHBOUR: Final = 30
_ROUTE_DESTINATION, _ROUTE_INTERFACE, _ROUTE_GATEWAY, _ROUTE_VIA = 1, 4, 5, 18
_UNICAST: Final = 1
_NEIGHBOUR_ADDRESS, _NEIGHBOUR_MAC = 1, 2
#: Reachable, stale, delay, probe, no ARP, permanent: the entry holds an address that is used.
_KNOWN_STATES: Final = 0x02 | 0x04 | 0x08 | 0x10 | 0x40 | 0x80
_ANSWER_BYTES: Final = 1 << 16
_ANSWER_S: Final = 1.0

#: A port where nothing listens: a packet to it only has the kernel ask for an Ethernet address.
_DISCARD_PORT: Final = 9
_LOOK_EVERY_S: Final = 0.01


def ethernet_address(interface: str) -> bytes:
    """Return the Ethernet address of an interface of this machine, six bytes.

    Raises:
        ChannelUnavailable: There is no such interface, or it is not Ethernet.
    """
    kind, address = _hardware(interface)
    if kind != _ETHERNET:
        raise ChannelUnavailable(f"{interface}: type {kind}; expected an Ethernet interface")
    return address


def has_ethernet_headers(interface: str) -> bool:
    """Return whether frames begin with an Ethernet header; a tunnel's begin with IP's.

    Raises:
        ChannelUnavailable: There is no such interface.
    """
    return _hardware(interface)[0] in {_ETHERNET, _LOOPBACK}


def demand_ethernet(interface: str) -> None:
    """Refuse an interface whose frames the programs do not understand.

    Raises:
        ChannelUnavailable: Its frames begin with IP's header, or there is no such interface.
    """
    if not has_ethernet_headers(interface):
        raise ChannelUnavailable(
            f"{interface}: its frames have no Ethernet header (a tunnel); listen at udp://"
        )


def _hardware(interface: str) -> tuple[int, bytes]:
    request = struct.pack("16s24x", interface.encode())
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            answer = fcntl.ioctl(control, _SIOCGIFHWADDR, request)
    except OSError as error:
        raise ChannelUnavailable(f"{interface}: {error.strerror}") from error
    (kind,) = struct.unpack_from("=H", answer, 16)
    return kind, answer[18 : 18 + _MAC_BYTES]


def neighbour_mac(interface: str, address: str, *, timeout_s: float = 1.0) -> bytes:
    """Return the Ethernet address to which packets for a peer leave: its own, or its gateway's.

    An address that the kernel does not have is asked for.

    Args:
        interface: By which they must leave.
        address: IPv4 address of the peer.
        timeout_s: How long an answer is waited for.

    Raises:
        ChannelUnavailable: The route does not lead through the interface, or no answer came.
    """
    hop = next_hop(address)
    if hop.interface != _number(interface):
        raise ChannelUnavailable(f"{address}: is not reached by {interface}; see `ip route get`")
    deadline_s = time.monotonic() + timeout_s
    while (mac := _known_mac(hop)) is None:
        if time.monotonic() > deadline_s:
            raise ChannelUnavailable(f"{hop.address}: no Ethernet address at {interface} (no ARP)")
        _have_asked(hop.address)
        time.sleep(_LOOK_EVERY_S)
    return mac


@dataclass(frozen=True, slots=True)
class Hop:
    """Whereto packets for an address go first.

    Attributes:
        interface: Number of the interface.
        address: IPv4 address of the next machine.
    """

    interface: int
    address: str


def next_hop(address: str) -> Hop:
    """Return the way to another machine, as the kernel would send a packet now.

    Raises:
        ChannelUnavailable: There is none over Ethernet and IPv4: it is this machine, or unknown.
    """
    kind, found = _route(address)
    if kind != _UNICAST:
        raise ChannelUnavailable(f"{address}: is an address of this machine; expected a peer's")
    if _ROUTE_VIA in found:
        raise ChannelUnavailable(f"{address}: no route over IPv4; see `ip route get {address}`")
    return Hop(_interface(found), socket.inet_ntoa(found.get(_ROUTE_GATEWAY, _packed(address))))


def interface_towards(address: str) -> str:
    """Return the name of the interface by which packets leave for an address; this machine's: lo.

    Raises:
        ChannelUnavailable: There is no way.
    """
    return socket.if_indextoname(_interface(_route(address)[1]))


def _route(address: str) -> tuple[int, dict[int, bytes]]:
    """Return the kind of the route to an address, and its attributes."""
    wanted = _attribute(_ROUTE_DESTINATION, _packed(address))
    question = _ROUTE.pack(socket.AF_INET, 32, 0, 0, 0, 0, 0, 0, 0) + wanted
    answer = _ask(_GET_ROUTE, question, address)
    found = dict(_attributes(answer[_ROUTE.size :]))
    if _ROUTE_INTERFACE not in found:
        raise ChannelUnavailable(f"{address}: no route; see `ip route get {address}`")
    return int(_ROUTE.unpack_from(answer)[7]), found


def _interface(found: dict[int, bytes]) -> int:
    (number,) = struct.unpack("=i", found[_ROUTE_INTERFACE])
    return int(number)


def _known_mac(hop: Hop) -> bytes | None:
    wanted = _attribute(_NEIGHBOUR_ADDRESS, _packed(hop.address))
    question = _NEIGHBOUR.pack(socket.AF_INET, hop.interface, 0, 0, 0) + wanted
    try:
        answer = _ask(_GET_NEIGHBOUR, question, hop.address)
    except FileNotFoundError:
        return None
    state = _NEIGHBOUR.unpack_from(answer)[2]
    mac = dict(_attributes(answer[_NEIGHBOUR.size :])).get(_NEIGHBOUR_MAC, b"")
    return mac if state & _KNOWN_STATES and len(mac) == _MAC_BYTES else None


def _have_asked(address: str) -> None:
    """Have the kernel ask the network for an Ethernet address."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender, contextlib.suppress(OSError):
        sender.sendto(b"\0", (address, _DISCARD_PORT))


def _ask(kind: int, question: bytes, about: str) -> bytes:
    """Put one question to the kernel's routing, and return the answer without its header.

    Raises:
        FileNotFoundError: There is no such entry.
        ChannelUnavailable: Any other refusal.
    """
    message = _HEADER.pack(_HEADER.size + len(question), kind, _REQUEST, 1, 0) + question
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
            kernel.settimeout(_ANSWER_S)
            kernel.sendto(message, (0, 0))
            answer = kernel.recv(_ANSWER_BYTES)
    except OSError as error:
        raise ChannelUnavailable(f"{about}: the kernel's routes: {error}") from error
    if _HEADER.unpack_from(answer)[1] == _ERROR:
        number = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        if number == errno.ENOENT:
            raise FileNotFoundError(about)
        raise ChannelUnavailable(f"{about}: no route: {os.strerror(number)}")
    return answer[_HEADER.size : _HEADER.unpack_from(answer)[0]]


def _attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    place = 0
    while place + _ATTRIBUTE.size <= len(data):
        size, kind = _ATTRIBUTE.unpack_from(data, place)
        if size < _ATTRIBUTE.size:
            return
        yield kind, data[place + _ATTRIBUTE.size : place + size]
        # Each begins at a multiple of four bytes.
        place += (size + 3) & ~3


def _number(interface: str) -> int:
    try:
        return socket.if_nametoindex(interface)
    except OSError as error:
        raise ChannelUnavailable(f"{interface}: no such interface") from error


def _packed(address: str) -> bytes:
    try:
        return socket.inet_pton(socket.AF_INET, address)
    except OSError as error:
        raise ChannelUnavailable(f"{address}: is not an IPv4 address") from error
