"""Packets at random: good ones of open streams, some of them damaged in one way or another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from retexo_fl.additions.kernel_path.packets.layout import ACK_WANTED, HEADER, USER_ACK
from retexo_fl.additions.kernel_path.packets.packets import (
    ack_packet,
    checksum,
    ping_packet,
)
from tests.support.aggregate_twin import OpenStream, values_of

_FIELDS = tuple(name for name in HEADER.names or ())
#: Numbers at which comparisons turn.
_EDGES = (0, 1, 2, 21, 22, 23, 63, 64, 127, 255, 511, 512, 2**15, 2**16 - 1, 2**31, 2**32 - 1)


def fuzzed_packets(generator: np.random.Generator, streams: list[OpenStream]) -> Iterator[bytes]:
    """Yield UDP payloads without end; two of five are good."""
    stock = [packet for stream in streams for packet in _good(generator, stream)]
    damages = (_whole, _whole, _field, _field_unseen, _bit, _resized, _noise)
    while True:
        packet = stock[generator.integers(len(stock))]
        yield damages[generator.integers(len(damages))](generator, packet)


def _good(generator: np.random.Generator, stream: OpenStream) -> list[bytes]:
    head, shape = stream.head, stream.shape
    data = stream.packets(values_of(generator, shape))
    asked = stream.packets(values_of(generator, shape), flags=ACK_WANTED | USER_ACK)
    others = [
        ping_packet(head, int(seq), user_ack=bool(seq % 2))
        for seq in generator.integers(0, shape.packets, 4)
    ]
    others.append(ack_packet(head, 0, 0, np.zeros(8, dtype=np.uint64)))
    return data + asked + others


def _whole(_generator: np.random.Generator, packet: bytes) -> bytes:
    return packet


def _field(generator: np.random.Generator, packet: bytes) -> bytes:
    """Change a field of the header, and have the checksum agree."""
    changed = np.frombuffer(packet, dtype=np.uint8).copy()
    header = changed[: HEADER.itemsize].view(HEADER)
    name = _FIELDS[generator.integers(len(_FIELDS))]
    near = int(header[name][0]) + int(generator.integers(-2, 3))
    value = near if generator.random() < 0.5 else _EDGES[generator.integers(len(_EDGES))]
    header[name] = value % 256 ** HEADER[name].itemsize
    if name != "checksum":
        header["checksum"] = checksum(changed)
    return changed.tobytes()


def _field_unseen(generator: np.random.Generator, packet: bytes) -> bytes:
    """Change a byte of the header, and leave the checksum."""
    place = int(generator.integers(HEADER.itemsize))
    return packet[:place] + generator.bytes(1) + packet[place + 1 :]


def _bit(generator: np.random.Generator, packet: bytes) -> bytes:
    place = int(generator.integers(len(packet)))
    flipped = packet[place] ^ (1 << int(generator.integers(8)))
    return packet[:place] + bytes([flipped]) + packet[place + 1 :]


def _resized(generator: np.random.Generator, packet: bytes) -> bytes:
    size = int(generator.integers(0, 1472))
    return packet[:size] + generator.bytes(max(0, size - len(packet)))


def _noise(generator: np.random.Generator, packet: bytes) -> bytes:
    """Keep a packet's beginning, and make up the rest."""
    kept = int(generator.integers(0, HEADER.itemsize))
    return packet[:kept] + generator.bytes(len(packet) - kept)
