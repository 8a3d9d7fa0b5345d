"""What callers of a datagram endpoint pass in and get back: streams, grants, progress."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from retexo_fl.errors import ChannelUnavailable

SOCKADDR_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IncomingStream:
    """What a receiver opens for one sender.

    Attributes:
        sender: Number of the client that sends.
        rows: Vectors in the stream.
        width: Values of a vector.
        packet_cells: Cells of 64 bytes in each packet but the last.
        places: (rows,) int64: the accumulator row of the block in which each vector lands;
            -1 = not for this receiver (a broadcast holds other receivers' vectors, too).
        number: Distinguishes streams of one sender into one block of rows.
        forms: (rows,) uint8 the form of each vector where numbers of a byte come: how many bits
            they are shifted by, and 128 more if they are signed; None where int32 come.
    """

    sender: int
    rows: int
    width: int
    packet_cells: int
    places: np.ndarray
    number: int = 0
    forms: np.ndarray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamGrant:
    """What a sender puts in its packets, so that this receiver takes them.

    Attributes:
        token: Random; proves that the receiver opened the stream.
        stream: Place of the stream in the receiver's table.
    """

    token: int
    stream: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """One receiver of what is sent.

    Attributes:
        address: ``IP:PORT`` of its endpoint.
        grant: What it granted.
    """

    address: str
    grant: StreamGrant


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProgress:
    """How much of one stream has been taken, in packets; ``duplicates`` came once more."""

    packets: int
    done: int
    duplicates: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeProgress:
    """How much of an exchange has been taken.

    Attributes:
        complete: All streams are open and every packet of theirs was added.
        packets_expected: None until all streams are open.
        packets_done: Packets added.
        by_stream: By sender, handle of its block of rows, and number.
    """

    complete: bool
    packets_expected: int | None
    packets_done: int
    by_stream: Mapping[tuple[int, int, int], StreamProgress]


@dataclass(frozen=True, slots=True, kw_only=True)
class DestinationState:
    """What became of the packets for one destination.

    Attributes:
        done: It acknowledged all of them.
        stalled: It stopped answering; it is asked every two seconds.
        reason: Why it is stalled; empty where it is not.
        sent: Packets sent, repetitions included.
        retransmitted: Of these, repetitions.
    """

    done: bool
    stalled: bool
    reason: str
    sent: int
    retransmitted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendState:
    """What became of what was sent under one key.

    Attributes:
        done: Every destination acknowledged every packet.
        stalled: At least one destination is stalled.
        packets: Packets that one destination needs.
        sent: Packets sent to all destinations, repetitions included; one that the kernel cloned
            counts once for each.
        retransmitted: Of these, repetitions.
        by_destination: By address.
    """

    done: bool
    stalled: bool
    packets: int
    sent: int
    retransmitted: int
    by_destination: Mapping[str, DestinationState]


def parse_endpoint(address: str, *, least_port: int = 1) -> tuple[str, int]:
    """Return IP and port of ``IP:PORT``.

    Raises:
        ChannelUnavailable: It is not an IPv4 address with a port.
    """
    host, _, port = address.rpartition(":")
    try:
        packed = socket.inet_pton(socket.AF_INET, host)
        number = int(port)
    except (OSError, ValueError) as error:
        raise ChannelUnavailable(f"{address}: expected IPV4:PORT") from error
    if not least_port <= number < 2**16:
        raise ChannelUnavailable(f"{address}: expected a port from {least_port} to 65535")
    return socket.inet_ntop(socket.AF_INET, packed), number


def socket_address(address: str) -> bytes:
    """Return the 16 bytes of C's ``sockaddr_in`` for ``IP:PORT``."""
    host, port = parse_endpoint(address)
    family = socket.AF_INET.to_bytes(2, "little")
    return family + port.to_bytes(2, "big") + socket.inet_aton(host) + bytes(8)
