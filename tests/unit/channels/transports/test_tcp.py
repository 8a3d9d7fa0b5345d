"""TCP streams of this machine, and the bytes on the wire that the kernel tells."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retexo_fl.channels.streams import ByteStream, WireCounters
from retexo_fl.channels.transports.tcp import TcpTransport
from retexo_fl.errors import ChannelClosed, ChannelUnavailable
from tests.support.transport_contract import TransportContract


class TestTcpTransport(TransportContract):
    transport = TcpTransport

    def address(self, folder: Path) -> str:
        return "tcp://127.0.0.1:0"


_Story = Callable[[ByteStream, ByteStream], Awaitable[None]]


def _between(story: _Story, address: str = "tcp://127.0.0.1:0") -> None:
    async def play() -> None:
        transport = TcpTransport()
        listener = await transport.listen(address)
        try:
            async with asyncio.timeout(20):
                there = await transport.connect(listener.address, 0)
                here = await listener.accept()
                await story(there, here)
                await asyncio.gather(there.close(), here.close())
        finally:
            await listener.close()

    asyncio.run(play())


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "tcp://[::1]:0"])
def test_bytes_pass_both_ways_and_end_with_the_stream(address: str) -> None:
    data = bytes(range(256)) * 4096

    async def story(there: ByteStream, here: ByteStream) -> None:
        writing = asyncio.create_task(there.write(data))
        got = bytearray()
        while len(got) < len(data):
            got += await here.read(2**16)
        await writing
        await here.write(b"thanks")
        assert await there.read(100) == b"thanks"
        assert got == data
        closing = asyncio.create_task(there.close())
        assert await here.read(100) == b""
        await here.close()
        await closing
        for stream in (there, here):
            counters = stream.wire_counters()
            assert stream.wire_counters() == counters
        _assert_plausible(there.wire_counters(), here.wire_counters(), len(data))

    _between(story, address)


def _assert_plausible(there: WireCounters, here: WireCounters, data_bytes: int) -> None:
    """Headers are a part of both ends' count; what was sent twice counts at the sender only."""
    assert there.sent_bytes is not None
    assert here.received_bytes is not None
    assert there.received_bytes is not None
    assert here.sent_bytes is not None
    assert data_bytes < here.received_bytes < 1.05 * data_bytes
    assert there.sent_bytes >= here.received_bytes - 3 * 72
    assert abs(here.sent_bytes - there.received_bytes) <= 3 * 72


def test_a_stream_that_breaks_is_named() -> None:
    async def story(there: ByteStream, here: ByteStream) -> None:
        await here.write(b"unread")
        await there.close()
        with pytest.raises(ChannelClosed, match=r"tcp tcp://127\.0\.0\.1:\d+: "):
            await here.write(b"x" * 2**24)

    _between(story)


def test_others_have_their_turns_while_a_flooded_stream_closes() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def play() -> int:
        listener = await TcpTransport().listen("tcp://127.0.0.1:0")
        port = int(listener.address.rpartition(":")[2])
        waiting = 0
        with socket.create_connection(("127.0.0.1", port)) as flooding, suppress(BlockingIOError):
            stream = await listener.accept()
            flooding.setblocking(False)
            while True:
                waiting += flooding.send(bytes(2**16))
        other = asyncio.create_task(others())
        await stream.close()
        other.cancel()
        await listener.close()
        return waiting

    assert asyncio.run(play()) // 2**17 < turns


def test_names_that_nobody_looks_up_hold_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    look_up, answered = socket.getaddrinfo, threading.Event()

    def slow(host: str, port: int, **options: int) -> list[Any]:
        if "flags" not in options:
            answered.wait(20)
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, port, **options)

    monkeypatch.setattr(socket, "getaddrinfo", slow)

    async def play() -> None:
        transport = TcpTransport()
        listener = await transport.listen("tcp://127.0.0.1:0")
        names = [
            asyncio.create_task(transport.connect("tcp://nobody.invalid:9", peer))
            for peer in range(64)
        ]
        await asyncio.sleep(0.1)
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(int, "1") == 1
            stream = await transport.connect(listener.address, 0)
        answered.set()
        results = await asyncio.gather(*names, return_exceptions=True)
        assert all(isinstance(result, ChannelUnavailable) for result in results)
        await stream.close()
        await listener.close()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("tcp://127.0.0.1:9", "tcp://127.0.0.1:9: Connection refused"),
        ("tcp://nobody.invalid:9", "tcp://nobody.invalid:9: "),
    ],
)
def test_an_address_where_nobody_answers_is_named(address: str, sentence: str) -> None:
    async def connect() -> None:
        async with asyncio.timeout(20):
            await TcpTransport().connect(address, 0)

    with pytest.raises(ChannelUnavailable, match=sentence):
        asyncio.run(connect())


def test_an_address_that_is_taken_is_named() -> None:
    async def listen() -> None:
        first = await TcpTransport().listen("tcp://127.0.0.1:0")
        try:
            with pytest.raises(ChannelUnavailable, match="in use; stop the process that uses"):
                await TcpTransport().listen(first.address)
        finally:
            await first.close()

    asyncio.run(listen())


def test_a_connection_that_comes_with_a_cancellation_is_not_lost() -> None:
    async def cancel_and_go_on() -> None:
        listener = await TcpTransport().listen("tcp://127.0.0.1:0")
        accepting = asyncio.ensure_future(listener.accept())
        await asyncio.sleep(0)
        port = int(listener.address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)):
            # The loop finds both in one turn.
            asyncio.get_running_loop().call_soon(accepting.cancel)
            await asyncio.wait({accepting})
            assert accepting.cancelled()
            async with asyncio.timeout(20):
                stream = await listener.accept()
            await stream.close()
        await listener.close()

    asyncio.run(cancel_and_go_on())
