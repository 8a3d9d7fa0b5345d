"""The service of an agent is published, and found by a Python that has PyBluez's sockets alone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from retexo_fl.additions.bluetooth.directory import service_directory
from retexo_fl.additions.bluetooth.sockets import rfcomm_sockets
from retexo_fl.additions.bluetooth.transport import BluetoothTransport
from retexo_fl.errors import ChannelUnavailable
from tests.guest.air import FIRST, SECOND, Air
from tests.guest.patience import run


@pytest.fixture(scope="module", autouse=True)
def _paired() -> Iterator[None]:
    with Air() as air:
        air.pair()
        yield


def test_the_sockets_are_those_of_pybluez() -> None:
    assert not hasattr(socket, "AF_BLUETOOTH")
    assert rfcomm_sockets().library == "PyBluez"


def test_a_peer_is_reached_at_the_channel_that_it_published() -> None:
    transport = BluetoothTransport(adapter=SECOND)

    async def story() -> None:
        with pytest.raises(ChannelUnavailable, match="no agent there publishes its channel"):
            await service_directory().find_channel(FIRST, SECOND)
        listener = await BluetoothTransport().listen(f"bluetooth://{FIRST}")
        accepting = asyncio.create_task(listener.accept())
        opened = await transport.connect(f"bluetooth://{FIRST}", 0)
        accepted = await accepting
        await opened.write(b"found")
        assert await accepted.read(100) == b"found"
        await listener.close()
        with pytest.raises(ChannelUnavailable, match="no agent there publishes its channel"):
            await service_directory().find_channel(FIRST, SECOND)
        await opened.close()
        await accepted.close()

    run(story())
