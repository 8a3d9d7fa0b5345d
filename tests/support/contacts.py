"""Devices that are near each other for a while and then not: streams exist only during a contact.

Everything above the streams is real: TLS, links, depots, the network that looks for peers.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from retexo_fl.channels.streams import WireCounters
from retexo_fl.errors import ChannelClosed, ChannelUnavailable
from retexo_fl.exchange.frames import Buffer

#: Bytes that a stream carries in one go.
_PIECE_BYTES: Final = 1024
#: Bytes that a stream holds for its reader before its writer waits.
_WINDOW_BYTES: Final = 2**14


def address_of(client: int) -> str:
    """Return where a client is reached."""
    return f"bluetooth://02:00:00:00:00:{client:02X}/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contact:
    """Two clients that are near each other from ``begins_s`` until ``ends_s``."""

    clients: frozenset[int]
    begins_s: float
    ends_s: float


def contact(one: int, other: int, begins_s: float, ends_s: float) -> Contact:
    """Return one contact."""
    return Contact(clients=frozenset({one, other}), begins_s=begins_s, ends_s=ends_s)


def random_contacts(
    clients: Collection[int],
    *,
    seed: int,
    until_s: float,
    every_s: float,
    length_s: tuple[float, float],
) -> list[Contact]:
    """Return contacts of pairs that meet by chance.

    Args:
        clients: Who meets others at all.
        seed: Of the schedule.
        until_s: When the last one begins at the latest.
        every_s: Mean time between the beginnings of two contacts, over all pairs.
        length_s: Shortest and longest.
    """
    chance = np.random.default_rng((seed, len(clients)))
    known, contacts, now_s = sorted(clients), [], 0.0
    while (now_s := now_s + chance.exponential(every_s)) < until_s:
        one, other = chance.choice(known, size=2, replace=False)
        contacts.append(contact(int(one), int(other), now_s, now_s + chance.uniform(*length_s)))
    return contacts


class MeetingStream:
    """One end of a stream in memory; a :class:`~retexo_fl.channels.streams.ByteStream`."""

    channel = "bluetooth"

    def __init__(self, peer: int, bytes_per_s: float) -> None:
        self._peer = peer
        self._bytes_per_s = bytes_per_s
        self._incoming = bytearray()
        self._changed = asyncio.Event()
        self._is_broken = self._is_ended = False
        self.other = self

    @property
    def remote(self) -> str:
        """See :class:`~retexo_fl.channels.streams.ByteStream`."""
        return address_of(self._peer)

    async def read(self, max_bytes: int) -> bytes:
        """See :class:`~retexo_fl.channels.streams.ByteStream`; a cut stream loses what is in it."""
        while not self._incoming:
            self._check()
            if self._is_ended:
                return b""
            self._changed.clear()
            await self._changed.wait()
        self._check()
        data = bytes(self._incoming[:max_bytes])
        del self._incoming[:max_bytes]
        self.other._changed.set()
        return data

    async def write(self, data: Buffer) -> None:
        """See :class:`~retexo_fl.channels.streams.ByteStream`; takes the time of a slow radio."""
        for start in range(0, len(data), _PIECE_BYTES):
            piece = bytes(data[start : start + _PIECE_BYTES])
            await asyncio.sleep(len(piece) / self._bytes_per_s)
            while len(self.other._incoming) > _WINDOW_BYTES and not self._is_broken:
                self._changed.clear()
                await self._changed.wait()
            self._check()
            if self._is_ended:
                raise ChannelClosed(f"client {self._peer} has closed the stream")
            self.other._incoming += piece
            self.other._changed.set()

    async def close(self) -> None:
        """See :class:`~retexo_fl.channels.streams.ByteStream`."""
        self.other._is_ended = True
        self.other._changed.set()
        self._is_broken = True
        self._changed.set()

    def wire_counters(self) -> WireCounters:
        """Return that nothing is known, as for RFCOMM."""
        return WireCounters(sent_bytes=None, received_bytes=None)

    def cut(self) -> None:
        """Break both directions, as when one end has walked away."""
        for end in (self, self.other):
            end._is_broken = True
            end._incoming.clear()
            end._changed.set()

    def _check(self) -> None:
        if self._is_broken:
            raise ChannelClosed(f"client {self._peer} is out of reach")


class MeetingListener:
    """Where a client is reached while it is near."""

    def __init__(self, client: int) -> None:
        self._waiting: asyncio.Queue[MeetingStream] = asyncio.Queue()
        self.address = address_of(client)

    async def accept(self) -> MeetingStream:
        """See :class:`~retexo_fl.channels.streams.Listener`."""
        return await self._waiting.get()

    def offer(self, stream: MeetingStream) -> None:
        """Take a stream that somebody opened."""
        self._waiting.put_nowait(stream)

    async def close(self) -> None:
        """See :class:`~retexo_fl.channels.streams.Listener`."""


@dataclass(slots=True, kw_only=True)
class Look:
    """One attempt to connect: when, by whom, to whom, and whether the peer was near."""

    at_s: float
    client: int
    peer: int
    was_near: bool


@dataclass(slots=True)
class Country:
    """Where the clients are: who is near whom, and when.

    Attributes:
        contacts: The schedule.
        bytes_per_s: Of every stream, each way.
        page_s: Time that it takes to find that a client is not near.
        looks: Every attempt to connect.
    """

    contacts: Sequence[Contact]
    bytes_per_s: float = 100_000.0
    page_s: float = 0.0
    looks: list[Look] = field(default_factory=list)
    _by_pair: dict[frozenset[int], list[Contact]] = field(init=False)
    _listeners: dict[int, MeetingListener] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        """Sort the schedule by pair."""
        self._by_pair = defaultdict(list)
        for one in sorted(self.contacts, key=lambda item: item.begins_s):
            self._by_pair[one.clients].append(one)

    def transport(self, client: int) -> MeetingTransport:
        """Return how one client reaches others."""
        return MeetingTransport(self, client)

    def nearness_ends_s(self, one: int, other: int, now_s: float) -> float | None:
        """Return when a contact that lasts now will be over; None where there is none."""
        pair = self._by_pair.get(frozenset({one, other}), [])
        while pair and pair[0].ends_s <= now_s:
            pair.pop(0)
        if not pair or pair[0].begins_s > now_s:
            return None
        return max(item.ends_s for item in pair if item.begins_s <= now_s)

    async def open(self, client: int, peer: int) -> MeetingStream:
        """Connect two clients, until their contact is over.

        Raises:
            ChannelUnavailable: They are not near each other.
        """
        loop = asyncio.get_running_loop()
        ends_s = self.nearness_ends_s(client, peer, loop.time())
        listener = self._listeners.get(peer)
        is_near = ends_s is not None and listener is not None
        self.looks.append(Look(at_s=loop.time(), client=client, peer=peer, was_near=is_near))
        if ends_s is None or listener is None:
            await asyncio.sleep(self.page_s)
            raise ChannelUnavailable(f"{address_of(peer)}: nobody answers")
        here = MeetingStream(peer, self.bytes_per_s)
        there = MeetingStream(client, self.bytes_per_s)
        here.other, there.other = there, here
        loop.call_at(ends_s, here.cut)
        listener.offer(there)
        return here

    def listen(self, client: int) -> MeetingListener:
        """Let a client be found."""
        self._listeners[client] = MeetingListener(client)
        return self._listeners[client]

    def looks_in_vain(self, clients: Iterable[int]) -> dict[tuple[int, int], list[float]]:
        """Return, by who looked for whom, when that was, for pairs with one of ``clients``."""
        wanted, found = {*clients}, defaultdict(list)
        for look in self.looks:
            if not look.was_near and wanted & {look.client, look.peer}:
                found[look.client, look.peer].append(look.at_s)
        return dict(found)


class MeetingTransport:
    """How one client of a country reaches others."""

    def __init__(self, country: Country, client: int) -> None:
        self._country = country
        self._client = client

    async def connect(self, address: str, peer: int) -> MeetingStream:
        """See :class:`~retexo_fl.channels.streams.Transport`."""
        assert address == address_of(peer)
        return await self._country.open(self._client, peer)

    async def listen(self, address: str) -> MeetingListener:
        """See :class:`~retexo_fl.channels.streams.Transport`."""
        assert address == address_of(self._client)
        return self._country.listen(self._client)
