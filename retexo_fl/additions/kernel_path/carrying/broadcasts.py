"""Which vectors several peers need alike, and so take from one packet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from retexo_fl.client.vector_carrier import MOST_STREAMS


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Streams:
    """How a sender's vectors are put into streams.

    Attributes:
        numbers: By peer, [n] int64 the stream of each of its vectors, from 0 as that peer counts.
        members: Of each stream that several peers take, their streams by peer; in this order.
    """

    numbers: Mapping[int, np.ndarray]
    members: tuple[Mapping[int, int], ...]


def alone(counts: Mapping[int, int]) -> Streams:
    """Give every peer one stream of its own."""
    return Streams(
        numbers={peer: np.zeros(count, dtype=np.int64) for peer, count in counts.items()},
        members=(),
    )


def together(rows: Mapping[int, np.ndarray], *, least_rows: int) -> Streams:
    """Put rows that the same peers need into one stream for all of them.

    Only peers that need a row get it. So each set of peers has a stream of its own; sets with few
    rows are left to the streams of single peers.

    Args:
        rows: By peer, [n] int64 the number of the inner node whose row a vector is, -1 where it is
            none; numbers that peers have in common are in the same order at all of them.
        least_rows: Rows from which on a set of peers has its own stream.
    """
    peers = sorted(rows)
    sets = _sets(rows, peers, least_rows)
    numbers = {peer: np.zeros(len(rows[peer]), dtype=np.int64) for peer in peers}
    # Stream 0 is the peer's own, where it has any vectors that no other peer takes.
    used = dict.fromkeys(peers, 0)
    for peer in peers:
        shared = np.zeros(len(rows[peer]), dtype=bool)
        for _, members in sets:
            if peer in members:
                shared |= np.isin(rows[peer], members[peer])
        used[peer] = 0 if shared.all() and len(shared) else 1
    streams = []
    for _, members in sets:
        stream = {}
        for peer, its in members.items():
            numbers[peer][np.isin(rows[peer], its)] = used[peer]
            stream[peer] = used[peer]
            used[peer] += 1
        streams.append(stream)
    return Streams(numbers=numbers, members=tuple(streams))


def _sets(
    rows: Mapping[int, np.ndarray], peers: list[int], least_rows: int
) -> list[tuple[tuple[int, ...], dict[int, np.ndarray]]]:
    """Return each set of several peers with enough rows, and its rows."""
    if not peers:
        return []
    every = np.concatenate([rows[peer] for peer in peers])
    distinct = np.unique(every[every >= 0])
    needed = np.zeros((len(distinct), len(peers)), dtype=bool)
    for at, peer in enumerate(peers):
        its = rows[peer]
        needed[np.searchsorted(distinct, its[its >= 0]), at] = True
    patterns, which, counts = np.unique(needed, axis=0, return_inverse=True, return_counts=True)
    found = []
    for number, (pattern, count) in enumerate(zip(patterns, counts, strict=True)):
        members = tuple(peer for peer, takes in zip(peers, pattern, strict=True) if takes)
        if len(members) > 1 and count >= least_rows:
            chosen = distinct[which.ravel() == number]
            found.append((members, dict.fromkeys(members, chosen)))
    return sorted(found, key=lambda entry: (-len(entry[0]), entry[0]))[: MOST_STREAMS - 1]
