from __future__ import annotations

import asyncio

import pytest

from retexo_fl.agent.meter import Meter
from retexo_fl.errors import ChannelUnavailable
from tests.support.loopback import free_ports


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(2**16):
        writer.write(data * 2)
        await writer.drain()
    writer.close()


def test_bytes_pass_untouched_and_are_counted() -> None:
    async def run() -> None:
        here, there = free_ports(2)
        server = await asyncio.start_server(echo, "127.0.0.1", there)
        meter, ready = Meter(("127.0.0.1", here), ("127.0.0.1", there)), asyncio.Event()
        task = asyncio.create_task(meter.run(ready))
        await ready.wait()
        reader, writer = await asyncio.open_connection("127.0.0.1", here)
        sent = bytes(range(256)) * 4000
        writer.write(sent)
        writer.write_eof()
        assert sorted(await reader.read(-1)) == sorted(sent * 2)
        open_totals = meter.totals()
        writer.close()
        async with asyncio.timeout(60):
            while meter._open:
                await asyncio.sleep(0.01)
        totals = meter.totals()
        assert (totals["up"]["payload"], totals["down"]["payload"]) == (len(sent), 2 * len(sent))
        for way in ("up", "down"):
            assert totals[way]["wire"] > totals[way]["payload"]
            assert totals[way]["wire"] < 1.2 * totals[way]["payload"]
            assert open_totals[way]["wire"] <= totals[way]["wire"]
        assert totals["time"].keys() == {
            *("messages_s", "requests", "connections", "polls", "polls_s")
        }
        task.cancel()
        server.close()
        await asyncio.wait({task})

    asyncio.run(run())


def test_a_superlink_that_is_away_ends_the_connection_only() -> None:
    async def run() -> None:
        here, there = free_ports(2)
        meter, ready = Meter(("127.0.0.1", here), ("127.0.0.1", there)), asyncio.Event()
        task = asyncio.create_task(meter.run(ready))
        await ready.wait()
        reader, writer = await asyncio.open_connection("127.0.0.1", here)
        assert await reader.read() == b""
        writer.close()
        assert not task.done()
        task.cancel()
        await asyncio.wait({task})

    asyncio.run(run())


def test_no_more_connections_are_forwarded_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retexo_fl.agent.meter._MOST_CONNECTIONS", 2)

    async def run() -> None:
        here, there = free_ports(2)
        server = await asyncio.start_server(echo, "127.0.0.1", there)
        meter, ready = Meter(("127.0.0.1", here), ("127.0.0.1", there)), asyncio.Event()
        task = asyncio.create_task(meter.run(ready))
        await ready.wait()
        streams = []
        for expected in (b"xx", b"xx", b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", here)
            writer.write(b"x" if expected else b"")
            async with asyncio.timeout(30):
                assert await reader.read(2) == expected
            streams.append(writer)
        for writer in streams:
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(60):
            while meter._open:
                await asyncio.sleep(0.01)
        task.cancel()
        server.close()
        await asyncio.wait({task})

    asyncio.run(run())


def test_an_address_in_use_is_named() -> None:
    async def run() -> None:
        (here,) = free_ports(1)
        async with await asyncio.start_server(echo, "127.0.0.1", here):
            with pytest.raises(
                ChannelUnavailable, match=f"^meter: tcp://127.0.0.1:{here}: .*in use; stop"
            ):
                await Meter(("127.0.0.1", here), ("127.0.0.1", 1)).run(asyncio.Event())

    asyncio.run(run())
