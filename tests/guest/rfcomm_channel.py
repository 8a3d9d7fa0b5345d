"""What the TCP channel must satisfy, over RFCOMM between two devices; and what only RFCOMM does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from retexo_fl.additions.bluetooth.transport import BluetoothTransport
from retexo_fl.channels import BlockKey
from retexo_fl.channels.streams import ByteStream
from retexo_fl.errors import ChannelUnavailable
from tests.guest.air import FIRST, SECOND, Air
from tests.guest.devices import FRAME_BYTES, Devices, large, one_of_each
from tests.guest.patience import STEP_S, arrive, run, until
from tests.support.depots import DepotsContract, Open
from tests.support.peer_networks import Client, frames_of, header_of, running

_ADDRESS = f"bluetooth://{FIRST}/7"
_MEBIBYTE_ROWS = 4096


@pytest.fixture(scope="module", autouse=True)
def _paired() -> Iterator[None]:
    with Air() as air:
        air.pair()
        yield


@pytest.fixture(scope="module")
def devices(tmp_path_factory: pytest.TempPathFactory) -> Devices:
    """The contract's clients: the receivers on one device, the senders on the other."""
    folder = tmp_path_factory.mktemp("keys")
    return Devices.of(folder, first=(1, 2), second=(0, 3, 4, 5, 6, 12))


class TestRfcommChannel(DepotsContract):
    @pytest.fixture(autouse=True)
    def _networks(self, tmp_path: Path, devices: Devices) -> Iterator[None]:
        clients = {number: devices.client(number, tmp_path) for number in devices.at}
        with self.exchanging(clients, within_s=STEP_S):
            yield


def test_a_mebibyte_goes_both_ways_at_once(tmp_path: Path) -> None:
    clients = one_of_each(tmp_path, rows=_MEBIBYTE_ROWS)
    headers = large(0, rows=_MEBIBYTE_ROWS), large(1, rows=_MEBIBYTE_ROWS)
    sent = [frames_of(header, frame_bytes=FRAME_BYTES) for header in headers]

    async def story() -> None:
        async with running(*clients):
            for header, frames in zip(headers, sent, strict=True):
                clients[header.sender].depot.send_block(header.key, frames)
            for header in headers:
                await arrive(clients[header.receiver], header.key)
            await until(lambda: not any(client.depot.owed() for client in clients))
            counters = clients[0].network.report().peers[1].channels
        for header, frames in zip(headers, sent, strict=True):
            arrived = clients[header.receiver].depot.receive_block(header.key)
            assert arrived == b"".join(frames)
            assert len(arrived) > 2**20
        assert list(counters) == ["bluetooth"]
        assert counters["bluetooth"].wire_bytes_sent is None

    run(story())


async def _both_ends() -> tuple[ByteStream, ByteStream]:
    """Return the two ends of a stream."""
    listener = await BluetoothTransport().listen(_ADDRESS)
    try:
        accepting = asyncio.create_task(listener.accept())
        opened = await BluetoothTransport(adapter=SECOND).connect(_ADDRESS, 0)
        return opened, await accepting
    finally:
        await listener.close()


async def _read(stream: ByteStream, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        part = await stream.read(2**16)
        assert part
        data += part
    return data


def test_a_write_of_any_size_ends() -> None:
    data = bytes(range(256)) * 2048

    async def story() -> None:
        one, other = await _both_ends()
        async with asyncio.timeout(STEP_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(one.write(data))
            tasks.create_task(other.write(data[::-1]))
            there = tasks.create_task(_read(other, len(data)))
            back = tasks.create_task(_read(one, len(data)))
        assert there.result() == data
        assert back.result() == data[::-1]
        assert one.remote == _ADDRESS
        assert other.remote == f"bluetooth://{SECOND}"
        await one.close()
        await other.close()

    run(story())


def test_a_stream_closed_by_the_peer_ends_and_a_new_one_opens() -> None:
    async def story() -> None:
        for _ in range(3):
            one, other = await _both_ends()
            await one.write(b"goodbye")
            await one.close()
            assert await _read(other, 7) == b"goodbye"
            # The kernel tells of the end in its own way, and once.
            assert await other.read(100) == b""
            assert await other.read(100) == b""
            await other.close()

    run(story())


def test_a_peer_that_closes_goes_on_later_where_it_was(tmp_path: Path) -> None:
    devices = Devices.of(tmp_path, first=(0,), second=(1,))
    sender = devices.client(0, tmp_path)

    def send(layer: int) -> BlockKey:
        header = header_of(0, 1, layer=layer)
        sender.depot.send_block(header.key, frames_of(header, frame_bytes=1024))
        return header.key

    def receiver() -> Client:
        client = devices.client(1, tmp_path)
        client.depot.admit_job("job-1", Open())
        return client

    async def story() -> None:
        sender.depot.admit_job("job-1", Open())
        async with running(sender):
            first = receiver()
            async with running(first):
                await arrive(first, send(0))
                await until(lambda: not sender.depot.owed())
            await until(lambda: not sender.network.report().peers[1].is_connected)
            later = send(1)
            again = receiver()
            async with running(again):
                await arrive(again, later)
                await until(lambda: not sender.depot.owed())
            counters = sender.network.report().peers[1].channels["bluetooth"]
            assert (counters.blocks_sent, counters.reconnects) == (2, 1)

    run(story())


def test_whoever_is_not_there_or_does_not_listen_is_told_apart() -> None:
    transport = BluetoothTransport(adapter=SECOND)

    async def story() -> None:
        for _ in range(2):
            with pytest.raises(ChannelUnavailable, match="/9: the device answers, but no agent"):
                await transport.connect(f"bluetooth://{FIRST}/9", 0)
            with pytest.raises(ChannelUnavailable, match="/9: the device does not answer"):
                await transport.connect("bluetooth://00:AA:01:99:00:99/9", 0)
        with pytest.raises(ChannelUnavailable, match="no adapter has this address"):
            await transport.listen("bluetooth://00:AA:01:99:00:99/9")

    run(story())
