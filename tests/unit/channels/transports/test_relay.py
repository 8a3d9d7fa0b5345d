"""Two ends of a relayed stream; the test is the server that passes parcels on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

import pytest

from retexo_fl.channels.transports.relay import (
    MAX_MESSAGE_BYTES,
    Addressed,
    RelayStream,
    RelayTransport,
)
from retexo_fl.errors import ChannelClosed, ChannelUnavailable
from retexo_fl.exchange.parcels import ParcelKind

Result = TypeVar("Result")


def _run(body: Coroutine[None, None, Result]) -> Result:
    return asyncio.run(asyncio.wait_for(body, 20))


class _Server:
    """Passes parcels between clients 0 and 1, a trip at a time."""

    def __init__(self) -> None:
        self.ends = {0: RelayTransport(), 1: RelayTransport()}
        self.pending: dict[int, list[Addressed]] = {0: [], 1: []}
        self.seen: list[bytes] = []

    async def trip(self) -> int:
        """Ask both clients once; return how many parcels they gave."""
        given: dict[int, list[Addressed]] = {0: [], 1: []}
        for client, end in self.ends.items():
            for peer, content in await end.exchange(self.pending[client]):
                given[peer].append((client, content))
                self.seen.append(content)
        self.pending = given
        return sum(map(len, given.values()))

    async def connected(self) -> tuple[RelayStream, RelayStream]:
        """Return both ends of a new stream from client 0 to client 1."""
        await self.trip()
        listener = await self.ends[1].listen("relay:")
        one = await self.ends[0].connect("relay:", 1)
        await self.trip()
        await self.trip()
        return one, await listener.accept()


def test_bytes_pass_both_ways() -> None:
    async def body() -> None:
        server = _Server()
        one, two = await server.connected()
        await one.write(b"question")
        await two.write(b"at once")
        await server.trip()
        await server.trip()
        assert await two.read(100) == b"question"
        assert await one.read(3) == b"at "
        assert await one.read(100) == b"once"
        assert (one.peer, two.peer) == (1, 0)

    _run(body())


def test_answer_leaves_in_the_same_trip() -> None:
    async def body() -> None:
        server = _Server()
        one, two = await server.connected()

        async def echo() -> None:
            await two.write(await two.read(100))

        task = asyncio.create_task(echo())
        await one.write(b"echo")
        await server.trip()
        await server.trip()
        await server.trip()
        assert await one.read(100) == b"echo"
        await task

    _run(body())


def test_end_is_read_as_end() -> None:
    async def body() -> None:
        server = _Server()
        one, two = await server.connected()
        await one.write(b"last")
        await one.close()
        await server.trip()
        await server.trip()
        assert await two.read(100) == b"last"
        assert await two.read(100) == b""
        await two.close()
        await server.trip()
        await server.trip()
        assert await one.read(100) == b""
        assert await server.trip() == 0

    _run(body())


def test_repeated_parcels_are_read_once() -> None:
    async def body() -> None:
        server = _Server()
        one, two = await server.connected()
        await one.write(b"once")
        await server.trip()
        server.pending[1] *= 2
        await server.trip()
        await one.write(b" only")
        await server.trip()
        await server.trip()
        assert await two.read(100) == b"once only"

    _run(body())


def test_lost_parcel_breaks_the_stream() -> None:
    async def body() -> None:
        server = _Server()
        one, two = await server.connected()
        await one.write(b"lost")
        await server.trip()
        server.pending[1].clear()
        await one.write(b"next")
        await server.trip()
        await server.trip()
        with pytest.raises(ChannelClosed, match="lost"):
            await two.read(100)
        with pytest.raises(ChannelClosed):
            await two.write(b"more")

    _run(body())


def test_writer_waits_while_nothing_leaves() -> None:
    async def body() -> None:
        server = _Server()
        one, two = await server.connected()
        size = 20_000_000

        async def write() -> None:
            for _ in range(40):
                await one.write(b"x" * (size // 40))

        task = asyncio.create_task(write())
        arrived = 0
        for _ in range(12):
            await server.trip()
            assert sum(len(content) for _, content in server.pending[1]) < 10_000_000
            while two._incoming:
                arrived += len(await two.read(2**20))
        await task
        assert arrived == size

    _run(body())


def test_reset_ends_all_streams() -> None:
    async def body() -> None:
        server = _Server()
        one, two = await server.connected()
        server.ends[0].reset("a new attempt begins")
        with pytest.raises(ChannelClosed, match="new attempt"):
            await one.read(1)
        with pytest.raises(ChannelUnavailable, match="relay = true"):
            await server.ends[0].connect("relay:", 1)
        await two.write(b"to nobody")
        for _ in range(3):
            await server.trip()
        with pytest.raises(ChannelClosed, match="knows this stream no more"):
            await two.read(1)

    _run(body())


def test_connecting_needs_a_server_that_passes_on() -> None:
    async def body() -> None:
        with pytest.raises(ChannelUnavailable, match="client 7"):
            await RelayTransport().connect("relay:", 7)

    _run(body())


def test_peer_opens_no_more_than_some_streams() -> None:
    async def body() -> None:
        server = _Server()
        await server.trip()
        for _ in range(10):
            await server.ends[0].connect("relay:", 1)
        await server.trip()
        await server.trip()
        assert server.ends[1]._accepted.qsize() == 4
        # Of the others it says that there is no such stream.
        assert sum(1 for content in server.seen if content[1] == ParcelKind.RESET) == 6

    _run(body())


def test_what_nobody_read_does_not_outlive_a_closed_stream() -> None:
    async def body() -> None:
        server = _Server()
        for _ in range(5):
            one, two = await server.connected()
            await one.write(b"unread")
            await one.close()
            await server.trip()
            await server.trip()
            await two.close()
            assert await two.read(100) == b""
            with pytest.raises(ChannelClosed, match="closed at this end"):
                await two.write(b"late")
            await server.trip()
            await server.trip()
        assert not server.ends[0]._streams
        assert not server.ends[1]._streams

    _run(body())


def test_what_comes_after_the_end_of_a_stream_is_not_kept() -> None:
    async def body() -> None:
        server = _Server()
        one, two = await server.connected()
        await two.close()
        for _ in range(5):
            await one.write(b"x" * 2**20)
            await server.trip()
        assert not two._incoming
        assert not two.is_over

    _run(body())


def test_who_is_not_read_for_too_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retexo_fl.channels.transports.relay._MAX_UNREAD_BYTES", 2**20)

    async def body() -> None:
        server = _Server()
        one, two = await server.connected()
        for _ in range(3):
            await one.write(b"x" * 2**19)
            await server.trip()
        await server.trip()
        await server.trip()
        with pytest.raises(ChannelClosed, match="knows this stream no more"):
            await one.write(b"x")
        assert 2**20 < len(await two.read(2**27)) <= 2**20 + 2**18
        with pytest.raises(ChannelClosed, match=f"more than {2**20} bytes"):
            await two.read(1)

    _run(body())


def test_streams_of_a_killed_peer_make_way_for_its_new_ones() -> None:
    async def body() -> None:
        server = _Server()
        await server.trip()
        listener = await server.ends[1].listen("relay:")
        for _ in range(5):
            server.ends[0] = RelayTransport()
            await server.trip()
            await server.ends[0].connect("relay:", 1)
            await server.trip()
            await server.trip()
            # Only when it speaks does this end learn that nobody is there any more.
            stream = await asyncio.wait_for(listener.accept(), 5)
            server.ends[0] = RelayTransport()
            await stream.close()
            await server.trip()
            await server.trip()
            await server.trip()
        assert not server.ends[1]._streams

    _run(body())


def test_who_waits_hears_that_its_parcel_was_lost() -> None:
    async def body() -> None:
        server = _Server()
        one, two = await server.connected()
        await one.write(b"lost")
        await server.trip()
        server.pending[1].clear()
        await one.write(b"next, and then it waits")
        for _ in range(3):
            await server.trip()
        with pytest.raises(ChannelClosed, match="knows this stream no more"):
            await one.read(1)
        with pytest.raises(ChannelClosed, match="lost"):
            await two.read(1)

    _run(body())


def test_a_full_message_begins_with_another_stream_the_next_time() -> None:
    async def body() -> None:
        end = RelayTransport()
        await end.exchange([])
        streams = [await end.connect("relay:", peer) for peer in (1, 2)]
        for stream in streams:
            await stream.write(b"x" * (MAX_MESSAGE_BYTES + 1))
        assert {peer for peer, _ in await end.exchange([])} == {1}
        assert 2 in {peer for peer, _ in await end.exchange([])}

    _run(body())


def test_what_is_no_parcel_is_dropped() -> None:
    async def body() -> None:
        end = RelayTransport()
        assert await end.exchange([(3, b"nonsense"), (3, b"")]) == []

    _run(body())


def test_counters_count_parcels() -> None:
    async def body() -> None:
        server = _Server()
        one, two = await server.connected()
        await one.write(b"12345")
        await server.trip()
        await server.trip()
        sent = one.wire_counters().sent_bytes
        assert sent == two.wire_counters().received_bytes == sum(map(len, server.seen))

    _run(body())
