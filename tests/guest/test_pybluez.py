"""PyBluez in place of dbus-fast: a record is published and read, devices are found.

Runs in the virtual machine, with PyBluez's fork.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
from pathlib import Path

import pytest

from retexo_fl.additions.bluetooth import look_up, pybluez
from retexo_fl.additions.bluetooth.sdp import Offer
from retexo_fl.errors import ChannelUnavailable
from tests.guest.bluetoothd import restart_bluetoothd

FIRST, SECOND = "00:AA:01:00:00:00", "00:AA:01:01:00:01"
ABSENT = "00:AA:01:77:00:00"
WITHIN_S = 60.0


@pytest.fixture(autouse=True)
def _old_interface() -> None:
    """Have bluetoothd take records from PyBluez, and both adapters answer strangers."""
    if not Path("/run/sdp").exists():
        asyncio.run(asyncio.wait_for(restart_bluetoothd("--compat"), WITHIN_S))
    for adapter in ("hci0", "hci1"):
        subprocess.run(["hciconfig", adapter, "piscan"], check=True)


@pytest.mark.parametrize("has_sockets", [True, False])
def test_a_record_is_found_until_it_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, has_sockets: bool
) -> None:
    if not has_sockets:
        monkeypatch.delattr(socket, "AF_BLUETOOTH", raising=False)

    async def work() -> None:
        async with asyncio.timeout(WITHIN_S):
            offer = Offer(channel=9, adapter=FIRST)
            publication = await pybluez.publish(offer)
            assert await look_up.find_offers(FIRST, SECOND) == (offer,)
            await publication.close()
            assert await look_up.find_offers(FIRST, SECOND) == ()
            with pytest.raises(ChannelUnavailable, match=f"{ABSENT}: Host is down"):
                await look_up.find_offers(ABSENT, SECOND)

    asyncio.run(work())


def test_devices_that_can_be_discovered_are_found() -> None:
    async def work() -> None:
        async with asyncio.timeout(WITHIN_S):
            found = await pybluez.discover("hci1", 3.0)
        assert [address for address, _ in found] == [FIRST]

    asyncio.run(work())
