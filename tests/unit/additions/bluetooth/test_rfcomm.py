"""RFCOMM streams over sockets of this machine; real RFCOMM is in the tests of a virtual machine."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable

import pytest

from retexo_fl.additions.bluetooth.rfcomm import RfcommStream
from retexo_fl.channels.doorway import host_of
from retexo_fl.errors import ChannelClosed

_Story = Callable[[RfcommStream, RfcommStream], Awaitable[None]]
_HERE, _THERE = "bluetooth://AA:BB:CC:DD:EE:01", "bluetooth://AA:BB:CC:DD:EE:02/3"


class _Radio(socket.socket):
    """A socket that behaves as RFCOMM's: small pieces only, and a reset where others end."""

    largest = 0

    def send(self, data: object, *flags: int) -> int:
        view = memoryview(data)  # type: ignore[arg-type]
        self.largest = max(self.largest, len(view))
        return super().send(view[:1016])

    def recv(self, size: int, *flags: int) -> bytes:
        data = super().recv(size)
        if data or not size:
            return data
        raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")


def _pair() -> tuple[_Radio, _Radio]:
    made = []
    for one in socket.socketpair():
        one.setblocking(False)
        made.append(_Radio(fileno=one.detach()))
        made[-1].setblocking(False)
    return made[0], made[1]


def _between(story: _Story) -> tuple[_Radio, _Radio]:
    sockets = _pair()

    async def play() -> None:
        here, there = RfcommStream(sockets[0], _HERE), RfcommStream(sockets[1], _THERE)
        try:
            async with asyncio.timeout(20):
                await story(here, there)
        finally:
            await asyncio.gather(here.close(), there.close())

    asyncio.run(play())
    return sockets


async def _read_all(stream: RfcommStream) -> bytes:
    got = bytearray()
    while data := await stream.read(2**16):
        got += data
    return bytes(got)


def test_a_mebibyte_passes_both_ways_at_once_in_small_pieces() -> None:
    data = bytes(range(256)) * 4096

    async def story(here: RfcommStream, there: RfcommStream) -> None:
        async def send(stream: RfcommStream) -> None:
            await stream.write(data)

        async def receive(stream: RfcommStream) -> bytes:
            got = bytearray()
            while len(got) < len(data):
                got += await stream.read(2**18)
            return bytes(got)

        done = await asyncio.gather(send(here), send(there), receive(here), receive(there))
        assert done[2] == done[3] == data

    for radio in _between(story):
        assert 0 < radio.largest <= 4096


def test_a_reset_is_the_end_and_stays_it() -> None:
    async def story(here: RfcommStream, there: RfcommStream) -> None:
        await here.write(b"goodbye")
        await here.close()
        assert await _read_all(there) == b"goodbye"
        assert await there.read(100) == b""

    _between(story)


def test_a_stream_that_breaks_is_named_by_its_device() -> None:
    async def story(here: RfcommStream, there: RfcommStream) -> None:
        await there.close()
        with pytest.raises(ChannelClosed, match=f"^{_HERE}: Broken pipe$"):
            await here.write(b"x" * 2**20)
        assert await here.read(100) == b""

    _between(story)


def test_others_have_their_turns_while_nobody_reads() -> None:
    async def story(here: RfcommStream, there: RfcommStream) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await here.write(bytes(2**22))
        assert await there.read(10) == bytes(10)

    _between(story)


def test_closing_again_does_nothing_and_nothing_is_counted() -> None:
    async def story(here: RfcommStream, there: RfcommStream) -> None:
        await here.close()
        await here.close()
        assert here.wire_counters().sent_bytes is None
        assert (here.channel, here.remote) == ("bluetooth", _HERE)
        assert host_of(here) == _HERE

    _between(story)
