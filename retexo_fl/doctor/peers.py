"""The way to peers: each answers at an address of the roster, and both ends accept each other."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterable, Iterator
from typing import Final

from retexo_fl.addition import BLUETOOTH
from retexo_fl.channels.addresses import DATAGRAM_SCHEMES, parse_tcp, scheme_of
from retexo_fl.channels.identity import Identity
from retexo_fl.channels.roster import Member, Roster
from retexo_fl.channels.secure_stream import SecureStream, connecting_context
from retexo_fl.doctor.finding import Finding, absent, bad, doubtful, good
from retexo_fl.errors import ChannelClosed, ChannelError, ChannelTimedOut, PeerRefused
from retexo_fl.plugins import is_own_scheme

_TIMEOUT_S: Final = 5.0
#: A peer that takes our certificate greets at once; one that refuses it says so as soon.
_READ_BYTES: Final = 65_536


def examine_peers(
    identity: Identity, roster: Roster, peers: Iterable[int], listen: Iterable[str] = ()
) -> Iterator[Finding]:
    """Try every peer at its addresses, in the order of the roster, until one answers.

    Args:
        identity: This client's.
        roster: Names the peers' certificates and addresses.
        peers: Client indices; those that the roster lacks are passed over.
        listen: Addresses that the client listens at; its agent connects from the same adapter.
    """
    for peer in peers:
        if peer in roster.members:
            yield _examine(identity, roster.members[peer], listen)


def _examine(identity: Identity, member: Member, listen: Iterable[str]) -> Finding:
    thing = f"peer {member.client}"
    if not member.addresses:
        return absent(thing, "has no address: it connects to this client")
    failures: list[str] = []
    for address in member.addresses:
        scheme = scheme_of(address)
        if scheme == "relay":
            return _by_relay(thing, failures)
        if scheme in DATAGRAM_SCHEMES:
            # Nothing answers there before an exchange has begun.
            continue
        if reason := _why_unchecked(scheme):
            failures.append(f"{address}: not checked, {reason}")
            continue
        try:
            _shake_hands(identity, member, address, listen)
        except PeerRefused as error:
            return bad(thing, f"{address}: {error}", "compare both machines' roster and keys")
        except (OSError, ChannelError) as error:
            if _is_busy(error):
                return good(thing, f"{address}: the agent is connected to it")
            failures.append(f"{address}: {_plain(error, address)}")
        else:
            return good(thing, f"{address} answers; each accepts the other's certificate")
    advice = "is its agent running, its port open? It may still connect to this client"
    return doubtful(thing, "; ".join(failures), advice)


def _why_unchecked(scheme: str) -> str:
    """Return why addresses of a scheme are not tried; empty where they are."""
    if is_own_scheme(scheme):
        return "a transport of your own"
    lacks = scheme in BLUETOOTH.schemes and not BLUETOOTH.is_here
    return f"this installation has no {BLUETOOTH.title}" if lacks else ""


def _by_relay(thing: str, failures: list[str]) -> Finding:
    seen = "; ".join([*failures, "through the server, in runs with relay = true"])
    if failures:
        return doubtful(thing, seen, "set relay = true, or make one of its addresses reachable")
    return absent(thing, seen)


def _shake_hands(identity: Identity, member: Member, address: str, listen: Iterable[str]) -> None:
    """Prove both ends to each other, and leave.

    Raises:
        OSError: Nobody answers.
        PeerRefused: One end does not accept the other.
        ChannelError: The connection ended.
    """
    stream = SecureStream(
        connecting_context(identity, member),
        is_accepting=False,
        clients={member.digest: member.client},
    )
    with _connected(address, listen) as wire:
        deadline = time.monotonic() + _TIMEOUT_S
        while stream.handshake() is None:
            _pump(wire, stream, deadline)
        # Whether the peer took our certificate is known from its first message.
        while stream.read() is None:
            _pump(wire, stream, deadline)
        stream.close()
        wire.sendall(stream.data_to_send())


def _connected(address: str, listen: Iterable[str]) -> socket.socket:
    if BLUETOOTH.serves(address):
        connection: socket.socket = BLUETOOTH.module("examination", address).connected(
            address, listen
        )
        connection.settimeout(_TIMEOUT_S)
        return connection
    wanted = parse_tcp(address)
    return socket.create_connection((wanted.host, wanted.port), timeout=_TIMEOUT_S)


def _is_busy(error: OSError | ChannelError) -> bool:
    """Return whether there is a connection already: Bluetooth has one at most."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EBUSY


def _pump(wire: socket.socket, stream: SecureStream, deadline: float) -> None:
    wire.sendall(stream.data_to_send())
    left_s = deadline - time.monotonic()
    if left_s <= 0:
        raise ChannelTimedOut("no answer to the handshake")
    wire.settimeout(left_s)
    data = wire.recv(_READ_BYTES)
    stream.receive_data(data)
    if not data and stream.handshake() is None:
        raise ChannelClosed("the connection was closed in the handshake")


def _plain(error: OSError | ChannelError, address: str) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(error, TimeoutError):
        return "no answer"
    if isinstance(error, OSError):
        return error.strerror or str(error)
    # The sentence of a channel begins with the address, which is shown already.
    return str(error).removeprefix(f"{address}: ")
