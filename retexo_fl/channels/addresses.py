"""Addresses of peers: ``tcp://HOST:PORT``, ``bluetooth://DEVICE/CHANNEL``, ``relay:``, ``udp://``.

:class:`DatagramAddress` describes those for datagrams (``udp``, ``xdp``, ``auto``). Transports from
outside have schemes that begin with ``x-``; each reads the rest of its addresses itself.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from types import MappingProxyType
from typing import Final

from retexo_fl.addition import BLUETOOTH, KERNEL_PATH
from retexo_fl.errors import IdentityError
from retexo_fl.plugins import is_own_scheme

#: Schemes that a roster may hold; a machine passes over those that it has no transport for.
SCHEMES: Final = ("tcp", "relay", *BLUETOOTH.schemes, *KERNEL_PATH.schemes)
#: At these an agent takes vectors as datagrams.
DATAGRAM_SCHEMES: Final = KERNEL_PATH.schemes
_MAX_PORT: Final = 65_535
#: Channels of RFCOMM; the kernel does not refuse others.
_MAX_CHANNEL: Final = 30
#: At this address an agent listens where there is Bluetooth, and continues without where not.
AUTOMATIC_BLUETOOTH: Final = "bluetooth:"
_WHEN_NOT_BOUND: Final = {
    errno.EADDRINUSE: "stop the process that uses the port (ss -lntup shows it), or choose another",
    errno.EADDRNOTAVAIL: "expected the address of an interface of this machine, or 0.0.0.0 or [::]",
    errno.EACCES: "expected a port from 1024 up",
}
_ANY_ADAPTER: Final = "any"
_BLUETOOTH: Final = re.compile(
    r"bluetooth://(?P<adapter>any|(?:[0-9A-Fa-f]{2}:){5}[0-9A-Fa-f]{2})(?:/(?P<channel>\d{1,3}))?",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpAddress:
    """Host (a name, an IPv4 or an IPv6 address) and port; port 0 only to listen."""

    host: str
    port: int

    def __str__(self) -> str:
        """Write it as a roster does."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BluetoothAddress:
    """A channel of a device.

    Attributes:
        adapter: Address of the device's adapter, in capitals; empty: any of this machine's, only
            to listen.
        channel: 1 to 30; None: the one that the device's service record names, or a free one to
            listen at.
    """

    adapter: str
    channel: int | None

    def __str__(self) -> str:
        """Write it as a roster does."""
        channel = "" if self.channel is None else f"/{self.channel}"
        return f"bluetooth://{self.adapter or _ANY_ADAPTER}{channel}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatagramAddress:
    """Where vectors are taken as datagrams.

    For senders all schemes are one; for the agent that listens they decide what takes the
    datagrams: ``udp`` its own process, ``xdp`` a program in the kernel, ``af-xdp`` its own process
    by a way around most of the kernel, ``auto`` the program in the kernel where there can be one.

    Attributes:
        scheme: One of :data:`DATAGRAM_SCHEMES`.
        host: IPv4 address of one of the machine's interfaces.
        port: Of UDP.
    """

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        """Write it as a roster does."""
        return f"udp://{self.endpoint}"

    @property
    def endpoint(self) -> str:
        """``IP:PORT``."""
        return f"{self.host}:{self.port}"


def scheme_of(address: str) -> str:
    """Return the part before the first colon.

    Raises:
        IdentityError: No channel has such addresses.
    """
    scheme, colon, _ = address.partition(":")
    if not colon or not (scheme in SCHEMES or is_own_scheme(scheme)):
        raise IdentityError(
            f"address {address!r} is unknown, expected tcp://HOST:PORT, "
            f"bluetooth://DEVICE/CHANNEL, udp://IP:PORT or relay: (schemes: {', '.join(SCHEMES)}, "
            "or x-NAME of a transport of yours)"
        )
    return scheme


def check_address(address: str) -> None:
    """Refuse an address that a roster cannot have.

    Raises:
        IdentityError: It is not an address that a peer could connect to.
    """
    scheme = scheme_of(address)
    if not (address.isascii() and address.isprintable()) or " " in address:
        raise IdentityError(f"address {address!r} holds other than printable ASCII")
    if parse := _PARSERS.get(scheme):
        parse(address)
    if scheme == "relay" and address != "relay:":
        raise IdentityError(f"address {address!r}: expected relay: and nothing more")


def normalised(address: str) -> str:
    """Return the one spelling of an address that :func:`check_address` takes.

    All schemes of datagrams are one, ``udp``: an address can be bound once, whatever binds it.
    """
    scheme = scheme_of(address)
    parse = _PARSERS.get(scheme)
    written = address if parse is None else str(parse(address))
    return written.lower() if scheme == "tcp" else written


def _can_be_looked_up(host: str) -> bool:
    """Return whether resolvers take a name at all: each of its parts has 1 to 63 letters."""
    try:
        return bool(host.encode("idna"))
    except UnicodeError:
        return False


def parse_tcp(address: str, *, least_port: int = 1) -> TcpAddress:
    """Read ``tcp://HOST:PORT`` or ``tcp://[IPV6]:PORT``.

    Raises:
        IdentityError: It is not one.
    """
    rest = address.removeprefix("tcp://")
    host, colon, port = rest.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if is_bracketed else host
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    has_host = "/" not in bare and (is_bracketed or ":" not in bare) and _can_be_looked_up(bare)
    if rest == address or not colon or not has_host or not is_number:
        raise IdentityError(f"address {address!r}: expected tcp://HOST:PORT")
    if not least_port <= int(port) <= _MAX_PORT:
        raise IdentityError(
            f"address {address!r}: expected a port from {least_port} to {_MAX_PORT}"
        )
    return TcpAddress(host=bare, port=int(port))


def source_of(address: str) -> str:
    """Return under which name connections from an address are counted.

    For TCP that is the machine, whatever its port; for Bluetooth the device. All IPv6 addresses of
    a network of 64 bits count together, since one machine may have them all; a host's name counts
    by itself.
    """
    if address.startswith("bluetooth://"):
        return address.partition("://")[2].partition("/")[0].upper()
    if not address.startswith("tcp://"):
        return address
    host = address.removeprefix("tcp://").rpartition(":")[0].strip("[]")
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(found, IPv6Address):
        found = found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64)
    return str(found)


def why_not_bound(error: OSError) -> str:
    """Say why nothing can listen at an address of this machine, and what to do."""
    number = error.errno or 0
    # The event loop puts words of its own in place of the system's.
    reason = os.strerror(number) if number > 0 else error.strerror or str(error)
    advice = _WHEN_NOT_BOUND.get(number)
    return f"{reason}; {advice}" if advice else reason


def parse_datagram(address: str) -> DatagramAddress:
    """Read ``udp://IP:PORT``, or the same with another of :data:`DATAGRAM_SCHEMES`.

    Raises:
        IdentityError: It is not one.
    """
    scheme, _, rest = address.partition("://")
    host, _, port = rest.rpartition(":")
    is_number = port.isascii() and port.isdecimal() and len(port) <= 5
    try:
        is_host = IPv4Address(host).is_unspecified is False
    except ValueError:
        is_host = False
    if scheme not in DATAGRAM_SCHEMES or not is_host or not is_number:
        raise IdentityError(
            f"address {address!r}: expected {scheme}://IP:PORT, the IPv4 address of an interface"
        )
    if not 1 <= int(port) <= _MAX_PORT:
        raise IdentityError(f"address {address!r}: expected a port from 1 to {_MAX_PORT}")
    return DatagramAddress(scheme=scheme, host=host, port=int(port))


def parse_bluetooth(address: str, *, to_listen: bool = False) -> BluetoothAddress:
    """Read ``bluetooth://AA:BB:CC:DD:EE:FF/CHANNEL``, or the same without a channel.

    Args:
        address: What to read.
        to_listen: ``bluetooth://any/CHANNEL`` and ``bluetooth:`` are addresses as well.

    Raises:
        IdentityError: It is not one.
    """
    if to_listen and address == AUTOMATIC_BLUETOOTH:
        return BluetoothAddress(adapter="", channel=None)
    match = _BLUETOOTH.fullmatch(address)
    if match is None or (match["adapter"] == _ANY_ADAPTER and not to_listen):
        expected = "bluetooth://AA:BB:CC:DD:EE:FF/CHANNEL"
        others = ", bluetooth://any/CHANNEL or bluetooth:" if to_listen else ""
        raise IdentityError(f"address {address!r}: expected {expected}{others}")
    channel = None if match["channel"] is None else int(match["channel"])
    if channel is not None and not 1 <= channel <= _MAX_CHANNEL:
        raise IdentityError(f"address {address!r}: expected a channel from 1 to {_MAX_CHANNEL}")
    adapter = "" if match["adapter"] == _ANY_ADAPTER else match["adapter"].upper()
    return BluetoothAddress(adapter=adapter, channel=channel)


#: By scheme, what reads an address; others have no more to say than their scheme.
_PARSERS: Final[Mapping[str, Callable[[str], TcpAddress | BluetoothAddress | DatagramAddress]]] = (
    MappingProxyType(
        {
            "tcp": parse_tcp,
            "bluetooth": parse_bluetooth,
            **dict.fromkeys(DATAGRAM_SCHEMES, parse_datagram),
        }
    )
)
