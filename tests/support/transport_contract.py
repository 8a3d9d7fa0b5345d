"""What every transport must satisfy; a new one's test inherits :class:`TransportContract`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from retexo_fl.channels.streams import ByteStream, Transport
from retexo_fl.errors import ChannelClosed, ChannelUnavailable

_WITHIN_S = 20.0
#: What passes between the end that connected and the end that accepted.
_Story = Callable[[ByteStream, ByteStream], Awaitable[None]]


async def _write_much(stream: ByteStream) -> None:
    for _ in range(64):
        await stream.write(b"x" * 2**20)


class TransportContract:
    """Give ``transport`` and ``address`` in a subclass whose name begins with ``Test``."""

    transport: Callable[[], Transport]

    def address(self, folder: Path) -> str:
        """Return where to listen; ``folder`` is empty."""
        raise NotImplementedError

    def play(self, folder: Path, story: _Story) -> None:
        """Run a story between the end that connected and the end that accepted."""

        async def played() -> None:
            transport = type(self).transport()
            listener = await transport.listen(self.address(folder))
            try:
                async with asyncio.timeout(_WITHIN_S):
                    there = await transport.connect(listener.address, 0)
                    here = await listener.accept()
                    await story(there, here)
                    await asyncio.gather(there.close(), here.close())
            finally:
                await listener.close()

        asyncio.run(played())

    def test_bytes_pass_both_ways_whatever_their_number(self, tmp_path: Path) -> None:
        data = bytes(range(256)) * 4096

        async def story(there: ByteStream, here: ByteStream) -> None:
            writing = asyncio.create_task(there.write(memoryview(data)))
            got = bytearray()
            while len(got) < len(data):
                part = await here.read(2**12)
                assert 0 < len(part) <= 2**12
                got += part
            await writing
            assert got == data
            await here.write(b"thanks")
            assert await there.read(100) == b"thanks"

        self.play(tmp_path, story)

    def test_what_was_written_before_the_close_arrives(self, tmp_path: Path) -> None:
        async def story(there: ByteStream, here: ByteStream) -> None:
            await there.write(b"last words")
            closing = asyncio.create_task(there.close())
            got = b""
            while part := await here.read(100):
                got += part
            assert got == b"last words"
            await here.close()
            await closing

        self.play(tmp_path, story)

    def test_a_stream_may_be_closed_again_and_still_counts(self, tmp_path: Path) -> None:
        async def story(there: ByteStream, here: ByteStream) -> None:
            await there.write(b"x")
            assert await here.read(1) == b"x"
            await asyncio.gather(there.close(), here.close())
            await there.close()
            counters = there.wire_counters()
            assert there.wire_counters() == counters
            assert counters.sent_bytes is None or counters.sent_bytes >= 1

        self.play(tmp_path, story)

    def test_a_stream_whose_other_end_has_gone_is_named(self, tmp_path: Path) -> None:
        async def story(there: ByteStream, here: ByteStream) -> None:
            await here.close()
            with pytest.raises(ChannelClosed):
                await _write_much(there)

        self.play(tmp_path, story)

    def test_two_streams_are_two(self, tmp_path: Path) -> None:
        async def played() -> None:
            transport = type(self).transport()
            listener = await transport.listen(self.address(tmp_path))
            async with asyncio.timeout(_WITHIN_S):
                there = [await transport.connect(listener.address, 0) for _ in range(2)]
                here = [await listener.accept() for _ in range(2)]
                for number, stream in enumerate(there):
                    await stream.write(bytes([number]))
                assert sorted([await stream.read(1) for stream in here]) == [b"\0", b"\1"]
                await asyncio.gather(*(stream.close() for stream in (*there, *here)))
            await listener.close()

        asyncio.run(played())

    def test_nobody_there_and_a_listener_that_ended_are_named(self, tmp_path: Path) -> None:
        async def played() -> None:
            transport = type(self).transport()
            listener = await transport.listen(self.address(tmp_path))
            there = await transport.connect(listener.address, 0)
            here = await listener.accept()
            await listener.close()
            async with asyncio.timeout(_WITHIN_S):
                with pytest.raises(ChannelUnavailable):
                    await transport.connect(listener.address, 0)
                with pytest.raises(ChannelUnavailable):
                    await listener.accept()
                # What was accepted before goes on.
                await there.write(b"still here")
                assert await here.read(100) == b"still here"
                await asyncio.gather(there.close(), here.close())

        asyncio.run(played())
